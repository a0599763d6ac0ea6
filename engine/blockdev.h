/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * blockdev.h - what a copy needs of an end point: an asynchronous ops table.
 *
 * Units      bytes, uint64_t.
 * Ownership  a request (struct dev_io) is its submitter's memory and is
 *            untouchable from submission to `done`. Buffers are the
 *            submitter's; they stay valid until `done`.
 * Threads    a blockdev belongs to one loop; calls and `done` on its thread.
 *            `done` may come before the submitting call returns.
 * Errors     0 or -errno; a short read inside the size is -EIO.
 */
#ifndef NBDFS_BLOCKDEV_H
#define NBDFS_BLOCKDEV_H

#include "engine.h"

struct blockdev;

struct dev_io {
	void (*done)(struct dev_io *io, int error);
	struct blockdev *dev; /* set by blockdev_*() */
	uint64_t offset, len;
	uint8_t *data;	 /* read: filled; write: sent */
	struct buf *buf; /* holds data, or NULL */
	unsigned flags;	 /* DEV_* below */
	/* results of extents() */
	uint64_t run; /* length of the run at offset */
	bool zero, hole;
	/* read from a pipe: bytes got; 0 is the end */
	uint64_t got;
	/* the device's own */
	TAILQ_ENTRY(dev_io) link;
	union {
		struct image_op op;
		struct image_read read;
		struct image_write write;
		struct image_zero zero;
		struct image_extent extent;
		struct image_sync sync;
		struct {
			struct work work;
			int error;
			bool at_data;
		} helper;
	} u;
	/* the submitter's */
	void *user;
};

enum {
	DEV_ALLOCATE = 1, /* zero(): keep or make space */
	DEV_FLUSH = 2,	  /* finish(): and all is on stable storage */
};

enum {
	DEV_CAN_READ = 1,
	DEV_CAN_WRITE = 2,
	DEV_CAN_EXTENTS = 4, /* extents() tells holes */
	DEV_CAN_ZERO = 8,    /* zero() beats writing zeroes */
	DEV_CAN_SEEK = 16,   /* else: in order, each byte once */
	DEV_IS_ZERO = 32,    /* destination known to read as zero */
	DEV_HAS_MARKS = 128, /* extents() tells what is not marked as zero,
			      * although it is not */
	DEV_REMOTE = 64,     /* a failure may pass: worth a retry */
};

/* Each entry says what the caller does without it. */
struct blockdev_ops {
	/* Reads all of [offset, offset + len), inside the size. On a pipe: up
	 * to len bytes, offset is only for messages. NULL: no source. */
	void (*read)(struct blockdev *dev, struct dev_io *io);
	/* Writes all bytes. NULL: no destination. */
	void (*write)(struct blockdev *dev, struct dev_io *io);
	/* Makes the range read as zero by the best way there is, whatever it
	 * takes; never leaves old data. NULL: the caller writes zeroes. */
	void (*zero)(struct blockdev *dev, struct dev_io *io);
	/* Kind and length of the run at io->offset, at most io->len bytes.
	 * NULL or an error: the caller takes all for data. */
	void (*extents)(struct blockdev *dev, struct dev_io *io);
	/* All that was written is on stable storage. NULL: nothing to do. */
	void (*flush)(struct blockdev *dev, struct dev_io *io);
	/* All has been written: completes what the format of the destination
	 * needs, with DEV_FLUSH on stable storage. NULL: nothing to do. */
	void (*finish)(struct blockdev *dev, struct dev_io *io);
	/* Requests that wait for somebody at the other end of a pipe are done
	 * with -EINTR, now and from now on; so are writes that have not been
	 * sent. NULL: requests end by themselves. */
	void (*stop)(struct blockdev *dev);
	/* Frees the device. No request is outstanding. May run the loop. */
	void (*close)(struct blockdev *dev);
};

struct blockdev {
	const struct blockdev_ops *ops;
	const char *name;   /* for messages; the device's */
	uint64_t size;	    /* UINT64_MAX: not known (pipe) */
	unsigned caps;	    /* DEV_CAN_* */
	uint32_t preferred; /* request size that suits; 0: any */
	uint32_t align;	    /* offsets and lengths that suit; >= 1 */
	unsigned depth;	    /* requests that can be in flight */
};

static inline void blockdev_read(struct blockdev *dev, struct dev_io *io)
{
	io->dev = dev;
	dev->ops->read(dev, io);
}

static inline void blockdev_write(struct blockdev *dev, struct dev_io *io)
{
	io->dev = dev;
	dev->ops->write(dev, io);
}

static inline void blockdev_zero(struct blockdev *dev, struct dev_io *io)
{
	io->dev = dev;
	dev->ops->zero(dev, io);
}

static inline void blockdev_extents(struct blockdev *dev, struct dev_io *io)
{
	io->dev = dev;
	dev->ops->extents(dev, io);
}

/* NULL is allowed. */
static inline void blockdev_close(struct blockdev *dev)
{
	if (dev)
		dev->ops->close(dev);
}

/* An export; the handle stays the caller's. Writes wait for the server
 * (WRITE_DIRECT); queued data and pending zeroes of the image are seen. */
struct blockdev *dev_image_new(struct handle *h, struct error *err);
/* The device's user is the only one of the handle, and will ask: writes go on
 * after a lost connection, or after one of them has failed. Else that is left
 * to the handle's other user, and they fail until then. */
void dev_image_owns(struct blockdev *dev);
/* True if, since this was asked last, a connection was lost and with it perhaps
 * what had been written and not flushed. For one that owns its handle. */
bool dev_image_lost(struct blockdev *dev);

/* A regular file or block device. `fd` becomes the device's, and is closed
 * with it, when this succeeds. */
struct dev_file_params {
	int fd;
	const char *name;
	uint64_t size;		 /* UINT64_MAX: a file that grows */
	bool block;		 /* a block device */
	bool read, write;	 /* what fd was opened for */
	bool is_zero;		 /* known to read as zero */
	struct workers *workers; /* for what may wait for a disk */
};
struct blockdev *dev_file_new(const struct dev_file_params *p,
			      struct error *err);
/* Which ways of making zeroes a file has turned out not to have: DEV_NO_*;
 * for tests. */
enum {
	DEV_NO_PUNCH = 1,
	DEV_NO_ZERO_RANGE = 2,
	DEV_NO_ALLOCATE = 4,
	DEV_NO_ZEROOUT = 8,
};
unsigned dev_file_missing(const struct blockdev *dev);

/* A pipe, socket, terminal or character device: in order, once. `fd` becomes
 * the device's when this succeeds; flags that others share through it are left
 * as they were found. */
struct blockdev *dev_pipe_new(struct loop *loop, int fd, const char *name,
			      bool write, struct error *err);

/* A destination that forgets everything. */
struct blockdev *dev_null_new(struct error *err);

#endif
