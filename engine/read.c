/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * read.c - a read: from the layers of the image, or from the wire.
 *
 * A read is put together from pieces, in order. A piece is memory that
 * another layer holds (a queued write, read-ahead, the block of zeroes) or
 * waits for a chunk, which is a read on the wire. Without dst the pieces
 * become the iovec of the reply, and hold a reference to their buffer until
 * image_read_release(). With dst, or where there are too many of them, they
 * are copied together.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "image_int.h"
#include "util.h"

#define ASK_TRIES 2
/* A read that fails is repeated in ever smaller pieces, down to this, to find
 * where the bytes that can be read end. */
#define BAD_GRAIN ((uint32_t)4096)

/* --------------------------------------------------------------- chunks */

struct chunk *chunk_new(struct image *img, uint64_t start, uint32_t len,
			uint8_t *dst)
{
	struct chunk *c = TAILQ_FIRST(&img->spare_chunks);

	if (c)
		TAILQ_REMOVE(&img->spare_chunks, c, link);
	else
		c = malloc(sizeof(*c));
	if (!c)
		return NULL;
	memset(c, 0, sizeof(*c));
	c->img = img;
	c->node.key = start;
	c->len = len;
	TAILQ_INIT(&c->waiters);
	c->req.data = dst;
	if (!dst) {
		c->buf = buf_get(engine_pool(img->e), len);
		if (!c->buf) {
			TAILQ_INSERT_HEAD(&img->spare_chunks, c, link);
			return NULL;
		}
		c->req.data = c->buf->data;
	}
	return c;
}

static void chunk_free(struct chunk *c)
{
	struct image *img = c->img;

	assert(TAILQ_EMPTY(&c->waiters) && !c->cached);
	buf_put(c->buf);
	c->buf = NULL;
	TAILQ_INSERT_HEAD(&img->spare_chunks, c, link);
}

/* Takes a chunk out of the cache; frees it unless its read is under way. */
void chunk_drop(struct chunk *c)
{
	if (!c->cached)
		return;
	c->cached = false;
	tree_remove(&c->img->chunks, &c->node);
	if (c->owner) {
		TAILQ_REMOVE(&c->owner->ra.chunks, c, link);
		c->owner->ra.cached -= c->len;
		if (!c->ready)
			c->owner->ra.pending--;
		c->owner = NULL;
	}
	if (c->ready && !c->busy)
		chunk_free(c);
}

struct chunk *chunk_at(struct image *img, uint64_t pos)
{
	struct tree_node *n = tree_floor(&img->chunks, pos);
	struct chunk *c;

	if (!n)
		return NULL;
	c = container_of(n, struct chunk, node);
	return pos - n->key < c->len ? c : NULL;
}

void chunks_taint(struct image *img, uint64_t start, uint64_t end)
{
	struct tree_node *n, *next;

	if (!img->chunks.root)
		return;
	n = tree_floor(&img->chunks, start);
	if (!n)
		n = tree_first(&img->chunks);
	for (; n && n->key < end; n = next) {
		struct chunk *c = container_of(n, struct chunk, node);

		next = tree_next(n);
		if (n->key + c->len > start)
			chunk_drop(c);
	}
}

static void piece_ready(struct read_piece *p, struct chunk *c);
static void piece_failed(struct read_piece *p, bool direct, bool lost,
			 int error);

static void chunk_done(struct req *r, int error)
{
	struct chunk *c = container_of(r, struct chunk, req);
	struct image *img = c->img;
	struct read_piece *p;
	bool direct = c->left == 0;

	c->ready = true;
	if (c->owner)
		c->owner->ra.pending--;
	if (!error)
		smooth(&img->read_time, image_now(img) - c->sent);
	if (c->owner && !error)
		readahead_arrived(c);
	/* Nobody else may free it while its readers are served. */
	c->busy = true;
	if (error)
		chunk_drop(c);
	while ((p = TAILQ_FIRST(&c->waiters)) != NULL) {
		TAILQ_REMOVE(&c->waiters, p, link);
		p->chunk = NULL;
		if (error)
			piece_failed(p, direct, r->lost, error);
		else
			piece_ready(p, c);
	}
	c->busy = false;
	if (!c->cached)
		chunk_free(c);
	else if (c->left == 0)
		chunk_drop(c);
	image_unref(img);
}

void chunk_submit(struct chunk *c)
{
	image_ref(c->img);
	c->req.kind = REQ_READ;
	c->req.offset = c->node.key;
	c->req.len = c->len;
	c->req.done = chunk_done;
	c->sent = image_now(c->img);
	export_submit(c->img->x, &c->req);
}

/* --------------------------------------------------------------- pieces */

static uint64_t read_end(const struct image_read *rd)
{
	return rd->offset + rd->len;
}

static struct read_piece *piece_new(struct image_read *rd)
{
	for (int i = 0; rd->dst && i < rd->npieces; i++)
		if (rd->piece[i].len == 0)
			return &rd->piece[i];
	if (rd->npieces == READ_MAX_IOV)
		return NULL;
	return &rd->piece[rd->npieces++];
}

/* Too many pieces for an iovec: copy them together instead. */
static bool gather(struct image_read *rd)
{
	rd->own = buf_get(engine_pool(rd->op.img->e), rd->len);
	if (!rd->own)
		return false;
	rd->dst = rd->own->data;
	for (int i = 0; i < rd->npieces; i++) {
		struct read_piece *p = &rd->piece[i];

		if (p->chunk || p->len == 0)
			continue;
		memcpy(rd->dst + (p->offset - rd->offset), rd->iov[i].iov_base,
		       p->len);
		buf_put(p->buf);
		p->buf = NULL;
		p->len = 0;
	}
	return true;
}

/* Memory that is there: [pos, pos + len). False: no memory to go on. */
static bool add_memory(struct image_read *rd, const uint8_t *data, uint64_t len,
		       struct buf *buf)
{
	struct read_piece *p = NULL;
	int last = rd->npieces - 1;

	if (!rd->dst && last >= 0 && !rd->piece[last].chunk &&
	    rd->piece[last].buf == buf &&
	    (buf ? (uint8_t *)rd->iov[last].iov_base + rd->iov[last].iov_len ==
			     data :
		   rd->iov[last].iov_len + len <= ZERO_BLOCK_SIZE)) {
		rd->iov[last].iov_len += len;
		rd->piece[last].len += (uint32_t)len;
		rd->pos += len;
		return true;
	}
	if (!rd->dst)
		p = piece_new(rd);
	if (!rd->dst && !p && !gather(rd))
		return false;
	if (rd->dst) {
		memcpy(rd->dst + (rd->pos - rd->offset), data, len);
	} else {
		*p = (struct read_piece){ .rd = rd,
					  .offset = rd->pos,
					  .len = (uint32_t)len };
		p->buf = buf ? buf_ref(buf) : NULL;
		rd->iov[p - rd->piece].iov_base = (void *)data;
		rd->iov[p - rd->piece].iov_len = len;
	}
	rd->pos += len;
	return true;
}

static bool add_zeroes(struct image_read *rd, uint64_t len)
{
	len = min_u64(len, read_end(rd) - rd->pos);
	rd->op.img->stats.hole_bytes += len;
	while (len > 0) {
		uint64_t n = min_u64(len, ZERO_BLOCK_SIZE);

		if (!add_memory(rd, zero_block, n, NULL))
			return false;
		len -= n;
	}
	return true;
}

/* Waits for [pos, end) of chunk c. False: no place for a piece now. */
static bool add_chunk(struct image_read *rd, struct chunk *c, uint64_t end)
{
	struct read_piece *p = piece_new(rd);

	if (!p && !rd->dst && gather(rd))
		p = piece_new(rd);
	if (!p)
		return false;
	*p = (struct read_piece){ .rd = rd,
				  .chunk = c,
				  .offset = rd->pos,
				  .len = (uint32_t)(end - rd->pos) };
	TAILQ_INSERT_TAIL(&c->waiters, p, link);
	rd->pending++;
	rd->pos = end;
	return true;
}

static void consume(struct chunk *c, uint32_t len)
{
	c->left -= (uint32_t)min_u64(len, c->left);
	if (c->left == 0 && c->ready && c->cached && !c->busy)
		chunk_drop(c);
}

static void piece_ready(struct read_piece *p, struct chunk *c)
{
	struct image_read *rd = p->rd;
	uint8_t *from = c->req.data + (p->offset - c->node.key);
	uint8_t *to;

	if (rd->dst) {
		to = rd->dst + (p->offset - rd->offset);
		if (to != from)
			memcpy(to, from, p->len);
	} else {
		p->buf = buf_ref(c->buf);
		rd->iov[p - rd->piece].iov_base = from;
		rd->iov[p - rd->piece].iov_len = p->len;
	}
	consume(c, p->len);
	if (rd->dst)
		p->len = 0;
	rd->pending--;
	read_step(rd);
}

static bool add_direct(struct image_read *rd, struct read_piece *p,
		       uint64_t end);

/* What was read ahead failed: ask for just the piece, so that a bad sector
 * does not spoil its neighbours. Where the server is gone (lost), that has
 * nothing to do with sectors, and every further attempt takes its time. */
static void piece_failed(struct read_piece *p, bool direct, bool lost,
			 int error)
{
	struct image_read *rd = p->rd;
	uint64_t bad = p->offset;

	rd->pending--;
	if (!direct && !lost && add_direct(rd, p, p->offset + p->len))
		return;
	rd->lost |= lost;
	p->len = 0;
	/* The result ends before the first byte that failed. */
	if (!rd->failed || bad < rd->bad)
		rd->bad = bad;
	rd->failed = error;
	read_step(rd);
}

/* ---------------------------------------------------------------- steps */

/* A read of its own for [p->offset or pos, end). */
static bool add_direct(struct image_read *rd, struct read_piece *p,
		       uint64_t end)
{
	struct image *img = rd->op.img;
	uint64_t from = p ? p->offset : rd->pos, a, b;
	uint8_t *dst = NULL;
	struct chunk *c;

	if (!p)
		end = min_u64(end, align_down(from, rd->grain) + rd->grain);
	image_block_range(img, from, end, &a, &b);
	/* Not into a buffer of ours: the read may be cancelled. */
	if (rd->exact && a == from && b == end)
		dst = rd->dst + (from - rd->offset);
	c = chunk_new(img, a, (uint32_t)(b - a), dst);
	if (!c)
		return false;
	if (p) {
		p->chunk = c;
		TAILQ_INSERT_TAIL(&c->waiters, p, link);
		rd->pending++;
	} else if (!add_chunk(rd, c, end)) {
		chunk_free(c);
		return false;
	}
	chunk_submit(c);
	return true;
}

/* Whether to wait for block status before reading what is not known: not
 * where that takes much longer than reading would. */
static bool worth_asking(const struct image_read *rd)
{
	const struct image *img = rd->op.img;

	return rd->asked < ASK_TRIES &&
	       img->status_time <= 4 * img->read_time + 5 * NS_PER_MS;
}

/* The wire, or what was read ahead from it: up to `limit`. */
static bool read_base(struct image_read *rd, uint64_t limit)
{
	struct image *img = rd->op.img;
	struct extent x = status_get(img, rd->pos, limit, rd->op.born);
	struct chunk *c;
	struct tree_node *n;

	if (x.state == EXTENT_ZERO || x.state == EXTENT_HOLE)
		return add_zeroes(rd, x.end - rd->pos);
	c = chunk_at(img, rd->pos);
	if (!c && x.state == EXTENT_UNKNOWN && worth_asking(rd) &&
	    status_ask(img, rd->pos)) {
		status_wait(&rd->op);
		return false;
	}
	if (x.state == EXTENT_UNKNOWN && img->status_time)
		status_ask(img, rd->pos);
	rd->asked = 0;
	if (c) {
		uint64_t end = min_u64(x.end, c->node.key + c->len);
		uint32_t len = (uint32_t)(end - rd->pos);

		img->stats.hits++;
		img->stats.hit_bytes += len;
		if (!c->ready)
			return add_chunk(rd, c, end);
		if (c->owner &&
		    c->owner->ra.pending ==
			    0) /* the reader is slower than the server */
			tune_starved(&c->owner->ra.tune);
		if (!add_memory(rd, c->req.data + (rd->pos - c->node.key), len,
				c->buf))
			return false;
		consume(c, len);
		return true;
	}
	n = tree_ceil(&img->chunks, rd->pos);
	if (n)
		x.end = min_u64(x.end, n->key);
	return add_direct(rd, NULL, x.end);
}

/* One more piece. False: not now. */
static bool read_piece(struct image_read *rd)
{
	struct image *img = rd->op.img;
	uint64_t end = read_end(rd), pos = rd->pos;
	struct dext *d = dirty_at(img, pos);
	struct wop *w;

	if (d) {
		end = min_u64(end, d->end);
		return d->zero ? add_zeroes(rd, end - pos) :
				 add_memory(rd, d->data + (pos - d->node.key),
					    end - pos, d->buf);
	}
	end = min_u64(end, dirty_next(img, pos));
	w = wop_overlapping(img, pos, end);
	if (w && w->node.key > pos) {
		end = w->node.key;
		w = NULL;
	}
	if (!w)
		return read_base(rd, end);
	end = min_u64(end, w->end);
	if (w->zero)
		return add_zeroes(rd, end - pos);
	if (w->reading) {
		op_park(&rd->op, &w->waiters);
		return false;
	}
	return add_memory(rd, w->data + (pos - w->node.key), end - pos, w->buf);
}

/* Reads again from the piece that failed on, in smaller pieces. */
static bool read_narrow(struct image_read *rd)
{
	uint32_t least = BAD_GRAIN > rd->op.img->min_block ?
				 BAD_GRAIN :
				 rd->op.img->min_block;

	while (rd->grain > least && rd->grain / 2 >= rd->len)
		rd->grain /= 2;
	if (rd->exact || rd->lost || rd->grain <= least)
		return false;
	if (!rd->own && !gather(rd))
		return false;
	rd->grain /= 2;
	rd->failed = 0;
	rd->pos = rd->bad;
	return true;
}

static void read_finish(struct image_read *rd)
{
	int error = rd->failed;

	/* Good bytes before a bad one are delivered. */
	if (error && !rd->exact && rd->bad > rd->offset) {
		rd->len = (uint32_t)(rd->bad - rd->offset);
		error = 0;
	}
	if (!error && rd->own) {
		rd->iov[0] = (struct iovec){ rd->own->data, rd->len };
		rd->niov = 1;
	} else if (!error && !rd->dst) {
		uint32_t left = rd->len;

		for (rd->niov = 0; left > 0; rd->niov++) {
			struct iovec *v = &rd->iov[rd->niov];

			if (v->iov_len > left)
				v->iov_len = left;
			left -= (uint32_t)v->iov_len;
		}
	}
	if (error)
		image_read_release(rd);
	op_finish(&rd->op, error);
}

void read_step(struct image_read *rd)
{
	if (rd->stepping)
		return;
	rd->stepping = true;
	if (rd->op.error) { /* of block status: read, then */
		rd->op.error = 0;
		rd->asked = ASK_TRIES;
	}
	while (rd->pos < read_end(rd) && !rd->op.on && !rd->failed)
		if (!read_piece(rd))
			break;
	rd->stepping = false;
	if (rd->op.on || rd->pending)
		return;
	if (rd->failed && read_narrow(rd)) {
		read_step(rd);
		return;
	}
	if (rd->pos < read_end(rd) && !rd->failed) {
		rd->failed = -ENOMEM;
		rd->bad = rd->offset;
	}
	read_finish(rd);
}

void image_read(struct image_read *rd)
{
	struct handle *h = rd->op.h;
	uint64_t offset = rd->offset;
	uint32_t len = rd->len;
	bool ahead = !rd->dst && !(h->flags & OPEN_NO_READAHEAD);

	op_init(&rd->op, OP_READ);
	rd->npieces = rd->niov = 0;
	rd->pending = rd->asked = 0;
	rd->pos = rd->offset;
	rd->own = NULL;
	rd->stepping = false;
	rd->failed = 0;
	rd->lost = false;
	rd->grain = (uint32_t)1 << 31;
	rd->exact = rd->dst != NULL;
	if (!range_inside(offset, len, rd->op.img->size)) {
		op_finish(&rd->op, -EINVAL);
		return;
	}
	read_step(rd);
	if (ahead)
		readahead_note(h, offset, len);
}

void image_read_release(struct image_read *rd)
{
	for (int i = 0; i < rd->npieces; i++) {
		buf_put(rd->piece[i].buf);
		rd->piece[i].buf = NULL;
	}
	rd->npieces = 0;
	buf_put(rd->own);
	rd->own = NULL;
}

void read_cancel(struct image_read *rd)
{
	assert(rd->own || !rd->dst);
	for (int i = 0; i < rd->npieces; i++) {
		struct read_piece *p = &rd->piece[i];

		if (!p->chunk)
			continue;
		TAILQ_REMOVE(&p->chunk->waiters, p, link);
		p->chunk = NULL;
	}
	rd->pending = 0;
	image_read_release(rd);
}
