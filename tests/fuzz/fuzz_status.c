/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What becomes of the runs of a block status reply: in order, without gaps, on
 * blocks, inside the size, and zero only where the server has said so of each
 * byte.
 */
#include "../../engine/conn.c"
#include "fuzz.h"

#define SIZE 4096

struct told {
	struct req req;
	uint64_t size, align, last;
	uint8_t zero[SIZE], hole[SIZE]; /* the server's words, by byte */
};

static void on_run(struct req *r, uint64_t start, uint64_t end, bool zero,
		   bool hole)
{
	struct told *t = container_of(r, struct told, req);

	CHECK(start == t->last && end > start && end <= t->size);
	CHECK(start % t->align == 0);
	CHECK(end % t->align == 0 || end == t->size);
	t->last = end;
	for (; start < end; start++) {
		CHECK(!zero || t->zero[start]);
		CHECK(!hole || t->hole[start]);
	}
}

static void say(struct told *t, uint64_t len, uint64_t flags)
{
	for (uint64_t i = t->req.heard; i < t->size && len > 0; i++, len--) {
		t->zero[i] = (flags & LIBNBD_STATE_ZERO) != 0;
		t->hole[i] = (flags & LIBNBD_STATE_HOLE) != 0;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct told t;
	static struct conn conn;
	struct input in = { data, size };
	bool any = false;

	memset(&t, 0, sizeof(t));
	t.size = 1 + take(&in, 2) % SIZE;
	t.align = (uint64_t)1 << take(&in, 1) % 10;
	t.req.conn = &conn;
	t.req.extent = on_run;
	t.req.offset = align_down(take(&in, 2) % t.size, t.align);
	t.req.len = t.size - t.req.offset;
	t.req.covered = t.req.heard = t.last = t.req.offset;
	while (in.left > 0) {
		uint64_t first = take(&in, 1), len, flags;

		/* Mostly short ones. */
		len = first < 250 ? first : take(&in, first - 249);
		flags = take(&in, 1);
		say(&t, len, flags);
		if (!status_run(&t.req, t.size, t.align, len, flags))
			break;
		any = true;
	}
	status_end(&t.req, t.size, t.align);
	CHECK(t.req.covered == t.last);
	/* An answer that says anything is progress. */
	CHECK(!any || t.req.covered > t.req.offset);
	return 0;
}
