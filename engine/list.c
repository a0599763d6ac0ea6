/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * list.c - what a server offers.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "negotiate.h"
#include "util.h"

/* Bounds of what a list may take, whatever the server sends. */
#define LIST_BYTES (32 * MiB)
#define DESCRIPTION_MAX 1024
/* In messages. */
#define OFFERS_SHOWN 10
#define OFFER_MAX 60

void export_list_clear(struct export_list *list)
{
	for (size_t i = 0; i < list->count; i++) {
		free(list->entry[i].name);
		free(list->entry[i].description);
	}
	free(list->entry);
	memset(list, 0, sizeof(*list));
}

/* ----------------------------------------------------------- collecting */

struct collect {
	struct export_list *list;
	size_t alloc, bytes;
	bool full, no_memory;
	struct neg *n;
};

static int collect_grow(struct collect *c)
{
	size_t alloc = c->alloc ? 2 * c->alloc : 16;
	void *p;

	if (c->list->count < c->alloc)
		return 0;
	p = realloc(c->list->entry, alloc * sizeof(*c->list->entry));
	if (!p)
		return -ENOMEM;
	c->list->entry = p;
	c->alloc = alloc;
	return 0;
}

static int collect_add(struct collect *c, const char *name,
		       const char *description)
{
	struct export_entry *e;

	if (collect_grow(c) < 0)
		return -ENOMEM;
	e = &c->list->entry[c->list->count];
	memset(e, 0, sizeof(*e));
	e->name = strdup(name);
	if (!e->name)
		return -ENOMEM;
	if (description && *description)
		e->description = strndup(description, DESCRIPTION_MAX);
	c->list->count++;
	c->bytes += strlen(name) + sizeof(*e) +
		    (e->description ? strlen(e->description) : 0);
	return 0;
}

/* Runs inside libnbd. */
static int on_export(void *user, const char *name, const char *description)
{
	struct collect *c = user;

	if (c->full || c->no_memory)
		return 0;
	if (collect_add(c, name, description) < 0)
		c->no_memory = true;
	if (c->list->count >= MAX_EXPORTS || c->bytes >= LIST_BYTES)
		c->full = true;
	/* The rest is not wanted, and there may be no end to it. */
	if ((c->full || c->no_memory) && c->n->slot.fd >= 0)
		shutdown(c->n->slot.fd, SHUT_RDWR);
	return 0;
}

static int by_name(const void *a, const void *b)
{
	const struct export_entry *x = a, *y = b;

	return strcmp(x->name, y->name);
}

static void sort_list(struct export_list *list)
{
	size_t out = 0;

	if (list->count == 0)
		return;
	qsort(list->entry, list->count, sizeof(*list->entry), by_name);
	for (size_t i = 1; i < list->count; i++) {
		if (strcmp(list->entry[i].name, list->entry[out].name) == 0) {
			free(list->entry[i].name);
			free(list->entry[i].description);
		} else {
			list->entry[++out] = list->entry[i];
		}
	}
	list->count = out + 1;
}

/* Asks for the list. 0: there is one, or it was refused (list->complete is
 * false); the handle may be broken by then. An error is of the talk. */
static int ask_list(struct talk *t, struct neg *n, struct export_list *list)
{
	struct collect c = { .list = list, .n = n };
	nbd_list_callback cb = { .callback = on_export, .user_data = &c };
	int r;

	memset(list, 0, sizeof(*list));
	if (!neg_negotiating(n))
		return 0;
	r = neg_opt_list(n, cb);
	if (r == 0)
		r = neg_settle(t, n);
	if (c.no_memory)
		return -ENOMEM;
	if (r == -ECANCELED || (r == -ETIMEDOUT && neg_busy(n)))
		return r;
	/* Cut off in the middle by the server. */
	if (r < 0 && !c.full && list->count > 0 && !neg_negotiating(n))
		return r;
	list->complete = r == 0 || list->count > 0;
	sort_list(list);
	return 0;
}

/* A handle that can be asked something: this one, or a new one. */
static int make_usable(struct talk *t, struct neg *n)
{
	int r;

	if (neg_negotiating(n) || neg_ready(n))
		return 0;
	neg_close(t, n);
	r = neg_start(t, n);
	return r < 0 ? r : neg_settle(t, n);
}

/* ------------------------------------------------------------- messages */

static void put_offers(const struct export_list *list, char *text, size_t size)
{
	FILE *f = fmemopen(text, size, "w");
	size_t shown = list->count < OFFERS_SHOWN ? list->count : OFFERS_SHOWN;

	text[0] = '\0';
	if (!f)
		return;
	for (size_t i = 0; i < shown; i++) {
		const char *name = list->entry[i].name;
		bool cut = strlen(name) > OFFER_MAX;

		fprintf(f, "%s'%.*s%s'", i ? ", " : "", OFFER_MAX, name,
			cut ? "..." : "");
	}
	if (list->count > shown)
		fprintf(f, ", ... (%zu in all)", list->count);
	fclose(f);
	text[size - 1] = '\0';
}

bool talk_offers(struct talk *t, struct neg *n, const char *export, char *text,
		 size_t size)
{
	struct export_list list;
	char names[OFFERS_SHOWN * (OFFER_MAX + 8) + 40];
	struct neg fresh;
	int r;

	memset(&fresh, 0, sizeof(fresh));
	r = ask_list(t, n, &list);
	if (r < 0 || !list.complete) {
		/* Some servers answer one question per connection. */
		export_list_clear(&list);
		if (neg_start(t, &fresh) < 0)
			return false;
		r = neg_settle(t, &fresh);
		if (r == 0)
			r = ask_list(t, &fresh, &list);
		neg_end(t, &fresh);
	}
	if (r < 0 || !list.complete) {
		export_list_clear(&list);
		return false;
	}
	put_offers(&list, names, sizeof(names));
	if (list.count == 0)
		snprintf(text, size, "it offers none");
	else
		snprintf(text, size, "it offers: %s", names);
	for (size_t i = 0; i < list.count; i++)
		if (strcmp(list.entry[i].name, export) == 0)
			snprintf(text, size, "although it lists it");
	export_list_clear(&list);
	return true;
}

/* ------------------------------------------------------------- one only */

/* `list` becomes this one entry. */
static int single_entry(struct export_list *list, const char *name,
			const struct nbd_caps *caps)
{
	struct export_list old = *list;
	struct collect c = { .list = list };
	const char *description = caps->description;
	int r;

	for (size_t i = 0; i < old.count && !description; i++)
		if (strcmp(old.entry[i].name, name) == 0)
			description = old.entry[i].description;
	*list = (struct export_list){ .complete = old.complete };
	r = collect_add(&c, name, description);
	export_list_clear(&old);
	if (r < 0)
		return r;
	list->entry[0].size = caps->size;
	list->entry[0].size_known = true;
	list->entry[0].read_only = caps->read_only;
	return 0;
}

/* The export `name`, by going into transmission: only then do all servers
 * tell the truth. */
static int list_one(struct talk *t, struct neg *n, const char *name,
		    struct export_list *list, struct nbd_handle **keep,
		    struct nbd_caps *keep_caps, struct error *err)
{
	char *copy = strdup(name);
	struct nbd_caps caps;
	int r = copy ? make_usable(t, n) : -ENOMEM;

	if (r < 0)
		r = talk_error(t, n, r, NULL, err);
	else
		r = talk_go(t, n, copy, &caps, err);
	if (r == 0) {
		r = single_entry(list, copy, &caps);
		if (r < 0)
			error_set(err, "out of memory");
		if (r == 0 && keep) {
			*keep = neg_take(t, n);
			*keep_caps = caps;
		} else {
			nbd_caps_clear(&caps);
		}
	}
	free(copy);
	return r;
}

/* The default export of a server that lists nothing, or lists nothing that
 * it would tell. */
static int list_default(struct talk *t, struct neg *n, struct export_list *list,
			struct nbd_handle **keep, struct nbd_caps *keep_caps,
			struct error *err)
{
	const char *label = server_label(t->srv);
	bool listed = list->complete;
	int r = list_one(t, n, "", list, keep, keep_caps, err);

	if (r != -ENOENT)
		return r;
	if (!listed)
		error_set(err,
			  "%s: the server does not list its exports and "
			  "has no default export: name one",
			  label);
	else if (server_file_name(t->srv))
		error_set(err, "%s: the server offers no exports", label);
	else
		return 0; /* none now; that may change */
	return -ENOENT;
}

/* ------------------------------------------------------------------ all */

/* For NAME=URI there is one file: which export is it? NULL: not clear. */
static const char *named_export(const struct export_list *list)
{
	if (list->count == 1)
		return list->entry[0].name;
	/* "" sorts first. */
	if (list->count > 0 && *list->entry[0].name == '\0')
		return "";
	return NULL;
}

static int not_clear(struct talk *t, const struct export_list *list,
		     struct error *err)
{
	char names[OFFERS_SHOWN * (OFFER_MAX + 8) + 40];

	put_offers(list, names, sizeof(names));
	error_set(err, "%s: which export is '%s' to be? The server offers: %s",
		  server_label(t->srv), server_file_name(t->srv), names);
	return -EINVAL;
}

static int list_all(struct talk *t, struct neg *n, struct export_list *list,
		    struct nbd_handle **keep, struct nbd_caps *keep_caps,
		    struct error *err)
{
	const char *one = NULL;
	int r = ask_list(t, n, list);

	if (r < 0)
		return talk_error(t, n, r, NULL, err);
	if (list->count == 0)
		return list_default(t, n, list, keep, keep_caps, err);
	if (list->count == 1 || server_file_name(t->srv)) {
		one = named_export(list);
		if (!one)
			return not_clear(t, list, err);
		return list_one(t, n, one, list, keep, keep_caps, err);
	}
	r = make_usable(t, n);
	if (r < 0)
		return talk_error(t, n, r, NULL, err);
	return talk_survey(t, n, list, err);
}

int nbd_list_exports(struct server *srv, const struct connect_opts *opts,
		     struct export_list *list, struct nbd_handle **keep,
		     struct nbd_caps *keep_caps, struct error *err)
{
	struct talk t;
	struct neg n;
	int r;

	memset(list, 0, sizeof(*list));
	if (keep)
		*keep = NULL;
	talk_begin(&t, srv, opts);
	r = neg_start(&t, &n);
	if (r == 0)
		r = neg_settle(&t, &n);
	if (r < 0) {
		r = talk_error(&t, &n, r, NULL, err);
	} else if (server_export(srv)) {
		list->complete = true;
		r = list_one(&t, &n, server_export(srv), list, keep, keep_caps,
			     err);
	} else {
		r = list_all(&t, &n, list, keep, keep_caps, err);
	}
	neg_end(&t, &n);
	talk_end(&t);
	if (r < 0)
		export_list_clear(list);
	return r;
}
