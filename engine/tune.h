/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * tune.h - how many bytes to keep in flight between two ends.
 *
 * A deep queue costs processor time and cache where both ends are near, a
 * shallow one starves a distant end. So the window begins small and is doubled
 * on trial: it stays doubled where that made things clearly faster, and
 * goes back otherwise. From time to time it is tried again, and so is half of
 * it, which stays where it costs no speed: what a busy machine made look faster
 * does not last for ever. After the first failure a trial must succeed twice.
 *
 * The first requests say where to begin: those that were on their way together
 * show how long an answer takes (until the first of them) and how fast answers
 * follow each other (the others), and the product of both is what has to be in
 * flight. So a distant end is not waited for again and again at the start.
 *
 * Units      bytes; nanoseconds.
 * Ownership  a plain structure of the caller's.
 * Threads    the caller's; pure arithmetic.
 * Errors     none.
 */
#ifndef NBDFS_TUNE_H
#define NBDFS_TUNE_H

#include <stdbool.h>
#include <stdint.h>

struct tune {
	uint64_t window; /* bytes that may be in flight now */
	uint64_t min, max;
	uint64_t base;	    /* the window that a trial goes back to */
	uint64_t base_rate; /* bytes per second with it; 0: not known */
	uint64_t bytes;	    /* finished since `began` */
	uint64_t settle;    /* bytes to let pass before measuring */
	uint64_t began;	    /* when the measurement began; 0: not yet */
	unsigned pause;	    /* measurements until the next trial */
	unsigned next_pause;
	bool down;  /* the trial is of half the window, not of the double */
	bool fresh; /* no trial has failed yet */
	bool voted; /* it looked good once */
	/* The first requests: what was learnt from the burst that is coming
	 * in, and from those before it. */
	unsigned bursts;      /* that were looked at */
	uint64_t first, last; /* when answers of this one came */
	uint64_t latency;     /* of the first answer */
	uint64_t followed;    /* bytes that came after it */
	uint64_t product;     /* the least that was seen */
};

/* min and max are bounds of the window; min == max: it is fixed. */
void tune_init(struct tune *t, uint64_t min, uint64_t max);
/* `len` bytes, which set out at `sent`, have made their way from end to
 * end. */
void tune_finished(struct tune *t, uint64_t now, uint64_t len, uint64_t sent);
/* The window that serves well; 0 while it is not known. */
uint64_t tune_found(const struct tune *t);
/* Begins with what served well before, within the bounds. */
void tune_begin_with(struct tune *t, uint64_t window);
/* The window was not what held things up: the measurement is worthless. */
void tune_starved(struct tune *t);

#endif
