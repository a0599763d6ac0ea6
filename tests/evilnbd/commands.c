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

void cmd_too_long(struct conn *c, const struct request *r)
{
	if (r->len <= c->e->arg) {
		good(c, r);
		return;
	}
	if (r->type == CMD_WRITE)
		skip(c, r->len);
	fail(c, r, 75);
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
	{ .name = "flush-silent", .cmd = CMD_FLUSH, .command = cmd_silent },
	{ .name = "zero-silent", .cmd = CMD_ZERO, .command = cmd_silent },
	{ .name = "zero-close", .cmd = CMD_ZERO, .command = cmd_close },
	ERRNOS("write", CMD_WRITE),
	{ .name = "write-too-long",
	  .cmd = CMD_WRITE,
	  .command = cmd_too_long,
	  .arg = 16384 },
	ERRNOS("flush", CMD_FLUSH),
	ERRNOS("zero", CMD_ZERO),
	{ .name = "zero-too-long",
	  .cmd = CMD_ZERO,
	  .command = cmd_too_long,
	  .arg = 16384 },
	{ .name = NULL },
};
