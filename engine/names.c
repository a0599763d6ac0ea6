/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "connect.h"
#include "util.h"

/* "~" and 16 digits. */
#define SUFFIX_LEN 17

/* The name of an export without a name. */
#define NAMELESS "nbd"

/* FNV-1a, then mixed: the same for ever, since scripts keep the names. */
static uint64_t hash_more(uint64_t h, const char *text)
{
	const uint64_t prime = 0x100000001b3;

	for (; *text; text++)
		h = (h ^ (unsigned char)*text) * prime;
	/* And the end, so that "a", "bc" is not "ab", "c". */
	return h * prime;
}

static uint64_t name_hash(const char *salt, const char *export)
{
	uint64_t h = 0xcbf29ce484222325;

	h = hash_more(h, salt);
	h = hash_more(h, export);
	h ^= h >> 32;
	h *= 0x9e3779b97f4a7c15;
	return h ^ (h >> 29);
}

static bool must_escape(unsigned char c)
{
	return c < 0x20 || c == 0x7f || c == '/' || c == '%';
}

/* Writes export with its escapes into out, at most `max` bytes and a NUL,
 * whole escapes and UTF-8 sequences only. False if it had to be cut. */
static bool encode(const char *export, char *out, size_t max)
{
	bool dots = strcmp(export, ".") == 0 || strcmp(export, "..") == 0;
	size_t left = strlen(export), used = 0;

	if (left == 0) {
		export = NAMELESS;
		left = strlen(NAMELESS);
	}
	while (left > 0) {
		bool escape = dots || must_escape((unsigned char)*export);
		size_t in = escape ? 1 : max_u64(utf8_len(export, left), 1);
		size_t len = escape ? 3 : in;

		if (used + len > max)
			break;
		if (escape)
			snprintf(out + used, 4, "%%%02X",
				 (unsigned char)*export);
		else
			memcpy(out + used, export, in);
		used += len;
		export += in;
		left -= in;
	}
	out[used] = '\0';
	return left == 0;
}

static void encode_with_suffix(const char *export, const char *salt,
			       char out[NAME_MAX + 1])
{
	size_t used;

	encode(export, out, NAME_MAX - SUFFIX_LEN);
	used = strlen(out);
	snprintf(out + used, NAME_MAX + 1 - used, "~%016" PRIx64,
		 name_hash(salt, export));
}

void export_file_name(const char *export, char out[NAME_MAX + 1])
{
	if (!encode(export, out, NAME_MAX))
		encode_with_suffix(export, "", out);
}

void export_file_name_unique(const char *export, const char *salt,
			     char out[NAME_MAX + 1])
{
	encode_with_suffix(export, salt, out);
}
