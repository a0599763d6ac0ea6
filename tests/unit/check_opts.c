/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Options: values, groups in brackets, order of operands, help, dump. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "opts.h"
#include "unit.h"
#include "util.h"

static const struct opt table[] = {
	{ .name = "read-only",
	  .letter = 'r',
	  .kind = OPT_FLAG,
	  .help = "never write" },
	{ .name = "read-ahead",
	  .kind = OPT_SIZE,
	  .arg = "SIZE",
	  .max = GiB,
	  .deflt = "32M",
	  .help = "bytes that are read ahead for each open file, at most, and "
		  "some more words so that the line is folded" },
	{ .name = "connections",
	  .letter = 'C',
	  .kind = OPT_NUMBER,
	  .arg = "N",
	  .min = 1,
	  .max = 64,
	  .deflt = "4",
	  .help = "connections to each export" },
	{ .name = "timeout",
	  .kind = OPT_SECONDS,
	  .arg = "SECONDS",
	  .help = "an answer later than this is none" },
	{ .name = "cache",
	  .kind = OPT_CHOICE,
	  .choices = "direct|kernel",
	  .deflt = "direct",
	  .help = "which caching" },
	{ .name = "pidfile",
	  .letter = 'P',
	  .kind = OPT_STRING,
	  .arg = "FILE",
	  .files = "file",
	  .help = "write the process id there" },
	{ .name = "progress",
	  .letter = 'p',
	  .kind = OPT_MAYBE,
	  .arg = "FD",
	  .help = "show progress" },
	{ .name = "destination-is-zero",
	  .kind = OPT_FLAG,
	  .alias = "target-is-zero",
	  .help = "nothing to clear" },
	{ .name = "dump-options", .kind = OPT_FLAG },
	{ .name = NULL },
};

/* What was set, as text: "name=text:number;". */
static int note(void *arg, const struct opt_value *v, struct error *err)
{
	char *log = arg;
	size_t used = strlen(log);

	if (v->text && strcmp(v->text, "refused") == 0) {
		error_set(err, "refused by the owner");
		return -EINVAL;
	}
	snprintf(log + used, 1024 - used, "%s=%s:%llu;", v->opt->name,
		 v->text ? v->text : "", (unsigned long long)v->number);
	return 0;
}

static size_t words_of(char *line, char **argv, size_t max)
{
	size_t n = 0;
	char *word;

	while ((word = strsep(&line, " "))) {
		ck_assert_uint_lt(n + 1, max);
		argv[n++] = word;
	}
	argv[n] = NULL;
	return n;
}

/* Parses "prog WORDS" and gives all back as one text: the options, then the
 * operands, groups in "<...>"; or "error: ...". */
static const char *parse(const char *words)
{
	static char result[2048];
	char line[1024], log[1024] = "";
	char *argv[64];
	struct opt_parser p = { .table = table, .set = note, .arg = log };
	struct operands ops;
	struct error err = { "" };
	size_t i, used;
	int r;

	snprintf(line, sizeof(line), "prog%s%s", *words ? " " : "", words);
	r = opts_parse(&p, (int)words_of(line, argv, ARRAY_SIZE(argv)), argv,
		       &ops, &err);
	if (r < 0) {
		ck_assert_int_eq(r, -EINVAL);
		ck_assert_ptr_null(ops.list);
		ck_assert_ptr_null(ops.mem);
		snprintf(result, sizeof(result), "error: %s", err.text);
		return result;
	}
	used = (size_t)snprintf(result, sizeof(result), "%s|", log);
	for (i = 0; i < ops.count; i++) {
		const struct operand *o = &ops.list[i];
		char **w;

		ck_assert((o->word != NULL) != (o->command != NULL));
		if (o->word) {
			used += (size_t)snprintf(result + used,
						 sizeof(result) - used, " %s",
						 o->word);
			continue;
		}
		used += (size_t)snprintf(result + used, sizeof(result) - used,
					 " <");
		for (w = o->command; *w; w++)
			used += (size_t)snprintf(result + used,
						 sizeof(result) - used, "%s,",
						 *w);
		used += (size_t)snprintf(result + used, sizeof(result) - used,
					 ">");
	}
	opts_free_operands(&ops);
	return result;
}

struct line {
	const char *words, *result;
};

static void check_lines(const struct line *lines, size_t n)
{
	size_t i;

	for (i = 0; i < n; i++)
		ck_assert_str_eq(parse(lines[i].words), lines[i].result);
}

static const struct line good[] = {
	{ "", "|" },
	{ "nbd://h/x mnt", "| nbd://h/x mnt" },
	/* Options anywhere, short ones together, values both ways. */
	{ "-r a -C 8 b", "read-only=:1;connections=8:8;| a b" },
	{ "a b -rC8", "read-only=:1;connections=8:8;| a b" },
	{ "--read-ahead=2k --read-ahead 3M",
	  "read-ahead=2k:2048;read-ahead=3M:3145728;|" },
	{ "--cache=kernel --cache direct", "cache=kernel:1;cache=direct:0;|" },
	{ "--pidfile=a=b -P c", "pidfile=a=b:0;pidfile=c:0;|" },
	{ "-p --progress --progress=3 -p4 x",
	  "progress=:0;progress=:0;progress=3:0;progress=4:0;| x" },
	{ "--progress 3", "progress=:0;| 3" },
	{ "--target-is-zero --destination-is-zero",
	  "destination-is-zero=:1;destination-is-zero=:1;|" },
	{ "--dump-options", "dump-options=:1;|" },
	/* Shortened as far as it is unique. */
	{ "--conn=2 --read-o", "connections=2:2;read-only=:1;|" },
	/* A dash is an operand; "--" ends options. */
	{ "- -r -", "read-only=:1;| - -" },
	{ "-r -- -r --nonsense", "read-only=:1;| -r --nonsense" },
	/* Groups, wherever they stand; options in them are not ours. */
	{ "[ nbdkit -r memory 1M ] mnt", "| <nbdkit,-r,memory,1M,> mnt" },
	{ "-r [ s -- -r ] [ t ] m -C 2",
	  "read-only=:1;connections=2:2;| <s,--,-r,> <t,> m" },
	{ "a -- [ s -x ] -r", "| a <s,-x,> -r" },
	{ "[ cp [ s --fail ] null: ] x", "| <cp,[,s,--fail,],null:,> x" },
	/* Brackets inside words mean nothing. */
	{ "nbd://[::1]/ [a a] [[ ]]", "| nbd://[::1]/ [a a] [[ ]]" },
	{ "[ s [x ]y [[ ] z", "| <s,[x,]y,[[,> z" },
	{ "--timeout=1.5 --timeout=0.0001 --timeout 2 --timeout=.5x y",
	  "error: --timeout=.5x: not a number of seconds" },
	{ "--timeout=1.5 --timeout=0.0001 --timeout 2 --timeout=3.999999",
	  "timeout=1.5:1500;timeout=0.0001:1;timeout=2:2000;"
	  "timeout=3.999999:4000;|" },
};

START_TEST(lines_parse)
{
	check_lines(good, ARRAY_SIZE(good));
	/* The environment must not change what a script means. */
	ck_assert_int_eq(setenv("POSIXLY_CORRECT", "1", 1), 0);
	check_lines(good, ARRAY_SIZE(good));
}
END_TEST

static const struct line bad[] = {
	{ "--nonsense", "error: unknown option --nonsense" },
	{ "--nonsense=5 x", "error: unknown option --nonsense" },
	{ "-rx", "error: unknown option -x" },
	{ "--read", "error: option --read is short for several: --read-only, "
		    "--read-ahead" },
	{ "--t", "error: option --t is short for several: --timeout, "
		 "--target-is-zero" },
	{ "--dump-optionsx", "error: unknown option --dump-optionsx" },
	{ "--read-only=1", "error: option --read-only takes no value" },
	{ "a -C", "error: option --connections needs a value" },
	{ "--connections", "error: option --connections needs a value" },
	{ "-C 0", "error: --connections=0: must be from 1 to 64" },
	{ "-C 65", "error: --connections=65: must be from 1 to 64" },
	{ "-C 99999999999999999999",
	  "error: --connections=99999999999999999999: must be from 1 to 64" },
	{ "-C -1", "error: --connections=-1: not a number" },
	{ "-C 4x", "error: --connections=4x: not a number" },
	{ "--connections=", "error: --connections=: not a number" },
	{ "--read-ahead=2G", "error: --read-ahead=2G: must be at most 1 GiB" },
	{ "--read-ahead=16E",
	  "error: --read-ahead=16E: must be at most 1 GiB" },
	{ "--read-ahead=1KK", "error: --read-ahead=1KK: not a size (a number, "
			      "and K, M, G or T)" },
	{ "--cache=disk", "error: --cache=disk: must be one of direct|kernel" },
	{ "--cache=direct|kernel",
	  "error: --cache=direct|kernel: must be one of direct|kernel" },
	{ "--cache=", "error: --cache=: must be one of direct|kernel" },
	{ "--timeout=", "error: --timeout=: not a number of seconds" },
	{ "--timeout=1.", "error: --timeout=1.: not a number of seconds" },
	{ "--timeout=.", "error: --timeout=.: not a number of seconds" },
	{ "--timeout=1.2.3", "error: --timeout=1.2.3: not a number of "
			     "seconds" },
	{ "--timeout=99999999999999999999.5",
	  "error: --timeout=99999999999999999999.5: too large" },
	{ "--pidfile=refused", "error: refused by the owner" },
	{ "[ a b", "error: \"[\" without \"]\" after it" },
	{ "[ a [ b ]", "error: \"[\" without \"]\" after it" },
	{ "a ] b", "error: \"]\" without \"[\" before it" },
	{ "[ a ] ]", "error: \"]\" without \"[\" before it" },
	{ "[ ] x", "error: \"[ ]\" without a command in it" },
	{ "-P [ a ] x",
	  "error: option --pidfile needs a value, not a command" },
};

START_TEST(lines_fail)
{
	check_lines(bad, ARRAY_SIZE(bad));
}
END_TEST

START_TEST(finds_by_name)
{
	ck_assert_ptr_eq(opts_find(table, "read-only", 9), &table[0]);
	ck_assert_ptr_eq(opts_find(table, "read-ahead=3", 10), &table[1]);
	ck_assert_ptr_eq(opts_find(table, "target-is-zero", 14), &table[7]);
	ck_assert_ptr_null(opts_find(table, "read-only", 4));
	ck_assert_ptr_null(opts_find(table, "read-onlyx", 10));
	ck_assert_ptr_null(opts_find(table, "", 0));
}
END_TEST

START_TEST(values_alone)
{
	struct opt_value v;
	struct error err = { "" };

	ck_assert_int_eq(opts_value(&table[1], "1M", &v, &err), 0);
	ck_assert_ptr_eq(v.opt, &table[1]);
	ck_assert_uint_eq(v.number, MiB);
	ck_assert_int_eq(opts_value(&table[1], NULL, &v, &err), -EINVAL);
	ck_assert_str_eq(err.text, "option --read-ahead needs a value");
	ck_assert_int_eq(opts_value(&table[0], NULL, &v, &err), 0);
	ck_assert_int_eq(opts_value(&table[0], "", &v, &err), -EINVAL);
	ck_assert_int_eq(opts_value(&table[6], NULL, &v, &err), 0);
	/* Nobody listens to the text. */
	ck_assert_int_eq(opts_value(&table[0], "", &v, NULL), -EINVAL);
}
END_TEST

static char *output(void (*print)(const struct opt *, FILE *))
{
	char *text = NULL;
	size_t len;
	FILE *f = open_memstream(&text, &len);

	ck_assert_ptr_nonnull(f);
	print(table, f);
	ck_assert_int_eq(fclose(f), 0);
	return text;
}

START_TEST(help_is_readable)
{
	char *text = output(opts_print_help);
	char *rest = text, *line;

	ck_assert_ptr_nonnull(strstr(text, "  -r, --read-only               "
					   "never write\n"));
	ck_assert_ptr_nonnull(strstr(text, "      --cache=direct|kernel     "
					   "which caching (default direct)"));
	ck_assert_ptr_nonnull(strstr(text, "  -p, --progress[=FD] "));
	ck_assert_ptr_nonnull(strstr(text, "(also --target-is-zero)\n"));
	ck_assert_ptr_null(strstr(text, "dump-options"));
	while ((line = strsep(&rest, "\n"))) {
		size_t len = strlen(line);

		ck_assert_uint_le(len, 80);
		ck_assert(len == 0 || line[len - 1] != ' ');
	}
	free(text);
}
END_TEST

START_TEST(dump_is_complete)
{
	char *text = output(opts_dump);
	char *rest = text, *line;
	unsigned lines = 0;

	ck_assert_ptr_nonnull(strstr(text,
				     "connections\tC\tnumber\tN\t-\t4\t-\t-\t"
				     "connections to each export\n"));
	ck_assert_ptr_nonnull(strstr(text, "cache\t-\tchoice\t-\tdirect|kernel"
					   "\tdirect\t-\t-\twhich"));
	ck_assert_ptr_nonnull(strstr(text, "pidfile\tP\tstring\tFILE\t-\t-\t"
					   "file\t-\t"));
	while ((line = strsep(&rest, "\n")) && *line) {
		unsigned tabs = 0;

		for (; *line; line++)
			tabs += *line == '\t';
		ck_assert_uint_eq(tabs, 8);
		lines++;
	}
	ck_assert_uint_eq(lines, ARRAY_SIZE(table) - 2);
	free(text);
}
END_TEST

int main(void)
{
	const struct unit_case cases[] = {
		{ lines_parse, 0 },	 { lines_fail, 0 },
		{ finds_by_name, 0 },	 { values_alone, 0 },
		{ help_is_readable, 0 }, { dump_is_complete, 0 },
	};

	return unit_main("opts", cases, ARRAY_SIZE(cases));
}
