/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * export_int.h - the inside of an export: export.c has the queue and what
 * becomes of requests, reconnect.c the connections and when to make them.
 *
 * Units      bytes; nanoseconds.
 * Ownership  all belongs to the export.
 * Threads    the export's loop.
 * Errors     0 or -errno.
 */
#ifndef NBDFS_EXPORT_INT_H
#define NBDFS_EXPORT_INT_H

#include "conn.h"
#include "doubt.h"
#include "util.h"

#define MAX_TRIES 8 /* a request that kills its server */

struct export
{
	struct engine *e;
	struct server *srv;
	char *name;
	const char *context; /* or NULL */
	struct export_events events;
	void *arg;

	struct nbd_caps caps;
	bool caps_known;
	uint64_t zero_limit;
	uint64_t data_limit[2]; /* longest read, write that is not refused */

	struct conn *conns;
	unsigned nconns;
	struct req_list queue, background, finished;
	struct req_list spare; /* pieces to be used again */
	struct doubts doubts;
	struct loop_task finish_task;

	struct loop_timer retry; /* the next attempt to connect */
	uint64_t retry_until;	 /* 0: no phase of retrying runs */
	uint64_t backoff;
	uint64_t no_more_until; /* an additional connection failed */
	uint64_t rest_until;	/* the server is shutting down */
	uint64_t rest;
	uint64_t last_failure;
	uint64_t breaks; /* connections that broke */
	bool want_open, broken, aborted, changed;
	bool dispatching;

	void (*closed)(void *arg);
	void *closed_arg;
	void (*drained)(void *arg);
	void *drained_arg;
	struct loop_task drain_task;
	struct export_stats stats;
};

static inline struct loop *loop_of(struct export *x)
{
	return engine_loop(x->e);
}

static inline const struct engine_config *config_of(const struct export *x)
{
	return engine_config(x->e);
}

/* export.c */
/* Sends what waits, as far as there is room on connections. */
void export_dispatch(struct export *x);
/* A request for which there is no connection: -EIO, from the loop; or all that
 * wait. */
void export_fail_lost(struct export *x, struct req *r);
void export_fail_all(struct export *x);
/* A connection has an answer. */
void export_answered(struct conn *c, struct req *r, int error);

/* reconnect.c */
extern const struct conn_ops export_conn_ops;
/* Connections in a state. */
unsigned export_count(const struct export *x, enum conn_state state);
/* An additional connection, where all that are up are busy. */
void export_connect_more(struct export *x);
/* Nothing is connected: begins, or fails what came if that is hopeless. */
void export_wake(struct export *x);
/* The time has come for the next attempt. */
void export_retry(struct loop_timer *t);

#endif
