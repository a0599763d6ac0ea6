/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Space: holes made and looked for, zeroes, copies.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/falloc.h>
#include <string.h>
#include <unistd.h>

#include "fsr.h"

/* The map of a file may be asked again between two answers, and the file
 * system may meanwhile have turned a hole into allocated zeroes; it cannot do
 * so again and again. */
#define SEEK_TRIES 4

static int do_fallocate(struct worker *w, struct file *f, int mode)
{
	int fd = writable_fd(w, f);
	uint64_t max = rng_chance(&w->rng, 20) ? f->size : w->c->cfg.max_io;
	struct range r = pick_range(w, f, max, 1);

	trace(w, "f%u %s mode=%d off=%" PRIu64 " len=%" PRIu64, f->index,
	      fd_name(f, fd), mode, r.off, r.len);
	if (!r.len)
		return 0;
	if ((mode & ~FALLOC_FL_KEEP_SIZE) &&
	    may_change(w, f, r.off, NULL, r.len))
		return -1;
	if (fallocate(fd, mode, (off_t)r.off, (off_t)r.len))
		return fail_errno(w, "fallocate");
	if (mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE))
		model_zero(w, f, r.off, r.len);
	return 0;
}

static int op_punch(struct worker *w, struct file *f)
{
	return do_fallocate(w, f, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE);
}

static int op_zero(struct worker *w, struct file *f)
{
	return do_fallocate(
		w, f,
		FALLOC_FL_ZERO_RANGE |
			(rng_chance(&w->rng, 50) ? FALLOC_FL_KEEP_SIZE : 0));
}

static int op_alloc(struct worker *w, struct file *f)
{
	return do_fallocate(w, f,
			    rng_chance(&w->rng, 50) ? FALLOC_FL_KEEP_SIZE : 0);
}

static int op_alloc_end(struct worker *w, struct file *f)
{
	int fd = writable_fd(w, f);
	uint64_t off = f->size - rng_below(&w->rng, f->size);

	trace(w, "f%u %s off=%" PRIu64, f->index, fd_name(f, fd), off);
	errno = 0;
	if (fallocate(fd, 0, (off_t)off, (off_t)(f->size - off + 1)) != -1 ||
	    errno != EFBIG)
		return fail(w, "fallocate beyond the end: %s", strerror(errno));
	return 0;
}

/* A punch that reaches over the end is cut there. */
static int op_punch_end(struct worker *w, struct file *f)
{
	int fd = writable_fd(w, f);
	uint64_t back = 1 + rng_below(&w->rng, 8192);
	uint64_t off = back < f->size ? f->size - back : 0;

	if (!owns(w, f, off) || owned_until(w, f, off) < f->size)
		return 0;
	trace(w, "f%u %s off=%" PRIu64, f->index, fd_name(f, fd), off);
	if (may_change(w, f, off, NULL, f->size - off))
		return -1;
	if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
		      (off_t)off, (off_t)back + 100000))
		return fail_errno(w, "fallocate over the end");
	model_zero(w, f, off, f->size - off);
	return 0;
}

/* ------------------------------------------------------------- seeking */

/* Nothing but zeroes may be passed over by SEEK_DATA. Gives the position,
 * the size of the file where no data follows. */
static int seek_data(struct worker *w, struct file *f, int fd, uint64_t off,
		     uint64_t *pos)
{
	off_t ret = lseek(fd, (off_t)off, SEEK_DATA);
	uint64_t data;

	if (ret < 0 && errno != ENXIO)
		return fail_errno(w, "SEEK_DATA");
	*pos = ret < 0 ? f->size : (uint64_t)ret;
	if (ret >= 0 && (*pos < off || *pos >= f->size))
		return fail(w, "SEEK_DATA from %" PRIu64 " gave %" PRIu64, off,
			    *pos);
	data = model_data(w, f, off, *pos);
	if (data < *pos && doubtful(w, f, data, 0)) {
		trace(w, "... something is lost");
		return -1;
	}
	if (data < *pos)
		return fail(w,
			    "SEEK_DATA from %" PRIu64 " gave %" PRIu64
			    "%s, but there is data at %" PRIu64
			    ", changed by #%" PRIu32,
			    off, *pos, ret < 0 ? " (ENXIO)" : "", data,
			    f->by[data]);
	return 0;
}

/* What SEEK_HOLE gives must be zero there. */
static int seek_hole(struct worker *w, struct file *f, int fd, uint64_t off,
		     uint64_t *pos)
{
	off_t ret = lseek(fd, (off_t)off, SEEK_HOLE);

	if (ret < 0)
		return fail_errno(w, "SEEK_HOLE");
	*pos = (uint64_t)ret;
	if (*pos < off || *pos > f->size)
		return fail(w, "SEEK_HOLE from %" PRIu64 " gave %" PRIu64, off,
			    *pos);
	if (*pos < f->size && owns(w, f, *pos) && f->model[*pos] &&
	    doubtful(w, f, *pos, 0)) {
		trace(w, "... something is lost");
		return -1;
	}
	if (*pos < f->size && owns(w, f, *pos) && f->model[*pos])
		return fail(w,
			    "SEEK_HOLE from %" PRIu64 " gave %" PRIu64
			    ", where there is data, changed by #%" PRIu32,
			    off, *pos, f->by[*pos]);
	return 0;
}

static int seek_behind(struct worker *w, struct file *f, int fd)
{
	static const int whence[] = { SEEK_DATA, SEEK_HOLE };
	size_t i;

	for (i = 0; i < 2; i++) {
		errno = 0;
		if (lseek(fd, (off_t)f->size, whence[i]) != -1 ||
		    errno != ENXIO)
			return fail(w, "a seek from the end: %s",
				    strerror(errno));
	}
	return 0;
}

static int op_seek(struct worker *w, struct file *f)
{
	int fd = any_fd(w, f), try;
	struct range r = pick_any(w, f, w->c->cfg.max_io, 1);
	uint64_t data = 0, hole = 0;

	trace(w, "f%u %s off=%" PRIu64, f->index, fd_name(f, fd), r.off);
	if (rng_chance(&w->rng, 5) && seek_behind(w, f, fd))
		return -1;
	for (try = 0; try < SEEK_TRIES; try++) {
		if (seek_data(w, f, fd, r.off, &data) ||
		    seek_hole(w, f, fd, r.off, &hole))
			return -1;
		/* Exactly one of them stays where it is, but for others. */
		if ((data == r.off) != (hole == r.off) || w->c->cfg.threads > 1)
			return 0;
	}
	return fail(w,
		    "from %" PRIu64 " SEEK_DATA gives %" PRIu64
		    " and SEEK_HOLE %" PRIu64,
		    r.off, data, hole);
}

/* A walk as cp does it: it must come to the end, by steps forward. */
static int op_walk(struct worker *w, struct file *f)
{
	int fd = any_fd(w, f);
	uint64_t pos = 0, data, hole;
	unsigned stuck = 0;

	trace(w, "f%u %s", f->index, fd_name(f, fd));
	while (pos < f->size) {
		if (seek_data(w, f, fd, pos, &data))
			return -1;
		if (data == f->size)
			break;
		if (seek_hole(w, f, fd, data, &hole))
			return -1;
		stuck = hole == data ? stuck + 1 : 0;
		if (stuck >= SEEK_TRIES && w->c->cfg.threads == 1)
			return fail(w, "data and a hole at %" PRIu64, data);
		if (stuck >= 1000)
			return fail(w, "a walk stands at %" PRIu64, data);
		pos = hole;
	}
	return 0;
}

/* ------------------------------------------------------------- copying */

static int copy_range(struct worker *w, int in, uint64_t from, int out,
		      uint64_t to, uint64_t len)
{
	off_t in_off = (off_t)from, out_off = (off_t)to;
	uint64_t done = 0;
	ssize_t n;

	while (done < len) {
		n = copy_file_range(in, &in_off, out, &out_off, len - done, 0);
		/* The one call that a signal may end. */
		if (n < 0 && errno == EINTR && w->c->cfg.itimer_ms)
			continue;
		if (n < 0)
			return fail_errno(w, "copy_file_range");
		if (n == 0)
			return fail(w, "copy_file_range gave 0 after %" PRIu64,
				    done);
		done += (uint64_t)n;
		if (done > len)
			return fail(w, "copy_file_range gave %zd", n);
		if ((uint64_t)in_off != from + done ||
		    (uint64_t)out_off != to + done)
			return fail(w, "copy_file_range: wrong offsets");
	}
	return 0;
}

static int op_copy(struct worker *w, struct file *f)
{
	struct file *g = &w->c->file[rng_below(&w->rng, w->c->nfiles)];
	struct range from = pick_range(w, f, w->c->cfg.max_io, 1);
	struct range to = pick_range(w, g, w->c->cfg.max_io, 1);
	uint64_t len = from.len < to.len ? from.len : to.len;
	int in = any_fd(w, f), out = writable_fd(w, g);

	trace(w,
	      "f%u %s off=%" PRIu64 " -> f%u %s off=%" PRIu64 " len=%" PRIu64,
	      f->index, fd_name(f, in), from.off, g->index, fd_name(g, out),
	      to.off, len);
	if (f == g && from.off < to.off + len && to.off < from.off + len)
		return 0;
	if (!len || (w->c->cfg.plain &&
		     (in == f->fd[FD_DIRECT] || out == g->fd[FD_DIRECT])))
		return 0;
	if (settle_range(w, f, from.off, len) ||
	    may_change(w, g, to.off, f->model + from.off, len))
		return -1;
	if (copy_range(w, in, from.off, out, to.off, len))
		return -1;
	model_write(w, g, to.off, f->model + from.off, len);
	return 0;
}

const struct op space_ops[] = {
	{ .name = "punch", .weight = 8, .run = op_punch },
	{ .name = "zero", .weight = 6, .run = op_zero },
	{ .name = "alloc", .weight = 1, .run = op_alloc },
	{ .name = "allocend", .weight = 1, .fixed = true, .run = op_alloc_end },
	{ .name = "punchend", .weight = 1, .run = op_punch_end },
	{ .name = "seek", .weight = 10, .run = op_seek },
	{ .name = "walk", .weight = 2, .run = op_walk },
	{ .name = "copy", .weight = 6, .run = op_copy },
	{ .name = NULL },
};
