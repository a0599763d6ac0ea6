/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Helper threads: everything is done once, on the right thread; freeing. */
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "unit.h"

/* How many threads can still be made; loop thread only. */
static unsigned threads_left = UINT_MAX;

static int test_create(pthread_t *thread, const pthread_attr_t *attr,
		       void *(*start)(void *), void *arg)
{
	if (threads_left == 0)
		return EAGAIN;
	threads_left--;
	return pthread_create(thread, attr, start, arg);
}

#define pthread_create test_create
#include "../../engine/workers.c"
#undef pthread_create

#define JOBS 2000
#define MAX_THREADS 5

struct job {
	struct work work;
	struct shop *shop;
	bool ran; /* handed over by the workers */
	bool done;
};

struct shop {
	struct loop *loop;
	struct workers *workers;
	pthread_t loop_thread;
	struct job job[JOBS];
	unsigned left, again;
	atomic_uint inside, most;
};

static void job_fn(struct work *w)
{
	struct job *j = container_of(w, struct job, work);
	struct shop *s = j->shop;
	unsigned now = atomic_fetch_add(&s->inside, 1) + 1;
	unsigned most = atomic_load(&s->most);
	sigset_t blocked;

	while (now > most &&
	       !atomic_compare_exchange_weak(&s->most, &most, now))
		;
	ck_assert(!pthread_equal(pthread_self(), s->loop_thread));
	pthread_sigmask(SIG_SETMASK, NULL, &blocked);
	ck_assert(sigismember(&blocked, SIGTERM));
	ck_assert(!j->ran);
	j->ran = true;
	if ((j - s->job) % 64 == 0)
		usleep(500);
	atomic_fetch_sub(&s->inside, 1);
}

static void job_done(struct work *w)
{
	struct job *j = container_of(w, struct job, work);
	struct shop *s = j->shop;

	ck_assert(pthread_equal(pthread_self(), s->loop_thread));
	ck_assert(j->ran);
	ck_assert(!j->done);
	/* Some come back for a second round from here. */
	if (s->again > 0) {
		s->again--;
		j->ran = false;
		workers_run(s->workers, w);
		return;
	}
	j->done = true;
	if (--s->left == 0)
		loop_stop(s->loop);
}

static struct shop *shop_new(unsigned max)
{
	struct shop *s = calloc(1, sizeof(*s));
	unsigned i;

	ck_assert_ptr_nonnull(s);
	s->loop = loop_new();
	ck_assert_ptr_nonnull(s->loop);
	s->workers = workers_new(s->loop, max);
	ck_assert_ptr_nonnull(s->workers);
	s->loop_thread = pthread_self();
	for (i = 0; i < JOBS; i++) {
		s->job[i].shop = s;
		s->job[i].work.fn = job_fn;
		s->job[i].work.done = job_done;
	}
	return s;
}

static void shop_free(struct shop *s)
{
	workers_free(s->workers);
	loop_free(s->loop);
	free(s);
}

START_TEST(all_is_done_once)
{
	unsigned max = _i == 0 ? 1 : MAX_THREADS;
	struct shop *s = shop_new(max);
	unsigned i;

	s->left = JOBS;
	s->again = JOBS / 2;
	for (i = 0; i < JOBS; i++)
		workers_run(s->workers, &s->job[i].work);
	ck_assert_int_eq(loop_run(s->loop), 0);
	for (i = 0; i < JOBS; i++)
		ck_assert(s->job[i].done);
	ck_assert_uint_le(atomic_load(&s->most), max);
	shop_free(s);
}
END_TEST

/* Jobs that wait for each other: each needs a thread of its own. */
struct meeting {
	struct work work;
	pthread_barrier_t *barrier;
	struct loop *loop;
	unsigned *left;
};

static void meeting_fn(struct work *w)
{
	pthread_barrier_wait(container_of(w, struct meeting, work)->barrier);
}

static void meeting_done(struct work *w)
{
	struct meeting *m = container_of(w, struct meeting, work);

	if (--*m->left == 0)
		loop_stop(m->loop);
}

START_TEST(as_many_threads_as_needed)
{
	struct loop *loop = loop_new();
	struct workers *ws = workers_new(loop, MAX_THREADS);
	struct meeting m[MAX_THREADS];
	pthread_barrier_t barrier;
	unsigned round, i, left;

	pthread_barrier_init(&barrier, NULL, MAX_THREADS);
	for (round = 0; round < 20; round++) {
		left = MAX_THREADS;
		for (i = 0; i < MAX_THREADS; i++) {
			m[i] = (struct meeting){ .barrier = &barrier,
						 .loop = loop,
						 .left = &left };
			m[i].work.fn = meeting_fn;
			m[i].work.done = meeting_done;
			workers_run(ws, &m[i].work);
		}
		ck_assert_int_eq(loop_run(loop), 0);
	}
	workers_free(ws);
	loop_free(loop);
	pthread_barrier_destroy(&barrier);
}
END_TEST

/* Without threads all waits, and is done once there is one again. */
struct shortage {
	struct loop_timer timer;
	struct shop *shop;
};

static void shortage_ends(struct loop_timer *t)
{
	struct shop *s = container_of(t, struct shortage, timer)->shop;
	unsigned i;

	for (i = 0; i < JOBS; i++)
		ck_assert(!s->job[i].ran);
	threads_left = 1;
}

START_TEST(threads_are_short)
{
	struct shop *s = shop_new(MAX_THREADS);
	struct shortage x = { .timer.fire = shortage_ends, .shop = s };
	unsigned i;

	threads_left = 0;
	s->left = JOBS;
	for (i = 0; i < JOBS; i++)
		workers_run(s->workers, &s->job[i].work);
	loop_timer_set(s->loop, &x.timer, 30 * NS_PER_MS);
	ck_assert_int_eq(loop_run(s->loop), 0);
	ck_assert_uint_eq(atomic_load(&s->most), 1);
	ck_assert_uint_eq(s->left, 0);
	shop_free(s);
}
END_TEST

struct ending {
	struct loop_timer timer;
	struct loop *loop;
};

static void ending_fire(struct loop_timer *t)
{
	loop_stop(container_of(t, struct ending, timer)->loop);
}

static void must_not_be_done(struct work *w)
{
	(void)w;
	ck_abort_msg("done after workers_free()");
}

/* Freed with work in every stage: nothing is delivered, nothing is touched
 * after that. */
START_TEST(free_drops_the_rest)
{
	struct shop *s = shop_new(MAX_THREADS);
	struct ending end = { .timer.fire = ending_fire };
	unsigned i;

	for (i = 0; i < JOBS; i++) {
		s->job[i].work.done = must_not_be_done;
		workers_run(s->workers, &s->job[i].work);
	}
	usleep((useconds_t)_i * 300);
	workers_free(s->workers);
	s->workers = NULL;
	memset(s->job, 0xa5, sizeof(s->job));
	/* A few turns, in which it would be delivered. */
	end.loop = s->loop;
	loop_timer_set(s->loop, &end.timer, 5 * NS_PER_MS);
	ck_assert_int_eq(loop_run(s->loop), 0);
	shop_free(s);
}
END_TEST

int main(void)
{
	const struct unit_case cases[] = {
		{ all_is_done_once, 2 },
		{ as_many_threads_as_needed, 0 },
		{ threads_are_short, 0 },
		{ free_drops_the_rest, 8 },
	};

	return unit_main("workers", cases, ARRAY_SIZE(cases));
}
