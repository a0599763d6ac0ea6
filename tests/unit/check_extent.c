/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The map of extents against a plain array; memory that runs out. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "unit.h"

/* Memory for nodes comes from here, so that it can run out. */
static size_t mallocs_left = SIZE_MAX;
static size_t malloced;

static void *test_malloc(size_t size)
{
	if (mallocs_left == 0)
		return NULL;
	mallocs_left--;
	malloced += size;
	return malloc(size);
}

#define malloc(size) test_malloc(size)
#include "../../engine/extent.c"
#undef malloc

#define POINTS 60
#define STEPS 1000

/* The range is cut at random points; each piece has one value. */
struct model {
	struct extent_map *map;
	uint64_t size, seed;
	uint64_t point[POINTS + 1]; /* ascending, 0 and size included */
	size_t n;		    /* pieces */
	struct value value[POINTS];
};

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static uint64_t some_size(uint64_t *seed)
{
	switch (unit_below(seed, 5)) {
	case 0:
		return INT64_MAX;
	case 1:
		return INT64_MAX - unit_below(seed, 5000);
	case 2:
		return 1 + unit_below(seed, 200);
	case 3:
		return UINT64_MAX - unit_below(seed, 2);
	default:
		return 1 + unit_random(seed) % ((uint64_t)1 << 40);
	}
}

static void model_init(struct model *m, uint64_t seed, size_t max)
{
	size_t i, n = 0;

	m->seed = seed;
	m->size = some_size(&m->seed);
	m->point[n++] = 0;
	m->point[n++] = m->size;
	while (n < POINTS + 1) {
		/* Some of them close to each other, or to the ends. */
		uint64_t near = m->point[unit_below(&m->seed, n)];
		uint64_t p = unit_random(&m->seed);

		if (unit_below(&m->seed, 3) == 0)
			p = near + unit_below(&m->seed, 5) - 2;
		m->point[n++] = p <= m->size ? p : p % m->size;
	}
	qsort(m->point, n, sizeof(m->point[0]), compare);
	for (i = 1, m->n = 0; i < n; i++) {
		if (m->point[i] != m->point[m->n])
			m->point[++m->n] = m->point[i];
	}
	for (i = 0; i < m->n; i++)
		m->value[i] = (struct value){ EXTENT_UNKNOWN, 0 };
	m->map = extent_map_new(m->size, max);
	ck_assert_ptr_nonnull(m->map);
}

static bool same(struct value a, struct value b)
{
	return a.state == b.state && a.stamp == b.stamp;
}

static void check_run(const struct model *m, size_t from, size_t to)
{
	size_t i;

	for (i = from; i < to; i++) {
		uint64_t middle =
			m->point[i] + (m->point[i + 1] - m->point[i]) / 2;
		uint64_t ask[] = { m->point[i], middle, m->point[i + 1] - 1 };
		size_t k;

		for (k = 0; k < ARRAY_SIZE(ask); k++) {
			struct extent x = extent_get(m->map, ask[k]);

			unit_assert(x.start == m->point[from]);
			unit_assert(x.end == m->point[to]);
			unit_assert(x.state == m->value[from].state);
			unit_assert(x.stamp == m->value[from].stamp);
		}
	}
}

/* Compares all that can be asked. */
static void check_same(const struct model *m)
{
	uint64_t bytes[STATES] = { 0 }, unknown = m->size;
	size_t i, end = m->n, runs = 0;
	enum extent_state state;

	extent_check(m->map);
	for (i = m->n; i-- > 0;) {
		bytes[m->value[i].state] += m->point[i + 1] - m->point[i];
		if (m->value[i].state == EXTENT_UNKNOWN) {
			unknown = m->point[i + 1] - 1;
			unit_assert(extent_next_unknown(m->map, unknown) ==
				    unknown);
			unknown = m->point[i];
		}
		unit_assert(extent_next_unknown(m->map, m->point[i]) ==
			    unknown);
		if (i > 0 && same(m->value[i - 1], m->value[i]))
			continue;
		check_run(m, i, end);
		end = i;
		runs++;
	}
	unit_assert(extent_next_unknown(m->map, m->size) == m->size);
	unit_assert(extent_count(m->map) == runs);
	for (state = 0; state < STATES; state++)
		unit_assert(extent_bytes(m->map, state) == bytes[state]);
}

/* Sets some pieces, in the map and in the model. */
static int random_set(struct model *m, size_t *from, size_t *to)
{
	enum extent_state state = (enum extent_state)unit_below(&m->seed, 4);
	uint32_t stamp = (uint32_t)unit_below(&m->seed, 3) * 0x7fffffff;
	uint64_t end;
	size_t i;
	int r;

	*from = unit_below(&m->seed, m->n);
	*to = *from + 1 + unit_below(&m->seed, min_u64(m->n - *from, 12));
	if (unit_below(&m->seed, 200) == 0)
		*from = *to = 0;
	if (*to == 0)
		*to = m->n;
	/* What lies behind the size is cut off. */
	end = m->point[*to];
	if (*to == m->n && unit_below(&m->seed, 2))
		end = UINT64_MAX;
	r = extent_set(m->map, m->point[*from], end, state, stamp);
	if (state != EXTENT_ZERO && state != EXTENT_HOLE)
		stamp = 0;
	for (i = *from; i < *to; i++)
		m->value[i] = (struct value){ state, stamp };
	return r;
}

START_TEST(random_operations)
{
	struct model m;
	size_t from, to, i;
	int step;

	model_init(&m, (uint64_t)_i, SIZE_MAX);
	for (step = 0; step < STEPS; step++) {
		unit_assert(random_set(&m, &from, &to) == 0);
		if (unit_below(&m.seed, 500) == 0) {
			extent_forget(m.map);
			for (i = 0; i < m.n; i++)
				m.value[i] = (struct value){ 0, 0 };
		}
		check_same(&m);
	}
	extent_map_free(m.map);
}
END_TEST

/* After something may have been forgotten: what is known is still right, and
 * the model forgets the same. `set`: the pieces that must not be forgotten. */
static void check_forgotten(struct model *m, size_t from, size_t to)
{
	size_t i;

	extent_check(m->map);
	for (i = 0; i < m->n; i++) {
		struct extent x = extent_get(m->map, m->point[i]);
		struct value v = { x.state, x.stamp };

		unit_assert(x.end >= m->point[i + 1]);
		if (v.state == EXTENT_UNKNOWN && !(i >= from && i < to))
			m->value[i] = v;
		unit_assert(same(m->value[i], v));
	}
	check_same(m);
}

START_TEST(count_is_bounded)
{
	struct model m;
	size_t from, to, max = (size_t)_i % 20;
	int step;

	model_init(&m, (uint64_t)_i, max);
	for (step = 0; step < STEPS; step++) {
		unit_assert(random_set(&m, &from, &to) == 0);
		unit_assert(extent_count(m.map) <= (max < 3 ? 3 : max));
		check_forgotten(&m, from, to);
	}
	extent_map_free(m.map);
}
END_TEST

START_TEST(memory_runs_out)
{
	struct model m;
	unsigned failures = 0;
	size_t from, to, i;
	int step, r;

	model_init(&m, (uint64_t)_i, SIZE_MAX);
	for (step = 0; step < STEPS; step++) {
		mallocs_left = unit_below(&m.seed, 10) == 0;
		r = random_set(&m, &from, &to);
		if (r == 0 && m.value[from].state != EXTENT_UNKNOWN) {
			check_forgotten(&m, from, to);
		} else {
			/* The range itself has become unknown. */
			unit_assert(r == 0 || r == -ENOMEM);
			unit_assert(r == 0 ||
				    m.value[from].state != EXTENT_UNKNOWN);
			for (i = from; i < to; i++)
				m.value[i] = (struct value){ 0, 0 };
			check_forgotten(&m, from, to);
			failures += r != 0;
		}
		if (unit_below(&m.seed, 20) == 0) {
			extent_forget(m.map);
			check_forgotten(&m, 0, 0);
		}
	}
	if (m.n > 2)
		ck_assert_uint_gt(failures, 0);
	mallocs_left = SIZE_MAX;
	extent_map_free(m.map);
}
END_TEST

START_TEST(ends_of_the_range)
{
	struct extent_map *m = extent_map_new(0, 100);

	/* An empty export has nothing to know. */
	ck_assert_uint_eq(extent_count(m), 0);
	ck_assert_int_eq(extent_set(m, 0, 1, EXTENT_DATA, 0), 0);
	ck_assert_uint_eq(extent_next_unknown(m, 0), 0);
	extent_check(m);
	extent_map_free(m);

	m = extent_map_new(INT64_MAX, 100);
	ck_assert_int_eq(
		extent_set(m, INT64_MAX - 1, UINT64_MAX, EXTENT_HOLE, 7), 0);
	ck_assert_int_eq(extent_set(m, INT64_MAX, UINT64_MAX, EXTENT_DATA, 0),
			 0);
	ck_assert_int_eq(extent_set(m, 5, 5, EXTENT_DATA, 0), 0);
	ck_assert_int_eq(extent_set(m, 6, 5, EXTENT_DATA, 0), 0);
	ck_assert_uint_eq(extent_count(m), 2);
	ck_assert_uint_eq(extent_get(m, INT64_MAX - 1).start, INT64_MAX - 1);
	ck_assert_uint_eq(extent_get(m, INT64_MAX - 1).end, INT64_MAX);
	ck_assert_uint_eq(extent_bytes(m, EXTENT_HOLE), 1);
	ck_assert_int_eq(extent_set(m, 0, UINT64_MAX, EXTENT_DATA, 7), 0);
	ck_assert_uint_eq(extent_count(m), 1);
	ck_assert_uint_eq(extent_get(m, 0).stamp, 0);
	extent_check(m);
	extent_map_free(m);
}
END_TEST

#define MILLION 1000000

/* A million extents cost what they should: memory, and time by the test's
 * time limit, in whichever order they are learnt. */
START_TEST(million_extents)
{
	struct extent_map *m = extent_map_new(MILLION * 4096ull, SIZE_MAX);
	uint64_t i, pos;

	malloced = 0;
	for (i = 0; i < MILLION; i++) {
		uint64_t at = _i == 0 ? i : i * 7919 % MILLION;

		if (extent_set(m, at * 4096, (at + 1) * 4096,
			       at % 2 ? EXTENT_DATA : EXTENT_HOLE, 1) < 0)
			ck_abort_msg("out of memory");
	}
	ck_assert_uint_eq(extent_count(m), MILLION);
	ck_assert_uint_eq(extent_next_unknown(m, 0), MILLION * 4096ull);
	ck_assert_uint_le(malloced, 45 << 20);
	for (i = pos = 0; pos < MILLION * 4096ull; i++)
		pos = extent_get(m, pos).end;
	ck_assert_uint_eq(i, MILLION);
	extent_map_free(m);
}
END_TEST

int main(void)
{
	const struct unit_case cases[] = {
		{ random_operations, 60 }, { count_is_bounded, 60 },
		{ memory_runs_out, 60 },   { ends_of_the_range, 0 },
		{ million_extents, 2 },
	};

	return unit_main("extent", cases, ARRAY_SIZE(cases));
}
