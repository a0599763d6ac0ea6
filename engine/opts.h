/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * opts.h - one table of options, from which parsing, --help, the shell
 * completion and the check of the manual follow.
 *
 * Ownership  tables are static const; strings handed to callbacks belong to
 *            argv.
 * Threads    start-up only.
 * Errors     usage errors fill a struct error and return -EINVAL.
 */
#ifndef NBDFS_OPTS_H
#define NBDFS_OPTS_H

#include <stdio.h>
#include "engine.h"

enum opt_kind {
	OPT_FLAG,    /* no value */
	OPT_SIZE,    /* with K, M, G, T; stored as uint64_t */
	OPT_NUMBER,  /* decimal; stored as uint64_t */
	OPT_SECONDS, /* decimal fraction allowed; stored in ms */
	OPT_CHOICE,  /* one of choices, "a|b|c"; stored as index */
	OPT_STRING,
	OPT_MAYBE, /* an optional value, --name or --name=VALUE */
};

struct opt {
	const char *name; /* long name, without dashes */
	char letter;	  /* short name, or 0 */
	enum opt_kind kind;
	const char *arg;     /* "SIZE", "N", ... for help; NULL: no value */
	const char *choices; /* OPT_CHOICE */
	/* Bounds of OPT_SIZE, OPT_NUMBER, OPT_SECONDS (in ms); max 0: none. */
	uint64_t min, max;
	const char *deflt; /* default as shown to people; NULL: none */
	const char *help;  /* one short line; NULL: a hidden option */
	const char *alias; /* another long name, or NULL */
	const char *files; /* completion hint: "file", "dir" or NULL */
};

/* A value as parsed: number for sizes, numbers, ms, choices, flags (1). */
struct opt_value {
	const struct opt *opt;
	const char *text; /* as given; NULL where none was */
	uint64_t number;
};

struct opt_parser {
	const struct opt *table; /* ends with name == NULL */
	/* Called for each option in order; an error of it ends the parsing. */
	int (*set)(void *arg, const struct opt_value *v, struct error *err);
	void *arg;
};

/* An operand as it stood: a word, or a [ CMD ARGS... ] group. Each group is
 * taken out before options are parsed, anywhere on the line; what is inside
 * is never an option of ours. */
struct operand {
	const char *word; /* or NULL for a group */
	char **command;	  /* NULL-terminated; points into own memory */
};
struct operands {
	struct operand *list;
	size_t count;
	char **mem; /* opts_free_operands() frees it */
};

/* Options may follow operands; "--" ends options. getopt_long underneath:
 * long names may be shortened as far as they stay unique. On an error there
 * is nothing to free. */
int opts_parse(const struct opt_parser *p, int argc, char **argv,
	       struct operands *ops, struct error *err);
void opts_free_operands(struct operands *ops);
/* Checks and converts one value, as for -o name=value; text NULL: the name
 * stood alone. */
int opts_value(const struct opt *o, const char *text, struct opt_value *v,
	       struct error *err);
/* By long name or alias, exactly; NULL if there is none. */
const struct opt *opts_find(const struct opt *table, const char *name,
			    size_t len);
/* The list of options for --help. */
void opts_print_help(const struct opt *table, FILE *out);
/* One option a line: long name, letter, kind, argument, choices, default,
 * completion hint, alias, help; tab-separated, "-" where there is nothing. For
 * completion and tests (the hidden option --dump-options of each program). */
void opts_dump(const struct opt *table, FILE *out);

#endif
