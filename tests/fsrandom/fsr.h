/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * fsr.h - a seeded random test of files that neither grow nor shrink.
 *
 * Purpose    Operations drawn from a seed are done both to files and to a
 *            model of them in memory, and everything that can be observed of
 *            the files is held against the model.
 * Units      Bytes.
 * Threads    Each worker owns a disjoint part of every file: it changes, and
 *            judges, only the bytes that it owns. Operations on a whole file
 *            (truncation, closing) hold the lock for writing, all others for
 *            reading.
 * Errors     Operations give 0, or -1 once the failure has been printed.
 */
#ifndef FSR_H
#define FSR_H

#include <linux/aio_abi.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/types.h>

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))
#define PAGE ((uint64_t)4096)
#define MAX_IO ((uint64_t)2 << 20)
#define MAX_FILES 2
#define MAX_THREADS 16
#define TRACE_LINES 64
#define TRACE_WIDTH 160
#define MAX_TOUCHED 8

/* The descriptors of each file. They are opened one by one: each is a handle
 * of its own to a file system. */
enum { FD_MAIN, FD_SECOND, FD_DIRECT, FD_SYNC, FD_READ, FD_COUNT };

struct config {
	uint64_t seed;
	uint64_t ops; /* in all threads together */
	unsigned threads;
	uint64_t stripe; /* 0: one part for each thread */
	uint64_t size;	 /* what the files must have; 0: any */
	uint64_t max_io;
	unsigned check_every; /* whole file compared so often */
	unsigned pause_ms;    /* a pause is at most so long */
	unsigned itimer_ms;   /* a signal so often; 0: none */
	bool plain;	      /* a local file plays the disk */
	bool verbose;
	bool settle;		    /* msync before a truncation */
	const char *only, *without; /* names of operations, comma between */
	const char *at_reopen;
	bool lossy;	  /* the disk may fail: see lossy.c */
	unsigned seconds; /* end after so long; 0: by ops */
};

struct rng {
	uint64_t state;
};

struct file {
	unsigned index;
	const char *path;
	const char *initial; /* known contents, or NULL */
	const char *result;  /* where the model goes, or NULL */
	uint64_t size;
	uint8_t *model;
	uint32_t *by;	/* operation that last changed it */
	uint8_t *map;	/* NULL: no shared mapping */
	bool map_dirty; /* written through it, not synced */
	int fd[FD_COUNT];
	uint8_t *base;	 /* what is durable; see lossy.c */
	uint64_t synced; /* all up to this operation is durable */
	uint64_t cut;	 /* operation that last truncated it */
};

/* What an operation may make of a range. */
struct change {
	TAILQ_ENTRY(change) link;
	const struct file *f;
	uint64_t op, off, len;
	uint8_t *data; /* NULL: zeroes */
	bool durable;
};
TAILQ_HEAD(changes, change);

struct ctx {
	struct config cfg;
	struct file file[MAX_FILES];
	unsigned nfiles;
	pthread_rwlock_t lock;
	pthread_mutex_t trace_lock; /* trace[], printing */
	char trace[TRACE_LINES][TRACE_WIDTH];
	uint64_t traced;
	atomic_uint_fast64_t next_op;
	atomic_bool failed;
	struct worker *worker;
	int64_t start;		    /* seconds */
	pthread_mutex_t sync_lock;  /* see sync_fd() */
	pthread_mutex_t past_lock;  /* past, base and synced of files */
	struct changes past;	    /* since what is durable, in order */
	atomic_uint_fast64_t heard; /* errors since the last recovery */
	atomic_bool lost;	    /* some worker waits for a recovery */
	uint64_t recoveries;
};

struct range {
	uint64_t off, len; /* len 0: nothing suitable */
};

/* What the current operation may have changed when it fails. */
struct touched {
	struct file *f;
	struct range r;
};

struct worker {
	struct ctx *c;
	unsigned id;
	pthread_t thread;
	struct rng rng;
	atomic_uint_fast64_t op; /* number of the current operation */
	const char *op_name;
	uint8_t *buf; /* more than max_io, page-aligned */
	aio_context_t aio;
	uint64_t hot[8]; /* edges of earlier ranges */
	unsigned next_hot;
	struct touched touched[MAX_TOUCHED];
	unsigned ntouched;
	bool lost;    /* it failed in a way that is allowed: until recover() */
	bool unheard; /* but without an error */
};

struct op {
	const char *name;
	unsigned weight;
	bool exclusive; /* holds off the other workers */
	bool single;	/* only where there is one worker */
	bool mapped;	/* needs a mapping */
	bool paged;	/* and each page one owner */
	bool fixed;	/* only on files of fixed size */
	int (*run)(struct worker *w, struct file *f);
};

/* gen.c: what is drawn from the seed */
uint64_t rng_next(struct rng *r);
uint64_t rng_below(struct rng *r, uint64_t limit); /* limit > 0 */
bool rng_chance(struct rng *r, unsigned percent);
/* A range that the worker owns, of at most `max` bytes, with both ends on
 * multiples of `align`. */
struct range pick_range(struct worker *w, const struct file *f, uint64_t max,
			uint64_t align);
/* A range that need not be the worker's. */
struct range pick_any(struct worker *w, const struct file *f, uint64_t max,
		      uint64_t align);
/* Fills with random bytes, a constant, zeroes, or a mixture. */
void fill_data(struct worker *w, uint8_t *data, uint64_t len);

/* model.c: the model, and what is said when a file differs from it */
void trace(struct worker *w, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
/* Prints the reason with the recent operations; gives -1. */
int fail(struct worker *w, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
/* The same for a call that set errno; may be allowed by --lossy. */
int fail_errno(struct worker *w, const char *what);
/* For a call that did less than all: allowed by --lossy, where the rest would
 * have failed. */
int fail_short(struct worker *w, const char *what, ssize_t n);
bool owns(const struct worker *w, const struct file *f, uint64_t off);
/* Without stripes: the one part that the worker owns. */
void own_part(const struct worker *w, const struct file *f, uint64_t *lo,
	      uint64_t *hi);
/* The end of the run of bytes from off on that are all owned, or all not. */
uint64_t owned_until(const struct worker *w, const struct file *f,
		     uint64_t off);
void model_write(struct worker *w, struct file *f, uint64_t off,
		 const uint8_t *data, uint64_t len);
void model_zero(struct worker *w, struct file *f, uint64_t off, uint64_t len);
/* Compares the owned bytes of a range with what was found. `all`: the other
 * workers are held off, so that every byte counts. */
int model_check(struct worker *w, struct file *f, uint64_t off,
		const uint8_t *found, uint64_t len, bool all);
/* The first owned byte in [off, end) that is not zero; end if none. */
uint64_t model_data(const struct worker *w, const struct file *f, uint64_t off,
		    uint64_t end);
/* Reads the whole file and compares; the lock is held for writing. */
int check_whole(struct worker *w, struct file *f);

/* files.c: opening and closing */
int file_prepare(struct ctx *c, struct file *f);
int file_open(struct worker *w, struct file *f, bool truncate);
int file_close(struct worker *w, struct file *f);
int file_map(struct worker *w, struct file *f);
int file_save_model(const struct file *f);
/* Some descriptor that can be written to. */
int writable_fd(struct worker *w, const struct file *f);
int any_fd(struct worker *w, const struct file *f);
/* What O_DIRECT asks of offsets and lengths: 1 where it asks nothing. */
uint64_t fd_align(const struct worker *w, const struct file *f, int fd);
const char *fd_name(const struct file *f, int fd);

/* lossy.c: disks that fail */
bool loss_allowed(const struct worker *w, int error);
/* Before a change to `data` (NULL: zeroes): in doubt if the operation fails. */
int may_change(struct worker *w, struct file *f, uint64_t off,
	       const uint8_t *data, uint64_t len);
/* After a change that was durable before it returned. */
int is_durable(struct worker *w, struct file *f, uint64_t off, uint64_t len);
/* True when the byte may be `found`; the operation then gives -1. */
bool doubtful(struct worker *w, const struct file *f, uint64_t off,
	      uint8_t found);
/* The last operation that has ended, as all before it have. */
uint64_t all_ended(const struct ctx *c);
/* All up to that one is durable. With the lock for writing, or from
 * sync_fd(). */
void all_durable(struct worker *w, struct file *f, uint64_t op);
/* fsync or fdatasync. 0, -1. */
int sync_fd(struct worker *w, struct file *f, int fd, bool data);
/* Before a copy inside the server: what is lost later must not spread. */
int settle_range(struct worker *w, struct file *f, uint64_t off, uint64_t len);
/* An operation has failed, and its lock is still held. True: as it may. */
bool op_lost(struct worker *w);
/* Then, without the lock: finds out what there is. */
int recover(struct worker *w);
/* memcpy from or to a mapping. */
int map_copy(struct worker *w, void *to, const void *from, uint64_t len);
int catch_bus_errors(void);

/* The operations, by subject; each table ends with a NULL name. */
extern const struct op io_ops[];    /* ops_io.c */
extern const struct op space_ops[]; /* ops_space.c */
extern const struct op map_ops[];   /* ops_map.c */
extern const struct op whole_ops[]; /* ops_whole.c */

#endif
