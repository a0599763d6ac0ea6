/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "guard.h"
#include "util.h"

/* The thread that is watched looks for itself, and first. */
#define SLACK_NS (50 * NS_PER_MS)
#define CANCEL_POLL_NS (100 * NS_PER_MS)

static uint64_t guard_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * NS_PER_S + (uint64_t)ts.tv_nsec;
}

static void fire(struct guard *g)
{
	struct guard_slot *slot;

	g->fired = true;
	LIST_FOREACH(slot, &g->slots, link)
		shutdown(slot->fd, SHUT_RDWR);
}

static uint64_t guard_limit(const struct guard *g)
{
	return g->deadline > UINT64_MAX - SLACK_NS ? UINT64_MAX :
						     g->deadline + SLACK_NS;
}

static void guard_sleep(struct guard *g, uint64_t until)
{
	struct timespec ts = { .tv_sec = (time_t)(until / NS_PER_S),
			       .tv_nsec = (long)(until % NS_PER_S) };

	pthread_cond_timedwait(&g->wake, &g->lock, &ts);
}

static void *guard_main(void *arg)
{
	struct guard *g = arg;
	uint64_t limit = guard_limit(g), cancelled = 0, now, next;

	pthread_mutex_lock(&g->lock);
	while (!g->ending && !g->fired) {
		now = guard_now();
		if (g->cancel && atomic_load(g->cancel) && !cancelled)
			cancelled = now;
		if (now >= limit || (cancelled && now - cancelled >= SLACK_NS))
			fire(g);
		/* Bounded also for the sake of time_t. */
		next = now + (g->cancel ? CANCEL_POLL_NS : 3600 * NS_PER_S);
		if (!g->ending && !g->fired)
			guard_sleep(g, min_u64(limit, next));
	}
	pthread_mutex_unlock(&g->lock);
	return NULL;
}

static void guard_start(struct guard *g)
{
	sigset_t all, old;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	g->running = pthread_create(&g->thread, NULL, guard_main, g) == 0;
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}

void guard_init(struct guard *g, uint64_t deadline, atomic_bool *cancel)
{
	pthread_condattr_t attr;

	g->deadline = deadline;
	g->cancel = cancel;
	g->running = g->ending = g->fired = false;
	LIST_INIT(&g->slots);
	pthread_mutex_init(&g->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&g->wake, &attr);
	pthread_condattr_destroy(&attr);
}

void guard_add(struct guard *g, struct guard_slot *slot, int fd)
{
	/* A duplicate: libnbd may close its own at any time, and the number
	 * may then be somebody else's. */
	slot->fd = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (slot->fd < 0)
		return;
	if (!g->running)
		guard_start(g);
	pthread_mutex_lock(&g->lock);
	LIST_INSERT_HEAD(&g->slots, slot, link);
	if (g->fired)
		shutdown(slot->fd, SHUT_RDWR);
	pthread_mutex_unlock(&g->lock);
}

void guard_remove(struct guard *g, struct guard_slot *slot)
{
	if (slot->fd < 0)
		return;
	pthread_mutex_lock(&g->lock);
	LIST_REMOVE(slot, link);
	pthread_mutex_unlock(&g->lock);
	close(slot->fd);
	slot->fd = -1;
}

void guard_end(struct guard *g)
{
	if (g->running) {
		pthread_mutex_lock(&g->lock);
		g->ending = true;
		pthread_cond_signal(&g->wake);
		pthread_mutex_unlock(&g->lock);
		pthread_join(g->thread, NULL);
	}
	pthread_cond_destroy(&g->wake);
	pthread_mutex_destroy(&g->lock);
}
