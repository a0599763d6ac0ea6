/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "tune.h"
#include "util.h"

/* A measurement takes at least so long, and so many windows. */
#define MEASURE_NS (4 * NS_PER_MS)
#define MEASURE_WINDOWS 3
#define PAUSE_MIN 4
#define PAUSE_MAX 256

void tune_init(struct tune *t, uint64_t min, uint64_t max)
{
	*t = (struct tune){
		.window = min_u64(min, max),
		.base = min_u64(min, max),
		.max = max,
		.next_pause = PAUSE_MIN,
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

/* Doubling is worth it from three tenths more on: where the window is what
 * limits, it gives nearly twice as much; noise rarely gives so much. */
static bool faster(uint64_t rate, uint64_t than)
{
	return rate > than && rate - than >= than / 10 * 3;
}

static void measured(struct tune *t, uint64_t rate)
{
	if (t->window > t->base) {
		if (faster(rate, t->base_rate)) {
			t->base = t->window;
			t->next_pause = PAUSE_MIN;
		} else {
			set_window(t, t->base);
			t->pause = t->next_pause;
			t->next_pause = (unsigned)min_u64(
				(uint64_t)t->next_pause * 4, PAUSE_MAX);
			return;
		}
	}
	t->base_rate = rate;
	if (t->pause > 0) {
		t->pause--;
		measure_again(t);
		t->settle = 0;
	} else {
		set_window(t, min_u64(t->base * 2, t->max));
	}
}

void tune_finished(struct tune *t, uint64_t now, uint64_t len)
{
	uint64_t ns;

	if (t->base == t->max)
		return;
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
	if (t->base < t->max)
		measure_again(t);
}
