/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * cover.h - which bytes of a read have been answered.
 *
 * The chunks of a structured reply may come in any order. libnbd adds up their
 * lengths, which a reply passes that has some bytes twice and others not at
 * all: those others would be whatever the buffer held before.
 *
 * Units      bytes, from the start of the read on.
 * Ownership  to be zeroed at first; cover_clear() gives memory back, and
 *            leaves it as at first.
 * Threads    none of its own.
 */
#ifndef NBDFS_COVER_H
#define NBDFS_COVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cover_run {
	uint64_t start, end;
};

struct cover {
	struct cover_run one;  /* all there is, for a server in its mind */
	struct cover_run *run; /* disjoint, not adjacent, sorted; or NULL */
	size_t count, alloc;
};

/* 0; -EEXIST: a part of it was there already; -E2BIG: too many gaps; -ENOMEM.
 * An empty range is nothing. */
int cover_add(struct cover *c, uint64_t start, uint64_t end);
/* True if [0, len) is there, and nothing else. */
bool cover_is(const struct cover *c, uint64_t len);
void cover_clear(struct cover *c);

#endif
