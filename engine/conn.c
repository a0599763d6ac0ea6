/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * conn.c - one NBD connection on its export's loop.
 *
 * libnbd runs completion callbacks under the handle's lock, possibly inside
 * the very call that submits. They only put the request on `completed`; it is
 * retired by nbd_aio_command_completed(), which is where libnbd notices a
 * structured read that covered too little. (Retiring from the callback would
 * skip that check.)
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "conn.h"
#include "util.h"

/* The one flag of a bitmap's context. */
#define BITMAP_DIRTY 1

/* A flush or a large zero may take longer than a read. */
#define SLOW_PATIENCE 4
/* And any may be overtaken by others, but not for ever. */
#define OVERTAKEN_PATIENCE 4

static void conn_retire(struct conn *c);

static int on_completed(void *user, int *error)
{
	struct req *r = user;

	(void)error;
	STAILQ_INSERT_TAIL(&r->conn->completed, r, done_link);
	return 0;
}

/* ------------------------------------------------------- block status */

static void status_tell(struct req *r, uint64_t end, bool zero, bool hole)
{
	r->extent(r, r->covered, end, zero, hole);
	r->covered = end;
}

/* Unknown bits are ignored. Of base:allocation only ZERO is a promise about the
 * contents. In a bitmap what is clean is what a seek takes for a hole. */
static void status_kind(const struct req *r, uint64_t flags, bool *zero,
			bool *hole)
{
	if (r->conn->opts.meta_context) {
		*zero = *hole = (flags & BITMAP_DIRTY) == 0;
		return;
	}
	*zero = (flags & LIBNBD_STATE_ZERO) != 0;
	*hole = (flags & LIBNBD_STATE_HOLE) != 0;
}

/*
 * One run of a reply. False: the rest of the reply is not to be used.
 * Servers may tell of runs that are finer than their blocks (nbdkit's
 * blocksize-policy does): a block is zero only if all of its runs are.
 */
static bool status_run(struct req *r, uint64_t size, uint64_t align,
		       uint64_t len, uint64_t flags)
{
	uint64_t end, block;
	bool zero, hole;

	if (r->heard >= size || len == 0)
		return false;
	status_kind(r, flags, &zero, &hole);
	end = r->heard + min_u64(len, size - r->heard);
	r->heard = end;
	block = min_u64(align_up(r->covered + 1, align), size);
	if (r->heard > r->covered && r->part) {
		zero = zero && r->part_zero;
		hole = hole && r->part_hole;
		if (end >= block) {
			status_tell(r, block, zero, hole);
			r->part = false;
			status_kind(r, flags, &zero, &hole);
		}
	}
	if (!r->part) {
		block = end == size ? size : align_down(end, align);
		if (block > r->covered)
			status_tell(r, block, zero, hole);
	}
	r->part = end > r->covered;
	r->part_zero = zero;
	r->part_hole = hole;
	return true;
}

/* A reply that ends inside its first block: there is data, for all that is
 * known. */
static void status_end(struct req *r, uint64_t size, uint64_t align)
{
	if (r->covered == r->offset && r->heard > r->offset)
		status_tell(r, min_u64(align_up(r->heard, align), size), false,
			    false);
}

static bool status_wanted(struct req *r, const char *context, uint64_t offset)
{
	const char *want = r->conn->opts.meta_context;

	if (!want)
		want = LIBNBD_CONTEXT_BASE_ALLOCATION;
	return strcmp(context, want) == 0 && offset == r->offset &&
	       r->heard == r->offset;
}

#ifdef LIBNBD_HAVE_NBD_AIO_BLOCK_STATUS_64
static int on_extents(void *user, const char *context, uint64_t offset,
		      nbd_extent *entries, size_t n, int *error)
{
	struct req *r = user;
	const struct nbd_caps *caps = export_caps(r->conn->x);

	(void)error;
	if (!status_wanted(r, context, offset))
		return 0;
	for (size_t i = 0; i < n; i++)
		if (!status_run(r, caps->size, caps->min_block,
				entries[i].length, entries[i].flags))
			break;
	return 0;
}
#else
static int on_extents(void *user, const char *context, uint64_t offset,
		      uint32_t *entries, size_t n, int *error)
{
	struct req *r = user;
	const struct nbd_caps *caps = export_caps(r->conn->x);

	(void)error;
	if (!status_wanted(r, context, offset))
		return 0;
	for (size_t i = 0; i + 1 < n; i += 2)
		if (!status_run(r, caps->size, caps->min_block, entries[i],
				entries[i + 1]))
			break;
	return 0;
}
#endif

static int64_t submit_status(struct conn *c, struct req *r,
			     nbd_completion_callback cb)
{
#ifdef LIBNBD_HAVE_NBD_AIO_BLOCK_STATUS_64
	nbd_extent64_callback ext = { .callback = on_extents, .user_data = r };

	return nbd_aio_block_status_64(c->nbd, r->len, r->offset, ext, cb, 0);
#else
	nbd_extent_callback ext = { .callback = on_extents, .user_data = r };

	return nbd_aio_block_status(c->nbd, r->len, r->offset, ext, cb, 0);
#endif
}

/* ---------------------------------------------------------------- reads */

/* libnbd has checked that it lies within the read, and looks for bytes that
 * are missing only by counting. */
static int on_chunk(void *user, const void *data, size_t len, uint64_t offset,
		    unsigned status, int *error)
{
	struct req *r = user;

	(void)data;
	(void)error;
	if (status != LIBNBD_READ_DATA && status != LIBNBD_READ_HOLE)
		return 0;
	if (!range_inside(offset - r->offset, len, r->len) ||
	    cover_add(&r->got, offset - r->offset, offset - r->offset + len))
		r->bad = true;
	return 0;
}

/* In one piece, where the map says what is a hole: a server that looks for
 * holes in what it sends (qemu does) takes longer for each read, and sends
 * a fragmented image in hundreds of chunks. */
static int64_t submit_read(struct conn *c, struct req *r,
			   nbd_completion_callback cb)
{
	nbd_chunk_callback chunk = { .callback = on_chunk, .user_data = r };

	cover_clear(&r->got);
	r->bad = false;
	return nbd_aio_pread_structured(c->nbd, r->data, r->len, r->offset,
					chunk, cb,
					c->whole ? LIBNBD_CMD_FLAG_DF : 0);
}

static bool read_is_whole(struct req *r)
{
	bool whole = !r->bad && cover_is(&r->got, r->len);

	cover_clear(&r->got);
	return whole;
}

/* -------------------------------------------------------------- sending */

static int64_t submit(struct conn *c, struct req *r)
{
	nbd_completion_callback cb = { .callback = on_completed,
				       .user_data = r };
	uint32_t fua = r->flags & REQ_FUA ? LIBNBD_CMD_FLAG_FUA : 0;
	uint32_t zero = fua;

	switch (r->kind) {
	case REQ_READ:
		return submit_read(c, r, cb);
	case REQ_WRITE:
		return nbd_aio_pwrite(c->nbd, r->data, r->len, r->offset, cb,
				      fua);
	case REQ_ZERO:
		if (r->flags & REQ_NO_HOLE)
			zero |= LIBNBD_CMD_FLAG_NO_HOLE;
		if (r->flags & REQ_FAST)
			zero |= LIBNBD_CMD_FLAG_FAST_ZERO;
		return nbd_aio_zero(c->nbd, r->len, r->offset, cb, zero);
	case REQ_FLUSH:
		return nbd_aio_flush(c->nbd, cb, 0);
	case REQ_STATUS:
		r->covered = r->heard = r->offset;
		r->part = false;
		return submit_status(c, r, cb);
	}
	return -1;
}

/* Asks epoll for what libnbd waits for. */
static void conn_rewatch(struct conn *c)
{
	unsigned dir = nbd_aio_get_direction(c->nbd);
	uint32_t events = 0;

	if (dir & LIBNBD_AIO_DIRECTION_READ)
		events |= EPOLLIN;
	if (dir & LIBNBD_AIO_DIRECTION_WRITE)
		events |= EPOLLOUT;
	loop_watch_set(engine_loop(c->e), &c->watch, events);
	if (dir == 0 || !STAILQ_EMPTY(&c->completed))
		loop_defer(engine_loop(c->e), &c->retire);
}

int conn_submit(struct conn *c, struct req *r)
{
	int64_t cookie;
	int err;

	assert(c->state == CONN_READY);
	r->conn = c;
	r->refused = false;
	r->whole = c->whole;
	r->sent = loop_now(engine_loop(c->e));
	TAILQ_INSERT_TAIL(&c->flying, r, link);
	c->in_flight++;
	c->in_flight_bytes += r->len;
	cookie = submit(c, r);
	if (cookie < 0) {
		err = nbd_get_errno();
		TAILQ_REMOVE(&c->flying, r, link);
		c->in_flight--;
		c->in_flight_bytes -= r->len;
		r->conn = NULL;
		conn_rewatch(c);
		if (err == 0 || nbd_aio_is_dead(c->nbd) ||
		    nbd_aio_is_closed(c->nbd))
			err = ENOTCONN;
		return -err;
	}
	r->cookie = cookie;
	conn_rewatch(c);
	if (!c->timer.armed)
		loop_timer_set(engine_loop(c->e), &c->timer,
			       engine_config(c->e)->timeout_ms * NS_PER_MS / 4);
	return 0;
}

/* ------------------------------------------------------------ receiving */

static bool conn_is_dead(const struct conn *c)
{
	return nbd_aio_is_dead(c->nbd) || nbd_aio_is_closed(c->nbd);
}

static void conn_gone(struct conn *c)
{
	struct req_list list = TAILQ_HEAD_INITIALIZER(list);
	struct req *r;

	TAILQ_CONCAT(&list, &c->flying, link);
	TAILQ_FOREACH(r, &list, link)
		cover_clear(&r->got);
	if (!c->why)
		c->why = "the connection was lost";
	c->left = -1;
	if (!TAILQ_EMPTY(&list))
		c->left = fcntl(c->watch.fd, F_DUPFD_CLOEXEC, 3);
	TAILQ_CONCAT(&list, &c->refusals, link);
	STAILQ_INIT(&c->completed);
	c->in_flight = 0;
	c->in_flight_bytes = 0;
	loop_timer_cancel(engine_loop(c->e), &c->timer);
	conn_close(c);
	c->ops->broken(c, &list);
}

/* The result of one completed request, or -ENOTCONN where the connection
 * took it along. */
static int conn_result(struct conn *c, struct req *r)
{
	int res = nbd_aio_command_completed(c->nbd, r->cookie);
	bool whole = r->kind != REQ_READ || read_is_whole(r);
	int err;

	if (res < 0) {
		err = nbd_get_errno();
		return err > 0 ? -err : -EIO;
	}
	if (res == 0 || !whole)
		return -EIO;
	if (r->kind == REQ_STATUS) {
		const struct nbd_caps *caps = export_caps(c->x);

		status_end(r, caps->size, caps->min_block);
		if (r->covered == r->offset)
			return -EIO; /* an answer without progress */
	}
	return 0;
}

/* False: it could not be sent, and waits for the next connection. */
static bool conn_again(struct conn *c, struct req *r)
{
	if (conn_submit(c, r) == 0)
		return true;
	TAILQ_INSERT_TAIL(&c->flying, r, link);
	c->in_flight++;
	c->in_flight_bytes += r->len;
	return false;
}

static void conn_retire(struct conn *c)
{
	struct req *r;
	int error;
	bool leave = false;

	while (c->state == CONN_READY &&
	       (r = STAILQ_FIRST(&c->completed)) != NULL) {
		STAILQ_REMOVE_HEAD(&c->completed, done_link);
		error = conn_result(c, r);
		if (error == -ENOTCONN) {
			/* Stays in `flying`: to be sent again. */
			leave = true;
			continue;
		}
		c->last_answer = loop_now(engine_loop(c->e));
		if (r == TAILQ_FIRST(&c->flying))
			c->head_since = c->last_answer;
		TAILQ_REMOVE(&c->flying, r, link);
		if (error == -ESHUTDOWN) {
			/* Others may still be answered. */
			c->refused = r->refused = true;
			TAILQ_INSERT_TAIL(&c->refusals, r, link);
			continue;
		}
		c->in_flight--;
		c->in_flight_bytes -= r->len;
		/* Too large to be sent in one piece: then as it likes. */
		if (error == -EOVERFLOW && r->kind == REQ_READ && r->whole) {
			c->whole = false;
			leave = !conn_again(c, r) || leave;
			continue;
		}
		c->ops->answered(c, r, error);
	}
	if (c->state != CONN_READY)
		return;
	if (conn_is_dead(c))
		conn_gone(c);
	else if (c->refused && TAILQ_EMPTY(&c->flying))
		conn_break(c, "the server is shutting down");
	else if (leave)
		conn_break(c, "connection lost");
}

static void on_retire(struct loop_task *t)
{
	struct conn *c = container_of(t, struct conn, retire);

	if (c->state == CONN_READY)
		conn_retire(c);
}

/*
 * One wake-up handles all that has arrived: that spares a poll per answer. But
 * libnbd is never let look for an answer on suspicion: where it finds nothing
 * it waits for one (seen in 1.14), keeps every new command back until that has
 * come, and forgets the other half of one that is half sent.
 */
static bool more_has_come(const struct conn *c)
{
	uint8_t byte;

	return nbd_aio_get_direction(c->nbd) == LIBNBD_AIO_DIRECTION_READ &&
	       !TAILQ_EMPTY(&c->flying) &&
	       recv(c->watch.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

static void on_ready(struct loop_watch *w, uint32_t events)
{
	struct conn *c = container_of(w, struct conn, watch);
	unsigned dir = nbd_aio_get_direction(c->nbd);

	if ((events & EPOLLOUT) && (dir & LIBNBD_AIO_DIRECTION_WRITE)) {
		nbd_aio_notify_write(c->nbd);
		dir = nbd_aio_get_direction(c->nbd);
	}
	if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) &&
	    (dir & LIBNBD_AIO_DIRECTION_READ)) {
		for (int i = 0; i < 32; i++) {
			nbd_aio_notify_read(c->nbd);
			if (STAILQ_EMPTY(&c->completed))
				break;
			conn_retire(c);
			if (c->state != CONN_READY)
				return;
			if (!more_has_come(c))
				break;
		}
	}
	conn_retire(c);
	if (c->state == CONN_READY)
		conn_rewatch(c);
}

static uint64_t conn_patience(const struct conn *c, const struct req *r)
{
	uint64_t t = engine_config(c->e)->timeout_ms * NS_PER_MS;

	if (r->kind == REQ_ZERO || r->kind == REQ_FLUSH || (r->flags & REQ_FUA))
		t *= SLOW_PATIENCE;
	return t;
}

static bool late(uint64_t now, uint64_t since, uint64_t patience)
{
	return now > since && now - since > patience;
}

static void on_timer(struct loop_timer *t)
{
	struct conn *c = container_of(t, struct conn, timer);
	uint64_t now = loop_now(engine_loop(c->e));
	struct req *r;

	TAILQ_FOREACH(r, &c->flying, link) {
		if (late(now, max_u64(r->sent, c->last_answer),
			 conn_patience(c, r))) {
			conn_break(c, "no answer");
			return;
		}
	}
	r = TAILQ_FIRST(&c->flying);
	if (r && late(now, max_u64(r->sent, c->head_since),
		      OVERTAKEN_PATIENCE * conn_patience(c, r))) {
		conn_break(c, "one request is not answered");
		return;
	}
	if (!TAILQ_EMPTY(&c->flying))
		loop_timer_set(engine_loop(c->e), &c->timer,
			       engine_config(c->e)->timeout_ms * NS_PER_MS / 4);
}

/* Lets libnbd find the end of the stream, so that it fails what is in flight
 * now and not in the helper thread that closes. The connection itself is left
 * as it is: what the server still has of it matters. */
static void end_stream(struct conn *c)
{
	int fd = nbd_aio_get_fd(c->nbd), pair[2];

	if (fd < 0)
		return;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0) {
		shutdown(fd, SHUT_RDWR);
		return;
	}
	if (dup3(pair[0], fd, O_CLOEXEC) < 0)
		shutdown(fd, SHUT_RDWR);
	close(pair[0]);
	close(pair[1]);
}

void conn_break(struct conn *c, const char *why)
{
	if (c->state != CONN_READY)
		return;
	c->why = why;
	if (why)
		log_msg(&engine_config(c->e)->log, LOG_LVL_WARN,
			"%s: export '%s': connection given up: %s",
			server_label(c->srv), c->export_name, why);
	end_stream(c);
	for (int i = 0; i < 16 && !conn_is_dead(c); i++) {
		unsigned dir = nbd_aio_get_direction(c->nbd);

		if (dir & LIBNBD_AIO_DIRECTION_READ)
			nbd_aio_notify_read(c->nbd);
		else if (dir & LIBNBD_AIO_DIRECTION_WRITE)
			nbd_aio_notify_write(c->nbd);
		else
			break;
	}
	conn_retire(c);
	if (c->state == CONN_READY)
		conn_gone(c);
}

/* ---------------------------------------------------- opening, closing */

static void open_fn(struct work *w)
{
	struct conn *c = container_of(w, struct conn, work);

	c->new_nbd = NULL;
	c->err.text[0] = '\0';
	c->result = nbd_open_export(c->srv, c->export_name, &c->opts,
				    &c->new_nbd, &c->new_caps, &c->err);
}

static void open_done(struct work *w)
{
	struct conn *c = container_of(w, struct conn, work);
	int error = c->result;

	c->state = CONN_DOWN;
	if (error == 0)
		error = conn_adopt(c, c->new_nbd);
	c->ops->opened(c, error); /* may free c */
}

void conn_open(struct conn *c, uint64_t deadline)
{
	assert(c->state == CONN_DOWN);
	c->state = CONN_OPENING;
	atomic_store(&c->cancel, false);
	memset(&c->new_caps, 0, sizeof(c->new_caps));
	c->opts.deadline = deadline;
	c->opts.cancel = &c->cancel;
	c->opts.want_extents = !c->opts.meta_context &&
			       !engine_config(c->e)->no_extents;
	c->work.fn = open_fn;
	c->work.done = open_done;
	workers_run(engine_workers(c->e), &c->work);
}

/* A write on a unix socket stops each time that its buffer is full, and that
 * is small. TCP sizes its own. Where this is not allowed, it stays. */
static void larger_buffer(int fd)
{
	int domain = 0, size = 1 << 20;
	socklen_t len = sizeof(domain);

	if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) == 0 &&
	    domain == AF_UNIX)
		setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
}

int conn_adopt(struct conn *c, struct nbd_handle *nbd)
{
	int fd = nbd_aio_get_fd(nbd);
	int err;

	assert(c->state == CONN_DOWN);
	c->nbd = nbd;
	/* One of our own: libnbd closes its socket as soon as it finds that
	 * it is dead, and another thread may get the number. */
	c->watch.fd = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 3);
	c->watch.ready = on_ready;
	if (c->watch.fd >= 0)
		larger_buffer(c->watch.fd);
	if (c->watch.fd < 0)
		err = fd < 0 ? -ENOTCONN : -errno;
	else
		err = loop_watch_add(engine_loop(c->e), &c->watch, EPOLLIN);
	if (err) {
		if (c->watch.fd >= 0)
			close(c->watch.fd);
		nbd_close(nbd);
		c->nbd = NULL;
		return err;
	}
	c->whole = nbd_can_df(nbd) > 0 &&
		   nbd_can_meta_context(nbd, LIBNBD_CONTEXT_BASE_ALLOCATION) >
			   0;
	c->refused = false;
	c->why = NULL;
	c->state = CONN_READY;
	c->last_answer = loop_now(engine_loop(c->e));
	return 0;
}

static void close_fn(struct work *w)
{
	struct conn *c = container_of(w, struct conn, work);

	nbd_end(c->nbd);
}

static void close_done(struct work *w)
{
	struct conn *c = container_of(w, struct conn, work);

	c->nbd = NULL;
	c->state = CONN_DOWN;
	c->ops->closed(c);
}

void conn_close(struct conn *c)
{
	assert(c->state == CONN_READY && TAILQ_EMPTY(&c->flying));
	loop_watch_del(engine_loop(c->e), &c->watch);
	close(c->watch.fd);
	loop_timer_cancel(engine_loop(c->e), &c->timer);
	c->state = CONN_CLOSING;
	c->work.fn = close_fn;
	c->work.done = close_done;
	workers_run(engine_workers(c->e), &c->work);
}

void conn_init(struct conn *c, struct export *x, struct engine *e,
	       struct server *srv, const char *export_name,
	       const struct conn_ops *ops)
{
	memset(c, 0, sizeof(*c));
	c->x = x;
	c->e = e;
	c->ops = ops;
	c->srv = srv;
	c->export_name = export_name;
	c->opts.meta_context = export_context(x);
	c->state = CONN_DOWN;
	c->retire.run = on_retire;
	c->timer.fire = on_timer;
	TAILQ_INIT(&c->flying);
	TAILQ_INIT(&c->refusals);
	STAILQ_INIT(&c->completed);
}
