/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cover.h"
#include "unit.h"
#include "util.h"

START_TEST(in_order)
{
	struct cover c = { .count = 0 };

	ck_assert(cover_is(&c, 0));
	ck_assert(!cover_is(&c, 1));
	ck_assert_int_eq(cover_add(&c, 0, 10), 0);
	ck_assert(cover_is(&c, 10));
	ck_assert(!cover_is(&c, 9));
	ck_assert(!cover_is(&c, 11));
	ck_assert_int_eq(cover_add(&c, 10, 30), 0);
	ck_assert_int_eq(cover_add(&c, 30, 30), 0);
	ck_assert(cover_is(&c, 30));
	ck_assert_ptr_null(c.run);
	cover_clear(&c);
	ck_assert(cover_is(&c, 0));
}
END_TEST

START_TEST(backwards)
{
	struct cover c = { .count = 0 };

	for (uint64_t i = 10000; i > 0; i--)
		unit_assert(cover_add(&c, i - 1, i) == 0);
	ck_assert(cover_is(&c, 10000));
	ck_assert_ptr_null(c.run);
}
END_TEST

START_TEST(overlaps)
{
	struct cover c = { .count = 0 };

	ck_assert_int_eq(cover_add(&c, 10, 20), 0);
	ck_assert_int_eq(cover_add(&c, 30, 40), 0);
	ck_assert_int_eq(cover_add(&c, 10, 20), -EEXIST);
	ck_assert_int_eq(cover_add(&c, 19, 20), -EEXIST);
	ck_assert_int_eq(cover_add(&c, 0, 11), -EEXIST);
	ck_assert_int_eq(cover_add(&c, 15, 16), -EEXIST);
	ck_assert_int_eq(cover_add(&c, 20, 31), -EEXIST);
	ck_assert_int_eq(cover_add(&c, 0, 100), -EEXIST);
	ck_assert_int_eq(cover_add(&c, 39, UINT64_MAX), -EEXIST);
	ck_assert_int_eq(cover_add(&c, 20, 30), 0);
	ck_assert_int_eq(cover_add(&c, 0, 10), 0);
	ck_assert(cover_is(&c, 40));
	cover_clear(&c);
}
END_TEST

/* The same bytes in any order, held against a map of bytes. */
START_TEST(any_order)
{
	enum { LEN = 300 };
	unsigned char map[LEN] = { 0 };
	struct cover c = { .count = 0 };
	uint64_t seed = (uint64_t)_i;

	for (int i = 0; i < 60; i++) {
		uint64_t a = unit_below(&seed, LEN);
		uint64_t b = a + 1 + unit_below(&seed, 20);
		bool there;

		if (b > LEN)
			b = LEN;
		there = memchr(map + a, 1, b - a) != NULL;
		unit_assert(cover_add(&c, a, b) == (there ? -EEXIST : 0));
		if (!there)
			memset(map + a, 1, b - a);
		unit_assert(cover_is(&c, LEN) == (memchr(map, 0, LEN) == NULL));
	}
	for (unsigned i = 0; i < LEN; i++)
		if (!map[i])
			unit_assert(cover_add(&c, i, i + 1) == 0);
	ck_assert(cover_is(&c, LEN));
	cover_clear(&c);
}
END_TEST

START_TEST(gaps_are_bounded)
{
	struct cover c = { .count = 0 };
	int error = 0;
	uint64_t n;

	for (n = 0; n < 1000000 && !error; n++)
		error = cover_add(&c, 2 * n, 2 * n + 1);
	ck_assert_int_eq(error, -E2BIG);
	ck_assert_uint_gt(n, 1000);
	ck_assert_uint_lt(n, 10000);
	cover_clear(&c);
}
END_TEST

int main(void)
{
	const struct unit_case cases[] = {
		{ in_order, 0 },    { backwards, 0 },	     { overlaps, 0 },
		{ any_order, 500 }, { gaps_are_bounded, 0 },
	};

	return unit_main("cover", cases, ARRAY_SIZE(cases));
}
