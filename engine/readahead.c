/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * readahead.c - asks for what a reader will want next.
 *
 * A handle watches a few streams at a time, so that several readers of one
 * open file do not disturb each other. A stream that goes on where its last
 * read ended, or back to where it began, or steps by the same stride, gets
 * chunks asked for ahead of it, up to a window. The window starts small, since
 * a deep queue costs cache on a near server, and grows on trial (tune.h) up to
 * the option. Zero extents are skipped; what is not known is asked about
 * first. Random reads match no stream and cost nothing.
 */
#include <string.h>

#include "image_int.h"
#include "util.h"

#define WINDOW_MIN (2 * MiB)
/* Chunks of a near server are small enough to be still in the processor's
 * cache when they are handed on; with many in flight, fewer are better. */
#define CHUNK_MIN (256 * KiB)
#define CHUNK_NEAR (512 * KiB)
#define CHUNK_MAX MiB
#define NEAR (8 * MiB)
/* Reads of one sequential reader may arrive out of order by so much. */
#define SLACK (512 * KiB)
#define STRIDE_MAX ((int64_t)(64 * MiB))
#define STRIDES_AHEAD 16

void readahead_drop(struct handle *h)
{
	struct chunk *c;

	while ((c = TAILQ_FIRST(&h->ra.chunks)) != NULL)
		chunk_drop(c);
	memset(h->ra.stream, 0, sizeof(h->ra.stream));
}

static bool make_room(struct handle *h, uint32_t len)
{
	uint64_t max = engine_config(h->img->e)->read_ahead;
	struct chunk *c, *next;

	for (c = TAILQ_FIRST(&h->ra.chunks); c && h->ra.cached + len > max;
	     c = next) {
		next = TAILQ_NEXT(c, link);
		if (c->ready && !c->busy)
			chunk_drop(c);
	}
	return h->ra.cached + len <= max;
}

static bool fetch(struct handle *h, uint64_t start, uint64_t end)
{
	struct chunk *c;
	uint32_t len = (uint32_t)(end - start);

	if (!make_room(h, len))
		return false;
	c = chunk_new(h->img, start, len, NULL);
	if (!c)
		return false;
	c->cached = true;
	c->owner = h;
	c->left = len;
	tree_insert(&h->img->chunks, &c->node, start);
	TAILQ_INSERT_TAIL(&h->ra.chunks, c, link);
	h->ra.cached += len;
	h->ra.pending++;
	chunk_submit(c);
	return true;
}

/* The part of [pos, end) that is worth a chunk, beginning at or after *pos.
 * False: stop here for now. */
static bool next_range(struct image *img, uint64_t *pos, uint64_t *end)
{
	struct extent x;
	struct wop *w;
	struct tree_node *n;
	struct dext *d;
	struct chunk *c;

	while (*pos < *end) {
		if ((d = dirty_at(img, *pos)) != NULL) {
			*pos = d->end;
			continue;
		}
		if ((c = chunk_at(img, *pos)) != NULL) {
			*pos = c->node.key + c->len;
			continue;
		}
		if ((w = wop_at(img, *pos)) != NULL) {
			*pos = w->end;
			continue;
		}
		x = status_get(img, *pos, *end, image_now(img));
		if (x.state == EXTENT_UNKNOWN && status_ask(img, *pos))
			return false;
		if (x.state == EXTENT_ZERO || x.state == EXTENT_HOLE) {
			*pos = x.end;
			continue;
		}
		*end = min_u64(x.end, dirty_next(img, *pos));
		if ((w = wop_overlapping(img, *pos, *end)) != NULL)
			*end = w->node.key;
		if ((n = tree_ceil(&img->chunks, *pos)) != NULL)
			*end = min_u64(*end, n->key);
		return *end > *pos;
	}
	return false;
}

/* Asks for the part of [start, end) that is data and not there yet, in whole
 * blocks; blocks that reach into another layer are left to the reader. The
 * end of what has been dealt with, which is `start` where it must wait. */
static uint64_t fetch_some(struct handle *h, uint64_t start, uint64_t end)
{
	struct image *img = h->img;
	uint64_t from = start, to = end, a, b;

	if (!next_range(img, &from, &to))
		return from >= end ? end : from;
	image_block_range(img, from, to, &a, &b);
	if (b <= a || b - a > 2 * CHUNK_MAX || chunk_at(img, a) ||
	    chunk_at(img, b - 1) || wop_overlapping(img, a, b))
		return to;
	return fetch(h, a, b) ? to : from;
}

/* Who has read little gets little ahead, however far away the server is. */
static uint64_t stream_window(const struct handle *h, const struct ra_stream *s)
{
	return min_u64(h->ra.tune.window, WINDOW_MIN + 2 * s->bytes);
}

static void run_forward(struct handle *h, struct ra_stream *s, uint64_t size)
{
	uint64_t window = stream_window(h, s);
	uint64_t to = min_u64(s->next + window, h->img->size), next;

	if (s->ahead < s->next || s->ahead > s->next + 2 * window)
		s->ahead = s->next;
	if (s->ahead >= to ||
	    to - s->ahead < min_u64(size, h->img->size - s->ahead))
		return;
	while (s->ahead < to) {
		next = fetch_some(h, s->ahead,
				  min_u64(s->ahead + size, h->img->size));
		if (next == s->ahead)
			break;
		s->ahead = next;
	}
}

static void run_backward(struct handle *h, struct ra_stream *s, uint64_t size)
{
	uint64_t window = stream_window(h, s);
	uint64_t to = s->first > window ? s->first - window : 0, start;

	if (s->ahead > s->first || s->ahead + 2 * window < s->first)
		s->ahead = s->first;
	if (s->ahead <= to || s->ahead - to < min_u64(size, s->ahead))
		return;
	while (s->ahead > to) {
		start = s->ahead > size ? s->ahead - size : 0;
		for (uint64_t pos = start, next; pos < s->ahead; pos = next) {
			next = fetch_some(h, pos, s->ahead);
			if (next == pos)
				return;
		}
		s->ahead = start;
	}
}

static void run_strided(struct handle *h, const struct ra_stream *s)
{
	uint64_t len = s->next - s->first, pos = s->first;
	uint64_t n = min_u64(h->ra.tune.window / len, STRIDES_AHEAD);

	if (len > CHUNK_MAX)
		return;
	for (uint64_t i = 0; i < n; i++) {
		pos += (uint64_t)s->stride; /* wraps for a negative one */
		if (!range_inside(pos, len, h->img->size))
			break;
		fetch_some(h, pos, pos + len);
	}
}

/* ------------------------------------------------------------- patterns */

static bool goes_forward(const struct ra_stream *s, uint64_t offset,
			 uint64_t len)
{
	if (offset == s->next && s->stride >= 0)
		return true;
	return s->streak > 1 && s->stride == 0 && offset < s->next + SLACK &&
	       offset + len + SLACK > s->next;
}

static bool goes_backward(const struct ra_stream *s, uint64_t offset,
			  uint64_t len)
{
	return s->next > s->first && offset + len == s->first;
}

static bool goes_by_stride(const struct ra_stream *s, uint64_t offset)
{
	return s->stride != 0 && offset - s->first == (uint64_t)s->stride;
}

enum pattern { NONE, FORWARD, BACKWARD, STRIDED };

static enum pattern match(const struct ra_stream *s, uint64_t offset,
			  uint64_t len)
{
	if (s->used == 0)
		return NONE;
	if (goes_forward(s, offset, len))
		return FORWARD;
	if (goes_backward(s, offset, len))
		return BACKWARD;
	return goes_by_stride(s, offset) ? STRIDED : NONE;
}

/* A read that fits no stream: the first of a new one, or the second of one
 * that may turn out to have a stride. */
static struct ra_stream *begin_stream(struct readahead *ra, uint64_t offset,
				      uint64_t len)
{
	struct ra_stream *s = &ra->stream[0];
	int64_t stride = 0;

	for (int i = 0; i < RA_STREAMS; i++) {
		struct ra_stream *t = &ra->stream[i];

		if (t->used == ra->clock - 1 && t->used && t->streak == 0) {
			stride = (int64_t)(offset - t->first);
			s = t;
			break;
		}
		if (t->used < s->used)
			s = t;
	}
	if (stride > STRIDE_MAX || stride < -STRIDE_MAX)
		stride = 0;
	*s = (struct ra_stream){ .first = offset,
				 .next = offset + len,
				 .ahead = offset + len,
				 .stride = stride,
				 .used = ra->clock };
	return s;
}

static uint64_t chunk_size(const struct handle *h, uint64_t len)
{
	uint64_t most = h->ra.tune.window > NEAR ? CHUNK_MAX : CHUNK_NEAR;
	uint64_t size = align_up(max_u64(len, CHUNK_MIN), 64 * KiB);

	size = min_u64(min_u64(size, most),
		       engine_config(h->img->e)->read_ahead);
	return max_u64(align_down(size, h->img->min_block), h->img->min_block);
}

static void follow(struct handle *h, struct ra_stream *s, enum pattern p,
		   uint64_t offset, uint64_t len)
{
	uint64_t max = engine_config(h->img->e)->read_ahead;
	uint64_t size;

	if (h->ra.tune.window == 0) {
		tune_init(&h->ra.tune, min_u64(WINDOW_MIN, max), max);
		if (h->img->read_window)
			tune_begin_with(&h->ra.tune, h->img->read_window);
	}
	size = chunk_size(h, len);
	s->streak++;
	s->bytes += len;
	s->used = h->ra.clock;
	if (p == STRIDED) {
		s->first = offset;
		s->next = offset + len;
		run_strided(h, s);
		return;
	}
	s->stride = p == BACKWARD ? -1 : 0;
	s->first = offset;
	s->next = p == FORWARD ? max_u64(s->next, offset + len) : offset + len;
	if (p == FORWARD)
		run_forward(h, s, size);
	else
		run_backward(h, s, size);
}

void readahead_arrived(struct chunk *c)
{
	struct tune *t = &c->owner->ra.tune;

	tune_finished(t, image_now(c->img), c->len, c->req.sent);
	if (tune_found(t))
		c->img->read_window = tune_found(t);
}

void readahead_note(struct handle *h, uint64_t offset, uint64_t len)
{
	struct readahead *ra = &h->ra;
	struct ra_stream *s;
	enum pattern p;

	if (engine_config(h->img->e)->read_ahead == 0 || len == 0)
		return;
	ra->clock++;
	for (int i = 0; i < RA_STREAMS; i++) {
		p = match(&ra->stream[i], offset, len);
		if (p != NONE) {
			follow(h, &ra->stream[i], p, offset, len);
			return;
		}
	}
	s = begin_stream(ra, offset, len);
	if (offset == 0) /* most who begin there go on */
		follow(h, s, FORWARD, offset, len);
}
