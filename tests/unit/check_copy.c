/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The copy job between two devices that are not there: requests end in random
 * order, at once or later, fail at any step, tell more or less than they were
 * asked. Whatever happens, all is drained, nothing leaks, the bounds hold, and
 * what is said to be copied is.
 */
#include <errno.h>
#include <string.h>

#include "copy.h"
#include "unit.h"
#include "util.h"

#define IMAGE_MAX ((uint64_t)768 * KiB)
#define PENDING_MAX 600

enum kind { READ, WRITE, ZERO, EXTENTS, KINDS };

struct pending {
	struct dev_io *io;
	enum kind kind;
	int error;
};

/* One end. Both share the list of what is pending. */
struct fake {
	struct blockdev dev;
	struct world *w;
	uint8_t *data;
	uint8_t *zero;		    /* per 512 bytes: said to be zero */
	uint64_t stream_at;	    /* a pipe's position */
	unsigned fail_after[KINDS]; /* requests until one fails; 0: never */
	bool failing;		    /* ... and all after it */
	bool stopped;
	uint64_t zeroed; /* bytes made zero by zero() */
	bool allocate_seen;
};

struct world {
	uint64_t first_seed, seed;
	struct loop *loop;
	struct pool *pool;
	struct loop_task tick;
	struct fake src, dst;
	struct pending pending[PENDING_MAX];
	unsigned npending, max_pending;
	unsigned inline_percent, extent_style;
	unsigned cancel_after; /* ticks; 0: never */
	struct copy_params p;
	struct copy_job *job;
	bool done;
	int error, only_error;
	bool injected;
	struct copy_stats stats;
	uint64_t error_offset, prefix;
	uint64_t max_in_use;
};

/* Check's own assertions take notes each time they hold: too slow here. */
#define must(cond)                                                      \
	do {                                                            \
		if (!(cond))                                            \
			ck_abort_msg("seed %llu: %s",                   \
				     (unsigned long long)w->first_seed, \
				     #cond);                            \
	} while (0)

static uint64_t below(struct world *w, uint64_t n)
{
	return n ? unit_below(&w->seed, n) : 0;
}

static bool chance(struct world *w, unsigned percent)
{
	return below(w, 100) < percent;
}

/* ----------------------------------------------------------- fake device */

static void run_extents(struct fake *f, struct dev_io *io)
{
	struct world *w = f->w;
	uint64_t unit = io->offset / 512, end = unit + 1;
	uint64_t last = (f->dev.size + 511) / 512;

	while (end < last && f->zero[end] == f->zero[unit])
		end++;
	io->zero = f->zero[unit];
	io->hole = io->zero || chance(w, 20);
	io->run = min_u64(end * 512, f->dev.size) - io->offset;
	if (w->extent_style == 1)
		io->run = min_u64(io->run, 1 + below(w, 8192));
	else if (w->extent_style == 2 && io->run > io->len)
		io->run += below(w, 100000);
	else
		io->run = min_u64(io->run, io->len);
}

static void run_read(struct fake *f, struct dev_io *io)
{
	struct world *w = f->w;

	must(io->buf && io->data == io->buf->data);
	if (f->dev.caps & DEV_CAN_SEEK) {
		memcpy(io->data, f->data + io->offset, io->len);
		return;
	}
	io->got = min_u64(io->len, IMAGE_MAX - f->stream_at);
	io->got = min_u64(io->got, f->dev.depth - f->stream_at);
	if (io->got > 1)
		io->got = 1 + below(w, io->got);
	memcpy(io->data, f->data + f->stream_at, io->got);
	f->stream_at += io->got;
}

static void run_write(struct fake *f, struct dev_io *io)
{
	struct world *w = f->w;

	if (!(f->dev.caps & DEV_CAN_SEEK)) {
		must(io->offset == f->stream_at);
		f->stream_at += io->len;
	}
	memcpy(f->data + io->offset, io->data, io->len);
}

static void perform(struct pending *p)
{
	struct fake *f = container_of(p->io->dev, struct fake, dev);

	if (p->error == 0) {
		switch (p->kind) {
		case READ:
			run_read(f, p->io);
			break;
		case WRITE:
			run_write(f, p->io);
			break;
		case ZERO:
			memset(f->data + p->io->offset, 0, p->io->len);
			f->zeroed += p->io->len;
			break;
		default:
			run_extents(f, p->io);
		}
	} else if (p->kind == READ) {
		/* Half a read is none. */
		memset(p->io->data, 0x55, p->io->len / 2);
	}
	p->io->done(p->io, p->error);
}

static int pick_error(struct fake *f, enum kind kind)
{
	static const int errors[] = { -EIO, -ENOSPC, -EINVAL, -ESHUTDOWN };
	struct world *w = f->w;
	int error;

	if (f->stopped)
		return -EINTR;
	if (f->fail_after[kind] == 0)
		return 0;
	if (--f->fail_after[kind] > 0)
		return 0;
	if (f->failing)
		f->fail_after[kind] = 1;
	error = w->only_error;
	if (error == 0)
		error = errors[below(w, ARRAY_SIZE(errors))];
	if (kind != EXTENTS)
		w->injected = true;
	return error;
}

static void check_bounds(struct fake *f, struct dev_io *io, enum kind kind)
{
	struct world *w = f->w;
	unsigned i;

	must(kind == EXTENTS || io->len > 0);
	if (f->dev.caps & DEV_CAN_SEEK)
		must(range_inside(io->offset, io->len, f->dev.size));
	if (w->p.request_size && (kind == READ || kind == WRITE) &&
	    (io->buf || !w->dst.dev.ops->zero))
		must(io->buf ? io->len <= w->p.request_size : true);
	for (i = 0; i < w->npending && (kind == WRITE || kind == ZERO); i++) {
		struct dev_io *o = w->pending[i].io;

		if (o->dev != io->dev || w->pending[i].kind == READ ||
		    w->pending[i].kind == EXTENTS)
			continue;
		must(io->offset + io->len <= o->offset ||
		     o->offset + o->len <= io->offset);
		/* A pipe is written one by one. */
		must(f->dev.caps & DEV_CAN_SEEK);
	}
	w->max_in_use = max_u64(w->max_in_use, pool_in_use(w->pool));
}

static void submit(struct blockdev *dev, struct dev_io *io, enum kind kind)
{
	struct fake *f = container_of(dev, struct fake, dev);
	struct world *w = f->w;
	struct pending p = { .io = io, .kind = kind };
	unsigned i, requests = 0;

	must(!w->done);
	check_bounds(f, io, kind);
	p.error = pick_error(f, kind);
	if (chance(w, w->inline_percent)) {
		perform(&p);
		return;
	}
	must(w->npending < PENDING_MAX);
	w->pending[w->npending++] = p;
	for (i = 0; i < w->npending; i++)
		requests += w->pending[i].kind != EXTENTS;
	if (requests > w->max_pending)
		w->max_pending = requests;
	loop_defer(w->loop, &w->tick);
}

static void fake_read(struct blockdev *dev, struct dev_io *io)
{
	submit(dev, io, READ);
}

static void fake_write(struct blockdev *dev, struct dev_io *io)
{
	submit(dev, io, WRITE);
}

static void fake_zero(struct blockdev *dev, struct dev_io *io)
{
	struct fake *f = container_of(dev, struct fake, dev);

	if (io->flags & DEV_ALLOCATE)
		f->allocate_seen = true;
	submit(dev, io, ZERO);
}

static void fake_extents(struct blockdev *dev, struct dev_io *io)
{
	submit(dev, io, EXTENTS);
}

static void fake_stop(struct blockdev *dev)
{
	struct fake *f = container_of(dev, struct fake, dev);
	unsigned i;

	f->stopped = true;
	for (i = 0; i < f->w->npending; i++) {
		if (f->w->pending[i].io->dev == dev)
			f->w->pending[i].error = -EINTR;
	}
}

static const struct blockdev_ops seekable = {
	.read = fake_read,
	.write = fake_write,
	.zero = fake_zero,
	.extents = fake_extents,
};

static const struct blockdev_ops piped = {
	.read = fake_read,
	.write = fake_write,
	.stop = fake_stop,
};

/* Some of what is pending ends, in any order. */
static void tick(struct loop_task *t)
{
	struct world *w = container_of(t, struct world, tick);
	unsigned n = 1 + (unsigned)below(w, 4);

	if (w->cancel_after && --w->cancel_after == 0 && !w->done)
		copy_cancel(w->job);
	while (n-- > 0 && w->npending > 0) {
		unsigned i = (unsigned)below(w, w->npending);
		struct pending p = w->pending[i];

		w->pending[i] = w->pending[--w->npending];
		perform(&p);
	}
	if (w->npending > 0)
		loop_defer(w->loop, &w->tick);
}

/* ------------------------------------------------------------- one world */

static void copied(void *arg, int error, const struct copy_stats *stats)
{
	struct world *w = arg;

	must(!w->done);
	must(w->npending == 0);
	must(pool_in_use(w->pool) == 0);
	w->done = true;
	w->error = error;
	w->stats = *stats;
	w->prefix = copy_prefix(w->job);
	if (error) {
		w->error_offset = copy_error_offset(w->job);
		must(copy_error_step(w->job));
	}
	copy_free(w->job);
	w->job = NULL;
	loop_stop(w->loop);
}

/* Runs of data and zeroes; zeroes are not always known as such. */
static void fill_source(struct world *w)
{
	struct fake *f = &w->src;
	static const uint64_t lengths[] = { 512, 4096, 20000, 100000, 300000 };
	uint64_t at = 0, unit = chance(w, 50) ? 4096 : 512;
	unsigned style = (unsigned)below(w, 5);

	while (at < IMAGE_MAX) {
		uint64_t most = lengths[(style + below(w, 2)) % 5];
		uint64_t len = align_up(1 + below(w, most), unit);
		bool zero = style == 4 ? chance(w, 95) : chance(w, 50);
		uint64_t i;

		len = min_u64(len, IMAGE_MAX - at);
		for (i = 0; i < len; i++)
			f->data[at + i] = zero ? 0 :
						 (uint8_t)(1 + below(w, 255));
		for (i = at / 512; i < (at + len) / 512; i++)
			f->zero[i] = zero && chance(w, 99);
		at += len;
	}
}

static void fake_init(struct world *w, struct fake *f)
{
	f->w = w;
	f->data = calloc(1, IMAGE_MAX);
	f->zero = calloc(1, IMAGE_MAX / 512 + 1);
	must(f->data && f->zero);
	f->dev.name = "fake";
	f->dev.align = 1;
	f->dev.depth = 64;
}

static void choose_ends(struct world *w)
{
	struct fake *s = &w->src, *d = &w->dst;
	bool stream = chance(w, 15), in_order = chance(w, 15);

	s->dev.ops = stream ? &piped : &seekable;
	d->dev.ops = in_order ? &piped : &seekable;
	s->dev.caps = DEV_CAN_READ;
	d->dev.caps = DEV_CAN_WRITE;
	if (!stream)
		s->dev.caps |= DEV_CAN_SEEK | DEV_CAN_EXTENTS;
	if (!in_order)
		d->dev.caps |= DEV_CAN_SEEK | DEV_CAN_ZERO;
	s->dev.size = 1 + below(w, IMAGE_MAX);
	if (chance(w, 30))
		s->dev.size = IMAGE_MAX;
	w->p.len = UINT64_MAX;
	if (stream) {
		/* Where the pipe ends. */
		s->dev.depth = (unsigned)s->dev.size;
		s->dev.size = UINT64_MAX;
	} else if (chance(w, 30)) {
		w->p.src_offset = below(w, s->dev.size + 1);
		if (chance(w, 50))
			w->p.len = below(w, s->dev.size - w->p.src_offset + 1);
	}
	d->dev.size = in_order ? UINT64_MAX : IMAGE_MAX;
	if (chance(w, 50) && w->p.src_offset > 0 && !in_order)
		w->p.dst_offset = below(w, w->p.src_offset);
}

static void choose_params(struct world *w)
{
	static const uint32_t sizes[] = { 0, 4096, 8192, 65536 };
	static const uint64_t queues[] = { 1, 65536, 200000, 16 * MiB };
	static const uint32_t sparse[] = { 0, 512, 4096, 65536 };
	struct copy_params *p = &w->p;

	p->request_size = sizes[below(w, ARRAY_SIZE(sizes))];
	p->queue_size = queues[below(w, ARRAY_SIZE(queues))];
	p->sparse = sparse[below(w, ARRAY_SIZE(sparse))];
	p->requests = chance(w, 50) ? 1 + (unsigned)below(w, 8) : 0;
	p->allocated = chance(w, 20);
	p->dst_is_zero = chance(w, 30) && !w->src.fail_after[ZERO];
	p->no_extents = chance(w, 15);
	p->synchronous = chance(w, 10);
	if (!p->dst_is_zero)
		memset(w->dst.data, 0xee, IMAGE_MAX);
	w->inline_percent = chance(w, 20) ? 100 : (unsigned)below(w, 80);
	w->extent_style = (unsigned)below(w, 3);
}

static void choose_errors(struct world *w)
{
	unsigned kind;

	if (chance(w, 50))
		return;
	for (kind = 0; kind < KINDS; kind++) {
		struct fake *f = kind == READ || kind == EXTENTS ? &w->src :
								   &w->dst;

		if (chance(w, 40))
			f->fail_after[kind] = 1 + (unsigned)below(w, 20);
		f->failing = chance(w, 30);
	}
}

static void world_init(struct world *w, uint64_t seed)
{
	memset(w, 0, sizeof(*w));
	w->first_seed = w->seed = seed;
	w->loop = loop_new();
	w->pool = pool_new(4 * MiB);
	must(w->loop && w->pool);
	w->tick.run = tick;
	fake_init(w, &w->src);
	fake_init(w, &w->dst);
	fill_source(w);
	choose_ends(w);
	choose_errors(w);
	choose_params(w);
	if (chance(w, 20))
		w->cancel_after = 1 + (unsigned)below(w, 60);
	w->p.src = &w->src.dev;
	w->p.dst = &w->dst.dev;
	w->p.loop = w->loop;
	w->p.pool = w->pool;
	w->p.done = copied;
	w->p.arg = w;
}

static void world_free(struct world *w)
{
	free(w->src.data);
	free(w->src.zero);
	free(w->dst.data);
	free(w->dst.zero);
	pool_free(w->pool);
	loop_free(w->loop);
}

/* What should have been copied. */
static uint64_t expected_len(const struct world *w)
{
	if (!(w->src.dev.caps & DEV_CAN_SEEK))
		return w->src.dev.depth;
	if (w->p.len != UINT64_MAX)
		return w->p.len;
	return w->src.dev.size - w->p.src_offset;
}

static void check_bytes(struct world *w, uint64_t len)
{
	uint64_t i;

	if (memcmp(w->dst.data + w->p.dst_offset, w->src.data + w->p.src_offset,
		   len) == 0)
		return;
	for (i = 0; w->dst.data[w->p.dst_offset + i] ==
		    w->src.data[w->p.src_offset + i];
	     i++)
		;
	ck_abort_msg("seed %llu: byte %llu of %llu is wrong",
		     (unsigned long long)w->first_seed, (unsigned long long)i,
		     (unsigned long long)len);
}

/* Nothing outside of the range has been touched. */
static void check_outside(struct world *w, uint64_t len)
{
	uint8_t before = w->p.dst_is_zero ? 0 : 0xee;
	uint64_t i;

	for (i = 0; i < w->p.dst_offset; i++)
		must(w->dst.data[i] == before);
	for (i = w->p.dst_offset + len; i < IMAGE_MAX; i++)
		must(w->dst.data[i] == before);
}

static void check_stats(struct world *w, uint64_t len)
{
	struct copy_stats *s = &w->stats;

	must(s->written + s->zeroed + s->skipped == s->finished);
	must(s->zeroed == w->dst.zeroed);
	if (w->p.allocated || !w->p.dst_is_zero)
		must(s->skipped == 0);
	if (w->p.allocated && s->zeroed)
		must(w->dst.allocate_seen);
	if (w->error == 0)
		must(s->finished == len);
	must(w->prefix <= len);
}

static void check_limits(struct world *w)
{
	uint64_t request = w->p.request_size ? w->p.request_size : MiB;

	/* A buffer of the pool may be a quarter larger than asked for. */
	must(w->max_in_use <=
	     (w->p.queue_size + request) / 4 * 5 + 64 * KiB * 8);
	if (w->p.requests)
		must(w->max_pending <= w->p.requests);
	if (w->p.synchronous)
		must(w->max_pending <= 1);
}

static void one_world(uint64_t seed)
{
	struct world *w = malloc(sizeof(*w));
	bool may_cancel;
	uint64_t len;
	int r;

	must(w);
	world_init(w, seed);
	may_cancel = w->cancel_after > 0;
	len = expected_len(w);
	r = copy_start(&w->p, &w->job);
	must(r == 0);
	must(!w->done);
	r = loop_run(w->loop);
	must(r == 0);
	must(w->done);
	if (w->error == 0)
		must(!w->injected && w->prefix == len);
	else if (w->error == -EINTR)
		must(may_cancel);
	else
		must(w->injected);
	check_bytes(w, w->prefix);
	check_outside(w, len);
	check_stats(w, len);
	check_limits(w);
	world_free(w);
	free(w);
}

START_TEST(random_worlds)
{
	unsigned n = getenv("NBDFS_TEST_FULL") ? 3000 : 300;
	uint64_t seed = (uint64_t)_i * n, end = seed + n;

	for (; seed < end; seed++)
		one_world(seed);
}
END_TEST

/* ---------------------------------------------------------- single cases */

static void plain_world(struct world *w, uint64_t size)
{
	memset(w, 0, sizeof(*w));
	w->seed = 1;
	w->loop = loop_new();
	w->pool = pool_new(4 * MiB);
	ck_assert(w->loop && w->pool);
	w->tick.run = tick;
	fake_init(w, &w->src);
	fake_init(w, &w->dst);
	w->src.dev.ops = w->dst.dev.ops = &seekable;
	w->src.dev.caps = DEV_CAN_READ | DEV_CAN_SEEK | DEV_CAN_EXTENTS;
	w->dst.dev.caps = DEV_CAN_WRITE | DEV_CAN_SEEK | DEV_CAN_ZERO;
	w->src.dev.size = w->dst.dev.size = size;
	memset(w->dst.data, 0xee, IMAGE_MAX);
	w->p = (struct copy_params){
		.src = &w->src.dev,
		.dst = &w->dst.dev,
		.len = UINT64_MAX,
		.loop = w->loop,
		.pool = w->pool,
		.queue_size = MiB,
		.request_size = 4096,
		.sparse = 4096,
		.done = copied,
		.arg = w,
	};
}

static void run_world(struct world *w)
{
	ck_assert_int_eq(copy_start(&w->p, &w->job), 0);
	ck_assert_int_eq(loop_run(w->loop), 0);
	ck_assert(w->done);
}

START_TEST(bad_ranges)
{
	static struct world w;
	struct copy_job *job;

	plain_world(&w, 65536);
	w.p.src_offset = 65537;
	ck_assert_int_eq(copy_start(&w.p, &job), -EINVAL);
	w.p.src_offset = 1;
	w.p.len = 65536;
	ck_assert_int_eq(copy_start(&w.p, &job), -EINVAL);
	w.p.len = UINT64_MAX - 1;
	ck_assert_int_eq(copy_start(&w.p, &job), -EINVAL);
	w.p.len = UINT64_MAX;
	w.p.src_offset = 0;
	w.p.dst_offset = 1;
	ck_assert_int_eq(copy_start(&w.p, &job), -ENOSPC);
	w.p.dst_offset = 65537;
	w.p.len = 0;
	ck_assert_int_eq(copy_start(&w.p, &job), -ENOSPC);
	w.p.dst_offset = 65536;
	run_world(&w);
	ck_assert_int_eq(w.error, 0);
	world_free(&w);
}
END_TEST

/* The error of one read, with its place; no byte of that block is written. */
START_TEST(error_place)
{
	static struct world w;

	plain_world(&w, 65536);
	memset(w.src.data, 0x11, 65536);
	w.p.synchronous = true;
	w.src.fail_after[READ] = 3;
	run_world(&w);
	ck_assert_int_lt(w.error, 0);
	ck_assert_uint_eq(w.error_offset, 8192);
	ck_assert_uint_eq(w.prefix, 8192);
	ck_assert_uint_eq(w.dst.data[8191], 0x11);
	ck_assert_uint_eq(w.dst.data[8192], 0xee);
	world_free(&w);
}
END_TEST

/* A remote end is asked again, a local one is not. */
START_TEST(retries)
{
	static struct world w;
	unsigned remote;

	for (remote = 0; remote < 2; remote++) {
		plain_world(&w, 65536);
		memset(w.src.data, 0x11, 65536);
		w.p.retries = 1;
		w.only_error = -EIO;
		w.src.fail_after[READ] = 2;
		if (remote)
			w.src.dev.caps |= DEV_REMOTE;
		run_world(&w);
		ck_assert_int_eq(w.error == 0, remote);
		world_free(&w);
	}
}
END_TEST

/* Block status that fails is no reason to fail, nor to write zeroes. */
START_TEST(extents_fail)
{
	static struct world w;

	plain_world(&w, IMAGE_MAX);
	memset(w.src.data, 0x11, IMAGE_MAX);
	memset(w.src.zero, 1, IMAGE_MAX / 512);
	w.src.fail_after[EXTENTS] = 1;
	w.src.failing = true;
	run_world(&w);
	ck_assert_int_eq(w.error, 0);
	ck_assert_uint_eq(w.stats.read, IMAGE_MAX);
	ck_assert_uint_eq(w.stats.zeroed, 0);
	ck_assert(!memcmp(w.src.data, w.dst.data, IMAGE_MAX));
	world_free(&w);
}
END_TEST

/* Zeroes that are known cost one request, or none. */
START_TEST(zeroes_are_cheap)
{
	static struct world w;
	unsigned known;

	for (known = 0; known < 2; known++) {
		plain_world(&w, IMAGE_MAX);
		memset(w.src.zero, 1, IMAGE_MAX / 512);
		w.p.dst_is_zero = known;
		w.p.requests = 1;
		run_world(&w);
		ck_assert_int_eq(w.error, 0);
		ck_assert_uint_eq(w.stats.read, 0);
		ck_assert_uint_eq(w.stats.skipped, known ? IMAGE_MAX : 0);
		ck_assert_uint_eq(w.stats.zeroed, known ? 0 : IMAGE_MAX);
		world_free(&w);
	}
}
END_TEST

int main(void)
{
	const struct unit_case cases[] = {
		{ random_worlds, 8 }, { bad_ranges, 0 },
		{ error_place, 0 },   { retries, 0 },
		{ extents_fail, 0 },  { zeroes_are_cheap, 0 },
	};

	return unit_main("copy", cases, ARRAY_SIZE(cases));
}
