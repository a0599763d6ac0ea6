/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fsr.h"

static const struct {
	const char *name;
	int flags;
} kinds[FD_COUNT] = {
	[FD_MAIN] = { "main", O_RDWR },
	[FD_SECOND] = { "second", O_RDWR },
	[FD_DIRECT] = { "direct", O_RDWR | O_DIRECT },
	[FD_SYNC] = { "sync", O_RDWR | O_SYNC },
	[FD_READ] = { "read", O_RDONLY },
};

const char *fd_name(const struct file *f, int fd)
{
	size_t i;

	for (i = 0; i < FD_COUNT; i++) {
		if (f->fd[i] == fd)
			return kinds[i].name;
	}
	return "?";
}

int writable_fd(struct worker *w, const struct file *f)
{
	return f->fd[rng_below(&w->rng, FD_READ)];
}

int any_fd(struct worker *w, const struct file *f)
{
	return f->fd[rng_below(&w->rng, FD_COUNT)];
}

uint64_t fd_align(const struct worker *w, const struct file *f, int fd)
{
	return w->c->cfg.plain && fd == f->fd[FD_DIRECT] ? PAGE : 1;
}

static int read_all(const char *path, uint8_t *data, uint64_t size)
{
	uint64_t done = 0;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = -1;

	if (fd < 0)
		return -1;
	while (done < size) {
		n = pread(fd, data + done, size - done, (off_t)done);
		if (n <= 0)
			break;
		done += (uint64_t)n;
	}
	close(fd);
	/* Known contents may end early: zeroes follow. */
	return n < 0 ? -1 : 0;
}

int file_prepare(struct ctx *c, struct file *f)
{
	const char *from = f->initial ? f->initial : f->path;
	struct stat st;
	size_t i;

	for (i = 0; i < FD_COUNT; i++)
		f->fd[i] = -1;
	if (stat(f->path, &st) < 0) {
		fprintf(stderr, "fsrandom: %s: %s\n", f->path, strerror(errno));
		return -1;
	}
	f->size = (uint64_t)st.st_size;
	if (f->size == 0 || (c->cfg.size && c->cfg.size != f->size)) {
		fprintf(stderr, "fsrandom: %s: its size is %" PRIu64 "\n",
			f->path, f->size);
		return -1;
	}
	f->model = calloc(1, f->size);
	f->by = calloc(f->size, sizeof(*f->by));
	f->base = malloc(f->size);
	if (!f->model || !f->by || !f->base ||
	    read_all(from, f->model, f->size)) {
		fprintf(stderr, "fsrandom: %s: %s\n", from, strerror(errno));
		return -1;
	}
	memcpy(f->base, f->model, f->size);
	return 0;
}

int file_open(struct worker *w, struct file *f, bool truncate)
{
	int flags;
	size_t i;

	for (i = 0; i < FD_COUNT; i++) {
		if (f->fd[i] >= 0)
			continue;
		flags = kinds[i].flags | O_CLOEXEC;
		if (truncate && i == FD_MAIN)
			flags |= O_TRUNC;
		f->fd[i] = open(f->path, flags);
		if (f->fd[i] < 0)
			return fail_errno(w, kinds[i].name);
	}
	if (truncate && w->c->cfg.plain &&
	    ftruncate(f->fd[FD_MAIN], (off_t)f->size))
		return fail_errno(w, "ftruncate");
	return 0;
}

/* Closes all, also when one of them has something to report. */
int file_close(struct worker *w, struct file *f)
{
	int ret = 0;
	size_t i;

	if (f->map && munmap(f->map, f->size))
		return fail_errno(w, "munmap");
	f->map = NULL;
	f->map_dirty = false;
	for (i = 0; i < FD_COUNT; i++) {
		if (f->fd[i] >= 0 && close(f->fd[i]))
			ret = fail_errno(w, "close");
		f->fd[i] = -1;
	}
	return ret;
}

int file_map(struct worker *w, struct file *f)
{
	f->map = mmap(NULL, f->size, PROT_READ | PROT_WRITE, MAP_SHARED,
		      f->fd[rng_chance(&w->rng, 50) ? FD_MAIN : FD_SECOND], 0);
	if (f->map == MAP_FAILED) {
		f->map = NULL;
		return fail_errno(w, "mmap");
	}
	/* Pages read around a fault would be those of other workers, and
	 * stale as soon as these write. */
	if (w->c->cfg.threads > 1 && madvise(f->map, f->size, MADV_RANDOM))
		return fail_errno(w, "madvise");
	return 0;
}

int file_save_model(const struct file *f)
{
	uint64_t done = 0;
	ssize_t n;
	int fd;

	if (!f->result)
		return 0;
	fd = open(f->result, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0)
		goto err;
	while (done < f->size) {
		n = write(fd, f->model + done, f->size - done);
		if (n < 0)
			goto err;
		done += (uint64_t)n;
	}
	if (close(fd) == 0)
		return 0;
	fd = -1;
err:
	fprintf(stderr, "fsrandom: %s: %s\n", f->result, strerror(errno));
	if (fd >= 0)
		close(fd);
	return -1;
}
