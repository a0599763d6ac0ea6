/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Changed attributes, the size among them.
 *
 * A truncation goes: [open a handle] -> mark zeroes -> [drain] -> have the
 * kernel drop its pages -> answer with the true size. What is in brackets is
 * for a file that nobody has open for writing: nothing would send the zeroes
 * later.
 */
#include <errno.h>
#include <string.h>

#include "fs.h"

#define SET_TIMES \
	(FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_CTIME)

static void set_times(struct fs_inode *inode, const struct stat *attr,
		      int to_set)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME_COARSE, &now);
	if (to_set & FUSE_SET_ATTR_ATIME)
		inode->atime = to_set & FUSE_SET_ATTR_ATIME_NOW ? now :
								  attr->st_atim;
	if (to_set & FUSE_SET_ATTR_MTIME) {
		inode->mtime_given = !(to_set & FUSE_SET_ATTR_MTIME_NOW);
		inode->mtime = inode->mtime_given ? attr->st_mtim : now;
	}
	inode->ctime = now;
	if (to_set & FUSE_SET_ATTR_CTIME)
		inode->ctime = attr->st_ctim;
}

/* All but the size. */
static void set_attributes(struct fs_inode *inode, const struct stat *attr,
			   int to_set)
{
	if (to_set & FUSE_SET_ATTR_MODE)
		/* A disk is no program. Without set-user-id bits the kernel
		 * need not ask about them at each write. */
		inode->mode = attr->st_mode & 01777;
	if (to_set & FUSE_SET_ATTR_UID)
		inode->uid = attr->st_uid;
	if (to_set & FUSE_SET_ATTR_GID)
		inode->gid = attr->st_gid;
	if (to_set & (SET_TIMES | FUSE_SET_ATTR_MODE | FUSE_SET_ATTR_UID |
		      FUSE_SET_ATTR_GID))
		set_times(inode, attr, to_set);
}

/* ----------------------------------------------------------- truncation */

static void close_own(struct fs_req *r)
{
	if (r->u.setattr.handle)
		handle_close(r->u.setattr.handle);
	r->u.setattr.handle = NULL;
}

/* Before the zeroes are marked, or where they could not be. */
static void truncate_failed(struct fs_req *r, int error)
{
	fs_drop_end(r->inode);
	close_own(r);
	fs_finish(r, error);
}

static void pages_dropped(struct fs_req *r)
{
	struct fs_inode *inode = r->inode;

	if (r->req)
		set_attributes(inode, &r->u.setattr.attr, r->u.setattr.to_set);
	fs_answer_attr(r);
	fs_drop_answered(inode);
	fs_req_free(r);
}

static void drop_now(struct fs_req *r)
{
	r->give_up = fs_req_detach;
	close_own(r);
	fs_inode_modified(r->inode);
	fs_drop_pages(r, pages_dropped);
}

static void drained(struct image_op *op, int error)
{
	struct fs_req *r = container_of(op, struct fs_req, u.setattr.u.sync.op);
	int deferred = handle_error_take(r->u.setattr.handle);

	if (!error)
		error = deferred;
	if (error)
		truncate_failed(r, error);
	else
		drop_now(r);
}

static void marked(struct image_op *op, int error)
{
	struct fs_req *r = container_of(op, struct fs_req, u.setattr.u.zero.op);

	if (error) {
		truncate_failed(r, error);
		return;
	}
	if (!r->u.setattr.handle) {
		drop_now(r);
		return;
	}
	r->u.setattr.u.sync = (struct image_sync){
		.op = { .done = drained, .h = r->u.setattr.handle },
		.flags = SYNC_FLUSH,
	};
	image_sync(&r->u.setattr.u.sync);
}

static void mark(struct fs_req *r, struct handle *handle)
{
	uint64_t size = r->u.setattr.size;

	r->give_up = fs_req_cancel_op;
	r->u.setattr.u.zero = (struct image_zero){
		.op = { .done = marked, .h = handle },
		.offset = size,
		.len = image_size(r->inode->image) - size,
		.flags = ZERO_HOLE_HINT,
	};
	image_zero(&r->u.setattr.u.zero);
}

static void opened(struct open_req *o, int error)
{
	struct fs_req *r = container_of(o, struct fs_req, u.setattr.u.open);

	if (error) {
		log_msg(r->fs->log, LOG_LVL_WARN, "%s: %s",
			image_name(r->inode->image), o->err.text);
		truncate_failed(r, error);
		return;
	}
	r->u.setattr.handle = o->handle;
	if (!r->req) {
		truncate_failed(r, -EINTR);
		return;
	}
	mark(r, r->u.setattr.handle);
}

static void open_own(struct fs_req *r)
{
	r->u.setattr.u.open = (struct open_req){
		.img = r->inode->image,
		.flags = OPEN_WRITE | OPEN_NO_READAHEAD,
		.done = opened,
	};
	r->give_up = fs_req_detach;
	image_open(&r->u.setattr.u.open);
}

static void start_truncate(struct fs_req *r)
{
	if (r->file)
		mark(r, r->file->handle);
	else
		open_own(r);
}

/* A file whose size changes (errors are negative), one that keeps its contents
 * (0), or one that is to be zeroed from the new size on (1). */
static int check_size(const struct fs_inode *inode, off_t want)
{
	uint64_t size;

	if (!inode->image)
		return -EISDIR;
	size = image_size(inode->image);
	if (want < 0)
		return -EINVAL;
	if (fs_inode_read_only(inode))
		return -EROFS;
	if ((uint64_t)want > size)
		return -EFBIG;
	if ((uint64_t)want == size)
		return 0;
	switch (inode->fs->opts->on_truncate) {
	case TRUNCATE_DENY:
		return -EPERM;
	case TRUNCATE_KEEP:
		return 0;
	default:
		return 1;
	}
}

static void truncate_file(fuse_req_t req, struct fs_inode *inode,
			  struct fs_file *file, const struct stat *attr,
			  int to_set)
{
	uint64_t size = (uint64_t)attr->st_size;
	struct fs_req *r;
	int error = 0;

	if (!file || !file->writer)
		file = fs_file_writer(inode);
	if (file)
		error = handle_error_peek(file->handle);
	if (!error)
		error = fs_drop_begin(inode, size);
	if (error) {
		fuse_reply_err(req, fs_errno(error));
		return;
	}
	r = fs_req_new(fs_of(req), req, inode, file);
	if (!r) {
		fs_drop_end(inode);
		return;
	}
	r->u.setattr.handle = NULL;
	r->u.setattr.size = size;
	r->u.setattr.attr = *attr;
	r->u.setattr.to_set = to_set;
	fs_req_start(r, start_truncate, fs_req_cancel_op);
}

void fs_op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr,
		   int to_set, struct fuse_file_info *fi)
{
	struct fs_inode *inode = fs_inode_find(fs_of(req), ino);
	struct stat st;
	int what = 0;

	if (inode && to_set & FUSE_SET_ATTR_SIZE)
		what = check_size(inode, attr->st_size);
	if (!inode || what < 0) {
		fuse_reply_err(req, inode ? fs_errno(what) : ESTALE);
		return;
	}
	if (what > 0) {
		truncate_file(req, inode, fi ? fs_file_of(fi) : NULL, attr,
			      to_set);
		return;
	}
	set_attributes(inode, attr, to_set);
	fs_inode_stat(inode, &st);
	fuse_reply_attr(req, &st, fs_inode_timeout(inode));
}
