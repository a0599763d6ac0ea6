/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * export.h - one export: its pool of connections and the life of a request.
 *
 * Units      bytes; times in nanoseconds.
 * Ownership  a struct req is the submitter's memory, untouchable from
 *            export_submit() to `done`; its data buffer likewise.
 * Threads    an export belongs to its engine's loop.
 * Errors     0 or -errno in `done`, never from export_submit(). A request
 *            that was in flight on a connection that broke is sent again on
 *            another until the reconnect time is over, or until so many have
 *            broken under it that it seems to be the reason; then -EIO. One
 *            that was refused, with ESHUTDOWN, likewise, but only by time.
 */
#ifndef NBDFS_EXPORT_H
#define NBDFS_EXPORT_H

#include "connect.h"
#include "cover.h"
#include "engine.h"

enum req_kind {
	REQ_READ,
	REQ_WRITE,
	REQ_ZERO,
	REQ_FLUSH,
	REQ_STATUS,
};

enum {
	REQ_FUA = 1,
	REQ_NO_HOLE = 2,
	REQ_FAST = 4,	    /* REQ_ZERO: -ENOTSUP rather than slow */
	REQ_BACKGROUND = 8, /* behind everything else */
};

struct conn;
struct export;

struct req {
	enum req_kind kind;
	unsigned flags;
	uint64_t offset, len; /* aligned to min_block; end may be the size */
	uint8_t *data;	      /* REQ_READ, REQ_WRITE */
	uint32_t piece;	      /* REQ_WRITE: cut into such; 0: need not be */
	/* REQ_STATUS: each run in order, from `offset` on, checked: progress
	 * is certain and nothing lies beyond the size. Must not submit. */
	void (*extent)(struct req *r, uint64_t start, uint64_t end, bool zero,
		       bool hole);
	void (*done)(struct req *r, int error);

	/* the export's own */
	TAILQ_ENTRY(req) link;	     /* queue, or in flight on conn */
	STAILQ_ENTRY(req) done_link; /* conn's list of completed */
	struct conn *conn;
	int64_t cookie;
	uint64_t sent;			 /* when */
	uint64_t covered;		 /* REQ_STATUS: told up to here, */
	uint64_t heard;			 /* answered up to here; between them */
	bool part, part_zero, part_hole; /* a part of a block, all of it so */
	struct cover got;		 /* REQ_READ: answered so far; */
	bool bad;			 /* and wrongly */
	struct req *parent;		 /* of a piece of a larger one */
	uint64_t next;			 /* of a parent: what to split next */
	unsigned pieces;		 /* of a parent: pieces in flight */
	int error;
	bool lost;	    /* failed for want of a connection: */
			    /* for `done` to look at */
	unsigned tries;	    /* connections that broke under it */
	unsigned refusals;  /* answers that the server is shutting down */
	bool refused;	    /* the last was one */
	uint64_t broken_at; /* when the first of them did */
	uint64_t ghost;	    /* and what may be left of the last */
	bool cut;	    /* this is a parent; */
	bool first;	    /* no piece has been answered; */
	uint64_t began;	    /* when one was, in connections broken; */
	unsigned redone;    /* begun anew so often */
	bool whole;	    /* asked for in one piece */
};
TAILQ_HEAD(req_list, req);
STAILQ_HEAD(req_done_list, req);

/* What the owner of an export wants to hear. */
struct export_events {
	/* The first connection is up: caps are valid. error: why not. */
	void (*opened)(void *arg, int error, const struct error *why);
	/* A connection broke: what is believed of the server's contents is
	 * void, what was not flushed may be lost. */
	void (*lost)(void *arg);
};

struct export_stats {
	uint64_t count[REQ_STATUS + 1], bytes[REQ_STATUS + 1];
	uint64_t answers, reconnects, errors;
};

/* `context`: the metadata context that REQ_STATUS is about, a bitmap's (of
 * which what is not marked is told as zero and hole; the caller's, which keeps
 * it); NULL: base:allocation. */
struct export *export_new(struct engine *e, struct server *srv,
			  const char *name, const char *context,
			  const struct export_events *events, void *arg);
/* All requests are done and all connections closed: export_close(). */
void export_free(struct export *x);
/* Takes over a connection that is ready. */
void export_adopt(struct export *x, struct nbd_handle *nbd,
		  const struct nbd_caps *caps);
/* Connects unless it is; events->opened follows, also at once. */
void export_open(struct export *x);
bool export_ready(const struct export *x);
const struct nbd_caps *export_caps(const struct export *x);
unsigned export_connections(const struct export *x);
const struct export_stats *export_stats(const struct export *x);

void export_submit(struct export *x, struct req *r);
/* Fails everything queued or in flight with -EIO from now on (shutdown). */
void export_abort(struct export *x);
/* The same for what is queued; `done` when nothing is in flight any more, on
 * its own or by export_abort(). */
void export_drain(struct export *x, void (*done)(void *arg), void *arg);
/* Disconnects; `done` when all handles are closed. Nothing is in flight. */
void export_close(struct export *x, void (*done)(void *arg), void *arg);

/* The longest WRITE_ZEROES: halved where the server finds one too long. */
uint64_t export_zero_limit(const struct export *x);
bool export_shrink_zero_limit(struct export *x, uint64_t len);
/* For messages. */
const char *export_context(const struct export *x);
const char *export_label(const struct export *x);

/* request.c: pure. The end of the first piece of [offset, end): at most
 * `limit` bytes, ending on a multiple of `align` where that is possible. */
uint64_t request_cut(uint64_t offset, uint64_t end, uint64_t limit,
		     uint64_t align);

#endif
