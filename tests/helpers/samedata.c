/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * samedata A B: whether two files hold the same bytes. Skips only what both
 * call a hole, so that one truthful file is enough to find a lie in the other.
 * Says the first difference and exits with 1; with 2 where it cannot tell.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHUNK (1U << 20)

struct side {
	const char *name;
	int fd;
	off_t size;
	unsigned char *data;
};

static int open_side(struct side *side, const char *name)
{
	side->name = name;
	side->fd = open(name, O_RDONLY | O_CLOEXEC);
	if (side->fd < 0)
		return -errno;
	side->size = lseek(side->fd, 0, SEEK_END);
	if (side->size < 0)
		return -errno;
	side->data = malloc(CHUNK);
	return side->data ? 0 : -ENOMEM;
}

/* Where the next data may begin, at pos or later; the size for none. */
static off_t next_data(const struct side *side, off_t pos)
{
	off_t at = lseek(side->fd, pos, SEEK_DATA);

	if (at < 0 && errno == ENXIO)
		return side->size;
	return at < pos ? pos : at;
}

static int read_all(const struct side *side, size_t count, off_t at)
{
	size_t got = 0;

	while (got < count) {
		ssize_t n = pread(side->fd, side->data + got, count - got,
				  at + (off_t)got);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (!n)
			return -EIO;
		got += (size_t)n;
	}
	return 0;
}

static void say_difference(const struct side *a, const struct side *b,
			   size_t count, off_t at)
{
	size_t i = 0;

	while (i < count && a->data[i] == b->data[i])
		i++;
	printf("differ at byte %" PRId64 ": %02x in %s, %02x in %s\n",
	       (int64_t)at + (int64_t)i, a->data[i], a->name, b->data[i],
	       b->name);
}

static int compare(const struct side *a, const struct side *b)
{
	off_t pos = 0, size = a->size;

	if (a->size != b->size) {
		printf("differ in size: %" PRId64 " and %" PRId64 "\n",
		       (int64_t)a->size, (int64_t)b->size);
		return 1;
	}
	while (pos < size) {
		off_t data_a = next_data(a, pos), data_b = next_data(b, pos);
		off_t at = data_a < data_b ? data_a : data_b;
		size_t count;
		int err;

		if (at >= size)
			break;
		count = size - at < CHUNK ? (size_t)(size - at) : CHUNK;
		err = read_all(a, count, at);
		if (!err)
			err = read_all(b, count, at);
		if (err)
			return err;
		if (memcmp(a->data, b->data, count) != 0) {
			say_difference(a, b, count, at);
			return 1;
		}
		pos = at + (off_t)count;
	}
	return 0;
}

int main(int argc, char **argv)
{
	struct side a = { .fd = -1 }, b = { .fd = -1 };
	int result;

	if (argc != 3) {
		fprintf(stderr, "usage: samedata A B\n");
		return 2;
	}
	result = open_side(&a, argv[1]);
	if (!result)
		result = open_side(&b, argv[2]);
	if (!result)
		result = compare(&a, &b);
	if (result < 0)
		fprintf(stderr, "samedata: %s, %s: %s\n", argv[1], argv[2],
			strerror(-result));
	free(a.data);
	free(b.data);
	return result < 0 ? 2 : result;
}
