/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * nbdlist: what the engine makes of a server.
 *
 *	nbdlist [OPTIONS] URI | [ CMD ARGS... ]
 *	-t SECONDS   the deadline (default 10)
 *	-e EXPORT    opens this export instead of listing
 *	-k           lists, keeps the connection of a single export, reads
 *	             from it
 *	-m CONTEXT   wants this metadata context too
 *	-c MS        cancels after that time
 *	-n N         does it N times
 *	-d           says what the server printed
 *
 * A line for each export: NAME SIZE rw|ro|? DESCRIPTION, tab-separated. For an
 * export that was opened, a line that begins with "caps". Status 1: the error
 * is on stderr, in one line.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "connect.h"
#include "util.h"

struct args {
	unsigned timeout_ms, cancel_ms;
	uint64_t repeat;
	const char *export, *context;
	bool keep, verbose;
};

struct canceller {
	unsigned ms;
	atomic_bool flag;
};

static uint64_t now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * NS_PER_S + (uint64_t)ts.tv_nsec;
}

static void on_line(void *arg, enum log_level level, const char *line)
{
	(void)arg;
	(void)level;
	fprintf(stderr, "log: %s\n", line);
}

static void *cancel_main(void *arg)
{
	struct canceller *c = arg;

	usleep(c->ms * 1000);
	atomic_store(&c->flag, true);
	return NULL;
}

static void print_caps(struct nbd_caps *c, const char *export)
{
	printf("caps\t%s\tsize=%llu min=%u pref=%u max=%u%s%s%s%s%s%s%s%s\t%s\n",
	       export, (unsigned long long)c->size, c->min_block, c->pref_block,
	       c->max_block, c->read_only ? " ro" : "",
	       c->multi_conn ? " multi" : "", c->flush ? " flush" : "",
	       c->fua ? " fua" : "", c->zero ? " zero" : "",
	       c->fast_zero ? " fast" : "", c->trim ? " trim" : "",
	       c->status ? " status" : "",
	       c->description ? c->description : "");
	nbd_caps_clear(c);
}

/* A kept or opened connection must work. */
static int try_read(struct nbd_handle *nbd, uint64_t size, struct error *err)
{
	static char data[65536];
	size_t n = size < sizeof(data) ? (size_t)size : sizeof(data);

	if (n == 0 || nbd_pread(nbd, data, n, 0, 0) == 0)
		return 0;
	error_set(err, "read: %s", nbd_get_error());
	return -EIO;
}

static void print_list(const struct export_list *list)
{
	for (size_t i = 0; i < list->count; i++) {
		const struct export_entry *e = &list->entry[i];

		printf("%s\t%llu\t%s\t%s\n", e->name,
		       (unsigned long long)e->size,
		       !e->size_known ? "?" :
		       e->read_only   ? "ro" :
					"rw",
		       e->description ? e->description : "");
	}
	if (!list->complete)
		printf("not listed\n");
}

static int do_list(struct server *srv, const struct connect_opts *opts,
		   bool keep, struct error *err)
{
	struct export_list list;
	struct nbd_handle *nbd = NULL;
	struct nbd_caps caps;
	int r = nbd_list_exports(srv, opts, &list, keep ? &nbd : NULL, &caps,
				 err);

	if (r < 0)
		return r;
	print_list(&list);
	if (nbd) {
		r = try_read(nbd, caps.size, err);
		print_caps(&caps, list.entry[0].name);
		nbd_end(nbd);
	}
	export_list_clear(&list);
	return r;
}

static int do_open(struct server *srv, const struct connect_opts *opts,
		   const char *export, struct error *err)
{
	struct nbd_handle *nbd;
	struct nbd_caps caps;
	int r = nbd_open_export(srv, export, opts, &nbd, &caps, err);

	if (r < 0)
		return r;
	r = try_read(nbd, caps.size, err);
	print_caps(&caps, export);
	nbd_end(nbd);
	return r;
}

static int do_once(struct server *srv, const struct args *a, struct error *err)
{
	struct canceller c = { .ms = a->cancel_ms };
	struct connect_opts opts = {
		.deadline = now() + a->timeout_ms * NS_PER_MS,
		.want_extents = true,
		.meta_context = a->context,
	};
	pthread_t thread;
	int r;

	if (a->cancel_ms) {
		opts.cancel = &c.flag;
		if (pthread_create(&thread, NULL, cancel_main, &c) != 0)
			return -ENOMEM;
	}
	if (a->export)
		r = do_open(srv, &opts, a->export, err);
	else
		r = do_list(srv, &opts, a->keep, err);
	if (a->cancel_ms)
		pthread_join(thread, NULL);
	return r;
}

static int parse_args(int argc, char **argv, struct args *a)
{
	uint64_t n;
	int c;

	while ((c = getopt(argc, argv, "+t:e:m:c:n:kd")) != -1) {
		if (c == 't' && parse_number(optarg, 1, 3600, &n) == 0)
			a->timeout_ms = (unsigned)n * 1000;
		else if (c == 'c' && parse_number(optarg, 1, 60000, &n) == 0)
			a->cancel_ms = (unsigned)n;
		else if (c == 'n' && parse_number(optarg, 1, 1000000, &n) == 0)
			a->repeat = n;
		else if (c == 'e')
			a->export = optarg;
		else if (c == 'm')
			a->context = optarg;
		else if (c == 'k')
			a->keep = true;
		else if (c == 'd')
			a->verbose = true;
		else
			return -1;
	}
	return optind < argc ? 0 : -1;
}

static int find_server(int argc, char **argv, struct server **srv,
		       struct error *err)
{
	char **first = argv + optind, **last = argv + argc - 1;

	if (strcmp(*first, "[") != 0)
		return server_parse_uri(*first, srv, err);
	if (strcmp(*last, "]") != 0) {
		error_set(err, "no ] at the end");
		return -EINVAL;
	}
	*last = NULL;
	return server_from_command(first + 1, srv, err);
}

int main(int argc, char **argv)
{
	struct args a = { .timeout_ms = 10000, .repeat = 1 };
	struct log log = { LOG_LVL_DEBUG, on_line, NULL };
	struct server *srv = NULL;
	struct error err = { "" };
	int r;

	if (parse_args(argc, argv, &a) < 0) {
		fprintf(stderr, "usage: see the source\n");
		return 2;
	}
	r = find_server(argc, argv, &srv, &err);
	if (r == 0)
		r = server_start(srv, a.verbose ? &log : NULL, &err);
	for (uint64_t i = 0; r == 0 && i < a.repeat; i++)
		r = do_once(srv, &a, &err);
	if (r < 0)
		fprintf(stderr, "nbdlist: %s\n", err.text);
	if (srv)
		server_stop(srv, 3000);
	server_free(srv);
	return r < 0 ? 1 : 0;
}
