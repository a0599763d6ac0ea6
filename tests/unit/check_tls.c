/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Whether a certificate would be checked, and what is refused. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server.h"
#include "tls.h"
#include "unit.h"
#include "util.h"

#define OLD "1.14.2"
#define NEW "1.22.1"

START_TEST(versions)
{
	static const struct {
		const char *version;
		bool checks;
	} v[] = {
		{ "1.14.2", false }, { "1.18.4", false }, { "1.18.5", true },
		{ "1.18.10", true }, { "1.19.3", false }, { "1.20.1", false },
		{ "1.20.2", true },  { "1.21.4", false }, { "1.22.0", true },
		{ "2.0.0", true },   { "0.9.8", false },  { "", false },
		{ "1.22", false },
	};

	for (size_t i = 0; i < ARRAY_SIZE(v); i++)
		ck_assert_msg(tls_version_checks(v[i].version) == v[i].checks,
			      "%s", v[i].version);
}
END_TEST

/* Folders in one of our own: with a CA's certificate, and without. */
static char with[64], without[64];

static void make_folders(void)
{
	char top[] = "/tmp/check_tls.XXXXXX", file[128];
	int fd;

	ck_assert_ptr_nonnull(mkdtemp(top));
	snprintf(with, sizeof(with), "%s/with", top);
	snprintf(without, sizeof(without), "%s/without", top);
	ck_assert(mkdir(with, 0700) == 0 && mkdir(without, 0700) == 0);
	snprintf(file, sizeof(file), "%s/ca-cert.pem", with);
	fd = open(file, O_CREAT | O_WRONLY, 0600);
	ck_assert_int_ge(fd, 0);
	close(fd);
}

static void remove_folders(void)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/ca-cert.pem", with);
	unlink(path);
	rmdir(with);
	rmdir(without);
	*strrchr(with, '/') = '\0';
	rmdir(with);
}

/* what: the start of what is refused, NULL: goes on. */
static void decides(const struct tls *t, const char *version,
		    char *const defaults[], const char *tell, const char *what)
{
	struct error why = { "" };
	const char *folder = "?";
	int r = tls_decide(t, version, defaults, &folder, &why);

	ck_assert_msg(r == (what ? -EACCES : 0), "%d: %s", r, why.text);
	if (what)
		ck_assert_msg(strstr(why.text, what), "%s", why.text);
	if (tell)
		ck_assert_str_eq(folder, tell);
	else
		ck_assert_ptr_null(folder);
}

START_TEST(decisions)
{
	char *none[] = { NULL }, *empty[] = { without, NULL };
	char *second[] = { without, with, NULL };
	struct tls t = { .used = false };

	make_folders();
	decides(&t, OLD, none, NULL, NULL);
	t.used = true;
	/* No folder is named. */
	decides(&t, NEW, none, NULL, NULL);
	decides(&t, OLD, none, NULL, "name the folder");
	decides(&t, OLD, empty, NULL, "name the folder");
	decides(&t, OLD, second, with, NULL);
	/* One is. */
	t.folder = with;
	decides(&t, NEW, none, NULL, NULL);
	decides(&t, OLD, empty, NULL, NULL);
	t.folder = without;
	decides(&t, NEW, second, NULL, "ca-cert.pem");
	decides(&t, OLD, second, NULL, "ca-cert.pem");
	/* Nothing that a certificate could be checked for. */
	t.no_host = true;
	t.folder = with;
	decides(&t, NEW, none, NULL, NULL);
	decides(&t, OLD, none, NULL, "without a host name");
	t.folder = NULL;
	decides(&t, OLD, second, NULL, "without a host name");
	/* It need not be. */
	t.key = true;
	decides(&t, OLD, none, NULL, NULL);
	t.key = false;
	t.unchecked = true;
	t.folder = without;
	decides(&t, OLD, none, NULL, NULL);
	remove_folders();
}
END_TEST

/* What a URI says, seen by whether it is refused with a folder that has
 * nothing: the same with every libnbd. */
START_TEST(uris)
{
	static const struct {
		const char *uri;
		bool refused;
	} u[] = {
		{ "nbd://h?tls-certificates=/none", false },
		{ "nbds://h?tls-certificates=/none", true },
		{ "NBDS://h?TLS-Certificates=/none", true },
		{ "nbds+unix:///?socket=/s&tls-certificates=/none", true },
		{ "nbds+vsock://2?tls-certificates=/none", true },
		{ "nbds://h?tls-certificates=", true },
		{ "nbds://h?tls-certificates=/none&tls-psk-file=/k", false },
		{ "nbds://h?tls-certificates=/none;tls-verify-peer=no", false },
		{ "nbds://h?tls-certificates=/none&tls-verify-peer=0", false },
		{ "nbds://h?tls-certificates=/none&tls-verify-peer=yes", true },
		{ "nbds://h?tls-certificates=/none&tls-verify-peer=", true },
		{ "nbds://h?tls-certificates=/none&tls-verify-peer=no&"
		  "tls-verify-peer=1",
		  true },
	};

	for (size_t i = 0; i < ARRAY_SIZE(u); i++) {
		struct nbd_handle *nbd = nbd_create();
		struct server *srv = NULL;
		struct error err = { "" };
		int r;

		ck_assert_ptr_nonnull(nbd);
		r = server_parse_uri(u[i].uri, &srv, &err);
		ck_assert_msg(r == 0, "%s: %s", u[i].uri, err.text);
		r = server_check_tls(srv, nbd, &err);
		ck_assert_msg(r == (u[i].refused ? -EACCES : 0), "%s: %s",
			      u[i].uri, err.text);
		server_free(srv);
		nbd_close(nbd);
	}
}
END_TEST

START_TEST(folders)
{
	char **f = tls_folders();

	ck_assert_ptr_nonnull(f);
	ck_assert_ptr_nonnull(f[0]);
	if (geteuid() == 0)
		ck_assert_str_eq(f[0], "/etc/pki/libnbd");
	tls_folders_free(f);
	unsetenv("HOME");
	f = tls_folders();
	ck_assert_str_eq(f[0], "/etc/pki/libnbd");
	ck_assert_ptr_null(f[1]);
	tls_folders_free(f);
}
END_TEST

int main(void)
{
	const struct unit_case cases[] = {
		{ versions, 0 },
		{ decisions, 0 },
		{ uris, 0 },
		{ folders, 0 },
	};

	return unit_main("tls", cases, ARRAY_SIZE(cases));
}
