/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What a good server answers. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "evil.h"

void chunk(struct conn *c, const struct request *r, unsigned flags,
	   unsigned type, uint32_t len)
{
	put_be(c, "4 2 2 8 4", (uint32_t)CHUNK_MAGIC, (uint32_t)flags,
	       (uint32_t)type, r->cookie, len);
}

void fail(struct conn *c, const struct request *r, uint32_t error)
{
	if (c->structured && (r->type == CMD_READ || r->type == CMD_STATUS)) {
		chunk(c, r, DONE, CHUNK_ERROR, 6);
		put_be(c, "4 2", error, (uint32_t)0);
	} else {
		put_be(c, "4 4 8", (uint32_t)SIMPLE_MAGIC, error, r->cookie);
	}
}

void put_disk(struct conn *c, uint64_t offset, uint32_t len)
{
	while (len > 0) {
		uint8_t piece[4096] = { 0 };
		uint32_t n = len < sizeof(piece) ? len : sizeof(piece);
		uint64_t have = offset < DISK ? DISK - offset : 0;

		/* put() may not return. */
		pthread_mutex_lock(&c->inst->lock);
		if (have)
			memcpy(piece, c->inst->disk + offset,
			       n < have ? n : have);
		pthread_mutex_unlock(&c->inst->lock);
		put(c, piece, n);
		offset += n;
		len -= n;
	}
}

void data_chunk(struct conn *c, const struct request *r, unsigned flags,
		uint64_t offset, uint32_t len)
{
	chunk(c, r, flags, CHUNK_DATA, 8 + len);
	put_be(c, "8", offset);
	put_disk(c, offset, len);
}

void good_read(struct conn *c, const struct request *r)
{
	if (c->structured) {
		data_chunk(c, r, DONE, r->offset, r->len);
		return;
	}
	put_be(c, "4 4 8", (uint32_t)SIMPLE_MAGIC, (uint32_t)0, r->cookie);
	put_disk(c, r->offset, r->len);
}

static void good_write(struct conn *c, const struct request *r)
{
	uint8_t *p = malloc(r->len ? r->len : 1);

	if (!p)
		hang_up(c);
	get(c, p, r->len);
	pthread_mutex_lock(&c->inst->lock);
	if (r->offset < DISK)
		memcpy(c->inst->disk + r->offset, p,
		       r->len < DISK - r->offset ? r->len : DISK - r->offset);
	pthread_mutex_unlock(&c->inst->lock);
	free(p);
	fail(c, r, 0);
}

static void good_zero(struct conn *c, const struct request *r)
{
	pthread_mutex_lock(&c->inst->lock);
	if (r->offset < DISK)
		memset(c->inst->disk + r->offset, 0,
		       r->len < DISK - r->offset ? r->len : DISK - r->offset);
	pthread_mutex_unlock(&c->inst->lock);
	fail(c, r, 0);
}

void status_chunk(struct conn *c, const struct request *r, unsigned flags,
		  uint32_t id, uint32_t n, ...)
{
	va_list ap;

	chunk(c, r, flags, CHUNK_STATUS, 4 + 8 * n);
	put_be(c, "4", id);
	va_start(ap, n);
	for (uint32_t i = 0; i < n; i++) {
		uint32_t len = va_arg(ap, uint32_t);

		put_be(c, "4 4", len, va_arg(ap, uint32_t));
	}
	va_end(ap);
}

/* The first half of the disk is data. */
void good_status(struct conn *c, const struct request *r)
{
	uint64_t half = DISK / 2;
	uint32_t first;

	if (r->offset >= half || r->len <= half - r->offset) {
		status_chunk(c, r, DONE, CONTEXT_ID, 1, r->len,
			     r->offset < half ? ALLOCATED : HOLE_ZERO);
		return;
	}
	first = (uint32_t)(half - r->offset);
	status_chunk(c, r, DONE, CONTEXT_ID, 2, first, ALLOCATED,
		     r->len - first, HOLE_ZERO);
}

void good(struct conn *c, const struct request *r)
{
	switch (r->type) {
	case CMD_READ:
		good_read(c, r);
		break;
	case CMD_WRITE:
		good_write(c, r);
		break;
	case CMD_ZERO:
		good_zero(c, r);
		break;
	case CMD_STATUS:
		good_status(c, r);
		break;
	default:
		fail(c, r, 0);
	}
}
