/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Evil answers to any command, and to those that write. */
#include <poll.h>

#include "evil.h"

void cmd_silent(struct conn *c, const struct request *r)
{
	if (r->type == CMD_WRITE)
		skip(c, r->len);
}

void cmd_close(struct conn *c, const struct request *r)
{
	(void)r;
	hang_up(c);
}

void cmd_error(struct conn *c, const struct request *r)
{
	if (r->type == CMD_WRITE)
		skip(c, r->len);
	fail(c, r, c->e->arg);
}

static void cmd_bad_magic(struct conn *c, const struct request *r)
{
	if (r->type == CMD_WRITE)
		skip(c, r->len);
	put_be(c, "4 4 8", (uint32_t)0xdeadbeef, (uint32_t)0, r->cookie);
	stall(c);
}

static void cmd_unknown_cookie(struct conn *c, const struct request *r)
{
	struct request other = *r;

	if (r->type == CMD_WRITE)
		skip(c, r->len);
	other.cookie ^= 0x5555;
	put_be(c, "4 4 8", (uint32_t)SIMPLE_MAGIC, (uint32_t)0, other.cookie);
	stall(c);
}

static void cmd_twice(struct conn *c, const struct request *r)
{
	good(c, r);
	if (r->type == CMD_READ)
		good_read(c, r);
	else
		fail(c, r, 0);
}

static void cmd_garbage(struct conn *c, const struct request *r)
{
	(void)r;
	put_garbage(c, 100000);
	hang_up(c);
}

static void write_half(struct conn *c, const struct request *r)
{
	skip(c, r->len / 2);
	hang_up(c);
}

static void write_early(struct conn *c, const struct request *r)
{
	fail(c, r, 0);
	flush_out(c);
	skip(c, r->len);
}

/* Takes nothing of the payload. */
static void write_stall(struct conn *c, const struct request *r)
{
	struct pollfd p = { .fd = c->fd, .events = POLLRDHUP };

	(void)r;
	flush_out(c);
	poll(&p, 1, -1);
	hang_up(c);
}

static void write_with_data(struct conn *c, const struct request *r)
{
	skip(c, r->len);
	data_chunk(c, r, DONE, r->offset, 512);
}

const struct evil evil_commands[] = {
	{ .name = "silent", .cmd = CMD_ANY, .command = cmd_silent },
	{ .name = "close", .cmd = CMD_ANY, .command = cmd_close },
	{ .name = "bad-magic", .cmd = CMD_ANY, .command = cmd_bad_magic },
	{ .name = "unknown-cookie",
	  .cmd = CMD_ANY,
	  .command = cmd_unknown_cookie },
	{ .name = "twice", .cmd = CMD_ANY, .command = cmd_twice },
	{ .name = "garbage", .cmd = CMD_ANY, .command = cmd_garbage },
	ERRNO("shutdown", CMD_ANY, 108),
	{ .name = "write-silent", .cmd = CMD_WRITE, .command = cmd_silent },
	{ .name = "write-half", .cmd = CMD_WRITE, .command = write_half },
	{ .name = "write-early", .cmd = CMD_WRITE, .command = write_early },
	{ .name = "write-stall", .cmd = CMD_WRITE, .command = write_stall },
	{ .name = "write-with-data",
	  .cmd = CMD_WRITE,
	  .command = write_with_data },
	ERRNO("write-errno-perm", CMD_WRITE, 1),
	ERRNO("write-errno-io", CMD_WRITE, 5),
	ERRNO("write-errno-inval", CMD_WRITE, 22),
	ERRNO("write-errno-nospc", CMD_WRITE, 28),
	ERRNO("write-errno-overflow", CMD_WRITE, 75),
	ERRNO("write-errno-notsup", CMD_WRITE, 95),
	ERRNO("write-errno-unknown", CMD_WRITE, 4242),
	{ .name = "flush-silent", .cmd = CMD_FLUSH, .command = cmd_silent },
	ERRNO("flush-errno-io", CMD_FLUSH, 5),
	ERRNO("flush-errno-inval", CMD_FLUSH, 22),
	{ .name = "zero-silent", .cmd = CMD_ZERO, .command = cmd_silent },
	{ .name = "zero-close", .cmd = CMD_ZERO, .command = cmd_close },
	ERRNO("zero-errno-io", CMD_ZERO, 5),
	ERRNO("zero-errno-inval", CMD_ZERO, 22),
	ERRNO("zero-errno-overflow", CMD_ZERO, 75),
	ERRNO("zero-errno-notsup", CMD_ZERO, 95),
	{ .name = NULL },
};
