/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Holes: looking for them and making them. */
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <unistd.h>

#include "fs.h"

/* ------------------------------------------------------------------ lseek */

static void seek_done(struct image_op *op, int error)
{
	struct fs_req *r = container_of(op, struct fs_req, u.op);

	if (error)
		fs_answer(r, error);
	else
		fs_answer_offset(r, r->u.seek.result);
	fs_req_free(r);
}

static void seek_now(struct fs_req *r)
{
	/* It was given up while it waited for the pages. */
	if (!r->req) {
		fs_req_free(r);
		return;
	}
	r->give_up = fs_req_cancel_op;
	image_seek(&r->u.seek);
}

/* Dirty pages of a mapping are data that nobody here knows of. */
static void seek_after_pages(struct fs_req *r)
{
	if (fs_inval_wait(r, seek_now) < 0)
		fs_finish(r, -ENOMEM);
}

void fs_op_lseek(fuse_req_t req, fuse_ino_t ino, off_t off, int whence,
		 struct fuse_file_info *fi)
{
	struct fs_file *file = fs_file_of(fi);
	struct fs_req *r;

	(void)ino;
	if (whence != SEEK_DATA && whence != SEEK_HOLE) {
		fuse_reply_err(req, EINVAL);
		return;
	}
	if (off < 0 || (uint64_t)off >= image_size(file->inode->image)) {
		fuse_reply_err(req, ENXIO);
		return;
	}
	r = fs_req_new(fs_of(req), req, file->inode, file);
	if (!r)
		return;
	r->u.seek = (struct image_seek){
		.op = { .done = seek_done, .h = file->handle },
		.offset = (uint64_t)off,
		.whence = whence,
	};
	if (file->inode->writers)
		fs_req_start(r, seek_after_pages, fs_req_detach);
	else
		fs_req_start(r, seek_now, fs_req_cancel_op);
}

/* -------------------------------------------------------------- fallocate */

static void zero_done(struct image_op *op, int error)
{
	struct fs_req *r = container_of(op, struct fs_req, u.op);

	fs_finish(r, error);
}

static void start_zero(struct fs_req *r)
{
	image_zero(&r->u.zero);
}

static void zero_range(struct fs_req *r, uint64_t offset, uint64_t len,
		       unsigned flags)
{
	struct fs_file *file = r->file;

	if (file->flags & (O_SYNC | O_DSYNC))
		flags |= ZERO_SYNC;
	file->wrote = true;
	fs_inode_modified(r->inode);
	r->u.zero = (struct image_zero){
		.op = { .done = zero_done, .h = file->handle },
		.offset = offset,
		.len = len,
		.flags = flags,
	};
	fs_req_start(r, start_zero, fs_req_cancel_op);
}

/* 0 when there is something to zero, 1 when there is nothing to do, or an
 * error. The kernel's own pages are the kernel's affair: it writes and drops
 * them around this request. */
static int check_range(const struct fs_file *file, int mode, uint64_t offset,
		       uint64_t *len)
{
	uint64_t size = image_size(file->inode->image);
	bool inside = range_inside(offset, *len, size);
	bool keep = mode & FALLOC_FL_KEEP_SIZE;

	if (fs_inode_read_only(file->inode))
		return -EROFS;
	if (!file->writer)
		return -EBADF;
	switch (mode & ~FALLOC_FL_KEEP_SIZE) {
	case 0:
		/* Space cannot be had in advance; what there is is there. */
		return inside ? 1 : -EFBIG;
	case FALLOC_FL_ZERO_RANGE:
		if (!inside && !keep)
			return -EFBIG;
		break;
	case FALLOC_FL_PUNCH_HOLE:
		if (!keep)
			return -EINVAL;
		break;
	default:
		return -EOPNOTSUPP;
	}
	if (offset >= size || *len == 0)
		return 1;
	*len = min_u64(*len, size - offset);
	return handle_error_peek(file->handle);
}

void fs_op_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t offset,
		     off_t length, struct fuse_file_info *fi)
{
	struct fs_file *file = fs_file_of(fi);
	uint64_t len = (uint64_t)length;
	struct fs_req *r;
	int error = -EINVAL;

	(void)ino;
	if (offset >= 0 && length >= 0)
		error = check_range(file, mode, (uint64_t)offset, &len);
	if (error == -EOPNOTSUPP) {
		/* Only of what nobody takes for a way to make zeroes. */
		fuse_reply_err(req, EOPNOTSUPP);
		return;
	}
	if (error) {
		fuse_reply_err(req, error > 0 ? 0 : fs_errno(error));
		return;
	}
	r = fs_req_new(fs_of(req), req, file->inode, file);
	if (!r)
		return;
	zero_range(r, (uint64_t)offset, len,
		   mode & FALLOC_FL_PUNCH_HOLE ? ZERO_HOLE_HINT : ZERO_NO_HOLE);
}
