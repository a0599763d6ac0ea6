/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Greetings, options, sizes: good ones and others. */
#include <stdio.h>
#include <string.h>

#include "evil.h"

static void greet_garbage(struct conn *c)
{
	put_garbage(c, 10000);
	hang_up(c);
}

static void greet_half(struct conn *c)
{
	put(c, "NBDMAGICIHAV", 12);
	hang_up(c);
}

static void greet_drip(struct conn *c)
{
	put(c, "NBDMAGICIHAVEOPT", 16);
	drip(c);
}

/* The oldest protocol: magic, size, flags, 124 zeroes. */
static void greet_oldstyle(struct conn *c)
{
	static const uint8_t zeroes[124];

	put(c, "NBDMAGIC", 8);
	put_be(c, "8 8 4", (uint64_t)0x00420281861253, c->e->size,
	       (uint32_t)0x1);
	put(c, zeroes, sizeof(zeroes));
	stall(c);
}

/* --------------------------------------------------------------- options */

static void reply(struct conn *c, uint32_t opt, uint32_t type, uint32_t len)
{
	put_be(c, "8 4 4 4", (uint64_t)REP_MAGIC, opt, type, len);
}

static void info_export(struct conn *c, uint32_t opt, uint64_t size)
{
	uint32_t flags = c->e->flags ? c->e->flags : FLAGS;

	reply(c, opt, REP_INFO, 12);
	put_be(c, "2 8 2", (uint32_t)INFO_EXPORT, size, flags);
}

static void go(struct conn *c, uint32_t opt)
{
	const struct evil *e = c->e;

	info_export(c, opt, c->size);
	if (e->min || e->preferred || e->max) {
		reply(c, opt, REP_INFO, 14);
		put_be(c, "2 4 4 4", (uint32_t)INFO_BLOCKS, e->min,
		       e->preferred, e->max);
	}
	reply(c, opt, REP_ACK, 0);
}

static void context(struct conn *c, uint32_t id, const char *name)
{
	reply(c, OPT_SET_CONTEXT, REP_CONTEXT, 4 + (uint32_t)strlen(name));
	put_be(c, "4", id);
	put(c, name, strlen(name));
}

static void opt_close(struct conn *c, uint32_t opt)
{
	(void)opt;
	hang_up(c);
}

static void opt_silent(struct conn *c, uint32_t opt)
{
	(void)opt;
	stall(c);
}

static void opt_garbage(struct conn *c, uint32_t opt)
{
	(void)opt;
	put_garbage(c, 5000);
	hang_up(c);
}

static void opt_drip(struct conn *c, uint32_t opt)
{
	info_export(c, opt, DISK);
	drip(c);
}

/* A reply to some other option. */
static void opt_other(struct conn *c, uint32_t opt)
{
	reply(c, opt + 1, REP_ACK, 0);
	stall(c);
}

static void opt_type(struct conn *c, uint32_t opt)
{
	reply(c, opt, c->e->arg, 0);
	stall(c);
}

static void opt_long(struct conn *c, uint32_t opt)
{
	reply(c, opt, c->e->arg, 0xfffffff0);
	put_garbage(c, 1 << 20);
	stall(c);
}

static void opt_ack_with_payload(struct conn *c, uint32_t opt)
{
	info_export(c, opt, DISK);
	reply(c, opt, REP_ACK, 40);
	put_garbage(c, 40);
	stall(c);
}

static void go_without_info(struct conn *c, uint32_t opt)
{
	reply(c, opt, REP_ACK, 0);
	stall(c);
}

static void go_short_info(struct conn *c, uint32_t opt)
{
	reply(c, opt, REP_INFO, 3);
	put(c, "\0\0\1", 3);
	reply(c, opt, REP_ACK, 0);
	stall(c);
}

static void go_empty_info(struct conn *c, uint32_t opt)
{
	reply(c, opt, REP_INFO, 0);
	reply(c, opt, REP_ACK, 0);
	stall(c);
}

/* Pieces of information that nobody knows, and text without end. */
static void go_strange_info(struct conn *c, uint32_t opt)
{
	static char text[4096];

	memset(text, 0xff, sizeof(text));
	for (uint32_t i = 0; i < 500; i++) {
		reply(c, opt, REP_INFO, 2 + 100);
		put_be(c, "2", 100 + i);
		put_garbage(c, 100);
	}
	for (uint32_t i = INFO_NAME; i <= INFO_DESCRIPTION; i++) {
		reply(c, opt, REP_INFO, 2 + sizeof(text));
		put_be(c, "2", i);
		put(c, text, sizeof(text));
	}
	go(c, opt);
}

/* The last word counts. */
static void go_two_sizes(struct conn *c, uint32_t opt)
{
	info_export(c, opt, (uint64_t)1 << 40);
	go(c, opt);
}

static void list_many(struct conn *c, uint32_t opt)
{
	char name[32];

	for (uint32_t i = 0; i < 10000; i++) {
		int n = snprintf(name, sizeof(name), "export%u", i);

		reply(c, opt, REP_SERVER, 4 + (uint32_t)n);
		put_be(c, "4", (uint32_t)n);
		put(c, name, (size_t)n);
	}
	reply(c, opt, REP_ACK, 0);
}

static void list_one(struct conn *c, uint32_t opt, const char *name, size_t len)
{
	reply(c, opt, REP_SERVER, 4 + (uint32_t)len);
	put_be(c, "4", (uint32_t)len);
	put(c, name, len);
}

static void list_names(struct conn *c, uint32_t opt)
{
	static char longest[4096];
	static const char *const names[] = {
		"plain",
		"../../etc/passwd",
		"/",
		".",
		"..",
		"a/b",
		"%2F",
		"%",
		"\033]0;title\007",
		"\xff\xfe\xc0\xaf",
		"tab\there",
		"-rf",
		"nl\n",
	};

	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		list_one(c, opt, names[i], strlen(names[i]));
	memset(longest, 'n', sizeof(longest));
	list_one(c, opt, longest, sizeof(longest));
	longest[4095] = 'm';
	list_one(c, opt, longest, sizeof(longest));
	reply(c, opt, REP_ACK, 0);
}

static void list_nul(struct conn *c, uint32_t opt)
{
	list_one(c, opt, "one\0two", 7);
	list_one(c, opt, "one\0three", 9);
	list_one(c, opt, "other", 5);
	reply(c, opt, REP_ACK, 0);
}

static void list_bad_length(struct conn *c, uint32_t opt)
{
	reply(c, opt, REP_SERVER, 8);
	put_be(c, "4 4", c->e->arg, (uint32_t)0);
	reply(c, opt, REP_ACK, 0);
	stall(c);
}

static void context_none(struct conn *c, uint32_t opt)
{
	reply(c, opt, REP_ACK, 0);
}

static void context_many(struct conn *c, uint32_t opt)
{
	char name[32];

	for (uint32_t i = 0; i < 2000; i++) {
		snprintf(name, sizeof(name), "x:context%u", i);
		context(c, 1000000 + i, name);
	}
	context(c, CONTEXT_ID, "base:allocation");
	reply(c, opt, REP_ACK, 0);
}

/* The same name with two numbers: only one of them is used. */
static void context_twice(struct conn *c, uint32_t opt)
{
	context(c, 99, "base:allocation");
	context(c, CONTEXT_ID, "base:allocation");
	reply(c, opt, REP_ACK, 0);
}

static void context_short(struct conn *c, uint32_t opt)
{
	reply(c, opt, REP_CONTEXT, 2);
	put_be(c, "2", (uint32_t)1);
	reply(c, opt, REP_ACK, 0);
}

/* True when transmission begins. */
static bool good_option(struct conn *c, uint32_t opt)
{
	switch (opt) {
	case OPT_SR:
		c->structured = !c->e->simple;
		reply(c, opt, c->structured ? REP_ACK : REP_ERR_UNSUP, 0);
		return false;
	case OPT_SET_CONTEXT:
		context(c, CONTEXT_ID, "base:allocation");
		reply(c, opt, REP_ACK, 0);
		return false;
	case OPT_LIST:
		list_one(c, opt, "", 0);
		reply(c, opt, REP_ACK, 0);
		return false;
	case OPT_INFO:
	case OPT_GO:
		go(c, opt);
		return opt == OPT_GO;
	case OPT_ABORT:
		reply(c, opt, REP_ACK, 0);
		hang_up(c);
		return false;
	default:
		reply(c, opt, REP_ERR_UNSUP, 0);
		return false;
	}
}

void negotiate(struct conn *c)
{
	const struct evil *e = c->e;
	bool more = true;

	put(c, "NBDMAGICIHAVEOPT\0\3", 18);
	get_be(c, 4);
	while (more) {
		uint32_t opt, len;

		if (get_be(c, 8) != OPT_MAGIC)
			hang_up(c);
		opt = (uint32_t)get_be(c, 4);
		len = (uint32_t)get_be(c, 4);
		skip(c, len);
		if (opt == OPT_EXPORT_NAME)
			hang_up(c);
		if (e->option && e->opt == opt && be_evil(c)) {
			e->option(c, opt);
			more = opt != OPT_GO;
		} else {
			more = !good_option(c, opt);
		}
	}
}

const struct evil evil_handshake[] = {
	{ .name = "good" },
	{ .name = "good-many", .flags = FLAGS | FLAG_MULTI_CONN },
	{ .name = "good-old", .simple = true },
	{ .name = "good-read-only", .flags = FLAGS | FLAG_READ_ONLY },

	{ .name = "greet-silent", .greet = stall },
	{ .name = "greet-close", .greet = hang_up },
	{ .name = "greet-garbage", .greet = greet_garbage },
	{ .name = "greet-half", .greet = greet_half },
	{ .name = "greet-drip", .greet = greet_drip },
	{ .name = "oldstyle-huge", .greet = greet_oldstyle, .size = UINT64_MAX },

	{ .name = "sr-silent", .opt = OPT_SR, .option = opt_silent },
	{ .name = "sr-garbage", .opt = OPT_SR, .option = opt_garbage },
	{ .name = "sr-close", .opt = OPT_SR, .option = opt_close },
	{ .name = "sr-other", .opt = OPT_SR, .option = opt_other },
	{ .name = "sr-type", .opt = OPT_SR, .option = opt_type, .arg = 0x7fff },
	{ .name = "sr-long", .opt = OPT_SR, .option = opt_long, .arg = REP_ACK },
	{ .name = "context-silent",
	  .opt = OPT_SET_CONTEXT,
	  .option = opt_silent },
	{ .name = "context-close", .opt = OPT_SET_CONTEXT, .option = opt_close },
	{ .name = "context-garbage",
	  .opt = OPT_SET_CONTEXT,
	  .option = opt_garbage },
	{ .name = "context-none",
	  .opt = OPT_SET_CONTEXT,
	  .option = context_none },
	{ .name = "context-many",
	  .opt = OPT_SET_CONTEXT,
	  .option = context_many },
	{ .name = "context-twice",
	  .opt = OPT_SET_CONTEXT,
	  .option = context_twice },
	{ .name = "context-short",
	  .opt = OPT_SET_CONTEXT,
	  .option = context_short },
	{ .name = "go-silent", .opt = OPT_GO, .option = opt_silent },
	{ .name = "go-close", .opt = OPT_GO, .option = opt_close },
	{ .name = "go-garbage", .opt = OPT_GO, .option = opt_garbage },
	{ .name = "go-drip", .opt = OPT_GO, .option = opt_drip },
	{ .name = "go-other", .opt = OPT_GO, .option = opt_other },
	{ .name = "go-type", .opt = OPT_GO, .option = opt_type, .arg = 0x99 },
	{ .name = "go-error",
	  .opt = OPT_GO,
	  .option = opt_type,
	  .arg = 0x8000ffff },
	{ .name = "go-long",
	  .opt = OPT_GO,
	  .option = opt_long,
	  .arg = REP_INFO },
	{ .name = "go-long-error",
	  .opt = OPT_GO,
	  .option = opt_long,
	  .arg = 0x80000003 },
	{ .name = "go-ack-with-payload",
	  .opt = OPT_GO,
	  .option = opt_ack_with_payload },
	{ .name = "go-without-info", .opt = OPT_GO, .option = go_without_info },
	{ .name = "go-short-info", .opt = OPT_GO, .option = go_short_info },
	{ .name = "go-empty-info", .opt = OPT_GO, .option = go_empty_info },
	{ .name = "go-strange-info", .opt = OPT_GO, .option = go_strange_info },
	{ .name = "go-two-sizes", .opt = OPT_GO, .option = go_two_sizes },
	{ .name = "list-silent", .opt = OPT_LIST, .option = opt_silent },
	{ .name = "list-garbage", .opt = OPT_LIST, .option = opt_garbage },
	{ .name = "list-many", .opt = OPT_LIST, .option = list_many },
	{ .name = "list-names", .opt = OPT_LIST, .option = list_names },
	{ .name = "list-nul", .opt = OPT_LIST, .option = list_nul },
	{ .name = "list-bad-length",
	  .opt = OPT_LIST,
	  .option = list_bad_length,
	  .arg = 0xffffffff },

	{ .name = "size-2^63", .size = (uint64_t)1 << 63 },
	{ .name = "size-2^64-1", .size = UINT64_MAX },
	{ .name = "size-2^63-1", .size = INT64_MAX },
	{ .name = "size-odd", .size = DISK - 13 },
	{ .name = "size-not-blocks",
	  .size = DISK - 512,
	  .min = 4096,
	  .preferred = 4096,
	  .max = 1 << 20 },
	{ .name = "min-3", .min = 3, .preferred = 4096, .max = 1 << 20 },
	{ .name = "min-128K",
	  .min = 1 << 17,
	  .preferred = 1 << 17,
	  .max = 1 << 20 },
	{ .name = "min-huge",
	  .min = 1u << 31,
	  .preferred = 1u << 31,
	  .max = 1u << 31 },
	{ .name = "preferred-odd",
	  .min = 512,
	  .preferred = 5000,
	  .max = 1 << 20 },
	{ .name = "preferred-small",
	  .min = 4096,
	  .preferred = 512,
	  .max = 1 << 20 },
	{ .name = "max-small", .min = 4096, .preferred = 4096, .max = 512 },
	{ .name = "max-odd", .min = 512, .preferred = 4096, .max = 1000001 },
	{ .name = "blocks-0", .preferred = 4096 },
	{ .name = "max-1", .min = 1, .preferred = 512, .max = 1 },
	{ .name = "max-4K", .min = 1, .preferred = 4096, .max = 4096 },
	{ .name = "flags-all", .flags = 0xffff & ~FLAG_READ_ONLY },
	{ .name = "flags-none", .flags = 0x8000 },
	{ .name = NULL },
};
