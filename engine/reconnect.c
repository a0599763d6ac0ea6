/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * reconnect.c - the connections of an export: when they are made, and what
 * happens when one breaks.
 *
 * As long as some connection is up, or one may come up before `retry_until`,
 * requests wait; then they fail with -EIO, and each later one is worth one
 * attempt to connect.
 */
#include <errno.h>
#include <string.h>

#include "export_int.h"

#define BACKOFF_MIN (100 * NS_PER_MS)
#define BACKOFF_MAX (5 * NS_PER_S)
#define CONNECT_MIN (3 * NS_PER_S) /* an attempt gets at least that */
#define MAX_STATUS_TRIES 2	   /* one that nobody needs */
#define BUSY 4			   /* in flight on each: connect another */

unsigned export_count(const struct export *x, enum conn_state state)
{
	unsigned n = 0;

	for (unsigned i = 0; i < x->nconns; i++)
		n += x->conns[i].state == state;
	return n;
}

/* Connecting must not take much longer than there is time to reconnect. */
static void open_conn(struct export *x, struct conn *c)
{
	uint64_t now = loop_now(loop_of(x)), left;
	uint64_t patience = config_of(x)->timeout_ms * NS_PER_MS;

	if (x->retry_until) {
		left = x->retry_until - min_u64(now, x->retry_until);
		patience = min_u64(patience, max_u64(left, CONNECT_MIN));
	}
	conn_open(c, now + patience);
}

static struct conn *first_down(struct export *x)
{
	for (unsigned i = 0; i < x->nconns; i++)
		if (x->conns[i].state == CONN_DOWN)
			return &x->conns[i];
	return NULL;
}

/* An additional connection, where all that are up are busy. */
void export_connect_more(struct export *x)
{
	uint64_t now = loop_now(loop_of(x));
	struct conn *c;

	if (!x->caps.multi_conn || x->aborted || x->closed ||
	    now < x->no_more_until || now < x->rest_until ||
	    export_count(x, CONN_OPENING) || !export_count(x, CONN_READY))
		return;
	for (unsigned i = 0; i < x->nconns; i++)
		if (x->conns[i].state == CONN_READY &&
		    x->conns[i].in_flight < BUSY)
			return;
	c = first_down(x);
	if (c)
		open_conn(x, c);
}

static void connect_first(struct export *x)
{
	struct conn *c;

	if (export_count(x, CONN_OPENING) || export_count(x, CONN_READY) ||
	    x->aborted || x->closed || x->retry.armed)
		return;
	c = first_down(x);
	if (c)
		open_conn(x, c);
	/* else all are closing: on_closed() comes here again */
}

static bool work_waits(const struct export *x)
{
	return !TAILQ_EMPTY(&x->queue) || !TAILQ_EMPTY(&x->background) ||
	       x->want_open;
}

void export_retry(struct loop_timer *t)
{
	struct export *x = container_of(t, struct export, retry);

	if (work_waits(x))
		connect_first(x);
	else
		x->retry_until = 0; /* the next request begins anew */
}

/* Pauses grow, but leave time for some attempts. */
static uint64_t next_pause(const struct export *x, uint64_t pause)
{
	uint64_t max = config_of(x)->reconnect_ms * NS_PER_MS / 4;

	max = max_u64(min_u64(max, BACKOFF_MAX), BACKOFF_MIN);
	return min_u64(pause ? 2 * pause : BACKOFF_MIN, max);
}

/* A server that is shutting down, it says, is left alone for a while, also
 * where it goes on answering others. It may say so for ever. */
static void let_rest(struct export *x)
{
	uint64_t now = loop_now(loop_of(x));

	if (now < x->rest_until)
		return;
	if (now - x->rest_until >= BACKOFF_MAX)
		x->rest = 0;
	x->rest = next_pause(x, x->rest);
	x->rest_until = now + x->rest;
}

static void begin_retrying(struct export *x)
{
	if (x->retry_until == 0)
		x->retry_until = loop_now(loop_of(x)) +
				 config_of(x)->reconnect_ms * NS_PER_MS;
}

static void retry_soon(struct export *x)
{
	uint64_t now = loop_now(loop_of(x));
	uint64_t rest = x->rest_until - min_u64(now, x->rest_until);

	begin_retrying(x);
	loop_timer_set(loop_of(x), &x->retry, max_u64(x->backoff, rest));
	x->backoff = next_pause(x, x->backoff);
}

static void give_up(struct export *x, int error, const struct error *why)
{
	bool told = x->want_open;

	x->broken = true;
	x->retry_until = 0;
	x->last_failure = loop_now(loop_of(x));
	export_fail_all(x);
	x->want_open = false;
	/* Why is said in words: a socket that is not there must not look like
	 * a file that is not there. */
	if (told)
		x->events.opened(x->arg, error == -ENOMEM ? error : -EIO, why);
	else
		log_msg(&config_of(x)->log, LOG_LVL_ERROR, "%s", why->text);
}

static void open_failed(struct export *x, struct conn *c, int error)
{
	uint64_t now = loop_now(loop_of(x));

	if (export_count(x, CONN_READY)) {
		x->no_more_until = now + BACKOFF_MAX;
		return;
	}
	/* It was to be one more, and the others have been lost since. */
	if (x->caps_known && !x->broken)
		begin_retrying(x);
	if (!x->caps_known || x->changed || !server_alive(x->srv) ||
	    x->retry_until == 0 || now + x->backoff >= x->retry_until)
		give_up(x, error, &c->err);
	else
		retry_soon(x);
}

static void on_opened(struct conn *c, int error)
{
	struct export *x = c->x;

	if (error == 0 && (x->aborted || x->closed)) {
		nbd_caps_clear(&c->new_caps);
		conn_close(c);
		return;
	}
	if (error == 0 && !x->caps_known) {
		x->caps = c->new_caps;
		memset(&c->new_caps, 0, sizeof(c->new_caps));
		x->caps_known = true;
	} else if (error == 0 && !nbd_caps_same(&x->caps, &c->new_caps)) {
		error_set(&c->err,
			  "%s: export '%s' is not what it was: its size, "
			  "flags or block sizes have changed",
			  server_label(x->srv), x->name);
		x->changed = true;
		conn_close(c);
		error = -EIO;
	}
	nbd_caps_clear(&c->new_caps);
	if (x->closed) {
		export_close(x, x->closed, x->closed_arg);
		return;
	}
	if (error) {
		open_failed(x, c, error);
		return;
	}
	if (x->stats.reconnects || x->retry_until)
		log_msg(&config_of(x)->log, LOG_LVL_INFO,
			"%s: export '%s': connected", server_label(x->srv),
			x->name);
	x->broken = x->changed = false;
	x->retry_until = 0;
	if (x->want_open) {
		x->want_open = false;
		x->events.opened(x->arg, 0, NULL);
	}
	export_dispatch(x);
}

static unsigned max_tries(const struct req *r)
{
	return r->kind == REQ_STATUS ? MAX_STATUS_TRIES : MAX_TRIES;
}

/* A server that takes connections and never answers a request, or dies of
 * it, must not keep that waiting for ever. Nor one that is shutting down; but
 * the request is not what it dies of, and gets all its time. */
static bool hopeless(struct export *x, struct req *r)
{
	uint64_t now = loop_now(loop_of(x));
	uint64_t limit = config_of(x)->reconnect_ms * NS_PER_MS, age;
	bool first = r->tries + r->refusals == 0;

	if (first)
		r->broken_at = now;
	if (r->refused)
		r->refusals++;
	else
		r->tries++;
	age = now - r->broken_at;
	if (x->aborted || r->tries >= max_tries(r) || (!first && age >= limit))
		return true;
	/* The last attempt comes in time. */
	if (r->refused)
		x->rest_until =
			min_u64(x->rest_until,
				now + max_u64(limit - min_u64(age, limit),
					      BACKOFF_MIN));
	return false;
}

/* r goes to the head of the queue, or its end; or has failed. True: and nobody
 * may have said why. */
static bool again_or_never(struct export *x, struct req *r, bool head)
{
	r->conn = NULL;
	if (hopeless(x, r)) {
		export_fail_lost(x, r);
		return !x->aborted && r->kind != REQ_STATUS;
	}
	if (head)
		TAILQ_INSERT_HEAD(&x->queue, r, link);
	else
		TAILQ_INSERT_TAIL(&x->queue, r, link);
	return false;
}

static void on_broken(struct conn *c, struct req_list *list)
{
	struct export *x = c->x;
	bool left = c->left >= 0, failed = false;
	struct req_list again;
	struct req *r;

	x->stats.reconnects++;
	if (c->refused)
		let_rest(x);
	if (left)
		doubts_ghost(&x->doubts, c->left, list);
	x->events.lost(x->arg);
	x->breaks++;
	TAILQ_INIT(&again);
	doubts_again(&x->doubts, &again);
	while ((r = TAILQ_LAST(list, req_list)) != NULL) {
		TAILQ_REMOVE(list, r, link);
		if (left && !r->refused)
			r->ghost = x->doubts.last;
		failed |= again_or_never(x, r, true);
	}
	/* Not for ever: a server may break with each answer. */
	while ((r = TAILQ_FIRST(&again)) != NULL) {
		TAILQ_REMOVE(&again, r, link);
		r->refused = false;
		failed |= again_or_never(x, r, false);
	}
	if (failed)
		log_msg(&config_of(x)->log, LOG_LVL_ERROR,
			"%s: export '%s': %s", server_label(x->srv), x->name,
			c->why);
	if (x->aborted || x->closed || export_count(x, CONN_READY) ||
	    export_count(x, CONN_OPENING)) {
		export_dispatch(x);
		return;
	}
	if (!server_alive(x->srv)) {
		error_set(&c->err, "%s: the server has ended",
			  server_label(x->srv));
		give_up(x, -EIO, &c->err);
	} else if (work_waits(x)) {
		retry_soon(x);
	}
}

static void on_closed(struct conn *c)
{
	struct export *x = c->x;

	if (x->closed)
		export_close(x, x->closed, x->closed_arg);
	else if (work_waits(x) && !x->aborted)
		connect_first(x);
}

const struct conn_ops export_conn_ops = {
	.opened = on_opened,
	.answered = export_answered,
	.broken = on_broken,
	.closed = on_closed,
};

/* Nothing is connected: begin, or fail what came if that is hopeless. */
void export_wake(struct export *x)
{
	uint64_t now = loop_now(loop_of(x));

	if (export_count(x, CONN_READY) || export_count(x, CONN_OPENING) ||
	    x->retry.armed)
		return;
	if (x->broken && !x->want_open && now - x->last_failure < NS_PER_S) {
		export_fail_all(x);
		return;
	}
	if (!x->broken && x->caps_known)
		begin_retrying(x);
	connect_first(x);
}
