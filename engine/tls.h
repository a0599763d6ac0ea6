/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * tls.h - whether a server's certificate would be checked.
 *
 * libnbd before 1.18.5 and 1.20.2 accepts any certificate where it finds no
 * certificate of a CA, and whenever the server is not reached by a host name
 * (CVE-2024-7383). Later ones go by the system's CAs there. What would not be
 * checked is refused, unless the user said that it need not be.
 *
 * Ownership  the texts in a struct tls are its holder's.
 * Threads    any.
 */
#ifndef NBDFS_TLS_H
#define NBDFS_TLS_H

#include <stdbool.h>
#include "engine.h"

/* What a URI says about TLS. */
struct tls {
	bool used;	/* nbds, nbds+unix, nbds+vsock */
	bool key;	/* tls-psk-file: no certificates at all */
	bool unchecked; /* tls-verify-peer=no */
	bool no_host;	/* a socket or a virtual machine */
	char *folder;	/* tls-certificates, or NULL */
};

/* True where libnbd of this version ("1.14.2") always checks. */
bool tls_version_checks(const char *version);
/* Decides for a libnbd of that version. `defaults` (NULL at the end) are the
 * folders where it looks when the URI names none. 0: go on, and *folder, unless
 * it is NULL, must be told to libnbd. -EACCES: `why` says what to do. Looks for
 * ca-cert.pem in the folders, else pure. */
int tls_decide(const struct tls *t, const char *version, char *const defaults[],
	       const char **folder, struct error *why);
/* libnbd's folders for this user; free with tls_folders_free(). NULL without
 * memory. */
char **tls_folders(void);
void tls_folders_free(char **folders);

#endif
