/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "blockdev.h"
#include "util.h"

#ifndef CIFS_SUPER_MAGIC
#define CIFS_SUPER_MAGIC 0xff534d42
#endif
#ifndef SMB2_SUPER_MAGIC
#define SMB2_SUPER_MAGIC 0xfe534d42
#endif
#ifndef FUSE_SUPER_MAGIC
#define FUSE_SUPER_MAGIC 0x65735546
#endif

/* Small enough to stay in the processor's cache between read and write. */
#define PREFERRED (256 * KiB)

struct file_dev {
	struct blockdev dev;
	struct workers *workers;
	char *name;
	int fd;
	bool block;
	uint32_t sector;   /* of a block device */
	bool memory;	   /* in memory: nothing ever waits */
	bool far;	   /* even lseek may wait for a server */
	bool cached_reads; /* reads that need not wait can be told
					 * from those that do */
	/* Learnt by whoever tries first, on any thread. */
	atomic_uint missing; /* DEV_NO_* */
	/* The data run that was found last, on the loop's thread. */
	uint64_t data_start, data_end;
};

static struct file_dev *to_file(struct blockdev *dev)
{
	return container_of(dev, struct file_dev, dev);
}

/* Not there at all, as opposed to not for this range, or not now. */
static bool means_missing(int e)
{
	return e == EOPNOTSUPP || e == ENODEV || e == ENOTTY || e == ENOSYS;
}

/* Another way would meet the same. */
static bool means_trouble(int e)
{
	return e == EIO || e == ENOSPC || e == EDQUOT || e == EFBIG;
}

/* --------------------------------------------------- reading and writing */

static int write_zeroes(struct file_dev *f, uint64_t offset, uint64_t len)
{
	while (len > 0) {
		uint64_t n = min_u64(len, ZERO_BLOCK_SIZE);
		int r = file_write_all(f->fd, zero_block, n, offset);

		if (r < 0)
			return r;
		offset += n;
		len -= n;
	}
	return 0;
}

/* ------------------------------------------------------------------ zero */

/* One rung of the ladder: 0 done, 1 try the next, or the error to report. */
static int rung(struct file_dev *f, unsigned bit, int result)
{
	int e = errno;

	if (result == 0)
		return 0;
	if (means_missing(e))
		atomic_fetch_or(&f->missing, bit);
	return means_trouble(e) ? -e : 1;
}

static bool has(struct file_dev *f, unsigned bits)
{
	return !(atomic_load(&f->missing) & bits);
}

static int do_fallocate(struct file_dev *f, int mode, uint64_t offset,
			uint64_t len)
{
	int r;

	do {
		r = fallocate(f->fd, mode, (off_t)offset, (off_t)len);
	} while (r < 0 && errno == EINTR);
	return r;
}

static int try_punch(struct file_dev *f, uint64_t offset, uint64_t len)
{
	if (!has(f, DEV_NO_PUNCH))
		return 1;
	return rung(f, DEV_NO_PUNCH,
		    do_fallocate(f, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
				 offset, len));
}

static int try_zero_range(struct file_dev *f, uint64_t offset, uint64_t len)
{
	if (!has(f, DEV_NO_ZERO_RANGE))
		return 1;
	return rung(f, DEV_NO_ZERO_RANGE,
		    do_fallocate(f, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE,
				 offset, len));
}

static int try_allocate(struct file_dev *f, uint64_t offset, uint64_t len)
{
	if (f->block || !has(f, DEV_NO_ALLOCATE))
		return 1;
	return rung(f, DEV_NO_ALLOCATE,
		    do_fallocate(f, FALLOC_FL_KEEP_SIZE, offset, len));
}

static int try_punch_allocate(struct file_dev *f, uint64_t offset, uint64_t len)
{
	int r;

	if (f->block || !has(f, DEV_NO_ALLOCATE))
		return 1;
	r = try_punch(f, offset, len);
	return r ? r : try_allocate(f, offset, len);
}

static int try_zeroout(struct file_dev *f, uint64_t offset, uint64_t len)
{
	uint64_t range[2] = { offset, len };

	if (!f->block || !has(f, DEV_NO_ZEROOUT))
		return 1;
	return rung(f, DEV_NO_ZEROOUT, ioctl(f->fd, BLKZEROOUT, range));
}

/* Down the ladder, for a range that is aligned where that matters. */
static int zero_aligned(struct file_dev *f, uint64_t offset, uint64_t len,
			bool allocate)
{
	int r = 1;

	/* A new file has zeroes; space is all that is missing. */
	if (allocate && (f->dev.caps & DEV_IS_ZERO))
		r = try_allocate(f, offset, len);
	if (r == 1 && !allocate)
		r = try_punch(f, offset, len);
	if (r == 1)
		r = try_zero_range(f, offset, len);
	if (r == 1)
		r = try_punch_allocate(f, offset, len);
	if (r == 1)
		r = try_zeroout(f, offset, len);
	if (r == 1)
		r = write_zeroes(f, offset, len);
	return r;
}

static int zero_range(struct file_dev *f, uint64_t offset, uint64_t len,
		      bool allocate)
{
	uint64_t end = offset + len;
	uint64_t first = align_up(offset, f->sector);
	uint64_t last = align_down(end, f->sector);
	int r;

	if (first >= last)
		return write_zeroes(f, offset, len);
	r = write_zeroes(f, offset, first - offset);
	if (r == 0)
		r = zero_aligned(f, first, last - first, allocate);
	if (r == 0)
		r = write_zeroes(f, last, end - last);
	return r;
}

/* --------------------------------------------------------------- extents */

static int perform_extents(struct file_dev *f, struct dev_io *io)
{
	off_t data = (off_t)io->offset, hole;

	if (!io->u.helper.at_data)
		data = lseek(f->fd, (off_t)io->offset, SEEK_DATA);
	io->zero = io->hole = true;
	if (data < 0 && errno == ENXIO) {
		io->run = f->dev.size - io->offset;
		return 0;
	}
	if (data < 0)
		return -errno;
	if ((uint64_t)data > io->offset) {
		io->run = (uint64_t)data - io->offset;
		return 0;
	}
	io->zero = io->hole = false;
	hole = lseek(f->fd, (off_t)io->offset, SEEK_HOLE);
	if (hole < 0)
		return -errno;
	if ((uint64_t)hole <= io->offset)
		return -EIO;
	io->run = (uint64_t)hole - io->offset;
	return 0;
}

/* Keeps what was found: the next questions are about what follows, or about
 * more of the same. */
static void note_extent(struct file_dev *f, struct dev_io *io, int error)
{
	if (error == -EINVAL || error == -EOPNOTSUPP || error == -ENOTTY)
		f->dev.caps &= ~(unsigned)DEV_CAN_EXTENTS;
	if (error)
		return;
	if (io->zero) {
		f->data_start = io->offset + io->run;
		f->data_end = f->data_start;
	} else {
		f->data_start = io->offset;
		f->data_end = io->offset + io->run;
	}
	io->run = min_u64(io->run, io->len);
}

/* ------------------------------------------------------------------- ops */

static int perform_read(struct file_dev *f, struct dev_io *io)
{
	return file_read_all(f->fd, io->data, io->len, io->offset);
}

static int perform_write(struct file_dev *f, struct dev_io *io)
{
	return file_write_all(f->fd, io->data, io->len, io->offset);
}

static int perform_zero(struct file_dev *f, struct dev_io *io)
{
	return zero_range(f, io->offset, io->len, io->flags & DEV_ALLOCATE);
}

static int perform_flush(struct file_dev *f, struct dev_io *io)
{
	(void)io;
	return file_finish(f->fd, true);
}

static int perform_finish(struct file_dev *f, struct dev_io *io)
{
	return file_finish(f->fd, io->flags & DEV_FLUSH);
}

/* A helper does what may wait for a disk. */
#define HELPER(what)                                                       \
	static void help_##what(struct work *w)                            \
	{                                                                  \
		struct dev_io *io =                                        \
			container_of(w, struct dev_io, u.helper.work);     \
                                                                           \
		io->u.helper.error = perform_##what(to_file(io->dev), io); \
	}
HELPER(read)
HELPER(write)
HELPER(zero)
HELPER(flush)
HELPER(finish)
HELPER(extents)

static void helped(struct work *w)
{
	struct dev_io *io = container_of(w, struct dev_io, u.helper.work);

	io->done(io, io->u.helper.error);
}

static void helped_extents(struct work *w)
{
	struct dev_io *io = container_of(w, struct dev_io, u.helper.work);

	note_extent(to_file(io->dev), io, io->u.helper.error);
	io->done(io, io->u.helper.error);
}

static void help(struct file_dev *f, struct dev_io *io,
		 void (*fn)(struct work *), void (*done)(struct work *))
{
	io->u.helper.work.fn = fn;
	io->u.helper.work.done = done;
	workers_run(f->workers, &io->u.helper.work);
}

/* What is in the page cache is read at once: true if that was all. */
static bool read_cached(struct file_dev *f, struct dev_io *io)
{
	struct iovec iov = { .iov_base = io->data, .iov_len = io->len };
	ssize_t n;

	if (!f->cached_reads)
		return false;
	n = preadv2(f->fd, &iov, 1, (off_t)io->offset, RWF_NOWAIT);
	if (n < 0 && (errno == EOPNOTSUPP || errno == ENOSYS))
		f->cached_reads = false;
	return n >= 0 && (uint64_t)n == io->len;
}

static void file_read(struct blockdev *dev, struct dev_io *io)
{
	struct file_dev *f = to_file(dev);

	if (f->memory)
		io->done(io, perform_read(f, io));
	else if (read_cached(f, io))
		io->done(io, 0);
	else
		help(f, io, help_read, helped);
}

static void file_write(struct blockdev *dev, struct dev_io *io)
{
	struct file_dev *f = to_file(dev);

	if (f->memory)
		io->done(io, perform_write(f, io));
	else
		help(f, io, help_write, helped);
}

static void file_zero(struct blockdev *dev, struct dev_io *io)
{
	struct file_dev *f = to_file(dev);

	if (f->memory)
		io->done(io, perform_zero(f, io));
	else
		help(f, io, help_zero, helped);
}

static void file_extents(struct blockdev *dev, struct dev_io *io)
{
	struct file_dev *f = to_file(dev);
	int r;

	if (io->offset >= f->data_start && io->offset < f->data_end) {
		io->zero = io->hole = false;
		io->run = min_u64(f->data_end - io->offset, io->len);
		io->done(io, 0);
		return;
	}
	/* Where a hole ended there is data. */
	io->u.helper.at_data = io->offset == f->data_start;
	if (f->far) {
		help(f, io, help_extents, helped_extents);
		return;
	}
	r = perform_extents(f, io);
	note_extent(f, io, r);
	io->done(io, r);
}

static void file_flush(struct blockdev *dev, struct dev_io *io)
{
	help(to_file(dev), io, help_flush, helped);
}

static void file_finish_submit(struct blockdev *dev, struct dev_io *io)
{
	help(to_file(dev), io, help_finish, helped);
}

static void file_close(struct blockdev *dev)
{
	struct file_dev *f = to_file(dev);

	close(f->fd);
	free(f->name);
	free(f);
}

static const struct blockdev_ops file_ops = {
	.read = file_read,
	.write = file_write,
	.zero = file_zero,
	.extents = file_extents,
	.flush = file_flush,
	.finish = file_finish_submit,
	.close = file_close,
};

/* --------------------------------------------------------------- opening */

/* Where the file lives decides what may wait. */
static void look_at_place(struct file_dev *f)
{
	struct statfs fs;

	f->cached_reads = true;
	if (f->block || fstatfs(f->fd, &fs) < 0)
		return;
	switch ((unsigned long)fs.f_type) {
	case TMPFS_MAGIC:
	case RAMFS_MAGIC:
		f->memory = true;
		break;
	case FUSE_SUPER_MAGIC:
	case NFS_SUPER_MAGIC:
	case CIFS_SUPER_MAGIC:
	case SMB2_SUPER_MAGIC:
		f->far = true;
		break;
	default:
		break;
	}
}

static unsigned file_caps(const struct dev_file_params *p)
{
	unsigned caps = DEV_CAN_SEEK;

	if (p->read)
		caps |= DEV_CAN_READ;
	/* A block device cannot tell, and says that all is data. */
	if (p->read && !p->block)
		caps |= DEV_CAN_EXTENTS;
	if (p->write)
		caps |= DEV_CAN_WRITE | DEV_CAN_ZERO;
	if (p->is_zero)
		caps |= DEV_IS_ZERO;
	return caps;
}

struct blockdev *dev_file_new(const struct dev_file_params *p,
			      struct error *err)
{
	struct file_dev *f = calloc(1, sizeof(*f));
	int sector = 0;

	if (f)
		f->name = strdup(p->name);
	if (!f || !f->name) {
		free(f);
		error_set(err, "%s: out of memory", p->name);
		return NULL;
	}
	f->workers = p->workers;
	f->fd = p->fd;
	f->block = p->block;
	f->sector = 1;
	if (f->block && (ioctl(f->fd, BLKSSZGET, &sector) < 0 || sector < 512 ||
			 !is_pow2((uint64_t)sector)))
		sector = 512;
	if (f->block)
		f->sector = (uint32_t)sector;
	atomic_init(&f->missing, 0);
	/* Nowhere, until a run has been found. */
	f->data_start = UINT64_MAX;
	look_at_place(f);
	f->dev.ops = &file_ops;
	f->dev.name = f->name;
	f->dev.size = p->size;
	f->dev.caps = file_caps(p);
	f->dev.preferred = PREFERRED;
	f->dev.align = f->sector;
	f->dev.depth = 64;
	return &f->dev;
}

unsigned dev_file_missing(const struct blockdev *dev)
{
	const struct file_dev *f = container_of(
		(struct blockdev *)(uintptr_t)dev, struct file_dev, dev);

	return atomic_load(&f->missing);
}
