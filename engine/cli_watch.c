/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"
#include "util.h"

#define PROGRESS_NS (250 * NS_PER_MS)
/* What may be left of a copy after Ctrl-C before it is just ended. */
#define STOP_NS (NS_PER_S)

uint64_t cli_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * NS_PER_S + (uint64_t)ts.tv_nsec;
}

/* --------------------------------------------------------------- progress */

static void progress_fired(struct loop_timer *t)
{
	struct watch *w = container_of(t, struct watch, timer);

	progress_show(&w->progress, w->finished(w->arg), cli_now());
	loop_timer_set(w->loop, t, PROGRESS_NS);
}

static void begin_progress(struct watch *w)
{
	int fd = w->cli->progress_fd;
	bool terminal = fd < 0 && isatty(STDERR_FILENO);

	if (!w->cli->progress)
		return;
	progress_init(&w->progress, fd < 0 ? STDERR_FILENO : fd, terminal,
		      w->size, cli_now());
	w->timer.fire = progress_fired;
	progress_show(&w->progress, 0, cli_now());
	loop_timer_set(w->loop, &w->timer, PROGRESS_NS);
	w->showing = true;
}

static void end_progress(struct watch *w, bool ok)
{
	if (!w->showing)
		return;
	loop_timer_cancel(w->loop, &w->timer);
	progress_end(&w->progress, ok);
	w->showing = false;
}

void watch_compare(struct watch *w)
{
	w->comparing = true;
	if (w->showing)
		progress_again(&w->progress, "compared ", cli_now());
}

/* ---------------------------------------------------------------- signals */

static void say_interrupted(struct watch *w)
{
	const char *verb = w->comparing ? "compared" :
			   w->cli->map	? "looked at" :
					  "copied";
	char done[24], total[24];

	format_size(w->finished(w->arg), done, sizeof(done));
	if (w->size == UINT64_MAX)
		fprintf(stderr, PROGRAM ": interrupted: %s %s\n", done, verb);
	else
		fprintf(stderr, PROGRAM ": interrupted: %s of %s %s\n", done,
			format_size(w->size, total, sizeof(total)), verb);
}

/* Nothing has begun that would have to be ended in order. */
static void on_early(int sig)
{
	static const char line[] = PROGRAM ": interrupted\n";

	ssize_t n = write(STDERR_FILENO, line, sizeof(line) - 1);

	(void)n;
	_exit(128 + sig);
}

void watch_early(bool on)
{
	static const int signals[] = { SIGINT, SIGTERM, SIGHUP };
	struct sigaction sa = { .sa_handler = on ? on_early : SIG_DFL }, old;

	sigemptyset(&sa.sa_mask);
	for (size_t i = 0; i < ARRAY_SIZE(signals); i++) {
		/* nohup and the like mean it. */
		if (sigaction(signals[i], NULL, &old) == 0 &&
		    old.sa_handler != SIG_IGN)
			sigaction(signals[i], &sa, NULL);
	}
}

/* A server does not answer: nothing more can be done for it. */
static void hard_stop(struct loop_timer *t)
{
	struct watch *w = container_of(t, struct watch, hard_stop);

	end_progress(w, false);
	say_interrupted(w);
	_exit(128 + w->signal);
}

/* The first signal ends the copy in order, the second one ends the program as
 * signals do. */
static void signal_ready(struct loop_watch *lw, uint32_t events)
{
	struct watch *w = container_of(lw, struct watch, signals);
	struct signalfd_siginfo si;

	(void)events;
	if (read(lw->fd, &si, sizeof(si)) != (ssize_t)sizeof(si))
		return;
	w->signal = (int)si.ssi_signo;
	loop_watch_del(w->loop, lw);
	watch_early(false);
	pthread_sigmask(SIG_SETMASK, &w->old_mask, NULL);
	loop_timer_set(w->loop, &w->hard_stop, STOP_NS);
	w->stop(w->arg);
}

static void add_signal(sigset_t *set, int sig)
{
	struct sigaction sa;

	if (sigaction(sig, NULL, &sa) == 0 && sa.sa_handler != SIG_IGN)
		sigaddset(set, sig);
}

void watch_start(struct watch *w)
{
	sigset_t set;

	sigemptyset(&set);
	add_signal(&set, SIGINT);
	add_signal(&set, SIGTERM);
	add_signal(&set, SIGHUP);
	begin_progress(w);
	w->hard_stop.fire = hard_stop;
	w->signals.ready = signal_ready;
	w->signals.fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (w->signals.fd < 0)
		return;
	if (loop_watch_add(w->loop, &w->signals, EPOLLIN) < 0) {
		close(w->signals.fd);
		w->signals.fd = -1;
		return;
	}
	pthread_sigmask(SIG_BLOCK, &set, &w->old_mask);
}

void watch_end(struct watch *w, bool ok)
{
	end_progress(w, ok);
	watch_early(false);
	if (w->signals.fd < 0)
		return;
	loop_timer_cancel(w->loop, &w->hard_stop);
	if (w->signal) {
		if (!ok)
			say_interrupted(w);
	} else {
		loop_watch_del(w->loop, &w->signals);
		pthread_sigmask(SIG_SETMASK, &w->old_mask, NULL);
	}
	close(w->signals.fd);
	w->signals.fd = -1;
}
