/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * cli.h - the inside of nbdfs-copy: options, ends, lanes.
 *
 * A lane is a thread with a loop, both ends opened on it, and a copy job. Lane
 * 0 is the main thread; it opens the ends first, decides how many lanes there
 * are, and watches over signals and progress. All lanes take their ranges from
 * one cursor.
 *
 * Units      bytes.
 * Ownership  a struct cli outlives all else and is constant after
 *            cli_options(), but for the atomics.
 * Threads    a lane belongs to its thread.
 * Errors     0 or -errno with a text.
 */
#ifndef NBDFS_CLI_H
#define NBDFS_CLI_H

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include "copy.h"
#include "local.h"
#include "opts.h"
#include "progress.h"
#include "verify.h"

#define PROGRAM "nbdfs-copy"
#define SPARSE_DEFAULT 4096
#define LANES_MAX 64

/* Where a thread waits for disks, or deflates. */
#define HELPERS_MIN 4

enum cli_format {
	FORMAT_BY_NAME, /* as options say: none was given */
	FORMAT_RAW,
	FORMAT_VMDK,
	FORMAT_VMDK_STREAM,
};

struct cli {
	bool allocated, dest_is_zero, flush, no_extents, synchronous;
	bool verify, json, verbose, map;
	bool help, version, dump;
	char *dirty; /* the context of --dirty, or NULL */
	bool progress;
	int progress_fd; /* -1: for people */
	bool sparse_set;
	uint32_t sparse, request_size;
	uint64_t queue_size, rate;
	unsigned connections, requests, threads, retries;
	unsigned timeout_ms;		      /* 0: the engine's own */
	unsigned lanes_max, lane_connections; /* from the above */
	unsigned helpers;		      /* threads of a lane */
	enum cli_format source_format, dest_format;
	char *adapter; /* of a VMDK image, or NULL */
	unsigned level;
	struct operands operands;
	const struct operand *source, *dest;
	struct log log;
	/* The last error that the engine told, for the one line at the end. */
	pthread_mutex_t lock;
	char reason[512]; /* lock, while there are threads */
};

enum cli_status { CLI_OK, CLI_FAILED, CLI_USAGE };

/* cli_opts.c */
extern const struct opt cli_table[];
int cli_options(struct cli *cli, int argc, char **argv, struct error *err);
void cli_options_free(struct cli *cli);
void cli_help(FILE *out);

/* cli_end.c: one end of a lane. */
enum end_kind { END_LOCAL, END_NBD, END_NULL };

struct end {
	const struct cli *cli;
	const struct operand *operand;
	bool write;
	enum end_kind kind;
	char label[256];	/* for messages */
	uint64_t size;		/* UINT64_MAX: not known */
	uint32_t preferred;	/* an NBD server's block size, or 0 */
	bool parallel;		/* may be opened by several lanes */
	enum cli_format format; /* not FORMAT_BY_NAME */
	bool complete;		/* written to its end: can be read */
	struct local local;
	struct engine *engine;
	struct catalog *catalog;
	struct image *image;
	struct handle *handle;
	struct blockdev *dev;
};

/* Both may block, and run the loop. */
int end_open_source(struct end *e, const struct cli *cli, struct loop *loop,
		    struct error *err);
int end_open_dest(struct end *e, const struct cli *cli,
		  const struct end *source, struct loop *loop,
		  struct error *err);
/* The same end once more, for another lane. */
int end_open_again(struct end *e, const struct end *first, struct loop *loop,
		   struct error *err);
/* Makes e->dev. */
int end_device(struct end *e, struct loop *loop, struct workers *workers,
	       struct error *err);
/* Makes e->dev again, for reading, with nothing remembered of its contents. */
int end_reopen(struct end *e, struct loop *loop, struct workers *workers,
	       struct error *err);
/* Leaves servers politely; runs the loop. NULL or half open is allowed. */
int end_close(struct end *e, struct loop *loop, struct error *err);

/* True for a file, device or pipe. */
bool cli_is_local(const struct operand *operand);

/* cli_vmdk.c: for end_*() where the format is not raw. */
enum cli_format cli_format_of(const struct cli *cli,
			      const struct operand *operand, bool write);
int vmdk_open_source(struct end *e, struct error *err);
int vmdk_open_dest(struct end *e, const struct end *source, struct error *err);
int vmdk_device(struct end *e, struct loop *loop, struct workers *workers,
		struct error *err);

/* What all lanes share. */
struct shared {
	const struct cli *cli;
	uint64_t size;	/* UINT64_MAX: not known */
	uint64_t piece; /* what a lane takes at a time */
	uint32_t sparse;
	unsigned lanes;
	atomic_uint_fast64_t cursor;
	atomic_bool stop;
};

struct lane {
	struct shared *shared;
	struct loop *loop;
	struct workers *workers;
	struct pool *pool;
	struct end src, dst;
	/* the copy */
	struct copy_job *job;
	uint64_t window; /* found by the jobs before it; 0: not yet */
	atomic_uint_fast64_t finished; /* bytes, for progress */
	bool running;		       /* until its last piece is done */
	/* how it went */
	int result;
	struct error err;
	struct copy_stats stats;
	/* lanes other than the first */
	pthread_t thread;
	bool started;
	struct loop_task stop_task; /* posted to its loop */
	struct loop_task gone_task; /* posted to the first lane's, whose
					 * matter `run` is */
	const struct lane *first;
};

/* cli_lane.c */
int lane_init(struct lane *lane, struct shared *sh, struct error *err);
/* Waits for the thread, if there is one. */
void lane_free(struct lane *lane);
/* Copies pieces until there are none, then stops the loop. */
void lane_copy(struct lane *lane);
void lane_stop(struct lane *lane);
/* fsync, or FLUSH. Runs the loop. */
int lane_flush(struct lane *lane, struct error *err);
/* All is written: completes a destination that needs it; --flush. */
int lane_complete(struct lane *lane, struct error *err);
/* True if the connection to the destination was lost, and with it perhaps
 * what had been written; says so once. */
bool lane_lost(struct lane *lane);
int lane_say_lost(const struct lane *lane, struct error *err);
/* Does all that on a thread of its own. gone_task runs on the first lane's
 * loop when nothing is left to do but lane_free(). */
int lane_start(struct lane *lane, const struct lane *first, struct error *err);

/* cli_range.c: copy_file_range() between two files of one mount. */
struct range_copy {
	struct work work;
	int in, out;
	uint64_t size;
	atomic_uint_fast64_t finished;
	atomic_bool stop;
	int result;	  /* 0 or -errno */
	bool unsupported; /* nothing was copied: read and write */
};
void range_copy_run(struct work *w);
bool range_copy_suits(const struct cli *cli, const struct end *src,
		      const struct end *dst);

/* cli_watch.c: signals and progress, on the first lane's loop. */
struct watch {
	const struct cli *cli;
	struct loop *loop;
	uint64_t size;
	bool comparing; /* the second pass */
	/* asked for how far it is; told to stop */
	uint64_t (*finished)(void *arg);
	void (*stop)(void *arg);
	void *arg;
	int signal;		   /* that has come */
	struct loop_watch signals; /* fd -1: not watched */
	sigset_t old_mask;
	struct loop_timer hard_stop, timer;
	struct progress progress;
	bool showing;
};
/* Until watch_start(), and not any more after it or when there is something
 * else to say: a signal ends the program with a line. */
void watch_early(bool on);
void watch_start(struct watch *w);
void watch_compare(struct watch *w); /* the second pass begins */
void watch_end(struct watch *w, bool ok);

/* cli_map.c: --map, instead of a copy. Returns the exit status. */
int cli_map(struct cli *cli);

/* cli_run.c: everything after the options. Returns the exit status. */
int cli_run(struct cli *cli);
uint64_t cli_now(void);

#endif
