/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "util.h"
#include "verify.h"
#include "walk.h"

#define REQUEST_SIZE (1 * MiB)
#define PAIRS_MAX 8
#define TURN_MAX 64
#define SMALL_HOLE (64 * KiB)
#define PROGRESS_NS (200 * NS_PER_MS)

/* The same range of both. What is known to be zero has no buffer. */
struct pair {
	struct verify_job *job;
	uint64_t offset, len;
	struct buf *buf[2];
	struct dev_io io[2];
	unsigned pending;
	bool busy;
};

struct verify_job {
	struct verify_params p;
	struct walk *walk[2];
	struct blockdev *dev[2];
	struct pair pairs[PAIRS_MAX];
	unsigned npairs, busy;
	uint64_t pos;
	bool pumping, cancelled, ended;
	int error;
	struct verify_result res;
	struct loop_task pump_task, end_task;
	struct loop_timer progress_timer;
};

static void pump(struct verify_job *job);

static bool stopping(const struct verify_job *job)
{
	return job->error || job->cancelled;
}

/* The lowest difference counts, in whatever order the answers come. */
static void found(struct verify_job *job, uint64_t offset)
{
	if (job->res.differs && job->res.offset <= offset)
		return;
	job->res.differs = true;
	job->res.offset = offset;
}

static uint64_t first_nonzero(const uint8_t *data, uint64_t len)
{
	uint64_t at = 0;

	while (at < len && is_zero(data + at, min_u64(len - at, 4096)))
		at += min_u64(len - at, 4096);
	while (at < len && data[at] == 0)
		at++;
	return at;
}

static uint64_t first_difference(const uint8_t *a, const uint8_t *b,
				 uint64_t len)
{
	uint64_t at = 0;

	while (at < len && !memcmp(a + at, b + at, min_u64(len - at, 4096)))
		at += min_u64(len - at, 4096);
	while (at < len && a[at] == b[at])
		at++;
	return at;
}

static void compare(struct pair *pair)
{
	struct verify_job *job = pair->job;
	struct buf *a = pair->buf[0], *b = pair->buf[1];
	uint64_t at;

	if (a && b)
		at = first_difference(a->data, b->data, pair->len);
	else
		at = first_nonzero(a ? a->data : b->data, pair->len);
	if (at < pair->len)
		found(job, pair->offset + at);
}

static void pair_end(struct pair *pair)
{
	struct verify_job *job = pair->job;

	if (!job->error)
		compare(pair);
	job->res.finished += pair->len;
	buf_put(pair->buf[0]);
	buf_put(pair->buf[1]);
	pair->busy = false;
	job->busy--;
	pump(job);
}

static void fail(struct verify_job *job, int error, const struct dev_io *io)
{
	if (job->error)
		return;
	job->error = error;
	job->res.offset = io->offset;
	job->res.side = io->dev == job->dev[1];
}

static void read_done(struct dev_io *io, int error)
{
	struct pair *pair = io->user;

	if (error)
		fail(pair->job, error, io);
	if (--pair->pending == 0)
		pair_end(pair);
}

static void pair_read(struct pair *pair, unsigned side)
{
	struct dev_io *io = &pair->io[side];

	io->done = read_done;
	io->user = pair;
	io->offset = pair->offset;
	io->len = pair->len;
	io->buf = pair->buf[side];
	io->data = io->buf->data;
	io->flags = 0;
	blockdev_read(pair->job->dev[side], io);
}

static struct pair *free_pair(struct verify_job *job)
{
	unsigned i;

	for (i = 0; i < job->npairs; i++) {
		if (!job->pairs[i].busy)
			return &job->pairs[i];
	}
	return NULL;
}

/* Begins to read [offset, offset + len) of those that are not zero. */
static bool pair_start(struct verify_job *job, uint64_t len, const bool zero[2])
{
	struct pair *pair = free_pair(job);
	unsigned side;

	if (!pair)
		return false;
	*pair = (struct pair){ .job = job, .offset = job->pos, .len = len };
	for (side = 0; side < 2; side++) {
		if (zero[side])
			continue;
		pair->buf[side] = buf_get(job->p.pool, len);
		if (!pair->buf[side])
			goto no_memory;
		pair->pending++;
	}
	pair->busy = true;
	job->busy++;
	/* Held until both were submitted: the first may be done at once. */
	pair->pending++;
	for (side = 0; side < 2; side++) {
		if (pair->buf[side])
			pair_read(pair, side);
	}
	if (--pair->pending == 0)
		pair_end(pair);
	return true;

no_memory:
	buf_put(pair->buf[0]);
	if (job->busy == 0)
		job->error = -ENOMEM;
	return false;
}

static bool next(struct verify_job *job)
{
	struct walk_run run[2];
	bool zero[2];
	uint64_t len;

	if (stopping(job) || job->res.differs || job->pos == job->p.len)
		return false;
	if (!walk_peek(job->walk[0], &run[0]) ||
	    !walk_peek(job->walk[1], &run[1]))
		return false;
	len = min_u64(run[0].len, run[1].len);
	zero[0] = run[0].zero;
	zero[1] = run[1].zero;
	if (zero[0] && zero[1]) {
		job->res.finished += len;
	} else {
		len = min_u64(len, REQUEST_SIZE - job->pos % REQUEST_SIZE);
		if (!pair_start(job, len, zero))
			return false;
	}
	job->pos += len;
	walk_advance(job->walk[0], len);
	walk_advance(job->walk[1], len);
	return true;
}

static void pump(struct verify_job *job)
{
	bool over;
	unsigned turn = 0;

	if (job->pumping || job->ended)
		return;
	job->pumping = true;
	while (turn < TURN_MAX && next(job))
		turn++;
	job->pumping = false;
	if (turn == TURN_MAX) {
		loop_defer(job->p.loop, &job->pump_task);
		return;
	}
	over = stopping(job) || job->res.differs;
	if (over) {
		walk_stop(job->walk[0]);
		walk_stop(job->walk[1]);
	}
	if (job->busy > 0 || !walk_idle(job->walk[0]) ||
	    !walk_idle(job->walk[1]))
		return;
	if (!over && job->pos < job->p.len)
		return;
	job->ended = true;
	loop_defer(job->p.loop, &job->end_task);
}

static void wake(void *arg)
{
	pump(arg);
}

static void run_pump(struct loop_task *t)
{
	pump(container_of(t, struct verify_job, pump_task));
}

static void run_end(struct loop_task *t)
{
	struct verify_job *job = container_of(t, struct verify_job, end_task);

	loop_timer_cancel(job->p.loop, &job->progress_timer);
	if (job->cancelled && !job->error && !job->res.differs &&
	    job->pos < job->p.len)
		job->error = -EINTR;
	job->p.done(job->p.arg, job->error, &job->res);
}

static void progress_fired(struct loop_timer *t)
{
	struct verify_job *job =
		container_of(t, struct verify_job, progress_timer);

	job->p.progress(job->p.arg, job->res.finished);
	if (!job->ended)
		loop_timer_set(job->p.loop, t, PROGRESS_NS);
}

int verify_start(const struct verify_params *p, struct verify_job **out)
{
	struct verify_job *job = calloc(1, sizeof(*job));
	unsigned side;

	if (!job)
		return -ENOMEM;
	job->p = *p;
	job->dev[0] = p->a;
	job->dev[1] = p->b;
	job->pump_task.run = run_pump;
	job->end_task.run = run_end;
	job->progress_timer.fire = progress_fired;
	job->npairs = (unsigned)max_u64(
		1, min_u64(PAIRS_MAX, p->queue_size / (2 * REQUEST_SIZE)));
	for (side = 0; side < 2; side++) {
		struct walk_params wp = {
			.dev = job->dev[side],
			.len = p->len,
			.no_extents = p->no_extents,
			.min_hole = SMALL_HOLE,
			.wake = wake,
			.arg = job,
		};

		if (p->len > job->dev[side]->size)
			goto fail;
		job->walk[side] = walk_new(&wp);
		if (!job->walk[side])
			goto fail;
	}
	if (p->progress)
		loop_timer_set(p->loop, &job->progress_timer, PROGRESS_NS);
	loop_defer(p->loop, &job->pump_task);
	*out = job;
	return 0;
fail:
	verify_free(job);
	return p->len > p->a->size || p->len > p->b->size ? -EINVAL : -ENOMEM;
}

void verify_cancel(struct verify_job *job)
{
	job->cancelled = true;
	pump(job);
}

void verify_free(struct verify_job *job)
{
	if (!job)
		return;
	walk_free(job->walk[0]);
	walk_free(job->walk[1]);
	free(job);
}
