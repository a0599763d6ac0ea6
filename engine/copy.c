/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "copy_int.h"
#include "util.h"

/* Good between near ends, where bytes are handed on while they are still in
 * the processor's cache; both grow where the ends are far apart. */
#define REQUEST_NEAR (512 * KiB)
#define REQUEST_SIZE (1 * MiB)
#define REQUEST_MIN (64 * KiB)
#define WINDOW_MIN (2 * MiB)
#define NEAR (8 * MiB)
/* Bounds of what is in flight when requests are small. */
#define OPS_MAX 256
#define SLOTS_MAX 256
/* One zero request: large, but so that progress is seen. */
#define ZERO_MAX (1 * GiB)
#define ALLOCATE_MAX (128 * MiB)
#define ZERO_PARTS 1024
/* Requests that are issued before others on the loop get their turn. */
#define TURN_MAX 64
#define PROGRESS_NS (200 * NS_PER_MS)
/* The rate may be exceeded for so long after a pause. */
#define RATE_SLACK (100 * NS_PER_MS)
#define RATE_PARTS 8

/* True if a read of len bytes may begin now; else the timer is set. */
static bool rate_allows(struct copy_job *job, uint64_t len)
{
	uint64_t now = loop_now(job->p.loop);
	double ns;

	if (job->p.rate == 0)
		return true;
	if (now < job->rate_next) {
		if (!job->rate_timer.armed)
			loop_timer_set(job->p.loop, &job->rate_timer,
				       job->rate_next - now);
		tune_starved(&job->tune);
		return false;
	}
	ns = (double)len / (double)job->p.rate * 1e9;
	job->rate_next = max_u64(job->rate_next, now - RATE_SLACK);
	if (ns < 1e18)
		job->rate_next += (uint64_t)ns;
	else
		job->rate_next += (uint64_t)1 << 60;
	return true;
}

static bool start_read(struct copy_job *job, uint64_t len)
{
	struct slot *s;
	int r = slot_new(job, len, true, &s);

	if (r < 0) {
		/* What is in flight may give its memory back. */
		if (job->in_flight == 0)
			copy_fail(job, r, "read", job->issued);
		return false;
	}
	r = slot_read(s);
	if (r < 0)
		copy_fail(job, r, "read", s->offset);
	return r == 0;
}

/* True if len more bytes fit into the window; one request always does. */
static bool window_allows(const struct copy_job *job, uint64_t len)
{
	return job->held == 0 || (job->held < job->tune.window &&
				  len <= job->tune.window - job->held);
}

/* One read at a time, of what comes. */
static bool stream_next(struct copy_job *job)
{
	uint64_t len = min_u64(job->request_size, job->len - job->issued);

	if (job->stream_end || job->reading > 0 || len == 0 ||
	    job->slots >= job->slots_max)
		return false;
	/* One byte more than fits tells whether the end was reached. */
	len = min_u64(len, max_u64(job->room - job->issued, 1));
	if (!window_allows(job, len) || !rate_allows(job, len))
		return false;
	return start_read(job, len);
}

static bool zero_next(struct copy_job *job, uint64_t len)
{
	struct slot *s;
	int r;

	if (job->skip_zeroes || job->p.marked) {
		job->stats.skipped += len;
		job->stats.finished += len;
		job->issued += len;
		walk_advance(job->walk, len);
		return true;
	}
	r = slot_new(job, len, false, &s);
	if (r < 0) {
		if (job->in_flight == 0)
			copy_fail(job, r, "zero", job->issued);
		return false;
	}
	walk_advance(job->walk, len);
	slot_ready(s);
	return true;
}

/* How long a request is now. */
static uint32_t request_now(const struct copy_job *job)
{
	if (job->p.request_size || job->tune.window > NEAR)
		return job->request_size;
	return (uint32_t)min_u64(job->request_size,
				 max_u64(REQUEST_NEAR, job->p.sparse));
}

/* Takes the next run, or a part of it, of the source's. */
static bool source_next(struct copy_job *job)
{
	uint32_t size = request_now(job);
	struct walk_run run;
	uint64_t part;

	if (job->stream)
		return stream_next(job);
	if (!walk_peek(job->walk, &run)) {
		if (!walk_at_end(job->walk))
			tune_starved(&job->tune);
		return false;
	}
	if (job->slots >= job->slots_max)
		return false;
	if (run.zero)
		return zero_next(job, run.len);
	/* Pieces end where the destination would have them end. */
	part = (job->p.dst_offset + job->issued) % size;
	run.len = min_u64(run.len, size - part);
	if (!window_allows(job, run.len) || !rate_allows(job, run.len))
		return false;
	if (!start_read(job, run.len))
		return false;
	walk_advance(job->walk, run.len);
	return true;
}

static bool issue_next(struct copy_job *job)
{
	if (copy_stopping(job) || job->in_flight >= job->ops_max)
		return false;
	if (!TAILQ_EMPTY(&job->retry) &&
	    loop_now(job->p.loop) >= job->retry_at) {
		copy_retry_next(job);
		return true;
	}
	return copy_write_next(job) || source_next(job);
}

static bool all_done(const struct copy_job *job)
{
	if (job->stream)
		return (job->stream_end || job->issued == job->len) &&
		       TAILQ_EMPTY(&job->order);
	return walk_at_end(job->walk) && TAILQ_EMPTY(&job->order);
}

/* No more is issued; what waits for somebody outside is woken. */
static void stop_all(struct copy_job *job)
{
	struct blockdev *src = job->p.src, *dst = job->p.dst;

	if (job->stopped)
		return;
	job->stopped = true;
	if (job->walk)
		walk_stop(job->walk);
	if (src->ops->stop)
		src->ops->stop(src);
	if (dst->ops->stop)
		dst->ops->stop(dst);
}

void copy_pump(struct copy_job *job)
{
	unsigned turn = 0;

	if (job->pumping || job->ended)
		return;
	job->pumping = true;
	while (turn < TURN_MAX && issue_next(job))
		turn++;
	if (copy_stopping(job))
		stop_all(job);
	job->pumping = false;
	if (turn == TURN_MAX) {
		loop_defer(job->p.loop, &job->pump_task);
		return;
	}
	if (job->in_flight > 0 || (job->walk && !walk_idle(job->walk)))
		return;
	if (!copy_stopping(job) && !all_done(job))
		return;
	job->ended = true;
	loop_defer(job->p.loop, &job->end_task);
}

static void wake(void *arg)
{
	copy_pump(arg);
}

static void run_pump(struct loop_task *t)
{
	copy_pump(container_of(t, struct copy_job, pump_task));
}

static void rate_fired(struct loop_timer *t)
{
	copy_pump(container_of(t, struct copy_job, rate_timer));
}

static void retry_fired(struct loop_timer *t)
{
	copy_pump(container_of(t, struct copy_job, retry_timer));
}

static void progress_fired(struct loop_timer *t)
{
	struct copy_job *job = container_of(t, struct copy_job, progress_timer);

	job->p.progress(job->p.arg, &job->stats);
	if (!job->ended)
		loop_timer_set(job->p.loop, t, PROGRESS_NS);
}

static void drop_all(struct copy_job *job)
{
	struct slot *s;
	struct op *op;

	while ((op = TAILQ_FIRST(&job->retry))) {
		TAILQ_REMOVE(&job->retry, op, link);
		op->slot->pending--;
		TAILQ_INSERT_HEAD(&job->spare_ops, op, link);
	}
	while ((s = TAILQ_FIRST(&job->order)))
		slot_free(s);
}

/* From the loop, so that nobody below is in the middle of something. */
static void run_end(struct loop_task *t)
{
	struct copy_job *job = container_of(t, struct copy_job, end_task);
	struct slot *first = TAILQ_FIRST(&job->order);

	assert(!job->pump_task.queued);
	job->prefix = first ? first->offset : job->issued;
	if (!job->error && job->cancelled && !all_done(job))
		copy_fail(job, -EINTR, "copy", job->prefix);
	drop_all(job);
	assert(job->held == 0);
	loop_timer_cancel(job->p.loop, &job->rate_timer);
	loop_timer_cancel(job->p.loop, &job->retry_timer);
	loop_timer_cancel(job->p.loop, &job->progress_timer);
	job->p.done(job->p.arg, job->error, &job->stats);
}

/* ---------------------------------------------------------------- start */

static uint64_t pow2_floor(uint64_t n)
{
	return n ? (uint64_t)1 << (63 - __builtin_clzll(n)) : 0;
}

static uint32_t choose_request(const struct copy_params *p)
{
	uint64_t n = REQUEST_SIZE;

	if (p->request_size)
		return p->request_size;
	/* Where neither has a round trip, the cache decides. */
	if (p->src->preferred && p->dst->preferred)
		n = min_u64(p->src->preferred, p->dst->preferred);
	/* At least four in the queue, and several in a second. */
	n = min_u64(n, pow2_floor(p->queue_size / 4));
	if (p->rate)
		n = min_u64(n, pow2_floor(p->rate / RATE_PARTS));
	n = max_u64(n, REQUEST_MIN);
	/* A block that is to be found must not be cut. */
	return (uint32_t)max_u64(n, min_u64(p->sparse, 32 * MiB));
}

static void choose_window(struct copy_job *job)
{
	uint64_t max = max_u64(job->p.queue_size, 1);
	uint64_t min = max_u64(WINDOW_MIN, (uint64_t)job->request_size * 2);

	if (job->p.requests || job->p.synchronous)
		min = max;
	tune_init(&job->tune, min, max);
	if (job->p.window)
		tune_begin_with(&job->tune, job->p.window);
}

static void decide(struct copy_job *job)
{
	const struct copy_params *p = &job->p;
	struct blockdev *dst = p->dst;
	bool known_zero = p->dst_is_zero || (dst->caps & DEV_IS_ZERO);

	job->in_order = !(dst->caps & DEV_CAN_SEEK);
	job->stream = !(p->src->caps & DEV_CAN_SEEK);
	job->skip_zeroes = known_zero && !p->allocated && !job->in_order;
	job->scan = p->sparse && !p->allocated && dst->ops->zero;
	job->request_size = choose_request(p);
	job->ops_max = p->requests ? p->requests : OPS_MAX;
	job->slots_max = SLOTS_MAX;
	if (p->synchronous)
		job->ops_max = job->slots_max = 1;
	job->zero_max = ALLOCATE_MAX;
	if (!p->allocated)
		job->zero_max = max_u64(
			ZERO_MAX,
			align_up(job->stream ? 0 : job->len / ZERO_PARTS, MiB));
	job->room = dst->size == UINT64_MAX ? UINT64_MAX :
					      dst->size - p->dst_offset;
	choose_window(job);
}

/* The length, and whether the ranges are inside the ends. */
static int check_range(struct copy_job *job)
{
	const struct copy_params *p = &job->p;
	uint64_t size = p->src->size;

	if (p->src->caps & DEV_CAN_SEEK) {
		if (p->src_offset > size)
			return -EINVAL;
		job->len = min_u64(p->len, UINT64_MAX - 1);
		if (p->len == UINT64_MAX)
			job->len = size - p->src_offset;
		if (!range_inside(p->src_offset, job->len, size))
			return -EINVAL;
	} else {
		job->len = p->len;
	}
	if (p->dst_offset > p->dst->size)
		return -ENOSPC;
	if ((p->src->caps & DEV_CAN_SEEK) &&
	    !range_inside(p->dst_offset, job->len, p->dst->size))
		return -ENOSPC;
	return 0;
}

static int make_walk(struct copy_job *job)
{
	const struct copy_params *p = &job->p;
	struct walk_params wp = {
		.dev = p->src,
		.offset = p->src_offset,
		.len = job->len,
		.no_extents = p->no_extents,
		.marked = p->marked,
		.wake = wake,
		.arg = job,
	};

	/* Unless holes are to be as they are, and nobody would find them. */
	if (!p->marked && (p->sparse || p->allocated || !p->dst->ops->zero))
		wp.min_hole = COPY_SMALL_HOLE;
	job->walk = walk_new(&wp);
	return job->walk ? 0 : -ENOMEM;
}

int copy_start(const struct copy_params *p, struct copy_job **out)
{
	struct copy_job *job = calloc(1, sizeof(*job));
	int r;

	if (!job)
		return -ENOMEM;
	job->p = *p;
	TAILQ_INIT(&job->order);
	TAILQ_INIT(&job->ready);
	TAILQ_INIT(&job->spare_slots);
	TAILQ_INIT(&job->spare_ops);
	TAILQ_INIT(&job->retry);
	job->pump_task.run = run_pump;
	job->end_task.run = run_end;
	job->rate_timer.fire = rate_fired;
	job->retry_timer.fire = retry_fired;
	job->progress_timer.fire = progress_fired;
	r = check_range(job);
	if (r < 0)
		goto fail;
	decide(job);
	if (!job->stream) {
		r = make_walk(job);
		if (r < 0)
			goto fail;
	}
	if (p->progress)
		loop_timer_set(p->loop, &job->progress_timer, PROGRESS_NS);
	loop_defer(p->loop, &job->pump_task);
	*out = job;
	return 0;
fail:
	free(job);
	return r;
}

void copy_cancel(struct copy_job *job)
{
	job->cancelled = true;
	copy_pump(job);
}

uint64_t copy_error_offset(const struct copy_job *job)
{
	return job->error_offset;
}

const char *copy_error_step(const struct copy_job *job)
{
	return job->error_step;
}

uint64_t copy_prefix(const struct copy_job *job)
{
	const struct slot *first = TAILQ_FIRST(&job->order);

	/* Kept from when it ended. */
	if (job->ended && !job->end_task.queued)
		return job->prefix;
	return first ? first->offset : job->issued;
}

uint64_t copy_window(const struct copy_job *job)
{
	return tune_found(&job->tune);
}

void copy_free(struct copy_job *job)
{
	if (!job)
		return;
	walk_free(job->walk);
	copy_free_spare(job);
	free(job);
}
