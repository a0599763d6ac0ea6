/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <assert.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "engine.h"
#include "util.h"

/* Under AddressSanitizer a buffer that nobody holds must not be touched. */
#ifdef __SANITIZE_ADDRESS__
#define HAVE_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAVE_ASAN 1
#endif
#endif
#ifdef HAVE_ASAN
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(addr, size) ((void)(addr), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(addr, size) ((void)(addr), (void)(size))
#endif

#define SMALL_MIN_SHIFT 12 /* the smallest class: 4 KiB */
#define STEP_SHIFT 16	   /* 64 KiB: the step of large ones */
#define STEP ((size_t)1 << STEP_SHIFT)
#define SMALL_CLASSES (STEP_SHIFT - SMALL_MIN_SHIFT)
/* Larger ones than any request of a client are not kept. */
#define KEEP_MAX ((size_t)32 << 20)
#define CLASSES (SMALL_CLASSES + KEEP_MAX / STEP)
#define WORDS ((CLASSES + 63) / 64)

LIST_HEAD(buf_list, buf);
TAILQ_HEAD(buf_queue, buf);

/* Belongs to one loop; no field is shared between threads. */
struct pool {
	uint64_t idle_max, idle;       /* bytes of free buffers */
	uint64_t in_use;	       /* bytes handed out */
	struct buf_queue by_age;       /* free ones, last used first */
	uint64_t present[WORDS];       /* bit set: the class has free ones */
	struct buf_list free[CLASSES]; /* last used first: warm caches */
};

struct pool *pool_new(uint64_t idle)
{
	struct pool *p = calloc(1, sizeof(*p));
	size_t i;

	if (!p)
		return NULL;
	p->idle_max = idle;
	TAILQ_INIT(&p->by_age);
	for (i = 0; i < CLASSES; i++)
		LIST_INIT(&p->free[i]);
	return p;
}

/* The usable size of a buffer for `size` bytes; 0 where there is none. */
static size_t class_size(size_t size)
{
	size_t n = (size_t)1 << SMALL_MIN_SHIFT;

	if (size > SIZE_MAX - STEP)
		return 0;
	if (size > STEP)
		return (size + STEP - 1) & ~(STEP - 1);
	while (n < size)
		n <<= 1;
	return n;
}

/* The index of a class, for a size as class_size() gives it. */
static size_t class_index(size_t size)
{
	if (size < STEP)
		return (size_t)__builtin_ctzll(size) - SMALL_MIN_SHIFT;
	return SMALL_CLASSES + size / STEP - 1;
}

static size_t index_size(size_t index)
{
	if (index < SMALL_CLASSES)
		return (size_t)1 << (SMALL_MIN_SHIFT + index);
	return (index - SMALL_CLASSES + 1) * STEP;
}

/* Takes a buffer off the free ones. */
static void unlink_free(struct pool *p, struct buf *b)
{
	size_t i = class_index(b->size);

	LIST_REMOVE(b, link);
	TAILQ_REMOVE(&p->by_age, b, age);
	if (LIST_EMPTY(&p->free[i]))
		p->present[i / 64] &= ~((uint64_t)1 << (i % 64));
	p->idle -= b->size;
	ASAN_UNPOISON_MEMORY_REGION(b->data, b->size);
}

static void link_free(struct pool *p, struct buf *b)
{
	size_t i = class_index(b->size);

	LIST_INSERT_HEAD(&p->free[i], b, link);
	TAILQ_INSERT_HEAD(&p->by_age, b, age);
	p->present[i / 64] |= (uint64_t)1 << (i % 64);
	p->idle += b->size;
	ASAN_POISON_MEMORY_REGION(b->data, b->size);
}

/* A free buffer of the class, or of one that is at most a quarter larger:
 * sizes vary, and fresh memory (faults, clearing by the kernel) costs more
 * than room that stays unused. NULL if there is none. */
static struct buf *find_free(struct pool *p, size_t size)
{
	size_t first = class_index(size);
	size_t last = class_index(class_size(size + size / 4));
	size_t word = first / 64;
	uint64_t bits;

	if (index_size(last) > size + size / 4)
		last--;
	if (last >= CLASSES)
		last = CLASSES - 1;
	bits = p->present[word] & (UINT64_MAX << (first % 64));
	while (!bits && ++word <= last / 64)
		bits = p->present[word];
	if (!bits)
		return NULL;
	first = word * 64 + (size_t)__builtin_ctzll(bits);
	return first <= last ? LIST_FIRST(&p->free[first]) : NULL;
}

static struct buf *buf_alloc(struct pool *p, size_t size)
{
	struct buf *b = malloc(sizeof(*b));
	void *data;

	if (!b)
		return NULL;
	/* Not from the heap: whole pages, aligned, and really given back. */
	data = mmap(NULL, size, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (data == MAP_FAILED) {
		free(b);
		return NULL;
	}
	b->data = data;
	b->size = size;
	b->pool = p;
	return b;
}

static void buf_release(struct buf *b)
{
	munmap(b->data, b->size);
	free(b);
}

static void drop_oldest(struct pool *p)
{
	struct buf *b = TAILQ_LAST(&p->by_age, buf_queue);

	unlink_free(p, b);
	buf_release(b);
}

void pool_free(struct pool *p)
{
	if (!p)
		return;
	assert(p->in_use == 0);
	while (!TAILQ_EMPTY(&p->by_age))
		drop_oldest(p);
	free(p);
}

struct buf *buf_get(struct pool *p, size_t size)
{
	struct buf *b = NULL;

	size = class_size(size);
	if (size == 0)
		return NULL;
	if (size <= KEEP_MAX)
		b = find_free(p, size);
	if (b) {
		unlink_free(p, b);
	} else {
		b = buf_alloc(p, size);
		/* Memory that lies idle may be what is missing. */
		while (!b && !TAILQ_EMPTY(&p->by_age)) {
			drop_oldest(p);
			b = buf_alloc(p, size);
		}
		if (!b)
			return NULL;
	}
	b->refs = 1;
	p->in_use += b->size;
	return b;
}

struct buf *buf_ref(struct buf *b)
{
	assert(b->refs > 0);
	b->refs++;
	return b;
}

void buf_put(struct buf *b)
{
	struct pool *p;

	if (!b)
		return;
	assert(b->refs > 0);
	if (--b->refs > 0)
		return;
	p = b->pool;
	p->in_use -= b->size;
	if (b->size > KEEP_MAX || b->size > p->idle_max) {
		buf_release(b);
		return;
	}
	link_free(p, b);
	/* The one just used is warm; what has lain longest goes. */
	while (p->idle > p->idle_max)
		drop_oldest(p);
}

uint64_t pool_in_use(const struct pool *p)
{
	return p->in_use;
}
