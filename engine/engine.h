/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * engine.h - everything that fs/ and nbdfs-copy may know of the engine.
 *
 * Conventions, valid for every declaration here unless it says otherwise:
 *
 * Units      Offsets and lengths are bytes, uint64_t. Times are nanoseconds
 *            of CLOCK_MONOTONIC, uint64_t, unless a name ends in _ms.
 * Ownership  A pointer passed in stays the caller's. What a function named
 *            *_new or *_open hands out is given back with *_free or *_close.
 * Threads    A loop and all that was created on it belong to the thread that
 *            runs the loop. Only loop_post(), loop_stop() and log_msg() may
 *            be called from elsewhere. Nothing here takes a lock that is held
 *            across a callback.
 * Errors     0 or -errno. Set-up functions also fill a struct error.
 * Callbacks  `done` is called exactly once for each request that was
 *            accepted, on the loop's thread, and may be called before the
 *            function that submitted returns. The request structure is the
 *            caller's memory: it must stay in place until `done`, is not to
 *            be touched in between, and may be freed or reused in `done`.
 */
#ifndef NBDFS_ENGINE_H
#define NBDFS_ENGINE_H

#include <stdbool.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/types.h>
#include <sys/uio.h>

/* ------------------------------------------------------------- messages */

/* One line for a person: what was being done, to what, and why it failed.
 * No newline. Always terminated; too long texts are cut. */
struct error {
	char text[1024];
};

void error_set(struct error *err, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

enum log_level { LOG_LVL_ERROR, LOG_LVL_WARN, LOG_LVL_INFO, LOG_LVL_DEBUG };

/* Where messages go. `sink` gets one complete line without newline and may be
 * called from any thread; it must not call back into the engine. */
struct log {
	enum log_level level; /* what is above is dropped */
	void (*sink)(void *arg, enum log_level level, const char *line);
	void *arg;
};

void log_msg(const struct log *log, enum log_level level, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
void log_vmsg(const struct log *log, enum log_level level, const char *fmt,
	      va_list ap) __attribute__((format(printf, 3, 0)));

/* ----------------------------------------------------------------- loop */

/* The only scheduler: descriptors (epoll, level-triggered), timers, deferred
 * and posted work. */
struct loop;

struct loop *loop_new(void); /* NULL: errno says why */
void loop_free(struct loop *loop);
/* Runs until loop_stop(). Returns 0, or -errno where epoll itself failed. */
int loop_run(struct loop *loop);
/* Thread-safe and async-signal-safe: loop_run() returns soon. */
void loop_stop(struct loop *loop);
/* The time at which this turn of the loop began: cheap, never goes back. */
uint64_t loop_now(const struct loop *loop);

/* A descriptor under watch. Embed it; fill fd and ready. */
struct loop_watch {
	int fd;
	/* events: the EPOLLIN/EPOLLOUT/EPOLLERR/EPOLLHUP bits that hold */
	void (*ready)(struct loop_watch *w, uint32_t events);
	uint32_t events; /* loop's: what is asked for now */
};

/* EPOLLERR and EPOLLHUP are always reported, asked for or not. */
int loop_watch_add(struct loop *loop, struct loop_watch *w, uint32_t events);
/* Changes what is asked for; costs nothing when it is the same. */
int loop_watch_set(struct loop *loop, struct loop_watch *w, uint32_t events);
/* After this returns, w->ready is not called any more. To be called before
 * the descriptor is closed. */
void loop_watch_del(struct loop *loop, struct loop_watch *w);

/* A one-shot timer. Embed it, zeroed; fill fire. */
struct loop_timer {
	void (*fire)(struct loop_timer *t);
	TAILQ_ENTRY(loop_timer) link; /* loop's */
	uint64_t when;		      /* loop's */
	bool armed;		      /* loop's; others may read */
};

/* (Re)arms: fires once, `delay` ns from now or a little later, never from
 * inside this call. Cancelling a timer that is not armed does nothing. */
void loop_timer_set(struct loop *loop, struct loop_timer *t, uint64_t delay);
void loop_timer_cancel(struct loop *loop, struct loop_timer *t);

/* A piece of work for the loop. Embed it, zeroed; fill run. */
struct loop_task {
	void (*run)(struct loop_task *task);
	STAILQ_ENTRY(loop_task) link; /* loop's */
	bool queued;		      /* loop's */
};

/* Runs the task once, soon, from the loop and not from inside this call.
 * Loop thread only. Deferring a queued task again does nothing. */
void loop_defer(struct loop *loop, struct loop_task *task);
/* The same from any thread. The task must not be queued already. */
void loop_post(struct loop *loop, struct loop_task *task);
/* After this returns the task does not run unless it is queued again. Loop
 * thread only; for both kinds. Cost: the number of queued tasks. */
void loop_task_cancel(struct loop *loop, struct loop_task *task);

/* Helper threads for what may block (name look-up, connecting, nbd_close,
 * local files, FUSE invalidation). Threads are started when needed, `max` at
 * most, and end with workers_free(). */
struct workers;

struct work {
	void (*fn)(struct work *w);   /* runs on a helper thread */
	void (*done)(struct work *w); /* then, on the loop's thread */
	STAILQ_ENTRY(work) link;      /* workers' */
};

struct workers *workers_new(struct loop *loop, unsigned max);
/* Loop thread only. Never fails: waits for a thread if none can be made. */
void workers_run(struct workers *workers, struct work *w);
/* Waits for what runs; what has not begun is dropped, and a `done` that the
 * loop has not delivered yet is dropped too. Not from inside a `done`. */
void workers_free(struct workers *workers);

/* -------------------------------------------------------------- buffers */

/* A page-aligned buffer with a count of holders. Contents are never cleared.
 * One thread at a time: it belongs to the loop of its pool. */
struct buf {
	uint8_t *data;
	size_t size; /* usable bytes at data */
	unsigned refs;
	struct pool *pool;
	LIST_ENTRY(buf) link; /* pool's: free ones of one class */
	TAILQ_ENTRY(buf) age; /* pool's: all free ones */
};

struct pool;

/* Keeps at most `idle` bytes of free buffers for reuse, the ones used last. */
struct pool *pool_new(uint64_t idle);
void pool_free(struct pool *pool); /* all buffers must be back */
/* A buffer of at least `size` bytes, refs 1; NULL without memory. Sizes are
 * rounded up to a class (powers of two from 4 KiB to 64 KiB, then multiples
 * of 64 KiB), so that buffers can be reused. */
struct buf *buf_get(struct pool *pool, size_t size);
struct buf *buf_ref(struct buf *buf);
void buf_put(struct buf *buf);		       /* NULL is allowed */
uint64_t pool_in_use(const struct pool *pool); /* bytes handed out */

/* A megabyte of zeroes that nobody writes to, shared by all. */
#define ZERO_BLOCK_SIZE ((size_t)1 << 20)
extern const uint8_t zero_block[ZERO_BLOCK_SIZE];

/* True if all len bytes are zero. */
bool is_zero(const void *data, size_t len);

/* --------------------------------------------------------------- engine */

/* How the name of a bitmap's metadata context begins. */
#define BITMAP_CONTEXT "qemu:dirty-bitmap:"

/* What all images on one loop share. */
struct engine_config {
	struct log log;
	unsigned connections;	    /* per export, at most; 1 to 64 */
	unsigned requests;	    /* in flight per connection, at most */
	uint64_t read_ahead;	    /* bytes per open file, at most; 0: none */
	uint64_t write_behind;	    /* bytes per export, at most; 0: none */
	unsigned timeout_ms;	    /* an answer later than this: lost */
	unsigned reconnect_ms;	    /* how long lost connections are retried */
	unsigned extent_timeout_ms; /* how long a clean zero is believed */
	unsigned list_timeout_ms;   /* how long a server's list is believed */
	uint64_t min_hole;  /* shorter holes are data to seek and reads */
	bool read_only;	    /* never writes; says so to the server */
	bool detect_zeroes; /* zero blocks in writes become zeroes */
	bool no_extents;    /* never asks for block status */
	/* A bitmap: "qemu:dirty-bitmap:NAME", or NULL; the caller's. Exports
	 * that have it are listed a second time: see image_marked(). */
	const char *meta_context;
	bool only_marked; /* and only so */
	bool no_flush;	  /* only image_sync() makes stable, no close */
	bool no_scan;	  /* no block status that nobody asked for */
};

void engine_config_defaults(struct engine_config *cfg);

struct engine;

struct engine *engine_new(struct loop *loop, const struct engine_config *cfg,
			  struct error *err);
/* All images must be closed or idle: see catalog_shutdown(). */
void engine_free(struct engine *e);
struct loop *engine_loop(struct engine *e);
struct pool *engine_pool(struct engine *e);
struct workers *engine_workers(struct engine *e);
const struct engine_config *engine_config(const struct engine *e);

/* -------------------------------------------------------------- sources */

/* All exports of all sources. A file name is unique within it. */
struct catalog;
struct image;

struct catalog *catalog_new(struct engine *e);
/* Adds an operand: URI or NAME=URI. Checks the form, does not connect. */
int catalog_add_uri(struct catalog *c, const char *operand, struct error *err);
/* Adds a server to be run by socket activation; argv ends with NULL and is
 * copied. The server starts in catalog_load(), as a child of the caller; it is
 * told to end when the thread that called that ends. */
int catalog_add_command(struct catalog *c, char *const argv[],
			struct error *err);
/* Connects to every source and lists what it offers, several at a time.
 * Blocks, at most --timeout for each source; meant for start-up, before the
 * loop runs. Any source that fails fails the whole call with a text. A server
 * that offers nothing is no failure. */
int catalog_load(struct catalog *c, struct error *err);
/* From any thread, while catalog_load() runs: it fails soon. Nothing can be
 * reached by this catalog any more. */
void catalog_cancel(struct catalog *c);
/* True if a list is older than list_timeout_ms and asking again makes sense:
 * not for sources that name their export or file, nor for a server that takes
 * one client only, nor for a while after it could not be reached. */
bool catalog_stale(const struct catalog *c);
/* Lists again in the background; `done` when finished, whatever came of it
 * (a server that cannot be reached keeps its entries). Calls while a refresh
 * is under way join it. */
struct catalog_wait {
	void (*done)(struct catalog_wait *w);
	STAILQ_ENTRY(catalog_wait) link; /* catalog's */
};
void catalog_refresh(struct catalog *c, struct catalog_wait *w);
/* The entries, in the order of their file names. NULL at the end. An image
 * stays valid while somebody holds a reference, even when it is no longer
 * listed. catalog_next() takes any image, also one that is gone. */
struct image *catalog_find(struct catalog *c, const char *file_name);
struct image *catalog_next(struct catalog *c, const struct image *after);
size_t catalog_count(const struct catalog *c);
/* The end begins: --timeout counts from now on. Else catalog_shutdown() begins
 * it. */
void engine_ending(struct engine *e);
uint64_t engine_ending_since(struct engine *e);
/* Writes, zeroes, flushes and disconnects everything. Gives up a server that
 * has answered nothing for --timeout; then ends subprocess servers, which have some seconds to go;
 * then `done`, with the first error. Once. */
void catalog_shutdown(struct catalog *c, void (*done)(void *arg, int error),
		      void *arg);
/* After that, or where the loop has never run. */
void catalog_free(struct catalog *c);

/* ---------------------------------------------------------------- image */

/* One export, seen coherently: reads, seeks and sizes always see what this
 * process has written or zeroed, whether or not the server has it yet. */
struct image;

struct image *image_ref(struct image *img);
void image_unref(struct image *img);
const char *image_name(const struct image *img);	/* the file name */
const char *image_export(const struct image *img);	/* the export name */
const char *image_description(const struct image *img); /* "" if none */
uint64_t image_size(const struct image *img);
/* True if it is what a bitmap marks in an export: the bytes are the export's,
 * but seeks, extents and blocks tell the marked ranges as data and all others
 * as holes. Read-only. Its file name is that of the export, "@", the bitmap's
 * name. */
bool image_marked(const struct image *img);
bool image_read_only(const struct image *img);
/* How often a connection was lost and with it perhaps what had been written and
 * not flushed: then the deferred error of a handle is of that. */
unsigned image_losses(const struct image *img);
/* For stat: 512-byte blocks, by the rule for st_blocks: never waits. */
uint64_t image_blocks(const struct image *img);

/* Counters since the mount, for people. */
struct image_stats {
	uint64_t reads, read_bytes; /* sent to the server */
	uint64_t writes, write_bytes;
	uint64_t zeroes, zero_bytes;
	uint64_t statuses, flushes;
	uint64_t hits, hit_bytes; /* reads answered from read-ahead */
	uint64_t hole_bytes;	  /* reads answered from extents */
	uint64_t reconnects, errors;
	uint64_t zero_skipped_bytes; /* zeroes not sent: were already */
};
void image_get_stats(const struct image *img, struct image_stats *st);

/* What the server said, valid once a handle was opened. */
struct image_info {
	uint32_t min_block, pref_block, max_block; /* effective, never 0 */
	bool can_multi_conn, can_flush, can_fua, can_zero, can_fast_zero;
	bool can_trim, can_status, is_rotational;
	unsigned connections; /* open now */
};
void image_get_info(const struct image *img, struct image_info *info);
/* "rw,flush,fua,...": cut where it does not fit. */
void image_flags_text(const struct image *img, char *out, size_t size);
/* For people: the server's URI without user, password or key files, or the
 * command in brackets. */
const char *image_source(const struct image *img);

/* What is known of the server's contents now: bytes in each state. */
struct image_map {
	uint64_t data, zero, hole, unknown;
	uint64_t extents;
};
void image_get_map(const struct image *img, struct image_map *map);

/* A handle: one open file. Keeps connections open; carries the deferred
 * error and the read-ahead state. */
struct handle;

enum {
	OPEN_WRITE = 1, /* may write; deferred errors are kept */
	OPEN_NO_READAHEAD = 2,
};

struct open_req {
	struct image *img;
	unsigned flags;
	struct handle *handle; /* result */
	void (*done)(struct open_req *r, int error);
	struct error err;	    /* why it failed */
	TAILQ_ENTRY(open_req) link; /* image's */
	struct loop_task task;	    /* image's */
};

/* Opens: connects if need be, drops clean extents and unread read-ahead
 * (close-to-open), starts the background scan of block status. */
void image_open(struct open_req *r);
/* Gives the handle up at once. What it queued is written, its pending zeroes
 * are sent and a FLUSH follows in the background; catalog_shutdown() waits.
 * No request on this handle may be outstanding. */
void handle_close(struct handle *h);
struct image *handle_image(struct handle *h);

/* The deferred error: 0 or -errno. peek: as close(2) reports it. take: as
 * fsync(2) does, which consumes it. Set by anything acknowledged that could
 * not be written, or may have been lost before a FLUSH. */
int handle_error_peek(const struct handle *h);
int handle_error_take(struct handle *h);
/* True if this handle wrote (data) since it was opened. */
bool handle_wrote(const struct handle *h);

/* Every request below starts with this. */
struct image_op {
	void (*done)(struct image_op *op, int error);
	struct handle *h;
	void *user; /* the caller's */
	/* image's own */
	struct image *img;
	TAILQ_ENTRY(image_op) link; /* of the list it waits on, */
	struct op_list *on;	    /* this one; NULL: on none */
	uint64_t parked;	    /* since when */
	uint64_t born;		    /* loop_now() at its start */
	struct loop_task task;
	uint8_t kind, state;
	int error;
};
TAILQ_HEAD(op_list, image_op);

/* Ends a request early: `done` is called soon with -EINTR, unless it has been
 * or is being called with another result. Work that was sent goes on without
 * its caller. Only requests without `dst` (see below) can be cancelled. */
void image_cancel(struct image_op *op);
/* The same for a write or zero of which nothing has been sent or marked yet;
 * any other goes on to its end. */
void image_withdraw(struct image_op *op);

#define READ_MAX_IOV 24

/* Read [offset, offset + len), which must lie inside the image.
 * dst == NULL: the result is iov[0..niov), pieces of shared buffers in order,
 * that stay valid until image_read_release(), which the caller owes after
 * `done` with error 0; where a later part could not be read, len is lowered
 * to the good bytes before it. dst != NULL: all bytes are put there, or it is
 * an error. The handle must not be closed from inside `done`. */
struct image_read {
	struct image_op op;
	uint64_t offset;
	uint32_t len;
	uint8_t *dst;
	struct iovec iov[READ_MAX_IOV];
	int niov;
	/* image's own */
	struct read_piece {
		struct image_read *rd;
		struct chunk *chunk; /* what is waited for, or NULL */
		struct buf *buf;     /* what iov points into, or NULL */
		uint64_t offset;     /* in the image */
		uint32_t len;
		TAILQ_ENTRY(read_piece) link;
	} piece[READ_MAX_IOV];
	int npieces;
	unsigned pending; /* pieces that wait for a chunk */
	uint64_t pos;	  /* up to here, pieces exist */
	struct buf *own;  /* gathers where pieces are too many */
	unsigned asked;	  /* waits for block status, at pos */
	bool stepping;
	bool exact;	/* a part of it is an error */
	bool lost;	/* there was no server to ask */
	int failed;	/* an error, and the first byte of the */
	uint64_t bad;	/* piece that had it */
	uint32_t grain; /* longest piece to ask for */
};
void image_read(struct image_read *rd);
void image_read_release(struct image_read *rd);

enum {
	SYNC_DRAIN = 0,	    /* queued writes and zeroes sent, answered */
	SYNC_FLUSH = 1,	    /* and NBD FLUSH, if anything needs one */
	SYNC_NO_ZEROES = 2, /* leave pending zeroes pending */
	SYNC_OWN = 4,	    /* a part of a write: see below */
};

/* Writes out. `error` is that of this drain or flush itself; the deferred
 * error is asked for separately. A FLUSH that fails is a deferred error of all
 * handles that may write, also of the one that asked for it, unless with
 * SYNC_OWN: `done` has told that one's program then, if all that its handle
 * has changed was to be stable. */
struct image_sync {
	struct image_op op;
	unsigned flags;
	uint64_t epoch;	     /* image's own */
	unsigned losses;     /* image's own, of a write: when it began */
	struct flush *flush; /* image's own */
};
void image_sync(struct image_sync *s);

enum {
	WRITE_DIRECT = 1, /* reply only after the server has answered */
	WRITE_SYNC = 2,	  /* and it is on stable storage */
	WRITE_ANYWAY = 4, /* also while a deferred error is not consumed */
};

/* Write len bytes at data, inside the image. `buf` holds data; the image
 * takes its own reference if it needs one (the caller keeps and puts its
 * own), and nobody may change the bytes while others hold it. buf == NULL:
 * the bytes are copied before this returns. */
struct image_write {
	struct image_op op;
	uint64_t offset;
	uint32_t len;
	unsigned flags;
	const uint8_t *data;
	struct buf *buf;
	/* image's own */
	struct wop *wop;
	bool own; /* buf is a copy of ours */
	struct image_sync sync;
};
void image_write(struct image_write *w);

enum {
	ZERO_NO_HOLE = 1,   /* keep the space (WRITE_ZEROES with NO_HOLE) */
	ZERO_WAIT = 2,	    /* reply only after the server has it */
	ZERO_SYNC = 4,	    /* and it is on stable storage */
	ZERO_HOLE_HINT = 8, /* a punch: space should be given back */
	ZERO_ANYWAY = 16,   /* also while a deferred error is not consumed */
};

/* From now on [offset, offset + len) reads as zero; sent late. Where it waits,
 * it fails if something in its range could not be sent; that is a deferred
 * error as well. */
struct image_zero {
	struct image_op op;
	uint64_t offset, len;
	unsigned flags;
	struct image_sync sync; /* image's own */
};
void image_zero(struct image_zero *z);

/* lseek(2): whence SEEK_DATA or SEEK_HOLE. -ENXIO by its rules. The result is
 * in `result`. Keeps to the budget: after 2 s of asking, SEEK_DATA answers
 * the position reached; SEEK_HOLE goes on. */
struct image_seek {
	struct image_op op;
	uint64_t offset;
	int whence;
	uint64_t result;
	/* image's own */
	uint64_t pos;
	unsigned asked;
};
void image_seek(struct image_seek *s);

/* The kind and length of the run of bytes at offset: for copying. `zero`:
 * reads as zero; `hole`: zero, and known not to take space. len is cut at
 * offset + limit. A failing block status answers "data" up to the limit
 * unless `strict`, never zero. */
struct image_extent {
	struct image_op op;
	uint64_t offset, limit;
	bool strict;
	uint64_t len;
	bool zero, hole;
	unsigned asked; /* image's own */
};
void image_extent(struct image_extent *x);

/* ----------------------------------------------------------- copying */
/* See blockdev.h and copy.h for the copy job. */

#endif
