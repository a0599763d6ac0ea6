/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * subproc_log.h - what a child prints, line by line.
 *
 * A pipe and a thread that reads it: a child that got our own stderr would
 * keep it open when we have long gone to the background, and its words would
 * not reach syslog. Until subproc_log_release() the first lines are kept: they
 * tell why a start failed.
 *
 * Ownership  the write end is the caller's, who gives it to the child.
 * Threads    any, except that subproc_log_free() comes last.
 * Errors     0 or -errno with a text.
 */
#ifndef NBDFS_SUBPROC_LOG_H
#define NBDFS_SUBPROC_LOG_H

#include "engine.h"

struct subproc_log;

/* `name` is the command, copied; `log` is copied, or NULL: lines are dropped.
 * *write_fd is closed on exec. */
int subproc_log_new(const char *name, const struct log *log,
		    struct subproc_log **out, int *write_fd, struct error *err);
/* Passes on what was kept, and from now on every line. */
void subproc_log_release(struct subproc_log *o);
/* The line that tells most of what was kept, or "". Waits a moment for the
 * pipe to run dry: for a child that has ended. */
void subproc_log_said(struct subproc_log *o, struct error *line);
/* NULL is allowed. */
void subproc_log_free(struct subproc_log *o);

#endif
