/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "opts.h"
#include "util.h"

/* getopt_long() gives an option as this plus its place in the table. */
#define FIRST_CODE 256

#define LINE_WIDTH 80
#define HELP_COLUMN 32

static bool needs_value(const struct opt *o)
{
	return o->kind != OPT_FLAG && o->kind != OPT_MAYBE;
}

/* ------------------------------------------------------------------ values */

/* Seconds with a decimal fraction into milliseconds. Rounded up: less than a
 * millisecond must not become nothing. */
static int parse_seconds(const char *text, uint64_t *ms)
{
	size_t len = strcspn(text, ".");
	const char *digit = text + len;
	uint64_t fraction = 0, scale = 100;
	bool more = false;
	char whole[24];
	int r;

	if (len >= sizeof(whole) || (digit[0] == '.' && !digit[1]))
		return -EINVAL;
	memcpy(whole, text, len);
	whole[len] = '\0';
	for (digit += *digit == '.'; *digit; digit++) {
		if (*digit < '0' || *digit > '9')
			return -EINVAL;
		if (scale == 0 && *digit != '0')
			more = true;
		fraction += scale * (uint64_t)(*digit - '0');
		scale /= 10;
	}
	r = parse_number(whole, 0, UINT64_MAX / 1000 - 1, ms);
	if (r < 0)
		return r;
	*ms = *ms * 1000 + fraction + more;
	return 0;
}

static int parse_choice(const char *choices, const char *text, uint64_t *n)
{
	size_t len = strlen(text);
	const char *at = choices;

	for (*n = 0; at; (*n)++) {
		size_t this = strcspn(at, "|");

		if (this == len && memcmp(at, text, len) == 0)
			return 0;
		at = at[this] ? at + this + 1 : NULL;
	}
	return -EINVAL;
}

static int bad_range(const struct opt *o, const char *text, struct error *err)
{
	uint64_t max = o->max ? o->max : UINT64_MAX;
	char from[24], to[24];

	switch (o->kind) {
	case OPT_SIZE:
		format_size(o->min, from, sizeof(from));
		format_size(max, to, sizeof(to));
		break;
	case OPT_SECONDS:
		snprintf(from, sizeof(from), "%.10g", (double)o->min / 1000);
		snprintf(to, sizeof(to), "%.10g", (double)max / 1000);
		break;
	default:
		snprintf(from, sizeof(from), "%llu",
			 (unsigned long long)o->min);
		snprintf(to, sizeof(to), "%llu", (unsigned long long)max);
		break;
	}
	if (o->max && o->min)
		error_set(err, "--%s=%s: must be from %s to %s", o->name, text,
			  from, to);
	else if (o->max)
		error_set(err, "--%s=%s: must be at most %s", o->name, text,
			  to);
	else if (o->min)
		error_set(err, "--%s=%s: must be at least %s", o->name, text,
			  from);
	else
		error_set(err, "--%s=%s: too large", o->name, text);
	return -EINVAL;
}

/* Sizes, numbers, seconds. */
static int number_value(const struct opt *o, const char *text,
			struct opt_value *v, struct error *err)
{
	const char *what;
	int r;

	switch (o->kind) {
	case OPT_SIZE:
		r = parse_size(text, &v->number);
		what = "a size (a number, and K, M, G or T)";
		break;
	case OPT_SECONDS:
		r = parse_seconds(text, &v->number);
		what = "a number of seconds";
		break;
	default:
		r = parse_number(text, 0, UINT64_MAX, &v->number);
		what = "a number";
		break;
	}
	if (r == -EINVAL) {
		error_set(err, "--%s=%s: not %s", o->name, text, what);
		return r;
	}
	if (r < 0 || v->number < o->min || (o->max && v->number > o->max))
		return bad_range(o, text, err);
	return 0;
}

int opts_value(const struct opt *o, const char *text, struct opt_value *v,
	       struct error *err)
{
	*v = (struct opt_value){ .opt = o, .text = text };
	if (!text && needs_value(o)) {
		error_set(err, "option --%s needs a value", o->name);
		return -EINVAL;
	}
	switch (o->kind) {
	case OPT_FLAG:
		if (text) {
			error_set(err, "option --%s takes no value", o->name);
			return -EINVAL;
		}
		v->number = 1;
		return 0;
	case OPT_SIZE:
	case OPT_NUMBER:
	case OPT_SECONDS:
		return number_value(o, text, v, err);
	case OPT_CHOICE:
		if (parse_choice(o->choices, text, &v->number) == 0)
			return 0;
		error_set(err, "--%s=%s: must be one of %s", o->name, text,
			  o->choices);
		return -EINVAL;
	case OPT_STRING:
	case OPT_MAYBE:
		break;
	}
	return 0;
}

static bool is_name(const char *have, const char *name, size_t len)
{
	return have && strncmp(have, name, len) == 0 && have[len] == '\0';
}

const struct opt *opts_find(const struct opt *table, const char *name,
			    size_t len)
{
	for (; table->name; table++) {
		if (is_name(table->name, name, len) ||
		    is_name(table->alias, name, len))
			return table;
	}
	return NULL;
}

/* ------------------------------------------------------------------ groups */

/* What is known of a command line while it is parsed. */
struct parse {
	const struct opt_parser *p;
	struct operands *ops;
	size_t nopts; /* in the table */
	int argc;
	char **argv;   /* without the groups, see below */
	char ***group; /* the commands, in order */
	size_t ngroups, next_group;
	struct option *longopts;
	char *shortopts;
};

/* Only the words "[" and "]" themselves count: nbd://[::1]/ is a word like
 * any other. Returns the index of the closing one, 0 if there is none. */
static int group_end(int argc, char **argv, int open)
{
	int depth = 0, i;

	for (i = open; i < argc; i++) {
		if (strcmp(argv[i], "[") == 0)
			depth++;
		else if (strcmp(argv[i], "]") == 0 && --depth == 0)
			return i;
	}
	return 0;
}

/* Copies argv into ps->argv, where a group is just its word "[", and its words
 * into ops->mem. No other "[" is left then, so that each "[" among the
 * operands stands for the next group. */
static int take_groups(struct parse *ps, int argc, char **argv,
		       struct error *err)
{
	char **mem = ps->ops->mem;
	int i, end, n;

	for (i = 0; i < argc; i++) {
		if (i > 0 && strcmp(argv[i], "]") == 0) {
			error_set(err, "\"]\" without \"[\" before it");
			return -EINVAL;
		}
		ps->argv[ps->argc++] = argv[i];
		if (i == 0 || strcmp(argv[i], "[") != 0)
			continue;
		end = group_end(argc, argv, i);
		n = end - i - 1;
		if (end == 0 || n == 0) {
			error_set(err, "%s",
				  end ? "\"[ ]\" without a command in it" :
					"\"[\" without \"]\" after it");
			return -EINVAL;
		}
		ps->group[ps->ngroups++] = mem;
		memcpy(mem, argv + i + 1, (size_t)n * sizeof(*mem));
		mem[n] = NULL;
		mem += n + 1;
		i = end;
	}
	return 0;
}

static void add_operand(struct parse *ps, const char *word)
{
	struct operand *o = &ps->ops->list[ps->ops->count++];

	if (strcmp(word, "[") == 0)
		*o = (struct operand){ .command = ps->group[ps->next_group++] };
	else
		*o = (struct operand){ .word = word };
}

/* ------------------------------------------------------------------ parsing */

static void describe_option(struct parse *ps, size_t index)
{
	const struct opt *o = &ps->p->table[index];
	const char *names[2] = { o->name, o->alias };
	struct option *l = ps->longopts;
	char *s = ps->shortopts + strlen(ps->shortopts);
	size_t i;

	while (l->name)
		l++;
	for (i = 0; i < ARRAY_SIZE(names); i++) {
		if (!names[i])
			continue;
		*l++ = (struct option){
			.name = names[i],
			.has_arg = o->kind == OPT_FLAG	? no_argument :
				   o->kind == OPT_MAYBE ? optional_argument :
							  required_argument,
			.val = FIRST_CODE + (int)index,
		};
	}
	if (!o->letter)
		return;
	*s++ = o->letter;
	if (o->kind != OPT_FLAG)
		*s++ = ':';
	if (o->kind == OPT_MAYBE)
		*s++ = ':';
}

/* All that parsing needs, sized by the table and the words. */
static int parse_begin(struct parse *ps, int argc)
{
	size_t words = (size_t)argc + 1, i;

	while (ps->p->table[ps->nopts].name)
		ps->nopts++;
	ps->argv = calloc(words, sizeof(*ps->argv));
	ps->group = calloc(words, sizeof(*ps->group));
	ps->ops->mem = calloc(words, sizeof(*ps->ops->mem));
	ps->ops->list = calloc(words, sizeof(*ps->ops->list));
	ps->longopts = calloc(2 * ps->nopts + 1, sizeof(*ps->longopts));
	ps->shortopts = calloc(3 * ps->nopts + 3, 1);
	if (!ps->argv || !ps->group || !ps->ops->mem || !ps->ops->list ||
	    !ps->longopts || !ps->shortopts)
		return -ENOMEM;
	/* '-': operands come in their order among the options, whatever the
	 * environment says; ':': messages are ours. */
	memcpy(ps->shortopts, "-:", 2);
	for (i = 0; i < ps->nopts; i++)
		describe_option(ps, i);
	return 0;
}

static const struct opt *option_of_code(const struct parse *ps, int code)
{
	size_t i;

	if (code >= FIRST_CODE)
		return &ps->p->table[code - FIRST_CODE];
	for (i = 0; i < ps->nopts; i++) {
		if (ps->p->table[i].letter == code)
			return &ps->p->table[i];
	}
	return NULL;
}

/* Adds the name to a list in text where it begins as the word does. */
static size_t list_name(char *text, size_t size, size_t used, const char *name,
			const char *word, size_t len)
{
	int n;

	if (!name || strncmp(name, word, len) != 0)
		return used;
	n = snprintf(text + used, size - used, "%s--%s", used ? ", " : "",
		     name);
	return min_u64(used + (size_t)n, size - 1);
}

/* The word is not an option; if it is short for several, they are named. */
static void bad_long(const struct parse *ps, const char *word,
		     struct error *err)
{
	size_t len = strcspn(word, "="), used = 0, i;
	char list[256] = "";

	for (i = 0; i < ps->nopts && len > 2; i++) {
		const struct opt *o = &ps->p->table[i];

		if (!o->help)
			continue;
		used = list_name(list, sizeof(list), used, o->name, word + 2,
				 len - 2);
		used = list_name(list, sizeof(list), used, o->alias, word + 2,
				 len - 2);
	}
	if (used)
		error_set(err, "option %.*s is short for several: %s", (int)len,
			  word, list);
	else
		error_set(err, "unknown option %.*s", (int)len, word);
}

static int bad_option(const struct parse *ps, int code, struct error *err)
{
	const struct opt *o = optopt ? option_of_code(ps, optopt) : NULL;

	if (o && code == ':')
		error_set(err, "option --%s needs a value", o->name);
	else if (o)
		error_set(err, "option --%s takes no value", o->name);
	else if (optopt)
		error_set(err, "unknown option -%c", optopt);
	else
		bad_long(ps, ps->argv[optind - 1], err);
	return -EINVAL;
}

static int parse_option(struct parse *ps, int code, struct error *err)
{
	const struct opt *o = option_of_code(ps, code);
	struct opt_value v;
	int r;

	if (optarg && strcmp(optarg, "[") == 0) {
		error_set(err, "option --%s needs a value, not a command",
			  o->name);
		return -EINVAL;
	}
	r = opts_value(o, optarg, &v, err);
	if (r < 0)
		return r;
	return ps->p->set(ps->p->arg, &v, err);
}

static int parse_words(struct parse *ps, struct error *err)
{
	int code, r;

	optind = 0; /* from the start, also a second time */
	opterr = 0;
	for (;;) {
		optopt = 0;
		code = getopt_long(ps->argc, ps->argv, ps->shortopts,
				   ps->longopts, NULL);
		if (code == -1)
			break;
		if (code == 1) {
			add_operand(ps, optarg);
			continue;
		}
		if (code == '?' || code == ':')
			r = bad_option(ps, code, err);
		else
			r = parse_option(ps, code, err);
		if (r < 0)
			return r;
	}
	while (optind < ps->argc)
		add_operand(ps, ps->argv[optind++]);
	return 0;
}

int opts_parse(const struct opt_parser *p, int argc, char **argv,
	       struct operands *ops, struct error *err)
{
	struct parse ps = { .p = p, .ops = ops };
	int r;

	*ops = (struct operands){ 0 };
	r = parse_begin(&ps, argc);
	if (r < 0)
		error_set(err, "out of memory");
	else
		r = take_groups(&ps, argc, argv, err);
	if (r == 0)
		r = parse_words(&ps, err);
	free(ps.argv);
	free(ps.group);
	free(ps.longopts);
	free(ps.shortopts);
	if (r < 0)
		opts_free_operands(ops);
	return r;
}

void opts_free_operands(struct operands *ops)
{
	free(ops->list);
	free(ops->mem);
	*ops = (struct operands){ 0 };
}

/* ------------------------------------------------------------------- output */

/* Writes words from `column` on, folded at LINE_WIDTH and indented. */
static void print_folded(FILE *out, const char *text, size_t column)
{
	while (*text) {
		size_t len = strcspn(text, " ");

		if (column > HELP_COLUMN && column + 1 + len > LINE_WIDTH) {
			fprintf(out, "\n%*s", HELP_COLUMN, "");
			column = HELP_COLUMN;
		} else if (column > HELP_COLUMN) {
			fputc(' ', out);
			column++;
		}
		fwrite(text, 1, len, out);
		column += len;
		text += len + strspn(text + len, " ");
	}
	fputc('\n', out);
}

static void print_option(FILE *out, const struct opt *o)
{
	const char *arg = o->arg ? o->arg : o->choices;
	char left[128], right[512];
	int n, len;

	if (o->letter)
		n = snprintf(left, sizeof(left), "  -%c, --%s", o->letter,
			     o->name);
	else
		n = snprintf(left, sizeof(left), "      --%s", o->name);
	if (arg && o->kind != OPT_FLAG && n > 0 && (size_t)n < sizeof(left))
		snprintf(left + n, sizeof(left) - (size_t)n,
			 o->kind == OPT_MAYBE ? "[=%s]" : "=%s", arg);
	snprintf(right, sizeof(right), "%s%s%s%s%s%s%s", o->help,
		 o->deflt ? " (default " : "", o->deflt ? o->deflt : "",
		 o->deflt ? ")" : "", o->alias ? " (also --" : "",
		 o->alias ? o->alias : "", o->alias ? ")" : "");
	len = fprintf(out, "%s", left);
	if (len < 0)
		return;
	if (len > HELP_COLUMN - 2)
		fprintf(out, "\n%*s", HELP_COLUMN, "");
	else
		fprintf(out, "%*s", HELP_COLUMN - len, "");
	print_folded(out, right, HELP_COLUMN);
}

void opts_print_help(const struct opt *table, FILE *out)
{
	for (; table->name; table++) {
		if (table->help)
			print_option(out, table);
	}
}

static const char *or_dash(const char *text)
{
	return text && *text ? text : "-";
}

void opts_dump(const struct opt *table, FILE *out)
{
	static const char *const kinds[] = {
		[OPT_FLAG] = "flag",	 [OPT_SIZE] = "size",
		[OPT_NUMBER] = "number", [OPT_SECONDS] = "seconds",
		[OPT_CHOICE] = "choice", [OPT_STRING] = "string",
		[OPT_MAYBE] = "maybe",
	};

	for (; table->name; table++) {
		const char letter[2] = { table->letter, '\0' };

		if (!table->help)
			continue;
		fprintf(out, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n",
			table->name, or_dash(letter), kinds[table->kind],
			or_dash(table->arg), or_dash(table->choices),
			or_dash(table->deflt), or_dash(table->files),
			or_dash(table->alias), table->help);
	}
}
