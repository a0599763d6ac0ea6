/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Through shared mappings. Pages are shared by whoever owns a byte of them,
 * and the kernel does not merge a mapped page with a direct write beside it:
 * these run only where each page has one owner.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fsr.h"

static int op_map_read(struct worker *w, struct file *f)
{
	struct range r = pick_range(w, f, w->c->cfg.max_io, 1);

	trace(w, "f%u off=%" PRIu64 " len=%" PRIu64, f->index, r.off, r.len);
	if (map_copy(w, w->buf, f->map + r.off, r.len))
		return -1;
	return model_check(w, f, r.off, w->buf, r.len, false);
}

static int sync_map(struct worker *w, struct file *f, uint64_t off,
		    uint64_t len)
{
	uint64_t start = off / PAGE * PAGE;
	int how = rng_chance(&w->rng, 70) ? MS_SYNC : MS_ASYNC;

	if (msync(f->map + start, off + len - start, how))
		return fail_errno(w, "msync");
	return 0;
}

static int op_map_write(struct worker *w, struct file *f)
{
	uint64_t max = rng_chance(&w->rng, 70) ? 65536 : w->c->cfg.max_io;
	struct range r = pick_range(w, f, max, 1);
	bool sync = rng_chance(&w->rng, 40);

	trace(w, "f%u off=%" PRIu64 " len=%" PRIu64 " sync=%d", f->index, r.off,
	      r.len, sync);
	if (!r.len)
		return 0;
	fill_data(w, w->buf, r.len);
	/* Only seen by truncations, which hold all others off. */
	__atomic_store_n(&f->map_dirty, true, __ATOMIC_RELAXED);
	if (may_change(w, f, r.off, w->buf, r.len) ||
	    map_copy(w, f->map + r.off, w->buf, r.len))
		return -1;
	model_write(w, f, r.off, w->buf, r.len);
	return sync ? sync_map(w, f, r.off, r.len) : 0;
}

/* Data that comes from, or goes into, a mapping of the same file. */
static int op_map_self(struct worker *w, struct file *f)
{
	struct range a = pick_range(w, f, 65536, 1);
	struct range b = pick_range(w, f, 65536, 1);
	uint64_t len = a.len < b.len ? a.len : b.len, gap;
	bool write = rng_chance(&w->rng, 50);
	int fd = f->fd[FD_MAIN];
	ssize_t n;

	trace(w, "f%u %s map=%" PRIu64 " off=%" PRIu64 " len=%" PRIu64,
	      f->index, write ? "write" : "read", a.off, b.off, len);
	gap = a.off > b.off ? a.off - b.off : b.off - a.off;
	if (!len || gap < len + PAGE)
		return 0;
	if (settle_range(w, f, write ? a.off : b.off, len) ||
	    may_change(w, f, write ? b.off : a.off,
		       f->model + (write ? a.off : b.off), len))
		return -1;
	if (write) {
		n = pwrite(fd, f->map + a.off, len, (off_t)b.off);
	} else {
		__atomic_store_n(&f->map_dirty, true, __ATOMIC_RELAXED);
		n = pread(fd, f->map + a.off, len, (off_t)b.off);
	}
	/* Pages that cannot be read. */
	if (w->c->cfg.lossy &&
	    ((n < 0 && errno == EFAULT) || (n >= 0 && (uint64_t)n < len))) {
		n = -1;
		errno = EIO;
	}
	if (n < 0)
		return fail_errno(w, "I/O on mapped memory");
	if ((uint64_t)n != len)
		return fail(w, "I/O on mapped memory gave %zd", n);
	if (write)
		model_write(w, f, b.off, f->model + a.off, len);
	else
		model_write(w, f, a.off, f->model + b.off, len);
	return 0;
}

static int op_msync(struct worker *w, struct file *f)
{
	struct range r = pick_range(w, f, f->size, 1);

	trace(w, "f%u off=%" PRIu64 " len=%" PRIu64, f->index, r.off, r.len);
	return r.len ? sync_map(w, f, r.off, r.len) : 0;
}

/* The pages go, the contents stay. */
static int op_forget(struct worker *w, struct file *f)
{
	struct range r = pick_range(w, f, f->size, PAGE);

	trace(w, "f%u off=%" PRIu64 " len=%" PRIu64, f->index, r.off, r.len);
	if (!r.len)
		return 0;
	if (madvise(f->map + r.off, r.len, MADV_DONTNEED))
		return fail_errno(w, "madvise");
	errno = posix_fadvise(f->fd[FD_MAIN], (off_t)r.off, (off_t)r.len,
			      POSIX_FADV_DONTNEED);
	if (errno)
		return fail_errno(w, "posix_fadvise");
	return 0;
}

const struct op map_ops[] = {
	{ .name = "mapread",
	  .weight = 8,
	  .mapped = true,
	  .paged = true,
	  .run = op_map_read },
	{ .name = "mapwrite",
	  .weight = 10,
	  .mapped = true,
	  .paged = true,
	  .run = op_map_write },
	{ .name = "mapself",
	  .weight = 2,
	  .mapped = true,
	  .paged = true,
	  .single = true,
	  .run = op_map_self },
	{ .name = "msync",
	  .weight = 2,
	  .mapped = true,
	  .paged = true,
	  .run = op_msync },
	{ .name = "forget",
	  .weight = 2,
	  .mapped = true,
	  .paged = true,
	  .run = op_forget },
	{ .name = NULL },
};
