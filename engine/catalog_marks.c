/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * catalog_marks.c - exports that have a bitmap are there twice: as they are,
 * and as a file whose data is what the bitmap marks.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "catalog_int.h"
#include "util.h"

static const char *bitmap_name(const char *context)
{
	size_t n = strlen(BITMAP_CONTEXT);

	return strncmp(context, BITMAP_CONTEXT, n) == 0 ? context + n : context;
}

void marks_file_name(const char *given, const char *export, const char *context,
		     char out[256])
{
	char left[256], right[256], *all;
	int n;

	if (given)
		snprintf(left, sizeof(left), "%s", given);
	else
		export_file_name(export, left);
	export_file_name(bitmap_name(context), right);
	n = snprintf(out, 256, "%s@%s", left, right);
	if (n <= NAME_MAX)
		return;
	/* Cut, with a suffix that stays the same. */
	if (asprintf(&all, "%s@%s", given ? given : export,
		     bitmap_name(context)) < 0)
		return;
	export_file_name(all, out);
	free(all);
}

static uint64_t deadline(const struct source *s)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * NS_PER_S + (uint64_t)ts.tv_nsec +
	       s->patience;
}

/* Whether an export has the bitmap. Only going into transmission tells. */
static int has_bitmap(struct source *s, const struct export_entry *entry)
{
	const struct engine_config *cfg = engine_config(s->c->e);
	struct connect_opts opts = {
		.deadline = deadline(s),
		.cancel = &s->c->cancel,
		.meta_context = cfg->meta_context,
	};
	struct nbd_handle *nbd;
	struct nbd_caps caps;
	int r;

	r = nbd_open_export(s->srv, entry->name, &opts, &nbd, &caps, &s->err);
	if (r < 0)
		return r;
	nbd_caps_clear(&caps);
	nbd_end(nbd);
	return 0;
}

static int copy_entry(struct export_entry *to, const struct export_entry *from)
{
	*to = *from;
	to->marked = true;
	to->name = strdup(from->name);
	if (from->description)
		to->description = strdup(from->description);
	if (to->name)
		return 0;
	free(to->description);
	return -ENOMEM;
}

/* Into `out`, which has room for all of them twice. */
static int add_marks(struct source *s, struct export_list *out, size_t *found)
{
	struct export_list *list = &s->list;
	int r = 0;

	for (size_t i = 0; i < list->count; i++) {
		out->entry[out->count++] = list->entry[i];
		if (r == 0)
			r = has_bitmap(s, &list->entry[i]);
		if (r == -ENOENT) {
			r = 0;
			continue;
		}
		if (r == 0)
			r = copy_entry(&out->entry[out->count],
				       &list->entry[i]);
		if (r == 0) {
			out->count++;
			++*found;
		}
	}
	return r;
}

static int none_found(struct source *s)
{
	if (s->list.count > 1)
		error_set(&s->err, "%s: no export has a dirty bitmap '%.200s'",
			  server_label(s->srv),
			  bitmap_name(engine_config(s->c->e)->meta_context));
	return -ENOENT;
}

static void let_go(struct source *s)
{
	nbd_end(s->keep);
	nbd_caps_clear(&s->caps);
	s->keep = NULL;
}

int source_add_marks(struct source *s)
{
	struct export_list *list = &s->list, out = { .complete = true };
	size_t found = 0;
	int r;

	if (engine_config(s->c->e)->only_marked) {
		for (size_t i = 0; i < list->count; i++)
			list->entry[i].marked = true;
		return 0;
	}
	if (list->count == 0)
		return 0;
	/* A server that has one client at a time would not answer another. */
	if (s->keep && !s->caps.multi_conn)
		let_go(s);
	out.entry = calloc(2 * list->count, sizeof(*out.entry));
	if (!out.entry) {
		error_set(&s->err, "out of memory");
		return -ENOMEM;
	}
	r = add_marks(s, &out, &found);
	if (r == -ENOMEM)
		error_set(&s->err, "out of memory");
	out.complete = list->complete;
	free(list->entry);
	*list = out;
	return r == 0 && found == 0 ? none_found(s) : r;
}
