/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The pool of buffers: classes, reuse, bounds. */
#include <string.h>
#include <sys/mman.h>

#include "engine.h"
#include "unit.h"
#include "util.h"

START_TEST(sizes_are_classes)
{
	static const struct {
		size_t asked, got;
	} sizes[] = {
		{ 0, 4096 },
		{ 1, 4096 },
		{ 4096, 4096 },
		{ 4097, 8192 },
		{ 16384, 16384 },
		{ 32769, 65536 },
		{ 65536, 65536 },
		{ 65537, 131072 },
		{ 131073, 196608 },
		{ MiB, MiB },
		{ MiB + 1, MiB + 65536 },
		{ 32 * MiB, 32 * MiB },
		{ 40 * MiB + 5, 40 * MiB + 65536 },
	};
	struct pool *p = pool_new(0);
	size_t i;

	ck_assert_ptr_nonnull(p);
	for (i = 0; i < ARRAY_SIZE(sizes); i++) {
		struct buf *b = buf_get(p, sizes[i].asked);

		ck_assert_ptr_nonnull(b);
		ck_assert_uint_eq(b->size, sizes[i].got);
		ck_assert_uint_eq(b->refs, 1);
		ck_assert_uint_eq((uintptr_t)b->data % 4096, 0);
		ck_assert_uint_eq(pool_in_use(p), b->size);
		memset(b->data, 0xff, b->size);
		buf_put(b);
		ck_assert_uint_eq(pool_in_use(p), 0);
	}
	ck_assert_ptr_null(buf_get(p, SIZE_MAX));
	ck_assert_ptr_null(buf_get(p, SIZE_MAX - 65536));
	ck_assert_ptr_null(buf_get(p, SIZE_MAX / 2));
	ck_assert_uint_eq(pool_in_use(p), 0);
	buf_put(NULL);
	pool_free(p);
	pool_free(NULL);
}
END_TEST

START_TEST(holders_are_counted)
{
	struct pool *p = pool_new(MiB);
	struct buf *b = buf_get(p, 100), *other;

	ck_assert_ptr_eq(buf_ref(b), b);
	ck_assert_uint_eq(b->refs, 2);
	buf_put(b);
	ck_assert_uint_eq(pool_in_use(p), 4096);
	/* Still ours: nobody else gets it. */
	other = buf_get(p, 100);
	ck_assert_ptr_ne(other, b);
	ck_assert_uint_eq(pool_in_use(p), 8192);
	buf_put(b);
	ck_assert_uint_eq(pool_in_use(p), 4096);
	ck_assert_ptr_eq(buf_get(p, 100), b);
	buf_put(b);
	buf_put(other);
	pool_free(p);
}
END_TEST

/* The same memory and header come back, the last used ones first. */
START_TEST(buffers_are_reused)
{
	struct pool *p = pool_new(8 * MiB);
	struct buf *a = buf_get(p, MiB), *b = buf_get(p, MiB), *c;
	uint8_t *data = b->data;

	buf_put(a);
	buf_put(b);
	c = buf_get(p, MiB);
	ck_assert_ptr_eq(c, b);
	ck_assert_ptr_eq(c->data, data);
	ck_assert_uint_eq(c->refs, 1);
	ck_assert_ptr_eq(buf_get(p, MiB), a);
	buf_put(a);
	buf_put(b);
	/* A little smaller: the same one; much smaller: not. */
	c = buf_get(p, 900 * 1024);
	ck_assert_ptr_eq(c, b);
	ck_assert_uint_eq(c->size, MiB);
	buf_put(c);
	c = buf_get(p, 600 * 1024);
	ck_assert(c != a && c != b);
	ck_assert_uint_eq(c->size, 640 * 1024);
	buf_put(c);
	c = buf_get(p, 5000);
	ck_assert_uint_eq(c->size, 8192);
	buf_put(c);
	pool_free(p);
}
END_TEST

/* Whether the page at data is mapped. */
static bool is_mapped(uint8_t *data)
{
	unsigned char vec[16];

	return mincore(data, 4096, vec) == 0;
}

START_TEST(idle_is_bounded)
{
	struct pool *p = pool_new(2 * MiB);
	struct buf *b[4];
	uint8_t *data[4];
	size_t i;

	for (i = 0; i < 4; i++) {
		b[i] = buf_get(p, MiB);
		data[i] = b[i]->data;
	}
	for (i = 0; i < 4; i++)
		buf_put(b[i]);
	/* The two that have lain longest are gone. */
	for (i = 0; i < 4; i++)
		ck_assert_int_eq(is_mapped(data[i]), i >= 2);
	/* Another size pushes out what is older, not itself. */
	b[0] = buf_get(p, 2 * MiB);
	data[0] = b[0]->data;
	buf_put(b[0]);
	ck_assert(is_mapped(data[0]));
	ck_assert(!is_mapped(data[2]));
	ck_assert(!is_mapped(data[3]));
	/* What alone is above the bound is not kept. */
	b[1] = buf_get(p, 3 * MiB);
	data[1] = b[1]->data;
	buf_put(b[1]);
	ck_assert(!is_mapped(data[1]));
	ck_assert(is_mapped(data[0]));
	pool_free(p);
	ck_assert(!is_mapped(data[0]));
}
END_TEST

#define HELD 64

/* Nobody's bytes are changed by somebody else. */
START_TEST(random_use)
{
	struct pool *p = pool_new(4 * MiB);
	struct buf *b[HELD] = { NULL };
	uint64_t seed = (uint64_t)_i, in_use = 0;
	int step;
	size_t i;

	for (step = 0; step < 20000; step++) {
		size_t size =
			unit_below(&seed, unit_below(&seed, 2) ? 200000 : 9000);

		i = unit_below(&seed, HELD);
		if (b[i]) {
			unit_assert(b[i]->data[0] == i);
			unit_assert(b[i]->data[b[i]->size - 1] == i);
			in_use -= b[i]->size;
			buf_put(b[i]);
			b[i] = NULL;
			continue;
		}
		b[i] = buf_get(p, size);
		unit_assert(b[i] && b[i]->size >= size);
		/* No more than a class and a quarter above what was asked. */
		unit_assert(b[i]->size <= max_u64(4096, 5 * (2 * size) / 4) ||
			    b[i]->size <= 5 * (size + 65536) / 4);
		b[i]->data[0] = (uint8_t)i;
		b[i]->data[b[i]->size - 1] = (uint8_t)i;
		in_use += b[i]->size;
		unit_assert(pool_in_use(p) == in_use);
	}
	for (i = 0; i < HELD; i++)
		buf_put(b[i]);
	ck_assert_uint_eq(pool_in_use(p), 0);
	pool_free(p);
}
END_TEST

int main(void)
{
	const struct unit_case cases[] = {
		{ sizes_are_classes, 0 },  { holders_are_counted, 0 },
		{ buffers_are_reused, 0 }, { idle_is_bounded, 0 },
		{ random_use, 8 },
	};

	return unit_main("buf", cases, ARRAY_SIZE(cases));
}
