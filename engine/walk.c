/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "util.h"
#include "walk.h"

/* What one question is about, to begin with; where an answer is one run it
 * grows, to what one block status can cover without extended headers, or, where
 * nobody has to be waited for, to anything. A server may take long to look
 * through a fragmented image, and reads wait behind its answers. */
#define SEGMENT_MIN (16 * MiB)
#define SEGMENT_WIRE (4 * GiB - 64 * KiB)
#define SEGMENT_MAX ((uint64_t)1 << 60)
/* Segments that are asked about at the same time. */
#define AHEAD_MIN 2
#define AHEAD_MAX 32
/* So many runs make a segment a fragmented one. */
#define RUNS_MANY 256
/* Halves are not made smaller than this. */
#define SPLIT_MIN (8 * MiB)
/* Slow, short answers in a row before a segment is halved. */
#define SPLIT_AFTER 2
/* Known runs that a segment keeps at most. */
#define RUNS_MAX 1024
#define RUNS_MIN 8
/* Failures after which the device is not asked any more. */
#define FAILURES_MAX 3

struct run {
	uint64_t end;
	bool zero;
};

/* [start, known) is described by runs, [known, end) is not known yet. */
struct segment {
	TAILQ_ENTRY(segment) link;
	struct walk *w;
	uint64_t start, known, end;
	struct run *runs;	    /* a ring */
	unsigned head, count, room; /* room: 0 or a power of two */
	unsigned found;		    /* runs, in all */
	unsigned slow;		    /* slow, short answers in a row */
	bool asking;		    /* io is the device's */
	bool submitting;	    /* inside the device's extents() */
	struct dev_io io;
};

struct walk {
	struct walk_params p;
	uint64_t next, end; /* [next, end) has no segment yet */
	uint64_t segment_size;
	TAILQ_HEAD(, segment) segments;
	unsigned count, ahead; /* segments; how many there may be */
	unsigned asking;       /* of them, with a question out */
	unsigned failures;
	bool stopped;
};

static void segment_ask(struct segment *s);
static void walk_fill(struct walk *w);

static bool all_data(const struct walk *w)
{
	return w->p.no_extents || !w->p.dev->ops->extents ||
	       !(w->p.dev->caps &
		 (w->p.marked ? DEV_HAS_MARKS : DEV_CAN_EXTENTS)) ||
	       w->failures >= FAILURES_MAX;
}

static struct run *run_at(struct segment *s, unsigned i)
{
	return &s->runs[(s->head + i) & (s->room - 1)];
}

/* Room for one more run. False: not now. */
static bool make_room(struct segment *s)
{
	unsigned room = s->room ? s->room * 2 : RUNS_MIN;
	struct run *runs;
	unsigned i;

	if (s->count < s->room)
		return true;
	if (room > RUNS_MAX)
		return false;
	runs = malloc(room * sizeof(*runs));
	if (!runs)
		return false;
	for (i = 0; i < s->count; i++)
		runs[i] = *run_at(s, i);
	free(s->runs);
	s->runs = runs;
	s->head = 0;
	s->room = room;
	return true;
}

/* Records [known, end). Needs room. */
static void add_run(struct segment *s, uint64_t end, bool zero)
{
	struct run *last = s->count ? run_at(s, s->count - 1) : NULL;
	struct run *before = s->count > 1 ? run_at(s, s->count - 2) : NULL;

	assert(end > s->known && end <= s->end);
	s->known = end;
	if (last && last->zero == zero) {
		last->end = end;
		return;
	}
	/* Reading through a short hole is cheaper than a request more. */
	if (before && !zero && last->end - before->end < s->w->p.min_hole) {
		before->end = end;
		s->count--;
		return;
	}
	s->count++;
	s->found++;
	last = run_at(s, s->count - 1);
	last->end = end;
	last->zero = zero;
}

static struct segment *segment_new(struct walk *w, uint64_t start, uint64_t end)
{
	struct segment *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->w = w;
	s->start = s->known = start;
	s->end = end;
	if (!make_room(s)) {
		free(s);
		return NULL;
	}
	w->count++;
	return s;
}

static void segment_free(struct segment *s)
{
	assert(!s->asking);
	TAILQ_REMOVE(&s->w->segments, s, link);
	s->w->count--;
	free(s->runs);
	free(s);
}

/* Gives the far half of what is not known to a segment of its own. */
static void segment_split(struct segment *s)
{
	struct walk *w = s->w;
	uint64_t half = (s->end - s->known) / 2;
	uint64_t middle = align_up(s->known + half, MiB);
	struct segment *far;

	if (s->slow < SPLIT_AFTER || half < SPLIT_MIN || middle >= s->end ||
	    w->count >= AHEAD_MAX)
		return;
	far = segment_new(w, middle, s->end);
	if (!far)
		return;
	s->end = middle;
	s->slow = 0;
	TAILQ_INSERT_AFTER(&w->segments, s, far, link);
	/* Like its other half it is known to be slow. */
	far->slow = SPLIT_AFTER - 1;
	segment_ask(far);
}

/* The size and number of what comes next, after a segment is known. */
static void adapt(struct walk *w, const struct segment *s, bool waited)
{
	uint64_t max = waited ? SEGMENT_WIRE : SEGMENT_MAX;

	if (s->found == 1) {
		w->ahead = (unsigned)min_u64((uint64_t)w->ahead * 2, AHEAD_MAX);
		w->segment_size = max_u64(w->segment_size,
					  min_u64(w->segment_size * 2, max));
	} else if (s->found > RUNS_MANY) {
		w->ahead = (unsigned)max_u64(w->ahead / 2, AHEAD_MIN);
		w->segment_size = max_u64(w->segment_size / 4, SEGMENT_MIN);
	}
}

/* Takes over what the device answered. */
static void segment_learn(struct segment *s, int error)
{
	struct walk *w = s->w;
	uint64_t left = s->end - s->known;
	uint64_t len = s->io.run;
	bool zero = s->io.zero;

	if (error || len == 0) {
		/* Never zero by mistake: what cannot be told is read. */
		if (!w->stopped)
			w->failures++;
		zero = false;
		len = left;
	}
	if (len < left && !s->submitting)
		s->slow++;
	else
		s->slow = 0;
	add_run(s, s->known + min_u64(len, left), zero);
	if (s->known == s->end)
		adapt(w, s, !s->submitting);
}

static void segment_answered(struct dev_io *io, int error)
{
	struct segment *s = io->user;
	struct walk *w = s->w;

	assert(s->asking);
	s->asking = false;
	w->asking--;
	segment_learn(s, error);
	if (s->submitting)
		return;
	segment_ask(s);
	walk_fill(w);
	w->p.wake(w->p.arg);
}

/* Asks until an answer is waited for, or enough is known. */
static void segment_ask(struct segment *s)
{
	struct walk *w = s->w;

	while (!w->stopped && !s->asking && s->known < s->end && make_room(s)) {
		if (all_data(w)) {
			add_run(s, s->end, false);
			return;
		}
		s->io.done = segment_answered;
		s->io.user = s;
		s->io.offset = s->known;
		s->io.len = s->end - s->known;
		s->io.flags = 0;
		s->io.run = 0;
		s->io.zero = s->io.hole = false;
		s->asking = s->submitting = true;
		w->asking++;
		blockdev_extents(w->p.dev, &s->io);
		s->submitting = false;
	}
	if (s->asking)
		segment_split(s);
}

/* Keeps questions out far enough ahead. */
static void walk_fill(struct walk *w)
{
	while (!w->stopped && w->next < w->end && w->count < w->ahead) {
		uint64_t len = min_u64(w->end - w->next, w->segment_size);
		struct segment *s;

		if (all_data(w))
			len = w->end - w->next;
		s = segment_new(w, w->next, w->next + len);
		/* Without memory: again when something was used up. */
		if (!s)
			return;
		TAILQ_INSERT_TAIL(&w->segments, s, link);
		w->next += len;
		segment_ask(s);
	}
}

struct walk *walk_new(const struct walk_params *p)
{
	struct walk *w = calloc(1, sizeof(*w));

	if (!w)
		return NULL;
	w->p = *p;
	w->next = p->offset;
	w->end = p->offset + p->len;
	w->segment_size = SEGMENT_MIN;
	w->ahead = AHEAD_MIN;
	TAILQ_INIT(&w->segments);
	return w;
}

bool walk_peek(struct walk *w, struct walk_run *run)
{
	struct segment *s = TAILQ_FIRST(&w->segments);

	if (!s) {
		walk_fill(w);
		s = TAILQ_FIRST(&w->segments);
	}
	if (!s) {
		/* At the end; or without memory, where reading goes on. */
		run->offset = w->next;
		run->len = w->end - w->next;
		run->zero = false;
		return run->len > 0;
	}
	if (s->count == 0)
		segment_ask(s);
	if (s->count == 0)
		return false;
	run->offset = s->start;
	run->len = run_at(s, 0)->end - s->start;
	run->zero = run_at(s, 0)->zero;
	return true;
}

void walk_advance(struct walk *w, uint64_t n)
{
	struct segment *s = TAILQ_FIRST(&w->segments);

	if (!s) {
		assert(n <= w->end - w->next);
		w->next += n;
		return;
	}
	assert(s->count > 0 && n <= run_at(s, 0)->end - s->start);
	s->start += n;
	if (s->start < run_at(s, 0)->end)
		return;
	s->head = (s->head + 1) & (s->room - 1);
	s->count--;
	if (s->start == s->end) {
		segment_free(s);
		walk_fill(w);
	} else if (s->count <= RUNS_MAX / 2) {
		segment_ask(s);
	}
}

bool walk_at_end(const struct walk *w)
{
	return w->next == w->end && TAILQ_EMPTY(&w->segments);
}

void walk_stop(struct walk *w)
{
	w->stopped = true;
}

bool walk_idle(const struct walk *w)
{
	return w->asking == 0;
}

void walk_free(struct walk *w)
{
	struct segment *s;

	if (!w)
		return;
	assert(walk_idle(w));
	while ((s = TAILQ_FIRST(&w->segments)))
		segment_free(s);
	free(w);
}
