/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* File names of exports: one component of a path, whatever the server says. */
#include <limits.h>

#include "connect.h"
#include "fuzz.h"

static void check(const char *out)
{
	size_t len = strnlen(out, NAME_MAX + 1);

	CHECK(len > 0 && len <= NAME_MAX);
	CHECK(strcmp(out, ".") != 0 && strcmp(out, "..") != 0);
	for (size_t i = 0; i < len; i++)
		CHECK(out[i] != '/' && (unsigned char)out[i] >= ' ' &&
		      out[i] != 0x7f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char one[NAME_MAX + 1], two[NAME_MAX + 1], salted[NAME_MAX + 1];
	char *text = take_text(data, size);

	if (!text)
		return 0;
	export_file_name(text, one);
	export_file_name(text, two);
	check(one);
	CHECK(strcmp(one, two) == 0);
	export_file_name_unique(text, "salt", salted);
	check(salted);
	CHECK(strcmp(one, salted) != 0);
	free(text);
	return 0;
}
