/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * survey.c - sizes and flags of many exports.
 *
 * First by NBD_OPT_INFO, on the control connection; libnbd has one option in
 * flight, so where answers are slow to come more connections help out. What
 * that does not tell (some servers say size 0 before transmission) is learnt
 * by going into transmission, each on a connection of its own.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "negotiate.h"
#include "util.h"

/* More connections once this many answers show that the rest would take this
 * long, with at least so many exports for each. */
#define WIDEN_AFTER 8
#define WIDEN_NS (200 * NS_PER_MS)
#define WIDEN_SHARE 8

enum probe_state { PROBE_OFF, PROBE_CONNECTING, PROBE_IDLE, PROBE_ASKING };

struct probe {
	enum probe_state state;
	size_t entry;	   /* what is asked about */
	unsigned answered; /* on this connection */
	bool again;	   /* `entry` has to be asked about again */
	struct neg *n, own;
};

struct survey {
	struct talk *t;
	struct export_list *list;
	struct error *err; /* of the first failure */
	int error;
	size_t next; /* the next entry to ask about */
	size_t answers;
	size_t known;
	uint64_t began;
	bool widened;
	struct probe p[TALK_HANDLES];
};

static void note_failure(struct survey *s, struct probe *p, int error)
{
	if (s->error == 0)
		s->error = talk_error(s->t, p->n, error,
				      s->list->entry[p->entry].name, s->err);
}

static void learn(struct survey *s, struct export_entry *e, uint64_t size,
		  bool read_only, char *description)
{
	e->size = size;
	e->size_known = true;
	e->read_only = read_only;
	if (!e->description && description && *description)
		e->description = description;
	else
		free(description);
	s->known++;
}

/* The handles that somebody waits for. */
static bool await(struct survey *s, int *r)
{
	struct neg *n[TALK_HANDLES];
	size_t count = 0;

	for (size_t i = 0; i < TALK_HANDLES; i++)
		if (s->p[i].state == PROBE_CONNECTING ||
		    s->p[i].state == PROBE_ASKING)
			n[count++] = s->p[i].n;
	*r = count ? neg_wait(s->t, n, count) : 0;
	return count > 0 && *r == 0;
}

/* ------------------------------------------------------------ by option */

/* Servers bound what they answer before transmission: nbdkit hangs up after
 * 32 options, if none of them was a list. So it is asked again, freshly. */
static void ask_again(struct survey *s, struct probe *p)
{
	if (p->answered == 0)
		return;
	p->answered = 0;
	p->again = true;
	neg_close(s->t, p->n);
	if (neg_start(s->t, p->n) == 0)
		p->state = PROBE_CONNECTING;
}

static void info_answered(struct survey *s, struct probe *p)
{
	struct nbd_handle *nbd = p->n->nbd;
	int64_t size;

	p->state = PROBE_IDLE;
	if (!neg_negotiating(p->n)) {
		p->state = PROBE_OFF;
		ask_again(s, p);
		return;
	}
	p->answered++;
	s->answers++;
	if (p->n->error)
		return;
	size = nbd_get_size(nbd);
	if (size > 0)
		learn(s, &s->list->entry[p->entry], (uint64_t)size,
		      nbd_is_read_only(nbd) > 0,
		      nbd_get_export_description(nbd));
}

static void info_ask(struct survey *s, struct probe *p)
{
	if (!p->again) {
		if (s->next == s->list->count)
			return;
		p->entry = s->next++;
	}
	p->again = false;
	p->state = PROBE_ASKING;
	/* Refused by libnbd: the protocol spoken here has no such option. */
	if (neg_opt_info(p->n, s->list->entry[p->entry].name) < 0)
		p->state = PROBE_OFF;
}

static void info_step(struct survey *s, struct probe *p)
{
	if (p->state == PROBE_OFF || neg_busy(p->n))
		return;
	if (p->state == PROBE_CONNECTING)
		p->state = neg_negotiating(p->n) ? PROBE_IDLE : PROBE_OFF;
	else if (p->state == PROBE_ASKING)
		info_answered(s, p);
	if (p->state == PROBE_IDLE)
		info_ask(s, p);
}

static void widen(struct survey *s)
{
	size_t left = s->list->count - s->next, n = left / WIDEN_SHARE;
	uint64_t each;

	if (s->widened || s->answers < WIDEN_AFTER)
		return;
	each = (clock_now() - s->began) / s->answers;
	if (each < WIDEN_NS / (left + 1))
		return;
	s->widened = true;
	for (size_t i = 1; i < TALK_HANDLES && i <= n; i++) {
		struct probe *p = &s->p[i];

		p->n = &p->own;
		if (neg_start(s->t, p->n) < 0)
			return;
		p->state = PROBE_CONNECTING;
	}
}

/* One export that hangs must leave time to learn about the others. */
static void limit_silence(struct survey *s)
{
	uint64_t now = clock_now(), end = s->t->opts->deadline;

	s->t->limit = end > now ? now + (end - now) / 4 : end;
}

static int by_option(struct survey *s, struct neg *n)
{
	size_t answers = 0;
	int r;

	s->p[0].n = n;
	s->p[0].state = PROBE_IDLE;
	limit_silence(s);
	do {
		for (size_t i = 0; i < TALK_HANDLES; i++)
			info_step(s, &s->p[i]);
		widen(s);
		if (s->answers > answers)
			limit_silence(s);
		answers = s->answers;
	} while (await(s, &r));
	s->t->limit = UINT64_MAX;
	if (r == -ETIMEDOUT)
		r = 0;
	for (size_t i = 0; i < TALK_HANDLES; i++) {
		s->p[i].state = PROBE_OFF;
		if (i > 0)
			neg_end(s->t, &s->p[i].own);
	}
	return r;
}

/* -------------------------------------------------------- by connecting */

static void go_answered(struct survey *s, struct probe *p)
{
	struct export_entry *e = &s->list->entry[p->entry];
	struct nbd_caps caps;
	struct error why;
	int r = p->n->error;

	if (r == 0 && !neg_ready(p->n))
		r = -ECONNRESET;
	if (r < 0) {
		note_failure(s, p, r);
		return;
	}
	r = nbd_caps_read(p->n->nbd, s->t->opts, &caps, &why);
	if (r == 0) {
		learn(s, e, caps.size, caps.read_only, caps.description);
	} else if (s->error == 0) {
		s->error = r;
		talk_export_error(s->t, e->name, why.text, s->err);
	}
}

/* Begins with the next entry that is not known; PROBE_OFF: there is none. */
static void go_next(struct survey *s, struct probe *p)
{
	int r;

	p->state = PROBE_OFF;
	while (s->next < s->list->count && s->list->entry[s->next].size_known)
		s->next++;
	if (s->next == s->list->count)
		return;
	p->entry = s->next++;
	p->n = &p->own;
	r = neg_start(s->t, p->n);
	if (r < 0)
		note_failure(s, p, r);
	else
		p->state = PROBE_CONNECTING;
}

static void go_step(struct survey *s, struct probe *p)
{
	const char *name = s->list->entry[p->entry].name;

	if (p->state == PROBE_OFF || neg_busy(p->n))
		return;
	if (p->state == PROBE_CONNECTING && neg_negotiating(p->n) &&
	    neg_opt_go(p->n, name) == 0) {
		p->state = PROBE_ASKING;
		return;
	}
	go_answered(s, p);
	neg_end(s->t, p->n);
	go_next(s, p);
}

static int by_connecting(struct survey *s)
{
	int r;

	s->next = 0;
	for (size_t i = 0; i < TALK_HANDLES; i++)
		go_next(s, &s->p[i]);
	while (await(s, &r))
		for (size_t i = 0; i < TALK_HANDLES; i++)
			go_step(s, &s->p[i]);
	for (size_t i = 0; i < TALK_HANDLES; i++) {
		if (r < 0 && s->p[i].state != PROBE_OFF)
			note_failure(s, &s->p[i], r);
		neg_close(s->t, &s->p[i].own);
	}
	return r;
}

int talk_survey(struct talk *t, struct neg *n, struct export_list *list,
		struct error *err)
{
	struct survey *s = calloc(1, sizeof(*s));
	struct error first;
	int r;

	if (!s) {
		error_set(err, "out of memory");
		return -ENOMEM;
	}
	*s = (struct survey){ .t = t, .list = list, .err = &first };
	s->began = clock_now();
	r = by_option(s, n);
	if (r == 0 && s->known < list->count)
		r = by_connecting(s);
	/* One that hangs or fails must not hide the others. */
	if (r != -ECANCELED && s->known > 0)
		r = 0;
	else if (r == 0)
		r = s->error;
	if (r < 0)
		r = talk_error(t, n, r, NULL, err);
	if (r < 0 && s->error)
		error_set(err, "%s", first.text);
	free(s);
	return r;
}
