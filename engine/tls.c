/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * tls.c - whether a server's certificate would be checked.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tls.h"
#include "util.h"

bool tls_version_checks(const char *version)
{
	unsigned long major, minor, patch;
	char *end;

	major = strtoul(version, &end, 10);
	if (*end != '.')
		return false;
	minor = strtoul(end + 1, &end, 10);
	if (*end != '.')
		return false;
	patch = strtoul(end + 1, &end, 10);
	if (major != 1)
		return major > 1;
	if (minor == 18)
		return patch >= 5;
	if (minor == 20)
		return patch >= 2;
	return minor > 21;
}

static bool has_ca(const char *folder)
{
	char *path;
	bool found;

	if (asprintf(&path, "%s/ca-cert.pem", folder) < 0)
		return false;
	found = access(path, R_OK) == 0;
	free(path);
	return found;
}

int tls_decide(const struct tls *t, const char *version, char *const defaults[],
	       const char **folder, struct error *why)
{
	*folder = NULL;
	if (!t->used || t->key || t->unchecked)
		return 0;
	if (t->folder && !has_ca(t->folder)) {
		error_set(why,
			  "cannot check the server's certificate: there is no "
			  "CA's certificate, ca-cert.pem, in '%.160s'",
			  t->folder);
		return -EACCES;
	}
	if (tls_version_checks(version))
		return 0;
	if (t->no_host) {
		error_set(why,
			  "libnbd %.20s cannot check a certificate without a "
			  "host name: use a key (tls-psk-file=), or "
			  "tls-verify-peer=no where you trust the socket",
			  version);
		return -EACCES;
	}
	if (t->folder)
		return 0;
	for (; *defaults; defaults++) {
		if (has_ca(*defaults)) {
			*folder = *defaults;
			return 0;
		}
	}
	error_set(why, "cannot check the server's certificate: name the "
		       "folder of the CA's certificate (tls-certificates=) or "
		       "a key (tls-psk-file=)");
	return -EACCES;
}

char **tls_folders(void)
{
	static const char *const mine[] = { "/.pki/libnbd",
					    "/.config/pki/libnbd" };
	char **folders = calloc(ARRAY_SIZE(mine) + 1, sizeof(*folders));
	const char *home = getenv("HOME");

	if (!folders)
		return NULL;
	if (geteuid() == 0 || !home) {
		folders[0] = strdup("/etc/pki/libnbd");
		if (!folders[0])
			goto fail;
		return folders;
	}
	for (size_t i = 0; i < ARRAY_SIZE(mine); i++) {
		size_t len = strlen(home) + strlen(mine[i]) + 1;

		folders[i] = malloc(len);
		if (!folders[i])
			goto fail;
		snprintf(folders[i], len, "%s%s", home, mine[i]);
	}
	return folders;
fail:
	tls_folders_free(folders);
	return NULL;
}

void tls_folders_free(char **folders)
{
	for (size_t i = 0; folders && folders[i]; i++)
		free(folders[i]);
	free(folders);
}
