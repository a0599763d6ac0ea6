/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Zero detection, and the block of zeroes. */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "engine.h"
#include "unit.h"
#include "util.h"

/* Every length and alignment around the size of the inner loop, with one bit
 * set in every place, inside and just outside. */
START_TEST(every_byte_counts)
{
	static uint8_t room[1400];
	size_t shift, len, at;

	for (shift = 1; shift < 34; shift += shift < 9 ? 1 : 8) {
		for (len = 0; len < 1100; len += len < 300 ? 1 : 97) {
			uint8_t *p = room + shift;

			p[-1] = 0x80;
			p[len] = 0x01;
			unit_assert(is_zero(p, len));
			p[-1] = 0;
			p[len] = 0;
			for (at = 0; at < len; at++) {
				p[at] = (uint8_t)(1 << at % 8);
				unit_assert(!is_zero(p, len));
				p[at] = 0;
			}
		}
	}
}
END_TEST

START_TEST(large_ones)
{
	size_t size = 3 * MiB + 77;
	uint8_t *p = calloc(1, size);

	ck_assert_ptr_nonnull(p);
	ck_assert(is_zero(p, size));
	p[size - 1] = 1;
	ck_assert(!is_zero(p, size));
	p[size - 1] = 0;
	p[size / 2] = 1;
	ck_assert(!is_zero(p, size));
	free(p);
}
END_TEST

START_TEST(zero_block_is_zero)
{
	ck_assert(is_zero(zero_block, ZERO_BLOCK_SIZE));
	ck_assert_uint_eq((uintptr_t)zero_block % 4096, 0);
}
END_TEST

/* What says const is so, although it lies in .bss: the kernel refuses to put
 * bytes there. */
START_TEST(zero_block_is_read_only)
{
	int fd = open("/dev/zero", O_RDONLY | O_CLOEXEC);
	uint8_t byte;

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq((int)read(fd, &byte, 1), 1);
	ck_assert_int_eq((int)read(fd, (void *)(uintptr_t)zero_block, 1), -1);
	ck_assert_int_eq(errno, EFAULT);
	ck_assert_int_eq(
		(int)read(fd,
			  (void *)(uintptr_t)(zero_block + ZERO_BLOCK_SIZE - 1),
			  1),
		-1);
	close(fd);
}
END_TEST

int main(void)
{
	const struct unit_case cases[] = {
		{ every_byte_counts, 0 },
		{ large_ones, 0 },
		{ zero_block_is_zero, 0 },
		{ zero_block_is_read_only, 0 },
	};

	return unit_main("zero", cases, ARRAY_SIZE(cases));
}
