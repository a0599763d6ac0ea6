/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli.h"
#include "util.h"

/* How long a lost connection is tried for, for each of --retries. */
#define RETRY_MS 5000
#define RETRY_MS_MAX (24 * 3600 * 1000)
/* What the source said is believed to the end of the copy. */
#define EXTENT_TIMEOUT_MS (7 * 24 * 3600 * 1000)
#define REQUESTS_DEFAULT 64

/* ------------------------------------------------------------------ names */

static bool is_uri(const char *word)
{
	static const char *const schemes[] = {
		"nbd://",	"nbds://",	 "nbd+unix://", "nbds+unix://",
		"nbd+vsock://", "nbds+vsock://", "nbd+ssh://",	"nbds+ssh://",
	};
	size_t i;

	for (i = 0; i < ARRAY_SIZE(schemes); i++) {
		if (strncmp(word, schemes[i], strlen(schemes[i])) == 0)
			return true;
	}
	return false;
}

bool cli_is_local(const struct operand *operand)
{
	return operand->word && !is_uri(operand->word) &&
	       strcmp(operand->word, "null:") != 0;
}

/* A URI without the user's name and password. */
static void set_label(struct end *e)
{
	const struct operand *o = e->operand;
	const char *rest, *at = NULL;

	if (o->command) {
		snprintf(e->label, sizeof(e->label), "[ %s%s ]", o->command[0],
			 o->command[1] ? " ..." : "");
		return;
	}
	if (strcmp(o->word, "-") == 0) {
		snprintf(e->label, sizeof(e->label), "%s",
			 e->write ? "standard output" : "standard input");
		return;
	}
	rest = is_uri(o->word) ? strstr(o->word, "://") : NULL;
	/* A password may hold an unescaped "@": the last one counts. */
	if (rest)
		at = memrchr(rest + 3, '@', strcspn(rest + 3, "/?#"));
	if (at)
		snprintf(e->label, sizeof(e->label), "%.*s://%s",
			 (int)(rest - o->word), o->word, at + 1);
	else
		snprintf(e->label, sizeof(e->label), "%s", o->word);
}

static void end_init(struct end *e, const struct cli *cli, bool write,
		     const struct operand *operand)
{
	*e = (struct end){
		.cli = cli,
		.operand = operand,
		.write = write,
		.size = UINT64_MAX,
		.kind = END_LOCAL,
	};
	e->local.fd = -1;
	if (operand->command || is_uri(operand->word))
		e->kind = END_NBD;
	else if (write && strcmp(operand->word, "null:") == 0)
		e->kind = END_NULL;
	e->format = FORMAT_RAW;
	if (e->kind == END_LOCAL)
		e->format = cli_format_of(cli, operand, write);
	set_label(e);
}

/* -------------------------------------------------------------------- NBD */

/* Something that is waited for on the loop. */
struct wait {
	struct loop *loop;
	bool over;
	int error;
};

static void wait_over(struct wait *w, int error)
{
	w->over = true;
	w->error = error;
	loop_stop(w->loop);
}

static int wait_for(struct wait *w)
{
	int r = 0;

	while (!w->over && r == 0)
		r = loop_run(w->loop);
	return r < 0 ? r : w->error;
}

static void make_config(const struct end *e, struct engine_config *cfg)
{
	const struct cli *cli = e->cli;

	engine_config_defaults(cfg);
	cfg->log = cli->log;
	cfg->connections = cli->lane_connections;
	cfg->requests = cli->requests ? cli->requests : REQUESTS_DEFAULT;
	cfg->read_ahead = 0;
	cfg->write_behind = 0;
	if (cli->timeout_ms)
		cfg->timeout_ms = cli->timeout_ms;
	cfg->reconnect_ms = (unsigned)min_u64((uint64_t)cli->retries * RETRY_MS,
					      RETRY_MS_MAX);
	/* By --flush, or left to the server; but not to one that ends with
	 * us, and may take along what it has not flushed. */
	cfg->no_flush = !e->operand->command;
	cfg->no_scan = true;
	if (e->write) {
		/* Asked where zeroes are to be made, whether they are there. */
		cfg->no_extents = cli->dest_is_zero;
	} else {
		cfg->read_only = true;
		/* Read through, and found again among the data. */
		if (!cli->map &&
		    (!cli->sparse_set || cli->sparse || cli->allocated))
			cfg->min_hole = COPY_SMALL_HOLE;
		cfg->extent_timeout_ms = EXTENT_TIMEOUT_MS;
		cfg->no_extents = cli->no_extents;
		cfg->meta_context = cli->dirty;
		cfg->only_marked = cli->dirty != NULL;
	}
}

/* The one export there is, or the default one among several. */
static struct image *choose_image(struct end *e, struct error *err)
{
	struct image *img = catalog_next(e->catalog, NULL), *i;

	if (!img) {
		error_set(err, "%s: the server offers no export", e->label);
		return NULL;
	}
	if (!catalog_next(e->catalog, img))
		return img;
	for (i = img; i; i = catalog_next(e->catalog, i)) {
		if (*image_export(i) == '\0')
			return i;
	}
	error_set(err,
		  "%s: the server offers several exports ('%s', ...): "
		  "say which one",
		  e->label, image_export(img));
	return NULL;
}

struct opening {
	struct open_req r;
	struct wait w;
};

/* What went wrong has been said by the requests themselves. */
static void close_image(struct end *e)
{
	if (!e->handle)
		return;
	handle_error_take(e->handle);
	handle_close(e->handle);
	e->handle = NULL;
}

static void image_opened(struct open_req *r, int error)
{
	wait_over(&container_of(r, struct opening, r)->w, error);
}

static int open_image(struct end *e, struct loop *loop, struct error *err)
{
	struct opening x = {
		.r = {
			.img = e->image,
			.flags = OPEN_NO_READAHEAD |
				 (e->write ? OPEN_WRITE : 0),
			.done = image_opened,
		},
		.w = { .loop = loop },
	};
	int r;

	image_open(&x.r);
	r = wait_for(&x.w);
	if (r < 0) {
		if (r == -EROFS)
			error_set(err, "%s: the export is read-only", e->label);
		else if (x.r.err.text[0])
			*err = x.r.err;
		else
			error_set(err, "%s: %s", e->label, strerror(-r));
		return r;
	}
	e->handle = x.r.handle;
	return 0;
}

static int connect_nbd(struct end *e, struct loop *loop, struct error *err)
{
	struct engine_config cfg;
	struct image_info info;
	int r;

	make_config(e, &cfg);
	e->engine = engine_new(loop, &cfg, err);
	if (!e->engine)
		return -ENOMEM;
	e->catalog = catalog_new(e->engine);
	if (!e->catalog) {
		error_set(err, "out of memory");
		return -ENOMEM;
	}
	if (e->operand->command)
		r = catalog_add_command(e->catalog, e->operand->command, err);
	else
		r = catalog_add_uri(e->catalog, e->operand->word, err);
	if (r == 0)
		r = catalog_load(e->catalog, err);
	if (r < 0)
		return r;
	e->image = choose_image(e, err);
	if (!e->image)
		return -ENOENT;
	image_ref(e->image);
	r = open_image(e, loop, err);
	if (r < 0)
		return r;
	if (e->write && image_read_only(e->image)) {
		error_set(err, "%s: the export is read-only", e->label);
		return -EROFS;
	}
	e->size = image_size(e->image);
	image_get_info(e->image, &info);
	e->preferred = info.pref_block;
	e->parallel = info.can_multi_conn && !e->operand->command;
	return 0;
}

/* ----------------------------------------------------------------- opening */

int end_open_source(struct end *e, const struct cli *cli, struct loop *loop,
		    struct error *err)
{
	int r;

	end_init(e, cli, false, cli->source);
	if (e->kind == END_NBD)
		return connect_nbd(e, loop, err);
	if (cli->dirty) {
		error_set(err, "%s: only NBD servers have dirty bitmaps",
			  e->label);
		return -EINVAL;
	}
	if (e->format != FORMAT_RAW)
		return vmdk_open_source(e, err);
	r = local_open_source(e->operand->word, &e->local, err);
	if (r < 0)
		return r;
	e->size = e->local.size;
	e->parallel = e->local.kind != LOCAL_PIPE;
	return 0;
}

static int open_local_dest(struct end *e, const struct end *source,
			   struct error *err)
{
	struct local_want want = {
		.size = source->size,
		.source = source->kind == END_LOCAL ? &source->local : NULL,
		.read_back = e->cli->verify,
		.keep = e->cli->dirty != NULL,
	};
	int r = local_open_dest(e->operand->word, &want, &e->local, err);

	if (r < 0)
		return r;
	if (want.read_back && e->local.kind == LOCAL_PIPE) {
		error_set(err, "%s: cannot be read back for --verify",
			  e->label);
		return -EINVAL;
	}
	e->size = e->local.size;
	e->parallel = e->local.kind != LOCAL_PIPE;
	return 0;
}

int end_open_dest(struct end *e, const struct cli *cli,
		  const struct end *source, struct loop *loop,
		  struct error *err)
{
	int r;

	end_init(e, cli, true, cli->dest);
	if (e->kind == END_NULL) {
		e->parallel = true;
		return 0;
	}
	if (e->format != FORMAT_RAW)
		return vmdk_open_dest(e, source, err);
	if (e->kind == END_LOCAL)
		return open_local_dest(e, source, err);
	r = connect_nbd(e, loop, err);
	if (r < 0)
		return r;
	if (source->size != UINT64_MAX && source->size > e->size) {
		error_set(err,
			  "%s: too small: %" PRIu64
			  " bytes, the source has %" PRIu64,
			  e->label, e->size, source->size);
		return -ENOSPC;
	}
	return 0;
}

int end_open_again(struct end *e, const struct end *first, struct loop *loop,
		   struct error *err)
{
	int r = 0;

	end_init(e, first->cli, first->write, first->operand);
	e->size = first->size;
	if (e->kind == END_NBD)
		r = connect_nbd(e, loop, err);
	if (e->kind == END_LOCAL) {
		e->local = first->local;
		e->local.fd = fcntl(first->local.fd, F_DUPFD_CLOEXEC, 3);
		if (e->local.fd < 0) {
			r = -errno;
			error_set(err, "%s: %s", e->label, strerror(-r));
		}
	}
	if (r == 0 && e->size != first->size) {
		error_set(err, "%s: its size has changed", e->label);
		r = -ESTALE;
	}
	return r;
}

int end_device(struct end *e, struct loop *loop, struct workers *workers,
	       struct error *err)
{
	if (e->format != FORMAT_RAW)
		return vmdk_device(e, loop, workers, err);
	switch (e->kind) {
	case END_NULL:
		e->dev = dev_null_new(err);
		break;
	case END_LOCAL:
		/* Lanes share a descriptor; none of them moves in it. */
		e->dev = local_device(&e->local, loop, workers,
				      e->local.kind != LOCAL_PIPE, err);
		break;
	case END_NBD:
		e->dev = dev_image_new(e->handle, err);
		if (e->dev)
			dev_image_owns(e->dev);
		break;
	}
	return e->dev ? 0 : -ENOMEM;
}

int end_reopen(struct end *e, struct loop *loop, struct workers *workers,
	       struct error *err)
{
	blockdev_close(e->dev);
	e->dev = NULL;
	if (e->kind == END_NBD) {
		int r;

		close_image(e);
		r = open_image(e, loop, err);
		if (r < 0)
			return r;
	}
	return end_device(e, loop, workers, err);
}

/* ----------------------------------------------------------------- closing */

static void catalog_gone(void *arg, int error)
{
	wait_over(arg, error);
}

int end_close(struct end *e, struct loop *loop, struct error *err)
{
	struct wait w = { .loop = loop };
	int r = 0;

	blockdev_close(e->dev);
	e->dev = NULL;
	close_image(e);
	if (e->image)
		image_unref(e->image);
	e->image = NULL;
	if (e->catalog) {
		catalog_shutdown(e->catalog, catalog_gone, &w);
		r = wait_for(&w);
		if (r < 0)
			error_set(err, "%s: %s", e->label, strerror(-r));
		catalog_free(e->catalog);
	}
	e->catalog = NULL;
	engine_free(e->engine);
	e->engine = NULL;
	local_close(&e->local);
	return r;
}
