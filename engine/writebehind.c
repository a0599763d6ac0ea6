/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * writebehind.c - a write: queued and answered at once, or sent and waited
 * for.
 *
 * A queued write becomes a dirty range, and is sent soon: at once if it is
 * large, and within HOLD where it is small, since small writes that follow
 * each other then merge into one. A direct write goes out by itself; it takes
 * the place of what was queued in its range.
 */
#include <errno.h>
#include <string.h>

#include "image_int.h"
#include "util.h"

#define HOLD (20 * NS_PER_MS) /* how long a small write waits for more */
#define LARGE (256 * KiB)     /* this is worth a command of its own */
#define MERGE_MAX MiB
#define WINDOW_MIN (2 * MiB)
#define NEAR (8 * MiB) /* up to this window */
#define PIECE_NEAR (512 * KiB)
#define HELD_MAX 64	     /* ranges that are held back */
#define RANGE_ROOM (4 * KiB) /* what even the shortest one takes */
#define ZEROES_MAX 65536     /* pending ranges */
#define FLIGHT_MAX 256	     /* commands given to the export */
#define ZERO_GRAIN 4096	     /* --detect-zeroes looks at blocks of this */

/* --------------------------------------------------------------- queueing */

/*
 * The window is what is queued and in flight. It starts small, since bytes
 * that wait go cold in the cache on their way, and grows on trial up to the
 * option, as for read-ahead.
 */
bool dirty_has_place(const struct image *img)
{
	uint64_t max = engine_config(img->e)->write_behind / RANGE_ROOM;

	return img->ndata < max_u64(max, HELD_MAX) && img->nzeroes < ZEROES_MAX;
}

static bool has_room(struct image *img, uint64_t len)
{
	uint64_t max = engine_config(img->e)->write_behind;

	if (img->write_tune.window == 0)
		tune_init(&img->write_tune, min_u64(WINDOW_MIN, max), max);
	if (!dirty_has_place(img))
		return false;
	return img->queued == 0 || img->queued + len <= img->write_tune.window;
}

/* A near server works on one piece while the next is coming, and finds it in
 * the processor's cache. */
uint32_t write_piece(const struct image *img)
{
	return img->write_tune.window > NEAR ? 0 : PIECE_NEAR;
}

void writes_sent(struct image *img, uint64_t len, uint64_t sent)
{
	if (img->write_tune.window == 0)
		return;
	/* Writers that are slower than the server say nothing about it. */
	if (TAILQ_EMPTY(&img->blocked) &&
	    img->queued < img->write_tune.window / 4)
		tune_starved(&img->write_tune);
	else
		tune_finished(&img->write_tune, image_now(img), len, sent);
}

/* Puts the bytes behind a range that ends where they begin. */
static bool merge(struct image *img, uint64_t start, uint64_t len,
		  const uint8_t *data, struct epoch *epoch)
{
	struct dext *d = start ? dirty_at(img, start - 1) : NULL;
	uint64_t have, off;
	struct buf *buf;

	if (!d || d->zero || d->on != &img->ready || d->epoch != epoch ||
	    d->buf->refs != 1 || len >= LARGE)
		return false;
	have = d->end - d->node.key;
	if (have + len > MERGE_MAX)
		return false;
	off = (uint64_t)(d->data - d->buf->data);
	if (off + have + len > d->buf->size) {
		buf = buf_get(engine_pool(img->e),
			      min_u64(max_u64(4 * have, have + len),
				      MERGE_MAX));
		if (!buf)
			return false;
		memcpy(buf->data, d->data, have);
		buf_put(d->buf);
		d->buf = buf;
		d->data = buf->data;
	}
	memcpy(d->data + have, data, len);
	d->end += len;
	img->queued += len;
	return true;
}

/* The bytes may stay where they are if their buffer is not much larger. */
static int enqueue(struct image *img, uint64_t start, uint64_t len,
		   const uint8_t *data, struct buf *buf, struct epoch *epoch)
{
	struct buf *own = NULL;
	struct dext *d;

	if (!buf || len < buf->size / 4) {
		own = buf_get(engine_pool(img->e), len);
		if (!own)
			return -ENOMEM;
		memcpy(own->data, data, len);
		buf = own;
		data = own->data;
	}
	d = dirty_add_data(img, start, start + len, buf, (uint8_t *)data,
			   epoch);
	buf_put(own);
	return d ? 0 : -ENOMEM;
}

static int queue_data(struct image *img, uint64_t start, uint64_t len,
		      const uint8_t *data, struct buf *buf)
{
	struct epoch *older, *epoch = epoch_current(img);
	int error = dirty_carve(img, start, start + len, &older);

	if (error)
		return error;
	if (older)
		epoch = older;
	status_taint(img, start, start + len);
	chunks_taint(img, start, start + len);
	if (merge(img, start, len, data, epoch))
		return 0;
	return enqueue(img, start, len, data, buf, epoch);
}

/* --detect-zeroes: runs of zero blocks are marked, the rest is queued. */
static int queue_detecting(struct image *img, const struct image_write *w)
{
	uint64_t pos = w->offset, end = w->offset + w->len;
	int error = 0;

	while (pos < end && !error) {
		uint64_t from = pos, cut;
		bool zero = false, z;

		for (; pos < end; pos = cut) {
			cut = min_u64(align_down(pos, ZERO_GRAIN) + ZERO_GRAIN,
				      end);
			z = cut - pos == ZERO_GRAIN &&
			    is_zero(w->data + (pos - w->offset), cut - pos);
			if (pos > from && z != zero)
				break;
			zero = z;
		}
		if (zero)
			error = zero_mark(img, from, pos, 0);
		else
			error = queue_data(img, from, pos - from,
					   w->data + (from - w->offset),
					   w->buf);
	}
	return error;
}

static void write_queued(struct image_write *w)
{
	struct image *img = w->op.img;
	int error;

	if (engine_config(img->e)->detect_zeroes)
		error = queue_detecting(img, w);
	else
		error = queue_data(img, w->offset, w->len, w->data, w->buf);
	if (w->own) {
		buf_put(w->buf);
		w->buf = NULL;
	}
	image_ref(img);
	op_finish(&w->op, error);
	image_pump(img);
	image_unref(img);
}

static bool unblock_one(struct image *img, struct image_op *op)
{
	struct image_write *w;

	if (op->kind == OP_ZERO) {
		if (!dirty_has_place(img))
			return false;
		op_unpark(op);
		zero_step(container_of(op, struct image_zero, op));
		return true;
	}
	w = container_of(op, struct image_write, op);
	if (!has_room(img, w->len))
		return false;
	op_unpark(op);
	write_queued(w);
	return true;
}

void writers_unblock(struct image *img)
{
	struct image_op *op;

	if (img->unblocking)
		return;
	img->unblocking = true;
	while ((op = TAILQ_FIRST(&img->blocked)) != NULL)
		if (!unblock_one(img, op))
			break;
	img->unblocking = false;
}

/* ---------------------------------------------------------------- direct */

static bool is_direct(const struct image_write *w)
{
	return (w->flags & (WRITE_DIRECT | WRITE_SYNC)) ||
	       engine_config(w->op.img->e)->write_behind == 0;
}

void write_step(struct image_write *w)
{
	struct image *img = w->op.img;
	struct wop *other;
	uint64_t a, b;
	int error;

	image_block_range(img, w->offset, w->offset + w->len, &a, &b);
	other = wop_overlapping(img, a, b);
	if (other) {
		op_park(&w->op, &other->waiters);
		return;
	}
	error = wop_send_direct(img, w);
	if (error)
		op_finish(&w->op, error);
}

void write_cancel(struct image_write *w)
{
	if (w->wop)
		w->wop->owner = NULL;
	w->wop = NULL;
	sync_cancel(&w->sync);
	op_unpark(&w->sync.op);
	if (w->own)
		buf_put(w->buf);
	w->own = false;
}

/* Bytes that are not in a buffer of the pool are copied. */
static int take_data(struct image_write *w)
{
	w->own = false;
	if (w->buf)
		return 0;
	w->buf = buf_get(engine_pool(w->op.img->e), w->len);
	if (!w->buf)
		return -ENOMEM;
	w->own = true;
	memcpy(w->buf->data, w->data, w->len);
	w->data = w->buf->data;
	return 0;
}

/* What is held back for more to come has had its time. */
static void wait_for_room(struct image_write *w)
{
	struct image *img = image_ref(w->op.img);

	op_park(&w->op, &img->blocked);
	image_pump(img);
	image_unref(img);
}

void image_write(struct image_write *w)
{
	struct handle *h = w->op.h;
	struct image *img;
	int error = 0;

	op_init(&w->op, OP_WRITE);
	img = w->op.img;
	w->wop = NULL;
	w->own = false;
	w->sync = (struct image_sync){ .op = { .img = img } };
	if (!range_inside(w->offset, w->len, img->size))
		error = -EINVAL;
	else if (img->read_only)
		error = -EROFS;
	else if (h->error && !(w->flags & WRITE_ANYWAY))
		error = h->error;
	if (error || w->len == 0) {
		op_finish(&w->op, error);
		return;
	}
	h->wrote = true;
	h->late |= !(w->flags & WRITE_SYNC);
	error = take_data(w);
	if (error)
		op_finish(&w->op, error);
	else if (is_direct(w))
		write_step(w);
	else if (!TAILQ_EMPTY(&img->blocked) || !has_room(img, w->len))
		wait_for_room(w);
	else
		write_queued(w);
}

/* --------------------------------------------------------------- sending */

static bool send_now(const struct image *img, const struct dext *d)
{
	return d->epoch->id <= img->send_upto ||
	       d->end - d->node.key >= LARGE || img->nready > HELD_MAX ||
	       !TAILQ_EMPTY(&img->blocked) || image_now(img) - d->born >= HOLD;
}

static void on_send_timer(struct loop_timer *t)
{
	image_pump(container_of(t, struct image, send_timer));
}

static void pump_later(struct image *img)
{
	img->send_timer.fire = on_send_timer;
	if (!img->send_timer.armed)
		loop_timer_set(engine_loop(img->e), &img->send_timer, HOLD);
}

void image_pump(struct image *img)
{
	struct dext *d;
	struct wop *other;
	uint64_t a, b;

	if (img->pumping)
		return;
	img->pumping = true;
	while ((d = TAILQ_FIRST(&img->ready)) != NULL &&
	       img->nflight < FLIGHT_MAX) {
		if (!send_now(img, d)) {
			pump_later(img);
			break;
		}
		image_block_range(img, d->node.key, d->end, &a, &b);
		other = wop_overlapping(img, a, b);
		if (other) {
			dirty_park(img, d, &other->blocked);
		} else if (wop_send_dirty(img, d)) {
			pump_later(img);
			break;
		}
	}
	img->pumping = false;
	zero_pump(img);
}
