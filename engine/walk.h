/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * walk.h - the runs of data and zeroes of a source, in order, asked ahead.
 *
 * The range is cut into segments; each asks the device for its extents on its
 * own, many at the same time, so that a slow answer delays nobody but the
 * first. A segment whose answers are slow and short is halved.
 *
 * Units      bytes.
 * Ownership  the walk is the caller's; it borrows the device.
 * Threads    the device's loop. `wake` may be called from inside any call
 *            here but walk_peek() and walk_advance().
 * Errors     none: where the device cannot tell, the answer is "data".
 */
#ifndef NBDFS_WALK_H
#define NBDFS_WALK_H

#include "blockdev.h"

struct walk;

struct walk_params {
	struct blockdev *dev;
	uint64_t offset, len; /* inside the device */
	bool no_extents;      /* do not ask: all is data */
	bool marked;	      /* of a device with DEV_HAS_MARKS: what is
					 * not marked is given as zero */
	uint64_t min_hole;    /* shorter zero runs between data are
					 * given as data */
	/* More is known, or, after walk_stop(), nothing is outstanding. */
	void (*wake)(void *arg);
	void *arg;
};

struct walk_run {
	uint64_t offset, len;
	bool zero;
};

struct walk *walk_new(const struct walk_params *p); /* NULL: ENOMEM */
/* The run at the position; false while it is not known, or at the end. It may
 * turn out longer later. */
bool walk_peek(struct walk *w, struct walk_run *run);
/* Moves the position by n, at most the length of the run. */
void walk_advance(struct walk *w, uint64_t n);
bool walk_at_end(const struct walk *w);
void walk_stop(struct walk *w);
bool walk_idle(const struct walk *w); /* nothing outstanding */
void walk_free(struct walk *w);	      /* when idle; NULL is allowed */

#endif
