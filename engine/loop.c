/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "engine.h"
#include "util.h"

#define BATCH 64 /* events fetched at once */
#define SLEEP_MAX_MS (60 * 60 * 1000)

STAILQ_HEAD(task_list, loop_task);
TAILQ_HEAD(timer_list, loop_timer);

/* What does not say otherwise belongs to the thread that runs the loop. */
struct loop {
	/* Constant. The eventfd is edge-triggered: only written, never read. */
	int epfd, wakefd;

	bool running;
	uint64_t now;
	struct timer_list timers; /* by `when`, then by arming */
	struct task_list tasks;	  /* for the end of this turn */
	struct task_list current; /* being run */
	struct epoll_event events[BATCH];
	int nevents, next_event; /* what of `events` is still to do */

	atomic_bool stop;	 /* any thread, signal handlers */
	pthread_mutex_t lock;	 /* for the two below */
	struct task_list posted; /* lock */
	bool wake_sent;		 /* lock; `posted` was announced */
};

static uint64_t clock_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * NS_PER_S + (uint64_t)ts.tv_nsec;
}

struct loop *loop_new(void)
{
	/* data.ptr NULL stands for the eventfd and for deleted watches. */
	struct epoll_event ev = { .events = EPOLLIN | EPOLLET };
	struct loop *loop = calloc(1, sizeof(*loop));
	int e;

	if (!loop)
		return NULL;
	loop->epfd = epoll_create1(EPOLL_CLOEXEC);
	if (loop->epfd < 0)
		goto err_loop;
	loop->wakefd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (loop->wakefd < 0)
		goto err_epfd;
	if (epoll_ctl(loop->epfd, EPOLL_CTL_ADD, loop->wakefd, &ev) < 0)
		goto err_wakefd;
	e = pthread_mutex_init(&loop->lock, NULL);
	if (e) {
		errno = e;
		goto err_wakefd;
	}
	atomic_init(&loop->stop, false);
	TAILQ_INIT(&loop->timers);
	STAILQ_INIT(&loop->tasks);
	STAILQ_INIT(&loop->current);
	STAILQ_INIT(&loop->posted);
	loop->now = clock_now();
	return loop;

err_wakefd:
	e = errno;
	close(loop->wakefd);
	errno = e;
err_epfd:
	e = errno;
	close(loop->epfd);
	errno = e;
err_loop:
	e = errno;
	free(loop);
	errno = e;
	return NULL;
}

void loop_free(struct loop *loop)
{
	if (!loop)
		return;
	assert(!loop->running);
	pthread_mutex_destroy(&loop->lock);
	close(loop->wakefd);
	close(loop->epfd);
	free(loop);
}

uint64_t loop_now(const struct loop *loop)
{
	return loop->now;
}

/* -------------------------------------------------------------- waking up */

/* Async-signal-safe. Cannot fail: the counter cannot fill up in practice, and
 * if it could, the loop would be awake. */
static void wake(struct loop *loop)
{
	const uint64_t one = 1;
	int saved = errno;
	ssize_t r = write(loop->wakefd, &one, sizeof(one));

	(void)r;
	errno = saved;
}

void loop_stop(struct loop *loop)
{
	atomic_store(&loop->stop, true);
	wake(loop);
}

void loop_post(struct loop *loop, struct loop_task *task)
{
	bool first;

	pthread_mutex_lock(&loop->lock);
	assert(!task->queued);
	task->queued = true;
	STAILQ_INSERT_TAIL(&loop->posted, task, link);
	first = !loop->wake_sent;
	loop->wake_sent = true;
	pthread_mutex_unlock(&loop->lock);
	/* The task may be gone by now, but not the loop. */
	if (first)
		wake(loop);
}

static void take_posts(struct loop *loop)
{
	pthread_mutex_lock(&loop->lock);
	loop->wake_sent = false;
	STAILQ_CONCAT(&loop->tasks, &loop->posted);
	pthread_mutex_unlock(&loop->lock);
}

/* ----------------------------------------------------------------- watches */

static int watch_ctl(struct loop *loop, int op, struct loop_watch *w,
		     uint32_t events)
{
	struct epoll_event ev = { .events = events, .data.ptr = w };

	if (epoll_ctl(loop->epfd, op, w->fd, &ev) < 0)
		return -errno;
	w->events = events;
	return 0;
}

int loop_watch_add(struct loop *loop, struct loop_watch *w, uint32_t events)
{
	return watch_ctl(loop, EPOLL_CTL_ADD, w, events);
}

int loop_watch_set(struct loop *loop, struct loop_watch *w, uint32_t events)
{
	if (w->events == events)
		return 0;
	return watch_ctl(loop, EPOLL_CTL_MOD, w, events);
}

void loop_watch_del(struct loop *loop, struct loop_watch *w)
{
	int i;

	/* An error means that it is not watched: just what is wanted. */
	epoll_ctl(loop->epfd, EPOLL_CTL_DEL, w->fd, NULL);
	/* What has been fetched already must not reach it. */
	for (i = loop->next_event; i < loop->nevents; i++) {
		if (loop->events[i].data.ptr == w)
			loop->events[i].data.ptr = NULL;
	}
}

static void run_watches(struct loop *loop, int n)
{
	loop->nevents = n;
	loop->next_event = 0;
	while (loop->next_event < loop->nevents) {
		struct epoll_event *ev = &loop->events[loop->next_event++];
		struct loop_watch *w = ev->data.ptr;
		uint32_t events = ev->events;

		if (!w)
			continue;
		/* An earlier handler may have changed what is asked for. */
		events &= w->events | EPOLLERR | EPOLLHUP;
		if (events)
			w->ready(w, events);
	}
	loop->nevents = 0;
	loop->next_event = 0;
}

/* ------------------------------------------------------------------ timers */

void loop_timer_set(struct loop *loop, struct loop_timer *t, uint64_t delay)
{
	/* Not from the start of the turn: it would fire early. But after it,
	 * so that a timer without delay cannot hold a turn for ever. */
	uint64_t now = max_u64(clock_now(), loop->now + 1);
	struct loop_timer *before;

	loop_timer_cancel(loop, t);
	if (__builtin_add_overflow(now, delay, &t->when))
		t->when = UINT64_MAX;
	t->armed = true;
	/* Mostly the new one is the last. */
	TAILQ_FOREACH_REVERSE(before, &loop->timers, timer_list, link) {
		if (before->when <= t->when)
			break;
	}
	if (before)
		TAILQ_INSERT_AFTER(&loop->timers, before, t, link);
	else
		TAILQ_INSERT_HEAD(&loop->timers, t, link);
}

void loop_timer_cancel(struct loop *loop, struct loop_timer *t)
{
	if (!t->armed)
		return;
	t->armed = false;
	TAILQ_REMOVE(&loop->timers, t, link);
}

static void run_timers(struct loop *loop)
{
	struct loop_timer *t;

	while ((t = TAILQ_FIRST(&loop->timers)) && t->when <= loop->now) {
		loop_timer_cancel(loop, t);
		t->fire(t);
	}
}

/* ------------------------------------------------------------------- tasks */

void loop_defer(struct loop *loop, struct loop_task *task)
{
	if (task->queued)
		return;
	task->queued = true;
	STAILQ_INSERT_TAIL(&loop->tasks, task, link);
}

static bool list_remove(struct task_list *list, struct loop_task *task)
{
	struct loop_task *t;

	STAILQ_FOREACH(t, list, link) {
		if (t == task) {
			STAILQ_REMOVE(list, task, loop_task, link);
			return true;
		}
	}
	return false;
}

void loop_task_cancel(struct loop *loop, struct loop_task *task)
{
	bool found;

	found = list_remove(&loop->tasks, task) ||
		list_remove(&loop->current, task);
	pthread_mutex_lock(&loop->lock);
	if (found || list_remove(&loop->posted, task))
		task->queued = false;
	pthread_mutex_unlock(&loop->lock);
}

/* What is deferred meanwhile waits for the next turn, so that descriptors and
 * timers have theirs. */
static void run_tasks(struct loop *loop)
{
	struct loop_task *task;

	STAILQ_CONCAT(&loop->current, &loop->tasks);
	while ((task = STAILQ_FIRST(&loop->current))) {
		STAILQ_REMOVE_HEAD(&loop->current, link);
		task->queued = false;
		task->run(task);
	}
}

/* -------------------------------------------------------------------- turn */

/* How long epoll may sleep: rounded up, or it would spin before a timer. */
static int sleep_ms(const struct loop *loop)
{
	const struct loop_timer *t = TAILQ_FIRST(&loop->timers);
	uint64_t now, ms;

	if (!STAILQ_EMPTY(&loop->tasks))
		return 0;
	if (!t)
		return -1;
	now = clock_now();
	if (t->when <= now)
		return 0;
	ms = (t->when - now - 1) / NS_PER_MS + 1;
	return (int)min_u64(ms, SLEEP_MAX_MS);
}

static int turn(struct loop *loop)
{
	int n = epoll_wait(loop->epfd, loop->events, BATCH, sleep_ms(loop));
	int i;

	if (n < 0 && errno != EINTR)
		return -errno;
	loop->now = clock_now();
	for (i = 0; i < n; i++) {
		if (!loop->events[i].data.ptr)
			take_posts(loop);
	}
	run_watches(loop, n < 0 ? 0 : n);
	run_timers(loop);
	run_tasks(loop);
	return 0;
}

int loop_run(struct loop *loop)
{
	int r = 0;

	assert(!loop->running);
	loop->running = true;
	while (r == 0 && !atomic_exchange(&loop->stop, false))
		r = turn(loop);
	loop->running = false;
	return r;
}
