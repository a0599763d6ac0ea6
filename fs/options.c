/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <ctype.h>
#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "mountopt.h"
#include "options.h"
#include "opts.h"
#include "source.h"
#include "util.h"

/* Longer waits than a year are a mistake in the unit. */
#define MAX_WAIT_MS ((uint64_t)366 * 24 * 3600 * 1000)

static const struct opt table[] = {
	{ .name = "foreground",
	  .letter = 'f',
	  .help = "stay in the foreground, messages on stderr" },
	{ .name = "debug",
	  .letter = 'd',
	  .help = "tell everything that happens (implies -f)" },
	{ .name = "verbose", .letter = 'v', .help = "say more" },
	{ .name = "help", .letter = 'h', .help = "this text" },
	{ .name = "version", .letter = 'V', .help = "print the version" },
	{ .name = "read-only",
	  .letter = 'r',
	  .help = "never write to a server" },
	{ .name = "connections",
	  .letter = 'C',
	  .kind = OPT_NUMBER,
	  .arg = "N",
	  .min = 1,
	  .max = 64,
	  .deflt = "4",
	  .help = "connections for each export, at most" },
	{ .name = "pidfile",
	  .letter = 'P',
	  .kind = OPT_STRING,
	  .arg = "FILE",
	  .files = "file",
	  .help = "write the process id to FILE" },
	{ .name = "requests",
	  .kind = OPT_NUMBER,
	  .arg = "N",
	  .min = 1,
	  .max = 1024,
	  .deflt = "64",
	  .help = "requests in flight on each connection, at most" },
	{ .name = "read-ahead",
	  .kind = OPT_SIZE,
	  .arg = "SIZE",
	  .max = 64 * GiB,
	  .deflt = "32M",
	  .help = "read ahead for each open file, at most; 0: not" },
	{ .name = "write-behind",
	  .kind = OPT_SIZE,
	  .arg = "SIZE",
	  .max = 64 * GiB,
	  .deflt = "32M",
	  .help = "data on its way to each export, at most; 0: writes wait" },
	{ .name = "cache",
	  .kind = OPT_CHOICE,
	  .choices = "direct|kernel",
	  .deflt = "direct",
	  .help = "whether the kernel keeps the pages that are read" },
	{ .name = "min-hole",
	  .kind = OPT_SIZE,
	  .arg = "SIZE",
	  .deflt = "0",
	  .help = "shorter holes count as data; 0: the true map" },
	{ .name = "timeout",
	  .kind = OPT_SECONDS,
	  .arg = "SECONDS",
	  .min = 100,
	  .max = MAX_WAIT_MS,
	  .deflt = "30",
	  .help = "a server without an answer for so long is lost" },
	{ .name = "reconnect",
	  .kind = OPT_SECONDS,
	  .arg = "SECONDS",
	  .max = MAX_WAIT_MS,
	  .deflt = "60",
	  .help = "how long a lost server is tried again" },
	{ .name = "extent-timeout",
	  .kind = OPT_SECONDS,
	  .arg = "SECONDS",
	  .max = MAX_WAIT_MS,
	  .deflt = "1",
	  .help = "how long a hole is believed without asking again" },
	{ .name = "list-timeout",
	  .kind = OPT_SECONDS,
	  .arg = "SECONDS",
	  .max = MAX_WAIT_MS,
	  .deflt = "5",
	  .help = "how long the list of exports is believed" },
	{ .name = "on-truncate",
	  .kind = OPT_CHOICE,
	  .choices = "zero|keep|deny",
	  .deflt = "zero",
	  .help = "what cutting a file off does to the rest of it" },
	{ .name = "detect-zeroes",
	  .help = "blocks of zeroes that are written become holes" },
	{ .name = "no-extents", .help = "never ask a server for its holes" },
	{ .name = "meta-context",
	  .kind = OPT_STRING,
	  .arg = "CONTEXT",
	  .help = "beside each export a file EXPORT@NAME with what a bitmap "
		  "marks; qemu:dirty-bitmap:NAME" },
	{ .name = "xattrs",
	  .help = "list the attributes user.nbd.* (they can be read always)" },
	{ .name = "list",
	  .help = "print what the sources offer; without a mount point" },
	{ .name = "uid",
	  .kind = OPT_STRING,
	  .arg = "USER",
	  .help = "owner of the files (default: who mounts)" },
	{ .name = "gid",
	  .kind = OPT_STRING,
	  .arg = "GROUP",
	  .help = "group of the files" },
	{ .name = "umask",
	  .kind = OPT_STRING,
	  .arg = "OCTAL",
	  .help = "permissions that nobody gets (default: the umask)" },
	{ .name = "source",
	  .kind = OPT_STRING,
	  .arg = "SOURCE",
	  .help = "one more source; for fstab" },
	{ .name = "options",
	  .letter = 'o',
	  .kind = OPT_STRING,
	  .arg = "OPT[,OPT...]",
	  .help = "all of the above as name=value, and mount options" },
	{ .name = "dump-options" },
	{ .name = NULL },
};

/* ---------------------------------------------------------------- values */

static int no_memory(struct error *err)
{
	error_set(err, "out of memory");
	return -ENOMEM;
}

static int set_text(char **to, const char *text, struct error *err)
{
	char *copy = strdup(text);

	if (!copy)
		return no_memory(err);
	free(*to);
	*to = copy;
	return 0;
}

/* A number, or a name by `find`, which answers -1 for an unknown one. */
static int set_id(const char *what, const char *text,
		  int (*find)(const char *name, uint64_t *id), uint64_t *id,
		  struct error *err)
{
	if (parse_number(text, 0, UINT32_MAX - 1, id) == 0)
		return 0;
	if (*text && find(text, id) == 0)
		return 0;
	error_set(err, "--%s=%s: no such %s", what, text,
		  strcmp(what, "uid") == 0 ? "user" : "group");
	return -EINVAL;
}

static int find_user(const char *name, uint64_t *id)
{
	const struct passwd *pw = getpwnam(name);

	if (pw)
		*id = pw->pw_uid;
	return pw ? 0 : -1;
}

static int find_group(const char *name, uint64_t *id)
{
	const struct group *gr = getgrnam(name);

	if (gr)
		*id = gr->gr_gid;
	return gr ? 0 : -1;
}

static int set_umask(struct fs_options *o, const char *text, struct error *err)
{
	size_t len = strlen(text);
	mode_t mask = 0;
	size_t i;

	for (i = 0; i < len && text[i] >= '0' && text[i] <= '7'; i++)
		mask = (mask << 3 | (mode_t)(text[i] - '0')) & 07777;
	if (len == 0 || i < len || len > 4 || mask > 0777) {
		error_set(err, "--umask=%s: not an octal mask like 027", text);
		return -EINVAL;
	}
	o->umask = mask;
	return 0;
}

static int add_source(struct fs_options *o, const char *word, struct error *err)
{
	if (source_add_word(&o->sources, &o->nsources, word) < 0)
		return no_memory(err);
	return 0;
}

static int set_context(struct fs_options *o, const char *text,
		       struct error *err)
{
	size_t n = strlen(BITMAP_CONTEXT);
	int r;

	if (strncmp(text, BITMAP_CONTEXT, n) != 0 || !text[n]) {
		error_set(err,
			  "--meta-context=%s: not of the form " BITMAP_CONTEXT
			  "NAME",
			  text);
		return -EINVAL;
	}
	r = set_text(&o->meta_context, text, err);
	o->engine.meta_context = o->meta_context;
	return r;
}

/* Options whose value is a text. */
static int set_string(struct fs_options *o, const char *name, const char *text,
		      struct error *err)
{
	uint64_t id;
	int r;

	if (strcmp(name, "umask") == 0)
		return set_umask(o, text, err);
	if (strcmp(name, "uid") == 0) {
		r = set_id(name, text, find_user, &id, err);
		o->uid = r == 0 ? (uid_t)id : o->uid;
		return r;
	}
	if (strcmp(name, "gid") == 0) {
		r = set_id(name, text, find_group, &id, err);
		o->gid = r == 0 ? (gid_t)id : o->gid;
		return r;
	}
	if (!*text) {
		error_set(err, "option --%s needs a value", name);
		return -EINVAL;
	}
	if (strcmp(name, "meta-context") == 0)
		return set_context(o, text, err);
	if (strcmp(name, "source") == 0) {
		size_t before = o->nsources;

		r = add_source(o, text, err);
		o->nset += o->nsources - before;
		return r;
	}
	return set_text(&o->pidfile, text, err);
}

static void set_flag(struct fs_options *o, const char *name)
{
	const struct {
		const char *name;
		bool *flag;
	} flags[] = {
		{ "foreground", &o->foreground },
		{ "debug", &o->debug },
		{ "verbose", &o->verbose },
		{ "help", &o->help },
		{ "version", &o->version },
		{ "dump-options", &o->dump },
		{ "read-only", &o->engine.read_only },
		{ "detect-zeroes", &o->engine.detect_zeroes },
		{ "no-extents", &o->engine.no_extents },
		{ "xattrs", &o->xattrs },
		{ "list", &o->list },
	};
	size_t i;

	for (i = 0; i < ARRAY_SIZE(flags); i++) {
		if (strcmp(flags[i].name, name) == 0)
			*flags[i].flag = true;
	}
}

/* Sizes, numbers, times and choices: within their bounds already. */
static void set_number(struct fs_options *o, const char *name, uint64_t n)
{
	const struct {
		const char *name;
		unsigned *to;
	} numbers[] = {
		{ "connections", &o->engine.connections },
		{ "requests", &o->engine.requests },
		{ "timeout", &o->engine.timeout_ms },
		{ "reconnect", &o->engine.reconnect_ms },
		{ "extent-timeout", &o->engine.extent_timeout_ms },
		{ "list-timeout", &o->engine.list_timeout_ms },
	};
	size_t i;

	if (strcmp(name, "read-ahead") == 0)
		o->engine.read_ahead = n;
	else if (strcmp(name, "write-behind") == 0)
		o->engine.write_behind = n;
	else if (strcmp(name, "min-hole") == 0)
		o->engine.min_hole = n;
	else if (strcmp(name, "cache") == 0)
		o->cache = n ? CACHE_KERNEL : CACHE_DIRECT;
	else if (strcmp(name, "on-truncate") == 0)
		o->on_truncate = (enum fs_on_truncate)n;
	for (i = 0; i < ARRAY_SIZE(numbers); i++) {
		if (strcmp(numbers[i].name, name) == 0)
			*numbers[i].to = (unsigned)min_u64(n, UINT32_MAX);
	}
}

/* ---------------------------------------------------------------- -o */

static int set_mount_opt(struct fs_options *o, const char *name,
			 const char *value, struct error *err)
{
	const struct mount_opt *m = mount_opt_find(name);

	if (!m) {
		error_set(err, "unknown mount option %s", name);
		return -EINVAL;
	}
	if (m->to == TO_NOBODY)
		return 0;
	if (strcmp(name, "ro") == 0 || strcmp(name, "rw") == 0) {
		o->engine.read_only = name[1] == 'o';
		return 0;
	}
	if (strcmp(name, "fsname") == 0) {
		if (!value || !*value) {
			error_set(err, "mount option fsname needs a value");
			return -EINVAL;
		}
		o->has_fsname = true;
	}
	if (fs_mount_opt_add(&o->mount_opts, name, value) < 0)
		return no_memory(err);
	return 0;
}

static int set_option(void *arg, const struct opt_value *v, struct error *err);

/* One of the list: of our table, or for somebody else. */
static int set_list_item(struct fs_options *o, const char *name,
			 const char *value, struct error *err)
{
	const struct opt *opt = opts_find(table, name, strlen(name));
	struct opt_value v;
	int r;

	/* Those that print something make no sense here. */
	if (!opt || !opt->help || (opt->letter && strchr("hVo", opt->letter)))
		return set_mount_opt(o, name, value, err);
	r = opts_value(opt, value, &v, err);
	return r < 0 ? r : set_option(o, &v, err);
}

/* Takes the next item off a list: cut at a comma, unless that is escaped by a
 * backslash or stands between double quotes. In place: what is taken is
 * terminated, unescaped. Returns the rest, NULL at the end. */
static char *next_item(char *at)
{
	char *to = at;
	bool quoted = false;

	for (; *at && (quoted || *at != ','); at++) {
		if (*at == '"') {
			quoted = !quoted;
			continue;
		}
		if (*at == '\\' && at[1])
			at++;
		*to++ = *at;
	}
	if (!*at) {
		*to = '\0';
		return NULL;
	}
	*to = '\0';
	return at + 1;
}

static int set_list(struct fs_options *o, const char *text, struct error *err)
{
	char *copy = strdup(text), *at, *next, *value;
	int r = 0;

	if (!copy)
		return no_memory(err);
	for (at = copy; at && r == 0; at = next) {
		next = next_item(at);
		if (!*at)
			continue;
		value = strchr(at, '=');
		if (value)
			*value++ = '\0';
		r = set_list_item(o, at, value, err);
	}
	free(copy);
	return r;
}

static int set_option(void *arg, const struct opt_value *v, struct error *err)
{
	struct fs_options *o = arg;

	switch (v->opt->kind) {
	case OPT_FLAG:
		set_flag(o, v->opt->name);
		return 0;
	case OPT_STRING:
	case OPT_MAYBE:
		if (v->opt->letter == 'o')
			return set_list(o, v->text, err);
		return set_string(o, v->opt->name, v->text, err);
	default:
		set_number(o, v->opt->name, v->number);
		return 0;
	}
}

/* ---------------------------------------------------------------- operands */

/* What stands in fstab where the sources are options. */
static bool is_placeholder(const char *word)
{
	return !*word || strcmp(word, "none") == 0 ||
	       strcmp(word, "nbdfs") == 0;
}

static int add_operand(struct fs_options *o, const struct operand *op,
		       struct error *err)
{
	if (op->command) {
		if (source_add_command(&o->sources, &o->nsources, op->command) <
		    0)
			return no_memory(err);
		return 0;
	}
	if (is_placeholder(op->word)) {
		o->operand_none = true;
		return 0;
	}
	return add_source(o, op->word, err);
}

/* With --list: nothing is mounted. */
static int take_sources(struct fs_options *o, const struct operands *ops,
			struct error *err)
{
	size_t i;
	int r = 0;

	for (i = 0; i < ops->count && r == 0; i++)
		r = add_operand(o, &ops->list[i], err);
	if (r == 0 && o->nsources == 0) {
		error_set(err, "--list needs a source");
		r = -EINVAL;
	}
	return r;
}

static int take_operands(struct fs_options *o, const struct operands *ops,
			 struct error *err)
{
	size_t i;
	int r;

	if (o->list)
		return take_sources(o, ops, err);
	if (ops->count == 0) {
		error_set(err, "a source and a mount point are needed");
		return -EINVAL;
	}
	if (!ops->list[ops->count - 1].word) {
		error_set(err, "the last operand must be a mount point");
		return -EINVAL;
	}
	for (i = 0; i + 1 < ops->count; i++) {
		r = add_operand(o, &ops->list[i], err);
		if (r < 0)
			return r;
	}
	if (o->nsources == 0 && ops->count == 1) {
		error_set(err, "a source and a mount point are needed");
		return -EINVAL;
	}
	if (o->nsources == 0) {
		error_set(err, "no source is given");
		return -EINVAL;
	}
	if (o->operand_none && o->nset == 0) {
		error_set(err, "\"none\" is no source without -o source=");
		return -EINVAL;
	}
	return set_text(&o->mountpoint, ops->list[i].word, err);
}

static void set_defaults(struct fs_options *o)
{
	mode_t mask = umask(0);

	umask(mask);
	*o = (struct fs_options){
		.uid = geteuid(),
		.gid = getegid(),
		.umask = mask,
	};
	engine_config_defaults(&o->engine);
}

int fs_options_parse(struct fs_options *o, int argc, char **argv,
		     struct error *err)
{
	const struct opt_parser parser = {
		.table = table,
		.set = set_option,
		.arg = o,
	};
	struct operands ops;
	int r;

	set_defaults(o);
	r = opts_parse(&parser, argc, argv, &ops, err);
	if (r < 0)
		return r;
	if (!o->help && !o->version && !o->dump)
		r = take_operands(o, &ops, err);
	if (r == 0 && o->meta_context && o->engine.no_extents) {
		error_set(err, "--meta-context and --no-extents exclude each "
			       "other");
		r = -EINVAL;
	}
	opts_free_operands(&ops);
	o->foreground = o->foreground || o->debug;
	return r;
}

void fs_options_free(struct fs_options *o)
{
	sources_free(o->sources, o->nsources);
	free(o->meta_context);
	free(o->pidfile);
	free(o->mountpoint);
	free(o->mount_opts);
	*o = (struct fs_options){ 0 };
}

/* ---------------------------------------------------------------- output */

void fs_options_help(FILE *out)
{
	fputs("Usage: nbdfs [OPTIONS] SOURCE... MOUNTPOINT\n"
	      "       nbdfs --list SOURCE...\n"
	      "Mounts NBD servers: every export is a file, with its holes.\n"
	      "\n"
	      "  SOURCE      an NBD URI: nbd, nbds, nbd+unix, nbds+unix, nbd+vsock,\n"
	      "              nbds+vsock; without an export name: all exports\n"
	      "              NAME=URI: the file is called NAME\n"
	      "              [ CMD ARGS... ]: a server to run, until the unmount\n"
	      "  MOUNTPOINT  a folder; or a file, which then is the only export\n"
	      "\n",
	      out);
	opts_print_help(table, out);
	fputs("\nSIZE takes K, M, G, T (powers of 1024).\n", out);
}

void fs_options_dump(FILE *out)
{
	opts_dump(table, out);
}
