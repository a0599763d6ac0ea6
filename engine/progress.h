/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * progress.h - shows how far a copy is: a line on a terminal that is drawn
 * again and again, or lines "N/100" for programs.
 *
 * Units      bytes; nanoseconds.
 * Ownership  a plain structure of the caller's; the descriptor stays the
 *            caller's.
 * Threads    one.
 * Errors     none: nobody looks at a progress bar that cannot be written.
 */
#ifndef NBDFS_PROGRESS_H
#define NBDFS_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct progress {
	int fd;
	bool terminal;
	uint64_t total; /* UINT64_MAX: not known */
	uint64_t began;
	const char *what; /* "", or what is being done */
	/* the rate over the last seconds */
	uint64_t seen_at, seen;
	double rate;  /* bytes per second; < 0: not known */
	int percent;  /* last shown to programs */
	size_t width; /* of the last line on the terminal */
};

void progress_init(struct progress *p, int fd, bool terminal, uint64_t total,
		   uint64_t now);
/* Another pass over the same range begins. */
void progress_again(struct progress *p, const char *what, uint64_t now);
/* `finished` bytes are done with. */
void progress_show(struct progress *p, uint64_t finished, uint64_t now);
/* Clears the line; for programs, says 100/100 where all went well. */
void progress_end(struct progress *p, bool ok);

/* The line for a terminal, without the return before it; for tests. */
void progress_line(const struct progress *p, uint64_t finished, char *line,
		   size_t size);

#endif
