/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * conn.h - one NBD connection: a libnbd handle on the export's loop.
 *
 * Units      bytes; times in nanoseconds.
 * Ownership  a conn is a part of its export.
 * Threads    the loop's thread. The handle is touched by a helper thread only
 *            while `state` is CONN_OPENING or CONN_CLOSING (the hand-over is
 *            ordered by workers_run() and its done).
 * Errors     a broken connection hands its requests back by
 *            conn_events.broken.
 */
#ifndef NBDFS_CONN_H
#define NBDFS_CONN_H

#include "export.h"

enum conn_state { CONN_DOWN, CONN_OPENING, CONN_READY, CONN_CLOSING };

struct conn_ops;

struct conn {
	struct export *x;
	struct engine *e;
	const struct conn_ops *ops;
	enum conn_state state;
	struct nbd_handle *nbd;
	struct loop_watch watch;
	struct loop_timer timer;  /* looks for answers that do not come */
	struct loop_task retire;  /* completions from inside a submit */
	struct req_list flying;	  /* sent, oldest first */
	struct req_list refusals; /* the server is shutting down, it says */
	struct req_done_list completed; /* by libnbd; to be retired */
	unsigned in_flight;
	uint64_t in_flight_bytes;
	uint64_t last_answer;
	uint64_t head_since; /* the first of flying is the first */
	bool ending;	     /* the export closes: do not reopen */
	bool whole;	     /* reads ask for one piece (DF) */
	bool refused;	     /* nothing more is to be sent */
	int left;	     /* for ops->broken: see doubt.h; or -1, */
	const char *why;     /* and why it broke, constant */

	/* for the helper thread, see above */
	struct work work;
	atomic_bool cancel;
	struct server *srv;
	const char *export_name;
	struct connect_opts opts;
	struct nbd_handle *new_nbd;
	struct nbd_caps new_caps;
	struct error err;
	int result;
};

struct conn_ops {
	/* conn_open() has ended: state is CONN_READY or CONN_DOWN.
	 * Clears new_caps. */
	void (*opened)(struct conn *c, int error);
	/* a request has been answered */
	void (*answered)(struct conn *c, struct req *r, int error);
	/* requests may be sent again: they are on `list`, oldest first; takes
	 * c->left */
	void (*broken)(struct conn *c, struct req_list *list);
	/* the handle is closed: state is CONN_DOWN */
	void (*closed)(struct conn *c);
};

void conn_init(struct conn *c, struct export *x, struct engine *e,
	       struct server *srv, const char *export_name,
	       const struct conn_ops *ops);
/* CONN_DOWN -> CONN_OPENING; ops->opened follows, at the deadline at the
 * latest (see connect.h). */
void conn_open(struct conn *c, uint64_t deadline);
/* CONN_DOWN -> CONN_READY with a handle that is ready. */
int conn_adopt(struct conn *c, struct nbd_handle *nbd);
/* Sends r. 0: ops->answered or ops->broken follows, not from inside this
 * call. -errno: libnbd refused it; nothing follows. */
int conn_submit(struct conn *c, struct req *r);
/* Breaks the connection: what is in flight comes back by ops->broken. `why`
 * is logged unless it is NULL. */
void conn_break(struct conn *c, const char *why);
/* Nothing in flight, or after conn_break(): closes in a helper thread. */
void conn_close(struct conn *c);

#endif
