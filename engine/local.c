/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/fs.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "local.h"
#include "util.h"

#define FUSE_MAGIC 0x65735546
#define SYSFS_MAGIC 0x62656572

static int fail(struct error *err, const char *name, int e)
{
	error_set(err, "%s: %s", *name ? name : "''", strerror(e));
	return -e;
}

static int open_again(const char *path, int flags)
{
	int fd;

	do {
		fd = open(path, flags | O_CLOEXEC, 0666);
	} while (fd < 0 && errno == EINTR);
	return fd;
}

static int cannot_open(struct error *err, const char *path)
{
	struct stat st;
	int e = errno;

	if (e == ENOENT && (strstr(path, "://") ||
			    strncmp(path, "nbd:", strlen("nbd:")) == 0)) {
		error_set(err,
			  "%s: neither a file nor an NBD URI, such as "
			  "nbd://HOST/EXPORT or nbd+unix:///?socket=PATH",
			  path);
		return -e;
	}
	if (e != ENXIO || stat(path, &st) < 0 || !S_ISSOCK(st.st_mode))
		return fail(err, path, e);
	error_set(err, "%s: is a socket; its server is nbd+unix:///?socket=%s",
		  path, path);
	return -e;
}

static bool lies_on(int fd, unsigned long magic)
{
	struct statfs fs;

	return fstatfs(fd, &fs) == 0 && (unsigned long)fs.f_type == magic;
}

/* Files that the kernel writes while they are read, as in /proc and /sys, do
 * not have the size that they say. */
static bool size_means_nothing(int fd, uint64_t size)
{
	char byte;
	ssize_t n;

	if (size > 0)
		return lies_on(fd, SYSFS_MAGIC);
	do {
		n = pread(fd, &byte, 1, 0);
	} while (n < 0 && errno == EINTR);
	/* What goes wrong here is told by who reads it. */
	return n != 0;
}

static int block_size(int fd, uint64_t *size)
{
	return ioctl(fd, BLKGETSIZE64, size) < 0 ? -errno : 0;
}

/* What l->fd is. */
static int look(struct local *l, struct error *err)
{
	struct stat st;
	int r;

	if (fstat(l->fd, &st) < 0)
		return fail(err, l->name, errno);
	l->dev = st.st_dev;
	l->ino = st.st_ino;
	l->rdev = st.st_rdev;
	l->type = st.st_mode & S_IFMT;
	l->size = UINT64_MAX;
	l->kind = LOCAL_PIPE;
	if (S_ISREG(st.st_mode)) {
		l->kind = LOCAL_FILE;
		l->size = (uint64_t)st.st_size;
		l->fuse = lies_on(l->fd, FUSE_MAGIC);
	} else if (S_ISBLK(st.st_mode)) {
		l->kind = LOCAL_BLOCK;
		r = block_size(l->fd, &l->size);
		if (r < 0)
			return fail(err, l->name, -r);
	} else if (S_ISDIR(st.st_mode)) {
		return fail(err, l->name, EISDIR);
	}
	return 0;
}

/* Standard input and output may be anywhere in a file, or append to it; then
 * they are used as they are, in order. */
static bool in_the_middle(const struct local *l)
{
	int flags = fcntl(l->fd, F_GETFL);

	return flags < 0 || (flags & O_APPEND) ||
	       lseek(l->fd, 0, SEEK_CUR) != 0;
}

/* Read, or written, as it comes. */
static void as_pipe(struct local *l)
{
	l->kind = LOCAL_PIPE;
	l->size = UINT64_MAX;
}

static int take_standard(struct local *l, int fd, struct error *err)
{
	int r;

	if (l->write && isatty(fd)) {
		error_set(err, "%s: a terminal is no place for a disk",
			  l->name);
		return -EINVAL;
	}
	l->standard = true;
	l->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	if (l->fd < 0)
		return fail(err, l->name, errno);
	r = look(l, err);
	if (r == 0 && l->kind != LOCAL_PIPE && in_the_middle(l))
		as_pipe(l);
	return r;
}

int local_open_source(const char *path, struct local *l, struct error *err)
{
	int r;

	*l = (struct local){ .fd = -1, .name = path, .read = true };
	if (strcmp(path, "-") == 0) {
		l->name = "standard input";
		r = take_standard(l, STDIN_FILENO, err);
	} else {
		l->fd = open_again(path, O_RDONLY);
		if (l->fd < 0)
			return cannot_open(err, path);
		r = look(l, err);
	}
	if (r == 0 && l->kind == LOCAL_FILE &&
	    size_means_nothing(l->fd, l->size))
		as_pipe(l);
	if (r < 0)
		local_close(l);
	return r;
}

int local_size_now(const struct local *l, uint64_t *size)
{
	struct stat st;

	*size = l->size;
	if (l->kind == LOCAL_PIPE)
		return 0;
	if (l->kind == LOCAL_BLOCK)
		return block_size(l->fd, size);
	if (fstat(l->fd, &st) < 0)
		return -errno;
	*size = (uint64_t)st.st_size;
	return 0;
}

/* --------------------------------------------------------- destinations */

/* Also where one of them is used in order only, as standard input in the middle
 * of a file is. */
static bool same(const struct local *a, const struct local *b)
{
	if (a->type != b->type)
		return false;
	if (S_ISBLK(a->type))
		return a->rdev == b->rdev;
	return S_ISREG(a->type) && a->dev == b->dev && a->ino == b->ino;
}

static int too_small(struct error *err, const struct local *l, uint64_t size)
{
	error_set(err,
		  "%s: too small: %" PRIu64 " bytes, the source has %" PRIu64,
		  l->name, l->size, size);
	return -ENOSPC;
}

int local_set_size(const char *name, int fd, uint64_t size, struct error *err)
{
	int r;

	if (size > INT64_MAX)
		return fail(err, name, EFBIG);
	do {
		r = ftruncate(fd, (off_t)size);
	} while (r < 0 && errno == EINTR);
	return r < 0 ? fail(err, name, errno) : 0;
}

/* A file becomes empty, and then as long as the source: that is the cheapest
 * way to have zeroes everywhere. Where a file keeps its size whatever happens
 * (an export of a mount), nothing is known of its contents; and whether it is
 * large enough is asked before it is emptied. */
static int prepare_file(struct local *l, uint64_t size, struct error *err)
{
	struct stat st;
	int r;

	if (l->size > 0) {
		if (l->fuse && size != UINT64_MAX && size > l->size) {
			r = local_set_size(l->name, l->fd, size, err);
			if (r == -EFBIG || r == -ENOSPC)
				return too_small(err, l, size);
			if (r < 0)
				return r;
		}
		r = local_set_size(l->name, l->fd, 0, err);
		if (r < 0)
			return r;
		if (fstat(l->fd, &st) < 0)
			return fail(err, l->name, errno);
		l->size = (uint64_t)st.st_size;
	}
	l->is_zero = l->size == 0;
	if (size == UINT64_MAX) {
		if (l->is_zero)
			l->size = UINT64_MAX;
		return 0;
	}
	r = size ? local_set_size(l->name, l->fd, size, err) : 0;
	/* Where it is fixed, what is behind the source's end stays. */
	if (r == 0)
		l->size = max_u64(l->size, size);
	return r;
}

static int prepare(struct local *l, const struct local_want *want,
		   struct error *err)
{
	if (want->source && same(l, want->source)) {
		error_set(err, "%s: is the source itself", l->name);
		return -EINVAL;
	}
	if (want->keep && l->kind == LOCAL_PIPE) {
		error_set(err, "%s: is no image that could be changed",
			  l->name);
		return -EINVAL;
	}
	if ((l->kind == LOCAL_BLOCK || want->keep) &&
	    want->size != UINT64_MAX && want->size > l->size)
		return too_small(err, l, want->size);
	if (l->kind == LOCAL_FILE && !want->keep)
		return prepare_file(l, want->size, err);
	return 0;
}

/* A device that is missing must not become a file of that name. */
static bool is_device_name(const char *path)
{
	return strncmp(path, "/dev/", 5) == 0 &&
	       strncmp(path, "/dev/shm/", 9) != 0;
}

static int open_dest_path(struct local *l, const struct local_want *want,
			  struct error *err)
{
	struct stat st;
	int flags = want->read_back ? O_RDWR : O_WRONLY;

	if (stat(l->name, &st) < 0)
		flags |= is_device_name(l->name) || want->keep ? 0 : O_CREAT;
	else if (!S_ISREG(st.st_mode) && !S_ISBLK(st.st_mode))
		flags = O_WRONLY;
	l->fd = open_again(l->name, flags);
	if (l->fd < 0)
		return cannot_open(err, l->name);
	return look(l, err);
}

int local_open_dest(const char *path, const struct local_want *want,
		    struct local *l, struct error *err)
{
	int r;

	*l = (struct local){
		.fd = -1,
		.name = path,
		.read = want->read_back,
		.write = true,
	};
	if (strcmp(path, "-") == 0) {
		l->name = "standard output";
		r = take_standard(l, STDOUT_FILENO, err);
		/* Not ours to empty. */
		if (r == 0 && l->kind == LOCAL_FILE && l->size > 0)
			as_pipe(l);
	} else {
		r = open_dest_path(l, want, err);
	}
	if (r == 0)
		r = prepare(l, want, err);
	if (r < 0)
		local_close(l);
	return r;
}

/* -------------------------------------------------------------- devices */

struct blockdev *local_device(struct local *l, struct loop *loop,
			      struct workers *workers, bool share,
			      struct error *err)
{
	struct blockdev *dev;
	int fd = l->fd;

	if (share)
		fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	if (fd < 0) {
		fail(err, l->name, errno);
		return NULL;
	}
	if (l->kind == LOCAL_PIPE) {
		dev = dev_pipe_new(loop, fd, l->name, l->write, err);
	} else {
		struct dev_file_params p = {
			.fd = fd,
			.name = l->name,
			.size = l->size,
			.block = l->kind == LOCAL_BLOCK,
			.read = l->read,
			.write = l->write,
			.is_zero = l->is_zero,
			.workers = workers,
		};

		dev = dev_file_new(&p, err);
	}
	if (share && !dev)
		close(fd);
	if (!share && dev)
		l->fd = -1;
	return dev;
}

void local_close(struct local *l)
{
	if (l->fd >= 0)
		close(l->fd);
	l->fd = -1;
}
