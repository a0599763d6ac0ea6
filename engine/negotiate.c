/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * negotiate.c - driving libnbd handles through connecting and options.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "negotiate.h"
#include "util.h"

/* How soon a wait notices that it was cancelled. */
#define SLICE_MS 100

uint64_t clock_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * NS_PER_S + (uint64_t)ts.tv_nsec;
}

void talk_begin(struct talk *t, struct server *srv,
		const struct connect_opts *opts)
{
	t->srv = srv;
	t->opts = opts;
	t->began = clock_now();
	t->limit = UINT64_MAX;
	guard_init(&t->guard, opts->deadline, opts->cancel);
}

void talk_end(struct talk *t)
{
	guard_end(&t->guard);
}

/* ----------------------------------------------------------- one handle */

/* Keeps what libnbd says of a call that has just failed. */
static void keep_why(struct neg *n, int error)
{
	const char *text = nbd_get_error();

	if (error == 0)
		error = nbd_get_errno();
	n->error = error ? -error : -EIO;
	snprintf(n->why, sizeof(n->why), "%s", text ? text : "");
}

static int on_answer(void *user, int *error)
{
	struct neg *n = user;

	if (*error)
		keep_why(n, *error);
	return 1;
}

static int neg_configure(struct nbd_handle *nbd)
{
	/* Requests are aligned by us. The tail of an export whose size is no
	 * multiple of its block size cannot be, and servers answer it. */
	uint32_t strict = nbd_get_strict_mode(nbd) &
			  ~(uint32_t)LIBNBD_STRICT_ALIGN;

	if (nbd_set_strict_mode(nbd, strict) < 0 ||
	    nbd_set_debug(nbd, false) < 0 || nbd_set_opt_mode(nbd, true) < 0 ||
	    nbd_set_full_info(nbd, true) < 0 ||
	    nbd_set_uri_allow_local_file(nbd, true) < 0 ||
	    nbd_set_pread_initialize(nbd, false) < 0 ||
	    nbd_set_request_structured_replies(nbd, true) < 0 ||
	    nbd_set_request_block_size(nbd, true) < 0)
		return -1;
#ifdef LIBNBD_HAVE_NBD_SET_REQUEST_EXTENDED_HEADERS
	if (nbd_set_request_extended_headers(nbd, true) < 0)
		return -1;
#endif
	return 0;
}

int neg_start(struct talk *t, struct neg *n)
{
	struct error why = { "" };
	int r;

	memset(n, 0, sizeof(*n));
	n->slot.fd = -1;
	n->nbd = nbd_create();
	r = n->nbd ? server_check_tls(t->srv, n->nbd, &why) : 0;
	if (r < 0) {
		neg_close(t, n);
		snprintf(n->why, sizeof(n->why), "%s", why.text);
		n->error = r;
		return r;
	}
	if (!n->nbd || neg_configure(n->nbd) < 0 ||
	    server_aio_connect(t->srv, n->nbd) < 0) {
		keep_why(n, 0);
		neg_close(t, n);
		return n->error;
	}
	return 0;
}

static int neg_asked(struct neg *n, int result)
{
	if (result == 0)
		return 0;
	keep_why(n, 0);
	return n->error;
}

static nbd_completion_callback neg_ask(struct neg *n)
{
	n->error = 0;
	n->why[0] = '\0';
	return (nbd_completion_callback){ .callback = on_answer,
					  .user_data = n };
}

int neg_opt_list(struct neg *n, nbd_list_callback list)
{
	return neg_asked(n, nbd_aio_opt_list(n->nbd, list, neg_ask(n)));
}

int neg_opt_info(struct neg *n, const char *export)
{
	nbd_completion_callback cb = neg_ask(n);
	int r = nbd_set_export_name(n->nbd, export);

	if (r == 0)
		r = nbd_aio_opt_info(n->nbd, cb);
	return neg_asked(n, r);
}

int neg_opt_go(struct neg *n, const char *export)
{
	nbd_completion_callback cb = neg_ask(n);
	int r = nbd_set_export_name(n->nbd, export);

	if (r == 0)
		r = nbd_aio_opt_go(n->nbd, cb);
	return neg_asked(n, r);
}

bool neg_busy(const struct neg *n)
{
	return n->nbd && nbd_aio_is_connecting(n->nbd) > 0;
}

bool neg_negotiating(const struct neg *n)
{
	return n->nbd && nbd_aio_is_negotiating(n->nbd) > 0;
}

bool neg_ready(const struct neg *n)
{
	return n->nbd && nbd_aio_is_ready(n->nbd) > 0;
}

struct nbd_handle *neg_take(struct talk *t, struct neg *n)
{
	struct nbd_handle *nbd = n->nbd;

	guard_remove(&t->guard, &n->slot);
	n->nbd = NULL;
	return nbd;
}

void neg_close(struct talk *t, struct neg *n)
{
	if (n->nbd)
		nbd_close(neg_take(t, n));
}

void neg_end(struct talk *t, struct neg *n)
{
	if (n->nbd)
		nbd_end(neg_take(t, n));
}

/* -------------------------------------------------------------- waiting */

static short wanted_events(struct nbd_handle *nbd)
{
	unsigned dir = nbd_aio_get_direction(nbd);
	short events = 0;

	if (dir & LIBNBD_AIO_DIRECTION_READ)
		events |= POLLIN;
	if (dir & LIBNBD_AIO_DIRECTION_WRITE)
		events |= POLLOUT;
	return events;
}

/* A server that sends an answer in pieces, without TCP_NODELAY, waits for an
 * acknowledgement in between, and the kernel delays those by 40 ms: nbd-server
 * takes that long for each option. The switch lasts for a moment only. */
static void answer_at_once(const struct neg *n)
{
	int one = 1;

	if (n->slot.fd >= 0)
		setsockopt(n->slot.fd, IPPROTO_TCP, TCP_QUICKACK, &one,
			   sizeof(one));
}

/* Lets libnbd work, as the socket has become ready. */
static void neg_turn(struct talk *t, struct neg *n, short wanted, short revents)
{
	bool reads = (wanted & POLLIN) && (revents & ~POLLOUT);
	int r;

	/* Until something was read, libnbd may go from address to address,
	 * each with a socket of its own. One call may do all the rest. */
	if (!n->reads) {
		guard_remove(&t->guard, &n->slot);
		guard_add(&t->guard, &n->slot, nbd_aio_get_fd(n->nbd));
	}
	if (reads) {
		n->reads = true;
		r = nbd_aio_notify_read(n->nbd);
		answer_at_once(n);
	} else {
		r = nbd_aio_notify_write(n->nbd);
	}
	if (r < 0) {
		keep_why(n, 0);
	} else if (nbd_aio_is_closed(n->nbd) > 0 && n->error == 0) {
		/* Given up by libnbd without an error: of a call before this
		 * one the text may be, unless it names this one. */
		const char *text = nbd_get_error();

		n->error = -ECONNRESET;
		if (text && strncmp(text, "nbd_aio_notify_", 15) == 0)
			keep_why(n, ECONNRESET);
	}
}

static int out_of_time(const struct talk *t, uint64_t now)
{
	if (t->opts->cancel && atomic_load(t->opts->cancel))
		return -ECANCELED;
	return now >= min_u64(t->opts->deadline, t->limit) ? -ETIMEDOUT : 0;
}

static int slice_ms(const struct talk *t, uint64_t now)
{
	uint64_t end = min_u64(t->opts->deadline, t->limit);

	return (int)min_u64((end - now) / NS_PER_MS + 1, SLICE_MS);
}

/* One round of polling; false where somebody is not busy already. */
static int poll_once(struct talk *t, struct neg *const *n, size_t count,
		     bool *idle)
{
	struct pollfd p[TALK_HANDLES];
	struct neg *who[TALK_HANDLES];
	uint64_t now = clock_now();
	nfds_t np = 0;
	int r;

	*idle = false;
	for (size_t i = 0; i < count; i++) {
		if (!n[i] || !n[i]->nbd)
			continue;
		if (!neg_busy(n[i])) {
			*idle = true;
			return 0;
		}
		who[np] = n[i];
		p[np].fd = nbd_aio_get_fd(n[i]->nbd);
		p[np].events = wanted_events(n[i]->nbd);
		p[np++].revents = 0;
	}
	*idle = np == 0;
	r = out_of_time(t, now);
	if (r < 0 || np == 0)
		return r;
	if (poll(p, np, slice_ms(t, now)) < 0 && errno != EINTR)
		return -errno;
	for (nfds_t i = 0; i < np; i++)
		if (p[i].revents)
			neg_turn(t, who[i], p[i].events, p[i].revents);
	return 0;
}

int neg_wait(struct talk *t, struct neg *const *n, size_t count)
{
	bool idle = false;
	int r = 0;

	while (r == 0 && !idle)
		r = poll_once(t, n, count, &idle);
	return r;
}

int neg_settle(struct talk *t, struct neg *n)
{
	int r = neg_wait(t, &n, 1);

	if (r < 0)
		return r;
	if (n->error)
		return n->error;
	if (!neg_negotiating(n) && !neg_ready(n))
		return -ECONNRESET;
	server_answered(t->srv);
	return 0;
}
