/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * badserver: an NBD server that lies, stalls and never ends.
 *
 *	badserver SOCKET|PORT MODE
 *
 * SOCKET is the path of a unix socket, PORT one of 127.0.0.1. Prints "ready".
 * The modes stand in the table below. What a mode does not touch is done as
 * the protocol wants it: fixed newstyle, structured replies, exports of 1 MiB
 * of zeroes.
 */
#include <arpa/inet.h>
#include <endian.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define OPT_MAGIC 0x49484156454f5054
#define REP_MAGIC 0x0003e889045565a9
#define REQUEST_MAGIC 0x25609513
#define REPLY_MAGIC 0x67446698

enum { OPT_ABORT = 2, OPT_LIST = 3, OPT_INFO = 6, OPT_GO = 7, OPT_SR = 8 };
enum { REP_ACK = 1, REP_SERVER = 2, REP_INFO = 3 };
#define REP_ERR_UNSUP 0x80000001
#define REP_ERR_POLICY 0x80000002
#define REP_ERR_UNKNOWN 0x80000006

struct mode {
	const char *name;
	/* Does something else than greeting, listing, telling. */
	void (*greet)(int fd);
	void (*list)(int fd);
	void (*info)(int fd, uint32_t option, const char *name);
	const char *names; /* what is listed; "|" between them */
	uint64_t size;
	bool info_size_0;
	bool one_question; /* hangs up after an answer that refuses */
};

static const struct mode *mode;

/* ----------------------------------------------------------------- wire */

/* Sent when full, or before waiting: a server that never ends must be faster
 * than its client. */
static __thread char out[1 << 12];
static __thread size_t nout;

static void flush(int fd)
{
	size_t done = 0;

	while (done < nout) {
		ssize_t n = send(fd, out + done, nout - done, MSG_NOSIGNAL);

		if (n <= 0)
			break;
		done += (size_t)n;
	}
	if (done < nout) {
		close(fd);
		pthread_exit(NULL);
	}
	nout = 0;
}

static void hang_up(int fd)
{
	flush(fd);
	close(fd);
	pthread_exit(NULL);
}

static void put(int fd, const void *data, size_t len)
{
	const char *p = data;

	while (len > 0) {
		size_t n = sizeof(out) - nout;

		if (n > len)
			n = len;
		memcpy(out + nout, p, n);
		nout += n;
		p += n;
		len -= n;
		if (nout == sizeof(out))
			flush(fd);
	}
}

static void get(int fd, void *data, size_t len)
{
	char *p = data;

	flush(fd);
	while (len > 0) {
		ssize_t n = recv(fd, p, len, 0);

		if (n <= 0)
			hang_up(fd);
		p += n;
		len -= (size_t)n;
	}
}

static void put16(int fd, uint16_t x)
{
	x = htobe16(x);
	put(fd, &x, sizeof(x));
}

static void put32(int fd, uint32_t x)
{
	x = htobe32(x);
	put(fd, &x, sizeof(x));
}

static void put64(int fd, uint64_t x)
{
	x = htobe64(x);
	put(fd, &x, sizeof(x));
}

static uint32_t get32(int fd)
{
	uint32_t x;

	get(fd, &x, sizeof(x));
	return be32toh(x);
}

static uint64_t get64(int fd)
{
	uint64_t x;

	get(fd, &x, sizeof(x));
	return be64toh(x);
}

static void put_reply(int fd, uint32_t option, uint32_t type, uint32_t len)
{
	put64(fd, REP_MAGIC);
	put32(fd, option);
	put32(fd, type);
	put32(fd, len);
}

static void put_name(int fd, const char *name, size_t len, const char *text)
{
	put_reply(fd, OPT_LIST, REP_SERVER, (uint32_t)(4 + len + strlen(text)));
	put32(fd, (uint32_t)len);
	put(fd, name, len);
	put(fd, text, strlen(text));
}

static void stall(int fd)
{
	char c;

	flush(fd);
	while (recv(fd, &c, 1, 0) > 0)
		;
	hang_up(fd);
}

/* ---------------------------------------------------------------- modes */

static void greet_garbage(int fd)
{
	static const char text[] = "HTTP/1.1 400 go away\r\n\r\n";

	for (int i = 0; i < 1000; i++)
		put(fd, text, sizeof(text));
	hang_up(fd);
}

static void greet_close(int fd)
{
	hang_up(fd);
}

static void greet_drip(int fd)
{
	static const char text[] = "NBDMAGICIHAVEOPT";

	for (size_t i = 0; i < sizeof(text); i++) {
		put(fd, text + i, 1);
		flush(fd);
		usleep(300000);
	}
	stall(fd);
}

static void list_endless(int fd)
{
	char name[32];

	for (unsigned i = 0;; i++)
		put_name(fd, name,
			 (size_t)snprintf(name, sizeof(name), "%08u", i), "");
}

static void list_same(int fd)
{
	while (1)
		put_name(fd, "x", 1, "");
}

static void list_huge_names(int fd)
{
	static char name[4001], text[4001];

	memset(text, 'd', sizeof(text) - 1);
	for (unsigned i = 0;; i++) {
		memset(name, 'n', sizeof(name) - 1);
		snprintf(name, sizeof(name), "%08u", i);
		name[8] = 'n';
		put_name(fd, name, 4000, text);
	}
}

static void list_half(int fd)
{
	put_name(fd, "a", 1, "");
	put_name(fd, "b", 1, "");
	hang_up(fd);
}

static void list_too_long(int fd)
{
	static char name[90001];

	memset(name, 'n', sizeof(name) - 1);
	put_name(fd, name, 90000, "");
	put_name(fd, "a", 1, "");
	put_name(fd, "b", 1, "");
	put_reply(fd, OPT_LIST, REP_ACK, 0);
}

static void list_refused(int fd)
{
	put_reply(fd, OPT_LIST, REP_ERR_POLICY, 0);
	if (mode->one_question)
		hang_up(fd);
}

static void list_close(int fd)
{
	hang_up(fd);
}

static void info_endless(int fd, uint32_t option, const char *name)
{
	(void)name;
	while (1) {
		put_reply(fd, option, REP_INFO, 4);
		put16(fd, 1);
		put16(fd, 0x7878);
	}
}

static void info_stall(int fd, uint32_t option, const char *name)
{
	(void)option;
	(void)name;
	stall(fd);
}

static void tell(int fd, uint32_t option)
{
	uint64_t size = mode->size ? mode->size : 1 << 20;

	if (option == OPT_INFO && mode->info_size_0)
		size = 0;
	put_reply(fd, option, REP_INFO, 12);
	put16(fd, 0);
	put64(fd, size);
	put16(fd, 1);
	put_reply(fd, option, REP_ACK, 0);
}

static void info_b_stalls(int fd, uint32_t option, const char *name)
{
	if (strcmp(name, "b") == 0)
		stall(fd);
	tell(fd, option);
}

static void info_refused(int fd, uint32_t option, const char *name)
{
	static const char text[] = "\033[31mno\nway";

	(void)name;
	put_reply(fd, option, REP_ERR_POLICY, sizeof(text) - 1);
	put(fd, text, sizeof(text) - 1);
	if (mode->one_question)
		hang_up(fd);
}

static void info_close(int fd, uint32_t option, const char *name)
{
	if (option == OPT_INFO || strcmp(name, "b") == 0)
		hang_up(fd);
	tell(fd, option);
}

/* A few answers for each connection, and no transmission. */
static void info_few(int fd, uint32_t option, const char *name)
{
	static __thread unsigned asked;

	if (option == OPT_GO)
		info_refused(fd, option, name);
	else if (++asked > 3)
		hang_up(fd);
	else
		tell(fd, option);
}

static const struct mode modes[] = {
	{ .name = "good", .names = "a|b" },
	{ .name = "one", .names = "one" },
	{ .name = "none", .names = NULL },
	{ .name = "hostile-names",
	  .names = "|.|..|../x|c\nd\033[31m|a|a|\xff\xfe" },
	{ .name = "silent", .greet = stall },
	{ .name = "garbage", .greet = greet_garbage },
	{ .name = "close", .greet = greet_close },
	{ .name = "drip", .greet = greet_drip },
	{ .name = "list-endless", .list = list_endless },
	{ .name = "list-same", .list = list_same },
	{ .name = "list-huge-names", .list = list_huge_names },
	{ .name = "list-half", .list = list_half },
	{ .name = "list-too-long", .list = list_too_long },
	{ .name = "list-refused", .list = list_refused },
	{ .name = "list-close", .list = list_close },
	{ .name = "all-refused", .list = list_refused, .info = info_refused },
	{ .name = "one-question",
	  .list = list_refused,
	  .info = info_refused,
	  .one_question = true },
	{ .name = "info-endless", .names = "a|b", .info = info_endless },
	{ .name = "info-stalls", .names = "a|b", .info = info_stall },
	{ .name = "info-b-stalls", .names = "a|b|c|d", .info = info_b_stalls },
	{ .name = "info-refused", .names = "a|b", .info = info_refused },
	{ .name = "info-few", .names = "a|b|c|d|e|f|g|h", .info = info_few },
	{ .name = "info-close", .names = "a|b|c", .info = info_close },
	{ .name = "info-size-0", .names = "a|b|c", .info_size_0 = true },
	{ .name = "too-large", .names = "a", .size = 1ULL << 63 },
	{ .name = "largest", .names = "a", .size = INT64_MAX },
};

/* --------------------------------------------------------------- serving */

static void list_names(int fd)
{
	const char *p = mode->names;

	while (p) {
		size_t n = strcspn(p, "|");

		put_name(fd, p, n, "text");
		p = p[n] ? p + n + 1 : NULL;
	}
	put_reply(fd, OPT_LIST, REP_ACK, 0);
}

static void transmission(int fd)
{
	static const char zeroes[1 << 16];

	while (1) {
		uint32_t magic = get32(fd), type = get32(fd) & 0xffff;
		uint64_t cookie = get64(fd);
		uint32_t len;

		get64(fd);
		len = get32(fd);
		if (magic != REQUEST_MAGIC || type != 0 || len > sizeof(zeroes))
			hang_up(fd);
		put32(fd, REPLY_MAGIC);
		put32(fd, 0);
		put64(fd, cookie);
		put(fd, zeroes, len);
	}
}

static bool is_listed(const char *name)
{
	const char *p = mode->names;

	while (p) {
		size_t n = strcspn(p, "|");

		if (n == strlen(name) && memcmp(p, name, n) == 0)
			return true;
		p = p[n] ? p + n + 1 : NULL;
	}
	return !mode->names;
}

static void answer(int fd, uint32_t option, const char *data)
{
	char name[4097] = "";
	uint32_t n;

	switch (option) {
	case OPT_LIST:
		(mode->list ? mode->list : list_names)(fd);
		break;
	case OPT_INFO:
	case OPT_GO:
		memcpy(&n, data, sizeof(n));
		n = be32toh(n);
		if (n >= sizeof(name))
			hang_up(fd);
		memcpy(name, data + 4, n);
		if (!is_listed(name)) {
			put_reply(fd, option, REP_ERR_UNKNOWN, 0);
			break;
		}
		if (mode->info)
			mode->info(fd, option, name);
		else
			tell(fd, option);
		if (option == OPT_GO && mode->info != info_refused &&
		    mode->info != info_few)
			transmission(fd);
		break;
	case OPT_ABORT:
		put_reply(fd, option, REP_ACK, 0);
		hang_up(fd);
		break;
	default:
		put_reply(fd, option, REP_ERR_UNSUP, 0);
	}
}

static void *serve(void *arg)
{
	int fd = (int)(intptr_t)arg;
	char data[5000];

	if (mode->greet)
		mode->greet(fd);
	put(fd, "NBDMAGICIHAVEOPT\0\3", 18);
	get32(fd);
	while (1) {
		uint32_t option, len;

		if (get64(fd) != OPT_MAGIC)
			hang_up(fd);
		option = get32(fd);
		len = get32(fd);
		if (len > sizeof(data))
			hang_up(fd);
		memset(data, 0, 8);
		get(fd, data, len);
		answer(fd, option, data);
	}
	return NULL;
}

static int listen_at(const char *where)
{
	struct sockaddr_un un = { .sun_family = AF_UNIX };
	struct sockaddr_in in = { .sin_family = AF_INET };
	unsigned long port = strtoul(where, NULL, 10);
	int fd, one = 1, r;

	if (port > 0) {
		fd = socket(AF_INET, SOCK_STREAM, 0);
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
		in.sin_port = htons((uint16_t)port);
		in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		r = bind(fd, (struct sockaddr *)&in, sizeof(in));
	} else {
		fd = socket(AF_UNIX, SOCK_STREAM, 0);
		snprintf(un.sun_path, sizeof(un.sun_path), "%s", where);
		r = bind(fd, (struct sockaddr *)&un, sizeof(un));
	}
	if (r < 0 || listen(fd, 64) < 0) {
		perror(where);
		exit(1);
	}
	return fd;
}

int main(int argc, char **argv)
{
	pthread_attr_t attr;
	pthread_t thread;
	int fd, client;

	for (size_t i = 0; argc == 3 && i < sizeof(modes) / sizeof(*modes); i++)
		if (strcmp(argv[2], modes[i].name) == 0)
			mode = &modes[i];
	if (!mode) {
		fprintf(stderr, "usage: badserver SOCKET|PORT MODE\n");
		return 2;
	}
	signal(SIGPIPE, SIG_IGN);
	fd = listen_at(argv[1]);
	printf("ready\n");
	fflush(stdout);
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	while ((client = accept(fd, NULL, NULL)) >= 0)
		if (pthread_create(&thread, &attr, serve,
				   (void *)(intptr_t)client) != 0)
			close(client);
	return 1;
}
