/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * image_int.h - the inside of an image: one map, one order.
 *
 * What a byte of an export reads as is decided by the first layer that has
 * it:
 *
 *   dirty    queued writes and pending zeroes that have not been sent
 *   flight   WRITE, WRITE_ZEROES and read-modify-writes that are being sent
 *   clean    what the server said it has: unknown, data, zero
 *   chunks   bytes read (ahead) from the server
 *
 * Ranges within a layer never overlap. A dirty range becomes a wop in flight
 * only when nothing in flight overlaps its blocks; so no two commands that
 * change the same block are ever on the wire together, on any connection. A
 * wop stays where it is while its connection is lost and it is sent again:
 * nothing newer overtakes it.
 *
 * Every change taints the questions (block status, reads) that are under way
 * over its range: their answers may be older than the change, and are not
 * kept.
 *
 * Epochs order syncs: a dirty range belongs to the epoch in which its oldest
 * byte was written. A sync closes the current epoch and waits until all up to
 * that one are empty.
 *
 * Units bytes. All of this belongs to the engine's loop; no locks.
 */
#ifndef NBDFS_IMAGE_INT_H
#define NBDFS_IMAGE_INT_H

#include "export.h"
#include "extent.h"
#include "image.h"
#include "tree.h"
#include "tune.h"

enum op_kind {
	OP_READ,
	OP_WRITE,
	OP_ZERO,
	OP_SEEK,
	OP_EXTENT,
	OP_SYNC,
};

/* ------------------------------------------------------------- layers */

struct epoch {
	TAILQ_ENTRY(epoch) link;
	uint64_t id;
	unsigned data, zero; /* dirty ranges and wops that belong to it */
};

/* A dirty range; node.key is its start. */
struct dext {
	struct tree_node node;
	uint64_t end;
	bool zero;
	unsigned flags;	 /* zero: ZERO_NO_HOLE */
	struct buf *buf; /* data: holds the bytes */
	uint8_t *data;	 /* the byte at the start */
	struct epoch *epoch;
	uint64_t born;
	struct dext_list *on; /* ready, zeroes, or a wop's blocked */
	TAILQ_ENTRY(dext) link;
};
TAILQ_HEAD(dext_list, dext);

#define WOP_REQS 4
#define WOP_EDGES 2

/* A command, or several that make up one, in flight; node.key is the start.
 * [start, end) is aligned to blocks and locked while the wop lives. */
struct wop {
	struct tree_node node;
	struct image *img;
	uint64_t end;
	bool zero;
	bool reading;	/* the base of a read-modify-write */
	bool deferred;	/* has acknowledged bytes: errors are deferred */
	unsigned flags; /* REQ_FUA, REQ_NO_HOLE */
	struct buf *buf;
	uint8_t *data; /* the byte at the start */
	struct epoch *epoch;
	struct image_write *owner; /* waits for it, or NULL */
	struct dext_list blocked;  /* wait for its end */
	struct op_list waiters;	   /* the same; readers only while reading */

	/* read-modify-write: [i] is one block; its bytes that are set in the
	 * mask are ours, the others come from base */
	struct wop_edge {
		uint64_t start;
		uint32_t len;
		struct buf *buf; /* base, then mask */
		struct req req;
		struct wop *op;
	} edge[WOP_EDGES];

	/* data: only the first, for all of it; zero: each slot works on
	 * [pos, end) in steps */
	struct wop_slot {
		struct req req;
		struct wop *op;
		uint64_t pos, end;
		int way;
	} slot[WOP_REQS];
	uint64_t pos;	  /* zero: given to slots up to here; */
	bool begun;	  /* some of it is answered, */
	uint64_t breaks;  /* since so many connections broke; */
	unsigned redone;  /* and all of it was, so often */
	uint64_t counted; /* bytes of img->queued */
	unsigned pending;
	int error;
	TAILQ_ENTRY(wop) link; /* spare list */
};
TAILQ_HEAD(wop_list, wop);

/* Bytes being read, or read ahead; node.key is the start. */
struct chunk {
	struct tree_node node;
	struct image *img;
	uint32_t len;
	struct buf *buf; /* NULL: read straight to a reader's dst */
	bool cached;	 /* in img->chunks */
	bool ready;
	bool busy;	      /* its readers are being served */
	struct handle *owner; /* whose read-ahead it is, or NULL */
	uint32_t left;	      /* bytes that nobody has read yet */
	TAILQ_HEAD(, read_piece) waiters;
	TAILQ_ENTRY(chunk) link; /* owner's list, or spare list */
	struct req req;
	uint64_t sent;
};
TAILQ_HEAD(chunk_list, chunk);

#define QUESTIONS 32 /* 128 GiB at once, without extended headers */

/* A block status under way. */
struct question {
	struct image *img;
	struct req req;
	bool busy;
	bool scan;		     /* asked by the background scan */
	uint64_t runs;		     /* in the answer so far */
	uint64_t taint_lo, taint_hi; /* not to be applied: the hull */
	uint32_t stamp;		     /* when it was asked */
};

/* ------------------------------------------------------------- handles */

#define RA_STREAMS 4

/* One reader of a handle, as far as its reads show a pattern. */
struct ra_stream {
	uint64_t first, next; /* of the last read: its start and end */
	uint64_t ahead;	      /* asked up to (backward: down to) here */
	int64_t stride;	      /* from the start of the one before; 0: none */
	unsigned streak;      /* reads that were as expected */
	uint64_t bytes;	      /* of them */
	uint64_t used;	      /* readahead.clock at the last read */
};

struct readahead {
	struct ra_stream stream[RA_STREAMS];
	uint64_t clock;
	struct tune tune;	  /* bytes to keep asked for */
	uint64_t cached;	  /* bytes in chunks of this handle */
	unsigned pending;	  /* of these chunks, not answered yet */
	struct chunk_list chunks; /* oldest first */
};

struct handle {
	struct image *img;
	unsigned flags;
	bool wrote;
	bool late; /* it has changes that nobody waited to be stable */
	int error; /* deferred, not yet consumed */
	struct readahead ra;
	TAILQ_ENTRY(handle) link;
};

/* --------------------------------------------------------------- image */

struct image {
	unsigned refs;
	struct engine *e;
	struct export *x;
	char *file_name, *export_name, *description;
	uint64_t size;
	bool read_only;
	bool opened; /* caps are taken */
	uint32_t min_block;
	bool can_status;
	bool marked; /* the clean layer is a bitmap: zero states are what is
			 * not marked, for seeks and extents only */

	TAILQ_HEAD(, handle) handles;
	TAILQ_HEAD(, open_req) opens;

	/* clean */
	struct extent_map *clean; /* made at the first open */
	struct question question[QUESTIONS];
	uint64_t ask_span;	     /* bytes to ask about at once */
	struct op_list askers;	     /* wait for an answer of any */
	struct loop_timer ask_timer; /* some have waited long enough */
	bool zeroing_waits;	     /* so does the zeroing of pending zeroes */
	struct op_list zero_ops;     /* wait until their range is zero */
	unsigned scan_left;	     /* requests the scan may still send */
	uint64_t scan_pos;
	uint64_t blocks; /* last known count */
	bool blocks_known;
	uint64_t status_time, read_time; /* smoothed, ns */

	/* dirty */
	struct tree dirty;
	struct dext_list ready, zeroes;
	unsigned nready, nzeroes;
	unsigned ndata;		/* dirty ranges that hold data */
	uint64_t queued;	/* bytes of data, dirty and in flight */
	struct op_list blocked; /* writers that wait for room */
	bool unblocking;
	struct tune write_tune; /* how much may be queued */
	uint64_t read_window;	/* what served the last reader; 0: none yet */
	TAILQ_HEAD(epoch_list,
		   epoch) epochs;      /* oldest first; the last is current */
	uint64_t send_upto, zero_upto; /* epochs to send without delay */
	struct op_list syncs;
	struct loop_timer send_timer, zero_timer;
	bool pumping, zero_pumping;
	bool made_data; /* zeroing has queued parts of blocks */

	/* flight */
	struct tree flight;
	unsigned nflight;
	unsigned nzeroing; /* of these, zeroes */
	enum zero_way {
		ZERO_BY_FAST,
		ZERO_BY_COMMAND,
		ZERO_BY_WRITES
	} zero_way;
	uint64_t zero_ask_pos;
	unsigned zero_asked; /* times about zero_ask_pos */
	uint64_t completed;  /* changes the server has answered */
	uint64_t flushed;    /* of these, on stable storage */
	unsigned losses;     /* of what had been answered and not flushed */
	uint64_t breaks;     /* connections that broke */

	/* chunks */
	struct tree chunks;
	struct dext_list spare_dexts;
	struct wop_list spare_wops;
	struct chunk_list spare_chunks, reading;
	struct image_stats stats;

	void (*shut_done)(void *arg, int error);
	void *shut_arg;
	int shut_error;
	struct image_sync shut_sync;
	struct loop_timer shut_timer;
	uint64_t shut_answers; /* when it was set */
	bool shutting;
};

/* image.c */
void image_defer(struct image *img, int error);
/* The same of a FLUSH; `except` (or NULL) hears of it otherwise. */
void image_defer_flush(struct image *img, int error,
		       const struct handle *except);
/* The same of a range, which who waits for zeroes there hears of, too. */
void image_defer_range(struct image *img, uint64_t start, uint64_t end,
		       int error);
/* The program of h hears of the deferred error by a request that was to be
 * stable, and may never call fsync: 0 or -errno, consumed thereby, unless h has
 * changes that are not said to be lost by this. */
int handle_error_hear(struct handle *h);
void op_init(struct image_op *op, enum op_kind kind);
void op_park(struct image_op *op, struct op_list *list);
void op_unpark(struct image_op *op);
void op_finish(struct image_op *op, int error);
/* Goes on with everything on the list, which is emptied first. */
void op_wake_all(struct op_list *list);
uint64_t image_now(const struct image *img);
/* How long answers take: an average that follows; 0: none yet. */
static inline void smooth(uint64_t *avg, uint64_t sample)
{
	*avg = *avg ? (*avg * 7 + sample) / 8 : sample;
}

/* blockstatus.c */
void status_init(struct image *img);
/* The clean layer at pos: ZERO and HOLE only where that is still believed by
 * one who began at `born` (loop_now()). The extent is cut at `end`. */
struct extent status_get(struct image *img, uint64_t pos, uint64_t end,
			 uint64_t born);
/* Asks about pos, unless that is under way. False: cannot be asked. */
bool status_ask(struct image *img, uint64_t pos);
/* The same about len bytes from pos on, and no more. */
bool status_ask_about(struct image *img, uint64_t pos, uint64_t len);
/* Parks op until there is an answer, or it has waited long enough. */
void status_wait(struct image_op *op);
void status_taint(struct image *img, uint64_t start, uint64_t end);
void status_forget(struct image *img);
void status_scan(struct image *img);
void seek_step(struct image_seek *s);
void extent_step(struct image_extent *x);

/* read.c */
void read_step(struct image_read *rd);
void read_cancel(struct image_read *rd);
struct chunk *chunk_new(struct image *img, uint64_t start, uint32_t len,
			uint8_t *dst);
void chunk_submit(struct chunk *c);
void chunk_drop(struct chunk *c);
void chunks_taint(struct image *img, uint64_t start, uint64_t end);
struct chunk *chunk_at(struct image *img, uint64_t pos);

/* readahead.c */
void readahead_note(struct handle *h, uint64_t offset, uint64_t len);
void readahead_drop(struct handle *h);
/* A chunk that was read ahead has been answered. */
void readahead_arrived(struct chunk *c);

/* epoch.c: epochs and syncs */
struct epoch *epoch_current(struct image *img);
struct epoch *epoch_older(struct epoch *a, struct epoch *b);
/* Everything dirty now belongs to a closed epoch; its id. */
uint64_t epoch_close(struct image *img);
/* Completes the syncs that nothing stands in the way of any more. */
void sync_check(struct image *img);
void sync_cancel(struct image_sync *s);
/* Only the FLUSH; completes s. */
void sync_flush(struct image_sync *s);

/* dirty.c: the dirty layer */
struct dext *dirty_at(struct image *img, uint64_t pos);
uint64_t dirty_next(struct image *img, uint64_t pos);
/* A new range, not in the layer yet. Takes its own reference to buf. NULL
 * without memory. */
struct dext *dirty_add_data(struct image *img, uint64_t start, uint64_t end,
			    struct buf *buf, uint8_t *data,
			    struct epoch *epoch);
struct dext *dirty_add_zero(struct image *img, uint64_t start, uint64_t end,
			    unsigned flags, struct epoch *epoch);
void dirty_remove(struct image *img, struct dext *d);
/* Takes [start, end) out of the layer. The oldest epoch of what was there, or
 * NULL, in *epoch. -ENOMEM where a range could not be split: then all is as
 * it was. */
int dirty_carve(struct image *img, uint64_t start, uint64_t end,
		struct epoch **epoch);
/* Moves d to the list, at its head. */
void dirty_park(struct image *img, struct dext *d, struct dext_list *list);

/* writebehind.c */
void write_step(struct image_write *w);
void write_cancel(struct image_write *w);
void image_pump(struct image *img);
/* True if the dirty layer may have one more range, whatever its length. */
bool dirty_has_place(const struct image *img);
void writers_unblock(struct image *img);
/* What a write that was queued is cut into; 0: nothing. */
uint32_t write_piece(const struct image *img);
/* Queued bytes have reached the server: for the window. */
void writes_sent(struct image *img, uint64_t len, uint64_t sent);

/* align.c: commands in flight, read-modify-write */
struct wop *wop_at(struct image *img, uint64_t pos);
struct wop *wop_overlapping(struct image *img, uint64_t start, uint64_t end);
/* Sends d (data), which is taken out of the dirty layer; nothing in flight
 * overlaps its blocks. 0 or -ENOMEM (d stays). */
int wop_send_dirty(struct image *img, struct dext *d);
/* Sends a direct write. 0 or -ENOMEM. */
int wop_send_direct(struct image *img, struct image_write *w);
/* Sends zeroes for [start, end), which is aligned, and out of the dirty
 * layer. 0 or -ENOMEM. */
int wop_send_zero(struct image *img, uint64_t start, uint64_t end,
		  unsigned flags, struct epoch *epoch);
void wop_done(struct wop *op);
void image_block_range(const struct image *img, uint64_t start, uint64_t end,
		       uint64_t *a, uint64_t *b);

/* zeroing.c */
void zero_pump(struct image *img);
void zero_step(struct image_zero *z);
void zero_start(struct wop *op);
/* Marks [start, end) as pending zero. */
int zero_mark(struct image *img, uint64_t start, uint64_t end, unsigned flags);

#endif
