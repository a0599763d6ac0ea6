/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The guard shuts sockets down when it is time, and not before. */
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "guard.h"
#include "unit.h"
#include "util.h"

static uint64_t now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * NS_PER_S + (uint64_t)ts.tv_nsec;
}

struct pair {
	struct guard_slot slot;
	int fd[2];
};

static void pair_open(struct pair *p)
{
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, p->fd), 0);
}

static void pair_close(struct pair *p)
{
	close(p->fd[0]);
	close(p->fd[1]);
}

/* The other side hears of it. */
static bool is_shut(struct pair *p, int wait_ms)
{
	struct pollfd pfd = { .fd = p->fd[1], .events = POLLIN };

	return poll(&pfd, 1, wait_ms) == 1 && (pfd.revents & POLLHUP);
}

START_TEST(deadline)
{
	struct guard g;
	struct pair a, b, c;
	uint64_t began = now();

	pair_open(&a);
	pair_open(&b);
	pair_open(&c);
	guard_init(&g, began + 300 * NS_PER_MS, NULL);
	guard_add(&g, &a.slot, a.fd[0]);
	guard_add(&g, &b.slot, b.fd[0]);
	/* Ours is a duplicate: the socket lives on without the original. */
	close(a.fd[0]);
	guard_remove(&g, &b.slot);
	ck_assert(is_shut(&a, 5000));
	ck_assert_uint_ge(now() - began, 300 * NS_PER_MS);
	ck_assert(!is_shut(&b, 0));
	/* Once it is late, it is late for all. */
	guard_add(&g, &c.slot, c.fd[0]);
	ck_assert(is_shut(&c, 0));
	guard_remove(&g, &a.slot);
	guard_remove(&g, &c.slot);
	guard_end(&g);
	a.fd[0] = dup(0);
	pair_close(&a);
	pair_close(&b);
	pair_close(&c);
}
END_TEST

START_TEST(cancel)
{
	atomic_bool flag;
	struct guard g;
	struct pair p;

	atomic_init(&flag, false);
	pair_open(&p);
	guard_init(&g, now() + 3600 * NS_PER_S, &flag);
	guard_add(&g, &p.slot, p.fd[0]);
	ck_assert(!is_shut(&p, 400));
	atomic_store(&flag, true);
	ck_assert(is_shut(&p, 2000));
	guard_remove(&g, &p.slot);
	guard_end(&g);
	pair_close(&p);
}
END_TEST

START_TEST(ends_at_once)
{
	struct guard g;
	struct pair p;
	uint64_t began = now();

	pair_open(&p);
	/* Also with a deadline that is beyond all time. */
	guard_init(&g, UINT64_MAX, NULL);
	guard_add(&g, &p.slot, p.fd[0]);
	guard_remove(&g, &p.slot);
	ck_assert_int_eq(p.slot.fd, -1);
	guard_remove(&g, &p.slot);
	guard_end(&g);
	ck_assert_uint_lt(now() - began, 3 * NS_PER_S);
	ck_assert(!is_shut(&p, 0));
	pair_close(&p);
	/* Nothing was ever added; no socket. */
	guard_init(&g, 0, NULL);
	guard_add(&g, &p.slot, -1);
	ck_assert_int_eq(p.slot.fd, -1);
	guard_end(&g);
}
END_TEST

int main(void)
{
	const struct unit_case cases[] = {
		{ deadline, 0 },
		{ cancel, 0 },
		{ ends_at_once, 0 },
	};

	return unit_main("guard", cases, ARRAY_SIZE(cases));
}
