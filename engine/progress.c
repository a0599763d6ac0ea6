/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "progress.h"
#include "util.h"

#define LINE_MAX_LEN 128
/* How fast an old rate is forgotten. */
#define RATE_WEIGHT 0.3
#define RATE_NS (400 * NS_PER_MS)

void progress_init(struct progress *p, int fd, bool terminal, uint64_t total,
		   uint64_t now)
{
	*p = (struct progress){
		.fd = fd,
		.terminal = terminal,
		.total = total,
	};
	p->percent = -1;
	progress_again(p, "", now);
}

void progress_again(struct progress *p, const char *what, uint64_t now)
{
	p->what = what;
	p->began = p->seen_at = now;
	p->seen = 0;
	p->rate = -1;
}

static void put(const struct progress *p, const char *text, size_t len)
{
	while (len > 0) {
		ssize_t n = write(p->fd, text, len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return;
		text += n;
		len -= (size_t)n;
	}
}

static void measure(struct progress *p, uint64_t finished, uint64_t now)
{
	uint64_t ns = now - p->seen_at;
	double rate;

	if (ns < RATE_NS)
		return;
	rate = (double)(finished - min_u64(p->seen, finished)) / (double)ns *
	       1e9;
	if (p->rate >= 0)
		rate = RATE_WEIGHT * rate + (1 - RATE_WEIGHT) * p->rate;
	p->rate = rate;
	p->seen = finished;
	p->seen_at = now;
}

/* 100 only at the end. */
static int percent_of(const struct progress *p, uint64_t finished)
{
	if (p->total == UINT64_MAX)
		return 0;
	if (finished >= p->total)
		return 100;
	return (int)((double)finished / (double)p->total * 100);
}

static void time_left(const struct progress *p, uint64_t finished, char *text,
		      size_t size)
{
	double s;

	text[0] = '\0';
	if (p->total == UINT64_MAX || p->rate < 1 || finished >= p->total)
		return;
	s = (double)(p->total - finished) / p->rate;
	if (s >= 100 * 3600)
		snprintf(text, size, ", more than 4 days left");
	else if (s >= 3600)
		snprintf(text, size, ", %d:%02d h left", (int)s / 3600,
			 (int)s / 60 % 60);
	else
		snprintf(text, size, ", %d:%02d left", (int)s / 60,
			 (int)s % 60);
}

void progress_line(const struct progress *p, uint64_t finished, char *line,
		   size_t size)
{
	char done[24], total[24], rate[24], left[40];

	format_size(finished, done, sizeof(done));
	if (p->rate >= 0)
		format_size((uint64_t)p->rate, rate, sizeof(rate));
	else
		snprintf(rate, sizeof(rate), "-");
	time_left(p, finished, left, sizeof(left));
	if (p->total == UINT64_MAX)
		snprintf(line, size, "%s%s, %s/s", p->what, done, rate);
	else
		snprintf(line, size, "%s%s of %s, %d%%, %s/s%s", p->what, done,
			 format_size(p->total, total, sizeof(total)),
			 percent_of(p, finished), rate, left);
}

/* The line is drawn over the last one; blanks cover what is left of it. */
static void draw(struct progress *p, const char *line)
{
	char text[2 * LINE_MAX_LEN];
	size_t len = strlen(line);
	int n = snprintf(text, sizeof(text), "\r%s%*s", line,
			 (int)(p->width > len ? p->width - len : 0), "");

	p->width = len;
	put(p, text, (size_t)n);
}

void progress_show(struct progress *p, uint64_t finished, uint64_t now)
{
	char line[LINE_MAX_LEN];
	int percent;

	if (p->terminal) {
		measure(p, finished, now);
		progress_line(p, finished, line, sizeof(line));
		draw(p, line);
		return;
	}
	percent = percent_of(p, finished);
	/* Once, at the end, and not before. */
	if (percent <= p->percent || percent == 100)
		return;
	p->percent = percent;
	snprintf(line, sizeof(line), "%d/100\n", percent);
	put(p, line, strlen(line));
}

void progress_end(struct progress *p, bool ok)
{
	static const char all[] = "100/100\n";

	if (p->terminal && p->width > 0) {
		draw(p, "");
		put(p, "\r", 1);
	} else if (!p->terminal && ok) {
		put(p, all, sizeof(all) - 1);
	}
}
