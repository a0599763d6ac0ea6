/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * epoch.c - what a sync waits for: epochs of dirty ranges, then FLUSH.
 *
 * Ranges count for the epoch of their oldest byte. sync_check() is called
 * where an operation ends, never in its middle, so that a range that moves
 * from one layer to another is not missed in between.
 */
#include <errno.h>
#include <stdlib.h>

#include "image_int.h"
#include "util.h"

struct flush {
	struct req req;
	struct image *img;
	struct image_sync *s; /* NULL: cancelled */
	uint64_t mark;	      /* img->completed when it was sent, */
	unsigned losses;      /* and img->losses */
};

struct epoch *epoch_current(struct image *img)
{
	struct epoch *ep = TAILQ_LAST(&img->epochs, epoch_list);

	if (ep)
		return ep;
	ep = calloc(1, sizeof(*ep));
	if (ep) {
		ep->id = 1;
		TAILQ_INSERT_TAIL(&img->epochs, ep, link);
	}
	return ep;
}

struct epoch *epoch_older(struct epoch *a, struct epoch *b)
{
	if (!a || !b)
		return a ? a : b;
	return a->id < b->id ? a : b;
}

uint64_t epoch_close(struct image *img)
{
	struct epoch *last = epoch_current(img), *ep;

	if (!last->data && !last->zero)
		return last->id - 1;
	ep = calloc(1, sizeof(*ep));
	if (!ep)
		return last->id; /* the next sync waits for a bit more */
	ep->id = last->id + 1;
	TAILQ_INSERT_TAIL(&img->epochs, ep, link);
	return last->id;
}

static void retire_epochs(struct image *img)
{
	struct epoch *ep;

	while ((ep = TAILQ_FIRST(&img->epochs)) != NULL &&
	       TAILQ_NEXT(ep, link) && !ep->data && !ep->zero) {
		TAILQ_REMOVE(&img->epochs, ep, link);
		free(ep);
	}
}

static bool drained(const struct image *img, const struct image_sync *s)
{
	const struct epoch *ep;

	TAILQ_FOREACH(ep, &img->epochs, link) {
		if (ep->id > s->epoch)
			break;
		if (ep->data || (ep->zero && !(s->flags & SYNC_NO_ZEROES)))
			return false;
	}
	return true;
}

/*
 * What a FLUSH that failed was to make stable may be gone, and the next one may
 * well succeed without it: servers that call fsync hear of an error only once.
 * So this is told to all that may have written it, unless they have been told
 * already, when the connection was lost.
 */
static void flush_failed(struct image *img, const struct image_sync *s,
			 int error)
{
	bool told = s && (s->flags & SYNC_OWN) && s->op.h && !s->op.h->late;

	image_defer_flush(img, error, told ? s->op.h : NULL);
}

static void flush_done(struct req *r, int error)
{
	struct flush *f = container_of(r, struct flush, req);
	struct image *img = f->img;
	struct image_sync *s = f->s;

	if (!error && f->mark > img->flushed)
		img->flushed = f->mark;
	if (error && f->losses == img->losses)
		flush_failed(img, s, error);
	free(f);
	if (s) {
		s->flush = NULL;
		op_finish(&s->op, error);
	}
	image_unref(img);
}

void sync_flush(struct image_sync *s)
{
	struct image *img = s->op.img;
	struct flush *f;

	if (img->completed == img->flushed) {
		op_finish(&s->op, 0);
		return;
	}
	if (!export_caps(img->x)->flush) {
		/* Nothing that could be asked for. */
		img->flushed = img->completed;
		op_finish(&s->op, 0);
		return;
	}
	f = calloc(1, sizeof(*f));
	if (!f) {
		flush_failed(img, s, -ENOMEM);
		op_finish(&s->op, -ENOMEM);
		return;
	}
	f->img = image_ref(img);
	f->s = s;
	f->mark = img->completed;
	f->losses = img->losses;
	f->req.kind = REQ_FLUSH;
	f->req.done = flush_done;
	s->flush = f;
	export_submit(img->x, &f->req);
}

void sync_cancel(struct image_sync *s)
{
	if (s->flush)
		s->flush->s = NULL;
	s->flush = NULL;
}

static void sync_drained(struct image_sync *s)
{
	if (s->flags & SYNC_FLUSH)
		sync_flush(s);
	else
		op_finish(&s->op, 0);
}

void sync_check(struct image *img)
{
	struct image_op *op;
	bool again = true;

	/* A `done` may change the list: begin anew after each. */
	while (again) {
		again = false;
		TAILQ_FOREACH(op, &img->syncs, link) {
			struct image_sync *s =
				container_of(op, struct image_sync, op);

			if (!drained(img, s))
				continue;
			op_unpark(op);
			sync_drained(s);
			again = true;
			break;
		}
	}
	retire_epochs(img);
}

void image_sync(struct image_sync *s)
{
	struct image *img;

	op_init(&s->op, OP_SYNC);
	img = s->op.img;
	s->flush = NULL;
	image_ref(img);
	s->epoch = epoch_close(img);
	img->send_upto = max_u64(img->send_upto, s->epoch);
	if (!(s->flags & SYNC_NO_ZEROES))
		img->zero_upto = max_u64(img->zero_upto, s->epoch);
	op_park(&s->op, &img->syncs);
	image_pump(img);
	sync_check(img);
	image_unref(img);
}
