/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <string.h>

#include "fsr.h"

/* splitmix64: every seed is a good one, also 0. */
uint64_t rng_next(struct rng *r)
{
	uint64_t z = (r->state += 0x9e3779b97f4a7c15);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
	return z ^ (z >> 31);
}

uint64_t rng_below(struct rng *r, uint64_t limit)
{
	return rng_next(r) % limit;
}

bool rng_chance(struct rng *r, unsigned percent)
{
	return rng_below(r, 100) < percent;
}

/* The part of the file in which the worker may draw a range. */
static void pick_bounds(struct worker *w, const struct file *f, uint64_t *lo,
			uint64_t *hi)
{
	const struct config *cfg = &w->c->cfg;
	uint64_t stripe = cfg->stripe, mine;

	*lo = 0;
	*hi = f->size;
	if (cfg->threads == 1)
		return;
	if (!stripe) {
		own_part(w, f, lo, hi);
		return;
	}
	mine = (f->size / stripe + cfg->threads - 1 - w->id) / cfg->threads;
	if (!mine) {
		*hi = 0;
		return;
	}
	*lo = (rng_below(&w->rng, mine) * cfg->threads + w->id) * stripe;
	*hi = *lo + stripe;
	if (*hi > f->size)
		*hi = f->size;
}

/* Short ranges are as likely as long ones. */
static uint64_t pick_len(struct worker *w, uint64_t max)
{
	uint64_t bits = 0, len;

	while (bits < 63 && ((uint64_t)1 << (bits + 1)) <= max)
		bits++;
	bits = rng_below(&w->rng, bits + 1);
	len = ((uint64_t)1 << bits) + rng_below(&w->rng, (uint64_t)1 << bits);
	return len > max ? max : len;
}

/* Near an edge of an earlier range, on a round offset, or anywhere. */
static uint64_t pick_offset(struct worker *w, uint64_t lo, uint64_t hi)
{
	static const unsigned shift[] = { 9, 12, 16, 20 };
	uint64_t off = lo + rng_below(&w->rng, hi - lo), unit;

	switch (rng_below(&w->rng, 4)) {
	case 0:
		off = w->hot[rng_below(&w->rng, ARRAY_SIZE(w->hot))];
		if (rng_chance(&w->rng, 50))
			off += rng_below(&w->rng, 1024) - 512;
		break;
	case 1:
		unit = (uint64_t)1
		       << shift[rng_below(&w->rng, ARRAY_SIZE(shift))];
		off -= off % unit;
		break;
	default:
		break;
	}
	return off < lo || off >= hi ? lo : off;
}

static struct range pick_within(struct worker *w, uint64_t lo, uint64_t hi,
				uint64_t max, uint64_t align)
{
	struct range r = { 0, 0 };

	if (lo >= hi)
		return r;
	r.off = pick_offset(w, lo, hi);
	r.len = pick_len(w, max);
	/* Round lengths end on round offsets. */
	if (r.len > 512 && rng_chance(&w->rng, 33))
		r.len -= (r.off + r.len) % 512;
	if (r.len > hi - r.off)
		r.len = hi - r.off;
	if (align > 1) {
		uint64_t end = (r.off + r.len) / align * align;

		r.off = (r.off + align - 1) / align * align;
		r.len = end > r.off ? end - r.off : 0;
	}
	w->hot[w->next_hot++ % ARRAY_SIZE(w->hot)] =
		rng_chance(&w->rng, 50) ? r.off : r.off + r.len;
	return r;
}

struct range pick_range(struct worker *w, const struct file *f, uint64_t max,
			uint64_t align)
{
	uint64_t lo, hi;

	pick_bounds(w, f, &lo, &hi);
	return pick_within(w, lo, hi, max, align);
}

struct range pick_any(struct worker *w, const struct file *f, uint64_t max,
		      uint64_t align)
{
	return pick_within(w, 0, f->size, max, align);
}

static void fill_random(struct worker *w, uint8_t *data, uint64_t len)
{
	uint64_t i, x;

	for (i = 0; i + 8 <= len; i += 8) {
		x = rng_next(&w->rng);
		memcpy(data + i, &x, 8);
	}
	x = rng_next(&w->rng);
	memcpy(data + i, &x, len - i);
}

void fill_data(struct worker *w, uint8_t *data, uint64_t len)
{
	uint64_t i, n;

	switch (rng_below(&w->rng, 16)) {
	case 0:
		memset(data, 0, len);
		return;
	case 1:
		memset(data, 1 + (int)rng_below(&w->rng, 255), len);
		return;
	case 2: /* blocks of zeroes between data */
	case 3:
		fill_random(w, data, len);
		for (i = 0; i < len; i += n) {
			n = 1 + rng_below(&w->rng, 16384);
			if (n > len - i)
				n = len - i;
			if (rng_chance(&w->rng, 50))
				memset(data + i, 0, n);
		}
		return;
	default:
		fill_random(w, data, len);
		return;
	}
}
