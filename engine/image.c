/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * image.c - an image's life: handles, opening, deferred errors, the end.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "image_int.h"
#include "util.h"

/* Bounds the clean layer to about 60 MiB. */
#define MAX_EXTENTS ((size_t)1250000)
#define SHUT_PATIENCE (2 * NS_PER_S)

/* ------------------------------------------------------------ requests */

void op_init(struct image_op *op, enum op_kind kind)
{
	if (op->h)
		op->img = op->h->img;
	op->born = image_now(op->img);
	op->kind = kind;
	op->on = NULL;
	op->error = 0;
}

void op_park(struct image_op *op, struct op_list *list)
{
	assert(!op->on);
	TAILQ_INSERT_TAIL(list, op, link);
	op->on = list;
	op->parked = image_now(op->img);
}

void op_unpark(struct image_op *op)
{
	if (!op->on)
		return;
	TAILQ_REMOVE(op->on, op, link);
	op->on = NULL;
}

void op_finish(struct image_op *op, int error)
{
	assert(!op->on);
	op->done(op, error);
}

static void op_resume(struct image_op *op)
{
	switch (op->kind) {
	case OP_READ:
		read_step(container_of(op, struct image_read, op));
		break;
	case OP_WRITE:
		write_step(container_of(op, struct image_write, op));
		break;
	case OP_SEEK:
		seek_step(container_of(op, struct image_seek, op));
		break;
	case OP_EXTENT:
		extent_step(container_of(op, struct image_extent, op));
		break;
	default:
		assert(0);
	}
}

void op_wake_all(struct op_list *list)
{
	struct op_list todo = TAILQ_HEAD_INITIALIZER(todo);
	struct image_op *op;

	TAILQ_CONCAT(&todo, list, link);
	TAILQ_FOREACH(op, &todo, link)
		op->on = &todo;
	while ((op = TAILQ_FIRST(&todo)) != NULL) {
		op_unpark(op);
		op_resume(op);
	}
}

static void finish_cancelled(struct loop_task *t)
{
	struct image_op *op = container_of(t, struct image_op, task);

	op->done(op, -EINTR);
}

void image_cancel(struct image_op *op)
{
	if (op->task.queued)
		return;
	op_unpark(op);
	switch (op->kind) {
	case OP_READ:
		read_cancel(container_of(op, struct image_read, op));
		break;
	case OP_WRITE:
		write_cancel(container_of(op, struct image_write, op));
		break;
	case OP_SYNC:
		sync_cancel(container_of(op, struct image_sync, op));
		break;
	case OP_ZERO:
		if (!op->state)
			break;
		image_cancel(&container_of(op, struct image_zero, op)->sync.op);
		return;
	default:
		break;
	}
	memset(&op->task, 0, sizeof(op->task));
	op->task.run = finish_cancelled;
	loop_defer(engine_loop(op->img->e), &op->task);
}

void image_withdraw(struct image_op *op)
{
	if (op->on && op->on != &op->img->zero_ops)
		image_cancel(op);
}

uint64_t image_now(const struct image *img)
{
	return loop_now(engine_loop(img->e));
}

/* ----------------------------------------------------- deferred errors */

/* Something acknowledged is lost: every handle that may have written it
 * learns of it, once. */
static void defer(struct image *img, int error, const char *what,
		  const struct handle *except)
{
	struct handle *h;
	bool told = false;

	TAILQ_FOREACH(h, &img->handles, link) {
		if (!(h->flags & OPEN_WRITE))
			continue;
		told = true;
		if (!h->error && h != except)
			h->error = error;
	}
	log_msg(&engine_config(img->e)->log, LOG_LVL_ERROR,
		"%s: %s failed%s: %s", img->file_name, what,
		told ? "" : " after the file was closed", strerror(-error));
}

void image_defer(struct image *img, int error)
{
	defer(img, error, "write", NULL);
}

void image_defer_flush(struct image *img, int error,
		       const struct handle *except)
{
	defer(img, error, "flush", except);
}

void image_defer_range(struct image *img, uint64_t start, uint64_t end,
		       int error)
{
	struct image_op *op;

	TAILQ_FOREACH(op, &img->zero_ops, link) {
		const struct image_zero *z =
			container_of(op, struct image_zero, op);

		if (z->offset < end && start < z->offset + z->len)
			op->error = error;
	}
	image_defer(img, error);
}

int handle_error_peek(const struct handle *h)
{
	return h->error;
}

int handle_error_take(struct handle *h)
{
	int error = h->error;

	h->error = 0;
	return error;
}

int handle_error_hear(struct handle *h)
{
	return h->late ? handle_error_peek(h) : handle_error_take(h);
}

bool handle_wrote(const struct handle *h)
{
	return h->wrote;
}

struct image *handle_image(struct handle *h)
{
	return h->img;
}

/* --------------------------------------------------------------- events */

static bool wants_status(const struct image *img)
{
	return export_caps(img->x)->status &&
	       !engine_config(img->e)->no_extents;
}

static int take_caps(struct image *img)
{
	const struct nbd_caps *caps = export_caps(img->x);

	if (img->opened)
		return 0;
	img->clean = extent_map_new(caps->size, MAX_EXTENTS);
	if (!img->clean)
		return -ENOMEM;
	img->size = caps->size;
	img->min_block = caps->min_block;
	img->can_status = wants_status(img);
	img->read_only = caps->read_only || img->marked ||
			 engine_config(img->e)->read_only;
	if (!caps->zero)
		img->zero_way = ZERO_BY_WRITES;
	else if (!caps->fast_zero)
		img->zero_way = ZERO_BY_COMMAND;
	if (caps->description && !img->description[0]) {
		char *d = strdup(caps->description);

		if (d) {
			free(img->description);
			img->description = d;
		}
	}
	img->opened = true;
	return 0;
}

static void forget_all(struct image *img)
{
	struct handle *h;

	status_forget(img);
	TAILQ_FOREACH(h, &img->handles, link)
		readahead_drop(h);
	chunks_taint(img, 0, UINT64_MAX);
}

static int open_one(struct image *img, struct open_req *r)
{
	struct handle *h;

	if ((r->flags & OPEN_WRITE) && img->read_only)
		return -EROFS;
	h = calloc(1, sizeof(*h));
	if (!h)
		return -ENOMEM;
	/* Close-to-open: another client may have written since. */
	forget_all(img);
	if (TAILQ_EMPTY(&img->handles))
		img->can_status = wants_status(img);
	h->img = image_ref(img);
	h->flags = r->flags;
	TAILQ_INIT(&h->ra.chunks);
	TAILQ_INSERT_TAIL(&img->handles, h, link);
	r->handle = h;
	return 0;
}

static void finish_open(struct image *img, struct open_req *r, int error,
			const struct error *why)
{
	TAILQ_REMOVE(&img->opens, r, link);
	r->handle = NULL;
	if (error && why)
		r->err = *why;
	if (!error)
		error = open_one(img, r);
	if (error && !why)
		error_set(&r->err, "%s: %s", img->file_name, strerror(-error));
	if (!error)
		status_scan(img);
	r->done(r, error);
	image_unref(img);
}

static void on_opened(void *arg, int error, const struct error *why)
{
	struct image *img = arg;
	struct open_req *r;

	if (!error)
		error = take_caps(img);
	image_ref(img);
	while ((r = TAILQ_FIRST(&img->opens)) != NULL && !r->task.queued)
		finish_open(img, r, error, why);
	image_unref(img);
}

static void on_lost(void *arg)
{
	struct image *img = arg;

	if (!img->opened)
		return;
	forget_all(img);
	img->breaks++;
	if (img->completed > img->flushed && export_caps(img->x)->flush) {
		img->flushed = img->completed;
		img->losses++;
		image_defer(img, -EIO);
	}
}

static const struct export_events export_events = {
	.opened = on_opened,
	.lost = on_lost,
};

/* -------------------------------------------------- opening and closing */

static void open_ready(struct loop_task *t)
{
	struct open_req *r = container_of(t, struct open_req, task);

	finish_open(r->img, r, take_caps(r->img), NULL);
}

void image_open(struct open_req *r)
{
	struct image *img = image_ref(r->img);

	r->handle = NULL;
	r->err.text[0] = '\0';
	memset(&r->task, 0, sizeof(r->task));
	if (img->shutting) {
		TAILQ_INSERT_TAIL(&img->opens, r, link);
		finish_open(img, r, -EIO, NULL);
	} else if (export_ready(img->x)) {
		TAILQ_INSERT_HEAD(&img->opens, r, link);
		r->task.run = open_ready;
		loop_defer(engine_loop(img->e), &r->task);
	} else {
		TAILQ_INSERT_TAIL(&img->opens, r, link);
		export_open(img->x);
	}
}

struct closing {
	struct image_sync sync;
};

/* Who could be told of an error has been. */
static void closing_done(struct image_op *op, int error)
{
	struct image *img = op->img;

	(void)error;
	free(container_of(op, struct closing, sync.op));
	image_unref(img);
}

static bool image_dirty(const struct image *img)
{
	return img->nready || img->nzeroes || img->nflight || img->dirty.root ||
	       (img->completed > img->flushed &&
		!engine_config(img->e)->no_flush);
}

/* What the end of a handle, or of the image, asks for. */
static unsigned end_flags(const struct image *img)
{
	return engine_config(img->e)->no_flush ? SYNC_DRAIN : SYNC_FLUSH;
}

bool image_in_use(const struct image *img)
{
	return img->refs > 1 || image_dirty(img);
}

void handle_close(struct handle *h)
{
	struct image *img = h->img;
	struct closing *c;

	TAILQ_REMOVE(&img->handles, h, link);
	readahead_drop(h);
	if ((h->flags & OPEN_WRITE) && image_dirty(img)) {
		c = calloc(1, sizeof(*c));
		if (c) {
			c->sync.op.img = image_ref(img);
			c->sync.op.done = closing_done;
			c->sync.flags = end_flags(img);
			image_sync(&c->sync);
		}
	}
	if (h->error)
		log_msg(&engine_config(img->e)->log, LOG_LVL_ERROR,
			"%s: closed with a write error that no fsync has "
			"reported: %s",
			img->file_name, strerror(-h->error));
	free(h);
	image_unref(img);
}

/* ----------------------------------------------------------------- end */

static void image_free(struct image *img)
{
	struct dext *d;
	struct wop *w;
	struct chunk *c;
	struct epoch *ep;

	loop_timer_cancel(engine_loop(img->e), &img->ask_timer);
	loop_timer_cancel(engine_loop(img->e), &img->send_timer);
	loop_timer_cancel(engine_loop(img->e), &img->zero_timer);
	loop_timer_cancel(engine_loop(img->e), &img->shut_timer);
	while ((d = TAILQ_FIRST(&img->spare_dexts)) != NULL) {
		TAILQ_REMOVE(&img->spare_dexts, d, link);
		free(d);
	}
	while ((w = TAILQ_FIRST(&img->spare_wops)) != NULL) {
		TAILQ_REMOVE(&img->spare_wops, w, link);
		free(w);
	}
	while ((c = TAILQ_FIRST(&img->spare_chunks)) != NULL) {
		TAILQ_REMOVE(&img->spare_chunks, c, link);
		free(c);
	}
	while ((ep = TAILQ_FIRST(&img->epochs)) != NULL) {
		TAILQ_REMOVE(&img->epochs, ep, link);
		free(ep);
	}
	extent_map_free(img->clean);
	export_free(img->x);
	free(img->file_name);
	free(img->export_name);
	free(img->description);
	free(img);
}

static void on_closed(void *arg)
{
	image_free(arg);
}

struct image *image_ref(struct image *img)
{
	img->refs++;
	return img;
}

void image_unref(struct image *img)
{
	assert(img->refs > 0);
	if (--img->refs == 0)
		export_close(img->x, on_closed, img);
}

static void on_shut_closed(void *arg)
{
	struct image *img = arg;
	void (*done)(void *, int) = img->shut_done;

	img->shut_done = NULL;
	done(img->shut_arg, img->shut_error);
	image_unref(img);
}

static void shut_drained(void *arg)
{
	struct image *img = arg;

	loop_timer_cancel(engine_loop(img->e), &img->shut_timer);
	export_close(img->x, on_shut_closed, img);
}

static void shut_impatient(struct loop_timer *t)
{
	struct image *img = container_of(t, struct image, shut_timer);

	export_abort(img->x);
}

/* Questions and reads may still be on their way. Nobody wants their answers,
 * but there are servers that die of a client that is gone when they answer. */
static void shut_drain(struct image *img)
{
	uint64_t limit = engine_config(img->e)->timeout_ms * NS_PER_MS;

	img->shut_timer.fire = shut_impatient;
	loop_timer_set(engine_loop(img->e), &img->shut_timer,
		       min_u64(limit, SHUT_PATIENCE));
	export_drain(img->x, shut_drained, img);
}

static void shut_synced(struct image_op *op, int error)
{
	struct image *img = op->img;

	if (error && !img->shut_error)
		img->shut_error = error;
	shut_drain(img);
}

/* A slow server that goes on answering gets the time that it needs: a second
 * signal ends the wait. */
static void shut_late(struct loop_timer *t)
{
	struct image *img = container_of(t, struct image, shut_timer);
	uint64_t answers = export_stats(img->x)->answers;

	if (answers != img->shut_answers) {
		img->shut_answers = answers;
		loop_timer_set(engine_loop(img->e), t,
			       engine_config(img->e)->timeout_ms * NS_PER_MS);
		return;
	}
	log_msg(&engine_config(img->e)->log, LOG_LVL_ERROR,
		"%s: the server does not answer: up to %llu bytes of data "
		"and %u zero ranges were not written",
		img->file_name, (unsigned long long)img->queued, img->nzeroes);
	img->shut_error = -EIO;
	export_abort(img->x);
}

void image_shutdown(struct image *img, void (*done)(void *arg, int error),
		    void *arg)
{
	uint64_t limit = engine_config(img->e)->timeout_ms * NS_PER_MS;
	uint64_t spent = image_now(img) - engine_ending_since(img->e);

	image_ref(img);
	img->shutting = true;
	img->shut_done = done;
	img->shut_arg = arg;
	img->shut_timer.fire = shut_late;
	if (image_dirty(img)) {
		img->shut_answers = export_stats(img->x)->answers;
		loop_timer_set(engine_loop(img->e), &img->shut_timer,
			       limit - min_u64(limit / 2, spent));
		img->shut_sync = (struct image_sync){
			.op = { .done = shut_synced, .img = img },
			.flags = end_flags(img),
		};
		image_sync(&img->shut_sync);
	} else {
		shut_drain(img);
	}
}

/* ------------------------------------------------------------ creation */

static void image_init(struct image *img)
{
	TAILQ_INIT(&img->handles);
	TAILQ_INIT(&img->opens);
	TAILQ_INIT(&img->askers);
	TAILQ_INIT(&img->zero_ops);
	TAILQ_INIT(&img->ready);
	TAILQ_INIT(&img->zeroes);
	TAILQ_INIT(&img->blocked);
	TAILQ_INIT(&img->epochs);
	TAILQ_INIT(&img->syncs);
	TAILQ_INIT(&img->spare_dexts);
	TAILQ_INIT(&img->spare_wops);
	TAILQ_INIT(&img->spare_chunks);
	TAILQ_INIT(&img->reading);
	tree_init(&img->dirty);
	tree_init(&img->flight);
	tree_init(&img->chunks);
	status_init(img);
}

struct image *image_new(struct engine *e, struct server *srv,
			const struct export_entry *entry, const char *file_name,
			struct nbd_handle *keep,
			const struct nbd_caps *keep_caps, struct error *err)
{
	struct image *img = calloc(1, sizeof(*img));

	if (!img)
		goto fail;
	img->refs = 1;
	img->e = e;
	image_init(img);
	img->size = entry->size;
	img->marked = entry->marked;
	img->read_only = entry->read_only || img->marked ||
			 engine_config(e)->read_only;
	img->file_name = strdup(file_name);
	img->export_name = strdup(entry->name);
	img->description = strdup(entry->description ? entry->description : "");
	img->x = export_new(e, srv, entry->name,
			    img->marked ? engine_config(e)->meta_context : NULL,
			    &export_events, img);
	if (!img->file_name || !img->export_name || !img->description ||
	    !img->x || !epoch_current(img))
		goto fail_free;
	if (keep) {
		export_adopt(img->x, keep, keep_caps);
		if (take_caps(img))
			goto fail_adopted;
	}
	return img;

fail_adopted:
	image_unref(img);
	error_set(err, "%s: out of memory", file_name);
	return NULL;
fail_free:
	image_free(img);
fail:
	if (keep)
		nbd_close(keep);
	error_set(err, "%s: out of memory", file_name);
	return NULL;
}

void image_relist(struct image *img, const struct export_entry *entry)
{
	char *d;

	if (img->opened)
		return;
	if (entry->size_known)
		img->size = entry->size;
	img->read_only = entry->read_only || img->marked ||
			 engine_config(img->e)->read_only;
	d = strdup(entry->description ? entry->description : "");
	if (d) {
		free(img->description);
		img->description = d;
	}
}

/* ----------------------------------------------------------- accessors */

const char *image_name(const struct image *img)
{
	return img->file_name;
}

const char *image_export(const struct image *img)
{
	return img->export_name;
}

const char *image_description(const struct image *img)
{
	return img->description;
}

uint64_t image_size(const struct image *img)
{
	return img->size;
}

bool image_read_only(const struct image *img)
{
	return img->read_only;
}

unsigned image_losses(const struct image *img)
{
	return img->losses;
}

bool image_marked(const struct image *img)
{
	return img->marked;
}

uint64_t image_blocks(const struct image *img)
{
	uint64_t all = max_u64(1, img->size / 512);
	uint64_t data;

	if (img->size == 0)
		return 0;
	if (img->opened && !img->can_status)
		return all;
	if (img->opened && extent_bytes(img->clean, EXTENT_UNKNOWN) == 0) {
		data = extent_bytes(img->clean, EXTENT_DATA);
		return max_u64(1, data / 512);
	}
	if (img->blocks_known)
		return img->blocks;
	return all > 1 ? all - 1 : 1;
}
