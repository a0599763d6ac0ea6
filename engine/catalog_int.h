/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * catalog_int.h - the catalog in two parts: sources (catalog_src.c), which
 * are listed by helper threads, and the files that come of them (catalog.c).
 *
 * Threads    the loop's, except where a function says otherwise. A source's
 *            results belong to the helper while `busy`.
 */
#ifndef NBDFS_CATALOG_INT_H
#define NBDFS_CATALOG_INT_H

#include "image.h"

/* One operand. */
struct source {
	struct catalog *c;
	struct server *srv;
	size_t index;
	bool fixed;	/* its list never changes: not asked again */
	bool refresh;	/* to be listed in this round */
	uint64_t due;	/* when its list is no longer believed */
	uint64_t pause; /* after failures: until the next attempt */
	uint64_t took;	/* the last list */

	/* Of a listing. */
	struct work work;
	uint64_t patience;
	struct export_list list;
	struct nbd_handle *keep;
	struct nbd_caps caps;
	struct error err;
	int result;
};

/* A file. */
struct item {
	const char *name; /* the image's */
	struct image *img;
	struct source *src;
	bool gone; /* no longer listed, but still in use */
	bool seen; /* in the list that is being taken over */
};

struct catalog {
	struct engine *e;
	struct source **source;
	size_t nsources;
	atomic_bool cancel;

	void *names;	    /* tsearch(3): items by name */
	struct item **item; /* the same, sorted */
	size_t nitems, ngone;

	unsigned listing; /* sources that are being listed */
	STAILQ_HEAD(, catalog_wait) waiting;

	bool ending;
	unsigned closing; /* images that are still at work */
	int error;	  /* of the first that failed */
	struct work stop; /* ends the servers */
	void (*done)(void *arg, int error);
	void *arg;
};

/* catalog_src.c */

/* Lists a source. Any thread; blocks. */
void source_list(struct source *s, bool keep);
/* Drops what source_list() left. */
void source_clear(struct source *s);
/* After a list was taken over, or could not be had. */
void source_schedule(struct source *s);
void source_free(struct source *s);

/* catalog_marks.c */

/* What was listed, a second time where it has the bitmap that the engine's
 * configuration names. As source_list(), as a part of it. */
int source_add_marks(struct source *s);
/* The file name of export and bitmap; `given`: of NAME=URI, or NULL. */
void marks_file_name(const char *given, const char *export, const char *context,
		     char out[256]);

/* catalog.c */

/* Makes the files of `s` what its list says; takes over `keep`. */
int catalog_apply(struct catalog *c, struct source *s, struct error *err);
/* All lists that were under way have ended: an end may go on. */
void catalog_listed(struct catalog *c);

#endif
