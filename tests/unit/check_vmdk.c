/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The format of VMDK images: what is written is read, and what is wrong is
 * not. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "unit.h"
#include "util.h"
#include "vmdk.h"

static struct error err;

/* A header as one writes it, changed at one place. */
static int decode_with(size_t at, const void *bytes, size_t n)
{
	struct vmdk_header h, got;
	uint8_t s[VMDK_SECTOR];

	ck_assert_int_eq(vmdk_layout(5 * GiB, &h, &err), 0);
	vmdk_encode(&h, s);
	memcpy(s + at, bytes, n);
	return vmdk_decode(s, &got, &err);
}

#define DECODE_WITH(at, bytes) decode_with(at, bytes, sizeof(bytes) - 1)

START_TEST(header_comes_back)
{
	struct vmdk_header h, got;
	uint8_t s[VMDK_SECTOR];

	ck_assert_int_eq(vmdk_layout(5 * GiB + 1, &h, &err), 0);
	h.unclean = true;
	vmdk_encode(&h, s);
	ck_assert(vmdk_is(s));
	ck_assert_int_eq(vmdk_decode(s, &got, &err), 0);
	ck_assert_mem_eq(s, "KDMV\1\0\0\0\3\0\0\0", 12);
	ck_assert_mem_eq(s + 72, "\1\n \r\n\0\0", 7);
	ck_assert_uint_eq(got.capacity, 5 * GiB / VMDK_SECTOR + 1);
	ck_assert_uint_eq(got.grain, 128);
	ck_assert_uint_eq(got.table_entries, 512);
	ck_assert_uint_eq(got.directory, h.directory);
	ck_assert_uint_eq(got.spare_directory, 21);
	ck_assert_uint_eq(got.overhead, h.overhead);
	ck_assert(got.unclean);
	ck_assert_uint_eq(vmdk_tables(&got), 161);
	ck_assert_uint_eq(vmdk_table_bytes(&got), 32 * MiB);
}
END_TEST

START_TEST(layout_has_room_for_all)
{
	static const uint64_t sizes[] = {
		0, 1, 512, 64 * KiB, 32 * MiB, 32 * MiB + 1, VMDK_SIZE_MAX
	};
	struct vmdk_header h;

	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		uint64_t n;

		ck_assert_int_eq(vmdk_layout(sizes[i], &h, &err), 0);
		n = vmdk_tables(&h);
		ck_assert_uint_ge(vmdk_table_sector(&h, true, 0),
				  h.spare_directory + (n * 4 + 511) / 512);
		ck_assert_uint_eq(vmdk_table_sector(&h, true, n), h.directory);
		ck_assert_uint_ge(h.overhead, vmdk_table_sector(&h, false, n));
		ck_assert_uint_eq(h.overhead % h.grain, 0);
	}
	ck_assert_int_eq(vmdk_layout(VMDK_SIZE_MAX + 1, &h, &err), -EFBIG);
	ck_assert_int_eq(vmdk_stream_header(VMDK_SIZE_MAX + 1, &h, &err),
			 -EFBIG);
}
END_TEST

START_TEST(wrong_headers)
{
	ck_assert_int_eq(DECODE_WITH(0, "K"), 0);
	ck_assert_int_eq(DECODE_WITH(0, "X"), -EINVAL);
	ck_assert_int_eq(DECODE_WITH(4, "\0"), -ENOTSUP);
	ck_assert_int_eq(DECODE_WITH(4, "\3"), 0);
	ck_assert_int_eq(DECODE_WITH(4, "\4"), -ENOTSUP);
	ck_assert_int_eq(DECODE_WITH(73, "\r"), -EINVAL);
	/* grains: 0, 3, 1 GiB, 2 GiB */
	ck_assert_int_eq(DECODE_WITH(20, "\0"), -EINVAL);
	ck_assert_int_eq(DECODE_WITH(20, "\3"), -EINVAL);
	ck_assert_int_eq(DECODE_WITH(20, "\0\0\x20"), 0);
	ck_assert_int_eq(DECODE_WITH(20, "\0\0\x40"), -EINVAL);
	ck_assert_int_eq(DECODE_WITH(44, "\0\0"), -EINVAL);
	ck_assert_int_eq(DECODE_WITH(44, "\1\2"), -EINVAL);
	ck_assert_int_eq(DECODE_WITH(44, "\1\0"), 0);
	/* capacities: too large for bytes, for a directory */
	ck_assert_int_eq(DECODE_WITH(12, "\0\0\0\0\0\0\x40"), -EINVAL);
	ck_assert_int_eq(DECODE_WITH(12, "\0\0\0\0\0\2"), 0);
	ck_assert_int_eq(DECODE_WITH(12, "\1\0\0\0\0\2"), -EINVAL);
	/* compressed, but how; and compressed grains of 64 MiB */
	ck_assert_int_eq(DECODE_WITH(10, "\3"), -EINVAL);
}
END_TEST

static int describe(const char *type, const char *parent, const char *extents)
{
	char text[512];

	snprintf(text, sizeof(text),
		 "# Disk DescriptorFile\nversion=1\nCID=1\nparentCID=%s\n"
		 "createType=\"%s\"\n%sddb.adapterType = \"ide\"\n",
		 parent, type, extents);
	return vmdk_check_description(text, &err);
}

#define ONE "RW 8 SPARSE \"a\"\n"

START_TEST(descriptions)
{
	struct vmdk_header h;
	char *text;

	ck_assert_int_eq(vmdk_layout(GiB, &h, &err), 0);
	text = vmdk_describe(&h, "/a/b\"c\n.vmdk", "lsilogic", 0xabc);
	ck_assert_ptr_nonnull(text);
	ck_assert_ptr_nonnull(strstr(text, "CID=00000abc\n"));
	ck_assert_ptr_nonnull(strstr(text, "RW 2097152 SPARSE \"b_c_.vmdk\""));
	ck_assert_ptr_nonnull(strstr(text, "heads = \"255\""));
	ck_assert_int_eq(vmdk_check_description(text, &err), 0);
	free(text);
	ck_assert_int_eq(describe("monolithicSparse", "FFFFFFFF", ONE), 0);
	ck_assert_int_eq(describe("streamOptimized", "ffffffff", ONE), 0);
	ck_assert_int_eq(describe("monolithicSparse", "12345678", ONE),
			 -ENOTSUP);
	ck_assert_int_eq(describe("vmfs", "ffffffff", ONE), -ENOTSUP);
	ck_assert_ptr_nonnull(strstr(err.text, "'vmfs'"));
	ck_assert_int_eq(describe("monolithicSparse", "ffffffff", ONE ONE),
			 -ENOTSUP);
	ck_assert_int_eq(describe("monolithicSparse", "ffffffff", ""),
			 -ENOTSUP);
	ck_assert_int_eq(vmdk_check_description("", &err), -ENOTSUP);
	ck_assert(vmdk_adapter("ide") && !vmdk_adapter("IDE"));
}
END_TEST

START_TEST(markers)
{
	uint8_t s[VMDK_SECTOR], head[VMDK_GRAIN_HEAD];
	uint64_t sector;
	uint32_t len;

	vmdk_encode_marker(VMDK_MARK_FOOTER, 1, s);
	ck_assert(vmdk_is_marker(s, VMDK_MARK_FOOTER));
	ck_assert(!vmdk_is_marker(s, VMDK_MARK_END));
	ck_assert_mem_eq(s, "\1\0\0\0\0\0\0\0\0\0\0\0\3\0\0\0", 16);
	vmdk_encode_grain(0x123456789abc, 0xdeadbeef, head);
	vmdk_decode_grain(head, &sector, &len);
	ck_assert_uint_eq(sector, 0x123456789abc);
	ck_assert_uint_eq(len, 0xdeadbeef);
}
END_TEST

int main(void)
{
	const struct unit_case cases[] = {
		{ header_comes_back, 0 }, { layout_has_room_for_all, 0 },
		{ wrong_headers, 0 },	  { descriptions, 0 },
		{ markers, 0 },
	};

	return unit_main("vmdk", cases, ARRAY_SIZE(cases));
}
