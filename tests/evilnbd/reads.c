/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Evil answers to reads. */
#include "evil.h"

static void read_short(struct conn *c, const struct request *r)
{
	data_chunk(c, r, DONE, r->offset, r->len / 2);
}

static void read_none(struct conn *c, const struct request *r)
{
	chunk(c, r, DONE, CHUNK_NONE, 0);
}

static void read_overlap(struct conn *c, const struct request *r)
{
	data_chunk(c, r, 0, r->offset, r->len);
	data_chunk(c, r, DONE, r->offset + r->len / 4, r->len / 2);
}

/* As many bytes as were asked for, but some twice and others not at all. */
static void read_half_twice(struct conn *c, const struct request *r)
{
	data_chunk(c, r, 0, r->offset, r->len / 2);
	data_chunk(c, r, DONE, r->offset, r->len - r->len / 2);
}

static void read_outside(struct conn *c, const struct request *r)
{
	data_chunk(c, r, DONE, r->offset + 512, r->len);
}

static void read_before(struct conn *c, const struct request *r)
{
	data_chunk(c, r, DONE, r->offset - 4096, 4096);
}

static void read_hole_outside(struct conn *c, const struct request *r)
{
	data_chunk(c, r, 0, r->offset, r->len);
	chunk(c, r, DONE, CHUNK_HOLE, 12);
	put_be(c, "8 4", r->offset, 0xffffffff);
}

static void read_empty_hole(struct conn *c, const struct request *r)
{
	chunk(c, r, 0, CHUNK_HOLE, 12);
	put_be(c, "8 4", r->offset, (uint32_t)0);
	good_read(c, r);
}

static void read_short_chunk(struct conn *c, const struct request *r)
{
	chunk(c, r, DONE, CHUNK_DATA, 3);
	put(c, "abc", 3);
	stall(c);
}

static void read_huge_chunk(struct conn *c, const struct request *r)
{
	chunk(c, r, DONE, CHUNK_DATA, 0xffffffff);
	put_be(c, "8", r->offset);
	put_garbage(c, 1 << 20);
	stall(c);
}

static void read_error_after(struct conn *c, const struct request *r)
{
	data_chunk(c, r, 0, r->offset, r->len);
	fail(c, r, 5);
}

static void read_error_offset(struct conn *c, const struct request *r)
{
	chunk(c, r, DONE, CHUNK_ERROR_OFFSET, 14);
	put_be(c, "4 2 8", (uint32_t)5, (uint32_t)0, UINT64_MAX - 5);
}

static void read_error_zero(struct conn *c, const struct request *r)
{
	chunk(c, r, DONE, CHUNK_ERROR, 6);
	put_be(c, "4 2", (uint32_t)0, (uint32_t)0);
}

/* The message is said to be longer than the chunk. */
static void read_error_text(struct conn *c, const struct request *r)
{
	chunk(c, r, DONE, CHUNK_ERROR, 10);
	put_be(c, "4 2 4", (uint32_t)5, (uint32_t)60000, (uint32_t)0x41414141);
}

static void read_error_long_text(struct conn *c, const struct request *r)
{
	chunk(c, r, DONE, CHUNK_ERROR, 6 + 60000);
	put_be(c, "4 2", (uint32_t)5, (uint32_t)60000);
	put_garbage(c, 60000);
}

static void read_unknown_chunk(struct conn *c, const struct request *r)
{
	chunk(c, r, 0, c->e->arg, 100);
	put_garbage(c, 100);
	good_read(c, r);
}

static void read_status_chunk(struct conn *c, const struct request *r)
{
	status_chunk(c, r, 0, CONTEXT_ID, 1, r->len, HOLE_ZERO);
	good_read(c, r);
}

/* A simple reply, which is not allowed now. */
static void read_simple(struct conn *c, const struct request *r)
{
	put_be(c, "4 4 8", (uint32_t)SIMPLE_MAGIC, (uint32_t)0, r->cookie);
	put_disk(c, r->offset, r->len);
}

static void read_half_close(struct conn *c, const struct request *r)
{
	chunk(c, r, DONE, CHUNK_DATA, 8 + r->len);
	put_be(c, "8", r->offset);
	put_disk(c, r->offset, r->len / 2);
	hang_up(c);
}

static void read_half_stall(struct conn *c, const struct request *r)
{
	chunk(c, r, DONE, CHUNK_DATA, 8 + r->len);
	put_be(c, "8", r->offset);
	put_disk(c, r->offset, r->len / 2);
	stall(c);
}

static void read_drip(struct conn *c, const struct request *r)
{
	chunk(c, r, DONE, CHUNK_DATA, 8 + r->len);
	put_be(c, "8", r->offset);
	drip(c);
}

/* Chunks without end, none of which is wrong. */
static void read_flood(struct conn *c, const struct request *r)
{
	while (1) {
		chunk(c, r, 0, CHUNK_ERROR, 6);
		put_be(c, "4 2", (uint32_t)5, (uint32_t)0);
	}
}

static void read_flood_empty(struct conn *c, const struct request *r)
{
	while (1)
		chunk(c, r, 0, CHUNK_NONE, 0);
}

/* All is well, only unusual: last things first, some as holes. */
static void read_pieces(struct conn *c, const struct request *r)
{
	uint64_t end = r->offset + r->len, half = DISK / 2;

	while (end > r->offset) {
		uint64_t start = end - r->offset > 1000 ? end - 1000 :
							  r->offset;

		if (start >= half) {
			chunk(c, r, 0, CHUNK_HOLE, 12);
			put_be(c, "8 4", start, (uint32_t)(end - start));
		} else {
			data_chunk(c, r, 0, start, (uint32_t)(end - start));
		}
		end = start;
	}
	chunk(c, r, DONE, CHUNK_NONE, 0);
}

const struct evil evil_reads[] = {
	{ .name = "read-short", .cmd = CMD_READ, .command = read_short },
	{ .name = "read-none", .cmd = CMD_READ, .command = read_none },
	{ .name = "read-overlap", .cmd = CMD_READ, .command = read_overlap },
	{ .name = "read-half-twice",
	  .cmd = CMD_READ,
	  .command = read_half_twice },
	{ .name = "read-outside", .cmd = CMD_READ, .command = read_outside },
	{ .name = "read-before", .cmd = CMD_READ, .command = read_before },
	{ .name = "read-hole-outside",
	  .cmd = CMD_READ,
	  .command = read_hole_outside },
	{ .name = "read-empty-hole",
	  .cmd = CMD_READ,
	  .command = read_empty_hole },
	{ .name = "read-short-chunk",
	  .cmd = CMD_READ,
	  .command = read_short_chunk },
	{ .name = "read-huge-chunk",
	  .cmd = CMD_READ,
	  .command = read_huge_chunk },
	{ .name = "read-error-after",
	  .cmd = CMD_READ,
	  .command = read_error_after },
	{ .name = "read-error-offset",
	  .cmd = CMD_READ,
	  .command = read_error_offset },
	{ .name = "read-error-zero",
	  .cmd = CMD_READ,
	  .command = read_error_zero },
	{ .name = "read-error-text",
	  .cmd = CMD_READ,
	  .command = read_error_text },
	{ .name = "read-error-long-text",
	  .cmd = CMD_READ,
	  .command = read_error_long_text },
	{ .name = "read-unknown-chunk",
	  .cmd = CMD_READ,
	  .command = read_unknown_chunk,
	  .arg = 99 },
	{ .name = "read-unknown-error",
	  .cmd = CMD_READ,
	  .command = read_unknown_chunk,
	  .arg = 0x8099 },
	{ .name = "read-status-chunk",
	  .cmd = CMD_READ,
	  .command = read_status_chunk },
	{ .name = "read-simple", .cmd = CMD_READ, .command = read_simple },
	{ .name = "read-half-close",
	  .cmd = CMD_READ,
	  .command = read_half_close },
	{ .name = "read-half-stall",
	  .cmd = CMD_READ,
	  .command = read_half_stall },
	{ .name = "read-drip", .cmd = CMD_READ, .command = read_drip },
	{ .name = "read-flood", .cmd = CMD_READ, .command = read_flood },
	{ .name = "read-flood-empty",
	  .cmd = CMD_READ,
	  .command = read_flood_empty },
	{ .name = "read-pieces", .cmd = CMD_READ, .command = read_pieces },
	{ .name = "read-silent", .cmd = CMD_READ, .command = cmd_silent },
	ERRNO("read-errno-max", CMD_READ, 0xffffffff),
	ERRNOS("read", CMD_READ),
	{ .name = "read-too-long",
	  .cmd = CMD_READ,
	  .command = cmd_too_long,
	  .arg = 16384 },
	{ .name = NULL },
};
