/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "subproc_log.h"
#include "util.h"

#define LINE_MAX_BYTES 1000
#define KEEP_LINES 16
/* How long the pipe of a child that has ended may take to run dry: its own
 * children may hold it open. */
#define DRAIN_MS 200
/* Reads after the end was asked for: somebody may go on talking. */
#define LAST_READS 32

struct subproc_log {
	char *name;
	struct log log;
	int fd, stop_fd;
	pthread_t thread;

	/* The thread's. */
	char line[LINE_MAX_BYTES + 1];
	size_t len;

	pthread_mutex_t lock; /* guards what follows */
	pthread_cond_t dry;
	bool released, ended;
	char *kept[KEEP_LINES];
	unsigned nkept;
};

/* ------------------------------------------------------------- reading */

static void pass_on(const struct subproc_log *o, const char *line)
{
	const char *base = strrchr(o->name, '/');
	size_t n;

	base = base ? base + 1 : o->name;
	n = strlen(base);
	/* Most say who they are. */
	if (strncmp(line, base, n) == 0 && line[n] == ':')
		log_msg(&o->log, LOG_LVL_WARN, "%s", line);
	else
		log_msg(&o->log, LOG_LVL_WARN, "%s: %s", base, line);
}

static void take_line(struct subproc_log *o)
{
	o->line[o->len] = '\0';
	if (o->len == 0)
		return;
	o->len = 0;
	pthread_mutex_lock(&o->lock);
	if (o->released) {
		pthread_mutex_unlock(&o->lock);
		pass_on(o, o->line);
		return;
	}
	/* The last place is for the last line. */
	if (o->nkept == KEEP_LINES)
		free(o->kept[--o->nkept]);
	o->kept[o->nkept] = strdup(o->line);
	if (o->kept[o->nkept])
		o->nkept++;
	pthread_mutex_unlock(&o->lock);
}

static void take_bytes(struct subproc_log *o, const char *data, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if (data[i] == '\n')
			take_line(o);
		else if (o->len < LINE_MAX_BYTES)
			o->line[o->len++] = data[i] ? data[i] : '?';
	}
}

static void *reader(void *arg)
{
	struct subproc_log *o = arg;
	struct pollfd p[2] = { { .fd = o->fd, .events = POLLIN },
			       { .fd = o->stop_fd, .events = POLLIN } };
	unsigned rounds = LAST_READS;
	char data[4096];
	ssize_t n;

	while (rounds > 0) {
		if (poll(p, 2, -1) < 0)
			continue;
		/* What is there is read before it ends. */
		n = p[0].revents ? read(o->fd, data, sizeof(data)) : -1;
		if (n > 0)
			take_bytes(o, data, (size_t)n);
		else if (n == 0 || p[1].revents)
			break;
		if (p[1].revents)
			rounds--;
	}
	take_line(o);
	pthread_mutex_lock(&o->lock);
	o->ended = true;
	pthread_cond_broadcast(&o->dry);
	pthread_mutex_unlock(&o->lock);
	return NULL;
}

/* ---------------------------------------------------------- life cycle */

static int start_reader(struct subproc_log *o)
{
	pthread_condattr_t attr;
	sigset_t all, old;
	int r;

	pthread_mutex_init(&o->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&o->dry, &attr);
	pthread_condattr_destroy(&attr);
	/* Signals are for the thread that expects them. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	r = -pthread_create(&o->thread, NULL, reader, o);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (r < 0) {
		pthread_cond_destroy(&o->dry);
		pthread_mutex_destroy(&o->lock);
	}
	return r;
}

int subproc_log_new(const char *name, const struct log *log,
		    struct subproc_log **out, int *write_fd, struct error *err)
{
	struct subproc_log *o = calloc(1, sizeof(*o));
	int fds[2] = { -1, -1 }, r = -ENOMEM;

	if (!o)
		goto fail;
	o->stop_fd = -1;
	o->name = strdup(name);
	if (!o->name)
		goto fail;
	if (log)
		o->log = *log;
	if (pipe2(fds, O_CLOEXEC) < 0) {
		r = -errno;
		goto fail;
	}
	o->fd = fds[0];
	o->stop_fd = eventfd(0, EFD_CLOEXEC);
	/* Not the write end: the child expects it to block. */
	if (o->stop_fd < 0 || fcntl(o->fd, F_SETFL, O_NONBLOCK) < 0) {
		r = -errno;
		goto fail;
	}
	r = start_reader(o);
	if (r < 0)
		goto fail;
	*out = o;
	*write_fd = fds[1];
	return 0;
fail:
	error_set(err, "cannot run '%s': %s", name, strerror(-r));
	for (int i = 0; i < 2; i++)
		if (fds[i] >= 0)
			close(fds[i]);
	if (o) {
		if (o->stop_fd >= 0)
			close(o->stop_fd);
		free(o->name);
	}
	free(o);
	return r;
}

void subproc_log_release(struct subproc_log *o)
{
	char *kept[KEEP_LINES];
	unsigned n = 0;

	pthread_mutex_lock(&o->lock);
	if (!o->released) {
		n = o->nkept;
		memcpy(kept, o->kept, sizeof(kept));
		o->nkept = 0;
		o->released = true;
	}
	pthread_mutex_unlock(&o->lock);
	for (unsigned i = 0; i < n; i++) {
		pass_on(o, kept[i]);
		free(kept[i]);
	}
}

void subproc_log_said(struct subproc_log *o, struct error *line)
{
	const char *best = NULL;
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += DRAIN_MS * 1000000L;
	if (until.tv_nsec >= 1000000000L) {
		until.tv_nsec -= 1000000000L;
		until.tv_sec++;
	}
	line->text[0] = '\0';
	pthread_mutex_lock(&o->lock);
	while (!o->ended &&
	       pthread_cond_timedwait(&o->dry, &o->lock, &until) == 0)
		;
	/* Usage texts and stacks surround the line that matters. */
	for (unsigned i = 0; i < o->nkept && !best; i++)
		if (strstr(o->kept[i], "rror"))
			best = o->kept[i];
	if (!best && o->nkept > 0)
		best = o->kept[o->nkept - 1];
	if (best)
		error_set(line, "%s", best);
	pthread_mutex_unlock(&o->lock);
}

void subproc_log_free(struct subproc_log *o)
{
	static const uint64_t one = 1;
	ssize_t n;

	if (!o)
		return;
	n = write(o->stop_fd, &one, sizeof(one));
	(void)n;
	pthread_join(o->thread, NULL);
	for (unsigned i = 0; i < o->nkept; i++)
		free(o->kept[i]);
	pthread_cond_destroy(&o->dry);
	pthread_mutex_destroy(&o->lock);
	close(o->fd);
	close(o->stop_fd);
	free(o->name);
	free(o);
}
