/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "loading.h"

/* Waits for signals beside the main thread, which waits for servers. */
struct watch {
	struct catalog *catalog;
	sigset_t signals;
	int fd;	 /* signalfd */
	int end; /* eventfd: the servers are there */
	atomic_bool interrupted;
	pthread_t thread;
};

/* The first asks politely. The second ends the process, as it always did. */
static void take_signal(struct watch *w)
{
	struct signalfd_siginfo si;

	if (read(w->fd, &si, sizeof(si)) != (ssize_t)sizeof(si))
		return;
	if (atomic_exchange(&w->interrupted, true)) {
		pthread_sigmask(SIG_UNBLOCK, &w->signals, NULL);
		raise((int)si.ssi_signo);
	}
	catalog_cancel(w->catalog);
}

static void *watch_main(void *arg)
{
	struct watch *w = arg;
	struct pollfd p[2] = {
		{ .fd = w->end, .events = POLLIN },
		{ .fd = w->fd, .events = POLLIN },
	};

	for (;;) {
		if (poll(p, 2, -1) < 0 && errno != EINTR)
			return NULL;
		if (p[0].revents)
			return NULL;
		if (p[1].revents)
			take_signal(w);
	}
}

static bool watch_begin(struct watch *w)
{
	sigemptyset(&w->signals);
	sigaddset(&w->signals, SIGINT);
	sigaddset(&w->signals, SIGTERM);
	sigaddset(&w->signals, SIGHUP);
	pthread_sigmask(SIG_BLOCK, &w->signals, NULL);
	w->fd = signalfd(-1, &w->signals, SFD_CLOEXEC | SFD_NONBLOCK);
	w->end = eventfd(0, EFD_CLOEXEC);
	return w->fd >= 0 && w->end >= 0 &&
	       pthread_create(&w->thread, NULL, watch_main, w) == 0;
}

static void watch_end(struct watch *w, bool begun)
{
	if (begun) {
		eventfd_write(w->end, 1);
		pthread_join(w->thread, NULL);
	}
	if (w->fd >= 0)
		close(w->fd);
	if (w->end >= 0)
		close(w->end);
}

int fs_load(struct catalog *catalog, struct error *err)
{
	struct watch w = { .catalog = catalog };
	bool watching = watch_begin(&w);
	int r = catalog_load(catalog, err);

	watch_end(&w, watching);
	if (!atomic_load(&w.interrupted))
		return r;
	error_set(err, "interrupted");
	return -EINTR;
}
