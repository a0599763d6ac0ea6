/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * subproc.h - a server that runs as our child, by socket activation.
 *
 * The child gets a listening unix socket of ours as descriptor 3 (LISTEN_FDS,
 * LISTEN_PID), so that nothing has to be parsed, waited for or guessed: a
 * connection made before the server is up waits in the backlog, and breaks
 * when the server ends.
 *
 * Ownership  a subproc is its creator's.
 * Threads    subproc_start() on a thread that lives as long as the process
 *            (the child is told to end when that thread does); before any
 *            other use. The rest from any thread.
 * Errors     0 or -errno with a text.
 */
#ifndef NBDFS_SUBPROC_H
#define NBDFS_SUBPROC_H

#include "engine.h"

struct subproc;

/* argv is copied. */
int subproc_new(char *const argv[], struct subproc **proc, struct error *err);
/* Runs the command. What it prints becomes messages in `log` (copied), once
 * subproc_answered() was called; until then the lines are held back, since
 * they tell why a start failed. */
int subproc_start(struct subproc *p, const struct log *log, struct error *err);
/* The server has answered a client. */
void subproc_answered(struct subproc *p);
/* Where to connect to; valid after the start. */
const char *subproc_socket(const struct subproc *p);
/* False before the start and when the child has ended. */
bool subproc_alive(struct subproc *p);
/* True if the child ends within `wait_ms`: then `how` tells how it ended, and
 * what it said last. */
bool subproc_ended(struct subproc *p, unsigned wait_ms, struct error *how);
/* SIGTERM to its process group, SIGKILL after grace_ms; waits for the child;
 * removes socket and folder. Blocks. More than once does no harm. */
void subproc_stop(struct subproc *p, unsigned grace_ms);
/* Stops it where that has not been done. NULL is allowed. */
void subproc_free(struct subproc *p);

#endif
