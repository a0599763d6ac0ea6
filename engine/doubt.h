/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * doubt.h - changes that a server may still make behind our back.
 *
 * A connection that was given up may have a server at its other end that is
 * only frozen, with commands in its socket's buffer. When it goes on, it does
 * them: long after they were sent again on another connection, and over what
 * was written since. So the socket of such a connection is kept as a ghost,
 * half closed, until the server hangs up, which it does when it has read all.
 * Until then nothing newer is sent to the ranges that were sent by it.
 *
 * Units      bytes; times in nanoseconds.
 * Ownership  ghosts own their descriptors; requests stay the export's.
 * Threads    the loop's thread. Callbacks may submit.
 * Errors     none: without memory a ghost is closed at once.
 */
#ifndef NBDFS_DOUBT_H
#define NBDFS_DOUBT_H

#include "export.h"

struct ghost;

struct doubts {
	struct loop *loop;
	uint64_t patience; /* how long a ghost is waited for */
	/* r has been answered, and is in doubt no more */
	void (*settled)(struct doubts *d, struct req *r);
	/* r was held, and may be sent */
	void (*released)(struct doubts *d, struct req *r);

	TAILQ_HEAD(, ghost) ghosts; /* oldest first */
	unsigned nghosts;
	uint64_t last;		  /* number of the newest; from 1 on */
	struct req_list answered; /* sent twice, answered once */
	struct req_list held;	  /* would overtake what failed */
	uint64_t lo, hi;	  /* what failed: the hull, */
	uint64_t upto;		  /* and the ghost that may have it */
	struct loop_timer timer;
};

/* `patience` and the callbacks are set already. */
void doubts_init(struct doubts *d, struct loop *loop);
void doubts_free(struct doubts *d);
/* Takes the socket of a connection that is given up, and had these requests.
 * Its number is d->last, to be put into them. Also where none of them is a
 * change: there are servers that die of a client that does not take their
 * answers. */
void doubts_ghost(struct doubts *d, int fd, const struct req_list *list);
/* r has been answered with r->error. True: it is kept until there is no doubt,
 * then `settled`. */
bool doubts_keep(struct doubts *d, struct req *r);
/* A connection broke, and its server may have forgotten what it had answered:
 * what is kept goes to `list`, to be sent once more. */
void doubts_again(struct doubts *d, struct req_list *list);
/* r is being failed, unanswered. */
void doubts_failed(struct doubts *d, const struct req *r);
/* True: r, which is new, must not be sent yet; then `released`. */
bool doubts_hold(struct doubts *d, struct req *r);
/* At the end: settles all that is kept. What is held stays on d->held. */
void doubts_settle(struct doubts *d);

#endif
