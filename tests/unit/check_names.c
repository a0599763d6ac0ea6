/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* File names of exports: hostile names, cutting, stability. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "connect.h"
#include "unit.h"
#include "util.h"

static const char *file_name(const char *export)
{
	static char out[NAME_MAX + 1];

	memset(out, 'X', sizeof(out));
	export_file_name(export, out);
	ck_assert_ptr_nonnull(memchr(out, '\0', sizeof(out)));
	return out;
}

/* Two results at a time are valid. */
static const char *unique_name(const char *export, const char *salt)
{
	static char outs[2][NAME_MAX + 1];
	static unsigned turn;
	char *out = outs[turn++ % 2];

	memset(out, 'X', sizeof(outs[0]));
	export_file_name_unique(export, salt, out);
	ck_assert_ptr_nonnull(memchr(out, '\0', sizeof(outs[0])));
	return out;
}

START_TEST(known_names)
{
	static const char *const names[][2] = {
		{ "disk", "disk" },
		{ "disk 1.img", "disk 1.img" },
		{ "", "nbd" },
		{ "nbd", "nbd" },
		{ ".", "%2E" },
		{ "..", "%2E%2E" },
		{ "...", "..." },
		{ ".hidden", ".hidden" },
		{ "a/b", "a%2Fb" },
		{ "/", "%2F" },
		{ "../../etc/passwd", "..%2F..%2Fetc%2Fpasswd" },
		{ "50%", "50%25" },
		{ "%2F", "%252F" },
		{ "a\nb\x1b[0m\x7f\x01", "a%0Ab%1B[0m%7F%01" },
		{ "gr\xc3\xb6\xc3\x9f", "gr\xc3\xb6\xc3\x9f" },
		/* Not UTF-8: a file name all the same. */
		{ "\xff\xc3", "\xff\xc3" },
		{ "-rf", "-rf" },
	};
	size_t i;

	for (i = 0; i < ARRAY_SIZE(names); i++)
		ck_assert_str_eq(file_name(names[i][0]), names[i][1]);
}
END_TEST

/* What any name whatever must come out as. */
static void check_form(const char *name)
{
	size_t len = strlen(name), i;

	unit_assert(len > 0);
	unit_assert(len <= NAME_MAX);
	unit_assert(strcmp(name, ".") != 0);
	unit_assert(strcmp(name, "..") != 0);
	for (i = 0; i < len; i++) {
		unsigned char c = (unsigned char)name[i];

		unit_assert(c >= 0x20 && c != 0x7f && c != '/');
		/* A percent sign is always followed by its two digits. */
		if (c == '%')
			unit_assert(strspn(name + i + 1, "0123456789ABCDEF") >=
				    2);
	}
}

/* Takes the escapes out again. */
static void decode(const char *name, char *out)
{
	unsigned c;

	for (; *name; name++) {
		if (*name == '%') {
			unit_assert(sscanf(name + 1, "%2x", &c) == 1);
			*out++ = (char)c;
			name += 2;
		} else {
			*out++ = *name;
		}
	}
	*out = '\0';
}

START_TEST(any_bytes)
{
	uint64_t seed = 1;
	int round;

	for (round = 0; round < 20000; round++) {
		size_t len = unit_below(&seed, round % 10 ? 90 : 600), i;
		bool tame = unit_below(&seed, 2);
		char export[601], back[NAME_MAX + 1];
		const char *name;

		for (i = 0; i < len; i++)
			export[i] = (char)(tame ? 'a' + unit_below(&seed, 26) :
						  1 + unit_below(&seed, 255));
		export[len] = '\0';
		name = file_name(export);
		check_form(name);
		/* Nothing is lost unless it was cut: no two names become
		 * one. */
		decode(name, back);
		if (len > 0 && !strchr(name, '~'))
			ck_assert_str_eq(back, export);
		check_form(unique_name(export, "salt"));
	}
}
END_TEST

/* The part before the suffix, which must be there. */
static size_t stem_len(const char *name)
{
	size_t len = strlen(name);

	ck_assert_uint_ge(len, 17);
	ck_assert_int_eq(name[len - 17], '~');
	ck_assert_uint_eq(strspn(name + len - 16, "0123456789abcdef"), 16);
	return len - 17;
}

START_TEST(cut_at_name_max)
{
	char export[4097], other[NAME_MAX + 1];

	memset(export, 'x', sizeof(export));
	export[NAME_MAX] = '\0';
	ck_assert_str_eq(file_name(export), export);
	export[NAME_MAX] = 'x';
	export[NAME_MAX + 1] = '\0';
	ck_assert_uint_eq(strlen(file_name(export)), NAME_MAX);
	ck_assert_uint_eq(stem_len(file_name(export)), NAME_MAX - 17);
	/* A difference behind the cut makes another name. */
	memcpy(other, file_name(export), sizeof(other));
	export[NAME_MAX] = 'y';
	ck_assert_str_ne(file_name(export), other);
	ck_assert_int_eq(memcmp(file_name(export), other, NAME_MAX - 17), 0);
	/* The longest that a server may send. */
	memset(export, '/', sizeof(export));
	export[4096] = '\0';
	ck_assert_uint_eq(stem_len(file_name(export)), (NAME_MAX - 17) / 3 * 3);
	check_form(file_name(export));
}
END_TEST

/* Wherever the cut falls, it is not inside an escape or a sequence. */
static void check_cut(const char *unit, size_t in_name, size_t shift)
{
	size_t len = strlen(unit), used = shift, stem;
	char export[1024];
	const char *name;

	memset(export, 'x', shift);
	while (used + len < sizeof(export) - 1) {
		memcpy(export + used, unit, len);
		used += len;
	}
	export[used] = '\0';
	name = file_name(export);
	check_form(name);
	stem = stem_len(name);
	ck_assert_uint_eq((stem - shift) % in_name, 0);
	ck_assert_uint_gt(stem + in_name, NAME_MAX - 17);
}

START_TEST(cut_between_characters)
{
	size_t shift;

	for (shift = 0; shift < 8; shift++) {
		check_cut("\xc3\xa4", 2, shift);
		check_cut("\xe2\x82\xac", 3, shift);
		check_cut("\xf0\x9f\x92\xbe", 4, shift);
		check_cut("/", 3, shift);
		check_cut("\n", 3, shift);
		check_cut("\xff", 1, shift);
	}
}
END_TEST

START_TEST(suffix_differs)
{
	char first[NAME_MAX + 1];

	/* By server, by export, and always there. */
	memcpy(first, unique_name("disk", "nbd://a"), sizeof(first));
	ck_assert_uint_eq(stem_len(first), 4);
	ck_assert_str_ne(unique_name("disk", "nbd://b"), first);
	ck_assert_str_eq(unique_name("disk", "nbd://a"), first);
	ck_assert_str_ne(unique_name("disk", ""), first);
	ck_assert_str_ne(unique_name("", "disk"), unique_name("disk", ""));
	/* "" and "nbd" have one file name, but not with the suffix. */
	memcpy(first, unique_name("nbd", "s"), sizeof(first));
	ck_assert_str_ne(unique_name("", "s"), first);
	ck_assert_int_eq(strncmp(unique_name("", "s"), "nbd~", 4), 0);
	/* What is salt and what is name counts. */
	ck_assert_str_ne(strchr(unique_name("bc", "a"), '~'),
			 strchr(unique_name("c", "ab"), '~'));
}
END_TEST

START_TEST(suffix_is_stable)
{
	char export[301];

	/* Scripts keep these names: another version must make them too. */
	ck_assert_str_eq(unique_name("disk", "nbd://a"),
			 "disk~8ed1b610a4bcdb0d");
	memset(export, 'a', 300);
	export[300] = '\0';
	ck_assert_str_eq(file_name(export) + NAME_MAX - 17,
			 "~3a2b6bc36205919a");
}
END_TEST

int main(void)
{
	const struct unit_case cases[] = {
		{ known_names, 0 },	{ any_bytes, 0 },
		{ cut_at_name_max, 0 }, { cut_between_characters, 0 },
		{ suffix_differs, 0 },	{ suffix_is_stable, 0 },
	};

	return unit_main("names", cases, ARRAY_SIZE(cases));
}
