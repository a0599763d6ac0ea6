/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * server.h - what negotiation needs of a struct server beyond connect.h.
 *
 * Ownership, threads and errors as in connect.h.
 */
#ifndef NBDFS_SERVER_H
#define NBDFS_SERVER_H

#include "connect.h"

/* Before each connection with TLS: 0 where the server's certificate will be
 * checked, or need not be; `nbd` is set up for that. -EACCES: `why` says what
 * is missing. */
int server_check_tls(struct server *srv, struct nbd_handle *nbd,
		     struct error *why);
/* Begins to connect a fresh handle, set up by the caller. -1: the reason is
 * libnbd's. */
int server_aio_connect(struct server *srv, struct nbd_handle *nbd);
/* It has answered: what a subprocess prints is no reason for a failed start
 * any more. */
void server_answered(struct server *srv);
/* True where it is a subprocess that has ended, or ends within wait_ms; `how`
 * says how. */
bool server_ended(struct server *srv, unsigned wait_ms, struct error *how);

#endif
