/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <sys/mman.h>

#include "engine.h"

/* In .bss, although const: a megabyte of zeroes needs no room in the program
 * file, and its pages stay one and the same page of the kernel, which is in
 * the processor's cache, as long as nobody writes. Aligned to the largest page
 * that Linux is built with, so that protecting it touches nothing else. */
const uint8_t zero_block[ZERO_BLOCK_SIZE]
	__attribute__((section(".bss.zero_block"), aligned(65536)));

/* .bss is writable; const shall mean what it says. If this fails, nothing is
 * lost but a safety net. */
static __attribute__((constructor)) void protect_zero_block(void)
{
	(void)mprotect((void *)(uintptr_t)zero_block, ZERO_BLOCK_SIZE,
		       PROT_READ);
}

/* Bytes at any address, as many as the widest registers in common use hold;
 * the compiler makes of it what the machine has. */
typedef uint64_t vec __attribute__((vector_size(32), aligned(1), may_alias));

#define VECS 8

bool is_zero(const void *data, size_t len)
{
	const uint8_t *p = data;

	for (; len >= VECS * sizeof(vec); len -= VECS * sizeof(vec)) {
		const vec *v = (const vec *)p;
		vec any = (v[0] | v[1]) | (v[2] | v[3]) | (v[4] | v[5]) |
			  (v[6] | v[7]);

		if (any[0] | any[1] | any[2] | any[3])
			return false;
		p += VECS * sizeof(vec);
	}
	for (; len > 0; len--) {
		if (*p++)
			return false;
	}
	return true;
}
