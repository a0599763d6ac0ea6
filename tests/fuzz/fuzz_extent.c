/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The map of extents, held against a plain array. It may forget, but never
 * claim what was not told.
 */
#include "extent.h"
#include "fuzz.h"

#define SIZE 512

struct cell {
	enum extent_state state;
	uint32_t stamp;
};

static void compare(struct extent_map *m, const struct cell *cell)
{
	uint64_t bytes[EXTENT_HOLE + 1] = { 0 }, pos = 0;
	size_t count = 0;

	for (; pos < SIZE; count++) {
		struct extent x = extent_get(m, pos);

		CHECK(x.start == pos && x.end > pos && x.end <= SIZE);
		bytes[x.state] += x.end - x.start;
		for (; pos < x.end; pos++) {
			if (x.state == EXTENT_UNKNOWN)
				continue;
			CHECK(x.state == cell[pos].state);
			CHECK(x.state == EXTENT_DATA ||
			      x.stamp == cell[pos].stamp);
		}
	}
	CHECK(count == extent_count(m));
	for (int i = EXTENT_UNKNOWN; i <= EXTENT_HOLE; i++)
		CHECK(bytes[i] == extent_bytes(m, (enum extent_state)i));
}

static void next_unknown(struct extent_map *m, uint64_t pos)
{
	uint64_t next = extent_next_unknown(m, pos);

	for (; pos < SIZE && pos < next; pos++)
		CHECK(extent_get(m, pos).state != EXTENT_UNKNOWN);
	CHECK(next >= SIZE || extent_get(m, next).state == EXTENT_UNKNOWN);
}

static void set(struct extent_map *m, struct cell *cell, struct input *in)
{
	uint64_t start = take(in, 2) % (SIZE + 8);
	uint64_t end = start + take(in, 1);
	enum extent_state state = (enum extent_state)(take(in, 1) % 4);
	uint32_t stamp = state >= EXTENT_ZERO ? (uint32_t)take(in, 1) % 4 : 0;

	if (extent_set(m, start, end, state, stamp))
		return;
	for (; start < end && start < SIZE; start++)
		cell[start] = (struct cell){ state, stamp };
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data, size };
	struct cell cell[SIZE] = { { EXTENT_UNKNOWN, 0 } };
	struct extent_map *m = extent_map_new(SIZE, 3 + take(&in, 1));

	if (!m)
		return 0;
	while (in.left > 0) {
		uint64_t op = take(&in, 1);

		if (op == 0) {
			extent_forget(m);
			memset(cell, 0, sizeof(cell));
		} else if (op < 16) {
			next_unknown(m, take(&in, 2) % SIZE);
		} else {
			set(m, cell, &in);
		}
		extent_check(m);
	}
	compare(m, cell);
	extent_map_free(m);
	return 0;
}
