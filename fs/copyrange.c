/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * copy_file_range(2): the engine copies, nothing passes through the kernel.
 *
 * The answer comes when a slice is finished, or at once when the program is
 * interrupted. What the copy has in flight then may wait for a server that
 * does not answer: so it lives on without its request, and goes by itself.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

#include "fs.h"

/* A call copies no more, and takes no longer: programs show progress, and can
 * be interrupted, between calls. */
#define SLICE_SIZE (256 * MiB)
#define SLICE_NS NS_PER_S
/* If by then not even the first byte is there: again and again. */
#define AGAIN_NS (100 * NS_PER_MS)

#define QUEUE_SIZE (32 * MiB)

struct fs_copy {
	struct fs *fs;
	struct fs_req *r; /* NULL: has been answered */
	struct fs_file *in, *out;
	struct blockdev *src, *dst;
	struct copy_params params;
	struct copy_job *job;
	struct loop_timer slice;
	struct loop_task free;
	struct image_sync sync;
	size_t copied; /* for the answer */
	bool running;  /* the job is */
};

static void copy_free_all(struct fs_copy *c)
{
	if (c->job)
		copy_free(c->job);
	blockdev_close(c->src);
	blockdev_close(c->dst);
	fs_file_put(c->in);
	fs_file_put(c->out);
	free(c);
}

static void run_free(struct loop_task *task)
{
	struct fs_copy *c = container_of(task, struct fs_copy, free);
	struct fs *fs = c->fs;

	copy_free_all(c);
	fs->copies--;
	if (fs->state == FS_ENDING)
		fs_end_check(fs);
}

static void answer(struct fs_copy *c, int error)
{
	struct fs_req *r = c->r;

	c->r = NULL;
	if (!r)
		return;
	if (error)
		fs_answer(r, error);
	else
		fs_answer_count(r, c->copied);
	fs_req_free(r);
}

/* From inside the job's or the engine's own calls: freed a little later. */
static void finish(struct fs_copy *c, int error)
{
	answer(c, error);
	loop_defer(c->fs->loop, &c->free);
}

static void synced(struct image_op *op, int error)
{
	struct fs_copy *c = container_of(op, struct fs_copy, sync.op);

	finish(c, error);
}

static void copy_done(void *arg, int error, const struct copy_stats *stats)
{
	struct fs_copy *c = arg;

	(void)stats;
	c->running = false;
	loop_timer_cancel(c->fs->loop, &c->slice);
	c->copied = (size_t)(error ? copy_prefix(c->job) : c->params.len);
	if (c->copied > 0)
		error = 0;
	if (error || !c->r || !(c->out->flags & (O_SYNC | O_DSYNC))) {
		finish(c, error);
		return;
	}
	c->sync = (struct image_sync){
		.op = { .done = synced, .h = c->out->handle },
		.flags = SYNC_FLUSH | SYNC_OWN,
	};
	image_sync(&c->sync);
}

/* Time to say something, if there is something to say. */
static void slice_over(struct loop_timer *t)
{
	struct fs_copy *c = container_of(t, struct fs_copy, slice);

	if (copy_prefix(c->job) > 0)
		copy_cancel(c->job);
	else
		loop_timer_set(c->fs->loop, t, AGAIN_NS);
}

/* The program was interrupted: it gets what there is, and the rest drains. */
static void interrupted(struct fs_req *r)
{
	struct fs_copy *c = r->u.copy;

	if (c->running) {
		c->copied = (size_t)copy_prefix(c->job);
		answer(c, c->copied ? 0 : -EINTR);
		copy_cancel(c->job);
	} else if (r->inval) {
		finish(c, -EINTR);
	} else {
		answer(c, -EINTR);
	}
}

static void start_job(struct fs_req *r)
{
	struct fs_copy *c = r->u.copy;
	struct error err;
	int error;

	c->src = dev_image_new(c->in->handle, &err);
	c->dst = dev_image_new(c->out->handle, &err);
	if (!c->src || !c->dst) {
		finish(c, -ENOMEM);
		return;
	}
	c->params.src = c->src;
	c->params.dst = c->dst;
	c->slice.fire = slice_over;
	loop_timer_set(c->fs->loop, &c->slice, SLICE_NS);
	c->running = true;
	error = copy_start(&c->params, &c->job);
	if (error) {
		c->running = false;
		loop_timer_cancel(c->fs->loop, &c->slice);
		finish(c, error);
	}
}

/* Dirty pages of a mapping of the source are data, too. Those of the
 * destination are seen to by the kernel. */
static void start_copy(struct fs_req *r)
{
	if (!r->inode->writers)
		start_job(r);
	else if (fs_inval_wait(r, start_job) < 0)
		finish(r->u.copy, -ENOMEM);
}

/* 0 and the length of the slice, or an error. */
static int check_copy(const struct fs_file *in, uint64_t off_in,
		      const struct fs_file *out, uint64_t off_out,
		      uint64_t *len)
{
	uint64_t in_size = image_size(in->inode->image);
	uint64_t out_size = image_size(out->inode->image);

	if (!out->writer)
		return -EBADF;
	if (fs_inode_read_only(out->inode))
		return -EROFS;
	*len = min_u64(*len, off_in < in_size ? in_size - off_in : 0);
	if (*len == 0)
		return 0;
	if (off_out >= out_size)
		return -ENOSPC;
	*len = min_u64(*len, out_size - off_out);
	if (in->inode == out->inode && off_in < off_out + *len &&
	    off_out < off_in + *len)
		return -EINVAL;
	*len = min_u64(*len, SLICE_SIZE);
	return handle_error_peek(out->handle);
}

static struct fs_copy *copy_new(struct fs *fs, struct fs_file *in,
				struct fs_file *out)
{
	struct fs_copy *c = calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	c->fs = fs;
	c->in = fs_file_get(in);
	c->out = fs_file_get(out);
	c->free.run = run_free;
	c->params = (struct copy_params){
		.loop = fs->loop,
		.pool = engine_pool(fs->engine),
		.queue_size = QUEUE_SIZE,
		.done = copy_done,
		.arg = c,
	};
	return c;
}

void fs_op_copy_file_range(fuse_req_t req, fuse_ino_t ino_in, off_t off_in,
			   struct fuse_file_info *fi_in, fuse_ino_t ino_out,
			   off_t off_out, struct fuse_file_info *fi_out,
			   size_t size, int flags)
{
	struct fs_file *in = fs_file_of(fi_in), *out = fs_file_of(fi_out);
	struct fs *fs = fs_of(req);
	uint64_t len = size;
	struct fs_copy *c;
	struct fs_req *r;
	int error = -EINVAL;

	(void)ino_in;
	(void)ino_out;
	if (off_in >= 0 && off_out >= 0 && flags == 0)
		error = check_copy(in, (uint64_t)off_in, out, (uint64_t)off_out,
				   &len);
	if (error) {
		fuse_reply_err(req, fs_errno(error));
		return;
	}
	if (len == 0) {
		fuse_reply_write(req, 0);
		return;
	}
	c = copy_new(fs, in, out);
	if (!c) {
		fuse_reply_err(req, ENOMEM);
		return;
	}
	r = fs_req_new(fs, req, in->inode, in);
	if (!r) {
		copy_free_all(c);
		return;
	}
	fs->copies++;
	out->wrote = true;
	fs_inode_modified(out->inode);
	c->r = r;
	c->params.src_offset = (uint64_t)off_in;
	c->params.dst_offset = (uint64_t)off_out;
	c->params.len = len;
	r->u.copy = c;
	r->prompt = true;
	fs_req_start(r, start_copy, interrupted);
}
