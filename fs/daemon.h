/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * daemon.h - the process: background, messages, pid file.
 *
 * Ownership  a struct daemon lives as long as the process.
 * Threads    the log's sink may be called from any thread; all else belongs to
 *            the main thread.
 * Errors     0 or -errno with one line for the user.
 */
#ifndef NBDFS_FS_DAEMON_H
#define NBDFS_FS_DAEMON_H

#include <pthread.h>
#include <stdbool.h>

#include "engine.h"

/* What is said while it is not known yet whether the mount succeeds: a failure
 * is told by one line alone. */
#define DAEMON_HELD 16

struct daemon {
	struct log log;
	bool background;
	int parent;	      /* tells how it went; -1: nobody */
	char *pidfile;	      /* absolute; NULL: none was written */
	pthread_mutex_t lock; /* of what is below */
	enum { SAY_LATER, SAY_STDERR, SAY_SYSLOG } say;
	char *held[DAEMON_HELD];
	unsigned nheld;
};

/* Closes what was inherited, and sees to it that no disk contents get into a
 * core file. */
void daemon_clean_process(bool debug);

void daemon_init(struct daemon *d, bool background, bool verbose, bool debug);
/* Forks. In the parent: true, and *status is how the child's start went; it
 * has been said. In the child, or in the foreground: false. */
bool daemon_fork(struct daemon *d, int *status, struct error *err);
/* The mount is there: the parent may go. */
void daemon_started(struct daemon *d);
/* It could not be made: says so, or has the parent say it. */
void daemon_failed(struct daemon *d, const struct error *err);
int daemon_write_pidfile(struct daemon *d, const char *path, struct error *err);
void daemon_free(struct daemon *d);

#endif
