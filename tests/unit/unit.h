/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * unit.h - what every check_*.c needs around its tests.
 *
 * A test program defines its cases with START_TEST, lists them in a table and
 * calls unit_main(). Each case runs in a process of its own, so that a crash
 * fails that case alone.
 */
#ifndef NBDFS_UNIT_H
#define NBDFS_UNIT_H

#include <check.h>
#include <stdint.h>
#include <stdlib.h>

#define UNIT_TIMEOUT_S 60

/* For inner loops: ck_assert() writes to a file each time it is passed. */
#define unit_assert(cond)                                    \
	do {                                                 \
		if (!(cond))                                 \
			ck_abort_msg("not true: %s", #cond); \
	} while (0)

struct unit_case {
	const TTest *test;
	int rounds; /* 0 or 1: once; else _i is 0 to rounds - 1 */
};

static inline int unit_main(const char *name, const struct unit_case *cases,
			    size_t count)
{
	Suite *suite = suite_create(name);
	TCase *tcase = tcase_create(name);
	SRunner *runner;
	size_t i;
	int failed;

	if (!getenv("CK_DEFAULT_TIMEOUT"))
		tcase_set_timeout(tcase, UNIT_TIMEOUT_S);
	for (i = 0; i < count; i++) {
		int rounds = cases[i].rounds > 1 ? cases[i].rounds : 1;

		tcase_add_loop_test(tcase, cases[i].test, 0, rounds);
	}
	suite_add_tcase(suite, tcase);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* Numbers that look random and are the same in every run. */
static inline uint64_t unit_random(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
	return z ^ (z >> 31);
}

static inline uint64_t unit_below(uint64_t *state, uint64_t n)
{
	return unit_random(state) % n;
}

#endif
