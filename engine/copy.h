/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * copy.h - the copy job: moves a range between two block devices.
 *
 * Units      bytes.
 * Ownership  the job is the caller's from copy_start() until `done`; it
 *            borrows the devices. Its buffers come from a pool of the loop.
 * Threads    one job, one loop. Several jobs on several loops may share out
 *            an image between them by ranges.
 * Errors     `done` gets 0 or the first error, after everything in flight has
 *            been drained; error_offset and error_what say where and in which
 *            step.
 */
#ifndef NBDFS_COPY_H
#define NBDFS_COPY_H

#include "blockdev.h"
#include "util.h"

/* Zero runs between data that are shorter are read, unless nobody would find
 * the zeroes again: a request more would cost more. */
#define COPY_SMALL_HOLE (64 * KiB)

struct copy_stats {
	uint64_t read, written; /* data bytes */
	uint64_t zeroed;	/* bytes made zero by zero() */
	uint64_t skipped;	/* zero already: nothing was done */
	uint64_t finished;	/* of the range: done with, whatever way */
};

struct copy_params {
	struct blockdev *src, *dst;
	uint64_t src_offset, dst_offset, len; /* len UINT64_MAX: to the end */
	struct loop *loop;
	struct pool *pool;
	uint32_t request_size; /* 0: adaptive */
	unsigned requests;     /* reads + writes in flight; 0: adaptive */
	uint64_t queue_size;   /* bytes in flight, at most, plus one
					 * request */
	uint64_t window;       /* of an earlier job between the same
					 * ends (copy_window); 0: find it */
	unsigned retries;      /* of a request that fails at an end
					 * with DEV_REMOTE */
	uint32_t sparse;       /* scan data for zero blocks; 0: not */
	bool allocated;	       /* zeroes take space at the destination */
	bool dst_is_zero;      /* zero extents need nothing */
	bool marked;	       /* only what a source with DEV_HAS_MARKS
					 * marks; the rest stays as it is */
	bool no_extents;       /* never ask the source for extents */
	bool synchronous;      /* one request at a time */
	uint64_t rate;	       /* bytes per second; 0: no limit */
	/* progress, on the loop, a few times per second; or NULL */
	void (*progress)(void *arg, const struct copy_stats *stats);
	void (*done)(void *arg, int error, const struct copy_stats *stats);
	void *arg;
};

struct copy_job;

/* Needs src->ops->read and dst->ops->write. -EINVAL where the range is not
 * inside the source, -ENOSPC where it does not fit into the destination (of a
 * source of unknown size that shows while it is copied), -ENOMEM. */
int copy_start(const struct copy_params *p, struct copy_job **job);
/* Stops issuing, drains, then `done` with -EINTR (0 where all was issued and
 * finished before that). */
void copy_cancel(struct copy_job *job);
/* Where it failed, after `done` with an error: offset in the source. */
uint64_t copy_error_offset(const struct copy_job *job);
const char *copy_error_step(const struct copy_job *job); /* "read", ... */
/* The largest n such that all of [0, n) of the range has been finished. */
uint64_t copy_prefix(const struct copy_job *job);
/* After `done`: the bytes in flight that served well; 0: not known. */
uint64_t copy_window(const struct copy_job *job);
void copy_free(struct copy_job *job); /* after `done` */

#endif
