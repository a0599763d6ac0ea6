/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * zeroing.c - zero, late: ranges are marked first, and sent at close, fsync,
 * after a few idle seconds, or when there are too many of them.
 *
 * A marked range reads as zero at once. What is overwritten before it is sent
 * is never zeroed on the wire. What remains is sent only where block status,
 * asked after the mark (marking makes the clean layer unknown), does not say
 * that it is zero already.
 *
 * The ways to make a range zero, in order: WRITE_ZEROES with FAST_ZERO,
 * WRITE_ZEROES, writes of zeroes. ENOTSUP moves the image on to the next for
 * good; a length that the server finds too long is halved. TRIM promises
 * nothing about the contents and is not one of them.
 */
#include <errno.h>
#include <string.h>

#include "image_int.h"
#include "util.h"

#define IDLE (3 * NS_PER_S)  /* then marked ranges are sent anyway */
#define TOO_MANY 16384	     /* so they are when there are so many */
#define AT_ONCE 8	     /* ranges being zeroed */
#define RANGE_MAX (4 * GiB)  /* one range in flight */
#define SEGMENT (16 * MiB)   /* a slot's share, when zeroes are written */
#define SMALL_GAP (64 * KiB) /* zero already, but not worth two commands */
#define ASK_TRIES 3
#define REDO_MAX 8

/* ----------------------------------------------------- one range, on the wire */

static void slot_next(struct wop_slot *s);

static int slot_way(const struct wop_slot *s)
{
	int way = (int)s->op->img->zero_way;

	return s->way > way ? s->way : way;
}

/*
 * A connection that was lost between the first answer and the last may have
 * taken along what was answered before: then all begins anew.
 */
static bool must_redo(struct wop *op)
{
	if (op->error || !op->begun || op->breaks == op->img->breaks)
		return false;
	if (++op->redone < REDO_MAX)
		return true;
	op->error = -EIO;
	return false;
}

static void range_check(struct wop *op)
{
	if (op->pending > 0)
		return;
	if (must_redo(op))
		zero_start(op);
	else
		wop_done(op);
}

static void slot_done(struct req *r, int error)
{
	struct wop_slot *s = container_of(r, struct wop_slot, req);
	struct wop *op = s->op;
	struct image *img = op->img;
	bool command = r->kind == REQ_ZERO;
	int way = r->flags & REQ_FAST ? ZERO_BY_FAST : ZERO_BY_COMMAND;

	op->pending--;
	if (!error) {
		if (!op->begun)
			op->breaks = img->breaks;
		op->begun = true;
		s->pos += r->len;
	} else if (command && error == -EOPNOTSUPP) {
		if ((int)img->zero_way == way)
			img->zero_way++;
	} else if (command && (error == -EINVAL || error == -EOVERFLOW)) {
		if (!export_shrink_zero_limit(img->x, r->len))
			s->way = ZERO_BY_WRITES;
	} else {
		op->error = error;
	}
	slot_next(s);
	range_check(op);
}

static bool slot_refill(struct wop_slot *s)
{
	struct wop *op = s->op;
	uint64_t max = slot_way(s) == ZERO_BY_WRITES ?
			       SEGMENT :
			       export_zero_limit(op->img->x);

	if (op->pos >= op->end)
		return false;
	s->pos = op->pos;
	s->end = op->pos + min_u64(max, op->end - op->pos);
	s->way = 0;
	op->pos = s->end;
	return true;
}

static void slot_next(struct wop_slot *s)
{
	struct wop *op = s->op;
	struct image *img = op->img;
	struct req *r = &s->req;
	uint64_t limit;
	int way;

	if (op->error || (s->pos >= s->end && !slot_refill(s)))
		return;
	way = slot_way(s);
	r->flags = op->flags;
	if (way == ZERO_BY_WRITES) {
		r->kind = REQ_WRITE;
		r->flags &= ~(unsigned)REQ_NO_HOLE;
		r->data = (uint8_t *)zero_block;
		limit = min_u64(ZERO_BLOCK_SIZE,
				export_caps(img->x)->max_block);
	} else {
		r->kind = REQ_ZERO;
		if (way == ZERO_BY_FAST)
			r->flags |= REQ_FAST;
		r->data = NULL;
		limit = export_zero_limit(img->x);
	}
	r->offset = s->pos;
	r->len = request_cut(s->pos, s->end, limit, img->min_block) - s->pos;
	r->done = slot_done;
	op->pending++;
	export_submit(img->x, r);
}

void zero_start(struct wop *op)
{
	op->pos = op->node.key;
	op->begun = false;
	op->pending++; /* not done while slots are being filled */
	for (int i = 0; i < WOP_REQS; i++) {
		op->slot[i].op = op;
		slot_next(&op->slot[i]);
	}
	op->pending--;
	range_check(op);
}

/* ------------------------------------------------------- what to send */

/* Bytes of a block that zeroes cover only in part are written as data. */
static int as_data(struct image *img, struct dext *d, uint64_t start,
		   uint64_t end)
{
	struct epoch *epoch = d->epoch, *older;
	struct buf *buf = buf_get(engine_pool(img->e), end - start);
	int error;

	if (!buf)
		return -ENOMEM;
	memset(buf->data, 0, end - start);
	error = dirty_carve(img, start, end, &older);
	if (!error && !dirty_add_data(img, start, end, buf, buf->data, epoch)) {
		error = -ENOMEM;
		image_defer_range(img, start, end, error);
	}
	buf_put(buf);
	img->made_data = true;
	return error;
}

/* Where the part of d that begins at its start, and needs zeroing, ends. */
static uint64_t part_end(struct image *img, const struct dext *d,
			 const struct extent *first)
{
	uint64_t max = d->node.key + min_u64(d->end - d->node.key, RANGE_MAX);
	uint64_t end = min_u64(first->end, max);
	struct extent x;

	while (end < max) {
		x = extent_get(img->clean, end);
		if (x.state == EXTENT_UNKNOWN ||
		    (x.state != EXTENT_DATA && x.end - end >= SMALL_GAP))
			break;
		end = min_u64(x.end, max);
	}
	return end;
}

static int send_part(struct image *img, struct dext *d, uint64_t end)
{
	uint64_t start = d->node.key;
	uint64_t a = align_up(start, img->min_block);
	uint64_t b = end == img->size ? end : align_down(end, img->min_block);
	struct epoch *epoch = d->epoch, *older;
	unsigned flags = d->flags;
	struct wop *other;
	int error;

	if (a >= b)
		return as_data(img, d, start, end);
	if (start < a)
		return as_data(img, d, start, a);
	other = wop_overlapping(img, a, b);
	if (other && other->node.key <= a) {
		dirty_park(img, d, &other->blocked);
		return 0;
	}
	if (other)
		b = other->node.key;
	error = dirty_carve(img, a, b, &older);
	if (error)
		return error;
	error = wop_send_zero(img, a, b, flags, epoch);
	if (error)
		image_defer_range(img, a, b, error);
	return error;
}

/* False: d has to wait for block status. */
static bool know(struct image *img, const struct dext *d, struct extent *x)
{
	uint64_t pos = d->node.key;

	*x = (struct extent){ pos, d->end, EXTENT_DATA, 0 };
	if (!img->can_status)
		return true;
	*x = extent_get(img->clean, pos);
	x->end = min_u64(x->end, d->end);
	if (x->state != EXTENT_UNKNOWN || img->zero_ask_pos != pos)
		img->zero_asked = 0;
	img->zero_ask_pos = pos;
	if (x->state != EXTENT_UNKNOWN)
		return true;
	if (img->zero_asked < ASK_TRIES && status_ask(img, pos)) {
		img->zeroing_waits = true;
		return false;
	}
	img->zero_asked = 0;
	x->state = EXTENT_DATA; /* nobody knows: zero it */
	return true;
}

static bool wanted(const struct image *img, const struct dext *d)
{
	return d->epoch->id <= img->zero_upto || img->nzeroes > TOO_MANY;
}

static int pump_one(struct image *img, struct dext *d)
{
	struct epoch *older;
	struct extent x;
	bool done;

	if (!know(img, d, &x))
		return -EAGAIN;
	done = x.state == EXTENT_HOLE || (x.state == EXTENT_ZERO);
	if (x.state == EXTENT_HOLE && (d->flags & ZERO_NO_HOLE))
		done = false;
	if (!done)
		return send_part(img, d,
				 x.state == EXTENT_DATA ? part_end(img, d, &x) :
							  x.end);
	img->stats.zero_skipped_bytes += x.end - d->node.key;
	return dirty_carve(img, d->node.key, x.end, &older);
}

void zero_pump(struct image *img)
{
	struct dext *d;

	if (img->zero_pumping || img->zeroing_waits)
		return;
	img->zero_pumping = true;
	while ((d = TAILQ_FIRST(&img->zeroes)) != NULL && wanted(img, d) &&
	       img->nzeroing < AT_ONCE)
		if (pump_one(img, d))
			break;
	img->zero_pumping = false;
	if (img->made_data) {
		img->made_data = false;
		image_pump(img);
	}
	writers_unblock(img);
	sync_check(img);
}

/* ---------------------------------------------------------------- marking */

static void on_idle(struct loop_timer *t)
{
	struct image *img = container_of(t, struct image, zero_timer);

	img->zero_upto = epoch_close(img);
	zero_pump(img);
}

int zero_mark(struct image *img, uint64_t start, uint64_t end, unsigned flags)
{
	struct epoch *epoch = epoch_current(img), *older;
	int error = dirty_carve(img, start, end, &older);
	struct dext *d;

	if (error)
		return error;
	if (older)
		epoch = older;
	status_taint(img, start, end);
	chunks_taint(img, start, end);
	if (img->can_status)
		extent_set(img->clean, start, end, EXTENT_UNKNOWN, 0);
	flags &= ZERO_NO_HOLE;
	d = start ? dirty_at(img, start - 1) : NULL;
	if (d && d->zero && d->on == &img->zeroes && d->epoch == epoch &&
	    d->flags == flags)
		d->end = end;
	else if (!dirty_add_zero(img, start, end, flags, epoch))
		return -ENOMEM;
	img->zero_timer.fire = on_idle;
	loop_timer_set(engine_loop(img->e), &img->zero_timer, IDLE);
	return 0;
}

static void zero_synced(struct image_op *op, int error)
{
	struct image_zero *z = op->user;

	op_unpark(&z->op);
	/* What was acknowledged before is stable now, or never; and nobody
	 * may ask for it by fsync. */
	if (!error && (z->flags & ZERO_SYNC) && z->op.h)
		error = handle_error_hear(z->op.h);
	else if (!error)
		error = z->op.error;
	op_finish(&z->op, error);
}

static void zero_finish(struct image_zero *z, int error)
{
	struct image *img = image_ref(z->op.img);

	op_finish(&z->op, error);
	zero_pump(img);
	writers_unblock(img);
	image_unref(img);
}

void zero_step(struct image_zero *z)
{
	struct image *img = z->op.img;
	int error = zero_mark(img, z->offset, z->offset + z->len, z->flags);

	if (error || !(z->flags & (ZERO_WAIT | ZERO_SYNC))) {
		zero_finish(z, error);
		return;
	}
	z->op.state = 1; /* it is z->sync that is waited for */
	op_park(&z->op, &img->zero_ops);
	z->sync.op.h = z->op.h;
	z->sync.op.done = zero_synced;
	z->sync.op.user = z;
	z->sync.flags = z->flags & ZERO_SYNC ? SYNC_FLUSH | SYNC_OWN :
					       SYNC_DRAIN;
	image_sync(&z->sync);
}

void image_zero(struct image_zero *z)
{
	struct handle *h = z->op.h;
	struct image *img;
	int error = 0;

	op_init(&z->op, OP_ZERO);
	z->op.state = 0;
	img = z->op.img;
	z->sync = (struct image_sync){ .op = { .img = img } };
	if (!range_inside(z->offset, z->len, img->size))
		error = -EINVAL;
	else if (img->read_only)
		error = -EROFS;
	else if (h && h->error && !(z->flags & ZERO_ANYWAY))
		error = h->error;
	else if (h && !(z->flags & ZERO_SYNC))
		h->late = true;
	if (error || z->len == 0)
		zero_finish(z, error);
	else if (!dirty_has_place(img))
		op_park(&z->op, &img->blocked);
	else
		zero_step(z);
}
