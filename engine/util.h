/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * util.h - small arithmetic that must not overflow.
 *
 * Units bytes; pure functions; no errors.
 */
#ifndef NBDFS_UTIL_H
#define NBDFS_UTIL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KiB ((uint64_t)1 << 10)
#define MiB ((uint64_t)1 << 20)
#define GiB ((uint64_t)1 << 30)

#define NS_PER_MS ((uint64_t)1000000)
#define NS_PER_S ((uint64_t)1000000000)

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

/* Also from a pointer to const, whose owner may be changed nevertheless. */
#define container_of(ptr, type, member) \
	((type *)((uintptr_t)(ptr)-offsetof(type, member)))

static inline uint64_t min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static inline uint64_t max_u64(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* `align` is a power of two. */
static inline uint64_t align_down(uint64_t x, uint64_t align)
{
	return x & ~(align - 1);
}

/* Saturates at the largest multiple of align. */
static inline uint64_t align_up(uint64_t x, uint64_t align)
{
	uint64_t top = ~(align - 1);

	return x > top ? top : (x + align - 1) & ~(align - 1);
}

static inline bool is_pow2(uint64_t x)
{
	return x != 0 && (x & (x - 1)) == 0;
}

/* True if [offset, offset + len) lies inside [0, size). */
static inline bool range_inside(uint64_t offset, uint64_t len, uint64_t size)
{
	return offset <= size && len <= size - offset;
}

/* All bytes of a range of a file, whatever interrupts; may block. 0 or -errno:
 * -EIO where a file that is read ends before, -ENOSPC where one takes no
 * more. */
int file_read_all(int fd, void *data, uint64_t len, uint64_t offset);
int file_write_all(int fd, const void *data, uint64_t len, uint64_t offset);
/* What is known of the writes to a file only when it is closed, or, if
 * `stable`, flushed; it stays open. May block. 0 or -errno. */
int file_finish(int fd, bool stable);

/* *path is replaced by an absolute one; "~/" is the user's folder. 0, -ENOMEM,
 * or why the working folder is not known; then *path is as it was. */
int path_make_absolute(char **path);

/* What was read from a disk is not to be found in a core file of this process:
 * there will be none. */
void process_forbid_core(void);

/* Parses a size: digits and an optional K, M, G, T, P, E (powers of 1024,
 * either case). 0, or -EINVAL, or -ERANGE. */
int parse_size(const char *text, uint64_t *size);
/* Parses a decimal number in [min, max]. 0, -EINVAL or -ERANGE. */
int parse_number(const char *text, uint64_t min, uint64_t max, uint64_t *n);
/* "1.5 GiB" into buf (at least 16 bytes); returns buf. */
char *format_size(uint64_t size, char *buf, size_t buflen);
/* The length (1 to 4) of the well-formed UTF-8 sequence at text, of which
 * `avail` bytes may be looked at; 0 where there is none. */
size_t utf8_len(const char *text, size_t avail);

#endif
