/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Arithmetic at its limits, sizes as text, messages. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "engine.h"
#include "unit.h"
#include "util.h"

START_TEST(sizes_parse)
{
	static const struct {
		const char *text;
		int result;
		uint64_t size;
	} sizes[] = {
		{ "0", 0, 0 },
		{ "1", 0, 1 },
		{ "007", 0, 7 },
		{ "1k", 0, 1024 },
		{ "1K", 0, 1024 },
		{ "3M", 0, 3 << 20 },
		{ "2g", 0, 2 * GiB },
		{ "1T", 0, GiB << 10 },
		{ "5P", 0, 5 * (GiB << 20) },
		{ "15E", 0, 15 * (GiB << 30) },
		{ "16E", -ERANGE, 0 },
		{ "18446744073709551615", 0, UINT64_MAX },
		{ "18446744073709551616", -ERANGE, 0 },
		{ "18446744073709551620", -ERANGE, 0 },
		{ "99999999999999999999999999", -ERANGE, 0 },
		{ "17592186044415M", 0, UINT64_MAX / MiB * MiB },
		{ "17592186044416M", -ERANGE, 0 },
		{ "99999999999999999999999999K", -ERANGE, 0 },
		{ "", -EINVAL, 0 },
		{ "K", -EINVAL, 0 },
		{ " 1", -EINVAL, 0 },
		{ "+1", -EINVAL, 0 },
		{ "-1", -EINVAL, 0 },
		{ "1 K", -EINVAL, 0 },
		{ "1KB", -EINVAL, 0 },
		{ "1KK", -EINVAL, 0 },
		{ "1X", -EINVAL, 0 },
		{ "0x10", -EINVAL, 0 },
		{ "1.5M", -EINVAL, 0 },
		{ "99999999999999999999999999X", -EINVAL, 0 },
	};
	size_t i;

	for (i = 0; i < ARRAY_SIZE(sizes); i++) {
		uint64_t size = 12345;
		int r = parse_size(sizes[i].text, &size);

		ck_assert_msg(r == sizes[i].result, "%s: %d", sizes[i].text, r);
		ck_assert_uint_eq(size, r == 0 ? sizes[i].size : 12345);
	}
}
END_TEST

START_TEST(numbers_parse)
{
	uint64_t n = 12345;

	ck_assert_int_eq(parse_number("10", 1, 10, &n), 0);
	ck_assert_uint_eq(n, 10);
	ck_assert_int_eq(parse_number("1", 1, 10, &n), 0);
	ck_assert_uint_eq(n, 1);
	ck_assert_int_eq(parse_number("0", 1, 10, &n), -ERANGE);
	ck_assert_int_eq(parse_number("11", 1, 10, &n), -ERANGE);
	ck_assert_int_eq(parse_number("18446744073709551616", 0, UINT64_MAX,
				      &n),
			 -ERANGE);
	ck_assert_int_eq(parse_number("18446744073709551617", 0, 10, &n),
			 -ERANGE);
	ck_assert_int_eq(parse_number("1K", 0, 9999, &n), -EINVAL);
	ck_assert_int_eq(parse_number("", 0, 10, &n), -EINVAL);
	ck_assert_int_eq(parse_number("-0", 0, 10, &n), -EINVAL);
	ck_assert_uint_eq(n, 1);
	ck_assert_int_eq(
		parse_number("18446744073709551615", 0, UINT64_MAX, &n), 0);
	ck_assert_uint_eq(n, UINT64_MAX);
}
END_TEST

START_TEST(sizes_for_people)
{
	static const struct {
		uint64_t size;
		const char *text;
	} sizes[] = {
		{ 0, "0 B" },
		{ 1023, "1023 B" },
		{ 1024, "1 KiB" },
		{ 1025, "1.0 KiB" },
		{ 1536, "1.5 KiB" },
		{ 10 * KiB, "10 KiB" },
		{ MiB - 1, "1.0 MiB" },
		{ MiB - 52, "1023.9 KiB" },
		{ MiB, "1 MiB" },
		{ GiB + GiB / 2, "1.5 GiB" },
		{ 1023 * GiB, "1023 GiB" },
		{ INT64_MAX, "8.0 EiB" },
		{ UINT64_MAX, "16.0 EiB" },
	};
	char buf[16], tiny[4];
	size_t i;

	for (i = 0; i < ARRAY_SIZE(sizes); i++)
		ck_assert_str_eq(format_size(sizes[i].size, buf, sizeof(buf)),
				 sizes[i].text);
	ck_assert_str_eq(format_size(MiB + 1, tiny, sizeof(tiny)), "1.0");
}
END_TEST

START_TEST(arithmetic)
{
	ck_assert(range_inside(0, 0, 0));
	ck_assert(range_inside(10, 0, 10));
	ck_assert(range_inside(3, 7, 10));
	ck_assert(!range_inside(3, 8, 10));
	ck_assert(!range_inside(11, 0, 10));
	ck_assert(!range_inside(8, UINT64_MAX - 2, 10));
	ck_assert(!range_inside(UINT64_MAX, 1, INT64_MAX));
	ck_assert(range_inside(0, INT64_MAX, INT64_MAX));

	ck_assert_uint_eq(align_up(0, 4096), 0);
	ck_assert_uint_eq(align_up(1, 4096), 4096);
	ck_assert_uint_eq(align_up(4096, 4096), 4096);
	ck_assert_uint_eq(align_up(UINT64_MAX - 4095, 4096), UINT64_MAX - 4095);
	ck_assert_uint_eq(align_up(UINT64_MAX - 4094, 4096), UINT64_MAX - 4095);
	ck_assert_uint_eq(align_up(UINT64_MAX, 1), UINT64_MAX);
	ck_assert_uint_eq(align_down(UINT64_MAX, 4096), UINT64_MAX - 4095);
	ck_assert_uint_eq(align_down(4095, 4096), 0);

	ck_assert(!is_pow2(0));
	ck_assert(is_pow2(1));
	ck_assert(!is_pow2(3));
	ck_assert(is_pow2((uint64_t)1 << 63));
}
END_TEST

START_TEST(utf8)
{
	static const struct {
		const char *text;
		size_t len;
	} texts[] = {
		{ "a", 1 },
		{ "\x7f", 1 },
		{ "\x80", 0 },
		{ "\xc1\xbf", 0 },
		{ "\xc2\x80", 2 },
		{ "\xc3", 0 },
		{ "\xc3x", 0 },
		{ "\xe0\x9f\xbf", 0 },
		{ "\xe0\xa0\x80", 3 },
		{ "\xe2\x82\xac", 3 },
		{ "\xe2\x82", 0 },
		{ "\xed\x9f\xbf", 3 },
		{ "\xed\xa0\x80", 0 },
		{ "\xf0\x8f\xbf\xbf", 0 },
		{ "\xf0\x90\x80\x80", 4 },
		{ "\xf4\x8f\xbf\xbf", 4 },
		{ "\xf4\x90\x80\x80", 0 },
		{ "\xf5\x80\x80\x80", 0 },
		{ "\xff", 0 },
	};
	size_t i;

	ck_assert_uint_eq(utf8_len("a", 0), 0);
	for (i = 0; i < ARRAY_SIZE(texts); i++)
		ck_assert_msg(utf8_len(texts[i].text, strlen(texts[i].text)) ==
				      texts[i].len,
			      "text %zu", i);
}
END_TEST

/* ---------------------------------------------------------------- messages */

struct sunk {
	unsigned lines;
	enum log_level level;
	char line[4096];
};

static void sink(void *arg, enum log_level level, const char *line)
{
	struct sunk *s = arg;

	s->lines++;
	s->level = level;
	snprintf(s->line, sizeof(s->line), "%s", line);
}

START_TEST(messages_are_lines)
{
	static const char *const lines[][2] = {
		{ "plain", "plain" },
		{ "ends\n", "ends" },
		{ "two\nlines\n\n", "two lines" },
		{ "a\tb", "a b" },
		{ "\x1b[2Jgone\x07\x7f", "?[2Jgone??" },
		{ "gr\xc3\xbc\xc3\x9f", "gr\xc3\xbc\xc3\x9f" },
		/* C1 controls, as UTF-8 and as plain bytes. */
		{ "x\xc2\x9b"
		  "2Jy\x9b"
		  "z",
		  "x?2Jy?z" },
		{ "\xff\xc3 .", "?? ." },
		{ "cut \xe2\x82", "cut ??" },
		{ "", "" },
	};
	struct sunk s = { 0 };
	struct log log = { LOG_LVL_WARN, sink, &s };
	struct error err;
	size_t i;

	for (i = 0; i < ARRAY_SIZE(lines); i++) {
		log_msg(&log, LOG_LVL_ERROR, "%s", lines[i][0]);
		ck_assert_uint_eq(s.lines, i + 1);
		ck_assert_uint_eq(s.level, LOG_LVL_ERROR);
		ck_assert_str_eq(s.line, lines[i][1]);
		error_set(&err, "%s", lines[i][0]);
		ck_assert_str_eq(err.text, lines[i][1]);
	}
	/* Above the level, or without anywhere to go. */
	log_msg(&log, LOG_LVL_INFO, "x");
	log.sink = NULL;
	log_msg(&log, LOG_LVL_ERROR, "x");
	log_msg(NULL, LOG_LVL_ERROR, "x");
	error_set(NULL, "x");
	ck_assert_uint_eq(s.lines, ARRAY_SIZE(lines));
}
END_TEST

START_TEST(long_messages_are_cut)
{
	struct error err;
	size_t shift, len;
	char text[3000];

	/* Wherever it is cut, no half character is left. */
	for (shift = 0; shift < 4; shift++) {
		memset(text, 'x', shift);
		for (len = shift; len + 4 < sizeof(text); len += 4)
			memcpy(text + len, "\xf0\x9f\x92\xbe", 4);
		text[len] = '\0';
		error_set(&err, "%s", text);
		len = strlen(err.text);
		ck_assert_uint_gt(len, sizeof(err.text) - 8);
		ck_assert_uint_lt(len, sizeof(err.text));
		ck_assert_str_eq(err.text + len - 3, "...");
		ck_assert_int_eq((int)((len - 3 - shift) % 4), 0);
		ck_assert_ptr_null(strchr(err.text, '?'));
	}
	memset(text, 'x', sizeof(text));
	text[sizeof(err.text) - 1] = '\0';
	error_set(&err, "%s", text);
	ck_assert_str_eq(err.text, text);
}
END_TEST

START_TEST(error_wraps_itself)
{
	struct error err;

	error_set(&err, "no such export");
	error_set(&err, "nbd://host: %s (%d)", err.text, 2);
	ck_assert_str_eq(err.text, "nbd://host: no such export (2)");
}
END_TEST

int main(void)
{
	const struct unit_case cases[] = {
		{ sizes_parse, 0 },
		{ numbers_parse, 0 },
		{ sizes_for_people, 0 },
		{ arithmetic, 0 },
		{ utf8, 0 },
		{ messages_are_lines, 0 },
		{ long_messages_are_cut, 0 },
		{ error_wraps_itself, 0 },
	};

	return unit_main("util", cases, ARRAY_SIZE(cases));
}
