/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "copy_int.h"
#include "util.h"

/* Pauses between tries double from the first to the last of these. */
#define RETRY_FIRST (100 * NS_PER_MS)
#define RETRY_LAST (5 * NS_PER_S)

static const char *const step_names[] = {
	[OP_READ] = "read",
	[OP_WRITE] = "write",
	[OP_ZERO] = "zero",
};

/* The first error stays; what came later is its consequence as a rule. */
void copy_fail(struct copy_job *job, int error, const char *step,
	       uint64_t offset)
{
	if (job->error)
		return;
	job->error = error;
	job->error_step = step;
	job->error_offset = job->p.src_offset + offset;
}

/* ---------------------------------------------------------------- slots */

int slot_new(struct copy_job *job, uint64_t len, bool data, struct slot **slot)
{
	struct slot *s = TAILQ_FIRST(&job->spare_slots);
	struct buf *buf = NULL;

	if (data) {
		buf = buf_get(job->p.pool, len);
		if (!buf)
			return -ENOMEM;
	}
	if (s) {
		TAILQ_REMOVE(&job->spare_slots, s, order);
	} else {
		s = malloc(sizeof(*s));
		if (!s) {
			buf_put(buf);
			return -ENOMEM;
		}
	}
	*s = (struct slot){
		.job = job,
		.offset = job->issued,
		.len = len,
		.buf = buf,
		.began = loop_now(job->p.loop),
	};
	if (buf)
		job->held += len;
	job->issued += len;
	job->slots++;
	TAILQ_INSERT_TAIL(&job->order, s, order);
	*slot = s;
	return 0;
}

static void slot_drop_buf(struct slot *s)
{
	if (!s->buf)
		return;
	s->job->held -= s->len;
	buf_put(s->buf);
	s->buf = NULL;
}

void slot_free(struct slot *s)
{
	struct copy_job *job = s->job;

	assert(s->pending == 0);
	slot_drop_buf(s);
	if (s->is_ready)
		TAILQ_REMOVE(&job->ready, s, ready);
	TAILQ_REMOVE(&job->order, s, order);
	TAILQ_INSERT_HEAD(&job->spare_slots, s, order);
	job->slots--;
}

/* The whole slot has been dealt with. */
static void slot_finish(struct slot *s)
{
	struct copy_job *job = s->job;
	struct slot *first;

	s->finished = true;
	if (s->buf) {
		tune_finished(&job->tune, loop_now(job->p.loop), s->len,
			      s->began);
		slot_drop_buf(s);
	}
	while ((first = TAILQ_FIRST(&job->order)) && first->finished)
		slot_free(first);
}

static void slot_check(struct slot *s)
{
	if (s->pending == 0 && s->cursor == s->len && !s->failed)
		slot_finish(s);
}

void slot_ready(struct slot *s)
{
	assert(!s->is_ready);
	s->is_ready = true;
	TAILQ_INSERT_TAIL(&s->job->ready, s, ready);
}

/* ------------------------------------------------------------------ ops */

static struct op *op_get(struct copy_job *job)
{
	struct op *op = TAILQ_FIRST(&job->spare_ops);

	if (op)
		TAILQ_REMOVE(&job->spare_ops, op, link);
	else
		op = malloc(sizeof(*op));
	return op;
}

static void op_put(struct op *op)
{
	TAILQ_INSERT_HEAD(&op->slot->job->spare_ops, op, link);
}

void copy_free_spare(struct copy_job *job)
{
	struct slot *s;
	struct op *op;

	while ((s = TAILQ_FIRST(&job->spare_slots))) {
		TAILQ_REMOVE(&job->spare_slots, s, order);
		free(s);
	}
	while ((op = TAILQ_FIRST(&job->spare_ops))) {
		TAILQ_REMOVE(&job->spare_ops, op, link);
		free(op);
	}
}

/* May call back before it returns: all bookkeeping is done before. */
static void op_issue(struct op *op)
{
	struct copy_job *job = op->slot->job;

	job->in_flight++;
	switch (op->kind) {
	case OP_READ:
		job->reading++;
		blockdev_read(job->p.src, &op->io);
		break;
	case OP_WRITE:
		blockdev_write(job->p.dst, &op->io);
		break;
	case OP_ZERO:
		blockdev_zero(job->p.dst, &op->io);
		break;
	}
}

/* Where in the range an op is. */
static uint64_t op_offset(const struct op *op)
{
	const struct copy_params *p = &op->slot->job->p;

	return op->io.offset -
	       (op->kind == OP_READ ? p->src_offset : p->dst_offset);
}

/* What may go better the next time: not what is wrong with the request. */
static bool worth_retry(const struct op *op, int error)
{
	const struct copy_job *job = op->slot->job;
	const struct blockdev *dev = op->kind == OP_READ ? job->p.src :
							   job->p.dst;

	if (!(dev->caps & DEV_REMOTE) || op->tries >= job->p.retries ||
	    copy_stopping(job))
		return false;
	return error == -EIO || error == -ETIMEDOUT || error == -ESHUTDOWN ||
	       error == -ENOTCONN || error == -ECONNRESET || error == -EAGAIN ||
	       error == -ENOMEM;
}

static void op_retry(struct op *op)
{
	struct copy_job *job = op->slot->job;
	uint64_t pause = RETRY_FIRST;
	uint64_t now = loop_now(job->p.loop);
	unsigned i;

	for (i = 0; i < op->tries && pause < RETRY_LAST; i++)
		pause *= 2;
	op->tries++;
	TAILQ_INSERT_TAIL(&job->retry, op, link);
	/* One time for all that wait: they failed for the same reason. */
	job->retry_at = max_u64(job->retry_at, now + pause);
	loop_timer_set(job->p.loop, &job->retry_timer, job->retry_at - now);
}

void copy_retry_next(struct copy_job *job)
{
	struct op *op = TAILQ_FIRST(&job->retry);

	TAILQ_REMOVE(&job->retry, op, link);
	op_issue(op);
}

/* A read from a pipe brings what there is. */
static int stream_got(struct slot *s, uint64_t got)
{
	struct copy_job *job = s->job;

	if (got > s->len)
		return -EIO;
	job->issued -= s->len - got;
	job->held -= s->len - got;
	s->len = got;
	if (got == 0)
		job->stream_end = true;
	return job->issued > job->room ? -ENOSPC : 0;
}

static void read_done(struct op *op)
{
	struct slot *s = op->slot;
	struct copy_job *job = s->job;
	int r = 0;

	if (job->stream)
		r = stream_got(s, op->io.got);
	job->stats.read += s->len;
	if (r < 0)
		copy_fail(job, r, r == -ENOSPC ? "write" : "read", s->offset);
	else if (s->len == 0)
		slot_finish(s);
	else
		slot_ready(s);
}

static void write_done(struct op *op)
{
	struct slot *s = op->slot;
	struct copy_job *job = s->job;

	if (op->kind == OP_WRITE)
		job->stats.written += op->io.len;
	else
		job->stats.zeroed += op->io.len;
	job->stats.finished += op->io.len;
	slot_check(s);
}

static void op_done(struct dev_io *io, int error)
{
	struct op *op = io->user;
	struct slot *s = op->slot;
	struct copy_job *job = s->job;

	assert(job->in_flight > 0);
	job->in_flight--;
	if (op->kind == OP_READ)
		job->reading--;
	if (error && worth_retry(op, error)) {
		op_retry(op);
		copy_pump(job);
		return;
	}
	s->pending--;
	if (error) {
		s->failed = true;
		copy_fail(job, error, step_names[op->kind], op_offset(op));
	} else if (op->kind == OP_READ) {
		read_done(op);
	} else {
		write_done(op);
	}
	op_put(op);
	copy_pump(job);
}

static void op_fill(struct op *op, struct slot *s, enum op_kind kind,
		    uint64_t offset, uint64_t len)
{
	op->slot = s;
	op->kind = kind;
	op->tries = 0;
	op->io.done = op_done;
	op->io.user = op;
	op->io.offset = offset;
	op->io.len = len;
	op->io.data = NULL;
	op->io.buf = NULL;
	op->io.flags = 0;
	op->io.got = 0;
	s->pending++;
}

int slot_read(struct slot *s)
{
	struct copy_job *job = s->job;
	struct op *op = op_get(job);

	if (!op)
		return -ENOMEM;
	op_fill(op, s, OP_READ, job->p.src_offset + s->offset, s->len);
	op->io.buf = s->buf;
	op->io.data = s->buf->data;
	op_issue(op);
	return 0;
}

/* -------------------------------------------------------------- writing */

/* The bytes from `at` on in the slot that are of one kind, judged by whole
 * blocks as they lie at the destination; *zero says of which. A block that the
 * slot cuts off counts by what is in the slot. */
static uint64_t same_kind(const struct slot *s, uint64_t at, bool *zero)
{
	const struct copy_job *job = s->job;
	uint64_t base = job->p.dst_offset + s->offset;
	uint64_t pos = at;

	if (!job->scan) {
		*zero = false;
		return s->len - at;
	}
	while (pos < s->len) {
		uint64_t end = align_down(base + pos, job->p.sparse) +
			       job->p.sparse - base;
		bool block;

		end = min_u64(end, s->len);
		block = is_zero(s->buf->data + pos, end - pos);
		if (pos == at)
			*zero = block;
		else if (block != *zero)
			break;
		pos = end;
	}
	return pos - at;
}

/* The next piece of a slot: how long it is, and what becomes of it. */
static uint64_t next_piece(const struct slot *s, enum op_kind *kind)
{
	const struct copy_job *job = s->job;
	bool can_zero = job->p.dst->ops->zero != NULL;
	uint64_t left = s->len - s->cursor;
	bool zero = true;

	if (s->buf)
		left = same_kind(s, s->cursor, &zero);
	*kind = zero ? OP_ZERO : OP_WRITE;
	if (s->buf || job->skip_zeroes)
		return left;
	if (!can_zero) {
		*kind = OP_WRITE;
		return min_u64(left, ZERO_BLOCK_SIZE);
	}
	/* Large ones end on a round number. */
	if (left > job->zero_max)
		left = align_down(job->p.dst_offset + s->offset + s->cursor +
					  job->zero_max,
				  MiB) -
		       (job->p.dst_offset + s->offset + s->cursor);
	return left;
}

/* Moves the cursor, before the piece is issued. */
static void slot_passed(struct slot *s, uint64_t len)
{
	s->cursor += len;
	if (s->cursor < s->len)
		return;
	TAILQ_REMOVE(&s->job->ready, s, ready);
	s->is_ready = false;
}

/* The bytes of a piece that is written; nobody changes them. */
static uint8_t *piece_data(const struct slot *s)
{
	if (s->buf)
		return s->buf->data + s->cursor;
	return (uint8_t *)(uintptr_t)zero_block;
}

bool copy_write_next(struct copy_job *job)
{
	struct slot *s = TAILQ_FIRST(&job->ready);
	enum op_kind kind;
	struct op *op;
	uint64_t len;

	if (job->in_order) {
		s = TAILQ_FIRST(&job->order);
		if (s && (!s->is_ready || s->pending > 0))
			s = NULL;
	}
	if (!s)
		return false;
	len = next_piece(s, &kind);
	if (kind == OP_ZERO && job->skip_zeroes) {
		job->stats.skipped += len;
		job->stats.finished += len;
		slot_passed(s, len);
		slot_check(s);
		return true;
	}
	op = op_get(job);
	if (!op) {
		copy_fail(job, -ENOMEM, step_names[kind],
			  s->offset + s->cursor);
		return false;
	}
	op_fill(op, s, kind, job->p.dst_offset + s->offset + s->cursor, len);
	if (kind == OP_ZERO) {
		op->io.flags = job->p.allocated ? DEV_ALLOCATE : 0;
	} else {
		op->io.buf = s->buf;
		op->io.data = piece_data(s);
	}
	slot_passed(s, len);
	op_issue(op);
	return true;
}
