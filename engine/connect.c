/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * connect.c - opening an export, and saying in one line why it failed.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "negotiate.h"
#include "util.h"

/* How long a good-bye may take. */
#define END_MS 200
/* A child whose socket is dead is given this long to be dead itself. */
#define DEATH_MS 300
/* Asking what there is, for a message only. */
#define OFFERS_NS (2 * NS_PER_S)

/* ------------------------------------------------------------ the words */

#define TLS_ENDED                                                \
	"the server ended the TLS handshake: it may want a key " \
	"(tls-psk-file=), not know this one, or want a client "  \
	"certificate (tls-certificates=)"

/* What libnbd says that a person need not translate. */
static const struct {
	const char *says, *means;
} words[] = {
	{ "server requires TLS",
	  "the server requires TLS: use nbds:// or nbds+unix://" },
	{ "server refused TLS", "the server does not offer TLS" },
	{ "disconnected unexpectedly", "the server closed the connection" },
	{ "unable to parse URI", "this is not a valid URI" },
	{ "server is not either an oldstyle", "this is not an NBD server" },
	{ "gnutls_handshake: The TLS connection was non-properly", TLS_ENDED },
	{ "gnutls_handshake: Error in the push function", TLS_ENDED },
	{ "gnutls_handshake: Error in the pull function", TLS_ENDED },
	{ "gnutls_handshake: A TLS fatal alert", TLS_ENDED },
	{ "Error in the certificate verification",
	  "the server's certificate is not valid for this host, or not by "
	  "this CA (tls-certificates=)" },
	{ "server policy", "the server's policy forbids it" },
};

/* "gnutls_handshake: What GnuTLS says. (1/2)": a server that took TLS and then
 * said something else. */
static bool tls_words(const char *why, char *out, size_t size)
{
	static const char from[] = "gnutls_handshake: ";
	const char *what = strstr(why, from), *end;

	if (!what)
		return false;
	what += strlen(from);
	end = strstr(what, ". (");
	if (!end)
		end = what + strlen(what);
	snprintf(out, size, "the TLS handshake failed: %.*s", (int)(end - what),
		 what);
	return true;
}

/* "nbd_function: where: what: strerror": without the function, and without
 * what libnbd puts before and after each text. */
static void plain_words(const char *why, char *out, size_t size)
{
	static const char *const before[] = { "handshake: ", "connect: " };
	static const char *const after[] = { ": Invalid argument",
					     ": Operation not supported" };
	const char *colon = strstr(why, ": ");
	size_t len;

	if (strncmp(why, "nbd_", 4) == 0 && colon)
		why = colon + 2;
	for (size_t i = 0; i < ARRAY_SIZE(words); i++)
		if (strstr(why, words[i].says))
			why = words[i].means;
	if (tls_words(why, out, size))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(before); i++)
		if (strncmp(why, before[i], strlen(before[i])) == 0)
			why += strlen(before[i]);
	len = strlen(why);
	for (size_t i = 0; i < ARRAY_SIZE(after); i++) {
		size_t n = strlen(after[i]);

		if (len > n && strcmp(why + len - n, after[i]) == 0)
			len -= n;
	}
	snprintf(out, size, "%.*s", (int)len, why);
}

/* strerror in the middle of a sentence. */
static const char *reason(int error)
{
	switch (error) {
	case -ECONNREFUSED:
		return "connection refused";
	case -ENOENT:
		return "no such socket";
	case -ECONNRESET:
	case -EPIPE:
	case -ENOTCONN:
		return "the server closed the connection";
	default:
		return strerror(-error);
	}
}

static void describe(const struct neg *n, int error, char *out, size_t size)
{
	const char *host;

	host = strstr(n->why, "getaddrinfo: ");
	if (host && strrchr(host, ':')) {
		snprintf(out, size, "the host is not found:%s",
			 strrchr(host, ':') + 1);
		return;
	}
	/* Where the socket failed, the number says it best. */
	if (!*n->why || strstr(n->why, ": connect: ") ||
	    strstr(n->why, ": recv: Conn") || strstr(n->why, ": send: ")) {
		snprintf(out, size, "%s", reason(error));
		return;
	}
	plain_words(n->why, out, size);
}

static bool is_cancelled(const struct talk *t, int error, bool lost)
{
	return error == -ECANCELED ||
	       (lost && t->opts->cancel && atomic_load(t->opts->cancel));
}

/* Also where the guard has broken the connection. */
static bool is_late(const struct talk *t, int error, bool lost)
{
	return (error == -ETIMEDOUT || lost) &&
	       clock_now() >= t->opts->deadline;
}

void talk_export_error(struct talk *t, const char *export, const char *why,
		       struct error *err)
{
	/* The default export goes without saying. */
	if (!export || !*export)
		error_set(err, "%s: %s", server_label(t->srv), why);
	else
		error_set(err, "%s: export '%.100s': %s", server_label(t->srv),
			  export, why);
}

int talk_error(struct talk *t, const struct neg *n, int error,
	       const char *export, struct error *err)
{
	const char *label = server_label(t->srv);
	bool lost = !neg_negotiating(n) && !neg_ready(n);
	struct error how;
	char why[512];

	if (is_cancelled(t, error, lost)) {
		error_set(err, "%s: given up", label);
		error = -ECANCELED;
	} else if (is_late(t, error, lost)) {
		/* In tenths: the caller's arithmetic took a moment. */
		uint64_t tenths =
			(t->opts->deadline - t->began + 50 * NS_PER_MS) /
			(100 * NS_PER_MS);

		error_set(err, "%s: no answer within %g s", label,
			  (double)tenths / 10);
		error = -ETIMEDOUT;
	} else if (lost && server_ended(t->srv, DEATH_MS, &how)) {
		error_set(err, "server %s %s", label, how.text);
	} else {
		describe(n, error, why, sizeof(why));
		if (lost && export && *export)
			error_set(err, "%s: %s when asked for export '%.100s'",
				  label, why, export);
		else
			talk_export_error(t, export, why, err);
	}
	return error;
}

/* ----------------------------------------------------------- an export */

/* The server says that there is no such export. */
static int no_export(struct talk *t, struct neg *n, const char *export,
		     struct error *err)
{
	const char *label = server_label(t->srv);
	struct connect_opts opts = *t->opts;
	struct talk brief;
	char offers[700];
	bool told;

	opts.deadline = min_u64(opts.deadline, clock_now() + OFFERS_NS);
	talk_begin(&brief, t->srv, &opts);
	told = talk_offers(&brief, n, export, offers, sizeof(offers));
	talk_end(&brief);
	if (told)
		error_set(err, "server %s has no export '%.100s'; %s", label,
			  export, offers);
	else
		error_set(err,
			  "server %s has no export '%.100s', and does "
			  "not tell what it offers",
			  label, export);
	return -ENOENT;
}

static int add_contexts(struct neg *n, const struct connect_opts *opts)
{
	if (opts->want_extents &&
	    nbd_add_meta_context(n->nbd, LIBNBD_CONTEXT_BASE_ALLOCATION) < 0)
		return -1;
	if (opts->meta_context &&
	    nbd_add_meta_context(n->nbd, opts->meta_context) < 0)
		return -1;
	return 0;
}

int talk_go(struct talk *t, struct neg *n, const char *export,
	    struct nbd_caps *caps, struct error *err)
{
	struct error why = { "" };
	int r = 0;

	/* Old servers have one export and no names: ready from the start. */
	if (!neg_ready(n)) {
		if (add_contexts(n, t->opts) < 0)
			r = -ENOMEM;
		if (r == 0)
			r = neg_opt_go(n, export);
		if (r == 0)
			r = neg_settle(t, n);
		if (r == 0 && !neg_ready(n))
			r = -EPROTO;
		if (r == -ENOENT && neg_negotiating(n))
			return no_export(t, n, export, err);
		if (r < 0)
			return talk_error(t, n, r, export, err);
	}
	r = nbd_caps_read(n->nbd, t->opts, caps, &why);
	if (r < 0)
		error_set(err, "%s: export '%.100s': %s", server_label(t->srv),
			  export, why.text);
	return r;
}

int nbd_open_export(struct server *srv, const char *export,
		    const struct connect_opts *opts, struct nbd_handle **nbd,
		    struct nbd_caps *caps, struct error *err)
{
	struct neg n;
	struct talk t;
	int r;

	talk_begin(&t, srv, opts);
	r = neg_start(&t, &n);
	if (r == 0)
		r = neg_settle(&t, &n);
	if (r < 0)
		r = talk_error(&t, &n, r, NULL, err);
	else
		r = talk_go(&t, &n, export, caps, err);
	if (r == 0)
		*nbd = neg_take(&t, &n);
	else
		neg_end(&t, &n);
	talk_end(&t);
	return r;
}

/* -------------------------------------------------------------- the end */

/* Waits until all is sent, and then for the server to hang up, but reads
 * nothing: there is nothing that we want to hear. */
static void await_end(struct nbd_handle *nbd)
{
	uint64_t end = clock_now() + END_MS * NS_PER_MS, now;

	while ((now = clock_now()) < end) {
		struct pollfd p = { .fd = nbd_aio_get_fd(nbd) };
		bool writes = nbd_aio_get_direction(nbd) &
			      LIBNBD_AIO_DIRECTION_WRITE;

		p.events = writes ? POLLOUT : POLLIN;
		if (p.fd < 0 ||
		    poll(&p, 1, (int)((end - now) / NS_PER_MS) + 1) <= 0)
			return;
		if (!writes || nbd_aio_notify_write(nbd) < 0)
			return;
	}
}

void nbd_end(struct nbd_handle *nbd)
{
	if (!nbd)
		return;
	if (nbd_aio_is_ready(nbd) > 0 && nbd_aio_in_flight(nbd) == 0) {
		if (nbd_aio_disconnect(nbd, 0) == 0)
			await_end(nbd);
	} else if (nbd_aio_is_negotiating(nbd) > 0) {
		if (nbd_aio_opt_abort(nbd) == 0)
			await_end(nbd);
	}
	nbd_close(nbd);
}
