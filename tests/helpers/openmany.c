/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * openmany FILE COUNT BYTES: opens a file COUNT times, and reads through all
 * these handles by turns, 64 KiB at a time, BYTES in all. Every handle is a
 * sequential reader of a part of its own.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define PIECE (64U << 10)

static unsigned char data[PIECE];

static int read_by_turns(const int *fds, uint64_t count, off_t size,
			 uint64_t bytes)
{
	uint64_t part = (uint64_t)size / count / PIECE * PIECE;

	for (uint64_t done = 0; done < bytes; done += PIECE) {
		uint64_t turn = done / PIECE;
		uint64_t who = turn % count;
		uint64_t at = who * part + (turn / count * PIECE) % part;
		ssize_t n = pread(fds[who], data, PIECE, (off_t)at);

		if (n < 0)
			return -errno;
		if (n != PIECE)
			return -EIO;
	}
	return 0;
}

static int open_all(const char *name, int *fds, uint64_t count)
{
	for (uint64_t i = 0; i < count; i++) {
		fds[i] = open(name, O_RDONLY | O_CLOEXEC);
		if (fds[i] < 0)
			return -errno;
	}
	return 0;
}

int main(int argc, char **argv)
{
	struct rlimit limit;
	uint64_t count, bytes;
	off_t size;
	int *fds, err;

	if (argc != 4) {
		fprintf(stderr, "usage: openmany FILE COUNT BYTES\n");
		return 2;
	}
	count = strtoull(argv[2], NULL, 10);
	bytes = strtoull(argv[3], NULL, 10);
	if (!getrlimit(RLIMIT_NOFILE, &limit)) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
	fds = count && count < 1000000 ? calloc(count, sizeof(*fds)) : NULL;
	if (!fds)
		return 2;
	err = open_all(argv[1], fds, count);
	if (!err) {
		size = lseek(fds[0], 0, SEEK_END);
		err = size / (off_t)count < PIECE ? -EINVAL : 0;
		if (!err)
			err = read_by_turns(fds, count, size, bytes);
	}
	free(fds);
	if (err)
		fprintf(stderr, "openmany: %s: %s\n", argv[1], strerror(-err));
	return err ? 1 : 0;
}
