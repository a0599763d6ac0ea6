/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * connect.h - everything with NBD that may block: name look-up, connecting,
 * TLS and option negotiation, listing, running servers.
 *
 * Units      deadlines are CLOCK_MONOTONIC nanoseconds, absolute.
 * Ownership  handles and lists that are handed out are the caller's.
 * Threads    any thread, usually a helper; one handle on one thread at a
 *            time. A struct server is read-only after server_start(), apart
 *            from what it guards itself.
 * Errors     0 or -errno with a text. Never later than the deadline plus a
 *            tenth of a second, except inside the C library's name look-up.
 *            *cancel becoming true ends a wait with -ECANCELED within a tenth
 *            of a second.
 */
#ifndef NBDFS_CONNECT_H
#define NBDFS_CONNECT_H

#include <libnbd.h>
#include <stdatomic.h>
#include "engine.h"

/* One operand: where a server is, and how to get there. */
struct server;

int server_parse_uri(const char *operand, struct server **srv,
		     struct error *err);
int server_from_command(char *const argv[], struct server **srv,
			struct error *err);
/* Runs the command, listening on a socket of ours in a private folder
 * (LISTEN_FDS, LISTEN_PID); nothing to do for URIs. Once, before connecting,
 * and on a thread that lives as long as the process: the kernel ends the
 * server when that thread ends. What the server prints goes to `log` (may be
 * NULL; copied), line by line, from other threads. */
int server_start(struct server *srv, const struct log *log, struct error *err);
/* SIGTERM, SIGKILL after `grace_ms`; waits; removes the socket and its
 * folder. Blocks. Nothing to do for URIs. */
void server_stop(struct server *srv, unsigned grace_ms);
void server_free(struct server *srv);
/* NAME of NAME=URI, or NULL. */
const char *server_file_name(const struct server *srv);
/* The export name that the URI gives; NULL if it gives none: then all that
 * the server lists is meant. */
const char *server_export(const struct server *srv);
/* For messages: the URI without password or key file, or the command's first
 * word in brackets. */
const char *server_label(const struct server *srv);
bool server_is_command(const struct server *srv);
/* False once a subprocess server has ended: no use in reconnecting. */
bool server_alive(struct server *srv);

struct connect_opts {
	uint64_t deadline;
	atomic_bool *cancel;	  /* or NULL */
	bool want_extents;	  /* negotiate base:allocation */
	const char *meta_context; /* another context as well, or NULL */
};

/* What a connected handle can do; checked, with effective limits. Compared
 * after a reconnection: see nbd_caps_same(). */
struct nbd_caps {
	uint64_t size;
	uint32_t min_block;  /* power of two, 1 to 64 KiB */
	uint32_t pref_block; /* power of two, >= min_block */
	uint32_t max_block;  /* payload limit, multiple of min_block;
					 * 32 MiB where none is advertised or
					 * it is larger */
	bool read_only, multi_conn, flush, fua, zero, fast_zero, trim, status;
	bool rotational;
	bool extended;	   /* block status may ask for 4 GiB and more */
	char *description; /* or NULL; free with nbd_caps_clear() */
};
void nbd_caps_clear(struct nbd_caps *caps);
/* True if a file opened with `a` can go on with `b`. */
bool nbd_caps_same(const struct nbd_caps *a, const struct nbd_caps *b);

/* Connects and goes into transmission on `export`. The handle is ready, its
 * socket non-blocking, nothing in flight; pread_initialize is off, strict
 * mode keeps libnbd's own checks. A wrong export name is an error whose text
 * tells what the server offers. */
int nbd_open_export(struct server *srv, const char *export,
		    const struct connect_opts *opts, struct nbd_handle **nbd,
		    struct nbd_caps *caps, struct error *err);

/* One export as a list tells it. */
struct export_entry {
	char *name;	   /* the export name as the server gave it */
	char *description; /* or NULL */
	uint64_t size;	   /* 0 may mean that it is not known */
	bool size_known;
	bool read_only;
	bool marked; /* for struct image: what a bitmap marks */
};
struct export_list {
	struct export_entry *entry;
	size_t count;
	bool complete; /* false: could not list, one default */
};
void export_list_clear(struct export_list *list);
/* Lists what `srv` offers, with size and flags of each, over one control
 * connection. Only the named export, without listing, where the URI names
 * one. A server that gives size 0 (or nothing) before connecting is connected
 * to, export by export. At most MAX_EXPORTS are taken.
 * keep/keep_caps (may be NULL): where the list has exactly one entry, the
 * connection goes into transmission on it and is handed out instead of being
 * closed; *keep is NULL otherwise. */
#define MAX_EXPORTS 16384
int nbd_list_exports(struct server *srv, const struct connect_opts *opts,
		     struct export_list *list, struct nbd_handle **keep,
		     struct nbd_caps *keep_caps, struct error *err);

/* Polite end: sends DISC where possible, then closes. May block for a
 * moment. */
void nbd_end(struct nbd_handle *nbd);

/* names.c: the file name of an export. out has NAME_MAX + 1 bytes.
 * Percent-encodes '/', '%', control characters (below 0x20 and 0x7f), and the
 * whole of "." and ".."; "" becomes "nbd"; what would be longer than NAME_MAX
 * is cut (not inside an escape or a UTF-8 sequence) and gets a stable suffix:
 * "~" and 16 hex digits of a hash of the full export name. Pure. */
void export_file_name(const char *export, char out[256]);
/* The same with the hash suffix always: for a second export that would have
 * the name of a first. `salt` makes it differ by server. */
void export_file_name_unique(const char *export, const char *salt,
			     char out[256]);

#endif
