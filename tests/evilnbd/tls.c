/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Servers that take STARTTLS, and then do not speak TLS. */
#include "evil.h"

/* The kind of a record, and the version that all of them are marked with. */
enum { TLS_ALERT = 21, TLS_HANDSHAKE = 22, TLS_DATA = 23 };
#define TLS_VERSION ((uint32_t)0x0303)

/* Says yes, and has read the beginning of what the client has to say. */
static void accept_tls(struct conn *c)
{
	put_be(c, "8 4 4 4", (uint64_t)REP_MAGIC, (uint32_t)OPT_STARTTLS,
	       (uint32_t)REP_ACK, (uint32_t)0);
	flush_out(c);
	skip(c, 5);
}

static void record(struct conn *c, uint32_t type, uint32_t len)
{
	put_be(c, "1 2 2", type, TLS_VERSION, len);
}

static void tls_silent(struct conn *c, uint32_t opt)
{
	(void)opt;
	accept_tls(c);
	stall(c);
}

static void tls_close(struct conn *c, uint32_t opt)
{
	(void)opt;
	accept_tls(c);
	hang_up(c);
}

static void tls_garbage(struct conn *c, uint32_t opt)
{
	(void)opt;
	accept_tls(c);
	put_garbage(c, 100000);
	stall(c);
}

/* The beginning of a record, and then a byte now and then. */
static void tls_drip(struct conn *c, uint32_t opt)
{
	(void)opt;
	accept_tls(c);
	record(c, TLS_HANDSHAKE, 0x2000);
	drip(c);
}

/* A record that is as long as the arg says, of which most does not come. */
static void tls_length(struct conn *c, uint32_t opt)
{
	(void)opt;
	accept_tls(c);
	record(c, TLS_HANDSHAKE, c->e->arg);
	put_garbage(c, 100);
	stall(c);
}

/* A ServerHello that says it is 16 MiB long, in any number of records. */
static void tls_flood(struct conn *c, uint32_t opt)
{
	(void)opt;
	accept_tls(c);
	record(c, TLS_HANDSHAKE, 16384);
	put_be(c, "1 1 2", (uint32_t)2, (uint32_t)0xff, (uint32_t)0xffff);
	put_garbage(c, 16384 - 4);
	while (1) {
		record(c, TLS_HANDSHAKE, 16384);
		put_garbage(c, 16384);
	}
}

static void tls_half(struct conn *c, uint32_t opt)
{
	(void)opt;
	accept_tls(c);
	record(c, TLS_HANDSHAKE, 100);
	put_be(c, "1 1 2 2", (uint32_t)2, (uint32_t)0, (uint32_t)96,
	       TLS_VERSION);
	hang_up(c);
}

/* Fatal: handshake failure. */
static void tls_alert(struct conn *c, uint32_t opt)
{
	(void)opt;
	accept_tls(c);
	record(c, TLS_ALERT, 2);
	put_be(c, "1 1", (uint32_t)2, (uint32_t)40);
	stall(c);
}

static void tls_alerts(struct conn *c, uint32_t opt)
{
	(void)opt;
	accept_tls(c);
	while (1) {
		record(c, TLS_ALERT, 2);
		put_be(c, "1 1", (uint32_t)1, (uint32_t)90);
	}
}

/* Data before there are keys. */
static void tls_data(struct conn *c, uint32_t opt)
{
	(void)opt;
	accept_tls(c);
	record(c, TLS_DATA, 20);
	put_garbage(c, 20);
	stall(c);
}

/* Goes on as if it had said no. */
static void tls_plain(struct conn *c, uint32_t opt)
{
	put_be(c, "8 4 4 4", (uint64_t)REP_MAGIC, opt, (uint32_t)REP_ACK,
	       (uint32_t)0);
	put_be(c, "8 4 4 4", (uint64_t)REP_MAGIC, (uint32_t)OPT_SR,
	       (uint32_t)REP_ACK, (uint32_t)0);
	put_be(c, "8 4 4 4 2 8 2", (uint64_t)REP_MAGIC, (uint32_t)OPT_GO,
	       (uint32_t)REP_INFO, (uint32_t)12, (uint32_t)INFO_EXPORT,
	       (uint64_t)DISK, (uint32_t)FLAGS);
	put_be(c, "8 4 4 4", (uint64_t)REP_MAGIC, (uint32_t)OPT_GO,
	       (uint32_t)REP_ACK, (uint32_t)0);
	stall(c);
}

#define TLS(what, how)                                           \
	{                                                        \
		.name = what, .opt = OPT_STARTTLS, .option = how \
	}

const struct evil evil_tls[] = {
	/* not at all */
	{ .name = "tls-refused" },
	TLS("tls-silent", tls_silent),
	TLS("tls-close", tls_close),
	TLS("tls-garbage", tls_garbage),
	TLS("tls-drip", tls_drip),
	{ .name = "tls-empty",
	  .opt = OPT_STARTTLS,
	  .option = tls_length,
	  .arg = 0 },
	{ .name = "tls-long",
	  .opt = OPT_STARTTLS,
	  .option = tls_length,
	  .arg = 0xffff },
	TLS("tls-flood", tls_flood),
	TLS("tls-half", tls_half),
	TLS("tls-alert", tls_alert),
	TLS("tls-alerts", tls_alerts),
	TLS("tls-data", tls_data),
	TLS("tls-plain", tls_plain),
	{ .name = NULL },
};
