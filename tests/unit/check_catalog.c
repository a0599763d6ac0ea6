/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The catalog alone: servers, images and helper threads are played by this
 * file, so that lists change, fail and come late as a test wants it.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "image.h"
#include "unit.h"
#include "util.h"

/* -------------------------------------------------------------- servers */

struct server {
	const char *operand, *name, *export;
	const char *offers; /* words; NULL: cannot be reached */
	char *words;	    /* the same, owned; wins */
	bool command, dead, keeps, one_client;
	int started, stopped, listed, freed;
};

static struct server servers[8];
static size_t nservers;
static int ended_handles, kept_handles, order;
static struct nbd_handle *const a_handle = (struct nbd_handle *)servers;

static struct server *serve(const char *operand, const char *offers)
{
	struct server *s = &servers[nservers++];

	s->operand = operand;
	s->offers = offers;
	return s;
}

int server_parse_uri(const char *operand, struct server **srv,
		     struct error *err)
{
	for (size_t i = 0; i < nservers; i++) {
		if (strcmp(servers[i].operand, operand) == 0) {
			*srv = &servers[i];
			return 0;
		}
	}
	error_set(err, "no such operand");
	return -EINVAL;
}

int server_from_command(char *const argv[], struct server **srv,
			struct error *err)
{
	int r = server_parse_uri(argv[0], srv, err);

	if (r == 0)
		(*srv)->command = true;
	return r;
}

int server_start(struct server *srv, const struct log *log, struct error *err)
{
	(void)log;
	(void)err;
	srv->started++;
	return 0;
}

void server_stop(struct server *srv, unsigned grace_ms)
{
	(void)grace_ms;
	srv->stopped = ++order;
}

void server_free(struct server *srv)
{
	srv->freed++;
}

const char *server_file_name(const struct server *srv)
{
	return srv->name;
}

const char *server_export(const struct server *srv)
{
	return srv->export;
}

const char *server_label(const struct server *srv)
{
	return srv->operand;
}

bool server_is_command(const struct server *srv)
{
	return srv->command;
}

bool server_alive(struct server *srv)
{
	return !srv->dead;
}

void export_list_clear(struct export_list *list)
{
	for (size_t i = 0; i < list->count; i++)
		free(list->entry[i].name);
	free(list->entry);
	memset(list, 0, sizeof(*list));
}

static int by_export(const void *a, const void *b)
{
	const struct export_entry *x = a, *y = b;

	return strcmp(x->name, y->name);
}

int nbd_list_exports(struct server *srv, const struct connect_opts *opts,
		     struct export_list *list, struct nbd_handle **keep,
		     struct nbd_caps *keep_caps, struct error *err)
{
	const char *p = srv->words ? srv->words : srv->offers;

	memset(list, 0, sizeof(*list));
	__atomic_add_fetch(&srv->listed, 1, __ATOMIC_RELAXED);
	if (atomic_load(opts->cancel)) {
		error_set(err, "%s: given up", srv->operand);
		return -ECANCELED;
	}
	if (!p) {
		error_set(err, "%s: is down", srv->operand);
		return -ECONNREFUSED;
	}
	list->entry = calloc(strlen(p) + 1, sizeof(*list->entry));
	while (*p) {
		size_t n = strcspn(p, " ");

		list->entry[list->count++] = (struct export_entry){
			.name = strndup(p, n),
			.size = n,
			.size_known = true,
		};
		p += n + (p[n] == ' ');
	}
	if (list->count > 1)
		qsort(list->entry, list->count, sizeof(*list->entry),
		      by_export);
	if (keep && srv->keeps && list->count == 1) {
		*keep = a_handle;
		memset(keep_caps, 0, sizeof(*keep_caps));
		keep_caps->multi_conn = !srv->one_client;
		keep_caps->description = strdup("d");
	}
	return 0;
}

int nbd_open_export(struct server *srv, const char *export,
		    const struct connect_opts *opts, struct nbd_handle **nbd,
		    struct nbd_caps *caps, struct error *err)
{
	(void)srv;
	(void)export;
	(void)opts;
	(void)nbd;
	(void)caps;
	(void)err;
	return -ENOTSUP;
}

void nbd_end(struct nbd_handle *nbd)
{
	ck_assert_ptr_eq(nbd, a_handle);
	ended_handles++;
}

void nbd_caps_clear(struct nbd_caps *caps)
{
	free(caps->description);
	caps->description = NULL;
}

/* --------------------------------------------------------------- images */

struct image {
	struct server *srv;
	unsigned refs;
	bool dirty, shut;
	uint64_t size;
	char *name, *export;
	void (*done)(void *arg, int error);
	void *arg;
};

static size_t nimages;
static struct image *shutting[64];
static size_t nshutting;
static bool shut_at_once;
static int images_gone_at;

struct image *image_new(struct engine *e, struct server *srv,
			const struct export_entry *entry, const char *file_name,
			struct nbd_handle *keep,
			const struct nbd_caps *keep_caps, struct error *err)
{
	struct image *img = calloc(1, sizeof(*img));

	(void)e;
	(void)err;
	if (keep) {
		ck_assert_str_eq(keep_caps->description, "d");
		kept_handles++;
	}
	img->srv = srv;
	img->refs = 1;
	img->size = entry->size;
	img->name = strdup(file_name);
	img->export = strdup(entry->name);
	nimages++;
	return img;
}

void image_relist(struct image *img, const struct export_entry *entry)
{
	ck_assert_str_eq(img->export, entry->name);
	img->size = entry->size;
}

bool image_marked(const struct image *img)
{
	(void)img;
	return false;
}

bool image_in_use(const struct image *img)
{
	return img->refs > 1 || img->dirty;
}

struct image *image_ref(struct image *img)
{
	img->refs++;
	return img;
}

/* Not inlined: the compiler loses count of the references. */
__attribute__((noinline)) void image_unref(struct image *img)
{
	if (--img->refs > 0)
		return;
	free(img->name);
	free(img->export);
	free(img);
	nimages--;
}

const char *image_name(const struct image *img)
{
	return img->name;
}

const char *image_export(const struct image *img)
{
	return img->export;
}

void image_shutdown(struct image *img, void (*done)(void *arg, int error),
		    void *arg)
{
	ck_assert(!img->shut);
	img->shut = true;
	images_gone_at = ++order;
	if (shut_at_once) {
		done(arg, 0);
		return;
	}
	img->done = done;
	img->arg = arg;
	shutting[nshutting++] = img;
}

/* --------------------------------------------------- engine and helpers */

static struct engine_config cfg;
static STAILQ_HEAD(, work) jobs = STAILQ_HEAD_INITIALIZER(jobs);

const struct engine_config *engine_config(const struct engine *e)
{
	(void)e;
	return &cfg;
}

struct workers *engine_workers(struct engine *e)
{
	(void)e;
	return NULL;
}

void workers_run(struct workers *workers, struct work *w)
{
	ck_assert_ptr_null(workers);
	STAILQ_INSERT_TAIL(&jobs, w, link);
}

static bool run_one(void)
{
	struct work *w = STAILQ_FIRST(&jobs);

	if (!w)
		return false;
	STAILQ_REMOVE_HEAD(&jobs, link);
	w->fn(w);
	w->done(w);
	return true;
}

static void run_jobs(void)
{
	while (run_one())
		;
}

/* ---------------------------------------------------------------- tools */

static struct catalog *make(void)
{
	struct catalog *c = catalog_new(NULL);
	struct error err = { "" };

	cfg.timeout_ms = 1000;
	for (size_t i = 0; i < nservers; i++)
		ck_assert_msg(catalog_add_uri(c, servers[i].operand, &err) == 0,
			      "%s", err.text);
	return c;
}

static struct catalog *load(void)
{
	struct catalog *c = make();
	struct error err = { "" };

	ck_assert_msg(catalog_load(c, &err) == 0, "%s", err.text);
	return c;
}

struct waiter {
	struct catalog_wait wait;
	struct catalog *again;
	int called;
};

static void waited(struct catalog_wait *w)
{
	struct waiter *x = container_of(w, struct waiter, wait);

	x->called++;
	if (x->again) {
		struct catalog *c = x->again;

		x->again = NULL;
		catalog_refresh(c, w);
	}
}

static void refresh(struct catalog *c)
{
	struct waiter w = { .wait.done = waited };

	catalog_refresh(c, &w.wait);
	run_jobs();
	ck_assert_int_eq(w.called, 1);
}

/* All names, in order: "a b c". */
static const char *names(struct catalog *c)
{
	static char text[4096];
	struct image *img = NULL;
	size_t n = 0, len = 0;

	text[0] = '\0';
	while ((img = catalog_next(c, img)) != NULL) {
		len += (size_t)snprintf(text + len, sizeof(text) - len, "%s%s",
					n ? " " : "", image_name(img));
		ck_assert_ptr_eq(catalog_find(c, image_name(img)), img);
		n++;
	}
	ck_assert_uint_eq(n, catalog_count(c));
	return text;
}

static int end_called, end_error;

static void ended(void *arg, int error)
{
	(void)arg;
	end_called = ++order;
	end_error = error;
}

static void finish(struct catalog *c)
{
	shut_at_once = true;
	catalog_shutdown(c, ended, NULL);
	run_jobs();
	ck_assert_int_ne(end_called, 0);
	catalog_free(c);
	ck_assert_uint_eq(nimages, 0);
	for (size_t i = 0; i < nservers; i++) {
		ck_assert_int_eq(servers[i].freed, 1);
		free(servers[i].words);
	}
}

/* ---------------------------------------------------------------- tests */

START_TEST(in_order)
{
	struct catalog *c;

	serve("x", "c a/b  nbd2");
	serve("y", "z b");
	c = load();
	ck_assert_str_eq(names(c), "a%2Fb b c nbd nbd2 z");
	ck_assert_str_eq(image_export(catalog_find(c, "a%2Fb")), "a/b");
	ck_assert_str_eq(image_export(catalog_find(c, "nbd")), "");
	ck_assert_ptr_null(catalog_find(c, ""));
	ck_assert_ptr_null(catalog_find(c, "a"));
	ck_assert_ptr_null(catalog_find(c, "zz"));
	finish(c);
}
END_TEST

START_TEST(nothing)
{
	struct catalog *c;

	serve("x", "");
	c = load();
	ck_assert_str_eq(names(c), "");
	ck_assert_ptr_null(catalog_find(c, "a"));
	servers[0].offers = "a";
	refresh(c);
	ck_assert_str_eq(names(c), "a");
	finish(c);
}
END_TEST

START_TEST(same_names)
{
	struct catalog *c;
	struct image *first, *other;
	char text[300];

	serve("x", "a b");
	serve("y", "a");
	serve("y2", "b a");
	servers[2].operand = "y";
	c = catalog_new(NULL);
	/* The same operand twice is two sources all the same. */
	for (int i = 0; i < 3; i++) {
		struct error err;

		ck_assert_int_eq(catalog_add_uri(c, i ? "y" : "x", &err), 0);
	}
	servers[1].freed = -1;
	servers[2].freed = 1;
	ck_assert_int_eq(catalog_load(c, &(struct error){ "" }), 0);
	ck_assert_uint_eq(catalog_count(c), 4);
	first = catalog_find(c, "a");
	other = catalog_next(c, first);
	ck_assert_str_eq(image_export(other), "a");
	snprintf(text, sizeof(text), "%s", image_name(other));
	ck_assert_uint_eq(strlen(text), 1 + 1 + 16);
	ck_assert_str_eq(image_export(catalog_next(c, other)), "a");
	/* Names stay when the first goes. */
	servers[0].offers = "b";
	refresh(c);
	ck_assert_ptr_null(catalog_find(c, "a"));
	ck_assert_ptr_eq(catalog_find(c, text), other);
	finish(c);
}
END_TEST

/* A server that offers what our way out of a collision would be called. */
START_TEST(hostile_names)
{
	struct catalog *c;
	char way_out[300], offers[400];

	serve("x", "a");
	serve("y", "a");
	c = load();
	snprintf(way_out, sizeof(way_out), "%s",
		 image_name(catalog_next(c, catalog_find(c, "a"))));
	catalog_free(c);
	snprintf(offers, sizeof(offers), "a %s", way_out);
	servers[0].offers = offers;
	servers[0].freed = servers[1].freed = 0;
	c = load();
	ck_assert_uint_eq(catalog_count(c), 3);
	/* Each of them is found. */
	names(c);
	ck_assert_str_eq(image_export(catalog_find(c, way_out)), way_out);
	finish(c);
}
END_TEST

START_TEST(given_names)
{
	struct catalog *c;
	struct error err;

	serve("x", "disk other")->operand = "x";
	serve("disk=y", "z")->name = "disk";
	serve("disk=w", "z")->name = "disk";
	c = catalog_new(NULL);
	ck_assert_int_eq(catalog_add_uri(c, "x", &err), 0);
	ck_assert_int_eq(catalog_add_uri(c, "disk=y", &err), 0);
	ck_assert_int_eq(catalog_add_uri(c, "disk=w", &err), -EEXIST);
	ck_assert_str_eq(err.text, "two sources are called 'disk'");
	ck_assert_int_eq(servers[2].freed, 1);
	ck_assert_int_eq(catalog_add_uri(c, "none", &err), -EINVAL);
	ck_assert_int_eq(catalog_load(c, &err), 0);
	/* The one that was asked for has the name, also when it comes last. */
	ck_assert_str_eq(image_export(catalog_find(c, "disk")), "z");
	ck_assert_uint_eq(catalog_count(c), 3);
	finish(c);
}
END_TEST

START_TEST(come_and_go)
{
	struct catalog *c;
	struct image *a, *b, *cc;

	serve("x", "a b c");
	c = load();
	a = catalog_find(c, "a");
	b = image_ref(catalog_find(c, "b"));
	cc = catalog_find(c, "c");
	cc->dirty = true;
	servers[0].offers = "a d longer";
	refresh(c);
	ck_assert_str_eq(names(c), "a d longer");
	ck_assert_ptr_eq(catalog_find(c, "a"), a);
	ck_assert_uint_eq(nimages, 5);
	ck_assert_ptr_null(catalog_find(c, "b"));
	/* One that is gone still has its place. */
	ck_assert_str_eq(image_name(catalog_next(c, b)), "d");
	/* It is the same when it comes back; its size is news. */
	b->size = 99;
	servers[0].offers = "a b";
	refresh(c);
	ck_assert_str_eq(names(c), "a b");
	ck_assert_ptr_eq(catalog_find(c, "b"), b);
	ck_assert_uint_eq(image_ref(b)->size, 1);
	image_unref(b);
	/* Let go, what is gone goes. */
	cc->dirty = false;
	image_unref(b);
	servers[0].offers = "";
	refresh(c);
	ck_assert_uint_eq(nimages, 0);
	ck_assert_uint_eq(catalog_count(c), 0);
	finish(c);
}
END_TEST

/* While one that is gone is in use, another of that name has another name. */
START_TEST(gone_keeps_name)
{
	struct catalog *c;
	struct image *a;

	serve("x", "a");
	serve("y", "");
	c = load();
	a = image_ref(catalog_find(c, "a"));
	servers[0].offers = "";
	servers[1].offers = "a";
	refresh(c);
	ck_assert_uint_eq(catalog_count(c), 1);
	ck_assert_ptr_null(catalog_find(c, "a"));
	servers[0].offers = "a";
	refresh(c);
	ck_assert_ptr_eq(catalog_find(c, "a"), a);
	ck_assert_uint_eq(catalog_count(c), 2);
	image_unref(a);
	finish(c);
}
END_TEST

START_TEST(failures_keep)
{
	struct catalog *c;

	serve("x", "a b");
	serve("y", "c");
	c = load();
	ck_assert(catalog_stale(c));
	servers[0].offers = NULL;
	servers[1].offers = "d";
	refresh(c);
	ck_assert_str_eq(names(c), "a b d");
	/* Not asked again at once; the other one is. */
	servers[0].listed = servers[1].listed = 0;
	servers[0].offers = "e";
	refresh(c);
	ck_assert_int_eq(servers[0].listed, 0);
	ck_assert_int_eq(servers[1].listed, 1);
	ck_assert_str_eq(names(c), "a b d");
	usleep(1100000);
	refresh(c);
	ck_assert_str_eq(names(c), "d e");
	finish(c);
}
END_TEST

START_TEST(fresh_enough)
{
	struct catalog *c;

	cfg.list_timeout_ms = 300;
	serve("x", "a");
	c = load();
	ck_assert(!catalog_stale(c));
	servers[0].listed = 0;
	refresh(c);
	ck_assert_int_eq(servers[0].listed, 0);
	usleep(350000);
	ck_assert(catalog_stale(c));
	refresh(c);
	ck_assert_int_eq(servers[0].listed, 1);
	ck_assert(!catalog_stale(c));
	finish(c);
}
END_TEST

START_TEST(never_asked_again)
{
	struct catalog *c;

	serve("uri", "a")->export = "a";
	serve("n=uri", "b")->name = "n";
	serve("one", "c")->keeps = true;
	servers[2].one_client = true;
	c = load();
	ck_assert_str_eq(names(c), "a c n");
	ck_assert(!catalog_stale(c));
	refresh(c);
	for (int i = 0; i < 3; i++)
		ck_assert_int_eq(servers[i].listed, 1);
	ck_assert_int_eq(kept_handles, 1);
	ck_assert_int_eq(ended_handles, 0);
	finish(c);
}
END_TEST

START_TEST(dead_child)
{
	struct catalog *c = catalog_new(NULL);
	char word[] = "cmd";
	char *argv[] = { word, NULL };
	struct error err;

	cfg.timeout_ms = 1000;
	serve("cmd", "a");
	ck_assert_int_eq(catalog_add_command(c, argv, &err), 0);
	ck_assert_int_eq(catalog_load(c, &err), 0);
	ck_assert_int_eq(servers[0].started, 1);
	ck_assert(catalog_stale(c));
	servers[0].dead = true;
	refresh(c);
	ck_assert_int_eq(servers[0].listed, 1);
	ck_assert_str_eq(names(c), "a");
	ck_assert(!catalog_stale(c));
	finish(c);
	ck_assert_int_ne(servers[0].stopped, 0);
}
END_TEST

START_TEST(load_fails)
{
	struct catalog *c;
	struct error err = { "" };

	for (int i = 0; i < 4; i++)
		serve(i == 0 ? "w" :
		      i == 1 ? "x" :
		      i == 2 ? "y" :
			       "z",
		      "a")
			->keeps = true;
	servers[2].offers = NULL;
	c = make();
	ck_assert_int_eq(catalog_load(c, &err), -ECONNREFUSED);
	ck_assert_str_eq(err.text, "y: is down");
	ck_assert_uint_eq(nimages, 0);
	ck_assert_int_eq(kept_handles, 0);
	catalog_free(c);
}
END_TEST

START_TEST(join_refresh)
{
	struct catalog *c;
	struct waiter w1 = { .wait.done = waited };
	struct waiter w2 = { .wait.done = waited };

	serve("x", "a");
	serve("y", "b");
	c = load();
	catalog_refresh(c, &w1.wait);
	catalog_refresh(c, &w2.wait);
	w1.again = c;
	ck_assert(run_one());
	ck_assert_int_eq(w1.called, 0);
	ck_assert(run_one());
	ck_assert_int_eq(w1.called, 1);
	ck_assert_int_eq(w2.called, 1);
	/* Asked again from inside: a round of its own. */
	run_jobs();
	ck_assert_int_eq(w1.called, 2);
	ck_assert_int_eq(w2.called, 1);
	ck_assert_int_eq(servers[0].listed, 3);
	finish(c);
}
END_TEST

START_TEST(ends_in_order)
{
	struct waiter w = { .wait.done = waited };
	struct catalog *c = catalog_new(NULL);
	char word[] = "cmd";
	char *argv[] = { word, NULL };
	struct image *b;
	struct error err;

	cfg.timeout_ms = 1000;
	serve("x", "a b");
	serve("cmd", "c");
	ck_assert_int_eq(catalog_add_uri(c, "x", &err), 0);
	ck_assert_int_eq(catalog_add_command(c, argv, &err), 0);
	ck_assert_int_eq(catalog_load(c, &err), 0);
	b = image_ref(catalog_find(c, "b"));
	servers[0].offers = "a";
	refresh(c);
	/* A list is under way. */
	catalog_refresh(c, &w.wait);
	catalog_shutdown(c, ended, NULL);
	ck_assert_uint_eq(nshutting, 0);
	run_jobs();
	ck_assert_int_eq(w.called, 1);
	/* What is gone, but in use, has to be written too. */
	ck_assert_uint_eq(nshutting, 3);
	ck_assert_int_eq(servers[1].stopped, 0);
	shutting[1]->done(shutting[1]->arg, -ENOSPC);
	shutting[0]->done(shutting[0]->arg, -EIO);
	run_jobs();
	ck_assert_int_eq(servers[1].stopped, 0);
	shutting[2]->done(shutting[2]->arg, 0);
	ck_assert_int_eq(end_called, 0);
	run_jobs();
	ck_assert_int_gt(servers[1].stopped, images_gone_at);
	ck_assert_int_gt(end_called, servers[1].stopped);
	ck_assert_int_eq(end_error, -ENOSPC);
	ck_assert_int_eq(servers[0].stopped, 0);
	/* Nothing is listed any more. */
	refresh(c);
	image_unref(b);
	catalog_free(c);
	ck_assert_uint_eq(nimages, 0);
}
END_TEST

/* Lists that change at random, against a model: each export that is offered
 * has one file, whose name and image stay while it is offered. */
#define MODEL_EXPORTS 12

struct model {
	struct image *img; /* offered in the last round */
	char name[256];
};

static void offer_some(struct server *s, uint64_t *rnd, bool *offered)
{
	size_t len = 0;

	free(s->words);
	s->words = calloc(1, MODEL_EXPORTS * 4 + 1);
	for (int i = 0; i < MODEL_EXPORTS; i++) {
		offered[i] = unit_below(rnd, 2);
		if (offered[i])
			len += (size_t)snprintf(s->words + len, 5, "e%02d ", i);
	}
	if (len)
		s->words[len - 1] = '\0';
}

static void check_model(struct catalog *c, struct model *m, bool *offered)
{
	struct image *img = NULL;
	size_t expected = 0;

	for (int i = 0; i < 3 * MODEL_EXPORTS; i++) {
		expected += offered[i];
		if (!offered[i])
			m[i].img = NULL;
		else if (m[i].img)
			ck_assert_ptr_eq(catalog_find(c, m[i].name), m[i].img);
	}
	ck_assert_uint_eq(catalog_count(c), expected);
	while ((img = catalog_next(c, img)) != NULL) {
		long e = strtol(img->export + 1, NULL, 10);
		long i = (img->srv - servers) * MODEL_EXPORTS + e;

		ck_assert(offered[i]);
		if (m[i].img)
			ck_assert_ptr_eq(m[i].img, img);
		m[i].img = img;
		snprintf(m[i].name, sizeof(m[i].name), "%s", img->name);
		expected--;
	}
	ck_assert_uint_eq(expected, 0);
}

START_TEST(random_lists)
{
	struct model m[3 * MODEL_EXPORTS] = { 0 };
	bool offered[3 * MODEL_EXPORTS] = { false };
	struct image *held[4] = { NULL };
	uint64_t rnd = (uint64_t)_i + 1;
	struct catalog *c;

	serve("x", "");
	serve("y", "");
	serve("z", "");
	c = load();
	for (int round = 0; round < 100; round++) {
		int h = (int)unit_below(&rnd, 4);

		for (int s = 0; s < 3; s++)
			if (unit_below(&rnd, 2))
				offer_some(&servers[s], &rnd,
					   offered + s * MODEL_EXPORTS);
		refresh(c);
		check_model(c, m, offered);
		if (held[h])
			image_unref(held[h]);
		held[h] = catalog_next(c, NULL);
		if (held[h])
			image_ref(held[h]);
	}
	for (int h = 0; h < 4; h++)
		if (held[h])
			image_unref(held[h]);
	finish(c);
}
END_TEST

START_TEST(many_exports)
{
	struct catalog *c;
	size_t len = 0, size = MAX_EXPORTS * 8 + 1;
	struct timespec t0, t1;

	for (int s = 0; s < 2; s++) {
		char *words = calloc(1, size);

		len = 0;
		for (int i = 0; i < MAX_EXPORTS; i++)
			len += (size_t)snprintf(words + len, size - len,
						"e%05d ", i);
		words[len - 1] = '\0';
		serve(s ? "y" : "x", NULL)->words = words;
	}
	clock_gettime(CLOCK_MONOTONIC, &t0);
	c = load();
	ck_assert_uint_eq(catalog_count(c), 2 * MAX_EXPORTS);
	refresh(c);
	ck_assert_ptr_nonnull(catalog_find(c, "e08000"));
	ck_assert_uint_eq(catalog_count(c), 2 * MAX_EXPORTS);
	clock_gettime(CLOCK_MONOTONIC, &t1);
	/* Quadratic steps take minutes. */
	ck_assert_int_lt(t1.tv_sec - t0.tv_sec, 20);
	finish(c);
}
END_TEST

int main(void)
{
	const struct unit_case cases[] = {
		{ in_order, 0 },	{ nothing, 0 },
		{ same_names, 0 },	{ hostile_names, 0 },
		{ given_names, 0 },	{ come_and_go, 0 },
		{ gone_keeps_name, 0 }, { failures_keep, 0 },
		{ fresh_enough, 0 },	{ never_asked_again, 0 },
		{ dead_child, 0 },	{ load_fails, 0 },
		{ join_refresh, 0 },	{ ends_in_order, 0 },
		{ random_lists, 20 },	{ many_exports, 0 },
	};

	return unit_main("catalog", cases, ARRAY_SIZE(cases));
}
