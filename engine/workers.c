/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "engine.h"
#include "util.h"

/* How long until a thread is tried again where not even one could be made. */
#define RETRY_NS (100 * NS_PER_MS)

STAILQ_HEAD(work_list, work);

struct workers {
	/* Constant. */
	struct loop *loop;
	unsigned max;

	/* The loop's thread. */
	struct loop_task deliver; /* posted when `finished` has any */
	struct loop_timer retry;
	unsigned nthreads; /* started, of threads[] */
	bool delivering;

	/* Guarded by the lock. */
	pthread_mutex_t lock;
	pthread_cond_t wake;	   /* `waiting` has more, or `ending` */
	struct work_list waiting;  /* in order of arrival */
	unsigned nwaiting;	   /* length of `waiting` */
	unsigned nidle;		   /* threads without work */
	struct work_list finished; /* `done` is due */
	bool ending;

	pthread_t threads[]; /* the loop's thread */
};

/* Waits for work; NULL when there will be none. With the lock held; the
 * caller counts as idle until it is given work. */
static struct work *next_work(struct workers *ws)
{
	struct work *w;

	while (!ws->ending && STAILQ_EMPTY(&ws->waiting))
		pthread_cond_wait(&ws->wake, &ws->lock);
	if (ws->ending)
		return NULL;
	w = STAILQ_FIRST(&ws->waiting);
	STAILQ_REMOVE_HEAD(&ws->waiting, link);
	ws->nwaiting--;
	ws->nidle--;
	return w;
}

/* Hands finished work to the loop: one post for all that finishes before it
 * is delivered. */
static void finish(struct workers *ws, struct work *w)
{
	bool first;

	pthread_mutex_lock(&ws->lock);
	ws->nidle++;
	first = STAILQ_EMPTY(&ws->finished);
	STAILQ_INSERT_TAIL(&ws->finished, w, link);
	pthread_mutex_unlock(&ws->lock);
	if (first)
		loop_post(ws->loop, &ws->deliver);
}

static void *worker_main(void *arg)
{
	struct workers *ws = arg;
	struct work *w;

	for (;;) {
		pthread_mutex_lock(&ws->lock);
		w = next_work(ws);
		pthread_mutex_unlock(&ws->lock);
		if (!w)
			return NULL;
		w->fn(w);
		finish(ws, w);
	}
}

/* Signals are the loop's affair: no helper takes one. */
static int start_thread(struct workers *ws)
{
	sigset_t all, old;
	int e;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	e = pthread_create(&ws->threads[ws->nthreads], NULL, worker_main, ws);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (e == 0)
		ws->nthreads++;
	return -e;
}

/* Sees to it that what waits will be taken up. */
static void provide_threads(struct workers *ws)
{
	bool enough = false;

	while (!enough && ws->nthreads < ws->max) {
		pthread_mutex_lock(&ws->lock);
		enough = ws->nwaiting <= ws->nidle;
		/* A new thread is idle from the start. */
		if (!enough)
			ws->nidle++;
		pthread_mutex_unlock(&ws->lock);
		if (enough || start_thread(ws) == 0)
			continue;
		pthread_mutex_lock(&ws->lock);
		ws->nidle--;
		pthread_mutex_unlock(&ws->lock);
		/* The threads that there are go on with what waits. */
		if (ws->nthreads == 0)
			loop_timer_set(ws->loop, &ws->retry, RETRY_NS);
		break;
	}
}

static void retry_threads(struct loop_timer *t)
{
	provide_threads(container_of(t, struct workers, retry));
}

static void deliver(struct loop_task *task)
{
	struct workers *ws = container_of(task, struct workers, deliver);
	struct work_list list = STAILQ_HEAD_INITIALIZER(list);
	struct work *w;

	pthread_mutex_lock(&ws->lock);
	STAILQ_CONCAT(&list, &ws->finished);
	pthread_mutex_unlock(&ws->lock);
	ws->delivering = true;
	while ((w = STAILQ_FIRST(&list))) {
		STAILQ_REMOVE_HEAD(&list, link);
		w->done(w);
	}
	ws->delivering = false;
}

struct workers *workers_new(struct loop *loop, unsigned max)
{
	struct workers *ws;
	int e;

	assert(max > 0);
	ws = calloc(1, sizeof(*ws) + max * sizeof(ws->threads[0]));
	if (!ws)
		return NULL;
	ws->loop = loop;
	ws->max = max;
	ws->deliver.run = deliver;
	ws->retry.fire = retry_threads;
	STAILQ_INIT(&ws->waiting);
	STAILQ_INIT(&ws->finished);
	e = pthread_mutex_init(&ws->lock, NULL);
	if (e)
		goto err_ws;
	e = pthread_cond_init(&ws->wake, NULL);
	if (e)
		goto err_lock;
	return ws;

err_lock:
	pthread_mutex_destroy(&ws->lock);
err_ws:
	free(ws);
	errno = e;
	return NULL;
}

void workers_run(struct workers *ws, struct work *w)
{
	pthread_mutex_lock(&ws->lock);
	STAILQ_INSERT_TAIL(&ws->waiting, w, link);
	ws->nwaiting++;
	pthread_cond_signal(&ws->wake);
	pthread_mutex_unlock(&ws->lock);
	provide_threads(ws);
}

void workers_free(struct workers *ws)
{
	unsigned i;

	if (!ws)
		return;
	assert(!ws->delivering);
	pthread_mutex_lock(&ws->lock);
	ws->ending = true;
	pthread_cond_broadcast(&ws->wake);
	pthread_mutex_unlock(&ws->lock);
	for (i = 0; i < ws->nthreads; i++)
		pthread_join(ws->threads[i], NULL);
	loop_task_cancel(ws->loop, &ws->deliver);
	loop_timer_cancel(ws->loop, &ws->retry);
	pthread_cond_destroy(&ws->wake);
	pthread_mutex_destroy(&ws->lock);
	free(ws);
}
