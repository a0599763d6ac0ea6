/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * copy_int.h - the inside of a copy job: copy.c decides what is next, and
 * copy_op.c carries it out.
 *
 * The range is cut into slots, in order: a piece of data that is read into a
 * buffer, looked through for zeroes, and written; or a run of zeroes. Each
 * request to a device is an op of one slot.
 *
 * Units      bytes; offsets are those inside the range.
 * Ownership  all belongs to the job.
 * Threads    the job's loop.
 * Errors     0 or -errno.
 */
#ifndef NBDFS_COPY_INT_H
#define NBDFS_COPY_INT_H

#include "copy.h"
#include "tune.h"
#include "walk.h"

enum op_kind { OP_READ, OP_WRITE, OP_ZERO };

struct slot {
	TAILQ_ENTRY(slot) order; /* in the range */
	TAILQ_ENTRY(slot) ready; /* has something to be written */
	struct copy_job *job;
	uint64_t offset, len;
	uint64_t cursor;  /* bytes that were handed on */
	uint64_t began;	  /* when it was issued */
	struct buf *buf;  /* NULL: zeroes */
	unsigned pending; /* ops */
	bool is_ready;	  /* in the list of ready ones */
	bool failed, finished;
};

struct op {
	struct dev_io io;
	TAILQ_ENTRY(op) link; /* free ones, or those to be retried */
	struct slot *slot;
	enum op_kind kind;
	unsigned tries;
};

TAILQ_HEAD(slot_list, slot);
TAILQ_HEAD(copy_op_list, op);

struct copy_job {
	struct copy_params p;
	/* decided at the start */
	uint32_t request_size;
	unsigned ops_max, slots_max;
	uint64_t zero_max; /* one zero request, at most */
	bool in_order;	   /* the destination is a pipe */
	bool stream;	   /* the source is one */
	uint64_t len;	   /* UINT64_MAX: to the end of a stream */
	bool skip_zeroes;  /* nothing to do where zeroes belong */
	bool scan;	   /* look for zeroes in data */
	uint64_t room;	   /* in the destination */
	/* how far it is */
	struct walk *walk; /* NULL: a stream */
	struct tune tune;
	uint64_t issued; /* the range has slots up to here */
	bool stream_end;
	uint64_t held;	    /* bytes of buffers in slots */
	unsigned in_flight; /* ops */
	unsigned reading;   /* of them, reads */
	unsigned slots;
	struct slot_list order, ready, spare_slots;
	struct copy_op_list spare_ops, retry;
	struct copy_stats stats;
	/* how it ends */
	bool cancelled, stopped, ended;
	int error;
	uint64_t error_offset;
	const char *error_step;
	uint64_t prefix;
	/* driving it */
	bool pumping;
	uint64_t rate_next; /* when the rate allows the next read */
	uint64_t retry_at;
	struct loop_task pump_task, end_task;
	struct loop_timer rate_timer, retry_timer, progress_timer;
};

/* copy.c */
void copy_pump(struct copy_job *job);

/* copy_op.c */
static inline bool copy_stopping(const struct copy_job *job)
{
	return job->error || job->cancelled;
}
void copy_fail(struct copy_job *job, int error, const char *step,
	       uint64_t offset);
/* A new slot at the end of what was issued; -ENOMEM. */
int slot_new(struct copy_job *job, uint64_t len, bool data, struct slot **slot);
void slot_free(struct slot *slot);
/* Reads a slot's data. Needs a free op. */
int slot_read(struct slot *slot);
/* The slot has something to be written. */
void slot_ready(struct slot *slot);
/* Hands on the next piece of what is ready. False where nothing can be. */
bool copy_write_next(struct copy_job *job);
/* Issues an op that failed before. */
void copy_retry_next(struct copy_job *job);
void copy_free_spare(struct copy_job *job);

#endif
