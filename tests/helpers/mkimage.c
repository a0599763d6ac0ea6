/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * mkimage KIND SIZE SEED FILE [EXTENTS [PERCENT]]: makes a disk image that
 * depends on nothing but its arguments.
 *
 *	empty	one hole
 *	dense	data throughout, and no block of 4 KiB is zero
 *	mixed	PERCENT of the image is data, in EXTENTS pieces of random
 *		length with holes of random length between them
 *	comb	EXTENTS in all, by turns 4 KiB of data and a hole of 4 KiB;
 *		what is left of SIZE is a hole
 *
 * SIZE takes K, M, G, T. FILE is made anew.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCK 4096U
#define CHUNK (1U << 20)
/* Pieces of a mixed image begin and end at multiples of this. */
#define UNIT (64U << 10)

struct image {
	int fd;
	uint64_t size;
	uint64_t state;
	unsigned char *chunk;
};

/* xorshift64*: small, and the same everywhere. */
static uint64_t next_random(struct image *img)
{
	uint64_t x = img->state;

	x ^= x >> 12;
	x ^= x << 25;
	x ^= x >> 27;
	img->state = x;
	return x * UINT64_C(2685821657736338717);
}

static int parse_number(const char *text, uint64_t *value)
{
	static const char units[] = "KMGT";
	const char *unit;
	char *end;
	unsigned int shift = 0;

	if (*text < '0' || *text > '9')
		return -EINVAL;
	errno = 0;
	*value = strtoull(text, &end, 10);
	if (errno)
		return -ERANGE;
	if (*end) {
		unit = strchr(units, *end);
		if (!unit || end[1])
			return -EINVAL;
		shift = 10 * (unsigned int)(unit - units + 1);
	}
	if (*value > (uint64_t)INT64_MAX >> shift)
		return -ERANGE;
	*value <<= shift;
	return 0;
}

static int write_all(int fd, const unsigned char *data, size_t count,
		     uint64_t at)
{
	while (count) {
		ssize_t n = pwrite(fd, data, count, (off_t)at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (!n)
			return -EIO;
		data += n;
		at += (uint64_t)n;
		count -= (size_t)n;
	}
	return 0;
}

/* Every block begins with its own place, so that no two are the same. */
static int write_data(struct image *img, uint64_t at, uint64_t count)
{
	while (count) {
		size_t n = count < CHUNK ? (size_t)count : CHUNK;
		int err;

		for (size_t i = 0; i < n; i += BLOCK) {
			uint64_t mark = (at + i) | 1;

			memcpy(img->chunk + i, &mark, sizeof(mark));
		}
		err = write_all(img->fd, img->chunk, n, at);
		if (err)
			return err;
		at += n;
		count -= n;
	}
	return 0;
}

/* Cuts units into count pieces of at least one; cuts[] are their lengths. */
static void cut(struct image *img, uint64_t units, uint64_t count,
		uint64_t *cuts)
{
	uint64_t left = units - count;

	for (uint64_t i = 0; i < count; i++) {
		uint64_t fair = left / (count - i);
		uint64_t more = 0;

		if (i + 1 == count)
			more = left;
		else if (fair)
			more = next_random(img) % (2 * fair + 1);
		if (more > left)
			more = left;
		cuts[i] = 1 + more;
		left -= more;
	}
}

static int make_mixed(struct image *img, uint64_t extents, uint64_t percent)
{
	uint64_t units = img->size / UNIT, data = units / 100 * percent;
	uint64_t *cuts, at = 0;
	int err = 0;

	if (!extents || extents > data || extents > units - data)
		return -EINVAL;
	cuts = calloc(extents, 2 * sizeof(*cuts));
	if (!cuts)
		return -ENOMEM;
	cut(img, data, extents, cuts);
	cut(img, units - data, extents, cuts + extents);
	for (uint64_t i = 0; i < extents && !err; i++) {
		at += cuts[extents + i] * UNIT;
		err = write_data(img, at, cuts[i] * UNIT);
		at += cuts[i] * UNIT;
	}
	free(cuts);
	return err;
}

static int make_comb(struct image *img, uint64_t extents)
{
	int err = 0;

	if (extents > img->size / BLOCK)
		return -EINVAL;
	for (uint64_t i = 0; i < extents && !err; i += 2)
		err = write_data(img, i * BLOCK, BLOCK);
	return err;
}

static int make(struct image *img, const char *kind, uint64_t extents,
		uint64_t percent)
{
	img->chunk = malloc(CHUNK);
	if (!img->chunk)
		return -ENOMEM;
	for (size_t i = 0; i < CHUNK; i += sizeof(uint64_t)) {
		uint64_t word = next_random(img);

		memcpy(img->chunk + i, &word, sizeof(word));
	}
	if (ftruncate(img->fd, (off_t)img->size))
		return -errno;
	if (!strcmp(kind, "empty"))
		return 0;
	if (!strcmp(kind, "dense"))
		return write_data(img, 0, img->size);
	if (!strcmp(kind, "mixed"))
		return make_mixed(img, extents, percent);
	if (!strcmp(kind, "comb"))
		return make_comb(img, extents);
	return -EINVAL;
}

int main(int argc, char **argv)
{
	struct image img = { .fd = -1 };
	uint64_t seed = 0, extents = 400, percent = 40;
	int err;

	if (argc < 5 || argc > 7 || parse_number(argv[2], &img.size) ||
	    parse_number(argv[3], &seed) ||
	    (argc > 5 && parse_number(argv[5], &extents)) ||
	    (argc > 6 && parse_number(argv[6], &percent)) || percent > 99 ||
	    img.size % BLOCK) {
		fprintf(stderr, "usage: mkimage empty|dense|mixed|comb SIZE "
				"SEED FILE [EXTENTS [PERCENT]]\n");
		return 2;
	}
	img.state = seed * 2 + 1;
	img.fd = open(argv[4], O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (img.fd < 0) {
		fprintf(stderr, "mkimage: %s: %s\n", argv[4], strerror(errno));
		return 1;
	}
	err = make(&img, argv[1], extents, percent);
	free(img.chunk);
	if (close(img.fd) && !err)
		err = -errno;
	if (err) {
		fprintf(stderr, "mkimage: %s: %s\n", argv[4], strerror(-err));
		unlink(argv[4]);
		return 1;
	}
	return 0;
}
