/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * vmdkwalk FILE: walks through a streamOptimized VMDK image from one marker to
 * the next, as one that cannot seek has to. Grains must ascend; each table must
 * say what came before it, the directory where the tables are, the footer where
 * the directory is; the end of the stream must be the end of the file.
 *
 * Prints "GRAINS TABLES"; exits with 1 and says where something is wrong. By
 * purpose it shares no code with what writes them.
 */
#include <err.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define SECTOR 512u
#define GRAIN 128u /* sectors */
#define ENTRIES 512u

static const uint8_t *image;
static uint64_t sectors; /* of the file */
static uint64_t at;	 /* sector of the walk */

static uint64_t ngrains, ntables, last_grain;
static uint32_t table[ENTRIES]; /* what the next one must hold */
static uint32_t *directory;
static uint64_t directory_len, directory_at;
static bool footer_seen;

static void must(bool ok, const char *what)
{
	if (!ok)
		errx(1, "sector %" PRIu64 ": %s", at, what);
}

static uint64_t number(uint64_t offset, unsigned bytes)
{
	uint64_t x = 0;

	for (unsigned i = 0; i < bytes; i++)
		x |= (uint64_t)image[offset + i] << (8 * i);
	return x;
}

static void walk_grain(uint64_t lba, uint64_t size)
{
	uint64_t n = lba / GRAIN;

	must(lba % GRAIN == 0, "a grain that is not aligned");
	must(n / ENTRIES < directory_len, "a grain behind the disk");
	must(ngrains == 0 || n > last_grain, "grains do not ascend");
	must(!directory_at, "a grain behind the directory");
	if (ngrains > 0 && n / ENTRIES != last_grain / ENTRIES)
		must(directory[last_grain / ENTRIES], "a table is missing");
	table[n % ENTRIES] = (uint32_t)at;
	last_grain = n;
	ngrains++;
	at += (12 + size + SECTOR - 1) / SECTOR;
}

static void walk_table(void)
{
	uint64_t n = last_grain / ENTRIES;

	must(ngrains > 0 && !directory[n], "a table too many");
	for (uint64_t i = 0; i < ENTRIES; i++)
		must(number((at + 1) * SECTOR + i * 4, 4) == table[i],
		     "a table that is wrong");
	memset(table, 0, sizeof(table));
	directory[n] = (uint32_t)at + 1;
	ntables++;
}

static void walk_directory(void)
{
	must(!directory_at, "two directories");
	must(ngrains == 0 || directory[last_grain / ENTRIES],
	     "the last table is missing");
	directory_at = at + 1;
	for (uint64_t i = 0; i < directory_len; i++)
		must(number(directory_at * SECTOR + i * 4, 4) == directory[i],
		     "the directory is wrong");
}

static void walk_footer(void)
{
	const uint8_t *foot = image + (at + 1) * SECTOR;

	must(directory_at && !footer_seen, "a footer in a wrong place");
	must(memcmp(foot, image, 56) == 0 &&
		     memcmp(foot + 64, image + 64, SECTOR - 64) == 0,
	     "the footer is another header");
	must(number((at + 1) * SECTOR + 56, 8) == directory_at,
	     "the footer points elsewhere");
	footer_seen = true;
}

static void walk_end(void)
{
	must(footer_seen, "the stream ends without a footer");
	for (unsigned i = 0; i < SECTOR; i++)
		must(image[at * SECTOR + i] == 0, "the end is not zero");
	must(at + 1 == sectors, "something follows the end");
}

/* False: it was the end of the stream. */
static bool walk_marker(void)
{
	static void (*const walk[])(void) = { walk_end, walk_table,
					      walk_directory, walk_footer };
	uint64_t directory_sectors = (directory_len * 4 + SECTOR - 1) / SECTOR;
	const uint64_t lengths[] = { 0, ENTRIES * 4 / SECTOR, directory_sectors,
				     1 };
	uint64_t len = number(at * SECTOR, 8);
	uint64_t kind = number(at * SECTOR + 12, 4);

	must(kind < 4, "an unknown marker");
	must(len == lengths[kind], "a marker of a wrong length");
	must(len < sectors - at, "the file ends here");
	walk[kind]();
	at += 1 + len;
	return kind != 0;
}

static void open_image(const char *name)
{
	struct stat st;
	int fd = open(name, O_RDONLY | O_CLOEXEC);

	if (fd < 0 || fstat(fd, &st) < 0)
		err(2, "%s", name);
	must(st.st_size > 0 && st.st_size % SECTOR == 0, "half a sector");
	sectors = (uint64_t)st.st_size / SECTOR;
	image = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (image == MAP_FAILED)
		err(2, "%s", name);
	close(fd);
}

int main(int argc, char **argv)
{
	if (argc != 2)
		errx(2, "vmdkwalk FILE");
	open_image(argv[1]);
	must(number(0, 4) == 0x564d444b && number(4, 4) == 3 &&
		     number(8, 4) == 0x30001 && number(77, 2) == 1,
	     "the header is wrong");
	must(number(20, 8) == GRAIN && number(44, 4) == ENTRIES,
	     "other grains or tables");
	must(number(56, 8) == UINT64_MAX, "the directory is not at the end");
	directory_len =
		(number(12, 8) + GRAIN * ENTRIES - 1) / (GRAIN * ENTRIES);
	directory = calloc(directory_len + 1, sizeof(*directory));
	if (!directory)
		err(2, "calloc");
	at = number(64, 8);
	for (bool more = true; more;) {
		uint64_t size;

		must(at < sectors, "the file ends without an end");
		size = number(at * SECTOR + 8, 4);
		if (size > 0)
			walk_grain(number(at * SECTOR, 8), size);
		else
			more = walk_marker();
	}
	printf("%" PRIu64 " %" PRIu64 "\n", ngrains, ntables);
	free(directory);
	return 0;
}
