/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * blockstatus.c - the clean layer: asking for block status, SEEK_DATA and
 * SEEK_HOLE, the scan that lets stat tell the truth.
 *
 * Only ZERO makes a hole. What is not known is data, except that it is asked
 * first. An answer is not applied where a change was under way when the
 * question was sent, or began since.
 */
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "image_int.h"
#include "util.h"

#define SCAN_REQUESTS 1024
#define SEEK_BUDGET (2 * NS_PER_S)
#define ASK_TRIES 3	   /* then it counts as data */
#define READ_WAIT NS_PER_S /* then a read goes on without an answer */
#define ASK_TICK (100 * NS_PER_MS)
/* So many extents are asked about at once: a walk takes a part of a second to
 * pass them. Of more the last would be stale before it comes there, or
 * forgotten for want of room in the map, and the server be asked again. */
#define ASK_EXTENTS 32768
#define ASK_ALIGN (64 * KiB)
/* Bytes that count as data, for all that is known, when a budget is spent. */
#define UNSURE 4096

static uint32_t stamp_now(const struct image *img)
{
	return (uint32_t)(image_now(img) / NS_PER_MS) & EXTENT_STAMP_MASK;
}

/* -------------------------------------------------------------- asking */

static bool covers(const struct question *q, uint64_t pos)
{
	return q->busy && pos >= q->req.offset &&
	       pos - q->req.offset < q->req.len;
}

static void taint(struct question *q, uint64_t start, uint64_t end)
{
	uint64_t q_end = q->req.offset + q->req.len;

	if (start >= q_end || end <= q->req.offset)
		return;
	if (q->taint_lo == q->taint_hi) {
		q->taint_lo = start;
		q->taint_hi = end;
	} else {
		q->taint_lo = min_u64(q->taint_lo, start);
		q->taint_hi = max_u64(q->taint_hi, end);
	}
}

void status_taint(struct image *img, uint64_t start, uint64_t end)
{
	for (unsigned i = 0; i < QUESTIONS; i++)
		if (img->question[i].busy)
			taint(&img->question[i], start, end);
}

/* What is in flight now may or may not be in the answer. */
static void taint_by_flight(struct question *q)
{
	struct tree_node *n = tree_floor(&q->img->flight, q->req.offset);

	if (!n)
		n = tree_first(&q->img->flight);
	for (; n; n = tree_next(n)) {
		struct wop *w = container_of(n, struct wop, node);

		taint(q, n->key, w->end);
	}
}

static void apply(struct question *q, uint64_t start, uint64_t end,
		  enum extent_state state)
{
	struct image *img = q->img;
	uint32_t stamp = state == EXTENT_DATA ? 0 : q->stamp;
	uint64_t lo = q->taint_lo, hi = q->taint_hi;

	if (lo == hi || end <= lo || start >= hi) {
		extent_set(img->clean, start, end, state, stamp);
		return;
	}
	if (start < lo)
		extent_set(img->clean, start, lo, state, stamp);
	if (end > hi)
		extent_set(img->clean, hi, end, state, stamp);
}

static void on_extent(struct req *r, uint64_t start, uint64_t end, bool zero,
		      bool hole)
{
	struct question *q = container_of(r, struct question, req);

	/* An answer may be longer than the question, but changes beyond it
	 * have not tainted it. */
	end = min_u64(end, r->offset + r->len);
	if (start >= end)
		return;
	q->runs++;
	if (!zero || (!q->img->marked &&
		      end - start < engine_config(q->img->e)->min_hole))
		apply(q, start, end, EXTENT_DATA);
	else
		apply(q, start, end, hole ? EXTENT_HOLE : EXTENT_ZERO);
}

static uint64_t op_pos(const struct image_op *op)
{
	if (op->kind == OP_READ)
		return container_of(op, struct image_read, op)->pos;
	if (op->kind == OP_SEEK)
		return container_of(op, struct image_seek, op)->pos;
	return container_of(op, struct image_extent, op)->offset;
}

static unsigned *op_asked(struct image_op *op)
{
	if (op->kind == OP_READ)
		return &container_of(op, struct image_read, op)->asked;
	if (op->kind == OP_SEEK)
		return &container_of(op, struct image_seek, op)->asked;
	return &container_of(op, struct image_extent, op)->asked;
}

/* Where extents are short the next questions are about less. */
static void adapt_span(const struct question *q)
{
	uint64_t heard = min_u64(q->req.covered - q->req.offset, q->req.len);
	uint64_t mean = q->runs ? heard / q->runs : 0;

	if (mean == 0)
		return;
	q->img->ask_span = UINT64_MAX;
	if (mean < UINT64_MAX / 2 / ASK_EXTENTS)
		q->img->ask_span = align_up(mean * ASK_EXTENTS, ASK_ALIGN);
}

static void remember_blocks(struct image *img)
{
	if (extent_bytes(img->clean, EXTENT_UNKNOWN) != 0)
		return;
	img->blocks = max_u64(1, extent_bytes(img->clean, EXTENT_DATA) / 512);
	img->blocks_known = true;
}

/* It cannot be asked, or it costs connections: until the next first open. */
static void give_up_status(struct image *img, int error)
{
	if (!img->can_status)
		return;
	img->can_status = false;
	log_msg(&engine_config(img->e)->log, LOG_LVL_WARN,
		"%s: the server does not tell its extents, all counts as "
		"data: %s",
		img->file_name, strerror(-error));
}

static void on_answer(struct req *r, int error)
{
	struct question *q = container_of(r, struct question, req);
	struct image *img = q->img;
	struct image_op *op;

	if (!error) {
		smooth(&img->status_time, image_now(img) - r->sent);
		adapt_span(q);
	}
	TAILQ_FOREACH(op, &img->askers, link) {
		if (!covers(q, op_pos(op)))
			continue;
		if (error)
			op->error = error;
		/* All are woken, but only these have had their answer. */
		++*op_asked(op);
	}
	if (img->zeroing_waits && covers(q, img->zero_ask_pos))
		img->zero_asked++;
	if (q->scan)
		img->scan_pos = error ? img->size : r->covered;
	q->busy = q->scan = false;
	if (error == -EOPNOTSUPP || (error && r->tries + r->refusals > 1))
		give_up_status(img, error);
	remember_blocks(img);
	op_wake_all(&img->askers);
	if (img->zeroing_waits) {
		img->zeroing_waits = false;
		zero_pump(img);
	}
	status_scan(img);
	image_unref(img);
}

static struct question *question_free(struct image *img)
{
	for (unsigned i = 0; i < QUESTIONS; i++)
		if (!img->question[i].busy)
			return &img->question[i];
	return NULL;
}

static void ask(struct question *q, uint64_t pos, uint64_t len, unsigned flags)
{
	struct image *img = image_ref(q->img);

	q->busy = true;
	q->scan = flags & REQ_BACKGROUND;
	q->runs = 0;
	q->taint_lo = q->taint_hi = 0;
	q->stamp = stamp_now(img);
	q->req.kind = REQ_STATUS;
	q->req.flags = flags;
	q->req.offset = align_down(pos, img->min_block);
	q->req.len = img->size - q->req.offset;
	if (len < q->req.len)
		q->req.len =
			min_u64(q->req.len, align_up(pos - q->req.offset + len,
						     img->min_block));
	q->req.extent = on_extent;
	q->req.done = on_answer;
	q->req.covered = q->req.offset;
	taint_by_flight(q);
	export_submit(img->x, &q->req);
}

/* As for status_ask(). NULL with *waits: another question is about pos, or
 * one that is under way must end first. */
static struct question *begin_ask(struct image *img, uint64_t pos, bool *waits)
{
	*waits = false;
	if (!img->can_status)
		return NULL;
	*waits = true;
	for (unsigned i = 0; i < QUESTIONS; i++)
		if (covers(&img->question[i], pos))
			return NULL;
	return question_free(img);
}

bool status_ask_about(struct image *img, uint64_t pos, uint64_t len)
{
	bool waits;
	struct question *q = begin_ask(img, pos, &waits);

	if (q)
		ask(q, pos, len, 0);
	return q || waits;
}

bool status_ask(struct image *img, uint64_t pos)
{
	bool waits;
	struct question *q = begin_ask(img, pos, &waits);
	uint64_t left = img->ask_span, len;

	if (!q)
		return waits;
	ask(q, pos, left, 0);
	/* A walk over a large image: ask the next pieces along with it. */
	len = q->req.len;
	for (unsigned i = 1; i < QUESTIONS - 1; i++) {
		struct question *more = question_free(img);

		if (!more || q->req.offset + q->req.len >= img->size)
			break;
		left -= min_u64(left, q->req.len);
		if (left == 0)
			break;
		pos = q->req.offset + q->req.len;
		if (extent_get(img->clean, pos).state != EXTENT_UNKNOWN)
			break;
		q = more;
		ask(q, pos, min_u64(left, len), 0);
	}
	return true;
}

void status_scan(struct image *img)
{
	struct question *q;
	uint64_t pos;

	if (!img->can_status || TAILQ_EMPTY(&img->handles) ||
	    img->scan_left == 0 || engine_config(img->e)->no_scan)
		return;
	for (unsigned i = 0; i < QUESTIONS; i++)
		if (img->question[i].busy)
			return;
	pos = extent_next_unknown(img->clean, img->scan_pos);
	q = question_free(img);
	if (!q || pos >= img->size)
		return;
	img->scan_left--;
	ask(q, pos, img->ask_span, REQ_BACKGROUND);
}

void status_forget(struct image *img)
{
	extent_forget(img->clean);
	status_taint(img, 0, UINT64_MAX);
	img->scan_pos = 0;
	img->scan_left = SCAN_REQUESTS;
}

void status_init(struct image *img)
{
	img->ask_span = UINT64_MAX;
	for (unsigned i = 0; i < QUESTIONS; i++)
		img->question[i].img = img;
}

/* ---------------------------------------------------------- the map */

/* How old a hole may be for an operation that began at `born`, in ms. What was
 * asked since then is as new as it can be, however long the answer took; and
 * an answer that took long is believed as long as one that came at once. */
static uint64_t age_limit(const struct image *img, uint64_t born)
{
	uint64_t timeout = engine_config(img->e)->extent_timeout_ms;

	if (timeout)
		timeout += 2 * img->status_time / NS_PER_MS;
	return max_u64(timeout, image_now(img) / NS_PER_MS - born / NS_PER_MS);
}

/* Of the map, whatever it is a map of. */
static struct extent map_get(struct image *img, uint64_t pos, uint64_t end,
			     uint64_t born)
{
	struct extent x;
	uint32_t age;

	if (!img->can_status)
		return (struct extent){ pos, end, EXTENT_DATA, 0 };
	x = extent_get(img->clean, pos);
	x.start = pos;
	x.end = min_u64(x.end, end);
	if (x.state == EXTENT_ZERO || x.state == EXTENT_HOLE) {
		age = (stamp_now(img) - x.stamp) & EXTENT_STAMP_MASK;
		if (age > age_limit(img, born))
			x.state = EXTENT_UNKNOWN;
	}
	return x;
}

struct extent status_get(struct image *img, uint64_t pos, uint64_t end,
			 uint64_t born)
{
	/* What is not marked has contents all the same. */
	if (img->marked)
		return (struct extent){ pos, end, EXTENT_DATA, 0 };
	return map_get(img, pos, end, born);
}

/* The run of one kind at pos, through all layers. */
static struct extent view_get(struct image *img, uint64_t pos, uint64_t born)
{
	struct dext *d = dirty_at(img, pos);
	uint64_t end;
	struct wop *w;

	if (d)
		return (struct extent){ pos, d->end,
					d->zero ? EXTENT_HOLE : EXTENT_DATA,
					0 };
	end = min_u64(dirty_next(img, pos), img->size);
	w = wop_overlapping(img, pos, end);
	if (w && w->node.key <= pos)
		return (struct extent){ pos, min_u64(w->end, end),
					w->zero ? EXTENT_HOLE : EXTENT_DATA,
					0 };
	if (w)
		end = w->node.key;
	return map_get(img, pos, end, born);
}

/* ------------------------------------------------------------- waiting */

static bool waited_enough(const struct image *img, struct image_op *op)
{
	uint64_t now = image_now(img);

	if (op->kind == OP_READ)
		return now - op->parked >= READ_WAIT;
	if (op->kind == OP_SEEK) {
		struct image_seek *s = container_of(op, struct image_seek, op);

		return s->whence == SEEK_DATA && now - op->born > SEEK_BUDGET;
	}
	return false;
}

static void stop_waiting(struct image_op *op)
{
	op_unpark(op);
	if (op->kind == OP_READ) {
		container_of(op, struct image_read, op)->asked = UINT_MAX / 2;
		read_step(container_of(op, struct image_read, op));
	} else {
		seek_step(container_of(op, struct image_seek, op));
	}
}

static void on_ask_timer(struct loop_timer *t)
{
	struct image *img = container_of(t, struct image, ask_timer);
	struct image_op *op, *next;

	image_ref(img);
	for (op = TAILQ_FIRST(&img->askers); op; op = next) {
		next = TAILQ_NEXT(op, link);
		if (waited_enough(img, op)) {
			stop_waiting(op);
			/* Others may have gone with it. */
			next = TAILQ_FIRST(&img->askers);
		}
	}
	if (!TAILQ_EMPTY(&img->askers))
		loop_timer_set(engine_loop(img->e), t, ASK_TICK);
	image_unref(img);
}

void status_wait(struct image_op *op)
{
	struct image *img = op->img;

	op_park(op, &img->askers);
	img->ask_timer.fire = on_ask_timer;
	if (!img->ask_timer.armed)
		loop_timer_set(engine_loop(img->e), &img->ask_timer, ASK_TICK);
}

/* -------------------------------------------------------------- lseek */

/* Time is up: there is data at pos, for all that is known. That has to stay
 * so, or a SEEK_HOLE that follows would find no progress. */
static void seek_unsure(struct image_seek *s)
{
	struct image *img = s->op.img;
	uint64_t a, b;

	image_block_range(img, s->pos, s->pos + 1, &a, &b);
	b = max_u64(b, min_u64(a + UNSURE, img->size));
	status_taint(img, a, b);
	extent_set(img->clean, a, b, EXTENT_DATA, 0);
	s->result = s->pos;
	op_finish(&s->op, 0);
}

/* True: the caller has been parked and will be called again. */
static bool seek_ask(struct image_seek *s)
{
	struct image *img = s->op.img;

	if (s->asked >= ASK_TRIES)
		return false;
	if (!status_ask(img, s->pos))
		return false;
	status_wait(&s->op);
	return true;
}

static void seek_found(struct image_seek *s, uint64_t result)
{
	s->result = result;
	op_finish(&s->op, 0);
}

void seek_step(struct image_seek *s)
{
	struct image *img = s->op.img;
	struct extent x;
	bool data;

	while (s->pos < img->size) {
		x = view_get(img, s->pos, s->op.born);
		if (x.state == EXTENT_UNKNOWN && s->op.error) {
			op_finish(&s->op, -EIO);
			return;
		}
		if (x.state == EXTENT_UNKNOWN && s->whence == SEEK_DATA &&
		    image_now(img) - s->op.born > SEEK_BUDGET) {
			seek_unsure(s);
			return;
		}
		if (x.state == EXTENT_UNKNOWN && seek_ask(s))
			return;
		data = x.state == EXTENT_DATA || x.state == EXTENT_UNKNOWN;
		if (data == (s->whence == SEEK_DATA)) {
			seek_found(s, s->pos);
			return;
		}
		s->pos = x.end;
		s->asked = 0;
		s->op.error = 0;
	}
	if (s->whence == SEEK_DATA)
		op_finish(&s->op, -ENXIO);
	else
		seek_found(s, img->size);
}

void image_seek(struct image_seek *s)
{
	struct image *img;

	op_init(&s->op, OP_SEEK);
	img = s->op.img;
	if (s->whence != SEEK_DATA && s->whence != SEEK_HOLE) {
		op_finish(&s->op, -EINVAL);
		return;
	}
	if (s->offset >= img->size) {
		op_finish(&s->op, -ENXIO);
		return;
	}
	s->pos = s->offset;
	s->asked = 0;
	seek_step(s);
}

/* ---------------------------------------------------- runs, for copying */

static bool is_zero_state(enum extent_state s)
{
	return s == EXTENT_ZERO || s == EXTENT_HOLE;
}

static void extent_found(struct image_extent *x, uint64_t end,
			 enum extent_state state)
{
	x->len = end - x->offset;
	x->zero = is_zero_state(state);
	x->hole = state == EXTENT_HOLE;
	op_finish(&x->op, 0);
}

void extent_step(struct image_extent *x)
{
	struct image *img = x->op.img;
	uint64_t limit = x->offset + min_u64(x->limit, img->size - x->offset);
	struct extent e = view_get(img, x->offset, x->op.born), next;

	if (e.state == EXTENT_UNKNOWN) {
		if (x->op.error && x->strict) {
			op_finish(&x->op, -EIO);
			return;
		}
		if (!x->op.error && x->asked < ASK_TRIES &&
		    status_ask_about(img, x->offset, limit - x->offset)) {
			status_wait(&x->op);
			return;
		}
		extent_found(x, min_u64(e.end, limit), EXTENT_DATA);
		return;
	}
	while (e.end < limit) {
		next = view_get(img, e.end, x->op.born);
		if (next.state != e.state)
			break;
		e.end = next.end;
	}
	extent_found(x, min_u64(e.end, limit), e.state);
}

void image_extent(struct image_extent *x)
{
	op_init(&x->op, OP_EXTENT);
	x->asked = 0;
	if (x->offset >= x->op.img->size || x->limit == 0)
		op_finish(&x->op, -EINVAL);
	else
		extent_step(x);
}
