/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * loading.h - reaching the servers, while the user may change his mind.
 *
 * Threads    the main thread, before the loop runs.
 * Errors     0 or -errno with one line for the user.
 */
#ifndef NBDFS_FS_LOADING_H
#define NBDFS_FS_LOADING_H

#include "engine.h"

/* catalog_load(), which a signal ends in an orderly way: what was begun is
 * taken down by the caller. SIGINT, SIGTERM and SIGHUP are blocked from here
 * on, and one that comes too late for this stays pending. */
int fs_load(struct catalog *catalog, struct error *err);

#endif
