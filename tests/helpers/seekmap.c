/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * seekmap [-w] FILE...: the map of a file by lseek(2), as programs see it:
 *
 *	data START LENGTH
 *	hole START LENGTH
 *
 * in bytes, gapless from 0 to the end of the file. Says what is wrong and
 * exits with 1 where the answers contradict each other, or make no progress.
 * -w: the walk alone, as cp does it, two questions an extent of data.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int complain(const char *name, const char *what, int64_t at, int64_t got)
{
	fflush(stdout);
	fprintf(stderr, "seekmap: %s: %s at %" PRId64 ": %" PRId64 "\n", name,
		what, at, got);
	return -1;
}

/* SEEK_DATA at pos, where ENXIO means that no data follows. */
static int next_data(int fd, const char *name, int64_t pos, int64_t size,
		     int64_t *data)
{
	int64_t at = lseek(fd, pos, SEEK_DATA);

	if (at < 0 && errno == ENXIO) {
		*data = size;
		return 0;
	}
	if (at < 0)
		return complain(name, strerror(errno), pos, at);
	if (at < pos || at >= size)
		return complain(name, "SEEK_DATA out of range", pos, at);
	*data = at;
	return 0;
}

/* SEEK_HOLE at pos, a byte of data: must lie behind it. */
static int next_hole(int fd, const char *name, int64_t pos, int64_t size,
		     int64_t *hole)
{
	int64_t at = lseek(fd, pos, SEEK_HOLE);

	if (at < 0)
		return complain(name, strerror(errno), pos, at);
	if (at <= pos || at > size)
		return complain(name, "SEEK_HOLE without progress", pos, at);
	*hole = at;
	return 0;
}

/* The other question about the same bytes must agree: in a hole, SEEK_HOLE
 * stays where it is; in data, SEEK_DATA does, also at the last byte. */
static int agree(int fd, const char *name, bool data, int64_t from, int64_t to)
{
	int whence = data ? SEEK_DATA : SEEK_HOLE;
	int64_t at[] = { from, to - 1 };

	for (int i = 0; i < 2; i++) {
		int64_t got = lseek(fd, at[i], whence);

		if (got != at[i])
			return complain(name,
					data ? "SEEK_DATA inside data" :
					       "SEEK_HOLE inside a hole",
					at[i], got);
	}
	return 0;
}

static int print_run(int fd, const char *name, bool data, int64_t from,
		     int64_t to, bool walk)
{
	if (from == to)
		return 0;
	printf("%s %" PRId64 " %" PRId64 "\n", data ? "data" : "hole", from,
	       to - from);
	return walk ? 0 : agree(fd, name, data, from, to);
}

static int check_end(int fd, const char *name, int64_t size)
{
	if (lseek(fd, size, SEEK_DATA) != -1 || errno != ENXIO)
		return complain(name, "SEEK_DATA is not ENXIO", size, 0);
	if (lseek(fd, size, SEEK_HOLE) != -1 || errno != ENXIO)
		return complain(name, "SEEK_HOLE is not ENXIO", size, 0);
	return 0;
}

static int map_fd(int fd, const char *name, bool walk)
{
	int64_t pos = 0, data, hole, size = lseek(fd, 0, SEEK_END);

	if (size < 0)
		return complain(name, strerror(errno), 0, size);
	while (pos < size) {
		if (next_data(fd, name, pos, size, &data) < 0)
			return -1;
		/* two runs of data side by side: the map is not the largest */
		if (data == pos && pos > 0)
			return complain(name, "data directly after data", pos,
					data);
		if (print_run(fd, name, false, pos, data, walk) < 0)
			return -1;
		if (data == size)
			break;
		if (next_hole(fd, name, data, size, &hole) < 0 ||
		    print_run(fd, name, true, data, hole, walk) < 0)
			return -1;
		pos = hole;
	}
	return check_end(fd, name, size);
}

static int map_file(const char *name, bool walk)
{
	int fd = open(name, O_RDONLY | O_CLOEXEC), r;

	if (fd < 0)
		return complain(name, strerror(errno), 0, fd);
	r = map_fd(fd, name, walk);
	close(fd);
	return r;
}

int main(int argc, char **argv)
{
	int status = 0;
	bool walk = argc > 1 && strcmp(argv[1], "-w") == 0;

	if (argc < 2 + walk) {
		fprintf(stderr, "usage: seekmap [-w] FILE...\n");
		return 2;
	}
	for (int i = 1 + walk; i < argc; i++) {
		if (map_file(argv[i], walk) < 0)
			status = 1;
	}
	if (fflush(stdout) != 0)
		status = 1;
	return status;
}
