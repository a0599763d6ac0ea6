/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "blockdev.h"
#include "util.h"

#define PIPE_ROOM (1 << 20)

/* How to read and write without waiting in the kernel, although the
 * descriptor may be shared with programs that rely on its waiting. */
enum pipe_mode {
	MODE_OWN,    /* non-blocking: it is ours alone */
	MODE_SOCKET, /* MSG_DONTWAIT */
	MODE_READY,  /* one small step when it is ready */
	MODE_ALWAYS, /* never waits long: no pollable file */
};

struct pipe_dev {
	struct blockdev dev;
	struct loop *loop;
	char *name;
	int fd;
	enum pipe_mode mode;
	bool write;
	int restore; /* flags to set at the end, or -1 */
	bool ended, stopped;
	bool watching;
	struct loop_watch watch;
	struct dev_io *io; /* the one under way, or NULL */
	uint64_t pos;	   /* bytes of it that are done */
};

static void pipe_step(struct pipe_dev *p);

static void unwatch(struct pipe_dev *p)
{
	if (!p->watching)
		return;
	loop_watch_del(p->loop, &p->watch);
	p->watching = false;
}

static void finish(struct pipe_dev *p, int error)
{
	struct dev_io *io = p->io;

	unwatch(p);
	p->io = NULL;
	if (!p->write)
		io->got = error ? 0 : p->pos;
	io->done(io, error);
}

static void pipe_wait(struct pipe_dev *p)
{
	int r;

	if (p->watching)
		return;
	r = loop_watch_add(p->loop, &p->watch, p->write ? EPOLLOUT : EPOLLIN);
	if (r < 0)
		finish(p, r);
	else
		p->watching = true;
}

/* One read or write: bytes, or -errno. */
static ssize_t transfer(struct pipe_dev *p)
{
	uint8_t *data = p->io->data + p->pos;
	size_t len = p->io->len - p->pos;
	ssize_t n;

	/* That much goes into a pipe that is ready, without waiting. */
	if (p->mode == MODE_READY && p->write && len > PIPE_BUF)
		len = PIPE_BUF;
	if (p->mode == MODE_SOCKET && p->write)
		n = send(p->fd, data, len, MSG_DONTWAIT | MSG_NOSIGNAL);
	else if (p->mode == MODE_SOCKET)
		n = recv(p->fd, data, len, MSG_DONTWAIT);
	else if (p->write)
		n = write(p->fd, data, len);
	else
		n = read(p->fd, data, len);
	return n < 0 ? -errno : n;
}

/* Goes on with what is under way as far as it does not wait. */
static void pipe_step(struct pipe_dev *p)
{
	while (p->io) {
		ssize_t n = transfer(p);

		if (n == -EINTR)
			continue;
		if (n == -EAGAIN) {
			pipe_wait(p);
			return;
		}
		if (n == 0 && !p->write)
			p->ended = true;
		if (n <= 0) {
			finish(p, n == 0 && p->write ? -ENOSPC : (int)n);
			return;
		}
		p->pos += (uint64_t)n;
		if (p->pos == p->io->len) {
			finish(p, 0);
			return;
		}
		if (p->mode == MODE_READY) {
			pipe_wait(p);
			return;
		}
	}
}

static void pipe_is_ready(struct loop_watch *w, uint32_t events)
{
	struct pipe_dev *p = container_of(w, struct pipe_dev, watch);

	(void)events;
	unwatch(p);
	pipe_step(p);
}

/* A read ends when the buffer is full or the input ends, so that what is
 * written elsewhere comes in whole requests. */
static void pipe_submit(struct blockdev *dev, struct dev_io *io)
{
	struct pipe_dev *p = container_of(dev, struct pipe_dev, dev);

	assert(!p->io);
	p->io = io;
	p->pos = 0;
	if (p->stopped)
		finish(p, -EINTR);
	else if (p->ended)
		finish(p, 0);
	else if (p->mode == MODE_READY)
		pipe_wait(p);
	else
		pipe_step(p);
}

static void pipe_stop(struct blockdev *dev)
{
	struct pipe_dev *p = container_of(dev, struct pipe_dev, dev);

	p->stopped = true;
	if (p->io)
		finish(p, -EINTR);
}

/* It may be a file or a disk all the same, which is written in order. */
static void pipe_finish(struct blockdev *dev, struct dev_io *io)
{
	struct pipe_dev *p = container_of(dev, struct pipe_dev, dev);
	struct stat st;
	int r = 0;

	if (fstat(p->fd, &st) == 0 &&
	    (S_ISREG(st.st_mode) || S_ISBLK(st.st_mode)))
		r = file_finish(p->fd, io->flags & DEV_FLUSH);
	io->done(io, r);
}

static void pipe_close(struct blockdev *dev)
{
	struct pipe_dev *p = container_of(dev, struct pipe_dev, dev);

	assert(!p->io);
	if (p->restore >= 0)
		fcntl(p->fd, F_SETFL, p->restore);
	close(p->fd);
	free(p->name);
	free(p);
}

static const struct blockdev_ops source_ops = {
	.read = pipe_submit,
	.stop = pipe_stop,
	.close = pipe_close,
};

static const struct blockdev_ops destination_ops = {
	.write = pipe_submit,
	.finish = pipe_finish,
	.stop = pipe_stop,
	.close = pipe_close,
};

/* A pipe can be opened again, which gives flags of our own. */
static bool reopen(struct pipe_dev *p)
{
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", p->fd);
	fd = open(path,
		  (p->write ? O_WRONLY : O_RDONLY) | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		return false;
	close(p->fd);
	p->fd = fd;
	return true;
}

static bool set_nonblocking(struct pipe_dev *p)
{
	int flags = fcntl(p->fd, F_GETFL);

	if (flags < 0)
		return false;
	if (flags & O_NONBLOCK)
		return true;
	if (fcntl(p->fd, F_SETFL, flags | O_NONBLOCK) < 0)
		return false;
	p->restore = flags;
	return true;
}

static bool pollable(struct pipe_dev *p)
{
	if (loop_watch_add(p->loop, &p->watch, 0) < 0)
		return false;
	loop_watch_del(p->loop, &p->watch);
	return true;
}

static int choose_mode(struct pipe_dev *p)
{
	struct stat st;

	if (fstat(p->fd, &st) < 0)
		return -errno;
	if (S_ISSOCK(st.st_mode)) {
		p->mode = MODE_SOCKET;
	} else if (S_ISFIFO(st.st_mode)) {
		p->mode = MODE_OWN;
		if (!reopen(p) && !set_nonblocking(p))
			p->mode = MODE_READY;
		/* Fewer switches to and fro; as it is where not allowed. */
		fcntl(p->fd, F_SETPIPE_SZ, PIPE_ROOM);
	} else if (S_ISCHR(st.st_mode) && pollable(p)) {
		p->mode = MODE_READY;
	} else {
		p->mode = MODE_ALWAYS;
	}
	p->watch.fd = p->fd;
	return 0;
}

struct blockdev *dev_pipe_new(struct loop *loop, int fd, const char *name,
			      bool write, struct error *err)
{
	struct pipe_dev *p = calloc(1, sizeof(*p));
	int r = -ENOMEM;

	if (!p)
		goto fail;
	p->name = strdup(name);
	if (!p->name)
		goto fail;
	p->loop = loop;
	p->fd = p->watch.fd = fd;
	p->watch.ready = pipe_is_ready;
	p->write = write;
	p->restore = -1;
	r = choose_mode(p);
	if (r < 0)
		goto fail;
	p->dev.ops = write ? &destination_ops : &source_ops;
	p->dev.name = p->name;
	p->dev.size = UINT64_MAX;
	p->dev.caps = write ? DEV_CAN_WRITE : DEV_CAN_READ;
	p->dev.align = 1;
	p->dev.depth = 1;
	return &p->dev;

fail:
	error_set(err, "%s: %s", name, strerror(-r));
	if (p)
		free(p->name);
	free(p);
	return NULL;
}
