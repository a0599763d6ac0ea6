/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * extent.h - what is known of the server's contents: a map of extents.
 *
 * A pure data structure: no threads, no libnbd, no clock. The whole range
 * [0, size) is covered at all times; neighbours of one state (and, for zero
 * states, one stamp) are merged. All operations O(log n + extents touched).
 *
 * Units      bytes; stamps are whatever the caller counts time in.
 * Ownership  the map owns its nodes (slab allocated, 40 bytes each).
 * Threads    belongs to one loop.
 * Errors     extent_set() answers -ENOMEM and leaves the map valid, with the
 *            range (and what else was in the extents at its ends) unknown.
 */
#ifndef NBDFS_EXTENT_H
#define NBDFS_EXTENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum extent_state {
	EXTENT_UNKNOWN,
	EXTENT_DATA, /* must be read */
	EXTENT_ZERO, /* reads as zero, takes space */
	EXTENT_HOLE, /* reads as zero, known not to take space */
};

/* Stamps wrap: their age is to be reckoned modulo this. */
#define EXTENT_STAMP_MASK UINT32_MAX

struct extent {
	uint64_t start, end; /* end > start */
	enum extent_state state;
	uint32_t stamp; /* zero states: when it was learnt; else 0 */
};

struct extent_map;

/* `max_extents` (3 at least) bounds memory: where more could be needed,
 * everything is forgotten (becomes unknown) before the new extent is
 * recorded. NULL without memory. */
struct extent_map *extent_map_new(uint64_t size, size_t max_extents);
void extent_map_free(struct extent_map *m);
/* Sets [start, end), clipped to the size. Making something unknown never
 * fails, but may forget more. */
int extent_set(struct extent_map *m, uint64_t start, uint64_t end,
	       enum extent_state state, uint32_t stamp);
/* The extent that contains pos (pos < size). */
struct extent extent_get(const struct extent_map *m, uint64_t pos);
/* Everything becomes unknown. */
void extent_forget(struct extent_map *m);
/* Bytes in a state, kept up to date: O(1). */
uint64_t extent_bytes(const struct extent_map *m, enum extent_state state);
size_t extent_count(const struct extent_map *m);
/* The first position >= pos that is unknown, or size. O(1) where nothing is
 * unknown; else it walks over the known extents from pos on, so that a caller
 * who goes on from the last answer passes each of them once. */
uint64_t extent_next_unknown(const struct extent_map *m, uint64_t pos);
/* For tests: asserts all invariants. */
void extent_check(const struct extent_map *m);

#endif
