/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * readahead.c - asks for what a reader will want next.
 *
 * Each handle remembers where its last read ended. A reader that goes on
 * there, or steps back by the length of its reads, gets chunks asked for
 * ahead of it, up to a window. The window starts small, since a deep queue
 * costs cache on a near server, and grows on trial (tune.h) up to the option.
 * Zero extents are skipped; what is not known is asked about first.
 */
#include "image_int.h"
#include "util.h"

#define WINDOW_MIN (2 * MiB)
#define CHUNK_MIN (256 * KiB)
#define CHUNK_MAX MiB
/* Reads of one sequential reader may arrive out of order by so much. */
#define SLACK (512 * KiB)

void readahead_drop(struct handle *h)
{
	struct chunk *c;

	while ((c = TAILQ_FIRST(&h->ra.chunks)) != NULL)
		chunk_drop(c);
	h->ra.ahead = 0;
	h->ra.streak = 0;
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
		x = status_get(img, *pos, *end);
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

static void run_ahead(struct handle *h, uint64_t from, uint64_t to,
		      uint64_t size)
{
	struct image *img = h->img;
	uint64_t pos = from, start, end, a, b;

	while (pos < to) {
		start = pos;
		end = min_u64(pos + size, img->size);
		if (!next_range(img, &start, &end)) {
			pos = max_u64(pos, start);
			if (start < end || start >= to)
				break;
			continue;
		}
		/* Whole blocks; blocks that reach into another layer are left
		 * to the reader. */
		image_block_range(img, start, end, &a, &b);
		if ((a < start && a < from) || chunk_at(img, a) ||
		    wop_overlapping(img, a, b) ||
		    (b > end && chunk_at(img, b - 1))) {
			pos = end;
			continue;
		}
		if (!fetch(h, a, b))
			break;
		pos = b;
	}
	h->ra.ahead = pos;
}

static bool is_sequential(const struct readahead *ra, uint64_t offset,
			  uint64_t len)
{
	if (offset == ra->next)
		return true;
	return ra->streak > 1 && offset < ra->next + SLACK &&
	       offset + len + SLACK > ra->next;
}

void readahead_note(struct handle *h, uint64_t offset, uint64_t len)
{
	struct readahead *ra = &h->ra;
	struct image *img = h->img;
	uint64_t max = engine_config(img->e)->read_ahead;
	uint64_t end = offset + len, size, to;

	if (max == 0 || len == 0)
		return;
	if (!is_sequential(ra, offset, len)) {
		ra->streak = 0;
		ra->next = end;
		ra->ahead = end;
		return;
	}
	if (ra->streak == 0)
		tune_init(&ra->tune, min_u64(WINDOW_MIN, max), max);
	ra->streak++;
	ra->next = max_u64(ra->next, end);
	if (ra->ahead < ra->next || ra->ahead > ra->next + max)
		ra->ahead = ra->next;
	size = align_up(max_u64(len, CHUNK_MIN), 64 * KiB);
	size = min_u64(min_u64(size, CHUNK_MAX), max);
	size = max_u64(align_down(size, img->min_block), img->min_block);
	to = min_u64(ra->next + ra->tune.window, img->size);
	if (ra->ahead < to && to - ra->ahead >= min_u64(size, img->size - ra->ahead))
		run_ahead(h, ra->ahead, to, size);
}
