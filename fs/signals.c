/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * signals.c - whether a waiting program is to be let go.
 *
 * The kernel sends FUSE_INTERRUPT for any signal that would wake the program,
 * also for a timer's that it handles with SA_RESTART, and EINTR would then
 * come out of calls like close(2) that never give it on a local disk. So the
 * program's pending signals are looked at: /proc/TID/status names them.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fs.h"

struct masks {
	uint64_t pending, blocked, ignored, caught;
};

static uint64_t bit(int sig)
{
	return (uint64_t)1 << (sig - 1);
}

static bool read_masks(pid_t tid, struct masks *m)
{
	char path[64], line[256];
	FILE *f;

	memset(m, 0, sizeof(*m));
	snprintf(path, sizeof(path), "/proc/%ld/status", (long)tid);
	f = fopen(path, "re");
	if (!f)
		return false;
	while (fgets(line, sizeof(line), f)) {
		if (!strncmp(line, "SigPnd:", 7) ||
		    !strncmp(line, "ShdPnd:", 7))
			m->pending |= strtoull(line + 7, NULL, 16);
		else if (!strncmp(line, "SigBlk:", 7))
			m->blocked = strtoull(line + 7, NULL, 16);
		else if (!strncmp(line, "SigIgn:", 7))
			m->ignored = strtoull(line + 7, NULL, 16);
		else if (!strncmp(line, "SigCgt:", 7))
			m->caught = strtoull(line + 7, NULL, 16);
	}
	fclose(f);
	return true;
}

bool fs_signals_end(pid_t tid, bool *dying)
{
	/* These ask a program to end, or to stop what it is doing, also where
	 * it handles them. */
	const uint64_t ends = bit(SIGINT) | bit(SIGTERM) | bit(SIGHUP) |
			      bit(SIGQUIT) | bit(SIGKILL);
	/* Without a handler these do not end it. */
	const uint64_t harmless = bit(SIGCHLD) | bit(SIGCONT) | bit(SIGURG) |
				  bit(SIGWINCH) | bit(SIGSTOP) | bit(SIGTSTP) |
				  bit(SIGTTIN) | bit(SIGTTOU);
	struct masks m;
	uint64_t fatal;

	*dying = false;
	if (tid <= 0 || !read_masks(tid, &m))
		return true; /* of another namespace, or gone */
	/* SIGKILL cannot be blocked; the kernel adds it to every thread when
	 * a fatal signal has come. */
	m.pending &= ~m.blocked | bit(SIGKILL);
	fatal = m.pending & ~m.caught & ~m.ignored & ~harmless;
	*dying = fatal;
	return fatal || (m.pending & ends & ~m.ignored);
}
