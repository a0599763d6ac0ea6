/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * negotiate.h - libnbd handles on their way to an export, with a deadline.
 *
 * One call of nbd_open_export() or nbd_list_exports() is a struct talk; it
 * may have several handles (struct neg) under way at the same time, all on
 * its thread.
 *
 * Ownership  a neg is its caller's memory and must stay in place from
 *            neg_start() to neg_close(), neg_end() or neg_take().
 * Threads    one thread per talk.
 * Errors     0 or -errno; the reason is in neg.why until it is made a text by
 *            talk_error().
 */
#ifndef NBDFS_NEGOTIATE_H
#define NBDFS_NEGOTIATE_H

#include "guard.h"
#include "server.h"

/* Handles at the same time: enough to hide round trips, few enough not to
 * look like an attack. */
#define TALK_HANDLES 8

struct talk {
	struct server *srv;
	const struct connect_opts *opts;
	uint64_t began;
	uint64_t limit; /* of waits, besides the deadline */
	struct guard guard;
};

struct neg {
	struct nbd_handle *nbd; /* NULL: closed */
	struct guard_slot slot;
	bool reads;    /* the socket is the final one */
	int error;     /* -errno: of the last step, 0: fine */
	char why[384]; /* libnbd's words for it */
};

void talk_begin(struct talk *t, struct server *srv,
		const struct connect_opts *opts);
void talk_end(struct talk *t);

/* Begins to connect. An error is final. */
int neg_start(struct talk *t, struct neg *n);
/* Sends an option; its answer is awaited by neg_wait(). opt_list calls `list`
 * for each export. */
int neg_opt_list(struct neg *n, nbd_list_callback list);
int neg_opt_info(struct neg *n, const char *export);
int neg_opt_go(struct neg *n, const char *export);
/* Waits until one of `count` handles (at most TALK_HANDLES; NULL and closed
 * ones are skipped) is not busy, and lets libnbd work. -ETIMEDOUT (deadline or
 * t->limit), -ECANCELED; 0 says nothing about how the handles fared. */
int neg_wait(struct talk *t, struct neg *const *n, size_t count);
/* True while connecting or while an option is not answered. */
bool neg_busy(const struct neg *n);
/* neg_wait() for one, and how it fared: 0 or -errno, talk-wide or its own. */
int neg_settle(struct talk *t, struct neg *n);
bool neg_negotiating(const struct neg *n);
bool neg_ready(const struct neg *n);

/* The handle, for good: the caller's. */
struct nbd_handle *neg_take(struct talk *t, struct neg *n);
/* Closes; neg_end() says good-bye first. A closed one is left alone. */
void neg_close(struct talk *t, struct neg *n);
void neg_end(struct talk *t, struct neg *n);

/* One line about `n` that failed with `error`; `export` is what was asked
 * for, or NULL. Returns the error, or -ETIMEDOUT, -ECANCELED where that is what
 * is behind it. */
int talk_error(struct talk *t, const struct neg *n, int error,
	       const char *export, struct error *err);
/* The same with a reason in words. */
void talk_export_error(struct talk *t, const char *export, const char *why,
		       struct error *err);

/* caps.c: what a handle that is ready can do. `why` on errors. */
int nbd_caps_read(struct nbd_handle *nbd, const struct connect_opts *opts,
		  struct nbd_caps *caps, struct error *why);
/* Checks the block sizes as advertised (0: not) and makes effective ones. */
int nbd_caps_blocks(uint64_t min, uint64_t pref, uint64_t max,
		    struct nbd_caps *caps, struct error *why);

/* connect.c: into transmission on `export`, from whatever state a settled
 * handle is in; reads caps. The handle stays n's. */
int talk_go(struct talk *t, struct neg *n, const char *export,
	    struct nbd_caps *caps, struct error *err);
/* list.c: what the server offers, as the end of a message about `export`:
 * "it offers: 'a', 'b', ... (9 in all)". False: it does not tell. n may be
 * unusable: a new connection is made then. */
bool talk_offers(struct talk *t, struct neg *n, const char *export, char *text,
		 size_t size);

/* survey.c: sizes and flags of all entries, by option n (negotiating) and
 * more connections where round trips are slow; entry by entry where options
 * do not tell. What cannot be learnt stays unknown; an error where nothing
 * could be. */
int talk_survey(struct talk *t, struct neg *n, struct export_list *list,
		struct error *err);

uint64_t clock_now(void);

#endif
