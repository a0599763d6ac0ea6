/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * doubt.c - what is at the other end of connections that were given up.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "doubt.h"
#include "util.h"

#define GHOSTS_MAX 64
/* Also where the server has hung up: something may stand in between (a
 * tunnel, say) that was quicker. */
#define DOUBT NS_PER_S

struct ghost {
	struct doubts *d;
	uint64_t number;
	bool changes; /* may still be made */
	struct loop_watch watch;
	struct loop_timer timer;
	TAILQ_ENTRY(ghost) link;
};

static bool is_change(const struct req *r)
{
	return r->kind == REQ_WRITE || r->kind == REQ_ZERO;
}

/* Any of the first `upto` ghosts is still there, and may change something. */
static bool haunted(const struct doubts *d, uint64_t upto)
{
	const struct ghost *g;

	TAILQ_FOREACH(g, &d->ghosts, link) {
		if (g->number > upto)
			break;
		if (g->changes)
			return true;
	}
	return false;
}

/* ------------------------------------------------------------- settling */

static void settle(struct doubts *d)
{
	uint64_t now = loop_now(d->loop);
	struct req *r, *next;

	for (r = TAILQ_FIRST(&d->answered); r; r = next) {
		next = TAILQ_NEXT(r, link);
		if (now - r->sent < DOUBT || haunted(d, r->ghost))
			continue;
		TAILQ_REMOVE(&d->answered, r, link);
		d->settled(d, r);
	}
	/* A ghost comes here again; time does not. */
	r = TAILQ_FIRST(&d->answered);
	if (r && now - r->sent < DOUBT)
		loop_timer_set(d->loop, &d->timer, DOUBT - (now - r->sent));
	else if (r)
		loop_timer_set(d->loop, &d->timer, DOUBT);
}

static void release(struct doubts *d)
{
	struct req_list todo = TAILQ_HEAD_INITIALIZER(todo);
	struct req *r;

	if (haunted(d, d->upto))
		return;
	d->lo = d->hi = d->upto = 0;
	TAILQ_CONCAT(&todo, &d->held, link);
	while ((r = TAILQ_FIRST(&todo)) != NULL) {
		TAILQ_REMOVE(&todo, r, link);
		d->released(d, r);
	}
}

static void on_timer(struct loop_timer *t)
{
	settle(container_of(t, struct doubts, timer));
}

/* --------------------------------------------------------------- ghosts */

static void ghost_end(struct ghost *g)
{
	struct doubts *d = g->d;

	loop_watch_del(d->loop, &g->watch);
	loop_timer_cancel(d->loop, &g->timer);
	close(g->watch.fd);
	TAILQ_REMOVE(&d->ghosts, g, link);
	d->nghosts--;
	free(g);
}

static void ghost_gone(struct ghost *g)
{
	struct doubts *d = g->d;

	ghost_end(g);
	settle(d);
	release(d);
}

/* Late answers: nobody wants them, but the server must get rid of them. */
static void on_ready(struct loop_watch *w, uint32_t events)
{
	struct ghost *g = container_of(w, struct ghost, watch);
	char late[8192];
	ssize_t n;

	(void)events;
	for (int i = 0; i < 16; i++) {
		n = recv(w->fd, late, sizeof(late), MSG_DONTWAIT);
		if (n > 0 || (n < 0 && errno == EINTR))
			continue;
		if (n == 0 || errno != EAGAIN)
			ghost_gone(g);
		return;
	}
}

static void on_patience(struct loop_timer *t)
{
	ghost_gone(container_of(t, struct ghost, timer));
}

void doubts_ghost(struct doubts *d, int fd, const struct req_list *list)
{
	struct ghost *g = calloc(1, sizeof(*g));
	const struct req *r;

	d->last++;
	if (!g) {
		close(fd);
		return;
	}
	if (d->nghosts >= GHOSTS_MAX)
		ghost_end(TAILQ_FIRST(&d->ghosts));
	g->d = d;
	g->number = d->last;
	TAILQ_FOREACH(r, list, link)
		g->changes |= is_change(r) && !r->refused;
	g->watch.fd = fd;
	g->watch.ready = on_ready;
	g->timer.fire = on_patience;
	if (loop_watch_add(d->loop, &g->watch, EPOLLIN) < 0) {
		close(fd);
		free(g);
		return;
	}
	/* It reads what was sent, and then that there is no more. */
	shutdown(fd, SHUT_WR);
	TAILQ_INSERT_TAIL(&d->ghosts, g, link);
	d->nghosts++;
	loop_timer_set(d->loop, &g->timer, d->patience);
}

/* -------------------------------------------------------------- requests */

bool doubts_keep(struct doubts *d, struct req *r)
{
	if (r->tries == 0 || !is_change(r))
		return false;
	r->sent = loop_now(d->loop);
	TAILQ_INSERT_TAIL(&d->answered, r, link);
	if (!d->timer.armed)
		loop_timer_set(d->loop, &d->timer, DOUBT);
	return true;
}

void doubts_again(struct doubts *d, struct req_list *list)
{
	struct req *r, *next;

	for (r = TAILQ_FIRST(&d->answered); r; r = next) {
		next = TAILQ_NEXT(r, link);
		if (r->error || (r->flags & REQ_FUA))
			continue;
		TAILQ_REMOVE(&d->answered, r, link);
		TAILQ_INSERT_TAIL(list, r, link);
	}
}

void doubts_failed(struct doubts *d, const struct req *r)
{
	uint64_t end = r->offset + r->len;

	if (r->tries == 0 || !is_change(r) || !haunted(d, r->ghost))
		return;
	if (!haunted(d, d->upto) || d->hi == 0) {
		d->lo = r->offset;
		d->hi = end;
	}
	d->lo = min_u64(d->lo, r->offset);
	d->hi = max_u64(d->hi, end);
	d->upto = max_u64(d->upto, r->ghost);
}

bool doubts_hold(struct doubts *d, struct req *r)
{
	if (!is_change(r) || r->offset >= d->hi || r->offset + r->len <= d->lo)
		return false;
	TAILQ_INSERT_TAIL(&d->held, r, link);
	return true;
}

void doubts_settle(struct doubts *d)
{
	struct req *r;

	while ((r = TAILQ_FIRST(&d->answered)) != NULL) {
		TAILQ_REMOVE(&d->answered, r, link);
		d->settled(d, r);
	}
}

/* ------------------------------------------------------------------- all */

void doubts_init(struct doubts *d, struct loop *loop)
{
	d->loop = loop;
	TAILQ_INIT(&d->ghosts);
	TAILQ_INIT(&d->answered);
	TAILQ_INIT(&d->held);
	d->timer.fire = on_timer;
}

void doubts_free(struct doubts *d)
{
	struct ghost *g;

	loop_timer_cancel(d->loop, &d->timer);
	while ((g = TAILQ_FIRST(&d->ghosts)) != NULL)
		ghost_end(g);
}
