/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * guard.h - a second look at deadlines.
 *
 * libnbd reads on for as long as its socket has bytes, so a server that sends
 * endlessly keeps a thread inside the library, where no deadline is looked
 * at. The guard is a thread that then shuts the sockets down.
 *
 * Ownership  guard and slots are the caller's memory; a slot must be removed
 *            before its memory goes.
 * Threads    one thread uses a guard.
 * Errors     none: without memory for a thread there is no guard.
 */
#ifndef NBDFS_GUARD_H
#define NBDFS_GUARD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

struct guard_slot {
	int fd; /* a duplicate, or -1: not watched */
	LIST_ENTRY(guard_slot) link;
};

struct guard {
	uint64_t deadline;
	atomic_bool *cancel; /* or NULL */
	bool running;
	pthread_t thread;
	pthread_mutex_t lock; /* guards what follows */
	pthread_cond_t wake;
	bool ending, fired;
	LIST_HEAD(, guard_slot) slots;
};

void guard_init(struct guard *g, uint64_t deadline, atomic_bool *cancel);
/* Watches the socket. The thread starts with the first. */
void guard_add(struct guard *g, struct guard_slot *slot, int fd);
void guard_remove(struct guard *g, struct guard_slot *slot);
void guard_end(struct guard *g);

#endif
