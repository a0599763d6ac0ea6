/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * dirty.c - the dirty layer: queued writes and pending zeroes.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "image_int.h"
#include "util.h"

static struct dext *to_dext(struct tree_node *n)
{
	return n ? container_of(n, struct dext, node) : NULL;
}

struct dext *dirty_at(struct image *img, uint64_t pos)
{
	struct dext *d = to_dext(tree_floor(&img->dirty, pos));

	return d && d->end > pos ? d : NULL;
}

uint64_t dirty_next(struct image *img, uint64_t pos)
{
	struct tree_node *n = tree_ceil(&img->dirty, pos);

	return n ? n->key : UINT64_MAX;
}

/* ---------------------------------------------------------------- lists */

static unsigned *list_count(struct image *img, const struct dext_list *list)
{
	if (list == &img->ready)
		return &img->nready;
	return list == &img->zeroes ? &img->nzeroes : NULL;
}

static void list_leave(struct image *img, struct dext *d)
{
	unsigned *count = list_count(img, d->on);

	TAILQ_REMOVE(d->on, d, link);
	if (count)
		--*count;
	d->on = NULL;
}

static void list_enter(struct image *img, struct dext *d,
		       struct dext_list *list, struct dext *after, bool head)
{
	unsigned *count = list_count(img, list);

	if (after)
		TAILQ_INSERT_AFTER(list, after, d, link);
	else if (head)
		TAILQ_INSERT_HEAD(list, d, link);
	else
		TAILQ_INSERT_TAIL(list, d, link);
	if (count)
		++*count;
	d->on = list;
}

void dirty_park(struct image *img, struct dext *d, struct dext_list *list)
{
	list_leave(img, d);
	list_enter(img, d, list, NULL, true);
}

/* --------------------------------------------------------------- ranges */

static struct dext *dext_get(struct image *img)
{
	struct dext *d = TAILQ_FIRST(&img->spare_dexts);

	if (d)
		TAILQ_REMOVE(&img->spare_dexts, d, link);
	else
		d = malloc(sizeof(*d));
	if (d)
		memset(d, 0, sizeof(*d));
	return d;
}

static void count_epoch(struct dext *d, int by)
{
	if (d->zero)
		d->epoch->zero += by;
	else
		d->epoch->data += by;
}

static void dext_enter(struct image *img, struct dext *d, uint64_t start,
		       uint64_t end, struct epoch *epoch)
{
	struct dext_list *list = d->zero ? &img->zeroes : &img->ready;

	d->end = end;
	d->epoch = epoch;
	d->born = image_now(img);
	tree_insert(&img->dirty, &d->node, start);
	count_epoch(d, 1);
	/* What a sync may wait for already goes first. */
	list_enter(img, d, list, NULL, epoch != epoch_current(img));
	if (!d->zero) {
		img->queued += end - start;
		img->ndata++;
	}
}

struct dext *dirty_add_data(struct image *img, uint64_t start, uint64_t end,
			    struct buf *buf, uint8_t *data, struct epoch *epoch)
{
	struct dext *d = dext_get(img);

	if (!d)
		return NULL;
	d->buf = buf_ref(buf);
	d->data = data;
	dext_enter(img, d, start, end, epoch);
	return d;
}

struct dext *dirty_add_zero(struct image *img, uint64_t start, uint64_t end,
			    unsigned flags, struct epoch *epoch)
{
	struct dext *d = dext_get(img);

	if (!d)
		return NULL;
	d->zero = true;
	d->flags = flags;
	dext_enter(img, d, start, end, epoch);
	return d;
}

void dirty_remove(struct image *img, struct dext *d)
{
	tree_remove(&img->dirty, &d->node);
	list_leave(img, d);
	count_epoch(d, -1);
	if (!d->zero) {
		img->queued -= d->end - d->node.key;
		img->ndata--;
	}
	buf_put(d->buf);
	TAILQ_INSERT_HEAD(&img->spare_dexts, d, link);
}

/* What is left of a large buffer should not keep all of it. */
static void shrink(struct image *img, struct dext *d)
{
	uint64_t len = d->end - d->node.key;
	struct buf *buf;

	if (d->zero || d->buf->size < 64 * KiB || len >= d->buf->size / 4)
		return;
	buf = buf_get(engine_pool(img->e), len);
	if (!buf)
		return;
	memcpy(buf->data, d->data, len);
	buf_put(d->buf);
	d->buf = buf;
	d->data = buf->data;
}

/* d becomes [d, start), and [end, d->end) a range of its own. */
static int split(struct image *img, struct dext *d, uint64_t start,
		 uint64_t end)
{
	struct dext *r = dext_get(img);

	if (!r)
		return -ENOMEM;
	r->zero = d->zero;
	r->flags = d->flags;
	r->end = d->end;
	r->epoch = d->epoch;
	r->born = d->born;
	if (!d->zero) {
		r->buf = buf_ref(d->buf);
		r->data = d->data + (end - d->node.key);
		img->queued -= end - start;
		img->ndata++;
	}
	d->end = start;
	tree_insert(&img->dirty, &r->node, end);
	count_epoch(r, 1);
	list_enter(img, r, d->on, d, false);
	shrink(img, r);
	shrink(img, d);
	return 0;
}

static void cut_head(struct image *img, struct dext *d, uint64_t start)
{
	uint64_t by = start - d->node.key;

	if (!d->zero) {
		d->data += by;
		img->queued -= by;
	}
	tree_rekey(&img->dirty, &d->node, start);
	shrink(img, d);
}

static void cut_tail(struct image *img, struct dext *d, uint64_t end)
{
	if (!d->zero)
		img->queued -= d->end - end;
	d->end = end;
	shrink(img, d);
}

int dirty_carve(struct image *img, uint64_t start, uint64_t end,
		struct epoch **epoch)
{
	struct dext *d = dirty_at(img, start), *next;

	*epoch = NULL;
	if (d && d->node.key < start && d->end > end) {
		*epoch = d->epoch;
		return split(img, d, start, end);
	}
	if (!d)
		d = to_dext(tree_ceil(&img->dirty, start));
	for (; d && d->node.key < end; d = next) {
		next = to_dext(tree_next(&d->node));
		*epoch = epoch_older(*epoch, d->epoch);
		if (d->node.key < start)
			cut_tail(img, d, start);
		else if (d->end > end)
			cut_head(img, d, end);
		else
			dirty_remove(img, d);
	}
	return 0;
}
