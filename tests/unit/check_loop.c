/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The loop: timers, deferred and posted work, watches. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/time.h>
#include <unistd.h>

#include "engine.h"
#include "unit.h"
#include "util.h"

/* Ends a test that would wait for ever, with a failure. */
struct guard {
	struct loop_timer timer;
	struct loop *loop;
};

static void guard_fire(struct loop_timer *t)
{
	(void)t;
	ck_abort_msg("the loop was never stopped");
}

static struct loop *loop_with_guard(struct guard *g)
{
	memset(g, 0, sizeof(*g));
	g->loop = loop_new();
	ck_assert_ptr_nonnull(g->loop);
	g->timer.fire = guard_fire;
	loop_timer_set(g->loop, &g->timer, 30 * NS_PER_S);
	return g->loop;
}

static void guard_end(struct guard *g)
{
	loop_timer_cancel(g->loop, &g->timer);
	loop_free(g->loop);
}

/* ------------------------------------------------------------------ timers */

#define TIMERS 200

struct timed {
	struct loop_timer timer;
	struct loop *loop;
	uint64_t due;
	unsigned *fired, *last;
	unsigned id, total;
	uint64_t *last_due;
};

static void timed_fire(struct loop_timer *t)
{
	struct timed *x = container_of(t, struct timed, timer);

	ck_assert(!t->armed);
	/* Never early, and in order; equal ones in the order of arming. */
	ck_assert_uint_ge(loop_now(x->loop), x->due);
	ck_assert_uint_ge(x->due, *x->last_due);
	*x->last_due = x->due;
	if (++*x->fired == x->total)
		loop_stop(x->loop);
}

START_TEST(timers_fire_in_order)
{
	static struct timed x[TIMERS];
	struct guard g;
	struct loop *loop = loop_with_guard(&g);
	uint64_t seed = (uint64_t)_i, last_due = 0;
	unsigned i, fired = 0, total = 0;

	for (i = 0; i < TIMERS; i++) {
		uint64_t delay = unit_below(&seed, 30) * NS_PER_MS;

		x[i] = (struct timed){ .loop = loop,
				       .fired = &fired,
				       .last_due = &last_due };
		x[i].timer.fire = timed_fire;
		/* Some are set twice: the later setting counts. */
		if (i % 3 == 0)
			loop_timer_set(loop, &x[i].timer, NS_PER_MS);
		loop_timer_set(loop, &x[i].timer, delay);
		x[i].due = x[i].timer.when;
		if (i % 7 == 0)
			loop_timer_cancel(loop, &x[i].timer);
		else
			total++;
	}
	for (i = 0; i < TIMERS; i++)
		x[i].total = total;
	ck_assert_int_eq(loop_run(loop), 0);
	ck_assert_uint_eq(fired, total);
	guard_end(&g);
}
END_TEST

struct order {
	struct loop_timer timer;
	struct loop *loop;
	int *next;
	int place;
	bool last;
};

static void order_fire(struct loop_timer *t)
{
	struct order *x = container_of(t, struct order, timer);

	ck_assert_int_eq(x->place, (*x->next)++);
	if (x->last)
		loop_stop(x->loop);
}

START_TEST(timers_in_any_order)
{
	/* Set in one order, due in another. */
	static const unsigned delay_ms[] = { 20, 5, 10, 1, 15, 0 };
	static const int place[] = { 5, 2, 3, 1, 4, 0 };
	struct order x[ARRAY_SIZE(delay_ms)];
	struct guard g;
	struct loop *loop = loop_with_guard(&g);
	int next = 0;
	size_t i;

	for (i = 0; i < ARRAY_SIZE(x); i++) {
		x[i] = (struct order){ .loop = loop,
				       .next = &next,
				       .place = place[i],
				       .last = place[i] == 5 };
		x[i].timer.fire = order_fire;
		loop_timer_set(loop, &x[i].timer, delay_ms[i] * NS_PER_MS);
	}
	ck_assert_int_eq(loop_run(loop), 0);
	ck_assert_int_eq(next, 6);
	guard_end(&g);
}
END_TEST

/* A timer that cancels another one, due at the same moment. */
struct canceller {
	struct loop_timer timer, victim, end;
	struct loop *loop;
};

static void never_fire(struct loop_timer *t)
{
	(void)t;
	ck_abort_msg("a cancelled timer fired");
}

static void cancel_fire(struct loop_timer *t)
{
	struct canceller *c = container_of(t, struct canceller, timer);

	ck_assert(c->victim.armed);
	loop_timer_cancel(c->loop, &c->victim);
	ck_assert(!c->victim.armed);
}

static void end_fire(struct loop_timer *t)
{
	loop_stop(container_of(t, struct canceller, end)->loop);
}

START_TEST(timer_cancels_another)
{
	struct guard g;
	struct canceller c = { .loop = loop_with_guard(&g) };

	c.timer.fire = cancel_fire;
	c.victim.fire = never_fire;
	c.end.fire = end_fire;
	loop_timer_set(c.loop, &c.timer, 0);
	loop_timer_set(c.loop, &c.victim, 0);
	loop_timer_set(c.loop, &c.end, 0);
	usleep(2000);
	ck_assert_int_eq(loop_run(c.loop), 0);
	guard_end(&g);
}
END_TEST

/* A timer that sets itself without delay must not keep others waiting. */
struct eager {
	struct loop_timer timer;
	struct loop_task task;
	struct loop *loop;
	unsigned fired;
};

static void eager_fire(struct loop_timer *t)
{
	struct eager *x = container_of(t, struct eager, timer);

	ck_assert_uint_lt(x->fired++, 1000);
	loop_timer_set(x->loop, t, 0);
	loop_defer(x->loop, &x->task);
}

static void eager_task(struct loop_task *task)
{
	loop_stop(container_of(task, struct eager, task)->loop);
}

START_TEST(timer_without_delay)
{
	struct guard g;
	struct eager x = { .loop = loop_with_guard(&g) };

	x.timer.fire = eager_fire;
	x.task.run = eager_task;
	loop_timer_set(x.loop, &x.timer, 0);
	ck_assert_int_eq(loop_run(x.loop), 0);
	ck_assert_uint_ge(x.fired, 1);
	loop_timer_cancel(x.loop, &x.timer);
	guard_end(&g);
}
END_TEST

START_TEST(timer_far_away)
{
	struct loop_timer t = { .fire = never_fire };
	struct guard g;
	struct loop *loop = loop_with_guard(&g);

	loop_timer_set(loop, &t, UINT64_MAX);
	ck_assert_uint_eq(t.when, UINT64_MAX);
	loop_stop(loop);
	ck_assert_int_eq(loop_run(loop), 0);
	loop_timer_cancel(loop, &t);
	guard_end(&g);
}
END_TEST

/* ---------------------------------------------------------- deferred tasks */

struct chain {
	struct loop_task task;
	struct loop *loop;
	unsigned runs, until;
	bool inside;
};

static void chain_run(struct loop_task *task)
{
	struct chain *c = container_of(task, struct chain, task);

	ck_assert(!c->inside);
	ck_assert(!task->queued);
	c->inside = true;
	if (++c->runs < c->until) {
		loop_defer(c->loop, task);
		loop_defer(c->loop, task);
	} else {
		loop_stop(c->loop);
	}
	c->inside = false;
}

START_TEST(defer_runs_once_and_later)
{
	struct guard g;
	struct chain c = { .loop = loop_with_guard(&g), .until = 1000 };

	c.task.run = chain_run;
	loop_defer(c.loop, &c.task);
	loop_defer(c.loop, &c.task);
	ck_assert_uint_eq(c.runs, 0);
	ck_assert_int_eq(loop_run(c.loop), 0);
	ck_assert_uint_eq(c.runs, 1000);
	guard_end(&g);
}
END_TEST

/* A task that defers itself for ever must starve neither a descriptor nor a
 * timer, and must not sleep in between. */
struct spinner {
	struct loop_task task;
	struct loop_watch watch;
	struct loop_timer timer;
	struct loop *loop;
	uint64_t turns;
	bool seen_fd, seen_timer;
};

static void spinner_check(struct spinner *s)
{
	if (s->seen_fd && s->seen_timer)
		loop_stop(s->loop);
}

static void spinner_run(struct loop_task *task)
{
	struct spinner *s = container_of(task, struct spinner, task);

	s->turns++;
	loop_defer(s->loop, task);
}

static void spinner_ready(struct loop_watch *w, uint32_t events)
{
	struct spinner *s = container_of(w, struct spinner, watch);

	ck_assert_uint_eq(events, EPOLLIN);
	s->seen_fd = true;
	ck_assert_int_eq(loop_watch_set(s->loop, w, 0), 0);
	spinner_check(s);
}

static void spinner_fire(struct loop_timer *t)
{
	struct spinner *s = container_of(t, struct spinner, timer);

	s->seen_timer = true;
	spinner_check(s);
}

START_TEST(defer_starves_nobody)
{
	struct guard g;
	struct spinner s = { .loop = loop_with_guard(&g) };
	int fd = eventfd(1, EFD_CLOEXEC);

	s.task.run = spinner_run;
	s.watch.fd = fd;
	s.watch.ready = spinner_ready;
	s.timer.fire = spinner_fire;
	ck_assert_int_eq(loop_watch_add(s.loop, &s.watch, EPOLLIN), 0);
	loop_timer_set(s.loop, &s.timer, 50 * NS_PER_MS);
	loop_defer(s.loop, &s.task);
	ck_assert_int_eq(loop_run(s.loop), 0);
	ck_assert_uint_gt(s.turns, 100);
	loop_watch_del(s.loop, &s.watch);
	close(fd);
	guard_end(&g);
}
END_TEST

/* The first of three tasks cancels the second; also one that was posted. */
struct trio {
	struct loop_task first, second, third, posted;
	struct loop *loop;
};

static void never_run(struct loop_task *task)
{
	(void)task;
	ck_abort_msg("a cancelled task ran");
}

static void first_run(struct loop_task *task)
{
	struct trio *t = container_of(task, struct trio, first);

	loop_task_cancel(t->loop, &t->second);
	ck_assert(!t->second.queued);
	loop_post(t->loop, &t->posted);
	loop_task_cancel(t->loop, &t->posted);
	ck_assert(!t->posted.queued);
}

static void third_run(struct loop_task *task)
{
	struct trio *t = container_of(task, struct trio, third);
	static unsigned runs;

	/* Once more, so that a posted task would have had its turn. */
	if (++runs < 3)
		loop_defer(t->loop, task);
	else
		loop_stop(t->loop);
}

START_TEST(task_is_cancelled)
{
	struct guard g;
	struct trio t = { .loop = loop_with_guard(&g) };

	t.first.run = first_run;
	t.second.run = never_run;
	t.third.run = third_run;
	t.posted.run = never_run;
	loop_defer(t.loop, &t.first);
	loop_defer(t.loop, &t.second);
	loop_defer(t.loop, &t.third);
	ck_assert_int_eq(loop_run(t.loop), 0);
	loop_task_cancel(t.loop, &t.first);
	guard_end(&g);
}
END_TEST

/* ------------------------------------------------------------------ posting */

#define POSTERS 4
#define POSTS 5000

struct post {
	struct loop_task task;
	struct poster *from;
	unsigned number;
};

struct poster {
	struct loop *loop;
	pthread_t thread;
	struct post post[POSTS];
	unsigned seen;
	unsigned *left;
};

static void post_run(struct loop_task *task)
{
	struct post *p = container_of(task, struct post, task);

	/* Those of one thread arrive in its order. */
	ck_assert_uint_eq(p->number, p->from->seen++);
	if (--*p->from->left == 0)
		loop_stop(p->from->loop);
}

static void *poster_main(void *arg)
{
	struct poster *p = arg;
	unsigned i;

	for (i = 0; i < POSTS; i++) {
		p->post[i].task.run = post_run;
		p->post[i].from = p;
		p->post[i].number = i;
		loop_post(p->loop, &p->post[i].task);
		if (i % 512 == 0)
			usleep(200);
	}
	return NULL;
}

START_TEST(posts_from_threads)
{
	static struct poster p[POSTERS];
	struct guard g;
	struct loop *loop = loop_with_guard(&g);
	unsigned i, left = POSTERS * POSTS;

	for (i = 0; i < POSTERS; i++) {
		p[i].loop = loop;
		p[i].left = &left;
		ck_assert_int_eq(pthread_create(&p[i].thread, NULL, poster_main,
						&p[i]),
				 0);
	}
	ck_assert_int_eq(loop_run(loop), 0);
	for (i = 0; i < POSTERS; i++)
		pthread_join(p[i].thread, NULL);
	ck_assert_uint_eq(left, 0);
	guard_end(&g);
}
END_TEST

static void *stop_later(void *arg)
{
	usleep(20000);
	loop_stop(arg);
	return NULL;
}

START_TEST(stop_from_thread)
{
	struct guard g;
	struct loop *loop = loop_with_guard(&g);
	pthread_t thread;

	ck_assert_int_eq(pthread_create(&thread, NULL, stop_later, loop), 0);
	ck_assert_int_eq(loop_run(loop), 0);
	pthread_join(thread, NULL);
	/* It can run again, and a stop before the start counts too. */
	loop_stop(loop);
	ck_assert_int_eq(loop_run(loop), 0);
	guard_end(&g);
}
END_TEST

static struct loop *signal_loop;

static void on_alarm(int sig)
{
	(void)sig;
	loop_stop(signal_loop);
}

START_TEST(stop_from_signal)
{
	struct sigaction sa = { .sa_handler = on_alarm };
	struct itimerval in = { .it_value.tv_usec = 20000 };
	struct guard g;

	signal_loop = loop_with_guard(&g);
	ck_assert_int_eq(sigaction(SIGALRM, &sa, NULL), 0);
	ck_assert_int_eq(setitimer(ITIMER_REAL, &in, NULL), 0);
	ck_assert_int_eq(loop_run(signal_loop), 0);
	guard_end(&g);
}
END_TEST

/* ------------------------------------------------------------------ watches */

#define WATCHES 200 /* more than one batch */

struct counted {
	struct loop_watch watch;
	struct crowd *crowd;
	bool deleted;
};

struct crowd {
	struct loop *loop;
	struct counted *member;
	unsigned calls;
	struct loop_timer end;
};

/* The first that is called deletes all others: none may follow. */
static void crowd_ready(struct loop_watch *w, uint32_t events)
{
	struct counted *me = container_of(w, struct counted, watch);
	struct crowd *c = me->crowd;
	unsigned i;

	ck_assert_uint_eq(events, EPOLLIN);
	ck_assert(!me->deleted);
	c->calls++;
	for (i = 0; i < WATCHES; i++) {
		if (c->member[i].deleted || &c->member[i] == me)
			continue;
		loop_watch_del(c->loop, &c->member[i].watch);
		c->member[i].deleted = true;
		/* What is freed must not be looked at again. */
		memset(&c->member[i].watch.ready, 0xa5,
		       sizeof(c->member[i].watch.ready));
	}
	ck_assert_int_eq(loop_watch_set(c->loop, w, 0), 0);
	loop_timer_set(c->loop, &c->end, 10 * NS_PER_MS);
}

static void crowd_end(struct loop_timer *t)
{
	loop_stop(container_of(t, struct crowd, end)->loop);
}

START_TEST(watch_deleted_in_batch)
{
	struct counted member[WATCHES];
	struct guard g;
	struct crowd c = { .loop = loop_with_guard(&g), .member = member };
	unsigned i;

	c.end.fire = crowd_end;
	for (i = 0; i < WATCHES; i++) {
		member[i] = (struct counted){ .crowd = &c };
		member[i].watch.fd = eventfd(1, EFD_CLOEXEC);
		member[i].watch.ready = crowd_ready;
		ck_assert_int_ge(member[i].watch.fd, 0);
		ck_assert_int_eq(
			loop_watch_add(c.loop, &member[i].watch, EPOLLIN), 0);
	}
	ck_assert_int_eq(loop_run(c.loop), 0);
	ck_assert_uint_eq(c.calls, 1);
	for (i = 0; i < WATCHES; i++) {
		if (!member[i].deleted)
			loop_watch_del(c.loop, &member[i].watch);
		close(member[i].watch.fd);
	}
	guard_end(&g);
}
END_TEST

/* A handler that ends another's interest is obeyed within the batch. */
struct pair {
	struct loop_watch a, b;
	struct loop *loop;
	unsigned calls;
	struct loop_timer end;
};

static void pair_called(struct pair *p, struct loop_watch *other)
{
	p->calls++;
	ck_assert_int_eq(loop_watch_set(p->loop, &p->a, 0), 0);
	ck_assert_int_eq(loop_watch_set(p->loop, &p->b, 0), 0);
	ck_assert_uint_eq(other->events, 0);
}

static void pair_a(struct loop_watch *w, uint32_t events)
{
	struct pair *p = container_of(w, struct pair, a);

	(void)events;
	pair_called(p, &p->b);
}

static void pair_b(struct loop_watch *w, uint32_t events)
{
	struct pair *p = container_of(w, struct pair, b);

	(void)events;
	pair_called(p, &p->a);
}

static void pair_end(struct loop_timer *t)
{
	loop_stop(container_of(t, struct pair, end)->loop);
}

START_TEST(watch_narrowed_in_batch)
{
	struct guard g;
	struct pair p = { .loop = loop_with_guard(&g) };

	p.a.fd = eventfd(1, EFD_CLOEXEC);
	p.b.fd = eventfd(1, EFD_CLOEXEC);
	p.a.ready = pair_a;
	p.b.ready = pair_b;
	p.end.fire = pair_end;
	ck_assert_int_eq(loop_watch_add(p.loop, &p.a, EPOLLIN), 0);
	ck_assert_int_eq(loop_watch_add(p.loop, &p.b, EPOLLIN), 0);
	ck_assert_int_eq(loop_watch_add(p.loop, &p.b, EPOLLIN), -EEXIST);
	loop_timer_set(p.loop, &p.end, 20 * NS_PER_MS);
	ck_assert_int_eq(loop_run(p.loop), 0);
	ck_assert_uint_eq(p.calls, 1);
	loop_watch_del(p.loop, &p.a);
	loop_watch_del(p.loop, &p.b);
	loop_watch_del(p.loop, &p.b);
	close(p.a.fd);
	close(p.b.fd);
	guard_end(&g);
}
END_TEST

/* Asking for what is asked for already costs nothing: on a closed descriptor
 * a system call would fail. */
START_TEST(watch_set_same_is_free)
{
	struct guard g;
	struct loop *loop = loop_with_guard(&g);
	struct loop_watch w = { .ready = pair_a };

	w.fd = eventfd(0, EFD_CLOEXEC);
	ck_assert_int_eq(loop_watch_add(loop, &w, EPOLLIN), 0);
	close(w.fd);
	ck_assert_int_eq(loop_watch_set(loop, &w, EPOLLIN), 0);
	ck_assert_int_eq(loop_watch_set(loop, &w, EPOLLIN | EPOLLOUT), -EBADF);
	ck_assert_uint_eq(w.events, EPOLLIN);
	guard_end(&g);
}
END_TEST

int main(void)
{
	const struct unit_case cases[] = {
		{ timers_fire_in_order, 4 },
		{ timers_in_any_order, 0 },
		{ timer_cancels_another, 0 },
		{ timer_without_delay, 0 },
		{ timer_far_away, 0 },
		{ defer_runs_once_and_later, 0 },
		{ defer_starves_nobody, 0 },
		{ task_is_cancelled, 0 },
		{ posts_from_threads, 0 },
		{ stop_from_thread, 0 },
		{ stop_from_signal, 0 },
		{ watch_deleted_in_batch, 0 },
		{ watch_narrowed_in_batch, 0 },
		{ watch_set_same_is_free, 0 },
	};

	return unit_main("loop", cases, ARRAY_SIZE(cases));
}
