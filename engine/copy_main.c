/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * copy_main.c - nbdfs-copy: copies between NBD servers, files, devices, pipes.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "util.h"

/* Any thread. */
static void take_line(void *arg, enum log_level level, const char *line)
{
	struct cli *cli = arg;

	if (cli->verbose)
		fprintf(stderr, PROGRAM ": %s\n", line);
	if (level != LOG_LVL_ERROR)
		return;
	pthread_mutex_lock(&cli->lock);
	snprintf(cli->reason, sizeof(cli->reason), "%s", line);
	pthread_mutex_unlock(&cli->lock);
}

/* Standard output that cannot be written is a failure like any other. */
static int end_output(int status)
{
	if (fflush(stdout) == 0 && !ferror(stdout))
		return status;
	perror(PROGRAM ": standard output");
	return CLI_FAILED;
}

static int print_and_end(const struct cli *cli)
{
	if (cli->help)
		cli_help(stdout);
	else if (cli->version)
		printf(PROGRAM " " NBDFS_VERSION "\n");
	else
		opts_dump(cli_table, stdout);
	return CLI_OK;
}

/* How many lanes there can be, and what each of them gets. */
static void share_out(struct cli *cli)
{
	unsigned lanes = cli->threads ? cli->threads : 1;
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);

	cli->lanes_max = (unsigned)min_u64(lanes, cli->connections);
	cli->helpers = lanes;
	if (!cli->threads && cpus > 0)
		cli->helpers = (unsigned)min_u64((uint64_t)cpus, LANES_MAX);
	if (cli->helpers < HELPERS_MIN)
		cli->helpers = HELPERS_MIN;
	cli->lane_connections = cli->connections / cli->lanes_max;
}

/* Where they are closed, a socket or a destination would get their numbers, and
 * with them what is meant for people. Those that take their places here can be
 * used as little as closed ones. */
static void fill_standard_files(void)
{
	for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
		if (fcntl(fd, F_GETFD) < 0)
			open("/dev/null",
			     fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
	}
}

int main(int argc, char **argv)
{
	struct cli cli = {
		.log = { .level = LOG_LVL_ERROR, .sink = take_line },
		.lock = PTHREAD_MUTEX_INITIALIZER,
	};
	struct error err = { "" };
	int status = CLI_USAGE;

	fill_standard_files();
	cli.log.arg = &cli;
	if (cli_options(&cli, argc, argv, &err) < 0) {
		fprintf(stderr, PROGRAM ": %s\n", err.text);
		fprintf(stderr,
			"Try \"" PROGRAM " --help\" for all options.\n");
	} else if (cli.help || cli.version || cli.dump) {
		status = end_output(print_and_end(&cli));
	} else {
		if (cli.verbose)
			cli.log.level = LOG_LVL_DEBUG;
		process_forbid_core();
		share_out(&cli);
		/* Errors come from write(), not as the end of the program. */
		signal(SIGPIPE, SIG_IGN);
		signal(SIGXFSZ, SIG_IGN);
		watch_early(true);
		status = end_output(cli.map ? cli_map(&cli) : cli_run(&cli));
	}
	cli_options_free(&cli);
	return status;
}
