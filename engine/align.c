/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * align.c - commands in flight; reading the rest of a block that a write
 * covers only in part.
 *
 * A wop locks whole blocks. For a block that it has only a part of, other
 * dirty bytes of that block go along with it, and what is still missing is
 * read from the server under the lock. While that is under way the wop is
 * `reading`: it does not answer reads yet.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "image_int.h"
#include "util.h"

static struct wop *to_wop(struct tree_node *n)
{
	return n ? container_of(n, struct wop, node) : NULL;
}

struct wop *wop_at(struct image *img, uint64_t pos)
{
	struct wop *w = to_wop(tree_floor(&img->flight, pos));

	return w && w->end > pos ? w : NULL;
}

struct wop *wop_overlapping(struct image *img, uint64_t start, uint64_t end)
{
	struct wop *w;

	if (!img->flight.root)
		return NULL;
	w = wop_at(img, start);
	if (w)
		return w;
	w = to_wop(tree_ceil(&img->flight, start));
	return w && w->node.key < end ? w : NULL;
}

void image_block_range(const struct image *img, uint64_t start, uint64_t end,
		       uint64_t *a, uint64_t *b)
{
	*a = align_down(start, img->min_block);
	*b = min_u64(align_up(end, img->min_block), img->size);
}

/* ------------------------------------------------------------ life of one */

static struct wop *wop_new(struct image *img, uint64_t start, uint64_t end)
{
	struct wop *op = TAILQ_FIRST(&img->spare_wops);

	if (op)
		TAILQ_REMOVE(&img->spare_wops, op, link);
	else
		op = malloc(sizeof(*op));
	if (!op)
		return NULL;
	memset(op, 0, sizeof(*op));
	op->img = img;
	op->end = end;
	TAILQ_INIT(&op->blocked);
	TAILQ_INIT(&op->waiters);
	op->node.key = start;
	return op;
}

static void wop_epoch(struct wop *op, struct epoch *epoch)
{
	unsigned *old = NULL;

	if (op->epoch)
		old = op->zero ? &op->epoch->zero : &op->epoch->data;
	if (op->zero)
		epoch->zero++;
	else
		epoch->data++;
	if (old)
		--*old;
	op->epoch = epoch;
}

static void wop_enter(struct wop *op)
{
	struct image *img = op->img;
	uint64_t start = op->node.key;

	image_ref(img);
	tree_insert(&img->flight, &op->node, start);
	img->nflight++;
	if (op->zero)
		img->nzeroing++;
	status_taint(img, start, op->end);
	chunks_taint(img, start, op->end);
	/* Until the answer, the contents are either: only "data" is safe. */
	extent_set(img->clean, start, op->end, EXTENT_DATA, 0);
}

/* What the server's contents are now. */
static void wop_learn(struct wop *op)
{
	struct image *img = op->img;
	uint32_t stamp = (uint32_t)(image_now(img) / NS_PER_MS) &
			 EXTENT_STAMP_MASK;
	bool hole = op->zero && !(op->flags & REQ_NO_HOLE) &&
		    img->zero_way != ZERO_BY_WRITES;

	status_taint(img, op->node.key, op->end);
	if (op->error)
		extent_set(img->clean, op->node.key, op->end, EXTENT_UNKNOWN,
			   0);
	else if (op->zero)
		extent_set(img->clean, op->node.key, op->end,
			   hole ? EXTENT_HOLE : EXTENT_ZERO, stamp);
}

static void owner_flushed(struct image_op *op, int error)
{
	struct image_write *w = op->user;

	/* What the flush has reached is not what was written. The handle has
	 * been told of that as well, but its program hears it now. */
	if (!error && w->sync.losses != op->img->losses) {
		handle_error_hear(w->op.h);
		error = -EIO;
	}
	op_finish(&w->op, error);
}

static void tell_owner(struct image_write *w, int error)
{
	struct image *img = w->op.img;

	w->wop = NULL;
	if (w->own)
		buf_put(w->buf);
	w->own = false;
	if (!error && (w->flags & WRITE_SYNC) && !export_caps(img->x)->fua) {
		w->sync.op.done = owner_flushed;
		w->sync.op.user = w;
		w->sync.op.h = w->op.h;
		w->sync.flags = SYNC_OWN;
		op_init(&w->sync.op, OP_SYNC);
		w->sync.losses = img->losses;
		sync_flush(&w->sync);
		return;
	}
	op_finish(&w->op, error);
}

static void unblock(struct wop *op, struct image *img)
{
	struct dext *d;

	while ((d = TAILQ_LAST(&op->blocked, dext_list)) != NULL)
		dirty_park(img, d, d->zero ? &img->zeroes : &img->ready);
}

void wop_done(struct wop *op)
{
	struct image *img = op->img;
	int error = op->error;

	tree_remove(&img->flight, &op->node);
	img->nflight--;
	if (op->zero)
		img->nzeroing--;
	img->queued -= op->counted;
	if (op->counted && !error)
		writes_sent(img, op->counted, op->slot[0].req.sent);
	wop_learn(op);
	if (!error && !(op->flags & REQ_FUA))
		img->completed++;
	if (op->zero)
		op->epoch->zero--;
	else
		op->epoch->data--;
	if (error && op->deferred)
		image_defer_range(img, op->node.key, op->end, error);
	if (op->owner)
		tell_owner(op->owner, error);
	op_wake_all(&op->waiters);
	unblock(op, img);
	buf_put(op->buf);
	TAILQ_INSERT_HEAD(&img->spare_wops, op, link);
	writers_unblock(img);
	image_pump(img);
	sync_check(img);
	image_unref(img);
}

/* -------------------------------------------------------------- writing */

static void data_written(struct req *r, int error)
{
	struct wop *op = container_of(r, struct wop_slot, req)->op;

	op->error = error;
	wop_done(op);
}

static void wop_write(struct wop *op)
{
	struct wop_slot *s = &op->slot[0];

	s->op = op;
	s->req.kind = REQ_WRITE;
	s->req.flags = op->flags;
	s->req.offset = op->node.key;
	s->req.len = op->end - op->node.key;
	s->req.data = op->data;
	s->req.piece = op->counted ? write_piece(op->img) : 0;
	s->req.done = data_written;
	export_submit(op->img->x, &s->req);
}

/* The bytes of a block that are not ours come from the server. */
static void edge_merge(struct wop *op, struct wop_edge *e)
{
	const uint8_t *base = e->buf->data, *mask = base + e->len;
	uint8_t *to = op->data + (e->start - op->node.key);

	for (uint32_t i = 0; i < e->len; i++)
		if (!mask[i])
			to[i] = base[i];
}

static void edge_read(struct req *r, int error)
{
	struct wop_edge *e = container_of(r, struct wop_edge, req);
	struct wop *op = e->op;

	if (error)
		op->error = error;
	else
		edge_merge(op, e);
	buf_put(e->buf);
	e->buf = NULL;
	if (--op->pending > 0)
		return;
	op->reading = false;
	if (op->error) {
		wop_done(op);
		return;
	}
	op_wake_all(&op->waiters);
	wop_write(op);
}

/* Other dirty bytes of the edge's block go along. */
static int edge_adopt(struct wop *op, struct wop_edge *e)
{
	struct image *img = op->img;
	uint64_t pos = e->start, end = e->start + e->len;
	uint8_t *mask = e->buf->data + e->len;
	struct epoch *older;
	struct dext *d;
	int error;

	for (; pos < end; pos++) {
		uint64_t n;

		d = dirty_at(img, pos);
		if (!d) {
			pos = dirty_next(img, pos);
			if (pos >= end)
				break;
			d = dirty_at(img, pos);
		}
		n = min_u64(d->end, end) - pos;
		if (d->zero)
			memset(op->data + (pos - op->node.key), 0, n);
		else
			memcpy(op->data + (pos - op->node.key),
			       d->data + (pos - d->node.key), n);
		memset(mask + (pos - e->start), 1, n);
		pos += n - 1;
	}
	error = dirty_carve(img, e->start, end, &older);
	if (older) {
		op->deferred = true;
		wop_epoch(op, epoch_older(op->epoch, older));
	}
	return error;
}

/* One block of which only [start, end) is ours. */
static int edge_add(struct wop *op, struct wop_edge *e, uint64_t block,
		    uint64_t start, uint64_t end)
{
	struct image *img = op->img;
	uint64_t block_end = min_u64(block + img->min_block, op->end);
	uint8_t *mask;
	struct extent x;

	e->op = op;
	e->start = block;
	e->len = (uint32_t)(block_end - block);
	e->buf = buf_get(engine_pool(img->e), 2 * (size_t)e->len);
	if (!e->buf)
		return -ENOMEM;
	mask = e->buf->data + e->len;
	memset(mask, 0, e->len);
	start = max_u64(start, block);
	end = min_u64(end, block_end);
	memset(mask + (start - block), 1, end - start);
	if (edge_adopt(op, e))
		return -ENOMEM;
	x = status_get(img, block, block_end, image_now(img));
	if (x.end == block_end &&
	    (x.state == EXTENT_ZERO || x.state == EXTENT_HOLE)) {
		memset(e->buf->data, 0, e->len);
		edge_merge(op, e);
		mask = NULL;
	} else if (memchr(mask, 0, e->len) == NULL) {
		mask = NULL;
	}
	if (!mask) {
		buf_put(e->buf);
		e->buf = NULL;
	}
	return 0;
}

/* [start, end) is what op has itself, of the blocks that it covers. */
static int edges_add(struct wop *op, uint64_t start, uint64_t end)
{
	uint32_t block = op->img->min_block;
	uint64_t head = op->node.key, tail = align_down(end, block);
	int error = 0;

	if (head < start)
		error = edge_add(op, &op->edge[0], head, start, end);
	if (!error && end < op->end && (tail != head || head == start))
		error = edge_add(op, &op->edge[1], tail, start, end);
	return error;
}

/* Enters the flight: reads what is missing first. */
static void wop_start(struct wop *op)
{
	wop_enter(op);
	for (int i = 0; i < WOP_EDGES; i++)
		if (op->edge[i].buf)
			op->pending++;
	if (op->pending == 0) {
		wop_write(op);
		return;
	}
	op->reading = true;
	for (int i = 0; i < WOP_EDGES; i++) {
		struct wop_edge *e = &op->edge[i];

		if (!e->buf)
			continue;
		e->req.kind = REQ_READ;
		e->req.offset = e->start;
		e->req.len = e->len;
		e->req.data = e->buf->data;
		e->req.done = edge_read;
		export_submit(op->img->x, &e->req);
	}
}

/* Without memory: nothing has been sent. Bytes that went along already are
 * still the newest there are, so they go back as dirty data. */
static int wop_fail(struct wop *op)
{
	for (int i = 0; i < WOP_EDGES; i++)
		buf_put(op->edge[i].buf);
	buf_put(op->buf);
	if (op->epoch)
		op->epoch->data--;
	if (op->deferred)
		image_defer_range(op->img, op->node.key, op->end, -ENOMEM);
	TAILQ_INSERT_HEAD(&op->img->spare_wops, op, link);
	return -ENOMEM;
}

/* The bytes [start, end) at data, in a buffer that holds whole blocks. */
static int wop_take(struct wop *op, uint64_t start, uint64_t end,
		    struct buf *buf, const uint8_t *data)
{
	if (op->node.key == start && op->end == end) {
		op->buf = buf_ref(buf);
		op->data = (uint8_t *)data;
		return 0;
	}
	op->buf = buf_get(engine_pool(op->img->e), op->end - op->node.key);
	if (!op->buf)
		return -ENOMEM;
	op->data = op->buf->data;
	memcpy(op->data + (start - op->node.key), data, end - start);
	return 0;
}

int wop_send_dirty(struct image *img, struct dext *d)
{
	uint64_t start = d->node.key, end = d->end, a, b;
	struct wop *op;

	image_block_range(img, start, end, &a, &b);
	op = wop_new(img, a, b);
	if (!op)
		return -ENOMEM;
	if (wop_take(op, start, end, d->buf, d->data)) {
		TAILQ_INSERT_HEAD(&img->spare_wops, op, link);
		return -ENOMEM;
	}
	wop_epoch(op, d->epoch);
	op->deferred = true;
	op->counted = end - start;
	img->queued += op->counted;
	dirty_remove(img, d);
	if (edges_add(op, start, end)) {
		img->queued -= op->counted;
		wop_fail(op);
		return 0; /* reported as a deferred error */
	}
	wop_start(op);
	return 0;
}

int wop_send_direct(struct image *img, struct image_write *w)
{
	uint64_t start = w->offset, end = w->offset + w->len, a, b;
	struct epoch *older;
	struct wop *op;

	image_block_range(img, start, end, &a, &b);
	op = wop_new(img, a, b);
	if (!op)
		return -ENOMEM;
	if (wop_take(op, start, end, w->buf, w->data))
		return wop_fail(op);
	wop_epoch(op, epoch_current(img));
	if (dirty_carve(img, start, end, &older))
		return wop_fail(op);
	if (older) {
		op->deferred = true;
		wop_epoch(op, epoch_older(op->epoch, older));
	}
	if (edges_add(op, start, end))
		return wop_fail(op);
	if ((w->flags & WRITE_SYNC) && export_caps(img->x)->fua)
		op->flags |= REQ_FUA;
	op->owner = w;
	w->wop = op;
	wop_start(op);
	return 0;
}

int wop_send_zero(struct image *img, uint64_t start, uint64_t end,
		  unsigned flags, struct epoch *epoch)
{
	struct wop *op = wop_new(img, start, end);

	if (!op)
		return -ENOMEM;
	op->zero = true;
	op->deferred = true;
	op->flags = flags & ZERO_NO_HOLE ? REQ_NO_HOLE : 0;
	wop_epoch(op, epoch);
	wop_enter(op);
	zero_start(op);
	return 0;
}
