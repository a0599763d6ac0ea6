/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * catalog_src.c - the sources of a catalog: adding, listing, listing again.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "catalog_int.h"
#include "util.h"

/* At start-up, sources that are listed at the same time. */
#define LOADERS 8
/* A refresh is worth less patience than a start: somebody waits for a look at
 * a directory. As long as the last list took, several times over. */
#define REFRESH_MIN_NS (3 * NS_PER_S)
#define REFRESH_FACTOR 8
/* The longest pause after failures. */
#define PAUSE_MAX_NS (60 * NS_PER_S)

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * NS_PER_S + (uint64_t)ts.tv_nsec;
}

/* --------------------------------------------------------------- adding */

static int add_source(struct catalog *c, struct server *srv, struct error *err)
{
	struct source *s = calloc(1, sizeof(*s));
	void *p = realloc(c->source, (c->nsources + 1) * sizeof(*c->source));

	if (p)
		c->source = p;
	if (!s || !p) {
		free(s);
		server_free(srv);
		error_set(err, "out of memory");
		return -ENOMEM;
	}
	s->c = c;
	s->srv = srv;
	s->index = c->nsources;
	s->fixed = server_export(srv) || server_file_name(srv);
	c->source[c->nsources++] = s;
	return 0;
}

int catalog_add_uri(struct catalog *c, const char *operand, struct error *err)
{
	struct server *srv;
	const char *name;
	int r = server_parse_uri(operand, &srv, err);

	if (r < 0)
		return r;
	name = server_file_name(srv);
	for (size_t i = 0; name && i < c->nsources; i++) {
		const char *other = server_file_name(c->source[i]->srv);

		if (other && strcmp(name, other) == 0) {
			error_set(err, "two sources are called '%s'", name);
			server_free(srv);
			return -EEXIST;
		}
	}
	return add_source(c, srv, err);
}

int catalog_add_command(struct catalog *c, char *const argv[],
			struct error *err)
{
	struct server *srv;
	int r = server_from_command(argv, &srv, err);

	return r < 0 ? r : add_source(c, srv, err);
}

void source_free(struct source *s)
{
	source_clear(s);
	server_free(s->srv);
	free(s);
}

/* -------------------------------------------------------------- listing */

void source_clear(struct source *s)
{
	export_list_clear(&s->list);
	if (s->keep) {
		nbd_end(s->keep);
		nbd_caps_clear(&s->caps);
	}
	s->keep = NULL;
}

void source_list(struct source *s, bool keep)
{
	const struct engine_config *cfg = engine_config(s->c->e);
	uint64_t began = now_ns();
	struct connect_opts opts = {
		.deadline = began + s->patience,
		.cancel = &s->c->cancel,
		.want_extents = !cfg->no_extents && !cfg->only_marked,
		.meta_context = cfg->only_marked ? cfg->meta_context : NULL,
	};

	s->err.text[0] = '\0';
	s->result = nbd_list_exports(s->srv, &opts, &s->list,
				     keep ? &s->keep : NULL,
				     keep ? &s->caps : NULL, &s->err);
	if (s->result == 0 && cfg->meta_context)
		s->result = source_add_marks(s);
	if (s->result == 0)
		s->took = now_ns() - began;
}

static uint64_t timeout_ns(const struct catalog *c)
{
	return engine_config(c->e)->timeout_ms * NS_PER_MS;
}

void source_schedule(struct source *s)
{
	uint64_t period = engine_config(s->c->e)->list_timeout_ms * NS_PER_MS;

	/* A server that takes one client at a time, and has us for it, would
	 * not answer another connection. */
	if (s->keep && !s->caps.multi_conn)
		s->fixed = true;
	if (s->result == 0)
		s->pause = 0;
	else
		s->pause =
			min_u64(max_u64(2 * s->pause, NS_PER_S), PAUSE_MAX_NS);
	s->due = now_ns() + max_u64(period, s->pause);
}

/* -------------------------------------------------------------- loading */

struct loader {
	struct catalog *c;
	atomic_size_t next;
};

static void *load_some(void *arg)
{
	struct loader *l = arg;
	struct catalog *c = l->c;
	size_t i;

	while ((i = atomic_fetch_add(&l->next, 1)) < c->nsources) {
		source_list(c->source[i], true);
		/* One failure fails all. */
		if (c->source[i]->result < 0)
			atomic_store(&c->cancel, true);
	}
	return NULL;
}

static void load_all(struct catalog *c)
{
	struct loader l = { .c = c };
	pthread_t thread[LOADERS];
	size_t n = 0;

	atomic_init(&l.next, 0);
	while (n < LOADERS && n + 1 < c->nsources &&
	       pthread_create(&thread[n], NULL, load_some, &l) == 0)
		n++;
	load_some(&l);
	while (n > 0)
		pthread_join(thread[--n], NULL);
}

static int load_result(struct catalog *c, struct error *err)
{
	int r = 0;

	for (size_t i = 0; i < c->nsources; i++) {
		struct source *s = c->source[i];

		/* A cancelled one failed because of another. */
		if (s->result < 0 && (r == 0 || r == -ECANCELED)) {
			r = s->result;
			error_set(err, "%s", s->err.text);
		}
	}
	return r;
}

static int start_servers(struct catalog *c, struct error *err)
{
	const struct log *log = &engine_config(c->e)->log;

	for (size_t i = 0; i < c->nsources; i++) {
		int r = server_start(c->source[i]->srv, log, err);

		if (r < 0)
			return r;
	}
	return 0;
}

static void warn_unknown(const struct source *s)
{
	const struct log *log = &engine_config(s->c->e)->log;

	for (size_t i = 0; i < s->list.count; i++)
		if (!s->list.entry[i].size_known)
			log_msg(log, LOG_LVL_WARN,
				"%s: the size of export '%.100s' is not known",
				server_label(s->srv), s->list.entry[i].name);
}

int catalog_load(struct catalog *c, struct error *err)
{
	int r = start_servers(c, err);

	if (r < 0)
		return r;
	for (size_t i = 0; i < c->nsources; i++)
		c->source[i]->patience = timeout_ns(c);
	load_all(c);
	r = load_result(c, err);
	for (size_t i = 0; i < c->nsources; i++) {
		struct source *s = c->source[i];

		if (r == 0) {
			warn_unknown(s);
			source_schedule(s);
			r = catalog_apply(c, s, err);
		}
		source_clear(s);
	}
	return r;
}

/* ----------------------------------------------------------- refreshing */

bool catalog_stale(const struct catalog *c)
{
	uint64_t now = now_ns();

	for (size_t i = 0; i < c->nsources; i++)
		if (!c->source[i]->fixed && now >= c->source[i]->due)
			return true;
	return false;
}

static void tell_waiting(struct catalog *c)
{
	STAILQ_HEAD(, catalog_wait) list = STAILQ_HEAD_INITIALIZER(list);
	struct catalog_wait *w;

	/* They may come back at once, for the next round. */
	STAILQ_CONCAT(&list, &c->waiting);
	while ((w = STAILQ_FIRST(&list)) != NULL) {
		STAILQ_REMOVE_HEAD(&list, link);
		w->done(w);
	}
}

static void refresh_fn(struct work *w)
{
	struct source *s = container_of(w, struct source, work);

	source_list(s, false);
}

static void refresh_done(struct work *w)
{
	struct source *s = container_of(w, struct source, work);
	struct catalog *c = s->c;
	const struct log *log = &engine_config(c->e)->log;
	struct error err;
	bool ending;

	if (s->result < 0 && s->result != -ECANCELED && s->pause == 0)
		log_msg(log, LOG_LVL_WARN, "%s", s->err.text);
	source_schedule(s);
	if (s->result == 0 && catalog_apply(c, s, &err) < 0)
		log_msg(log, LOG_LVL_ERROR, "%s", err.text);
	source_clear(s);
	if (--c->listing > 0)
		return;
	ending = c->ending;
	tell_waiting(c);
	/* An end that one of them has begun does not wait for us. */
	if (ending)
		catalog_listed(c);
}

/* A subprocess that has ended does not come back. */
static bool wants_refresh(struct source *s, uint64_t now)
{
	if (s->c->ending || s->fixed || now < s->due)
		return false;
	s->fixed = !server_alive(s->srv);
	return !s->fixed;
}

static void refresh_start(struct source *s)
{
	uint64_t patience = max_u64(REFRESH_FACTOR * s->took, REFRESH_MIN_NS);

	s->refresh = false;
	s->patience = min_u64(patience, timeout_ns(s->c));
	s->work.fn = refresh_fn;
	s->work.done = refresh_done;
	workers_run(engine_workers(s->c->e), &s->work);
}

void catalog_refresh(struct catalog *c, struct catalog_wait *w)
{
	uint64_t now = now_ns();

	STAILQ_INSERT_TAIL(&c->waiting, w, link);
	if (c->listing > 0)
		return;
	for (size_t i = 0; i < c->nsources; i++) {
		c->source[i]->refresh = wants_refresh(c->source[i], now);
		c->listing += c->source[i]->refresh;
	}
	if (c->listing == 0) {
		tell_waiting(c);
		return;
	}
	for (size_t i = 0; i < c->nsources; i++)
		if (c->source[i]->refresh)
			refresh_start(c->source[i]);
}
