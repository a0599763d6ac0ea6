/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Bytes to and from the other side. */
#include <endian.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "evil.h"

void flush_out(struct conn *c)
{
	size_t done = 0;

	while (done < c->nout) {
		ssize_t n = send(c->fd, c->out + done, c->nout - done,
				 MSG_NOSIGNAL);

		if (n <= 0)
			break;
		done += (size_t)n;
	}
	if (done == c->nout) {
		c->nout = 0;
		return;
	}
	close(c->fd);
	free(c);
	pthread_exit(NULL);
}

void hang_up(struct conn *c)
{
	flush_out(c);
	close(c->fd);
	free(c);
	pthread_exit(NULL);
}

void put(struct conn *c, const void *data, size_t len)
{
	const uint8_t *p = data;

	while (len > 0) {
		size_t n = sizeof(c->out) - c->nout;

		if (n > len)
			n = len;
		memcpy(c->out + c->nout, p, n);
		c->nout += n;
		p += n;
		len -= n;
		if (c->nout == sizeof(c->out))
			flush_out(c);
	}
}

void get(struct conn *c, void *data, size_t len)
{
	uint8_t *p = data;

	flush_out(c);
	while (len > 0) {
		ssize_t n = recv(c->fd, p, len, 0);

		if (n <= 0)
			hang_up(c);
		p += n;
		len -= (size_t)n;
	}
}

/* put_be(c, "4 8 2", a, b, c): numbers of so many bytes. */
void put_be(struct conn *c, const char *sizes, ...)
{
	va_list ap;

	va_start(ap, sizes);
	for (; *sizes; sizes++) {
		uint64_t x;
		int n = *sizes - '0';

		if (*sizes == ' ')
			continue;
		x = n == 8 ? va_arg(ap, uint64_t) : va_arg(ap, uint32_t);
		x = htobe64(x);
		put(c, (uint8_t *)&x + 8 - n, (size_t)n);
	}
	va_end(ap);
}

uint64_t get_be(struct conn *c, size_t n)
{
	uint64_t x = 0;

	get(c, (uint8_t *)&x + 8 - n, n);
	return be64toh(x);
}

/* Keeps silent until the other side hangs up. */
void stall(struct conn *c)
{
	char buf[4096];

	flush_out(c);
	while (recv(c->fd, buf, sizeof(buf), 0) > 0)
		;
	hang_up(c);
}

/* Sends what is in `out`, byte by byte, and then zeroes. */
void drip(struct conn *c)
{
	for (size_t i = 0;; i++) {
		char byte = i < c->nout ? (char)c->out[i] : 0;

		if (send(c->fd, &byte, 1, MSG_NOSIGNAL) != 1)
			break;
		usleep(50000);
	}
	c->nout = 0;
	hang_up(c);
}

void put_garbage(struct conn *c, size_t len)
{
	uint32_t x = 12345;

	while (len > 0) {
		x = x * 1664525 + 1013904223;
		put(c, &x, len < 4 ? len : 4);
		len -= len < 4 ? len : 4;
	}
}

void skip(struct conn *c, uint64_t len)
{
	uint8_t buf[4096];

	while (len > 0) {
		size_t n = len < sizeof(buf) ? (size_t)len : sizeof(buf);

		get(c, buf, n);
		len -= n;
	}
}

/* True as often as the scenario is to be seen. */
bool be_evil(struct conn *c)
{
	int left = atomic_load(&c->inst->left);

	while (left > 0)
		if (atomic_compare_exchange_weak(&c->inst->left, &left,
						 left - 1))
			return true;
	return left < 0;
}
