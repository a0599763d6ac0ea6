/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "util.h"

#if defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif

/* Digits from *text on, which is moved behind them. -EINVAL without any. */
static int parse_digits(const char **text, uint64_t *n)
{
	const char *p = *text;
	bool over = false;

	*n = 0;
	if (*p < '0' || *p > '9')
		return -EINVAL;
	for (; *p >= '0' && *p <= '9'; p++) {
		if (__builtin_mul_overflow(*n, 10, n) ||
		    __builtin_add_overflow(*n, (uint64_t)(*p - '0'), n))
			over = true;
	}
	*text = p;
	return over ? -ERANGE : 0;
}

/* The power of 1024 that a unit stands for, or -1. */
static int unit_power(char unit)
{
	static const char units[] = "KMGTPE";
	const char *at;

	if (unit >= 'a' && unit <= 'z')
		unit = (char)(unit - 'a' + 'A');
	at = unit ? strchr(units, unit) : NULL;
	return at ? (int)(at - units) + 1 : -1;
}

int parse_size(const char *text, uint64_t *size)
{
	uint64_t n;
	int shift = 0;
	int r = parse_digits(&text, &n);

	if (r == -EINVAL)
		return r;
	if (*text) {
		shift = 10 * unit_power(*text);
		if (shift < 0 || text[1])
			return -EINVAL;
	}
	if (r < 0 || n > UINT64_MAX >> shift)
		return -ERANGE;
	*size = n << shift;
	return 0;
}

int parse_number(const char *text, uint64_t min, uint64_t max, uint64_t *n)
{
	uint64_t value;
	int r = parse_digits(&text, &value);

	if (r == -EINVAL || *text)
		return -EINVAL;
	if (r < 0 || value < min || value > max)
		return -ERANGE;
	*n = value;
	return 0;
}

char *format_size(uint64_t size, char *buf, size_t buflen)
{
	static const char units[] = "KMGTPE";
	unsigned unit = 0;
	uint64_t rest, tenths;

	if (size < 1024) {
		snprintf(buf, buflen, "%u B", (unsigned)size);
		return buf;
	}
	/* size / 1024^(unit + 1) has at most four digits before the point;
	 * what rounding lifts to 1024 belongs to the next unit. */
	while (unit < 5 && size >> (10 * unit + 20))
		unit++;
	for (;; unit++) {
		uint64_t one = (uint64_t)1 << (10 * unit + 10);

		rest = size & (one - 1);
		/* rest * 10 would overflow for the largest unit: 60 bits. */
		tenths = size / one * 10 +
			 (rest / 16 * 10 + one / 32) / (one / 16);
		if (tenths < 10240 || unit == 5)
			break;
	}
	if (rest == 0)
		snprintf(buf, buflen, "%u %ciB", (unsigned)(tenths / 10),
			 units[unit]);
	else
		snprintf(buf, buflen, "%u.%u %ciB", (unsigned)(tenths / 10),
			 (unsigned)(tenths % 10), units[unit]);
	return buf;
}

size_t utf8_len(const char *text, size_t avail)
{
	const unsigned char *s = (const unsigned char *)text;
	size_t n, i;

	if (avail == 0)
		return 0;
	if (s[0] < 0x80)
		return 1;
	if (s[0] < 0xc2 || s[0] > 0xf4)
		return 0;
	n = s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
	if (n > avail)
		return 0;
	for (i = 1; i < n; i++) {
		if ((s[i] & 0xc0) != 0x80)
			return 0;
	}
	/* No longer forms than needed, no surrogates, nothing above U+10FFFF. */
	if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) ||
	    (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f))
		return 0;
	return n;
}

int file_read_all(int fd, void *data, uint64_t len, uint64_t offset)
{
	uint8_t *to = data;

	while (len > 0) {
		ssize_t n = pread(fd, to, len, (off_t)offset);

		if (n < 0 && errno == EINTR)
			continue;
		/* It may have been cut off meanwhile. */
		if (n <= 0)
			return n < 0 ? -errno : -EIO;
		to += n;
		len -= (uint64_t)n;
		offset += (uint64_t)n;
	}
	return 0;
}

int file_write_all(int fd, const void *data, uint64_t len, uint64_t offset)
{
	const uint8_t *from = data;

	while (len > 0) {
		ssize_t n = pwrite(fd, from, len, (off_t)offset);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -ENOSPC;
		from += n;
		len -= (uint64_t)n;
		offset += (uint64_t)n;
	}
	return 0;
}

/* Network file systems, and mounts of exports, take bytes first, and say when
 * a descriptor is closed whether they could keep them. */
int file_finish(int fd, bool stable)
{
	int copy;

	if (stable)
		return fsync(fd) < 0 ? -errno : 0;
	copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	if (copy < 0 || (close(copy) < 0 && errno != EINTR))
		return -errno;
	return 0;
}

int path_make_absolute(char **path)
{
	const char *home = getenv("HOME"), *rest = *path;
	char *base, *full;
	int n;

	if (*rest == '\0' || *rest == '/')
		return 0;
	if (rest[0] == '~' && rest[1] == '/' && home && *home == '/') {
		base = strdup(home);
		rest += 2;
	} else {
		base = getcwd(NULL, 0);
	}
	if (!base)
		return -errno;
	n = asprintf(&full, "%s/%s", base, rest);
	free(base);
	if (n < 0)
		return -ENOMEM;
	free(*path);
	*path = full;
	return 0;
}

void process_forbid_core(void)
{
	struct rlimit none = { 0, 0 };

	setrlimit(RLIMIT_CORE, &none);
#ifndef SANITIZED
	/* A limit does not keep a core from a program that takes cores. */
	prctl(PR_SET_DUMPABLE, 0);
#endif
}
