/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * evilnbd FOLDER: NBD servers that break the protocol, all in one process.
 *
 * Each scenario has two unix sockets in FOLDER: NAME, where the server is evil
 * for ever, and NAME.once, where it is evil once and then as it should be
 * (but for the size). Prints "ready" when it listens, and what it was asked
 * for ("NAME: write OFFSET LENGTH") if the variable EVILNBD_LOG is set.
 *
 * evilnbd -l prints the names of all scenarios.
 *
 * What a scenario does not touch is done as the protocol wants it: fixed
 * newstyle, structured replies, base:allocation, one export (whatever its
 * name) of 1 MiB. Its first half is data, the pattern below; the second is a
 * hole.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "evil.h"

static bool logging;

static void log_request(struct conn *c, const struct request *r)
{
	static const char *const names[] = { "read", "write", "disc", "flush",
					     "trim", "cache", "zero", "status" };

	if (logging)
		printf("%s: %s %llu %u\n", c->e->name,
		       r->type < ARRAY_SIZE(names) ? names[r->type] : "?",
		       (unsigned long long)r->offset, r->len);
}

static void transmission(struct conn *c)
{
	const struct evil *e = c->e;

	while (1) {
		struct request r;
		uint32_t magic = (uint32_t)get_be(c, 4);

		r.flags = (uint16_t)get_be(c, 2);
		r.type = (uint16_t)get_be(c, 2);
		r.cookie = get_be(c, 8);
		r.offset = get_be(c, 8);
		r.len = (uint32_t)get_be(c, 4);
		log_request(c, &r);
		if (magic != REQUEST_MAGIC || r.type == CMD_DISC)
			hang_up(c);
		if ((r.type == CMD_READ || r.type == CMD_WRITE) &&
		    r.len > PAYLOAD_MAX)
			hang_up(c);
		if (e->command && (e->cmd == r.type || e->cmd == CMD_ANY) &&
		    be_evil(c))
			e->command(c, &r);
		else
			good(c, &r);
	}
}

static void *serve(void *arg)
{
	struct conn *c = arg;
	const struct evil *e = c->e;

	c->size = e->size ? e->size : DISK;
	if (e->greet && be_evil(c))
		e->greet(c);
	negotiate(c);
	transmission(c);
	return NULL;
}

static void take_client(struct inst *inst)
{
	struct conn *c = calloc(1, sizeof(*c));
	pthread_t thread;

	if (!c)
		return;
	c->inst = inst;
	c->e = inst->evil;
	c->fd = accept(inst->listener, NULL, NULL);
	if (c->fd >= 0 && pthread_create(&thread, NULL, serve, c) == 0) {
		pthread_detach(thread);
		return;
	}
	if (c->fd >= 0)
		close(c->fd);
	free(c);
}

static int listen_at(struct inst *inst, const char *folder, const char *suffix)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	int n = snprintf(addr.sun_path, sizeof(addr.sun_path), "%s/%s%s",
			 folder, inst->evil->name, suffix);

	if (n < 0 || (size_t)n >= sizeof(addr.sun_path)) {
		fprintf(stderr, "evilnbd: the folder's name is too long\n");
		return -1;
	}
	pthread_mutex_init(&inst->lock, NULL);
	inst->disk = calloc(1, DISK);
	inst->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (!inst->disk || inst->listener < 0 ||
	    bind(inst->listener, (struct sockaddr *)&addr, sizeof(addr)) < 0 ||
	    listen(inst->listener, 64) < 0) {
		perror(addr.sun_path);
		return -1;
	}
	for (uint32_t i = 0; i < DISK / 2; i++)
		inst->disk[i] = (uint8_t)(i / 512 * 7 + i + 1);
	return 0;
}

/* Scenario i, or NULL. */
static const struct evil *scenario(size_t i)
{
	static const struct evil *const tables[] = { evil_handshake,
						     evil_commands, evil_reads,
						     evil_status, evil_tls };

	for (size_t t = 0; t < ARRAY_SIZE(tables); t++)
		for (const struct evil *e = tables[t]; e->name; e++)
			if (i-- == 0)
				return e;
	return NULL;
}

static int listen_at_all(struct inst *inst, struct pollfd *p, size_t n,
			 const char *folder)
{
	for (size_t i = 0; i < n; i++) {
		inst[i].evil = scenario(i / 2);
		atomic_store(&inst[i].left, i % 2 ? 1 : -1);
		if (listen_at(&inst[i], folder, i % 2 ? ".once" : "") < 0)
			return -1;
		p[i] = (struct pollfd){ .fd = inst[i].listener,
					.events = POLLIN };
	}
	return 0;
}

static int run(const char *folder)
{
	size_t n = 0;
	struct inst *inst;
	struct pollfd *p;

	while (scenario(n))
		n++;
	n *= 2;
	inst = calloc(n, sizeof(*inst));
	p = calloc(n, sizeof(*p));
	if (!inst || !p || listen_at_all(inst, p, n, folder) < 0)
		return 1;
	puts("ready");
	while (poll(p, n, -1) >= 0 || errno == EINTR)
		for (size_t i = 0; i < n; i++)
			if (p[i].revents & POLLIN)
				take_client(&inst[i]);
	return 1;
}

int main(int argc, char **argv)
{
	const struct evil *e;

	if (argc != 2) {
		fprintf(stderr, "usage: evilnbd FOLDER | -l\n");
		return 2;
	}
	if (strcmp(argv[1], "-l") == 0) {
		for (size_t i = 0; (e = scenario(i)) != NULL; i++)
			puts(e->name);
		return 0;
	}
	signal(SIGPIPE, SIG_IGN);
	setvbuf(stdout, NULL, _IOLBF, 0);
	logging = getenv("EVILNBD_LOG") != NULL;
	return run(argv[1]);
}
