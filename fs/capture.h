/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * capture.h - what a library or its child process says on stderr.
 *
 * Threads    start-up only: the whole process has one stderr.
 * Errors     where nothing can be captured, it goes where it always goes.
 */
#ifndef NBDFS_FS_CAPTURE_H
#define NBDFS_FS_CAPTURE_H

#include <stdbool.h>
#include <stddef.h>

struct capture {
	int file, saved; /* -1: nothing is captured */
};

void capture_begin(struct capture *cap, bool enable);
/* The last line that was said, without the name of the program before it, or
 * an empty text. */
void capture_end(struct capture *cap, char *text, size_t size);

#endif
