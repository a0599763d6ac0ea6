/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * catalog.c - the files of all exports, in the order of their names.
 *
 * An export keeps its file name for as long as it is listed, or in use after
 * it is gone: names are given once, and what is gone still holds its own.
 */
#include <assert.h>
#include <errno.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "catalog_int.h"
#include "util.h"

/* How often another name is tried where somebody has taken ours on purpose. */
#define NAME_TRIES 16
/* A server's time for its own end. */
#define STOP_MS 5000

/* ---------------------------------------------------------------- order */

static int by_name(const void *a, const void *b)
{
	const struct item *x = a, *y = b;

	return strcmp(x->name, y->name);
}

static int by_name_p(const void *a, const void *b)
{
	return by_name(*(struct item *const *)a, *(struct item *const *)b);
}

/* The first position whose name is not below `name`, or, with `after`, is
 * above it. */
static size_t position(const struct catalog *c, const char *name, bool after)
{
	size_t lo = 0, hi = c->nitems;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;
		int cmp = strcmp(c->item[mid]->name, name);

		if (cmp < 0 || (after && cmp == 0))
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

struct image *catalog_find(struct catalog *c, const char *file_name)
{
	size_t i = position(c, file_name, false);

	if (i == c->nitems || c->item[i]->gone ||
	    strcmp(c->item[i]->name, file_name) != 0)
		return NULL;
	return c->item[i]->img;
}

struct image *catalog_next(struct catalog *c, const struct image *after)
{
	size_t i = after ? position(c, image_name(after), true) : 0;

	while (i < c->nitems && c->item[i]->gone)
		i++;
	return i < c->nitems ? c->item[i]->img : NULL;
}

size_t catalog_count(const struct catalog *c)
{
	return c->nitems - c->ngone;
}

/* ---------------------------------------------------------------- names */

static bool name_taken(const struct catalog *c, const struct source *s,
		       const char *name)
{
	struct item key = { .name = name };

	if (tfind(&key, &c->names, by_name))
		return true;
	/* NAME=URI gets its name, whoever comes first. */
	for (size_t i = 0; i < c->nsources; i++) {
		const char *n = server_file_name(c->source[i]->srv);

		if (n && c->source[i] != s && strcmp(n, name) == 0)
			return true;
	}
	return false;
}

static int choose_name(const struct catalog *c, const struct source *s,
		       const struct export_entry *entry, char name[256])
{
	const struct engine_config *cfg = engine_config(c->e);
	const char *given = server_file_name(s->srv), *export = entry->name;
	char *salt;

	if (entry->marked && !cfg->only_marked) {
		marks_file_name(given, export, cfg->meta_context, name);
		given = NULL;
	} else if (given) {
		snprintf(name, 256, "%s", given);
	} else {
		export_file_name(export, name);
	}
	for (unsigned i = 0; name_taken(c, s, name); i++) {
		if (given || i == NAME_TRIES)
			return -EEXIST;
		/* The same on every start with these operands. */
		if (asprintf(&salt, "%zu %u %s", s->index, i,
			     server_label(s->srv)) < 0)
			return -ENOMEM;
		export_file_name_unique(export, salt, name);
		free(salt);
	}
	return 0;
}

/* ---------------------------------------------------------------- items */

static void item_free(struct item *it)
{
	image_unref(it->img);
	free(it);
}

/* Appends; the order is made afterwards. */
static int add_item(struct catalog *c, struct source *s,
		    const struct export_entry *entry, struct error *err)
{
	char name[256];
	struct item *it, **node;
	int r = choose_name(c, s, entry, name);

	if (r < 0) {
		error_set(err, "%s: export '%.100s': no file name is free",
			  server_label(s->srv), entry->name);
		return r;
	}
	it = calloc(1, sizeof(*it));
	if (!it) {
		error_set(err, "out of memory");
		return -ENOMEM;
	}
	it->src = s;
	it->seen = true;
	it->img = image_new(c->e, s->srv, entry, name, s->keep, &s->caps, err);
	if (s->keep)
		nbd_caps_clear(&s->caps);
	s->keep = NULL;
	if (!it->img) {
		free(it);
		return -ENOMEM;
	}
	it->name = image_name(it->img);
	node = tsearch(it, &c->names, by_name);
	assert(!node || *node == it);
	if (!node) {
		item_free(it);
		error_set(err, "out of memory");
		return -ENOMEM;
	}
	c->item[c->nitems++] = it;
	return 0;
}

static void set_gone(struct catalog *c, struct item *it, bool gone)
{
	if (it->gone != gone)
		c->ngone += gone ? 1 : (size_t)-1;
	it->gone = gone;
}

/* Lets go of what is neither listed nor in use. */
static void sweep(struct catalog *c)
{
	size_t out = 0;

	for (size_t i = 0; i < c->nitems; i++) {
		struct item *it = c->item[i];

		if (it->gone && !image_in_use(it->img)) {
			set_gone(c, it, false);
			tdelete(it, &c->names, by_name);
			item_free(it);
		} else {
			c->item[out++] = it;
		}
	}
	c->nitems = out;
}

static int compare(const struct image *img, const char *export, bool marked)
{
	int cmp = strcmp(image_export(img), export);

	return cmp ? cmp : (int)image_marked(img) - (int)marked;
}

static int by_export(const void *a, const void *b)
{
	const struct item *x = *(struct item *const *)a;
	const struct item *y = *(struct item *const *)b;

	return compare(x->img, image_export(y->img), image_marked(y->img));
}

/* The items of one source, by export. NULL without memory. */
static struct item **items_of(const struct catalog *c, const struct source *s,
			      size_t *count)
{
	struct item **list = malloc((c->nitems + 1) * sizeof(*list));
	size_t n = 0;

	if (!list)
		return NULL;
	for (size_t i = 0; i < c->nitems; i++)
		if (c->item[i]->src == s)
			list[n++] = c->item[i];
	qsort(list, n, sizeof(*list), by_export);
	*count = n;
	return list;
}

/* What is there already; `new` gets the positions in the list of what is
 * not. Both are sorted by export. */
static size_t match(struct item **old, size_t nold,
		    const struct export_list *list, size_t *new)
{
	size_t o = 0, n = 0;

	for (size_t i = 0; i < list->count; i++) {
		int cmp = 1;

		while (o < nold &&
		       (cmp = compare(old[o]->img, list->entry[i].name,
				      list->entry[i].marked)) < 0)
			o++;
		if (o < nold && cmp == 0) {
			old[o]->seen = true;
			image_relist(old[o]->img, &list->entry[i]);
		} else {
			new[n++] = i;
		}
	}
	return n;
}

static int make_room(struct catalog *c, size_t more)
{
	void *p = realloc(c->item, (c->nitems + more + 1) * sizeof(*c->item));

	if (!p)
		return -ENOMEM;
	c->item = p;
	return 0;
}

int catalog_apply(struct catalog *c, struct source *s, struct error *err)
{
	size_t *new = malloc((s->list.count + 1) * sizeof(*new));
	size_t nold = 0, nnew = 0;
	struct item **old = items_of(c, s, &nold);
	int r = 0;

	if (!new || !old || make_room(c, s->list.count) < 0) {
		error_set(err, "out of memory");
		r = -ENOMEM;
		goto out;
	}
	for (size_t i = 0; i < nold; i++)
		old[i]->seen = false;
	nnew = match(old, nold, &s->list, new);
	for (size_t i = 0; i < nold; i++)
		set_gone(c, old[i], !old[i]->seen);
	sweep(c);
	for (size_t i = 0; i < nnew && r != -ENOMEM; i++) {
		r = add_item(c, s, &s->list.entry[new[i]], err);
		if (r == -EEXIST)
			log_msg(&engine_config(c->e)->log, LOG_LVL_WARN, "%s",
				err->text);
	}
	if (r == -EEXIST)
		r = 0;
	qsort(c->item, c->nitems, sizeof(*c->item), by_name_p);
out:
	free(new);
	free(old);
	return r;
}

/* ------------------------------------------------------------ life cycle */

struct catalog *catalog_new(struct engine *e)
{
	struct catalog *c = calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	c->e = e;
	atomic_init(&c->cancel, false);
	STAILQ_INIT(&c->waiting);
	return c;
}

static void one_stopped(struct catalog *c)
{
	if (--c->closing == 0)
		c->done(c->arg, c->error);
}

static void stop_fn(struct work *w)
{
	server_stop(container_of(w, struct source, work)->srv, STOP_MS);
}

static void stop_done(struct work *w)
{
	one_stopped(container_of(w, struct source, work)->c);
}

static void stop_servers(struct catalog *c)
{
	/* One for ourselves: they may end at once. */
	c->closing = 1;
	for (size_t i = 0; i < c->nsources; i++) {
		struct source *s = c->source[i];

		if (!server_is_command(s->srv))
			continue;
		c->closing++;
		s->work.fn = stop_fn;
		s->work.done = stop_done;
		workers_run(engine_workers(c->e), &s->work);
	}
	one_stopped(c);
}

static void one_closed(void *arg, int error)
{
	struct catalog *c = arg;

	if (error && !c->error)
		c->error = error;
	if (--c->closing == 0)
		stop_servers(c);
}

void catalog_listed(struct catalog *c)
{
	assert(c->ending && c->listing == 0);
	c->closing = 1;
	for (size_t i = 0; i < c->nitems; i++) {
		c->closing++;
		image_shutdown(c->item[i]->img, one_closed, c);
	}
	one_closed(c, 0);
}

void catalog_cancel(struct catalog *c)
{
	atomic_store(&c->cancel, true);
}

void catalog_shutdown(struct catalog *c, void (*done)(void *arg, int error),
		      void *arg)
{
	assert(!c->ending);
	c->ending = true;
	c->done = done;
	c->arg = arg;
	atomic_store(&c->cancel, true);
	/* Else when the last of them has noticed. */
	if (c->listing == 0)
		catalog_listed(c);
}

void catalog_free(struct catalog *c)
{
	if (!c)
		return;
	assert(c->listing == 0);
	for (size_t i = 0; i < c->nitems; i++) {
		tdelete(c->item[i], &c->names, by_name);
		item_free(c->item[i]);
	}
	for (size_t i = 0; i < c->nsources; i++)
		source_free(c->source[i]);
	free(c->item);
	free(c->source);
	free(c);
}
