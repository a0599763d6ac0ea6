/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <stdio.h>
#include <string.h>

#include "engine.h"
#include "util.h"

/* What a server or a file name puts into a message must neither start a new
 * line nor reach a terminal as a command: controls (C0, DEL, C1) and bytes
 * that are no UTF-8 are replaced. In place; returns the new length. */
static size_t make_line(char *text, size_t len)
{
	size_t in = 0, out = 0;

	while (len > 0 && text[len - 1] == '\n')
		len--;
	while (in < len) {
		unsigned char c = (unsigned char)text[in];
		size_t n = utf8_len(text + in, len - in);
		bool c1 = n == 2 && c == 0xc2 &&
			  (unsigned char)text[in + 1] < 0xa0;

		if (c == '\n' || c == '\t') {
			text[out++] = ' ';
			in++;
		} else if (c < 0x20 || c == 0x7f || c1 || n == 0) {
			text[out++] = '?';
			in += n ? n : 1;
		} else {
			memmove(text + out, text + in, n);
			out += n;
			in += n;
		}
	}
	text[out] = '\0';
	return out;
}

/* Formats into text; what does not fit is cut and ends with "...". */
static __attribute__((format(printf, 3, 0))) void
format_line(char *text, size_t size, const char *fmt, va_list ap)
{
	int n = vsnprintf(text, size, fmt, ap);
	size_t len;

	if (n < 0) {
		snprintf(text, size, "%s", "(message lost)");
		return;
	}
	if ((size_t)n < size) {
		make_line(text, (size_t)n);
		return;
	}
	len = size - 4;
	/* Not inside a sequence: back to the first byte of one. */
	while (len > 0 && ((unsigned char)text[len] & 0xc0) == 0x80)
		len--;
	len = make_line(text, len);
	memcpy(text + len, "...", 4);
}

void error_set(struct error *err, const char *fmt, ...)
{
	char text[sizeof(err->text)];
	va_list ap;

	if (!err)
		return;
	/* Not straight into err: its old text may be among the arguments. */
	va_start(ap, fmt);
	format_line(text, sizeof(text), fmt, ap);
	va_end(ap);
	memcpy(err->text, text, strlen(text) + 1);
}

void log_vmsg(const struct log *log, enum log_level level, const char *fmt,
	      va_list ap)
{
	char line[2048];

	if (!log || !log->sink || level > log->level)
		return;
	format_line(line, sizeof(line), fmt, ap);
	log->sink(log->arg, level, line);
}

void log_msg(const struct log *log, enum log_level level, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	log_vmsg(log, level, fmt, ap);
	va_end(ap);
}
