/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* list.c - nbdfs --list: what the sources offer, before anything is mounted. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "daemon.h"
#include "fs.h"
#include "loading.h"

static int add_sources(struct catalog *c, const struct fs_options *opts,
		       struct error *err)
{
	int r = 0;

	for (size_t i = 0; i < opts->nsources && r == 0; i++) {
		const struct fs_source *s = &opts->sources[i];

		if (s->uri)
			r = catalog_add_uri(c, s->uri, err);
		else
			r = catalog_add_command(c, s->command, err);
	}
	return r;
}

/* Names come from servers: nothing in them may reach the terminal raw. */
static void print_safe(const char *text)
{
	for (; *text; text++) {
		unsigned char c = (unsigned char)*text;

		if (c < 0x20 || c == 0x7f)
			printf("\\x%02x", c);
		else
			putchar(c);
	}
}

static void print_entry(const struct image *img, int width)
{
	char size[32];

	printf("%-*s  %12s  %20" PRIu64 "  %s", width, image_name(img),
	       format_size(image_size(img), size, sizeof(size)),
	       image_size(img), image_read_only(img) ? "ro" : "rw");
	if (strcmp(image_name(img), image_export(img)) != 0) {
		printf("  export '");
		print_safe(image_export(img));
		putchar('\'');
	}
	if (*image_description(img)) {
		printf("  ");
		print_safe(image_description(img));
	}
	putchar('\n');
}

static void print_all(const struct catalog *c)
{
	const struct image *img;
	size_t width = strlen("FILE");

	for (img = catalog_next((struct catalog *)c, NULL); img;
	     img = catalog_next((struct catalog *)c, img))
		width = max_u64(width, strlen(image_name(img)));
	printf("%-*s  %12s  %20s  %s\n", (int)min_u64(width, 60), "FILE",
	       "SIZE", "BYTES", "MODE");
	for (img = catalog_next((struct catalog *)c, NULL); img;
	     img = catalog_next((struct catalog *)c, img))
		print_entry(img, (int)min_u64(width, 60));
}

static void stop(void *arg, int error)
{
	(void)error;
	loop_stop(arg);
}

static int list(struct fs_options *opts, struct loop *loop, struct engine *e,
		struct error *err)
{
	struct catalog *c = catalog_new(e);
	int r;

	if (!c) {
		error_set(err, "out of memory");
		return -ENOMEM;
	}
	r = add_sources(c, opts, err);
	if (r == 0)
		r = fs_load(c, err);
	if (r == 0)
		print_all(c);
	catalog_shutdown(c, stop, loop);
	loop_run(loop);
	catalog_free(c);
	return r;
}

int fs_list(struct fs_options *opts)
{
	struct error err = { .text = "out of memory" };
	struct loop *loop;
	struct engine *e = NULL;
	struct daemon d;
	int r = -ENOMEM;

	daemon_clean_process(opts->debug);
	daemon_init(&d, false, opts->verbose, opts->debug);
	loop = loop_new();
	opts->engine.log = d.log;
	if (loop)
		e = engine_new(loop, &opts->engine, &err);
	if (e)
		r = list(opts, loop, e, &err);
	if (r < 0)
		daemon_failed(&d, &err);
	if (e)
		engine_free(e);
	if (loop)
		loop_free(loop);
	if (r == 0 && (fflush(stdout) != 0 || ferror(stdout))) {
		fprintf(stderr, "nbdfs: cannot write: %s\n", strerror(errno));
		r = -EIO;
	}
	daemon_free(&d);
	return r < 0 ? 1 : 0;
}
