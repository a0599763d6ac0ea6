/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Open files: from open to release. */
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <stdlib.h>

#include "fs.h"

#ifndef FOPEN_PARALLEL_DIRECT_WRITES
#define FOPEN_PARALLEL_DIRECT_WRITES (1 << 6)
#endif

/* ------------------------------------------------------------------ files */

struct fs_file *fs_file_get(struct fs_file *file)
{
	file->refs++;
	return file;
}

void fs_file_put(struct fs_file *file)
{
	struct fs_inode *inode = file->inode;

	if (--file->refs > 0)
		return;
	LIST_REMOVE(file, link);
	inode->writers -= file->writer;
	/* The next open drops them. */
	inode->paged &= !LIST_EMPTY(&inode->files);
	handle_close(file->handle);
	free(file);
	fs_inode_put(inode);
}

struct fs_file *fs_file_writer(struct fs_inode *inode)
{
	struct fs_file *file;

	LIST_FOREACH(file, &inode->files, link) {
		if (file->writer && !file->released)
			return file;
	}
	return NULL;
}

static void release(struct fs_file *file)
{
	if (file->released)
		return;
	file->released = true;
	fs_file_put(file);
}

void fs_files_abandon(struct fs *fs)
{
	struct fs_inode *inode;
	struct fs_file *file, *next;
	size_t i;

	for (i = 0; i < INODE_BUCKETS; i++) {
		LIST_FOREACH(inode, &fs->inodes.by_ino[i], by_ino) {
			fs_inode_get(inode);
			for (file = LIST_FIRST(&inode->files); file;
			     file = next) {
				next = LIST_NEXT(file, link);
				release(file);
			}
			/* Not put: the list must not change here, and
			 * fs_inodes_free() takes no notice. */
		}
	}
}

/* ------------------------------------------------------------------- open */

/* libfuse has no names for all flags: the answer is made here. */
static bool answer_open(struct fs_req *r, struct fs_file *file)
{
	struct fuse_open_out out = { .fh = (uintptr_t)file };
	bool direct = r->fs->opts->cache == CACHE_DIRECT;

	/* The kernel has two kinds of direct I/O: its own, for files that have
	 * pages, makes EIO of a write that is cut short by the end. */
	if (file->flags & O_DIRECT && r->fs->direct_mmap)
		direct = true;
	file->direct = direct;
	if (direct)
		out.open_flags = FOPEN_DIRECT_IO | FOPEN_PARALLEL_DIRECT_WRITES;
	return fs_answer_buf(r, &out, sizeof(out));
}

static void opened(struct open_req *o, int error)
{
	struct fs_req *r = container_of(o, struct fs_req, u.open.o);
	struct fs_file *file = r->u.open.file;
	struct fs_inode *inode = r->inode;

	if (error) {
		log_msg(r->fs->log, LOG_LVL_WARN, "%s: %s",
			image_name(inode->image), o->err.text);
		free(file);
		fs_finish(r, error);
		return;
	}
	file->handle = o->handle;
	file->inode = fs_inode_get(inode);
	file->refs = 1;
	LIST_INSERT_HEAD(&inode->files, file, link);
	if (file->writer && inode->writers++ == 0)
		inode->mtime_given = false;
	/* Nobody releases what nobody knows of. */
	if (!answer_open(r, file))
		release(file);
	fs_req_free(r);
}

static void start_open(struct fs_req *r)
{
	image_open(&r->u.open.o);
}

void fs_op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct fs *fs = fs_of(req);
	struct fs_inode *inode = fs_inode_find(fs, ino);
	bool writer = (fi->flags & O_ACCMODE) != O_RDONLY;
	struct fs_file *file;
	struct fs_req *r;

	if (!inode || !inode->image) {
		fuse_reply_err(req, inode ? EISDIR : ESTALE);
		return;
	}
	if (writer && fs_inode_read_only(inode)) {
		fuse_reply_err(req, EROFS);
		return;
	}
	file = calloc(1, sizeof(*file));
	if (!file) {
		fuse_reply_err(req, ENOMEM);
		return;
	}
	r = fs_req_new(fs, req, inode, NULL);
	if (!r) {
		free(file);
		return;
	}
	file->flags = fi->flags;
	file->writer = writer;
	r->u.open.file = file;
	r->u.open.o = (struct open_req){
		.img = inode->image,
		.flags = (writer ? OPEN_WRITE : 0u) |
			 (fi->flags & O_DIRECT ? OPEN_NO_READAHEAD : 0u),
		.done = opened,
	};
	fs_req_start(r, start_open, fs_req_detach);
}

void fs_op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	(void)ino;
	/* What is still queued goes on by itself. */
	release(fs_file_of(fi));
	fuse_reply_err(req, 0);
}

/* ------------------------------------------------------- flush and fsync */

static void start_sync(struct fs_req *r)
{
	image_sync(&r->u.sync);
}

static void flushed(struct image_op *op, int error)
{
	struct fs_req *r = container_of(op, struct fs_req, u.op);

	/* What has not been written now is tried again by the next close. */
	if (error)
		r->file->wrote = true;
	else
		error = handle_error_peek(r->file->handle);
	fs_finish(r, error);
}

static void synced(struct image_op *op, int error)
{
	struct fs_req *r = container_of(op, struct fs_req, u.op);
	int deferred = 0;

	if (error)
		r->file->wrote = true;
	/* Where nobody hears of it, it is kept for the next one. */
	if (r->req && error != -EINTR)
		deferred = handle_error_take(r->file->handle);
	fs_finish(r, error ? error : deferred);
}

static void sync_file(struct fs *fs, fuse_req_t req, struct fs_file *file,
		      void (*done)(struct image_op *op, int error))
{
	struct fs_req *r = fs_req_new(fs, req, file->inode, file);

	if (!r)
		return;
	r->u.sync = (struct image_sync){
		.op = { .done = done, .h = file->handle },
		.flags = SYNC_FLUSH,
	};
	file->wrote = false;
	fs_req_start(r, start_sync, fs_req_cancel_op);
}

/* Close. A file that was only truncated sends nothing yet: shells close
 * duplicates of it before the first byte, and what is then written would be
 * sent twice. Its release sends what is left. */
void fs_op_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct fs_file *file = fs_file_of(fi);

	(void)ino;
	if (!file->writer)
		fuse_reply_err(req, 0);
	else if (!file->wrote)
		fuse_reply_err(req, fs_errno(handle_error_peek(file->handle)));
	else
		sync_file(fs_of(req), req, file, flushed);
}

void fs_op_fsync(fuse_req_t req, fuse_ino_t ino, int datasync,
		 struct fuse_file_info *fi)
{
	(void)ino;
	(void)datasync;
	sync_file(fs_of(req), req, fs_file_of(fi), synced);
}
