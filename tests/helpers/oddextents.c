/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * oddextents: an NBD server whose answers about extents are odd, wrong, slow
 * or missing, while its reads are right.
 *
 *	oddextents SOCKET MODE
 *
 * Serves 1 MiB, of which every other piece of 64 KiB, from the first on, is
 * data (each byte 1 or more) and the others are zero; in the modes that are
 * about time it is all zero. Prints "ready". The modes stand in the table
 * below.
 */
#include <endian.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define OPT_MAGIC 0x49484156454f5054
#define REP_MAGIC 0x0003e889045565a9
#define REQUEST_MAGIC 0x25609513
#define REPLY_MAGIC 0x668e33ef

enum { OPT_ABORT = 2, OPT_INFO = 6, OPT_GO = 7, OPT_SR = 8 };
enum { OPT_LIST_META = 9, OPT_SET_META = 10 };
enum { REP_ACK = 1, REP_INFO = 3, REP_META = 4 };
#define REP_ERR_UNSUP 0x80000001
enum { CMD_READ = 0, CMD_DISC = 2, CMD_FLUSH = 3, CMD_STATUS = 7 };
enum { CHUNK_NONE = 0, CHUNK_DATA = 1, CHUNK_STATUS = 5, CHUNK_ERROR = 32769 };

#define SIZE ((uint64_t)1 << 20)
#define PIECE ((uint64_t)64 << 10)
#define MAX_EXTENTS 4096
#define ALLOCATION 1 /* the id of base:allocation */

enum { STATE_DATA = 0, STATE_HOLE = 1, STATE_ZERO = 2 };

struct question {
	int fd;
	uint64_t cookie, offset, len;
};

struct mode {
	const char *name;
	uint64_t step;	     /* the longest extent */
	uint64_t limit;	     /* the most that an answer covers; 0: all */
	uint32_t overshoot;  /* the last extent is longer than asked */
	uint32_t flags;	     /* of all extents, besides the right ones */
	uint32_t id;	     /* of the context; 0: the right one */
	uint32_t error;	     /* on the wire, instead of an answer */
	uint32_t late_error; /* after an answer */
	uint32_t min_block;
	uint64_t shift; /* pieces begin so much earlier */
	unsigned delay_ms;
	bool all_zero;
	bool stall;	   /* no answer at all */
	bool empty_extent; /* the first one has length 0 */
	bool no_extents;   /* an answer without any */
	bool no_chunk;	   /* not even that */
	bool inverse;	   /* hole without zero, zero without hole */
};

static const struct mode modes[] = {
	{ .name = "right", .step = PIECE },
	{ .name = "split", .step = 512 },
	{ .name = "short", .step = PIECE, .limit = 1000 },
	{ .name = "long", .step = PIECE, .limit = 1000, .overshoot = 20000 },
	{ .name = "beyond", .step = PIECE, .overshoot = 0xff000000 },
	{ .name = "flags", .step = PIECE, .flags = 0xfffffffc },
	{ .name = "inverse", .step = PIECE, .inverse = true },
	{ .name = "unaligned", .step = 700, .min_block = 4096, .shift = 100 },
	{ .name = "blocks", .step = 65536, .min_block = 65536, .shift = 9000 },
	{ .name = "empty-extent", .step = PIECE, .empty_extent = true },
	{ .name = "no-extents", .step = PIECE, .no_extents = true },
	{ .name = "no-chunk", .step = PIECE, .no_chunk = true },
	{ .name = "other-context", .step = PIECE, .id = 99 },
	{ .name = "eio", .error = 5 },
	{ .name = "einval", .error = 22 },
	{ .name = "enotsup", .error = 95 },
	{ .name = "eoverflow", .error = 75 },
	{ .name = "unknown-error", .error = 12345 },
	{ .name = "late-eio", .step = PIECE, .limit = 100000, .late_error = 5 },
	{ .name = "slow",
	  .step = 8192,
	  .limit = 8192,
	  .delay_ms = 300,
	  .all_zero = true },
	{ .name = "stalls", .stall = true },
};

static const struct mode *mode;

/* ----------------------------------------------------------------- wire */

static void hang_up(int fd)
{
	close(fd);
	pthread_exit(NULL);
}

static void give(int fd, const void *data, size_t len)
{
	const char *p = data;

	while (len > 0) {
		ssize_t n = send(fd, p, len, MSG_NOSIGNAL);

		if (n <= 0)
			hang_up(fd);
		p += n;
		len -= (size_t)n;
	}
}

static void take(int fd, void *data, size_t len)
{
	char *p = data;

	while (len > 0) {
		ssize_t n = recv(fd, p, len, 0);

		if (n <= 0)
			hang_up(fd);
		p += n;
		len -= (size_t)n;
	}
}

static void give_u16(int fd, uint16_t v)
{
	v = htobe16(v);
	give(fd, &v, sizeof(v));
}

static void give_u32(int fd, uint32_t v)
{
	v = htobe32(v);
	give(fd, &v, sizeof(v));
}

static void give_u64(int fd, uint64_t v)
{
	v = htobe64(v);
	give(fd, &v, sizeof(v));
}

static uint32_t take_u32(int fd)
{
	uint32_t v;

	take(fd, &v, sizeof(v));
	return be32toh(v);
}

static uint64_t take_u64(int fd)
{
	uint64_t v;

	take(fd, &v, sizeof(v));
	return be64toh(v);
}

/* -------------------------------------------------------------- options */

static void reply(int fd, uint32_t option, uint32_t type, uint32_t len)
{
	give_u64(fd, REP_MAGIC);
	give_u32(fd, option);
	give_u32(fd, type);
	give_u32(fd, len);
}

static void tell(int fd, uint32_t option)
{
	reply(fd, option, REP_INFO, 12);
	give_u16(fd, 0);
	give_u64(fd, SIZE);
	/* read-only, and several connections may be opened */
	give_u16(fd, 1 | 1 << 1 | 1 << 8);
	if (mode->min_block) {
		reply(fd, option, REP_INFO, 14);
		give_u16(fd, 3);
		give_u32(fd, mode->min_block);
		give_u32(fd, mode->min_block);
		give_u32(fd, 1 << 20);
	}
	reply(fd, option, REP_ACK, 0);
}

static void offer_context(int fd, uint32_t option)
{
	static const char name[] = "base:allocation";

	reply(fd, option, REP_META, 4 + sizeof(name) - 1);
	give_u32(fd, ALLOCATION);
	give(fd, name, sizeof(name) - 1);
	reply(fd, option, REP_ACK, 0);
}

static void negotiate(int fd)
{
	char data[4096];
	uint32_t option, len;

	give(fd, "NBDMAGIC", 8);
	give_u64(fd, OPT_MAGIC);
	give_u16(fd, 3);
	take_u32(fd);
	do {
		if (take_u64(fd) != OPT_MAGIC)
			hang_up(fd);
		option = take_u32(fd);
		len = take_u32(fd);
		if (len > sizeof(data))
			hang_up(fd);
		take(fd, data, len);
		if (option == OPT_SR)
			reply(fd, option, REP_ACK, 0);
		else if (option == OPT_SET_META || option == OPT_LIST_META)
			offer_context(fd, option);
		else if (option == OPT_INFO || option == OPT_GO)
			tell(fd, option);
		else if (option == OPT_ABORT)
			hang_up(fd);
		else
			reply(fd, option, REP_ERR_UNSUP, 0);
	} while (option != OPT_GO);
}

/* -------------------------------------------------------------- requests */

static void chunk(const struct question *q, bool last, uint16_t type,
		  uint32_t len)
{
	give_u32(q->fd, REPLY_MAGIC);
	give_u16(q->fd, last);
	give_u16(q->fd, type);
	give_u64(q->fd, q->cookie);
	give_u32(q->fd, len);
}

static void chunk_error(const struct question *q, uint32_t error)
{
	chunk(q, true, CHUNK_ERROR, 6);
	give_u32(q->fd, error);
	give_u16(q->fd, 0);
}

static bool is_data(uint64_t pos)
{
	return !mode->all_zero && (pos + mode->shift) / PIECE % 2 == 0;
}

/* The end of the piece that pos is in. */
static uint64_t piece_end(uint64_t pos)
{
	return ((pos + mode->shift) / PIECE + 1) * PIECE - mode->shift;
}

static uint32_t state(uint64_t pos)
{
	if (is_data(pos))
		return mode->inverse ? STATE_HOLE : STATE_DATA;
	return mode->inverse ? STATE_ZERO : STATE_HOLE | STATE_ZERO;
}

static void do_read(const struct question *q)
{
	static __thread uint8_t data[1 << 16];

	chunk(q, true, CHUNK_DATA, (uint32_t)(8 + q->len));
	give_u64(q->fd, q->offset);
	for (uint64_t done = 0; done < q->len;) {
		uint64_t n = q->len - done;

		if (n > sizeof(data))
			n = sizeof(data);
		for (uint64_t i = 0; i < n; i++) {
			uint64_t pos = q->offset + done + i;

			data[i] = is_data(pos) ? (uint8_t)(pos % 251 + 1) : 0;
		}
		give(q->fd, data, n);
		done += n;
	}
}

/* Lengths and flags of the extents of an answer; how many. */
static size_t extents(const struct question *q, uint32_t (*out)[2])
{
	uint64_t pos = q->offset, end = pos + q->len;
	size_t n = 0;

	if (mode->limit && q->len > mode->limit)
		end = pos + mode->limit;
	if (mode->empty_extent) {
		out[n][0] = 0;
		out[n++][1] = STATE_HOLE | STATE_ZERO;
	}
	while (pos < end && n < MAX_EXTENTS) {
		uint64_t stop = piece_end(pos);

		if (stop > (pos / mode->step + 1) * mode->step)
			stop = (pos / mode->step + 1) * mode->step;
		if (stop > end)
			stop = end;
		out[n][0] = (uint32_t)(stop - pos);
		out[n++][1] = state(pos) | mode->flags;
		pos = stop;
	}
	/* As far as it is true, except behind the end. */
	if (n > 0 && mode->overshoot) {
		uint64_t more = piece_end(pos - 1) - pos;

		if (more > mode->overshoot || pos == SIZE)
			more = mode->overshoot;
		out[n - 1][0] += (uint32_t)more;
	}
	return n;
}

static void do_status(const struct question *q)
{
	static __thread uint32_t list[MAX_EXTENTS][2];
	struct timespec wait = { .tv_nsec = mode->delay_ms * 1000000L };
	size_t n = 0;

	if (mode->stall)
		return;
	nanosleep(&wait, NULL);
	if (mode->error) {
		chunk_error(q, mode->error);
		return;
	}
	if (mode->no_chunk) {
		chunk(q, true, CHUNK_NONE, 0);
		return;
	}
	if (!mode->no_extents)
		n = extents(q, list);
	chunk(q, !mode->late_error, CHUNK_STATUS, (uint32_t)(4 + n * 8));
	give_u32(q->fd, mode->id ? mode->id : ALLOCATION);
	for (size_t i = 0; i < n; i++) {
		give_u32(q->fd, list[i][0]);
		give_u32(q->fd, list[i][1]);
	}
	if (mode->late_error)
		chunk_error(q, mode->late_error);
}

static void serve_request(int fd)
{
	struct question q = { .fd = fd };
	uint32_t word;

	if (take_u32(fd) != REQUEST_MAGIC)
		hang_up(fd);
	word = take_u32(fd) & 0xffff;
	q.cookie = take_u64(fd);
	q.offset = take_u64(fd);
	q.len = take_u32(fd);
	if (word == CMD_DISC)
		hang_up(fd);
	if (q.offset > SIZE || q.len > SIZE - q.offset || q.len == 0) {
		if (word == CMD_READ || word == CMD_STATUS)
			hang_up(fd); /* a client that asks so is wrong */
	}
	if (word == CMD_READ)
		do_read(&q);
	else if (word == CMD_STATUS)
		do_status(&q);
	else if (word == CMD_FLUSH)
		chunk(&q, true, CHUNK_NONE, 0);
	else
		chunk_error(&q, EPERM);
}

static void *serve(void *arg)
{
	int fd = (int)(intptr_t)arg;

	negotiate(fd);
	for (;;)
		serve_request(fd);
	return NULL;
}

/* ----------------------------------------------------------------- start */

static int listen_at(const char *path)
{
	struct sockaddr_un un = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0 || strlen(path) >= sizeof(un.sun_path))
		return -1;
	memcpy(un.sun_path, path, strlen(path));
	if (bind(fd, (struct sockaddr *)&un, sizeof(un)) < 0 ||
	    listen(fd, 64) < 0)
		return -1;
	return fd;
}

int main(int argc, char **argv)
{
	int fd;

	for (size_t i = 0; argc == 3 && i < sizeof(modes) / sizeof(*modes); i++)
		if (strcmp(argv[2], modes[i].name) == 0)
			mode = &modes[i];
	if (!mode) {
		fprintf(stderr, "usage: oddextents SOCKET MODE\n");
		return 2;
	}
	fd = listen_at(argv[1]);
	if (fd < 0) {
		perror(argv[1]);
		return 1;
	}
	signal(SIGPIPE, SIG_IGN);
	puts("ready");
	fflush(stdout);
	for (;;) {
		pthread_t thread;
		int c = accept(fd, NULL, NULL);

		if (c < 0)
			continue;
		if (pthread_create(&thread, NULL, serve, (void *)(intptr_t)c) ==
		    0)
			pthread_detach(thread);
		else
			close(c);
	}
}
