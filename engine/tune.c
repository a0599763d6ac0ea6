/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "tune.h"
#include "util.h"

/* A measurement takes at least so long, and so many windows. */
#define MEASURE_NS (4 * NS_PER_MS)
#define MEASURE_WINDOWS 3
#define PAUSE_MIN 4
#define PAUSE_MAX 256
/* Bursts to look at before the first window is chosen; no end is faster. */
#define BURSTS 2
#define BYTES_PER_US 4096

void tune_init(struct tune *t, uint64_t min, uint64_t max)
{
	*t = (struct tune){
		.window = min_u64(min, max),
		.base = min_u64(min, max),
		.min = min_u64(min, max),
		.max = max,
		.next_pause = PAUSE_MIN,
		.fresh = true,
	};
}

/* The next measurement begins when what was in flight until now is done. */
static void measure_again(struct tune *t)
{
	t->settle = t->window;
	t->bytes = 0;
	t->began = 0;
}

static void set_window(struct tune *t, uint64_t window)
{
	t->window = window;
	measure_again(t);
}

/* Noise gives so much now and then, but rarely twice in a row. */
static bool faster(uint64_t rate, uint64_t than)
{
	return rate > than && rate - than >= than / 10 * 3;
}

/* Noise takes so much away, but half of a window that limits takes more. */
static bool as_fast(uint64_t rate, uint64_t than)
{
	return rate >= than / 10 * 9;
}

static void begin_trial(struct tune *t)
{
	uint64_t window = t->base;

	if (t->down)
		window = max_u64(t->base / 2, t->min);
	else
		window = min_u64(t->base * 2, t->max);
	if (window == t->base) {
		t->down = !t->down;
		measure_again(t);
		t->settle = 0;
	} else {
		set_window(t, window);
	}
}

static void end_trial(struct tune *t, uint64_t rate)
{
	bool good = t->down ? as_fast(rate, t->base_rate) :
			      faster(rate, t->base_rate);

	if (good && (t->voted || t->fresh)) {
		t->base = t->window;
		t->base_rate = rate;
		t->voted = false;
		t->pause = 0;
		t->next_pause = PAUSE_MIN;
		begin_trial(t);
		return;
	}
	t->voted = good;
	set_window(t, t->base);
	if (good)
		return;
	t->fresh = false;
	/* The other direction comes first, after a while. */
	t->down = !t->down;
	t->pause = t->next_pause;
	t->next_pause =
		(unsigned)min_u64((uint64_t)t->next_pause * 2, PAUSE_MAX);
}

static void measured(struct tune *t, uint64_t rate)
{
	if (t->window != t->base) {
		end_trial(t, rate);
		return;
	}
	t->base_rate = rate;
	if (t->pause > 0) {
		t->pause--;
		measure_again(t);
		t->settle = 0;
	} else {
		begin_trial(t);
	}
}

/* ------------------------------------------------------------- beginning */

static void burst_over(struct tune *t)
{
	uint64_t us = (t->last - t->first) / 1000;
	double rate = (double)t->followed / (double)max_u64(us, 1);
	double product;

	rate = rate < BYTES_PER_US ? rate : BYTES_PER_US;
	product = (double)t->latency / 1000 * rate;
	if (t->followed == 0 || product >= (double)t->max)
		product = t->followed ? (double)t->max : 0;
	if (t->bursts == 0 || product < (double)t->product)
		t->product = (uint64_t)product;
	t->bursts++;
}

uint64_t tune_found(const struct tune *t)
{
	return t->bursts == BURSTS ? t->base : 0;
}

void tune_begin_with(struct tune *t, uint64_t window)
{
	t->bursts = BURSTS;
	window = min_u64(max_u64(window, t->min), t->max);
	if (window <= t->window)
		return;
	t->base = window;
	set_window(t, window);
}

/* Answers to what was sent before the first of them came are one burst. */
static void look_at_burst(struct tune *t, uint64_t now, uint64_t len,
			  uint64_t sent)
{
	if (t->first && sent < t->first) {
		t->followed += len;
		t->last = now;
		return;
	}
	if (t->first)
		burst_over(t);
	if (t->bursts == BURSTS) {
		tune_begin_with(t, align_up(t->product, MiB));
		return;
	}
	t->first = t->last = now;
	t->latency = now - min_u64(sent, now);
	t->followed = 0;
}

void tune_finished(struct tune *t, uint64_t now, uint64_t len, uint64_t sent)
{
	uint64_t ns;

	if (t->min == t->max)
		return;
	if (t->bursts < BURSTS)
		look_at_burst(t, now, len, sent);
	if (t->settle > 0) {
		t->settle -= min_u64(t->settle, len);
		return;
	}
	if (t->began == 0) {
		t->began = now;
		return;
	}
	t->bytes += len;
	ns = now - t->began;
	if (ns < MEASURE_NS || t->bytes < t->window * MEASURE_WINDOWS)
		return;
	measured(t, (uint64_t)((double)t->bytes / (double)ns * 1e9));
}

void tune_starved(struct tune *t)
{
	if (t->min < t->max)
		measure_again(t);
}
