/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * fuzz.h - what the fuzz targets share: bytes taken from the input, one after
 * another, zeroes when there are none left.
 */
#ifndef FUZZ_H
#define FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(cond)                                                        \
	do {                                                               \
		if (!(cond)) {                                             \
			fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, \
				__LINE__, #cond);                          \
			abort();                                           \
		}                                                          \
	} while (0)

struct input {
	const uint8_t *data;
	size_t left;
};

/* A number of n bytes. */
static inline uint64_t take(struct input *in, size_t n)
{
	uint64_t x = 0;

	for (; n > 0 && in->left > 0; n--, in->left--)
		x = x << 8 | *in->data++;
	return x;
}

/* The input as a string, to be freed. NULL without memory. */
static inline char *take_text(const uint8_t *data, size_t size)
{
	char *text = malloc(size + 1);

	if (!text)
		return NULL;
	memcpy(text, data, size);
	text[size] = '\0';
	return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
