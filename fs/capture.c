/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "capture.h"

void capture_begin(struct capture *cap, bool enable)
{
	cap->saved = -1;
	cap->file = enable ? memfd_create("nbdfs-stderr", MFD_CLOEXEC) : -1;
	if (cap->file < 0)
		return;
	fflush(stderr);
	cap->saved = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
	if (cap->saved >= 0 && dup2(cap->file, STDERR_FILENO) >= 0)
		return;
	if (cap->saved >= 0)
		close(cap->saved);
	close(cap->file);
	cap->file = -1;
}

/* "fusermount3: entry for..." and the like. */
static const char *without_program(const char *line)
{
	size_t n = strcspn(line, ": ");

	if (strncmp(line, "fuse", 4) == 0 && line[n] == ':')
		line += n + 1;
	return line + strspn(line, " ");
}

static void last_line(char *all, char *text, size_t size)
{
	size_t len = strlen(all);
	char *line;

	while (len > 0 && all[len - 1] == '\n')
		all[--len] = '\0';
	line = strrchr(all, '\n');
	snprintf(text, size, "%s", without_program(line ? line + 1 : all));
}

void capture_end(struct capture *cap, char *text, size_t size)
{
	char all[1024];
	ssize_t n;

	text[0] = '\0';
	if (cap->file < 0)
		return;
	fflush(stderr);
	dup2(cap->saved, STDERR_FILENO);
	close(cap->saved);
	n = pread(cap->file, all, sizeof(all) - 1, 0);
	close(cap->file);
	if (n > 0) {
		all[n] = '\0';
		last_line(all, text, size);
	}
}
