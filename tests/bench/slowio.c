/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * slowio.c - to be preloaded: each write to a file, and each change of its
 * length, takes SLOWIO_US microseconds longer (2000), as on network storage.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static void slow(int fd)
{
	const char *text = getenv("SLOWIO_US");
	struct stat st;

	if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
		usleep(text ? (useconds_t)strtoul(text, NULL, 10) : 2000);
}

/* The next one of this name, with the same arguments. */
#define SLOW(type, name, params, args)                                        \
	type name params                                                      \
	{                                                                     \
		type(*real) params = (type(*) params)dlsym(RTLD_NEXT, #name); \
                                                                              \
		slow(fd);                                                     \
		return real args;                                             \
	}

SLOW(ssize_t, write, (int fd, const void *data, size_t len), (fd, data, len))
SLOW(ssize_t, pwrite, (int fd, const void *data, size_t len, off_t at),
     (fd, data, len, at))
SLOW(ssize_t, pwrite64, (int fd, const void *data, size_t len, off64_t at),
     (fd, data, len, at))
SLOW(ssize_t, writev, (int fd, const struct iovec *v, int n), (fd, v, n))
SLOW(ssize_t, pwritev, (int fd, const struct iovec *v, int n, off_t at),
     (fd, v, n, at))
SLOW(ssize_t, pwritev64, (int fd, const struct iovec *v, int n, off64_t at),
     (fd, v, n, at))
SLOW(int, ftruncate, (int fd, off_t len), (fd, len))
SLOW(int, ftruncate64, (int fd, off64_t len), (fd, len))
SLOW(int, fallocate, (int fd, int mode, off_t at, off_t len),
     (fd, mode, at, len))
SLOW(int, fallocate64, (int fd, int mode, off64_t at, off64_t len),
     (fd, mode, at, len))
