/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "util.h"

static void next_piece(struct lane *lane);

static void stop_posted(struct loop_task *t)
{
	lane_stop(container_of(t, struct lane, stop_task));
}

int lane_init(struct lane *lane, struct shared *sh, struct error *err)
{
	lane->shared = sh;
	lane->stop_task.run = stop_posted;
	atomic_init(&lane->finished, 0);
	lane->src.local.fd = lane->dst.local.fd = -1;
	lane->loop = loop_new();
	if (lane->loop)
		lane->workers = workers_new(lane->loop, sh->cli->helpers);
	lane->pool = pool_new(sh->cli->queue_size);
	if (lane->loop && lane->workers && lane->pool)
		return 0;
	error_set(err, "cannot start: %s", strerror(errno));
	return -ENOMEM;
}

void lane_free(struct lane *lane)
{
	if (lane->started)
		pthread_join(lane->thread, NULL);
	lane->started = false;
	workers_free(lane->workers);
	pool_free(lane->pool);
	loop_free(lane->loop);
	lane->workers = NULL;
	lane->pool = NULL;
	lane->loop = NULL;
}

/* ---------------------------------------------------------------- copying */

static void add_stats(struct lane *lane, const struct copy_stats *s)
{
	lane->stats.read += s->read;
	lane->stats.written += s->written;
	lane->stats.zeroed += s->zeroed;
	lane->stats.skipped += s->skipped;
	lane->stats.finished += s->finished;
	atomic_store(&lane->finished, lane->stats.finished);
}

static void lane_progress(void *arg, const struct copy_stats *s)
{
	struct lane *lane = arg;

	atomic_store(&lane->finished, lane->stats.finished + s->finished);
}

static void lane_over(struct lane *lane)
{
	lane->running = false;
	loop_stop(lane->loop);
}

/* Of reads and writes: what the system's words would not say. */
static const char *describe(int error)
{
	switch (-error) {
	case EUCLEAN:
		return "the VMDK image is damaged";
	case EOVERFLOW:
		return "the server finds each request too long";
	default:
		return strerror(-error);
	}
}

/* One line: which end, at what, where, why. */
static void describe_error(struct lane *lane, int error)
{
	const char *step = copy_error_step(lane->job);
	const struct end *e = strcmp(step, "read") == 0 ? &lane->src :
							  &lane->dst;

	if (error == -ENOSPC && lane->dst.size != UINT64_MAX &&
	    lane->src.size == UINT64_MAX)
		error_set(&lane->err,
			  "%s: the input is longer than its %" PRIu64 " bytes",
			  lane->dst.label, lane->dst.size);
	else
		error_set(&lane->err, "%s: cannot %s at offset %" PRIu64 ": %s",
			  e->label, step, copy_error_offset(lane->job),
			  describe(error));
}

static void piece_done(void *arg, int error, const struct copy_stats *s)
{
	struct lane *lane = arg;

	add_stats(lane, s);
	lane->result = error;
	if (error && error != -EINTR)
		describe_error(lane, error);
	if (copy_window(lane->job))
		lane->window = copy_window(lane->job);
	copy_free(lane->job);
	lane->job = NULL;
	if (error || lane->shared->size == UINT64_MAX)
		lane_over(lane);
	else
		next_piece(lane);
}

static void fill_params(struct lane *lane, struct copy_params *p)
{
	const struct shared *sh = lane->shared;
	const struct cli *cli = sh->cli;
	bool nbd = lane->src.kind == END_NBD || lane->dst.kind == END_NBD;

	*p = (struct copy_params){
		.src = lane->src.dev,
		.dst = lane->dst.dev,
		.len = UINT64_MAX,
		.loop = lane->loop,
		.pool = lane->pool,
		.request_size = cli->request_size,
		.queue_size = max_u64(cli->queue_size / sh->lanes, 1),
		.window = lane->window,
		.retries = cli->retries,
		.sparse = sh->sparse,
		.allocated = cli->allocated,
		.dst_is_zero = cli->dest_is_zero,
		.marked = cli->dirty != NULL,
		.no_extents = cli->no_extents,
		.synchronous = cli->synchronous,
		.rate = cli->rate ? max_u64(cli->rate / sh->lanes, 1) : 0,
		.progress = lane_progress,
		.done = piece_done,
		.arg = lane,
	};
	/* As many on each connection; both ends have the same number. */
	if (cli->requests)
		p->requests = cli->requests * (nbd ? cli->lane_connections : 1);
}

/* Takes the next range that nobody has yet. */
static void next_piece(struct lane *lane)
{
	struct shared *sh = lane->shared;
	struct copy_params p;
	int r;

	fill_params(lane, &p);
	if (sh->size != UINT64_MAX) {
		uint64_t at = atomic_fetch_add(&sh->cursor, sh->piece);

		if (at >= sh->size || atomic_load(&sh->stop)) {
			if (at < sh->size)
				lane->result = -EINTR;
			lane_over(lane);
			return;
		}
		p.src_offset = p.dst_offset = at;
		p.len = min_u64(sh->piece, sh->size - at);
	}
	r = copy_start(&p, &lane->job);
	if (r < 0) {
		lane->result = r;
		error_set(&lane->err, "%s: %s", lane->dst.label, strerror(-r));
		lane_over(lane);
	}
}

void lane_copy(struct lane *lane)
{
	lane->running = true;
	next_piece(lane);
}

void lane_stop(struct lane *lane)
{
	if (lane->job)
		copy_cancel(lane->job);
}

/* ------------------------------------------------------------------ flush */

struct flushing {
	struct dev_io io;
	struct loop *loop;
	bool over;
	int error;
};

static void flushed(struct dev_io *io, int error)
{
	struct flushing *f = container_of(io, struct flushing, io);

	f->over = true;
	f->error = error;
	loop_stop(f->loop);
}

/* Has the destination do it, and waits for that. */
static int lane_ask(struct lane *lane,
		    void (*op)(struct blockdev *dev, struct dev_io *io),
		    unsigned flags)
{
	struct blockdev *dev = lane->dst.dev;
	struct flushing f = {
		.io = { .done = flushed, .dev = dev, .flags = flags },
		.loop = lane->loop,
	};
	int r = 0;

	op(dev, &f.io);
	while (!f.over && r == 0)
		r = loop_run(lane->loop);
	return r < 0 ? r : f.error;
}

int lane_flush(struct lane *lane, struct error *err)
{
	struct blockdev *dev = lane->dst.dev;
	int r;

	if (!dev->ops->flush)
		return 0;
	r = lane_ask(lane, dev->ops->flush, 0);
	if (r < 0)
		error_set(err, "%s: cannot flush: %s", lane->dst.label,
			  strerror(-r));
	return r;
}

int lane_complete(struct lane *lane, struct error *err)
{
	struct blockdev *dev = lane->dst.dev;
	bool flush = lane->shared->cli->flush;
	int r;

	if (!dev->ops->finish)
		return flush ? lane_flush(lane, err) : 0;
	r = lane_ask(lane, dev->ops->finish, flush ? DEV_FLUSH : 0);
	if (r < 0)
		error_set(err, "%s: cannot %s: %s", lane->dst.label,
			  lane->dst.format != FORMAT_RAW ?
				  "complete the image" :
			  flush ? "flush" :
				  "close",
			  strerror(-r));
	lane->dst.complete = r == 0;
	return r;
}

bool lane_lost(struct lane *lane)
{
	return lane->dst.kind == END_NBD && dev_image_lost(lane->dst.dev);
}

int lane_say_lost(const struct lane *lane, struct error *err)
{
	error_set(err,
		  "%s: the connection was lost, and with it perhaps what had "
		  "been written before",
		  lane->dst.label);
	return -EIO;
}

/* ---------------------------------------------------------------- threads */

static int open_again(struct lane *lane)
{
	const struct lane *first = lane->first;
	struct error *err = &lane->err;
	int r;

	r = end_open_again(&lane->src, &first->src, lane->loop, err);
	if (r == 0)
		r = end_open_again(&lane->dst, &first->dst, lane->loop, err);
	if (r == 0)
		r = end_device(&lane->src, lane->loop, lane->workers, err);
	if (r == 0)
		r = end_device(&lane->dst, lane->loop, lane->workers, err);
	return r;
}

static void lane_work(struct lane *lane)
{
	struct error err = { "" };
	int r = open_again(lane);

	if (r == 0)
		lane_copy(lane);
	while (lane->running && r == 0)
		r = loop_run(lane->loop);
	if (r < 0)
		lane->result = r;
	/* Through this lane's connections: they may be all that knows. */
	if (lane->result == 0 && lane->shared->cli->flush)
		lane->result = lane_flush(lane, &lane->err);
	if (lane->result == 0 && lane_lost(lane))
		lane->result = lane_say_lost(lane, &lane->err);
	end_close(&lane->src, lane->loop, &err);
	r = end_close(&lane->dst, lane->loop, &err);
	if (r < 0 && lane->result == 0) {
		lane->result = r;
		lane->err = err;
	}
}

static void *lane_main(void *arg)
{
	struct lane *lane = arg;

	lane_work(lane);
	loop_post(lane->first->loop, &lane->gone_task);
	return NULL;
}

int lane_start(struct lane *lane, const struct lane *first, struct error *err)
{
	sigset_t all, old;
	int e;

	lane->first = first;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	e = pthread_create(&lane->thread, NULL, lane_main, lane);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (e)
		error_set(err, "cannot start a thread: %s", strerror(e));
	else
		lane->started = true;
	return -e;
}
