/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * export.c - one export: the queue, and what becomes of requests.
 *
 * A request waits in `queue` until a connection has a place for it. When a
 * connection breaks, what it carried goes back to the head of the queue.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "export_int.h"

/* NBD lengths are 32 bits; some servers fail above 2 GiB. */
#define ZERO_LIMIT GiB
#define PIECES_IN_FLIGHT 16 /* of one request that was cut */
/* What is no longer than this is not too long for any server, whatever it
 * says. */
#define SPLIT_MIN (4 * KiB)

/* ------------------------------------------------------------- failing */

static void req_answered(struct export *x, struct req *r, int error);

static void finish_later(struct export *x, struct req *r, int error)
{
	r->error = error;
	TAILQ_INSERT_TAIL(&x->finished, r, link);
	loop_defer(loop_of(x), &x->finish_task);
}

static void on_finish_task(struct loop_task *t)
{
	struct export *x = container_of(t, struct export, finish_task);
	struct req *r;

	while ((r = TAILQ_FIRST(&x->finished)) != NULL) {
		TAILQ_REMOVE(&x->finished, r, link);
		req_answered(x, r, r->error);
	}
	/* What was cut may have more to send, or begin anew. */
	export_dispatch(x);
	if (!TAILQ_EMPTY(&x->queue))
		export_wake(x);
}

void export_fail_lost(struct export *x, struct req *r)
{
	r->lost = true;
	doubts_failed(&x->doubts, r);
	finish_later(x, r, -EIO);
}

static void fail_list(struct export *x, struct req_list *list)
{
	struct req *r;

	while ((r = TAILQ_FIRST(list)) != NULL) {
		TAILQ_REMOVE(list, r, link);
		if (r->cut && r->pieces) {
			/* Its last piece will report it. */
			r->next = r->offset + r->len;
			r->error = -EIO;
			r->lost = true;
		} else {
			export_fail_lost(x, r);
		}
	}
}

void export_fail_all(struct export *x)
{
	fail_list(x, &x->queue);
	fail_list(x, &x->background);
	fail_list(x, &x->doubts.held);
}

/* -------------------------------------------------------------- answers */

/*
 * All pieces are done. What a server has answered is not counted as written
 * before: if one was lost since, it may have taken some of the pieces along,
 * and nobody would ever hear of it. True: r begins anew.
 */
static bool redo(struct export *x, struct req *r)
{
	if (r->error || r->began == x->breaks || (r->flags & REQ_FUA) ||
	    (r->kind != REQ_WRITE && r->kind != REQ_ZERO))
		return false;
	if (x->aborted || ++r->redone >= MAX_TRIES) {
		r->error = -EIO;
		r->lost = true;
		return false;
	}
	r->next = r->offset;
	r->first = true;
	TAILQ_INSERT_HEAD(&x->queue, r, link);
	return true;
}

/*
 * A read or write that the server finds too long (EOVERFLOW) is sent again in
 * two halves, and those after it in pieces of that length. A piece may be cut
 * once more.
 */
static bool split(struct export *x, struct req *r, int error)
{
	uint64_t half = align_down(r->len / 2, x->caps.min_block);
	uint64_t *limit = &x->data_limit[r->kind == REQ_WRITE];

	if (error != -EOVERFLOW || r->cut || x->aborted ||
	    (r->kind != REQ_READ && r->kind != REQ_WRITE))
		return false;
	if (half < max_u64(SPLIT_MIN, x->caps.min_block)) {
		/* It is not the length. */
		*limit = UINT64_MAX;
		return false;
	}
	*limit = min_u64(*limit, half);
	r->cut = r->first = true;
	r->error = 0;
	r->next = r->offset;
	r->pieces = r->redone = 0;
	TAILQ_INSERT_HEAD(&x->queue, r, link);
	return true;
}

static void piece_answered(struct export *x, struct req *piece, int error)
{
	struct req *r = piece->parent;
	bool parked = r->pieces == PIECES_IN_FLIGHT;
	bool unsent = r->next < r->offset + r->len;

	TAILQ_INSERT_HEAD(&x->spare, piece, link);
	if (error && !r->error) {
		r->error = error;
		r->lost = piece->lost;
	}
	if (r->first)
		r->began = x->breaks;
	r->first = false;
	r->pieces--;
	if (x->aborted && unsent && !r->error)
		r->error = -EIO;
	if (r->error && unsent) {
		/* No more of it: take it out of the queue. */
		if (!parked)
			TAILQ_REMOVE(&x->queue, r, link);
		r->next = r->offset + r->len;
		unsent = parked = false;
	}
	if (unsent && parked)
		TAILQ_INSERT_HEAD(&x->queue, r, link);
	if (!unsent && r->pieces == 0 && !redo(x, r))
		req_answered(x, r, r->error);
}

static void req_answered(struct export *x, struct req *r, int error)
{
	if (split(x, r, error))
		return;
	if (error)
		x->stats.errors++;
	if (r->parent)
		piece_answered(x, r, error);
	else
		r->done(r, error);
}

static void on_settled(struct doubts *d, struct req *r)
{
	finish_later(container_of(d, struct export, doubts), r, r->error);
}

void export_answered(struct conn *c, struct req *r, int error)
{
	struct export *x = c->x;

	x->backoff = 0;
	x->stats.answers++;
	r->error = error;
	if (!doubts_keep(&x->doubts, r))
		req_answered(x, r, error);
	export_dispatch(x);
}

/* ------------------------------------------------------------- sending */

static struct conn *pick(struct export *x)
{
	struct conn *best = NULL;

	for (unsigned i = 0; i < x->nconns; i++) {
		struct conn *c = &x->conns[i];

		if (c->state != CONN_READY || c->refused ||
		    c->in_flight >= config_of(x)->requests)
			continue;
		if (!best || c->in_flight_bytes < best->in_flight_bytes ||
		    (c->in_flight_bytes == best->in_flight_bytes &&
		     c->in_flight < best->in_flight))
			best = c;
	}
	return best;
}

static uint64_t req_limit(const struct export *x, const struct req *r)
{
	uint64_t max = x->caps.max_block;

	switch (r->kind) {
	case REQ_READ:
		return min_u64(max, x->data_limit[0]);
	case REQ_WRITE:
		if (r->piece)
			max = min_u64(max,
				      max_u64(r->piece, x->caps.min_block));
		return min_u64(max, x->data_limit[1]);
	case REQ_ZERO:
		return x->zero_limit;
	default:
		return UINT64_MAX;
	}
}

/* The next piece of r; NULL without memory. Takes r out of the queue when
 * nothing is left, or enough of it is in flight. */
static struct req *cut_piece(struct export *x, struct req *r)
{
	uint64_t end = r->offset + r->len;
	struct req *piece = TAILQ_FIRST(&x->spare);

	if (piece)
		TAILQ_REMOVE(&x->spare, piece, link);
	else
		piece = malloc(sizeof(*piece));
	if (!piece)
		return NULL;
	memset(piece, 0, sizeof(*piece));
	piece->kind = r->kind;
	piece->flags = r->flags;
	piece->parent = r;
	piece->offset = r->next;
	piece->len =
		request_cut(r->next, end, req_limit(x, r), x->caps.pref_block) -
		r->next;
	if (r->data)
		piece->data = r->data + (r->next - r->offset);
	r->next += piece->len;
	r->pieces++;
	if (r->next == end || r->pieces == PIECES_IN_FLIGHT)
		TAILQ_REMOVE(&x->queue, r, link);
	return piece;
}

static struct req *next_req(struct export *x)
{
	struct req *r = TAILQ_FIRST(&x->queue), *piece;

	if (!r) {
		r = TAILQ_FIRST(&x->background);
		if (r)
			TAILQ_REMOVE(&x->background, r, link);
		return r;
	}
	if (!r->cut) {
		TAILQ_REMOVE(&x->queue, r, link);
		return r;
	}
	piece = cut_piece(x, r);
	if (!piece && r->pieces == 0) {
		TAILQ_REMOVE(&x->queue, r, link);
		finish_later(x, r, -ENOMEM);
	}
	return piece;
}

void export_dispatch(struct export *x)
{
	struct conn *c;
	struct req *r;
	int err;

	if (x->drained)
		loop_defer(loop_of(x), &x->drain_task);
	if (x->dispatching || x->aborted)
		return;
	x->dispatching = true;
	while ((!TAILQ_EMPTY(&x->queue) || !TAILQ_EMPTY(&x->background)) &&
	       (c = pick(x)) != NULL) {
		r = next_req(x);
		if (!r)
			break;
		x->stats.count[r->kind]++;
		x->stats.bytes[r->kind] += r->len;
		err = conn_submit(c, r);
		if (err == -ENOTCONN) {
			TAILQ_INSERT_HEAD(&x->queue, r, link);
			conn_break(c, "connection lost");
		} else if (err) {
			finish_later(x, r, err);
		}
	}
	x->dispatching = false;
	export_connect_more(x);
}

/* --------------------------------------------------------------- public */

static void enqueue(struct export *x, struct req *r)
{
	TAILQ_INSERT_TAIL(r->flags & REQ_BACKGROUND ? &x->background :
						      &x->queue,
			  r, link);
	if (export_count(x, CONN_READY))
		export_dispatch(x);
	else
		export_wake(x);
}

static void on_released(struct doubts *d, struct req *r)
{
	enqueue(container_of(d, struct export, doubts), r);
}

void export_submit(struct export *x, struct req *r)
{
	r->parent = NULL;
	r->conn = NULL;
	r->error = 0;
	memset(&r->got, 0, sizeof(r->got));
	r->lost = false;
	r->tries = 0;
	r->refusals = 0;
	r->ghost = 0;
	r->pieces = 0;
	r->redone = 0;
	r->first = true;
	r->next = r->offset;
	r->sent = loop_now(loop_of(x));
	if (x->aborted || x->closed) {
		r->cut = false;
		export_fail_lost(x, r);
		return;
	}
	/* On a block of any server, advertised or not: nbdkit 1.32 dies of a
	 * question that ends elsewhere so far out. */
	if (r->kind == REQ_STATUS && !(x->caps_known && x->caps.extended))
		r->len = min_u64(r->len, align_down(UINT32_MAX, 64 * KiB));
	r->cut = r->len > req_limit(x, r);
	if (!doubts_hold(&x->doubts, r))
		enqueue(x, r);
}

void export_open(struct export *x)
{
	if (export_count(x, CONN_READY)) {
		x->events.opened(x->arg, 0, NULL);
		return;
	}
	x->want_open = true;
	export_wake(x);
}

void export_adopt(struct export *x, struct nbd_handle *nbd,
		  const struct nbd_caps *caps)
{
	x->caps = *caps;
	if (caps->description)
		x->caps.description = strdup(caps->description);
	x->caps_known = true;
	/* Where epoll refuses it, the first open connects again. */
	conn_adopt(&x->conns[0], nbd);
}

static void on_drain_task(struct loop_task *t)
{
	struct export *x = container_of(t, struct export, drain_task);
	void (*done)(void *arg) = x->drained;

	for (unsigned i = 0; i < x->nconns; i++)
		if (!TAILQ_EMPTY(&x->conns[i].flying))
			return;
	x->drained = NULL;
	done(x->drained_arg);
}

struct export *export_new(struct engine *e, struct server *srv,
			  const char *name, const char *context,
			  const struct export_events *events, void *arg)
{
	struct export *x = calloc(1, sizeof(*x));

	if (!x)
		return NULL;
	x->e = e;
	x->srv = srv;
	x->context = context;
	x->events = *events;
	x->arg = arg;
	x->zero_limit = ZERO_LIMIT;
	x->data_limit[0] = x->data_limit[1] = UINT64_MAX;
	x->nconns = config_of(x)->connections;
	x->name = strdup(name);
	x->conns = calloc(x->nconns, sizeof(*x->conns));
	if (!x->name || !x->conns) {
		free(x->name);
		free(x->conns);
		free(x);
		return NULL;
	}
	for (unsigned i = 0; i < x->nconns; i++)
		conn_init(&x->conns[i], x, e, srv, x->name, &export_conn_ops);
	TAILQ_INIT(&x->queue);
	TAILQ_INIT(&x->background);
	TAILQ_INIT(&x->finished);
	TAILQ_INIT(&x->spare);
	x->doubts.settled = on_settled;
	x->doubts.released = on_released;
	x->doubts.patience =
		2 * NS_PER_MS *
		max_u64(config_of(x)->reconnect_ms, config_of(x)->timeout_ms);
	doubts_init(&x->doubts, loop_of(x));
	x->finish_task.run = on_finish_task;
	x->drain_task.run = on_drain_task;
	x->retry.fire = export_retry;
	return x;
}

void export_free(struct export *x)
{
	struct req *r;

	if (!x)
		return;
	while ((r = TAILQ_FIRST(&x->spare)) != NULL) {
		TAILQ_REMOVE(&x->spare, r, link);
		free(r);
	}
	loop_timer_cancel(loop_of(x), &x->retry);
	doubts_free(&x->doubts);
	loop_task_cancel(loop_of(x), &x->finish_task);
	for (unsigned i = 0; i < x->nconns; i++)
		loop_task_cancel(loop_of(x), &x->conns[i].retire);
	nbd_caps_clear(&x->caps);
	free(x->conns);
	free(x->name);
	free(x);
}

bool export_ready(const struct export *x)
{
	return export_count(x, CONN_READY) > 0;
}

const struct nbd_caps *export_caps(const struct export *x)
{
	return &x->caps;
}

unsigned export_connections(const struct export *x)
{
	return export_count(x, CONN_READY);
}

const struct export_stats *export_stats(const struct export *x)
{
	return &x->stats;
}

const char *export_context(const struct export *x)
{
	return x->context;
}

const char *export_label(const struct export *x)
{
	return server_label(x->srv);
}

uint64_t export_zero_limit(const struct export *x)
{
	return x->zero_limit;
}

bool export_shrink_zero_limit(struct export *x, uint64_t len)
{
	uint64_t half = align_down(len / 2, x->caps.min_block);

	if (len <= x->caps.max_block || half < x->caps.min_block)
		return false;
	if (half < x->zero_limit)
		x->zero_limit = half;
	return true;
}

static void stop(struct export *x)
{
	x->aborted = true;
	loop_timer_cancel(loop_of(x), &x->retry);
	doubts_settle(&x->doubts);
	export_fail_all(x);
	for (unsigned i = 0; i < x->nconns; i++)
		atomic_store(&x->conns[i].cancel, true);
}

void export_abort(struct export *x)
{
	stop(x);
	for (unsigned i = 0; i < x->nconns; i++)
		if (!TAILQ_EMPTY(&x->conns[i].flying))
			conn_break(&x->conns[i], NULL);
}

void export_drain(struct export *x, void (*done)(void *arg), void *arg)
{
	x->drained = done;
	x->drained_arg = arg;
	stop(x);
	loop_defer(loop_of(x), &x->drain_task);
}

void export_close(struct export *x, void (*done)(void *arg), void *arg)
{
	x->closed = done;
	x->closed_arg = arg;
	loop_timer_cancel(loop_of(x), &x->retry);
	for (unsigned i = 0; i < x->nconns; i++) {
		struct conn *c = &x->conns[i];

		if (c->state == CONN_READY)
			conn_close(c);
		else if (c->state == CONN_OPENING)
			atomic_store(&c->cancel, true);
	}
	if (export_count(x, CONN_DOWN) == x->nconns)
		done(arg);
}
