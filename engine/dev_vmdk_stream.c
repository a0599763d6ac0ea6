/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * dev_vmdk_stream.c - a streamOptimized VMDK is written.
 *
 * The copy gives all bytes in order. They fill grains, which helper threads
 * deflate, several at a time; when the first one is done it goes behind what
 * was written before it, and a helper writes what has come together. So memory
 * is bounded by the number of grains, and nothing is ever looked for again.
 */
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "dev_vmdk.h"
#include "util.h"

#define OUT_SIZE ((size_t)MiB)
/* The longest thing that is added at once: a directory, or a table and a
 * grain. */
#define OUT_ROOM ((size_t)512 * KiB)

#define WAIT_MS 100

struct grain {
	TAILQ_ENTRY(grain) link; /* in order; or free */
	struct vmdk_stream *v;
	struct work work;
	z_stream z;
	uint64_t n;    /* which */
	size_t filled; /* bytes of it that have come */
	bool keep;     /* also when it is zero */
	/* The helper's, until it is done */
	bool zero;
	int error;
	size_t packed_len; /* whole sectors */
	bool done;
	uint8_t *packed; /* with its head */
	uint8_t data[VMDK_GRAIN];
};
TAILQ_HEAD(grain_list, grain);

/* What is not marked is the loop's. */
struct vmdk_stream {
	struct blockdev dev;
	struct loop *loop;
	struct workers *workers;
	char *name;
	int fd;
	bool pipe;
	int level;
	bool allocate;
	struct vmdk_header h;
	uint64_t ntables;

	struct grain *now; /* being filled */
	struct grain_list order, spare;
	unsigned ngrains, max_grains;
	uint64_t sector; /* where the next thing goes */
	uint64_t table_n;
	uint32_t table[VMDK_TABLE];
	bool table_used;
	uint32_t *directory;

	uint8_t *fill;	/* is added to */
	uint8_t *drain; /* the helper's, while `writing` */
	size_t fill_len, drain_len;
	struct work write_work;
	bool writing, last, flush;
	int write_error; /* the helper's, while `writing` */

	struct dev_io *io; /* a write that waits for a grain */
	uint64_t io_pos;
	struct dev_io *end; /* the finish() */
	bool ended;	    /* the footer has been added */
	unsigned works;	    /* under way */
	bool closing;
	int error;
	atomic_bool stop; /* any thread */
};

static void advance(struct vmdk_stream *v);

/* ---------------------------------------------------------------- output */

static size_t packed_max(void)
{
	return (size_t)align_up(VMDK_GRAIN_HEAD + compressBound(VMDK_GRAIN),
				VMDK_SECTOR);
}

/* Whole sectors, behind all else. NULL: zeroes. */
static void put(struct vmdk_stream *v, const void *data, size_t len)
{
	size_t whole = (size_t)align_up(len, VMDK_SECTOR);

	assert(whole <= OUT_SIZE - v->fill_len);
	if (data)
		memcpy(v->fill + v->fill_len, data, len);
	else
		len = 0;
	memset(v->fill + v->fill_len + len, 0, whole - len);
	v->fill_len += whole;
	v->sector += whole / VMDK_SECTOR;
}

static void put_numbers(struct vmdk_stream *v, const uint32_t *x, size_t n,
			enum vmdk_marker_kind kind)
{
	uint8_t marker[VMDK_SECTOR];
	size_t bytes = n * 4;
	uint8_t *to;

	vmdk_encode_marker(kind, align_up(bytes, VMDK_SECTOR) / VMDK_SECTOR,
			   marker);
	put(v, marker, sizeof(marker));
	to = v->fill + v->fill_len;
	put(v, NULL, bytes);
	for (size_t i = 0; i < n; i++)
		vmdk_put32(to + i * 4, x[i]);
}

static void put_table(struct vmdk_stream *v)
{
	if (!v->table_used)
		return;
	v->directory[v->table_n] = (uint32_t)v->sector + 1;
	put_numbers(v, v->table, VMDK_TABLE, VMDK_MARK_TABLE);
	memset(v->table, 0, sizeof(v->table));
	v->table_used = false;
}

static void put_grain(struct vmdk_stream *v, const struct grain *g)
{
	uint64_t table = g->n / VMDK_TABLE;

	if (table != v->table_n)
		put_table(v);
	v->table_n = table;
	v->table[g->n % VMDK_TABLE] = (uint32_t)v->sector;
	v->table_used = true;
	put(v, g->packed, g->packed_len);
}

static void put_end(struct vmdk_stream *v)
{
	struct vmdk_header foot = v->h;
	uint8_t s[VMDK_SECTOR];

	put_table(v);
	foot.directory = v->sector + 1;
	put_numbers(v, v->directory, v->ntables, VMDK_MARK_DIRECTORY);
	vmdk_encode_marker(VMDK_MARK_FOOTER, 1, s);
	put(v, s, sizeof(s));
	vmdk_encode(&foot, s);
	put(v, s, sizeof(s));
	vmdk_encode_marker(VMDK_MARK_END, 0, s);
	put(v, s, sizeof(s));
}

/* A pipe is written to in steps that do not wait, so that it can be stopped. */
static int write_pipe(struct vmdk_stream *v, const uint8_t *data, size_t len)
{
	struct pollfd p = { .fd = v->fd, .events = POLLOUT };

	while (len > 0) {
		ssize_t n;
		int r = poll(&p, 1, WAIT_MS);

		if (atomic_load(&v->stop))
			return -EINTR;
		if (r < 0 && errno != EINTR)
			return -errno;
		if (r <= 0)
			continue;
		n = write(v->fd, data, len < PIPE_BUF ? len : PIPE_BUF);
		if (n < 0 && (errno == EINTR || errno == EAGAIN))
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -ENOSPC;
		data += n;
		len -= (size_t)n;
	}
	return 0;
}

static int write_file(struct vmdk_stream *v, const uint8_t *data, size_t len)
{
	while (len > 0) {
		ssize_t n = write(v->fd, data, len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -ENOSPC;
		data += n;
		len -= (size_t)n;
	}
	return 0;
}

static void help_write(struct work *w)
{
	struct vmdk_stream *v = container_of(w, struct vmdk_stream, write_work);
	int r;

	if (v->pipe)
		r = write_pipe(v, v->drain, v->drain_len);
	else
		r = write_file(v, v->drain, v->drain_len);
	if (r == 0 && v->last && !v->pipe)
		r = file_finish(v->fd, v->flush);
	v->write_error = r;
}

static void work_over(struct vmdk_stream *v)
{
	v->works--;
	if (v->closing)
		loop_stop(v->loop);
	else
		advance(v);
}

static void written(struct work *w)
{
	struct vmdk_stream *v = container_of(w, struct vmdk_stream, write_work);

	v->writing = false;
	if (v->write_error && !v->error)
		v->error = v->write_error;
	work_over(v);
}

static void write_out(struct vmdk_stream *v)
{
	uint8_t *full = v->fill;

	if (v->writing || v->fill_len == 0 || v->error)
		return;
	v->fill = v->drain;
	v->drain = full;
	v->drain_len = v->fill_len;
	v->fill_len = 0;
	v->last = v->ended;
	v->flush = v->ended && (v->end->flags & DEV_FLUSH);
	v->writing = true;
	v->works++;
	workers_run(v->workers, &v->write_work);
}

/* ---------------------------------------------------------------- grains */

static void help_deflate(struct work *w)
{
	struct grain *g = container_of(w, struct grain, work);
	size_t len;

	g->zero = !g->keep && is_zero(g->data, VMDK_GRAIN);
	g->error = 0;
	if (g->zero)
		return;
	deflateReset(&g->z);
	g->z.next_in = g->data;
	g->z.avail_in = VMDK_GRAIN;
	g->z.next_out = g->packed + VMDK_GRAIN_HEAD;
	g->z.avail_out = (unsigned)(packed_max() - VMDK_GRAIN_HEAD);
	if (deflate(&g->z, Z_FINISH) != Z_STREAM_END) {
		g->error = -EIO;
		return;
	}
	len = VMDK_GRAIN_HEAD + (size_t)g->z.total_out;
	vmdk_encode_grain(g->n * (VMDK_GRAIN / VMDK_SECTOR),
			  (uint32_t)g->z.total_out, g->packed);
	g->packed_len = (size_t)align_up(len, VMDK_SECTOR);
	memset(g->packed + len, 0, g->packed_len - len);
}

static void deflated(struct work *w)
{
	struct grain *g = container_of(w, struct grain, work);
	struct vmdk_stream *v = g->v;

	g->done = true;
	if (g->error && !v->error)
		v->error = g->error;
	work_over(v);
}

static void grain_free(struct grain *g)
{
	if (!g)
		return;
	deflateEnd(&g->z);
	free(g->packed);
	free(g);
}

static struct grain *grain_new(struct vmdk_stream *v)
{
	struct grain *g = calloc(1, sizeof(*g));

	if (!g)
		return NULL;
	g->v = v;
	g->packed = malloc(packed_max());
	if (deflateInit(&g->z, v->level) != Z_OK || !g->packed) {
		grain_free(g);
		return NULL;
	}
	g->work.fn = help_deflate;
	g->work.done = deflated;
	v->ngrains++;
	return g;
}

/* One to be filled; NULL where one must be waited for. */
static struct grain *grain_get(struct vmdk_stream *v, uint64_t n)
{
	struct grain *g = TAILQ_FIRST(&v->spare);

	if (g)
		TAILQ_REMOVE(&v->spare, g, link);
	else if (v->ngrains < v->max_grains)
		g = grain_new(v);
	if (!g && v->ngrains == 0)
		v->error = -ENOMEM;
	if (!g)
		return NULL;
	g->n = n;
	g->filled = 0;
	g->done = false;
	g->keep = v->allocate;
	return g;
}

/* No more comes for the one that is being filled. */
static void grain_over(struct vmdk_stream *v)
{
	struct grain *g = v->now;

	if (!g)
		return;
	memset(g->data + g->filled, 0, VMDK_GRAIN - g->filled);
	v->now = NULL;
	TAILQ_INSERT_TAIL(&v->order, g, link);
	v->works++;
	workers_run(v->workers, &g->work);
}

/* What is deflated goes out in order, as far as there is room. */
static void grains_out(struct vmdk_stream *v)
{
	struct grain *g;

	while ((g = TAILQ_FIRST(&v->order)) != NULL && g->done && !v->error &&
	       OUT_SIZE - v->fill_len >= OUT_ROOM) {
		if (v->sector > UINT32_MAX - OUT_ROOM / VMDK_SECTOR)
			v->error = -EFBIG;
		else if (!g->zero)
			put_grain(v, g);
		TAILQ_REMOVE(&v->order, g, link);
		TAILQ_INSERT_HEAD(&v->spare, g, link);
	}
}

/* ------------------------------------------------------------------- ops */

static struct vmdk_stream *to_stream(struct blockdev *dev)
{
	return container_of(dev, struct vmdk_stream, dev);
}

/* Takes the bytes of the write that is under way. False: it has to wait. */
static bool take_bytes(struct vmdk_stream *v)
{
	struct dev_io *io = v->io;

	while (v->io_pos < io->len) {
		uint64_t at = io->offset + v->io_pos, in = at % VMDK_GRAIN;
		uint64_t n = min_u64(VMDK_GRAIN - in, io->len - v->io_pos);
		struct grain *g = v->now;

		if (g && g->n != at / VMDK_GRAIN)
			grain_over(v);
		if (!v->now)
			v->now = grain_get(v, at / VMDK_GRAIN);
		g = v->now;
		if (!g)
			return false;
		assert(g->filled <= in);
		memset(g->data + g->filled, 0, in - g->filled);
		if (io->data)
			memcpy(g->data + in, io->data + v->io_pos, n);
		else
			memset(g->data + in, 0, n);
		g->keep |= !io->data;
		g->filled = in + n;
		v->io_pos += n;
		if (g->filled == VMDK_GRAIN)
			grain_over(v);
	}
	return true;
}

static void io_over(struct vmdk_stream *v, struct dev_io **which)
{
	struct dev_io *io = *which;

	*which = NULL;
	io->done(io, v->error);
}

/* Goes on with all that can go on. */
static void advance(struct vmdk_stream *v)
{
	if (atomic_load(&v->stop) && !v->error)
		v->error = -EINTR;
	grains_out(v);
	if (v->end && !v->error && !v->ended && !v->now &&
	    TAILQ_EMPTY(&v->order) && OUT_SIZE - v->fill_len >= OUT_ROOM) {
		put_end(v);
		v->ended = true;
	}
	write_out(v);
	if (v->io && (v->error || take_bytes(v) || v->error))
		io_over(v, &v->io);
	if (v->end &&
	    (v->error || (v->ended && !v->writing && v->fill_len == 0)))
		io_over(v, &v->end);
}

static void stream_write(struct blockdev *dev, struct dev_io *io)
{
	struct vmdk_stream *v = to_stream(dev);

	assert(!v->io);
	v->io = io;
	v->io_pos = 0;
	advance(v);
}

/* What is left out reads as zero. */
static void stream_zero(struct blockdev *dev, struct dev_io *io)
{
	if (io->flags & DEV_ALLOCATE) {
		io->data = NULL;
		stream_write(dev, io);
	} else {
		io->done(io, to_stream(dev)->error);
	}
}

static void stream_finish(struct blockdev *dev, struct dev_io *io)
{
	struct vmdk_stream *v = to_stream(dev);

	v->end = io;
	grain_over(v);
	advance(v);
}

static void stream_stop(struct blockdev *dev)
{
	struct vmdk_stream *v = to_stream(dev);

	atomic_store(&v->stop, true);
	advance(v);
}

static void stream_free(struct vmdk_stream *v)
{
	struct grain *g;

	grain_free(v->now);
	while ((g = TAILQ_FIRST(&v->order)) != NULL) {
		TAILQ_REMOVE(&v->order, g, link);
		grain_free(g);
	}
	while ((g = TAILQ_FIRST(&v->spare)) != NULL) {
		TAILQ_REMOVE(&v->spare, g, link);
		grain_free(g);
	}
	free(v->fill);
	free(v->drain);
	free(v->directory);
	free(v->name);
	free(v);
}

/* What the helpers have is waited for: it is not long. */
static void stream_close(struct blockdev *dev)
{
	struct vmdk_stream *v = to_stream(dev);

	atomic_store(&v->stop, true);
	v->closing = true;
	while (v->works > 0)
		if (loop_run(v->loop) < 0)
			return;
	close(v->fd);
	stream_free(v);
}

static const struct blockdev_ops stream_ops = {
	.write = stream_write,
	.zero = stream_zero,
	.finish = stream_finish,
	.stop = stream_stop,
	.close = stream_close,
};

static int put_start(struct vmdk_stream *v, const char *adapter)
{
	uint8_t s[VMDK_SECTOR];
	uint32_t id = 1;
	char *text;

	if (getrandom(&id, sizeof(id), GRND_NONBLOCK) < 0)
		id = 1;
	text = vmdk_describe(&v->h, v->name, adapter, id & INT32_MAX);
	if (!text)
		return -ENOMEM;
	vmdk_encode(&v->h, s);
	put(v, s, sizeof(s));
	put(v, text, strlen(text));
	put(v, NULL, (v->h.overhead - v->sector) * VMDK_SECTOR);
	free(text);
	return 0;
}

struct blockdev *dev_vmdk_stream_new(const struct dev_vmdk_params *p,
				     struct error *err)
{
	struct vmdk_stream *v = calloc(1, sizeof(*v));
	struct error why = { "" };
	struct stat st;
	int r = -ENOMEM;

	if (!v)
		goto fail;
	TAILQ_INIT(&v->order);
	TAILQ_INIT(&v->spare);
	atomic_init(&v->stop, false);
	v->loop = p->loop;
	v->workers = p->workers;
	v->fd = p->fd;
	v->pipe = fstat(p->fd, &st) < 0 || !S_ISREG(st.st_mode);
	v->level = p->level;
	v->allocate = p->allocate;
	v->max_grains = 2 * p->threads + 2;
	v->write_work.fn = help_write;
	v->write_work.done = written;
	r = vmdk_stream_header(p->size, &v->h, &why);
	if (r < 0)
		goto fail;
	v->ntables = vmdk_tables(&v->h);
	v->name = strdup(p->name);
	v->fill = malloc(OUT_SIZE);
	v->drain = malloc(OUT_SIZE);
	v->directory = calloc(v->ntables + 1, sizeof(*v->directory));
	r = -ENOMEM;
	if (!v->name || !v->fill || !v->drain || !v->directory)
		goto fail;
	r = put_start(v, p->adapter);
	if (r < 0)
		goto fail;
	v->dev.ops = &stream_ops;
	v->dev.name = v->name;
	v->dev.size = v->h.capacity * VMDK_SECTOR;
	v->dev.caps = DEV_CAN_WRITE | DEV_CAN_ZERO;
	v->dev.preferred = 256 * KiB;
	v->dev.align = (uint32_t)VMDK_GRAIN;
	v->dev.depth = 1;
	return &v->dev;

fail:
	error_set(err, "%s: %s", p->name,
		  why.text[0] ? why.text : strerror(-r));
	if (v)
		stream_free(v);
	return NULL;
}
