/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What concerns a whole file, and therefore holds off the other workers:
 * truncation, closing and opening again, mapping, comparing everything.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "fsr.h"

/* A kernel may hold back dirty mapped pages until a truncation has been
 * answered, so that their end comes later than the answer. Where this cannot
 * be helped, they are written out before. */
static int settle_map(struct worker *w, struct file *f)
{
	if (!f->map || !f->map_dirty || !w->c->cfg.settle)
		return 0;
	if (msync(f->map, f->size, MS_SYNC))
		return fail_errno(w, "msync");
	f->map_dirty = false;
	return 0;
}

static int op_truncate(struct worker *w, struct file *f)
{
	bool by_path = rng_chance(&w->rng, 33);
	int fd = writable_fd(w, f);
	uint64_t to;

	switch (rng_below(&w->rng, 4)) {
	case 0:
		to = 0;
		break;
	case 1:
		to = f->size;
		break;
	default:
		/* The further down, the less there is left to test. */
		to = f->size - pick_any(w, f, f->size, 1).len;
		break;
	}
	trace(w, "f%u %s path=%d to=%" PRIu64, f->index, fd_name(f, fd),
	      by_path, to);
	if (settle_map(w, f))
		return -1;
	if (may_change(w, f, to, NULL, f->size - to))
		return -1;
	f->cut = w->op;
	if (by_path ? truncate(f->path, (off_t)to) : ftruncate(fd, (off_t)to))
		return fail_errno(w, "truncate");
	if (w->c->cfg.plain && ftruncate(fd, (off_t)f->size))
		return fail_errno(w, "truncate");
	model_zero(w, f, to, f->size - to);
	return 0;
}

static int op_truncate_up(struct worker *w, struct file *f)
{
	uint64_t to = f->size + 1 + rng_below(&w->rng, 65536);
	int fd = writable_fd(w, f);

	trace(w, "f%u %s to=%" PRIu64, f->index, fd_name(f, fd), to);
	if (settle_map(w, f))
		return -1;
	errno = 0;
	if (ftruncate(fd, (off_t)to) != -1 || errno != EFBIG)
		return fail(w, "ftruncate upwards: %s", strerror(errno));
	return 0;
}

/* Another descriptor, that truncates as it is opened and is then used, or at
 * once closed again. */
static int op_truncate_open(struct worker *w, struct file *f)
{
	bool keep = rng_chance(&w->rng, 50);
	int fd;

	trace(w, "f%u keep=%d", f->index, keep);
	if (settle_map(w, f))
		return -1;
	if (may_change(w, f, 0, NULL, f->size))
		return -1;
	f->cut = w->op;
	fd = open(f->path, O_RDWR | O_TRUNC | O_CLOEXEC);
	if (fd < 0)
		return fail_errno(w, "open with O_TRUNC");
	if (w->c->cfg.plain && ftruncate(fd, (off_t)f->size))
		return fail_errno(w, "ftruncate");
	model_zero(w, f, 0, f->size);
	if (keep) {
		int old = f->fd[FD_SECOND];

		f->fd[FD_SECOND] = fd;
		fd = old;
	}
	if (close(fd))
		return fail_errno(w, "close");
	return 0;
}

static int op_map(struct worker *w, struct file *f)
{
	trace(w, "f%u %s", f->index, f->map ? "off" : "on");
	if (f->map) {
		if (munmap(f->map, f->size))
			return fail_errno(w, "munmap");
		f->map = NULL;
		f->map_dirty = false;
		return 0;
	}
	return file_map(w, f);
}

static int set_number(const char *name, uint64_t value)
{
	char text[24];

	snprintf(text, sizeof(text), "%" PRIu64, value);
	return setenv(name, text, 1);
}

/* Lets somebody else change the file while we have it closed. */
static int change_outside(struct worker *w, struct file *f)
{
	struct range r = pick_any(w, f, w->c->cfg.max_io, 1);
	int byte = (int)rng_below(&w->rng, 256), status;

	if (!r.len)
		return 0;
	if (set_number("FSR_FILE", f->index + 1) ||
	    set_number("FSR_OFFSET", r.off) ||
	    set_number("FSR_LENGTH", r.len) ||
	    set_number("FSR_BYTE", (uint64_t)byte))
		return fail_errno(w, "setenv");
	trace(w, "f%u outside off=%" PRIu64 " len=%" PRIu64 " byte=%d",
	      f->index, r.off, r.len, byte);
	status = system(w->c->cfg.at_reopen);
	if (status != 0)
		return fail(w, "the command gave status %d", status);
	memset(w->buf, byte, r.len);
	model_write(w, f, r.off, w->buf, r.len);
	return 0;
}

static int op_reopen(struct worker *w, struct file *f)
{
	bool outside = w->c->cfg.at_reopen && rng_chance(&w->rng, 70);
	bool mapped = f->map != NULL, truncate = rng_chance(&w->rng, 15);

	trace(w, "f%u outside=%d truncate=%d", f->index, outside, truncate);
	/* Zeroes may be on their way for a moment after a close. */
	if (outside && fsync(f->fd[FD_MAIN]))
		return fail_errno(w, "fsync");
	if (file_close(w, f))
		return -1;
	/* A file that was truncated and not written is closed at once, and
	 * its zeroes come later. */
	if (f->cut <= f->synced)
		all_durable(w, f, all_ended(w->c));
	if (outside && change_outside(w, f))
		return -1;
	if (truncate && may_change(w, f, 0, NULL, f->size))
		return -1;
	if (truncate)
		f->cut = w->op;
	if (file_open(w, f, truncate))
		return -1;
	if (truncate)
		model_zero(w, f, 0, f->size);
	return mapped ? op_map(w, f) : 0;
}

static int op_check(struct worker *w, struct file *f)
{
	trace(w, "f%u", f->index);
	return check_whole(w, f);
}

static int op_pause(struct worker *w, struct file *f)
{
	uint64_t ms = rng_below(&w->rng, w->c->cfg.pause_ms + 1);
	struct timespec ts = { (time_t)(ms / 1000),
			       (long)(ms % 1000) * 1000000 };

	(void)f;
	trace(w, "ms=%" PRIu64, ms);
	if (ms)
		nanosleep(&ts, NULL);
	return 0;
}

const struct op whole_ops[] = {
	{ .name = "truncate",
	  .weight = 2,
	  .exclusive = true,
	  .run = op_truncate },
	{ .name = "truncup",
	  .weight = 1,
	  .exclusive = true,
	  .fixed = true,
	  .run = op_truncate_up },
	{ .name = "truncopen",
	  .weight = 1,
	  .exclusive = true,
	  .run = op_truncate_open },
	{ .name = "map",
	  .weight = 3,
	  .exclusive = true,
	  .paged = true,
	  .run = op_map },
	{ .name = "reopen", .weight = 2, .exclusive = true, .run = op_reopen },
	{ .name = "check", .weight = 1, .exclusive = true, .run = op_check },
	{ .name = "pause", .weight = 1, .run = op_pause },
	{ .name = NULL },
};
