/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The chunks of a structured read, held against an array of bytes. */
#include <errno.h>

#include "cover.h"
#include "fuzz.h"

#define LEN 1024

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data, size };
	uint8_t map[LEN] = { 0 };
	struct cover c = { .count = 0 };

	while (in.left > 0) {
		uint64_t start = take(&in, 2) % LEN;
		uint64_t end = start + take(&in, 1);
		bool there;

		if (end > LEN)
			end = LEN;
		there = memchr(map + start, 1, end - start) != NULL;
		CHECK(cover_add(&c, start, end) == (there ? -EEXIST : 0));
		if (!there)
			memset(map + start, 1, end - start);
	}
	CHECK(cover_is(&c, LEN) == (memchr(map, 0, LEN) == NULL));
	cover_clear(&c);
	CHECK(cover_is(&c, 0));
	return 0;
}
