/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The window that adapts, against servers made of arithmetic. */
#include "tune.h"
#include "unit.h"
#include "util.h"

#define LEN MiB

/* A server that needs `latency` for an answer and carries at most `rate` bytes
 * per second: what it carries with a window, for `seconds`. */
static uint64_t run(struct tune *t, uint64_t now, uint64_t latency,
		    uint64_t rate, unsigned ms)
{
	uint64_t end = now + ms * NS_PER_MS, step;

	while (now < end) {
		/* one request of the window is answered each `step` */
		step = latency / max_u64(t->window / LEN, 1);
		step = max_u64(step, LEN * NS_PER_S / rate);
		now += step;
		tune_finished(t, now, LEN, now - latency);
	}
	return now;
}

START_TEST(near_server_keeps_it_small)
{
	struct tune t;

	tune_init(&t, 2 * MiB, 32 * MiB);
	run(&t, NS_PER_S, 100000, 3 * GiB, 5000);
	ck_assert_uint_le(t.base, 4 * MiB);
}
END_TEST

START_TEST(distant_server_gets_it_all)
{
	struct tune t;
	uint64_t now;

	tune_init(&t, 2 * MiB, 32 * MiB);
	now = run(&t, NS_PER_S, 50 * NS_PER_MS, 100 * GiB, 3000);
	ck_assert_uint_eq(t.base, 32 * MiB);
	/* and keeps it, but for the time of a trial */
	for (int i = 0; i < 20; i++) {
		now = run(&t, now, 50 * NS_PER_MS, 100 * GiB, 500);
		ck_assert_uint_eq(t.base, 32 * MiB);
	}
}
END_TEST

START_TEST(grows_as_far_as_it_helps)
{
	struct tune t;

	/* 5 ms and 1 GiB/s: 5 MiB are enough. */
	tune_init(&t, 2 * MiB, 32 * MiB);
	run(&t, NS_PER_S, 5 * NS_PER_MS, GiB, 5000);
	ck_assert_uint_ge(t.base, 4 * MiB);
	ck_assert_uint_le(t.base, 8 * MiB);
}
END_TEST

START_TEST(what_noise_raised_comes_down)
{
	struct tune t;

	tune_init(&t, 2 * MiB, 32 * MiB);
	t.base = t.window = 32 * MiB;
	t.fresh = false;
	run(&t, NS_PER_S, 100000, 3 * GiB, 20000);
	ck_assert_uint_le(t.base, 4 * MiB);
}
END_TEST

/* Bursts of what was on its way together; the window after that. */
static uint64_t bursts(uint64_t latency, uint64_t step, unsigned n)
{
	uint64_t now = NS_PER_S, sent;
	struct tune t;

	tune_init(&t, 2 * MiB, 32 * MiB);
	for (unsigned i = 0; i < n; i++) {
		sent = now;
		now += latency;
		tune_finished(&t, now, LEN, sent);
		now += step;
		tune_finished(&t, now, LEN, sent);
	}
	return t.window;
}

START_TEST(begins_with_what_the_distance_needs)
{
	/* 5 ms and 2 GiB/s: 10 MiB, after two round trips */
	ck_assert_uint_eq(bursts(5 * NS_PER_MS, 500000, 2), 2 * MiB);
	ck_assert_uint_eq(bursts(5 * NS_PER_MS, 488281, 3), 11 * MiB);
	/* a near one; a slow line, where waiting is not for the distance */
	ck_assert_uint_eq(bursts(300000, 300000, 3), 2 * MiB);
	ck_assert_uint_eq(bursts(25 * NS_PER_MS, 25 * NS_PER_MS, 3), 2 * MiB);
	/* never beyond the bound, nor with a clock that stands still */
	ck_assert_uint_eq(bursts(NS_PER_S, 100, 3), 32 * MiB);
	ck_assert_uint_eq(bursts(0, 0, 3), 2 * MiB);
}
END_TEST

START_TEST(begins_with_what_served_before)
{
	struct tune t;

	tune_init(&t, 2 * MiB, 32 * MiB);
	ck_assert_uint_eq(tune_found(&t), 0);
	tune_begin_with(&t, 12 * MiB);
	ck_assert_uint_eq(t.window, 12 * MiB);
	ck_assert_uint_eq(tune_found(&t), 12 * MiB);
	tune_init(&t, 2 * MiB, 8 * MiB);
	tune_begin_with(&t, 12 * MiB);
	ck_assert_uint_eq(t.window, 8 * MiB);
	tune_init(&t, 2 * MiB, 8 * MiB);
	tune_begin_with(&t, MiB);
	ck_assert_uint_eq(t.window, 2 * MiB);
}
END_TEST

START_TEST(fixed_stays_fixed)
{
	struct tune t;

	tune_init(&t, 8 * MiB, 4 * MiB);
	ck_assert_uint_eq(t.window, 4 * MiB);
	run(&t, NS_PER_S, 5 * NS_PER_MS, GiB, 1000);
	ck_assert_uint_eq(t.window, 4 * MiB);
}
END_TEST

START_TEST(starved_measures_nothing)
{
	struct tune t;
	uint64_t now = NS_PER_S;

	tune_init(&t, 2 * MiB, 32 * MiB);
	for (int i = 0; i < 10000; i++) {
		now += NS_PER_MS;
		tune_finished(&t, now, LEN, now - NS_PER_MS);
		tune_starved(&t);
	}
	ck_assert_uint_eq(t.window, 2 * MiB);
}
END_TEST

int main(void)
{
	const struct unit_case cases[] = {
		{ near_server_keeps_it_small, 0 },
		{ distant_server_gets_it_all, 0 },
		{ grows_as_far_as_it_helps, 0 },
		{ what_noise_raised_comes_down, 0 },
		{ begins_with_what_the_distance_needs, 0 },
		{ begins_with_what_served_before, 0 },
		{ fixed_stays_fixed, 0 },
		{ starved_measures_nothing, 0 },
	};

	return unit_main("tune", cases, ARRAY_SIZE(cases));
}
