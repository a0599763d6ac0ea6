/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cover.h"

/* No server that means well leaves so many gaps. */
#define MAX_RUNS ((size_t)4096)

static struct cover_run *runs(struct cover *c)
{
	return c->run ? c->run : &c->one;
}

static int make_room(struct cover *c)
{
	size_t alloc = c->run ? 2 * c->alloc : 8;
	struct cover_run *p;

	if (c->count < (c->run ? c->alloc : 1))
		return 0;
	if (alloc > MAX_RUNS)
		return -E2BIG;
	p = realloc(c->run, alloc * sizeof(*p));
	if (!p)
		return -ENOMEM;
	if (!c->run)
		p[0] = c->one;
	c->run = p;
	c->alloc = alloc;
	return 0;
}

/* The first run that ends after pos. */
static size_t find(struct cover *c, uint64_t pos)
{
	const struct cover_run *r = runs(c);
	size_t lo = 0, hi = c->count;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (r[mid].end > pos)
			hi = mid;
		else
			lo = mid + 1;
	}
	return lo;
}

int cover_add(struct cover *c, uint64_t start, uint64_t end)
{
	struct cover_run *r = runs(c);
	size_t i = find(c, start);
	bool left, right;
	int error;

	if (start >= end)
		return 0;
	if (i < c->count && r[i].start < end)
		return -EEXIST;
	left = i > 0 && r[i - 1].end == start;
	right = i < c->count && r[i].start == end;
	if (left && right) {
		r[i - 1].end = r[i].end;
		c->count--;
		memmove(&r[i], &r[i + 1], (c->count - i) * sizeof(*r));
		return 0;
	}
	if (left || right) {
		if (left)
			r[i - 1].end = end;
		else
			r[i].start = start;
		return 0;
	}
	error = make_room(c);
	if (error)
		return error;
	r = runs(c);
	memmove(&r[i + 1], &r[i], (c->count - i) * sizeof(*r));
	r[i] = (struct cover_run){ start, end };
	c->count++;
	return 0;
}

bool cover_is(const struct cover *c, uint64_t len)
{
	const struct cover_run *r = c->run ? c->run : &c->one;

	if (len == 0)
		return c->count == 0;
	return c->count == 1 && r->start == 0 && r->end == len;
}

void cover_clear(struct cover *c)
{
	free(c->run);
	memset(c, 0, sizeof(*c));
}
