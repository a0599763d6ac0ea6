/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * evil.h - NBD servers that break the protocol: scenarios, and what they are
 * made of.
 *
 * Threads    One for each connection; scenarios are constant.
 * Errors     A connection that ends ends its thread: put() and its like do
 *            not return then.
 */
#ifndef EVIL_H
#define EVIL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))
#define DISK ((uint64_t)1 << 20)
#define PAYLOAD_MAX ((uint32_t)32 << 20)

#define OPT_MAGIC 0x49484156454f5054
#define REP_MAGIC 0x0003e889045565a9
#define REQUEST_MAGIC 0x25609513
#define SIMPLE_MAGIC 0x67446698
#define CHUNK_MAGIC 0x668e33ef

enum {
	OPT_EXPORT_NAME = 1,
	OPT_ABORT = 2,
	OPT_LIST = 3,
	OPT_STARTTLS = 5,
	OPT_INFO = 6,
	OPT_GO = 7,
	OPT_SR = 8,
	OPT_LIST_CONTEXT = 9,
	OPT_SET_CONTEXT = 10,
	OPT_ANY = 0xffff,
};
enum { REP_ACK = 1, REP_SERVER = 2, REP_INFO = 3, REP_CONTEXT = 4 };
#define REP_ERR_UNSUP 0x80000001
enum { INFO_EXPORT, INFO_NAME, INFO_DESCRIPTION, INFO_BLOCKS };
enum { CMD_READ, CMD_WRITE, CMD_DISC, CMD_FLUSH, CMD_TRIM };
enum { CMD_ZERO = 6, CMD_STATUS = 7, CMD_ANY = 0xffff };
enum { CHUNK_NONE, CHUNK_DATA, CHUNK_HOLE, CHUNK_STATUS = 5 };
enum { CHUNK_ERROR = 0x8001, CHUNK_ERROR_OFFSET = 0x8002 };
#define DONE 1
#define CONTEXT_ID ((uint32_t)0x1234)
#define HOLE_ZERO ((uint32_t)3)
#define ALLOCATED ((uint32_t)0)

/* has flags, flush, fua, trim, write zeroes */
#define FLAGS 0x006d
#define FLAG_READ_ONLY 0x0002
#define FLAG_MULTI_CONN 0x0100

struct conn;

struct request {
	uint16_t flags, type;
	uint64_t cookie, offset;
	uint32_t len;
};

struct evil {
	const char *name;
	/* Instead of greeting; of answering option `opt`; of answering
	 * command `cmd`. Answers that hang up do not come back. */
	void (*greet)(struct conn *c);
	uint32_t opt;
	void (*option)(struct conn *c, uint32_t opt);
	uint16_t cmd;
	void (*command)(struct conn *c, const struct request *r);
	/* other than usual; 0: as usual */
	uint64_t size;
	uint32_t min, preferred, max;
	uint16_t flags;
	uint32_t arg; /* for the functions above */
	bool simple;  /* refuses structured replies */
};

/* One socket. */
struct inst {
	const struct evil *evil;
	atomic_int left; /* how often it is evil still */
	int listener;
	uint8_t *disk;
	pthread_mutex_t lock; /* of the disk */
};

struct conn {
	struct inst *inst;
	const struct evil *e;
	int fd;
	bool structured;
	uint64_t size;
	size_t nout;
	uint8_t out[1 << 16];
};

/* wire.c. Numbers are big-endian, n bytes each. */
void put(struct conn *c, const void *data, size_t len);
/* put_be(c, "4 8 2", x, y, z): numbers of so many bytes. */
void put_be(struct conn *c, const char *sizes, ...);
void put_garbage(struct conn *c, size_t len);
void flush_out(struct conn *c);
void get(struct conn *c, void *data, size_t len);
uint64_t get_be(struct conn *c, size_t n);
void skip(struct conn *c, uint64_t len);
/* The end of the connection: at once; when the other side has hung up; byte by
 * byte, what was put and then zeroes. */
void hang_up(struct conn *c);
void stall(struct conn *c);
void drip(struct conn *c);
/* True as often as the scenario is to be seen. */
bool be_evil(struct conn *c);

/* handshake.c: until transmission begins */
extern const struct evil evil_handshake[];
/* tls.c: servers for nbds+unix URIs, whose names begin with "tls-" */
extern const struct evil evil_tls[];
void negotiate(struct conn *c);

/* answers.c: what a good server says, and pieces of it */
void good(struct conn *c, const struct request *r);
void good_read(struct conn *c, const struct request *r);
void good_status(struct conn *c, const struct request *r);
void fail(struct conn *c, const struct request *r, uint32_t error);
void chunk(struct conn *c, const struct request *r, unsigned flags,
	   unsigned type, uint32_t len);
void put_disk(struct conn *c, uint64_t offset, uint32_t len);
void data_chunk(struct conn *c, const struct request *r, unsigned flags,
		uint64_t offset, uint32_t len);
/* n times a length and flags follow. */
void status_chunk(struct conn *c, const struct request *r, unsigned flags,
		  uint32_t id, uint32_t n, ...);

/* commands.c, reads.c, status.c; each ends with a name of NULL */
extern const struct evil evil_commands[], evil_reads[], evil_status[];
void cmd_silent(struct conn *c, const struct request *r);
void cmd_close(struct conn *c, const struct request *r);
void cmd_error(struct conn *c, const struct request *r);
/* EOVERFLOW, where the length is above `arg`. */
void cmd_too_long(struct conn *c, const struct request *r);

#define ERRNO(what, command_, number)                                \
	{                                                            \
		.name = what, .cmd = command_, .command = cmd_error, \
		.arg = number                                        \
	}

/* Every number that the protocol knows, and one that it does not. */
#define ERRNOS(what, command_)                                \
	ERRNO(what "-errno-perm", command_, 1),               \
		ERRNO(what "-errno-io", command_, 5),         \
		ERRNO(what "-errno-nomem", command_, 12),     \
		ERRNO(what "-errno-inval", command_, 22),     \
		ERRNO(what "-errno-nospc", command_, 28),     \
		ERRNO(what "-errno-overflow", command_, 75),  \
		ERRNO(what "-errno-notsup", command_, 95),    \
		ERRNO(what "-errno-shutdown", command_, 108), \
		ERRNO(what "-errno-unknown", command_, 4242)

#endif
