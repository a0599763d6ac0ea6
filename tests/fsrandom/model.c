/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "fsr.h"

void trace(struct worker *w, const char *fmt, ...)
{
	struct ctx *c = w->c;
	char *line;
	va_list ap;
	int n;

	pthread_mutex_lock(&c->trace_lock);
	line = c->trace[c->traced++ % TRACE_LINES];
	n = snprintf(line, TRACE_WIDTH, "#%" PRIu64 " t%u %s ", w->op, w->id,
		     w->op_name);
	if (n > 0 && n < TRACE_WIDTH) {
		va_start(ap, fmt);
		vsnprintf(line + n, TRACE_WIDTH - (size_t)n, fmt, ap);
		va_end(ap);
	}
	if (c->cfg.verbose)
		fprintf(stderr, "%s\n", line);
	pthread_mutex_unlock(&c->trace_lock);
}

static void print_history(struct ctx *c)
{
	uint64_t i = c->traced > TRACE_LINES ? c->traced - TRACE_LINES : 0;

	fprintf(stderr, "the last operations:\n");
	for (; i < c->traced; i++)
		fprintf(stderr, "  %s\n", c->trace[i % TRACE_LINES]);
}

int fail(struct worker *w, const char *fmt, ...)
{
	struct ctx *c = w->c;
	va_list ap;

	/* Only the first failure says something new. */
	if (atomic_exchange(&c->failed, true))
		return -1;
	pthread_mutex_lock(&c->trace_lock);
	print_history(c);
	fprintf(stderr,
		"fsrandom: FAILED seed=%" PRIu64 " op=#%" PRIu64
		" (%s) thread %u of %u: ",
		c->cfg.seed, w->op, w->op_name, w->id, c->cfg.threads);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fprintf(stderr, "\n");
	pthread_mutex_unlock(&c->trace_lock);
	return -1;
}

int fail_errno(struct worker *w, const char *what)
{
	int error = errno;

	if (loss_allowed(w, error)) {
		trace(w, "... %s: %s", what, strerror(error));
		w->lost = true;
		atomic_fetch_add(&w->c->heard, 1);
		errno = error;
		return -1;
	}
	return fail(w, "%s: %s", what, strerror(error));
}

int fail_short(struct worker *w, const char *what, ssize_t n)
{
	if (n > 0 && w->c->cfg.lossy) {
		errno = EIO;
		return fail_errno(w, what);
	}
	return fail(w, "%s gave %zd", what, n);
}

/* Whole pages for each worker, the rest for the last one. */
static uint64_t part_size(const struct worker *w, const struct file *f)
{
	uint64_t part = f->size / w->c->cfg.threads / PAGE * PAGE;

	return part ? part : PAGE;
}

void own_part(const struct worker *w, const struct file *f, uint64_t *lo,
	      uint64_t *hi)
{
	uint64_t part = part_size(w, f);

	*lo = part * w->id;
	*hi = w->id == w->c->cfg.threads - 1 ? f->size : *lo + part;
	if (*hi > f->size)
		*hi = f->size;
}

bool owns(const struct worker *w, const struct file *f, uint64_t off)
{
	const struct config *cfg = &w->c->cfg;
	uint64_t n;

	if (cfg->threads == 1)
		return true;
	if (cfg->stripe)
		return off / cfg->stripe % cfg->threads == w->id;
	n = off / part_size(w, f);
	return (n < cfg->threads ? n : cfg->threads - 1) == w->id;
}

uint64_t owned_until(const struct worker *w, const struct file *f, uint64_t off)
{
	const struct config *cfg = &w->c->cfg;
	uint64_t unit, end;

	if (cfg->threads == 1)
		return f->size;
	unit = cfg->stripe ? cfg->stripe : part_size(w, f);
	end = (off / unit + 1) * unit;
	if (!cfg->stripe && off / unit >= cfg->threads - 1)
		end = f->size;
	return end < f->size ? end : f->size;
}

static void model_mark(struct worker *w, struct file *f, uint64_t off,
		       uint64_t len)
{
	uint64_t i;

	for (i = off; i < off + len; i++)
		f->by[i] = (uint32_t)w->op;
}

void model_write(struct worker *w, struct file *f, uint64_t off,
		 const uint8_t *data, uint64_t len)
{
	memmove(f->model + off, data, len);
	model_mark(w, f, off, len);
}

void model_zero(struct worker *w, struct file *f, uint64_t off, uint64_t len)
{
	memset(f->model + off, 0, len);
	model_mark(w, f, off, len);
}

static int report_difference(struct worker *w, struct file *f, uint64_t off,
			     const uint8_t *found, uint64_t len)
{
	const uint8_t *expected = f->model + off;
	uint64_t first = 0, last = 0, count = 0, zero = 0, i;

	for (i = 0; i < len; i++) {
		if (expected[i] == found[i] ||
		    doubtful(w, f, off + i, found[i]))
			continue;
		if (!count++)
			first = i;
		last = i;
		zero += !found[i];
	}
	if (!count) {
		trace(w, "... something is lost");
		return -1;
	}
	return fail(w,
		    "%s differs: first at %" PRIu64 " (0x%" PRIx64
		    "), expected 0x%02x, found 0x%02x; last at %" PRIu64
		    "; %" PRIu64 " bytes in all, %" PRIu64
		    " of them found zero; last changed by #%" PRIu32,
		    f->path, off + first, off + first, expected[first],
		    found[first], off + last, count, zero, f->by[off + first]);
}

int model_check(struct worker *w, struct file *f, uint64_t off,
		const uint8_t *found, uint64_t len, bool all)
{
	uint64_t pos = off, end = off + len, next;

	for (; pos < end; pos = next) {
		next = all ? end : owned_until(w, f, pos);
		if (next > end)
			next = end;
		if (!all && !owns(w, f, pos))
			continue;
		if (memcmp(f->model + pos, found + (pos - off), next - pos))
			return report_difference(w, f, pos, found + (pos - off),
						 next - pos);
	}
	return 0;
}

uint64_t model_data(const struct worker *w, const struct file *f, uint64_t off,
		    uint64_t end)
{
	uint64_t next, i;

	for (; off < end; off = next) {
		next = owned_until(w, f, off);
		if (next > end)
			next = end;
		if (!owns(w, f, off))
			continue;
		for (i = off; i < next; i++) {
			if (f->model[i])
				return i;
		}
	}
	return end;
}

int check_whole(struct worker *w, struct file *f)
{
	uint64_t off, len;
	int fd = f->fd[FD_MAIN];
	ssize_t n;

	for (off = 0; off < f->size; off += len) {
		len = f->size - off < w->c->cfg.max_io ? f->size - off :
							 w->c->cfg.max_io;
		n = pread(fd, w->buf, len, (off_t)off);
		if (n < 0)
			return fail_errno(w, "pread of everything");
		if ((uint64_t)n != len)
			return fail_short(w, "pread of everything", n);
		if (model_check(w, f, off, w->buf, len, true))
			return -1;
	}
	return 0;
}
