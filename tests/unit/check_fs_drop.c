/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Which of the kernel's pages are older than a truncation, against a model that
 * has a flag for each page. */
#include <string.h>

#include "fs.h"
#include "unit.h"

#define PAGE 4096
#define PAGES 64

/* What is kept of [start, end), by the code under test, marked byte by byte in
 * units of 512. */
static void mark_kept(const struct fs_inode *inode, uint64_t start,
		      uint64_t end, bool *kept)
{
	uint64_t pos = start;

	while (pos < end) {
		uint64_t from = pos, to = end;

		if (!fs_drop_keep(inode, &from, &to))
			return;
		ck_assert_uint_ge(from, pos);
		ck_assert_uint_lt(from, to);
		ck_assert_uint_le(to, end);
		for (pos = from; pos < to; pos += 512)
			kept[pos / 512] = true;
		pos = to;
	}
}

START_TEST(against_a_model)
{
	struct fs_inode inode = { .ino = 1 };
	uint64_t rnd = (uint64_t)_i, cut;
	bool fresh[PAGES * 8], kept[PAGES * 8];

	memset(fresh, 0, sizeof(fresh));
	cut = unit_below(&rnd, PAGES * 8) * 512;
	ck_assert_int_eq(fs_drop_begin(&inode, cut), 0);
	for (int n = 0; n < 40; n++) {
		uint64_t start = unit_below(&rnd, PAGES * 8) * 512;
		uint64_t len = (1 + unit_below(&rnd, 20)) * 512;
		uint64_t end = min_u64(start + len, PAGES * PAGE);

		if (unit_below(&rnd, 3) == 0) {
			fs_drop_touch(&inode, start, end - start);
			for (uint64_t p = start / PAGE * PAGE;
			     p < align_up(end, PAGE); p += 512)
				fresh[p / 512] = true;
			continue;
		}
		memset(kept, 0, sizeof(kept));
		mark_kept(&inode, start, end, kept);
		for (uint64_t p = start; p < end; p += 512)
			unit_assert(kept[p / 512] ==
				    (p < cut || fresh[p / 512]));
	}
	fs_drop_end(&inode);
	ck_assert_ptr_null(inode.drop);
}
END_TEST

START_TEST(more_parts_than_it_notes)
{
	struct fs_inode inode = { .ino = 1 };
	uint64_t from, to;

	ck_assert_int_eq(fs_drop_begin(&inode, 0), 0);
	for (uint64_t i = 0; i < 2000; i++)
		fs_drop_touch(&inode, 2 * i * PAGE, PAGE);
	from = 0;
	to = PAGE;
	ck_assert(fs_drop_keep(&inode, &from, &to));
	from = PAGE;
	to = 2 * PAGE;
	ck_assert(!fs_drop_keep(&inode, &from, &to));
	from = (uint64_t)3998 * PAGE;
	to = from + PAGE;
	ck_assert(!fs_drop_keep(&inode, &from, &to));
	/* What touches them all makes one of them. */
	fs_drop_touch(&inode, 0, (uint64_t)4000 * PAGE);
	ck_assert(fs_drop_keep(&inode, &from, &to));
	fs_drop_end(&inode);
}
END_TEST

START_TEST(several_truncations)
{
	struct fs_inode inode = { .ino = 1 };
	uint64_t from = 0, to = 4 * PAGE;

	ck_assert(fs_drop_keep(&inode, &from, &to));
	ck_assert_int_eq(fs_drop_begin(&inode, 2 * PAGE), 0);
	fs_drop_touch(&inode, 3 * PAGE, PAGE);
	/* The second makes old again what was new. */
	ck_assert_int_eq(fs_drop_begin(&inode, PAGE), 0);
	from = 3 * PAGE;
	ck_assert(!fs_drop_keep(&inode, &from, &to));
	fs_drop_end(&inode);
	from = PAGE;
	to = 4 * PAGE;
	ck_assert(!fs_drop_keep(&inode, &from, &to));
	from = 0;
	ck_assert(fs_drop_keep(&inode, &from, &to));
	ck_assert_uint_eq(to, PAGE);
	fs_drop_end(&inode);
	from = 0;
	to = 4 * PAGE;
	ck_assert(fs_drop_keep(&inode, &from, &to));
	ck_assert_uint_eq(to, 4 * PAGE);
	ck_assert_ptr_null(inode.drop);
}
END_TEST

int main(void)
{
	const struct unit_case cases[] = {
		{ against_a_model, 200 },
		{ more_parts_than_it_notes, 0 },
		{ several_truncations, 0 },
	};

	return unit_main("fs_drop", cases, ARRAY_SIZE(cases));
}
