/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * jitter LISTEN SERVER MIN MAX SEED - a line between unix sockets on which
 * everything takes between MIN and MAX milliseconds, in both directions, each
 * connection for itself: what is sent on one may overtake what is sent on
 * another, and answers are old when they come.
 *
 * Prints "ready" when it listens; runs until it is killed.
 */
#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define CHUNK 65536
#define MAX_LINES 64
#define MAX_QUEUED 64 /* chunks for each direction */

struct chunk {
	uint64_t due; /* ms */
	size_t len, sent;
	STAILQ_ENTRY(chunk) link;
	uint8_t data[];
};

/* One direction. */
struct pipe {
	int from, to;
	bool ended; /* nothing more comes */
	unsigned queued;
	uint64_t last; /* when the newest chunk is due */
	STAILQ_HEAD(, chunk) chunks;
};

struct line {
	int client, server;
	struct pipe pipe[2];
};

struct proxy {
	struct line *line[MAX_LINES];
	unsigned nlines;
	uint64_t min, max, random;
	const char *server;
	int listener;
};

static uint64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

static uint64_t delay(struct proxy *p)
{
	p->random = p->random * 6364136223846793005u + 1442695040888963407u;
	return p->min + (p->random >> 33) % (p->max - p->min + 1);
}

static int unix_socket(const char *path, struct sockaddr_un *addr)
{
	if (strlen(path) >= sizeof(addr->sun_path)) {
		errno = ENAMETOOLONG;
		return -1;
	}
	memset(addr, 0, sizeof(*addr));
	addr->sun_family = AF_UNIX;
	memcpy(addr->sun_path, path, strlen(path) + 1);
	return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
}

static void pipe_init(struct pipe *pipe, int from, int to)
{
	pipe->from = from;
	pipe->to = to;
	STAILQ_INIT(&pipe->chunks);
}

static void line_open(struct proxy *p)
{
	int client = accept(p->listener, NULL, NULL);
	struct line *l = calloc(1, sizeof(*l));
	struct sockaddr_un addr;
	int server = -1;

	if (client < 0 || !l || p->nlines == MAX_LINES)
		goto err;
	server = unix_socket(p->server, &addr);
	if (server < 0 || connect(server, (void *)&addr, sizeof(addr)))
		goto err;
	l->client = client;
	l->server = server;
	pipe_init(&l->pipe[0], client, server);
	pipe_init(&l->pipe[1], server, client);
	p->line[p->nlines++] = l;
	return;
err:
	free(l);
	if (client >= 0)
		close(client);
	if (server >= 0)
		close(server);
}

static void line_close(struct line *l)
{
	struct chunk *c;
	int i;

	for (i = 0; i < 2; i++) {
		while ((c = STAILQ_FIRST(&l->pipe[i].chunks))) {
			STAILQ_REMOVE_HEAD(&l->pipe[i].chunks, link);
			free(c);
		}
	}
	close(l->client);
	close(l->server);
	free(l);
}

static void pipe_read(struct proxy *p, struct pipe *pipe)
{
	struct chunk *c = malloc(sizeof(*c) + CHUNK);
	ssize_t n;

	n = c ? recv(pipe->from, c->data, CHUNK, MSG_DONTWAIT) : 0;
	if (n <= 0) {
		if (n == 0 || (errno != EAGAIN && errno != EINTR))
			pipe->ended = true;
		free(c);
		return;
	}
	c->len = (size_t)n;
	c->sent = 0;
	/* A stream keeps its order. */
	c->due = now_ms() + delay(p);
	if (c->due < pipe->last)
		c->due = pipe->last;
	pipe->last = c->due;
	STAILQ_INSERT_TAIL(&pipe->chunks, c, link);
	pipe->queued++;
}

static void pipe_write(struct pipe *pipe)
{
	struct chunk *c = STAILQ_FIRST(&pipe->chunks);
	ssize_t n;

	if (!c || c->due > now_ms())
		return;
	n = send(pipe->to, c->data + c->sent, c->len - c->sent,
		 MSG_DONTWAIT | MSG_NOSIGNAL);
	if (n < 0 && errno != EAGAIN && errno != EINTR) {
		pipe->ended = true;
		n = (ssize_t)(c->len - c->sent);
	}
	if (n > 0)
		c->sent += (size_t)n;
	if (c->sent < c->len)
		return;
	STAILQ_REMOVE_HEAD(&pipe->chunks, link);
	pipe->queued--;
	free(c);
}

/* True when the line is to be closed: an end has gone, and all it said has
 * been passed on. */
static bool line_over(const struct line *l)
{
	int i;

	for (i = 0; i < 2; i++) {
		if (l->pipe[i].ended && STAILQ_EMPTY(&l->pipe[i].chunks))
			return true;
	}
	return false;
}

/* What poll is to wait for, and how long at most. */
static void pipe_wants(const struct pipe *pipe, struct pollfd *from,
		       struct pollfd *to, uint64_t now, int *timeout)
{
	const struct chunk *c = STAILQ_FIRST(&pipe->chunks);

	if (!pipe->ended && pipe->queued < MAX_QUEUED)
		from->events |= POLLIN;
	if (!c)
		return;
	if (c->due <= now)
		to->events |= POLLOUT;
	else if (*timeout < 0 || (uint64_t)*timeout > c->due - now)
		*timeout = (int)(c->due - now);
}

static void turn(struct proxy *p)
{
	struct pollfd fd[1 + 2 * MAX_LINES];
	uint64_t now = now_ms();
	unsigned i, n = p->nlines;
	int timeout = -1;

	fd[0] = (struct pollfd){ .fd = p->listener, .events = POLLIN };
	for (i = 0; i < n; i++) {
		struct pollfd *c = &fd[1 + 2 * i], *s = c + 1;
		struct line *l = p->line[i];

		*c = (struct pollfd){ .fd = l->client };
		*s = (struct pollfd){ .fd = l->server };
		pipe_wants(&l->pipe[0], c, s, now, &timeout);
		pipe_wants(&l->pipe[1], s, c, now, &timeout);
		/* An end that has gone would wake us all the time. */
		if (!c->events)
			c->fd = -1;
		if (!s->events)
			s->fd = -1;
	}
	poll(fd, 1 + 2 * n, timeout);
	for (i = n; i-- > 0;) {
		struct line *l = p->line[i];

		if (fd[1 + 2 * i].revents & ~POLLOUT)
			pipe_read(p, &l->pipe[0]);
		if (fd[2 + 2 * i].revents & ~POLLOUT)
			pipe_read(p, &l->pipe[1]);
		pipe_write(&l->pipe[0]);
		pipe_write(&l->pipe[1]);
		if (line_over(l)) {
			line_close(l);
			p->line[i] = p->line[--p->nlines];
		}
	}
	if (fd[0].revents)
		line_open(p);
}

int main(int argc, char **argv)
{
	struct proxy p = { .listener = -1 };
	struct sockaddr_un addr;

	if (argc != 6) {
		fprintf(stderr, "usage: jitter LISTEN SERVER MIN MAX SEED\n");
		return 2;
	}
	p.server = argv[2];
	p.min = strtoull(argv[3], NULL, 10);
	p.max = strtoull(argv[4], NULL, 10);
	p.random = strtoull(argv[5], NULL, 10);
	if (p.max < p.min || p.max > 60000)
		return 2;
	unlink(argv[1]);
	p.listener = unix_socket(argv[1], &addr);
	if (p.listener < 0 || bind(p.listener, (void *)&addr, sizeof(addr)) ||
	    listen(p.listener, 16)) {
		fprintf(stderr, "jitter: %s: %s\n", argv[1], strerror(errno));
		return 1;
	}
	printf("ready\n");
	fflush(stdout);
	for (;;)
		turn(&p);
}
