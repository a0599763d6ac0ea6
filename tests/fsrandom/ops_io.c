/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Reading and writing: at once, in vectors, synchronously, asynchronously,
 * over the end.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "fsr.h"

static int op_read(struct worker *w, struct file *f)
{
	int fd = any_fd(w, f);
	struct range r = pick_any(w, f, w->c->cfg.max_io, fd_align(w, f, fd));
	ssize_t n;

	trace(w, "f%u %s off=%" PRIu64 " len=%" PRIu64, f->index,
	      fd_name(f, fd), r.off, r.len);
	if (!r.len)
		return 0;
	memset(w->buf, 0xee, r.len);
	n = pread(fd, w->buf, r.len, (off_t)r.off);
	if (n < 0)
		return fail_errno(w, "pread");
	if ((uint64_t)n != r.len)
		return fail_short(w, "pread", n);
	return model_check(w, f, r.off, w->buf, r.len, false);
}

static int op_readv(struct worker *w, struct file *f)
{
	int fd = f->fd[rng_chance(&w->rng, 50) ? FD_MAIN : FD_READ];
	struct range r = pick_any(w, f, w->c->cfg.max_io, 1);
	struct iovec iov[3];
	uint64_t cut;
	ssize_t n;

	trace(w, "f%u %s off=%" PRIu64 " len=%" PRIu64, f->index,
	      fd_name(f, fd), r.off, r.len);
	if (r.len < 3)
		return 0;
	cut = 1 + rng_below(&w->rng, r.len - 2);
	iov[0] = (struct iovec){ w->buf, 1 };
	iov[1] = (struct iovec){ w->buf + 1, cut };
	iov[2] = (struct iovec){ w->buf + 1 + cut, r.len - 1 - cut };
	n = preadv(fd, iov, 3, (off_t)r.off);
	if (n < 0)
		return fail_errno(w, "preadv");
	if ((uint64_t)n != r.len)
		return fail_short(w, "preadv", n);
	return model_check(w, f, r.off, w->buf, r.len, false);
}

static int op_read_end(struct worker *w, struct file *f)
{
	uint64_t back = rng_below(&w->rng, 8192);
	uint64_t off = back < f->size ? f->size - back : 0;
	int fd = f->fd[rng_chance(&w->rng, 50) ? FD_MAIN : FD_READ];
	ssize_t n;

	trace(w, "f%u %s off=%" PRIu64, f->index, fd_name(f, fd), off);
	n = pread(fd, w->buf, 16384, (off_t)off);
	if (n < 0)
		return fail_errno(w, "pread over the end");
	if ((uint64_t)n != f->size - off)
		return fail_short(w, "pread over the end", n);
	if (model_check(w, f, off, w->buf, (uint64_t)n, false))
		return -1;
	n = pread(fd, w->buf, 512, (off_t)(f->size + back));
	if (n < 0)
		return fail_errno(w, "pread behind the end");
	if (n != 0)
		return fail(w, "pread behind the end gave %zd", n);
	return 0;
}

static int do_write(struct worker *w, struct file *f, int fd, int flags)
{
	struct range r = pick_range(w, f, w->c->cfg.max_io, fd_align(w, f, fd));
	struct iovec iov = { w->buf, r.len };
	ssize_t n;

	trace(w, "f%u %s off=%" PRIu64 " len=%" PRIu64 " flags=%d", f->index,
	      fd_name(f, fd), r.off, r.len, flags);
	if (!r.len)
		return 0;
	fill_data(w, w->buf, r.len);
	if (may_change(w, f, r.off, w->buf, r.len))
		return -1;
	if (flags)
		n = pwritev2(fd, &iov, 1, (off_t)r.off, flags);
	else
		n = pwrite(fd, w->buf, r.len, (off_t)r.off);
	if (n < 0)
		return fail_errno(w, "pwrite");
	if ((uint64_t)n != r.len)
		return fail_short(w, "pwrite", n);
	model_write(w, f, r.off, w->buf, r.len);
	if (flags || fd == f->fd[FD_SYNC])
		return is_durable(w, f, r.off, r.len);
	return 0;
}

static int op_write(struct worker *w, struct file *f)
{
	return do_write(w, f, writable_fd(w, f), 0);
}

static int op_dsync(struct worker *w, struct file *f)
{
	return do_write(w, f, f->fd[FD_MAIN],
			rng_chance(&w->rng, 50) ? RWF_DSYNC : RWF_SYNC);
}

/* Many small neighbours, as tar writes them. */
static int op_small(struct worker *w, struct file *f)
{
	struct range r = pick_range(w, f, 65536, 1);
	int fd = f->fd[rng_chance(&w->rng, 50) ? FD_MAIN : FD_SECOND];
	uint64_t done = 0, piece = 1 + rng_below(&w->rng, 4096), len;
	ssize_t n;

	/* Enough to be merged, not so many that all time goes here. */
	if (r.len / piece > 64)
		piece = r.len / 64;
	trace(w, "f%u %s off=%" PRIu64 " len=%" PRIu64 " piece=%" PRIu64,
	      f->index, fd_name(f, fd), r.off, r.len, piece);
	if (!r.len)
		return 0;
	fill_data(w, w->buf, r.len);
	if (may_change(w, f, r.off, w->buf, r.len))
		return -1;
	for (done = 0; done < r.len; done += len) {
		len = r.len - done < piece ? r.len - done : piece;
		n = pwrite(fd, w->buf + done, len, (off_t)(r.off + done));
		if (n < 0)
			return fail_errno(w, "pwrite");
		if ((uint64_t)n != len)
			return fail_short(w, "pwrite", n);
	}
	model_write(w, f, r.off, w->buf, r.len);
	return 0;
}

/* Only what fits is written; at the end nothing does. */
static int op_write_end(struct worker *w, struct file *f)
{
	int fd = writable_fd(w, f);
	uint64_t len = 1 + rng_below(&w->rng, 8192), fits, off;
	ssize_t n;

	fits = rng_chance(&w->rng, 50) ? 0 : rng_below(&w->rng, len);
	if (fits > f->size)
		fits = 0;
	off = f->size - fits;
	if (fits && (!owns(w, f, off) || owned_until(w, f, off) < f->size))
		return 0;
	trace(w, "f%u %s off=%" PRIu64 " len=%" PRIu64, f->index,
	      fd_name(f, fd), off, len);
	fill_data(w, w->buf, len);
	if (may_change(w, f, off, w->buf, fits))
		return -1;
	errno = 0;
	n = pwrite(fd, w->buf, len, (off_t)off);
	if (!fits) {
		if (n < 0 && loss_allowed(w, errno))
			return fail_errno(w, "pwrite at the end");
		if (n != -1 || errno != ENOSPC)
			return fail(w, "pwrite at the end: %zd, %s", n,
				    strerror(errno));
		return 0;
	}
	/* The kernel makes EIO of what a direct write leaves out. */
	if (n < 0 && errno == EIO && fd == f->fd[FD_DIRECT] && !w->c->cfg.lossy)
		n = (ssize_t)fits;
	if (n < 0)
		return fail_errno(w, "pwrite over the end");
	if ((uint64_t)n != fits)
		return fail_short(w, "pwrite over the end", n);
	model_write(w, f, off, w->buf, fits);
	return 0;
}

static int op_sync(struct worker *w, struct file *f)
{
	int fd = any_fd(w, f);
	bool data = rng_chance(&w->rng, 50);

	trace(w, "f%u %s data=%d", f->index, fd_name(f, fd), data);
	return sync_fd(w, f, fd, data);
}

/* Closing a duplicate sends the file system a flush. */
static int op_dup(struct worker *w, struct file *f)
{
	int fd = any_fd(w, f), copy;

	trace(w, "f%u %s", f->index, fd_name(f, fd));
	copy = dup(fd);
	if (copy < 0)
		return fail_errno(w, "dup");
	if (close(copy))
		return fail_errno(w, "close of a duplicate");
	return 0;
}

static int op_stat(struct worker *w, struct file *f)
{
	int fd = any_fd(w, f);
	bool by_path = rng_chance(&w->rng, 50);
	struct stat st;

	trace(w, "f%u %s path=%d", f->index, fd_name(f, fd), by_path);
	if (by_path ? stat(f->path, &st) : fstat(fd, &st))
		return fail_errno(w, "stat");
	if ((uint64_t)st.st_size != f->size)
		return fail(w, "st_size is %" PRIu64, (uint64_t)st.st_size);
	if (w->c->cfg.plain)
		return 0;
	if (st.st_blocks < 1)
		return fail(w, "st_blocks is %lld", (long long)st.st_blocks);
	if ((uint64_t)st.st_blocks > (f->size + 511) / 512)
		return fail(w, "st_blocks is %lld, of a size of %" PRIu64,
			    (long long)st.st_blocks, f->size);
	return 0;
}

static int op_append(struct worker *w, struct file *f)
{
	int fd = open(f->path, O_WRONLY | O_APPEND | O_CLOEXEC);
	ssize_t n;
	int error;

	trace(w, "f%u", f->index);
	if (fd < 0)
		return fail_errno(w, "open to append");
	memset(w->buf, 0x5a, 512);
	n = write(fd, w->buf, 512);
	error = errno;
	if (close(fd))
		return fail_errno(w, "close");
	errno = error;
	if (n < 0 && loss_allowed(w, error))
		return fail_errno(w, "append");
	if (n != -1 || error != ENOSPC)
		return fail(w, "an appending write gave %zd, %s", n,
			    strerror(n < 0 ? error : 0));
	return 0;
}

/* ---------------------------------------------------- asynchronous I/O */

#define AIO_MAX 8

struct aio_piece {
	struct iocb cb;
	uint64_t off, len;
	bool write;
};

static int aio_submit_all(struct worker *w, struct aio_piece *p, unsigned n)
{
	struct iocb *cbs[AIO_MAX];
	unsigned i, done;
	long ret;

	for (i = 0; i < n; i++)
		cbs[i] = &p[i].cb;
	for (done = 0; done < n; done += (unsigned)ret) {
		ret = syscall(SYS_io_submit, w->aio, (long)(n - done),
			      cbs + done);
		if (ret < 0)
			return fail_errno(w, "io_submit");
	}
	return 0;
}

static int aio_failed(struct worker *w, const struct aio_piece *p, int64_t res)
{
	const char *what = p->write ? "write" : "read";

	errno = (int)-res;
	if ((res < 0 && loss_allowed(w, errno)) ||
	    (res > 0 && (uint64_t)res < p->len))
		return fail_short(w, what, 1);
	return fail(w, "aio %s off=%" PRIu64 " len=%" PRIu64 " gave %lld", what,
		    p->off, p->len, (long long)res);
}

static int aio_wait_all(struct worker *w, unsigned n)
{
	struct io_event ev[AIO_MAX];
	const struct aio_piece *p;
	unsigned done = 0;
	long ret, i;
	int bad = 0;

	while (done < n) {
		ret = syscall(SYS_io_getevents, w->aio, 1L, (long)(n - done),
			      ev, NULL);
		if (ret < 0 && errno == EINTR)
			continue;
		if (ret < 0)
			return fail_errno(w, "io_getevents");
		for (i = 0; i < ret; i++) {
			p = (const void *)(uintptr_t)ev[i].data;
			if (ev[i].res != (int64_t)p->len && !bad)
				bad = aio_failed(w, p, ev[i].res);
		}
		done += (unsigned)ret;
	}
	return bad;
}

/* Cuts a range into pieces; each is read or written, all at once. */
static unsigned aio_plan(struct worker *w, struct file *f, struct range r,
			 struct aio_piece *p, uint64_t align)
{
	unsigned want = 1 + (unsigned)rng_below(&w->rng, AIO_MAX), n = 0;
	uint64_t piece = r.len / want / align * align, off;

	if (!piece)
		return 0;
	for (off = r.off; n < want; off += piece, n++) {
		memset(&p[n], 0, sizeof(p[n]));
		p[n].off = off;
		p[n].len = piece;
		p[n].write = rng_chance(&w->rng, 50);
		if (align == 1 && piece > 1 && rng_chance(&w->rng, 30))
			p[n].len -= rng_below(&w->rng, piece);
		p[n].cb.aio_fildes = (uint32_t)f->fd[FD_DIRECT];
		p[n].cb.aio_lio_opcode = p[n].write ? IOCB_CMD_PWRITE :
						      IOCB_CMD_PREAD;
		p[n].cb.aio_buf = (uintptr_t)(w->buf + (off - r.off));
		p[n].cb.aio_nbytes = p[n].len;
		p[n].cb.aio_offset = (int64_t)off;
		p[n].cb.aio_data = (uintptr_t)&p[n];
	}
	return n;
}

static int op_aio(struct worker *w, struct file *f)
{
	uint64_t align = w->c->cfg.plain ? PAGE : 1;
	struct range r = pick_range(w, f, w->c->cfg.max_io, align);
	struct aio_piece p[AIO_MAX];
	unsigned n, i;

	n = aio_plan(w, f, r, p, align);
	trace(w, "f%u off=%" PRIu64 " len=%" PRIu64 " pieces=%u", f->index,
	      r.off, r.len, n);
	if (!n)
		return 0;
	fill_data(w, w->buf, r.len);
	for (i = 0; i < n; i++) {
		if (p[i].write &&
		    may_change(w, f, p[i].off, w->buf + (p[i].off - r.off),
			       p[i].len))
			return -1;
	}
	if (aio_submit_all(w, p, n) || aio_wait_all(w, n))
		return -1;
	for (i = 0; i < n; i++) {
		const uint8_t *data = w->buf + (p[i].off - r.off);

		if (p[i].write)
			model_write(w, f, p[i].off, data, p[i].len);
		else if (model_check(w, f, p[i].off, data, p[i].len, false))
			return -1;
	}
	return 0;
}

const struct op io_ops[] = {
	{ .name = "read", .weight = 20, .run = op_read },
	{ .name = "readv", .weight = 3, .run = op_readv },
	{ .name = "readend", .weight = 2, .run = op_read_end },
	{ .name = "write", .weight = 25, .run = op_write },
	{ .name = "dsync", .weight = 3, .run = op_dsync },
	{ .name = "small", .weight = 3, .run = op_small },
	{ .name = "writeend", .weight = 2, .fixed = true, .run = op_write_end },
	{ .name = "append", .weight = 1, .fixed = true, .run = op_append },
	{ .name = "sync", .weight = 4, .run = op_sync },
	{ .name = "dup", .weight = 2, .run = op_dup },
	{ .name = "stat", .weight = 4, .run = op_stat },
	{ .name = "aio", .weight = 8, .run = op_aio },
	{ .name = NULL },
};
