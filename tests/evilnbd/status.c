/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Evil answers to questions for block status. */
#include "evil.h"

/* Not to touch the data that reads as data: only what is false is a lie. */
static void status_zero_length(struct conn *c, const struct request *r)
{
	status_chunk(c, r, DONE, CONTEXT_ID, 2, (uint32_t)0, HOLE_ZERO, r->len,
		     ALLOCATED);
}

static void status_empty(struct conn *c, const struct request *r)
{
	chunk(c, r, DONE, CHUNK_STATUS, 4);
	put_be(c, "4", (uint32_t)CONTEXT_ID);
}

static void status_none(struct conn *c, const struct request *r)
{
	chunk(c, r, DONE, CHUNK_NONE, 0);
}

static void status_overlong(struct conn *c, const struct request *r)
{
	status_chunk(c, r, DONE, CONTEXT_ID, 3, 0xfffffe00, ALLOCATED,
		     0xfffffe00, HOLE_ZERO, 0xffffffff, HOLE_ZERO);
}

static void status_unknown_id(struct conn *c, const struct request *r)
{
	status_chunk(c, r, 0, CONTEXT_ID + 1, 1, r->len, HOLE_ZERO);
	good_status(c, r);
}

static void status_only_unknown_id(struct conn *c, const struct request *r)
{
	status_chunk(c, r, DONE, CONTEXT_ID + 1, 1, r->len, HOLE_ZERO);
}

static void status_twice(struct conn *c, const struct request *r)
{
	status_chunk(c, r, 0, CONTEXT_ID, 1, r->len, ALLOCATED);
	status_chunk(c, r, DONE, CONTEXT_ID, 1, r->len, HOLE_ZERO);
}

/* Chunk by chunk over the end of what was asked for. */
static void status_flood(struct conn *c, const struct request *r)
{
	while (1)
		status_chunk(c, r, 0, CONTEXT_ID, 1, (uint32_t)512, ALLOCATED);
}

static void status_odd_length(struct conn *c, const struct request *r)
{
	chunk(c, r, DONE, CHUNK_STATUS, 4 + 8 + 5);
	put_be(c, "4 4 4", (uint32_t)CONTEXT_ID, r->len, HOLE_ZERO);
	put(c, "12345", 5);
}

static void status_huge(struct conn *c, const struct request *r)
{
	chunk(c, r, DONE, CHUNK_STATUS, 0xfffffffc);
	put_be(c, "4", (uint32_t)CONTEXT_ID);
	put_garbage(c, 1 << 20);
	stall(c);
}

/* HOLE alone promises nothing about the contents; nor do unknown bits. */
static void status_flags(struct conn *c, const struct request *r)
{
	status_chunk(c, r, DONE, CONTEXT_ID, 1, r->len, c->e->arg);
}

/* Never more than this many bytes at a time. */
static void status_tiny(struct conn *c, const struct request *r)
{
	uint32_t n = c->e->arg;
	bool is_data = r->offset < DISK / 2;

	status_chunk(c, r, DONE, CONTEXT_ID, 1, n,
		     is_data ? ALLOCATED : HOLE_ZERO);
}

/* As many extents as a reply may have. */
static void status_many(struct conn *c, const struct request *r)
{
	uint32_t n = c->e->arg;

	chunk(c, r, DONE, CHUNK_STATUS, 4 + 8 * n);
	put_be(c, "4", CONTEXT_ID);
	for (uint32_t i = 0; i < n; i++) {
		uint64_t start = r->offset + 512 * (uint64_t)i;
		bool hole = start >= DISK / 2 && i % 2;

		put_be(c, "4 4", (uint32_t)512, hole ? HOLE_ZERO : ALLOCATED);
	}
}

static void status_data_chunk(struct conn *c, const struct request *r)
{
	data_chunk(c, r, 0, r->offset, 512);
	good_status(c, r);
}

#define HUGE_SIZE ((uint64_t)1 << 62)

const struct evil evil_status[] = {
	{ .name = "status-zero-length",
	  .cmd = CMD_STATUS,
	  .command = status_zero_length },
	{ .name = "status-empty", .cmd = CMD_STATUS, .command = status_empty },
	{ .name = "status-none", .cmd = CMD_STATUS, .command = status_none },
	{ .name = "status-overlong",
	  .cmd = CMD_STATUS,
	  .command = status_overlong },
	{ .name = "status-unknown-id",
	  .cmd = CMD_STATUS,
	  .command = status_unknown_id },
	{ .name = "status-only-unknown-id",
	  .cmd = CMD_STATUS,
	  .command = status_only_unknown_id },
	{ .name = "status-twice", .cmd = CMD_STATUS, .command = status_twice },
	{ .name = "status-flood", .cmd = CMD_STATUS, .command = status_flood },
	{ .name = "status-odd-length",
	  .cmd = CMD_STATUS,
	  .command = status_odd_length },
	{ .name = "status-huge", .cmd = CMD_STATUS, .command = status_huge },
	{ .name = "status-data-chunk",
	  .cmd = CMD_STATUS,
	  .command = status_data_chunk },
	{ .name = "status-silent", .cmd = CMD_STATUS, .command = cmd_silent },
	{ .name = "status-close", .cmd = CMD_STATUS, .command = cmd_close },
	{ .name = "status-hole-only",
	  .cmd = CMD_STATUS,
	  .command = status_flags,
	  .arg = 1 },
	{ .name = "status-unknown-flags",
	  .cmd = CMD_STATUS,
	  .command = status_flags,
	  .arg = 0xfffffffd },
	{ .name = "status-tiny",
	  .cmd = CMD_STATUS,
	  .command = status_tiny,
	  .arg = 64 },
	{ .name = "status-512",
	  .cmd = CMD_STATUS,
	  .command = status_tiny,
	  .arg = 512 },
	{ .name = "status-unaligned",
	  .cmd = CMD_STATUS,
	  .command = status_tiny,
	  .arg = 1000,
	  .min = 4096,
	  .preferred = 4096,
	  .max = 1 << 20 },
	{ .name = "status-many",
	  .cmd = CMD_STATUS,
	  .command = status_many,
	  .arg = 1 << 16,
	  .size = HUGE_SIZE },
	ERRNOS("status", CMD_STATUS),
	{ .name = NULL },
};
