/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A request's life, from the kernel's question to the answer. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fs.h"

/* Free requests that are kept for the next ones. */
#define KEEP 256

/* A signal that a program handles sends an interrupt too, and most programs do
 * not expect EINTR from a file: only what is stuck is ended. */
#define PATIENCE_NS (500 * NS_PER_MS)

/* ------------------------------------------------------------------ birth */

struct fs_req *fs_req_new(struct fs *fs, fuse_req_t req, struct fs_inode *inode,
			  struct fs_file *file)
{
	struct fs_req *r = TAILQ_FIRST(&fs->reqs.free);

	if (r) {
		TAILQ_REMOVE(&fs->reqs.free, r, link);
		fs->reqs.nfree--;
	} else {
		r = malloc(sizeof(*r));
		if (!r) {
			fuse_reply_err(req, ENOMEM);
			return NULL;
		}
	}
	/* What is in the union is large, and set by who uses it. */
	memset(r, 0, offsetof(struct fs_req, u));
	r->req = req;
	r->fs = fs;
	r->inode = inode ? fs_inode_get(inode) : NULL;
	r->file = file ? fs_file_get(file) : NULL;
	TAILQ_INSERT_TAIL(&fs->reqs.active, r, link);
	return r;
}

void fs_req_free(struct fs_req *r)
{
	struct fs *fs = r->fs;

	if (r->freed)
		*r->freed = true;
	if (r->interrupted)
		TAILQ_REMOVE(&fs->reqs.interrupted, r, wait);
	if (r->refreshing)
		TAILQ_REMOVE(&fs->refresh.waiting, r, refresh);
	if (r->inval)
		fs_inval_detach(r);
	loop_timer_cancel(fs->loop, &r->timer);
	if (r->task.queued)
		loop_task_cancel(fs->loop, &r->task);
	TAILQ_REMOVE(&fs->reqs.active, r, link);
	if (r->file)
		fs_file_put(r->file);
	if (r->inode)
		fs_inode_put(r->inode);
	if (fs->reqs.nfree >= KEEP) {
		free(r);
	} else {
		TAILQ_INSERT_HEAD(&fs->reqs.free, r, link);
		fs->reqs.nfree++;
	}
	if (fs->state == FS_ENDING)
		fs_end_check(fs);
}

/* ------------------------------------------------------------ interrupts */

static void run_give_up(struct loop_task *task)
{
	struct fs_req *r = container_of(task, struct fs_req, task);
	void (*give_up)(struct fs_req * r) = r->give_up;

	r->give_up = NULL;
	if (give_up)
		give_up(r);
}

/* libfuse holds a lock of the request meanwhile, so that nothing can be
 * answered here. */
static void on_interrupt(fuse_req_t req, void *data)
{
	struct fs_req *r = data;
	struct fs *fs = r->fs;
	bool dying = false;

	if (r->interrupted)
		return;
	/* What has been killed hears no answer. Each file that it has open
	 * is closed then, and may come here again. */
	if (!r->prompt)
		fs_signals_end(fuse_req_ctx(req)->pid, &dying);
	if (r->prompt || dying) {
		loop_defer(fs->loop, &r->task);
		return;
	}
	r->interrupted = true;
	r->interrupted_at = loop_now(fs->loop);
	TAILQ_INSERT_TAIL(&fs->reqs.interrupted, r, wait);
	if (!fs->reqs.patience.armed)
		loop_timer_set(fs->loop, &fs->reqs.patience, PATIENCE_NS);
}

/* The list is in order of time. */
static void patience_is_over(struct loop_timer *t)
{
	struct fs_reqs *reqs = container_of(t, struct fs_reqs, patience);
	struct fs *fs = container_of(reqs, struct fs, reqs);
	uint64_t now = loop_now(fs->loop);
	struct fs_req *r;
	bool dying;

	while ((r = TAILQ_FIRST(&reqs->interrupted))) {
		if (now - r->interrupted_at < PATIENCE_NS) {
			loop_timer_set(fs->loop, t,
				       PATIENCE_NS - (now - r->interrupted_at));
			return;
		}
		TAILQ_REMOVE(&reqs->interrupted, r, wait);
		if (r->req &&
		    !fs_signals_end(fuse_req_ctx(r->req)->pid, &dying)) {
			/* A timer or the like: look again later. */
			r->interrupted_at = now;
			TAILQ_INSERT_TAIL(&reqs->interrupted, r, wait);
			continue;
		}
		r->interrupted = false;
		if (!r->task.queued)
			run_give_up(&r->task);
	}
}

void fs_req_start(struct fs_req *r, void (*start)(struct fs_req *r),
		  void (*give_up)(struct fs_req *r))
{
	bool freed = false;

	r->freed = &freed;
	r->give_up = give_up;
	r->task.run = run_give_up;
	start(r);
	if (freed)
		return;
	r->freed = NULL;
	if (r->req)
		fuse_req_interrupt_func(r->req, on_interrupt, r);
}

void fs_req_cancel_op(struct fs_req *r)
{
	image_cancel(&r->u.op);
}

void fs_req_detach(struct fs_req *r)
{
	fs_answer(r, -EINTR);
}

void fs_reqs_abandon(struct fs *fs)
{
	struct fs_req *r;

	/* One that is given up may be freed by that, or stay: never two. */
	TAILQ_FOREACH(r, &fs->reqs.active, link) {
		if (r->give_up && !r->task.queued)
			loop_defer(fs->loop, &r->task);
	}
}

/* --------------------------------------------------------------- answers */

/* Programs know these; the kernel would take ENOSYS for good, and cp would
 * take EOPNOTSUPP for a licence to leave old data. */
int fs_errno(int error)
{
	switch (-error) {
	case 0:
	case EPERM:
	case EINTR:
	case EIO:
	case ENXIO:
	case ENOMEM:
	case EBADF:
	case EACCES:
	case EINVAL:
	case EFBIG:
	case ENOSPC:
	case EROFS:
	case EDQUOT:
	case ESTALE:
	case ENOENT:
	case EISDIR:
	case ENOTDIR:
		return -error;
	default:
		return EIO;
	}
}

/* From now on no interrupt comes for it. */
static fuse_req_t take(struct fs_req *r)
{
	fuse_req_t req = r->req;

	r->req = NULL;
	r->give_up = NULL;
	if (r->interrupted) {
		TAILQ_REMOVE(&r->fs->reqs.interrupted, r, wait);
		r->interrupted = false;
	}
	return req;
}

/* That an answer is not taken (ENOENT) means that the request was interrupted
 * or that the mount has gone: nothing to do about it. */
void fs_answer(struct fs_req *r, int error)
{
	fuse_req_t req = take(r);

	if (req)
		fuse_reply_err(req, fs_errno(error));
}

void fs_finish(struct fs_req *r, int error)
{
	fs_answer(r, error);
	fs_req_free(r);
}

void fs_answer_attr(struct fs_req *r)
{
	fuse_req_t req = take(r);
	struct stat st;

	if (!req)
		return;
	fs_inode_stat(r->inode, &st);
	fuse_reply_attr(req, &st, fs_inode_timeout(r->inode));
}

void fs_answer_count(struct fs_req *r, size_t count)
{
	fuse_req_t req = take(r);

	if (req)
		fuse_reply_write(req, count);
}

void fs_answer_offset(struct fs_req *r, uint64_t offset)
{
	fuse_req_t req = take(r);

	if (req)
		fuse_reply_lseek(req, (off_t)offset);
}

void fs_answer_data(struct fs_req *r, struct iovec *iov, int niov)
{
	fuse_req_t req = take(r);

	if (!req)
		return;
	/* Spares libfuse a copy of the list. */
	if (niov <= 1)
		fuse_reply_buf(req, niov ? iov->iov_base : NULL,
			       niov ? iov->iov_len : 0);
	else
		fuse_reply_iov(req, iov, niov);
}

bool fs_answer_buf(struct fs_req *r, const void *data, size_t len)
{
	fuse_req_t req = take(r);

	return req && fuse_reply_buf(req, data, len) == 0;
}

bool fs_answer_entry(struct fs_req *r, struct fs_inode *inode)
{
	struct fuse_entry_param e = { .ino = inode->ino };
	fuse_req_t req = take(r);

	if (!req)
		return false;
	fs_inode_stat(inode, &e.attr);
	e.attr_timeout = fs_inode_timeout(inode);
	e.entry_timeout = 1;
	return fuse_reply_entry(req, &e) == 0;
}

bool fs_answer_open(struct fs_req *r, const struct fuse_file_info *fi)
{
	fuse_req_t req = take(r);

	return req && fuse_reply_open(req, fi) == 0;
}

/* ------------------------------------------------------------------- all */

void fs_reqs_init(struct fs *fs)
{
	TAILQ_INIT(&fs->reqs.active);
	TAILQ_INIT(&fs->reqs.free);
	TAILQ_INIT(&fs->reqs.interrupted);
	fs->reqs.patience.fire = patience_is_over;
}

void fs_reqs_free(struct fs *fs)
{
	struct fs_req *r;

	loop_timer_cancel(fs->loop, &fs->reqs.patience);
	while ((r = TAILQ_FIRST(&fs->reqs.free))) {
		TAILQ_REMOVE(&fs->reqs.free, r, link);
		free(r);
	}
}
