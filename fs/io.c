/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "fs.h"

/* A write at least this long keeps the buffer that it came in; a shorter one
 * is copied, so that it does not hold a megabyte for little. */
#define TAKE_OVER (256 * KiB)

/* ------------------------------------------------------------------- read */

static void read_done(struct image_op *op, int error)
{
	struct fs_req *r = container_of(op, struct fs_req, u.op);

	if (error) {
		fs_finish(r, error);
		return;
	}
	fs_answer_data(r, r->u.read.iov, r->u.read.niov);
	image_read_release(&r->u.read);
	fs_req_free(r);
}

static void start_read(struct fs_req *r)
{
	image_read(&r->u.read);
}

void fs_op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		struct fuse_file_info *fi)
{
	struct fs_file *file = fs_file_of(fi);
	uint64_t end = image_size(file->inode->image);
	uint64_t offset = (uint64_t)off;
	struct fs_req *r;

	(void)ino;
	if (off < 0 || offset >= end) {
		fuse_reply_buf(req, NULL, 0);
		return;
	}
	size = (size_t)min_u64(min_u64(size, end - offset), INT32_MAX);
	if (file->inode->drop)
		fs_drop_touch(file->inode, offset, size);
	/* The kernel names no program when it reads pages. */
	if (!file->direct || !fi->lock_owner)
		file->inode->paged = true;
	r = fs_req_new(fs_of(req), req, file->inode, file);
	if (!r)
		return;
	r->u.read.op.done = read_done;
	r->u.read.op.h = file->handle;
	r->u.read.offset = offset;
	r->u.read.len = (uint32_t)size;
	r->u.read.dst = NULL;
	fs_req_start(r, start_read, fs_req_cancel_op);
}

/* ------------------------------------------------------------------ write */

static void write_next(struct fs_req *r);

static void write_over(struct fs_req *r)
{
	struct fs_req_write *w = &r->u.write;

	r->inode->page_writes -= w->page;
	if (w->error)
		fs_answer(r, w->error);
	else
		fs_answer_count(r, w->count);
	fs_req_free(r);
}

/* True if the answer waits until the kernel has dropped pages: those that it
 * read while they were written past it, or those that it will not believe. */
static bool drops_pages(struct fs_req *r)
{
	struct fs_req_write *w = &r->u.write;
	bool all = !w->error && w->count == w->asked;

	if (!r->inode->paged || w->page || !r->req || w->asked == 0)
		return false;
	if (r->file->direct) {
		if (w->error)
			return false;
		r->give_up = write_over;
		return fs_inval_range(r, w->start, w->asked, write_over) == 0;
	}
	if (all)
		return false;
	r->give_up = NULL;
	return fs_inval_spare(r, w->start, w->asked, write_over) == 0;
}

static void write_end(struct fs_req *r)
{
	if (!drops_pages(r))
		write_over(r);
}

static void write_done(struct image_op *op, int error)
{
	struct fs_req *r = container_of(op, struct fs_req, u.op);
	struct fs_req_write *w = &r->u.write;

	w->pos = w->w.offset + w->w.len;
	if (!error && w->pos < w->end) {
		write_next(r);
		return;
	}
	buf_put(w->buf);
	w->error = error;
	write_end(r);
}

/* The next piece: there is just one, unless pages of a truncated range are in
 * it. */
static void write_next(struct fs_req *r)
{
	struct fs_req_write *w = &r->u.write;
	uint64_t offset = w->pos, end = w->end;

	w->w.op.done = write_done;
	w->w.op.h = r->file->handle;
	if (!fs_drop_keep(r->inode, &offset, &end)) {
		w->w.offset = w->end;
		w->w.len = 0;
		write_done(&w->w.op, 0);
		return;
	}
	w->w.offset = offset;
	w->w.len = (uint32_t)(end - offset);
	w->w.flags = w->flags;
	w->w.data = w->data + (offset - w->start);
	w->w.buf = w->buf;
	image_write(&w->w);
}

/* All of it, of which nothing is older than anything. */
static void write_all(struct fs_req *r)
{
	struct fs_req_write *w = &r->u.write;

	w->w.op.done = write_done;
	w->w.op.h = r->file->handle;
	w->w.offset = w->start;
	w->w.len = w->count;
	w->w.flags = w->flags;
	w->w.data = w->data;
	w->w.buf = w->buf;
	image_write(&w->w);
}

static unsigned write_flags(const struct fs_inode *inode,
			    const struct fuse_file_info *fi)
{
	unsigned flags = 0;

	if (fi->flags & O_DIRECT)
		flags |= WRITE_DIRECT;
	if (fi->flags & (O_SYNC | O_DSYNC))
		flags |= WRITE_SYNC;
	/* The kernel picks any open file for its pages: it must hear of an
	 * error itself, to tell the right one. But when it writes one page
	 * after the other because we want to have them all, it must not wait
	 * for a distant server each time. */
	if (fi->writepage && !fs_inval_sweeps(inode->fs))
		flags |= WRITE_DIRECT;
	/* And it forgets a page that could not be written. */
	if (fi->writepage)
		flags |= WRITE_ANYWAY;
	return flags;
}

/* Where the bytes are. A short write is copied by the engine, except where it
 * goes in several steps: the receive buffer is used again after the first. */
static void set_data(struct fs_req *r, const char *data, size_t size)
{
	struct fs_req_write *w = &r->u.write;

	w->data = (const uint8_t *)data;
	w->buf = NULL;
	if (size >= TAKE_OVER || r->inode->drop)
		w->buf = buf_ref(r->fs->rx);
}

/* What close has to see to. Pages of a mapping may belong to any of the files
 * that can write. */
static void note_written(struct fs_file *file, bool writepage)
{
	struct fs_inode *inode = file->inode;
	struct fs_file *f;

	if (!writepage) {
		file->wrote = true;
		fs_inode_modified(inode);
		return;
	}
	LIST_FOREACH(f, &inode->files, link)
		f->wrote |= f->writer;
	/* Such bytes are as old as the pages: a time that was set since is the
	 * later word. */
	if (!inode->mtime_given)
		fs_inode_modified(inode);
}

/* 0 and the number of bytes that fit, or an error. */
static int check_write(const struct fs_file *file, bool writepage, off_t off,
		       size_t *size)
{
	uint64_t end = image_size(file->inode->image);

	if (fs_inode_read_only(file->inode))
		return -EROFS;
	if (!file->writer)
		return -EBADF;
	if (off < 0)
		return -EINVAL;
	if (*size && (uint64_t)off >= end)
		return -ENOSPC;
	if (*size)
		*size = (size_t)min_u64(*size, end - (uint64_t)off);
	*size = (size_t)min_u64(*size, INT32_MAX);
	return writepage ? 0 : handle_error_peek(file->handle);
}

static void start_write(struct fs_req *r)
{
	struct fs_req_write *w = &r->u.write;

	if (w->error || w->count == 0)
		write_end(r);
	else if (w->page)
		write_next(r);
	else
		write_all(r);
}

void fs_op_write(fuse_req_t req, fuse_ino_t ino, const char *data, size_t size,
		 off_t off, struct fuse_file_info *fi)
{
	struct fs_file *file = fs_file_of(fi);
	struct fs_inode *inode = file->inode;
	size_t asked = size;
	int error = check_write(file, fi->writepage, off, &size);
	struct fs_req *r;

	(void)ino;
	if (inode->drop && !fi->writepage && !error && size)
		fs_drop_touch(inode, (uint64_t)off, size);
	r = fs_req_new(fs_of(req), req, inode, file);
	if (!r)
		return;
	r->u.write = (struct fs_req_write){
		.start = (uint64_t)off,
		.pos = (uint64_t)off,
		.end = (uint64_t)off + size,
		.count = (uint32_t)size,
		.asked = (uint32_t)asked,
		.error = error,
		.page = fi->writepage,
		.flags = write_flags(inode, fi),
	};
	inode->page_writes += fi->writepage;
	if (!file->direct || fi->writepage)
		inode->paged = true;
	if (!error && size) {
		note_written(file, fi->writepage);
		set_data(r, data, size);
	}
	fs_req_start(r, start_write, fs_req_cancel_op);
}
