/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "util.h"
#include "vmdk.h"

#define REQUEST_MIN (4 * KiB)
#define REQUEST_MAX (32 * MiB)
#define SPARSE_MIN 512
#define SPARSE_MAX (2 * GiB)
#define CONNECTIONS_MAX 64
/* In the order of enum cli_format, from FORMAT_RAW on. */
#define FORMATS "raw|vmdk|vmdk-stream"
#define TIMEOUT_MAX_MS (24 * 3600 * 1000)

const struct opt cli_table[] = {
	{ .name = "adapter-type",
	  .kind = OPT_CHOICE,
	  .arg = "TYPE",
	  .choices = "ide|buslogic|lsilogic|legacyESX",
	  .deflt = "ide",
	  .help = "adapter of a new VMDK image: ide, buslogic, lsilogic, "
		  "legacyESX" },
	{ .name = "allocated",
	  .kind = OPT_FLAG,
	  .help = "zeroes take space at the destination, nothing is a hole" },
	{ .name = "compression-level",
	  .kind = OPT_NUMBER,
	  .arg = "N",
	  .min = 1,
	  .max = 9,
	  .deflt = "6",
	  .help = "of a vmdk-stream: 1 is fast, 9 is small" },
	{ .name = "connections",
	  .letter = 'C',
	  .kind = OPT_NUMBER,
	  .arg = "N",
	  .min = 1,
	  .deflt = "4",
	  .help = "connections to an NBD server, at most, where it allows "
		  "several" },
	{ .name = "destination-format",
	  .kind = OPT_CHOICE,
	  .arg = "FORMAT",
	  .choices = FORMATS,
	  .help = "raw, vmdk, or vmdk-stream; without it a name ending in "
		  ".vmdk is vmdk, all else raw" },
	{ .name = "destination-is-zero",
	  .alias = "target-is-zero",
	  .kind = OPT_FLAG,
	  .help = "the destination reads as zero already: zeroes are left "
		  "out" },
	{ .name = "dirty",
	  .kind = OPT_STRING,
	  .arg = "BITMAP",
	  .help = "only what a dirty bitmap of the source marks, into an image "
		  "that is there" },
	{ .name = "flush",
	  .kind = OPT_FLAG,
	  .help = "end when all is on stable storage" },
	{ .name = "json",
	  .kind = OPT_FLAG,
	  .help = "print a summary for programs" },
	{ .name = "map",
	  .kind = OPT_FLAG,
	  .help = "no copy: show where the source has data and holes; with "
		  "--json for programs" },
	{ .name = "no-extents",
	  .kind = OPT_FLAG,
	  .help = "do not ask the source for its holes, read everything" },
	{ .name = "progress",
	  .letter = 'p',
	  .kind = OPT_MAYBE,
	  .arg = "FD",
	  .help = "show progress, or write N/100 lines to a descriptor" },
	{ .name = "queue-size",
	  .kind = OPT_SIZE,
	  .arg = "SIZE",
	  .min = 1,
	  .deflt = "16M",
	  .help = "bytes in flight, at most" },
	{ .name = "rate",
	  .kind = OPT_SIZE,
	  .arg = "SIZE",
	  .min = 1,
	  .help = "bytes of data a second, at most" },
	{ .name = "request-size",
	  .kind = OPT_SIZE,
	  .arg = "SIZE",
	  .min = REQUEST_MIN,
	  .max = REQUEST_MAX,
	  .help = "size of one request, a power of two; adapts where it is "
		  "not given" },
	{ .name = "requests",
	  .letter = 'R',
	  .kind = OPT_NUMBER,
	  .arg = "N",
	  .min = 1,
	  .help = "requests in flight on a connection; adapts where it is not "
		  "given" },
	{ .name = "retries",
	  .kind = OPT_NUMBER,
	  .arg = "N",
	  .deflt = "3",
	  .help = "how often a request that fails at a server is tried again, "
		  "and whether lost connections are made again (0: not)" },
	{ .name = "source-format",
	  .kind = OPT_CHOICE,
	  .arg = "FORMAT",
	  .choices = FORMATS,
	  .help = "of the source, as --destination-format" },
	{ .name = "sparse",
	  .letter = 'S',
	  .kind = OPT_SIZE,
	  .arg = "SIZE",
	  .max = SPARSE_MAX,
	  .deflt = "4K",
	  .help = "blocks of zeroes of this size become holes; 0: none does" },
	{ .name = "synchronous",
	  .kind = OPT_FLAG,
	  .help = "one request after the other, in order" },
	{ .name = "threads",
	  .letter = 'T',
	  .kind = OPT_NUMBER,
	  .arg = "N",
	  .deflt = "0",
	  .help = "threads, each with connections of its own; 0: as many as "
		  "help" },
	{ .name = "timeout",
	  .kind = OPT_SECONDS,
	  .arg = "SECONDS",
	  .min = 100,
	  .max = TIMEOUT_MAX_MS,
	  .deflt = "30",
	  .help = "a server without an answer for so long is lost" },
	{ .name = "verbose",
	  .letter = 'v',
	  .kind = OPT_FLAG,
	  .help = "say what is being done" },
	{ .name = "verify",
	  .kind = OPT_FLAG,
	  .help = "read both ends again afterwards and compare them" },
	{ .name = "help",
	  .letter = 'h',
	  .kind = OPT_FLAG,
	  .help = "print this" },
	{ .name = "version",
	  .letter = 'V',
	  .kind = OPT_FLAG,
	  .help = "print the version" },
	{ .name = "dump-options", .kind = OPT_FLAG },
	{ .name = NULL },
};

static int power_of_two(const struct opt_value *v, uint64_t min,
			struct error *err)
{
	if (is_pow2(v->number) && v->number >= min)
		return 0;
	error_set(err, "--%s=%s: must be a power of two from %u on",
		  v->opt->name, v->text, (unsigned)min);
	return -EINVAL;
}

static int set_progress(struct cli *cli, const struct opt_value *v,
			struct error *err)
{
	const char *text = v->text;
	uint64_t fd;

	cli->progress = true;
	cli->progress_fd = -1;
	if (!text)
		return 0;
	/* From -p=FD. */
	text += *text == '=';
	if (parse_number(text, 0, 1 << 20, &fd) < 0) {
		error_set(err, "--progress=%s: not a file descriptor", text);
		return -EINVAL;
	}
	cli->progress_fd = (int)fd;
	return 0;
}

static int set_dirty(struct cli *cli, const char *name, struct error *err)
{
	free(cli->dirty);
	cli->dirty = NULL;
	if (!*name) {
		error_set(err, "--dirty needs the name of a bitmap");
		return -EINVAL;
	}
	if (asprintf(&cli->dirty, BITMAP_CONTEXT "%s", name) >= 0)
		return 0;
	cli->dirty = NULL;
	error_set(err, "out of memory");
	return -ENOMEM;
}

static int set_sparse(struct cli *cli, const struct opt_value *v,
		      struct error *err)
{
	cli->sparse_set = true;
	cli->sparse = (uint32_t)v->number;
	return v->number ? power_of_two(v, SPARSE_MIN, err) : 0;
}

static int set_adapter(struct cli *cli, const char *type, struct error *err)
{
	assert(vmdk_adapter(type));
	free(cli->adapter);
	cli->adapter = strdup(type);
	if (cli->adapter)
		return 0;
	error_set(err, "out of memory");
	return -ENOMEM;
}

static unsigned to_unsigned(uint64_t n, unsigned max)
{
	return (unsigned)min_u64(n, max);
}

static enum cli_format to_format(uint64_t choice)
{
	return (enum cli_format)(FORMAT_RAW + choice);
}

/* Options with a value. */
static int set_value(struct cli *cli, const struct opt_value *v,
		     struct error *err)
{
	const char *name = v->opt->name;

	if (strcmp(name, "connections") == 0)
		cli->connections = to_unsigned(v->number, CONNECTIONS_MAX);
	else if (strcmp(name, "queue-size") == 0)
		cli->queue_size = v->number;
	else if (strcmp(name, "rate") == 0)
		cli->rate = v->number;
	else if (strcmp(name, "requests") == 0)
		cli->requests = to_unsigned(v->number, 1 << 16);
	else if (strcmp(name, "retries") == 0)
		cli->retries = to_unsigned(v->number, 1 << 20);
	else if (strcmp(name, "timeout") == 0)
		cli->timeout_ms = (unsigned)v->number;
	else if (strcmp(name, "threads") == 0)
		cli->threads = to_unsigned(v->number, LANES_MAX);
	else if (strcmp(name, "compression-level") == 0)
		cli->level = (unsigned)v->number;
	else if (strcmp(name, "adapter-type") == 0)
		return set_adapter(cli, v->text, err);
	else if (strcmp(name, "source-format") == 0)
		cli->source_format = to_format(v->number);
	else if (strcmp(name, "destination-format") == 0)
		cli->dest_format = to_format(v->number);
	else if (strcmp(name, "progress") == 0)
		return set_progress(cli, v, err);
	else if (strcmp(name, "dirty") == 0)
		return set_dirty(cli, v->text, err);
	else if (strcmp(name, "sparse") == 0)
		return set_sparse(cli, v, err);
	else if (strcmp(name, "request-size") == 0) {
		cli->request_size = (uint32_t)v->number;
		return power_of_two(v, REQUEST_MIN, err);
	}
	return 0;
}

static int set_option(void *arg, const struct opt_value *v, struct error *err)
{
	struct cli *cli = arg;
	const struct {
		const char *name;
		bool *flag;
	} flags[] = {
		{ "allocated", &cli->allocated },
		{ "destination-is-zero", &cli->dest_is_zero },
		{ "flush", &cli->flush },
		{ "json", &cli->json },
		{ "map", &cli->map },
		{ "no-extents", &cli->no_extents },
		{ "synchronous", &cli->synchronous },
		{ "verbose", &cli->verbose },
		{ "verify", &cli->verify },
		{ "help", &cli->help },
		{ "version", &cli->version },
		{ "dump-options", &cli->dump },
	};
	size_t i;

	for (i = 0; i < ARRAY_SIZE(flags); i++) {
		if (strcmp(v->opt->name, flags[i].name) == 0) {
			*flags[i].flag = true;
			return 0;
		}
	}
	return set_value(cli, v, err);
}

static int check_source(const struct cli *cli, struct error *err)
{
	if (!cli->source->word || strcmp(cli->source->word, "null:") != 0)
		return 0;
	error_set(err, "null: can only be the destination");
	return -EINVAL;
}

static int check_map(struct cli *cli, struct error *err)
{
	if (cli->operands.count != 1) {
		error_set(err, "--map takes a source, and nothing else");
		return -EINVAL;
	}
	if (cli->verify) {
		error_set(err, "--map and --verify exclude each other");
		return -EINVAL;
	}
	cli->source = &cli->operands.list[0];
	return check_source(cli, err);
}

static int check_operands(struct cli *cli, struct error *err)
{
	if (cli->map)
		return check_map(cli, err);
	if (cli->operands.count != 2) {
		error_set(err, "%s",
			  cli->operands.count < 2 ?
				  "a source and a destination are needed" :
				  "too many operands: a source and a "
				  "destination are needed");
		return -EINVAL;
	}
	cli->source = &cli->operands.list[0];
	cli->dest = &cli->operands.list[1];
	if (check_source(cli, err) < 0)
		return -EINVAL;
	if (cli->verify && cli->dest->word &&
	    strcmp(cli->dest->word, "null:") == 0) {
		error_set(err, "--verify: null: cannot be read back");
		return -EINVAL;
	}
	return 0;
}

static int check_dirty(const struct cli *cli, struct error *err)
{
	const char *with = cli->no_extents   ? "--no-extents" :
			   cli->dest_is_zero ? "--destination-is-zero" :
					       NULL;

	if (!cli->dirty || !with)
		return 0;
	error_set(err, "--dirty and %s exclude each other", with);
	return -EINVAL;
}

/* Only a file has a format. */
static int check_formats(const struct cli *cli, struct error *err)
{
	const struct operand *o = cli->source;
	const char *option = "--source-format";

	for (int side = 0; side < 2 && o; side++) {
		enum cli_format f = side ? cli->dest_format :
					   cli->source_format;

		if (f > FORMAT_RAW && !cli_is_local(o)) {
			error_set(err, "%s: what is not a file is always raw",
				  option);
			return -EINVAL;
		}
		o = cli->dest;
		option = "--destination-format";
	}
	return 0;
}

int cli_options(struct cli *cli, int argc, char **argv, struct error *err)
{
	const struct opt_parser parser = {
		.table = cli_table,
		.set = set_option,
		.arg = cli,
	};
	int r;

	cli->progress_fd = -1;
	cli->sparse = SPARSE_DEFAULT;
	cli->queue_size = 16 * MiB;
	cli->connections = 4;
	cli->retries = 3;
	cli->level = 6;
	r = opts_parse(&parser, argc, argv, &cli->operands, err);
	if (r < 0 || cli->help || cli->version || cli->dump)
		return r;
	r = check_operands(cli, err);
	if (r == 0)
		r = check_formats(cli, err);
	return r < 0 ? r : check_dirty(cli, err);
}

void cli_options_free(struct cli *cli)
{
	opts_free_operands(&cli->operands);
	free(cli->dirty);
	free(cli->adapter);
}

void cli_help(FILE *out)
{
	fputs("Usage: " PROGRAM " [OPTIONS] SOURCE DESTINATION\n"
	      "       " PROGRAM " --map [--json] SOURCE\n"
	      "Copies between NBD servers, files, block devices and pipes.\n"
	      "\n"
	      "SOURCE and DESTINATION are each one of\n"
	      "  FILE, BLOCK-DEVICE   a path\n"
	      "  NBD-URI              nbd://host/export, "
	      "nbd+unix:///export?socket=PATH, ...\n"
	      "  [ CMD ARGS... ]      an NBD server to be run for the copy\n"
	      "  -                    standard input, standard output\n"
	      "  null:                (DESTINATION) forgets everything\n"
	      "\n"
	      "Options:\n",
	      out);
	opts_print_help(cli_table, out);
}
