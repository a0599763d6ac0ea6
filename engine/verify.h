/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * verify.h - reads two devices and compares them.
 *
 * Units      bytes.
 * Ownership  the job is the caller's from verify_start() until `done`; it
 *            borrows the devices.
 * Threads    one job, one loop.
 * Errors     `done` gets 0 where both were read to the end, whether or not
 *            they are equal, else -errno.
 */
#ifndef NBDFS_VERIFY_H
#define NBDFS_VERIFY_H

#include "blockdev.h"

struct verify_result {
	bool differs;
	uint64_t offset; /* of the first difference, or of the error */
	unsigned side;	 /* which failed: 0 is a, 1 is b */
	uint64_t finished;
};

struct verify_params {
	struct blockdev *a, *b; /* both can seek and be read */
	uint64_t len;		/* of each, from 0 on */
	struct loop *loop;
	struct pool *pool;
	uint64_t queue_size; /* bytes in flight */
	bool no_extents;     /* read what is said to be zero, too */
	void (*progress)(void *arg, uint64_t finished); /* or NULL */
	void (*done)(void *arg, int error, const struct verify_result *res);
	void *arg;
};

struct verify_job;

int verify_start(const struct verify_params *p, struct verify_job **job);
/* Drains, then `done` with -EINTR. */
void verify_cancel(struct verify_job *job);
void verify_free(struct verify_job *job); /* after `done` */

#endif
