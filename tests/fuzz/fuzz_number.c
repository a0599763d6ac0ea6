/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Sizes and numbers, as options have them. */
#include <ctype.h>
#include <errno.h>

#include "fuzz.h"
#include "util.h"

/* What a size is, by its definition; -1: none. */
static __int128 size_of(const char *text)
{
	static const char suffix[] = "KMGTPE";
	const __int128 top = (__int128)1 << 100;
	__int128 n = 0;
	const char *p;

	if (!isdigit((unsigned char)*text))
		return -1;
	for (; isdigit((unsigned char)*text); text++)
		n = n > top ? n : n * 10 + (*text - '0');
	if (!*text)
		return n;
	p = strchr(suffix, toupper((unsigned char)*text));
	if (!p || text[1])
		return -1;
	for (; p >= suffix && n <= top; p--)
		n *= 1024;
	return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = take_text(data, size), shown[32];
	uint64_t n = 0;
	__int128 want;
	int r;

	if (!text)
		return 0;
	want = size_of(text);
	r = parse_size(text, &n);
	if (want < 0)
		CHECK(r == -EINVAL);
	else if (want > UINT64_MAX)
		CHECK(r == -ERANGE);
	else
		CHECK(r == 0 && n == (uint64_t)want);
	if (r == 0)
		CHECK(strlen(format_size(n, shown, sizeof(shown))) < 16);
	if (parse_number(text, 10, 1000, &n) == 0)
		CHECK(n >= 10 && n <= 1000);
	free(text);
	return 0;
}
