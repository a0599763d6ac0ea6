/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * server.c - one operand: where a server is. URIs are taken apart only as far
 * as needed (is an export named? which parts are secret? which paths must
 * outlive a change of folder?); libnbd gets the rest as it is.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "server.h"
#include "subproc.h"
#include "tls.h"
#include "util.h"

/* The protocol's limit for strings. */
#define EXPORT_NAME_MAX 4096
#define FILE_NAME_MAX 255

struct server {
	char *uri; /* for libnbd; NULL for a command */
	char *label;
	char *file_name; /* or NULL */
	char *export;	 /* or NULL */
	struct tls tls;
	struct subproc *proc; /* or NULL */
};

/* A URI's parts point into it and are not terminated. */
struct part {
	const char *text;
	size_t len;
};
struct uri {
	struct part scheme, user, host, path, query;
	bool has_authority, has_user;
	bool is_unix, is_vsock, is_tls;
};

static bool part_is(struct part p, const char *text)
{
	return p.len == strlen(text) && strncasecmp(p.text, text, p.len) == 0;
}

/* NULL: not in it. */
static const char *part_last(struct part p, char c)
{
	for (size_t i = p.len; i > 0; i--)
		if (p.text[i - 1] == c)
			return p.text + i - 1;
	return NULL;
}

/* ------------------------------------------------------------- grammar */

static struct part take_until(const char **s, const char *stop)
{
	struct part p = { *s, strcspn(*s, stop) };

	*s += p.len;
	return p;
}

static void split_authority(struct uri *u, struct part p)
{
	const char *at = part_last(p, '@');

	u->has_authority = true;
	u->has_user = at != NULL;
	u->host = p;
	if (at) {
		u->user = (struct part){ p.text, (size_t)(at - p.text) };
		u->host.text = at + 1;
		u->host.len = p.len - u->user.len - 1;
	}
}

/* RFC 3986 as far as an NBD URI goes. A fragment means nothing and is left
 * out. False: there is no scheme. */
static bool split_uri(const char *s, struct uri *u)
{
	const struct part none = { s, 0 };

	*u = (struct uri){ .user = none, .host = none, .query = none };
	u->scheme = take_until(&s, ":/?#");
	if (*s != ':' || u->scheme.len == 0)
		return false;
	s++;
	if (s[0] == '/' && s[1] == '/') {
		s += 2;
		split_authority(u, take_until(&s, "/?#"));
	}
	u->path = take_until(&s, "?#");
	if (*s == '?') {
		s++;
		u->query = take_until(&s, "#");
	}
	return true;
}

/* The next KEY=VALUE of a query; *rest shrinks. False at the end. */
static bool next_item(struct part *rest, struct part *key, struct part *value)
{
	struct part item = *rest;
	const char *eq;

	if (rest->len == 0)
		return false;
	for (item.len = 0; item.len < rest->len; item.len++)
		if (item.text[item.len] == '&' || item.text[item.len] == ';')
			break;
	rest->text += item.len;
	rest->len -= item.len;
	if (rest->len > 0) {
		rest->text++;
		rest->len--;
	}
	eq = item.len ? memchr(item.text, '=', item.len) : NULL;
	*key = item;
	*value = (struct part){ item.text + item.len, 0 };
	if (eq) {
		key->len = (size_t)(eq - item.text);
		value->text = eq + 1;
		value->len = item.len - key->len - 1;
	}
	return true;
}

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

/* -EINVAL: a broken escape, or a NUL byte. */
static int percent_decode(struct part p, char **out)
{
	char *text = malloc(p.len + 1);
	size_t n = 0;

	if (!text)
		return -ENOMEM;
	for (size_t i = 0; i < p.len; i++) {
		char c = p.text[i];

		if (c == '%') {
			int hi = p.len - i < 3 ? -1 : hex_digit(p.text[i + 1]);
			int lo = p.len - i < 3 ? -1 : hex_digit(p.text[i + 2]);

			if (hi < 0 || lo < 0 || (hi == 0 && lo == 0)) {
				free(text);
				return -EINVAL;
			}
			c = (char)(hi << 4 | lo);
			i += 2;
		}
		text[n++] = c;
	}
	text[n] = '\0';
	*out = text;
	return 0;
}

static void percent_encode(FILE *out, const char *text)
{
	static const char safe[] = "abcdefghijklmnopqrstuvwxyz"
				   "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
				   "-._~/";

	for (; *text; text++) {
		if (strchr(safe, *text))
			fputc(*text, out);
		else
			fprintf(out, "%%%02X", (unsigned char)*text);
	}
}

static void put_part(FILE *out, struct part p)
{
	fwrite(p.text, 1, p.len, out);
}

/* -------------------------------------------------------------- checks */

/* "NAME" of NAME=URI, or nothing: only where neither '/' nor ':' stands
 * before the '='. */
static struct part split_name(const char **operand)
{
	size_t n = strcspn(*operand, "/:=");
	struct part name = { *operand, n };

	if ((*operand)[n] != '=')
		return (struct part){ NULL, 0 };
	*operand += n + 1;
	return name;
}

static int check_name(struct part name, struct error *err)
{
	const char *why = NULL;

	if (name.len == 0)
		why = "is empty";
	else if (part_is(name, ".") || part_is(name, ".."))
		why = "is no file name";
	else if (name.len > FILE_NAME_MAX)
		why = "is longer than 255 bytes";
	if (!why)
		return 0;
	error_set(err, "%.*s=...: the name before '=' %s",
		  (int)min_u64(name.len, 40), name.text, why);
	return -EINVAL;
}

static int check_scheme(const char *text, struct uri *u, struct error *err)
{
	struct part rest;
	bool known;

	if (!split_uri(text, u))
		goto unknown;
	rest = u->scheme;
	known = rest.len >= 3 && strncasecmp(rest.text, "nbd", 3) == 0;
	rest.text += known ? 3 : 0;
	rest.len -= known ? 3 : 0;
	u->is_tls = known && rest.len > 0 && (*rest.text | 0x20) == 's';
	if (u->is_tls) {
		rest.text++;
		rest.len--;
	}
	u->is_unix = part_is(rest, "+unix");
	u->is_vsock = part_is(rest, "+vsock");
	if (!known || (rest.len > 0 && !u->is_unix && !u->is_vsock))
		goto unknown;
	if (!u->has_authority && !u->is_unix) {
		error_set(err, "'%s': '//' must follow '%.*s:'", text,
			  (int)u->scheme.len, u->scheme.text);
		return -EINVAL;
	}
	return 0;
unknown:
	error_set(err,
		  "'%s' is not an NBD URI: it must begin with nbd://, nbds://, "
		  "nbd+unix://, nbds+unix://, nbd+vsock:// or nbds+vsock://",
		  text);
	return -EINVAL;
}

static int check_port(const struct uri *u, const char *label, struct error *err)
{
	struct part p = u->host;
	const char *colon, *bracket;
	uint64_t max = u->is_vsock ? UINT32_MAX : 65535, port;
	char digits[16];
	size_t n;

	if (p.len == 0 || u->is_unix)
		return 0;
	colon = part_last(p, ':');
	bracket = part_last(p, ']');
	if (!colon || (bracket && bracket > colon))
		return 0;
	n = p.len - (size_t)(colon + 1 - p.text);
	if (n == 0)
		return 0;
	if (n < sizeof(digits)) {
		memcpy(digits, colon + 1, n);
		digits[n] = '\0';
		if (parse_number(digits, 1, max, &port) == 0)
			return 0;
	}
	error_set(err, "%s: '%.*s' is not a port number", label,
		  (int)min_u64(n, 40), colon + 1);
	return -EINVAL;
}

static int check_socket(const struct uri *u, const char *label,
			struct error *err)
{
	struct part rest = u->query, key, value;
	bool found = false;

	while (next_item(&rest, &key, &value))
		if (part_is(key, "socket") && value.len > 0)
			found = true;
	if (found == u->is_unix)
		return 0;
	if (found)
		error_set(err, "%s: only %.*s+unix:// takes ?socket=", label,
			  (int)u->scheme.len, u->scheme.text);
	else
		error_set(err,
			  "%s: names no socket, as in "
			  "nbd+unix:///?socket=PATH",
			  label);
	return -EINVAL;
}

/* ---------------------------------------------------------- rewriting */

static bool is_path_key(struct part key)
{
	return part_is(key, "socket") || part_is(key, "tls-certificates") ||
	       part_is(key, "tls-psk-file");
}

static int take_path(struct part value, char **path)
{
	int r = percent_decode(value, path);

	return r == 0 ? path_make_absolute(path) : r;
}

/* What can be seen before connecting. One that is missing is told then. */
static int check_socket_path(const char *path)
{
	struct stat st;

	if (strlen(path) >= sizeof(((struct sockaddr_un *)NULL)->sun_path))
		return -ENAMETOOLONG;
	return stat(path, &st) == 0 && !S_ISSOCK(st.st_mode) ? -ENOTSOCK : 0;
}

static int put_path(FILE *out, struct part key, struct part value)
{
	char *path = NULL;
	int r = take_path(value, &path);

	if (r == 0 && part_is(key, "socket"))
		r = check_socket_path(path);
	if (r == 0) {
		put_part(out, key);
		fputc('=', out);
		percent_encode(out, path);
	}
	free(path);
	return r;
}

/* The same URI with absolute paths: a daemon changes its folder, and connects
 * again later. */
static int put_uri(FILE *out, const struct uri *u)
{
	struct part rest = u->query, key, value;
	char sep = '?';
	int r = 0;

	put_part(out, u->scheme);
	fputs("://", out);
	if (u->has_user) {
		put_part(out, u->user);
		fputc('@', out);
	}
	put_part(out, u->host);
	put_part(out, u->path);
	while (r == 0 && next_item(&rest, &key, &value)) {
		fputc(sep, out);
		sep = '&';
		if (is_path_key(key)) {
			r = put_path(out, key, value);
		} else {
			put_part(out, key);
			if (value.len > 0) {
				fputc('=', out);
				put_part(out, value);
			}
		}
	}
	return r;
}

/* The URI for people: no password, no key file. */
static void put_label(FILE *out, const struct uri *u)
{
	struct part rest = u->query, key, value, user = u->user;
	const char *colon = user.len ? memchr(user.text, ':', user.len) : NULL;
	char sep = '?';

	put_part(out, u->scheme);
	fputs("://", out);
	if (colon)
		user.len = (size_t)(colon - user.text);
	if (u->has_user) {
		put_part(out, user);
		fputc('@', out);
	}
	put_part(out, u->host);
	put_part(out, u->path);
	while (next_item(&rest, &key, &value)) {
		if (key.len >= 4 && strncasecmp(key.text, "tls-", 4) == 0)
			continue;
		fputc(sep, out);
		sep = '&';
		put_part(out, key);
		fputc('=', out);
		put_part(out, value);
	}
}

static int close_text(FILE *f, int r)
{
	bool bad = ferror(f);

	if (fclose(f) != 0 || bad)
		return -ENOMEM;
	return r;
}

static int make_texts(struct server *srv, const struct uri *u)
{
	size_t size;
	FILE *f = open_memstream(&srv->label, &size);
	int r;

	if (!f)
		return -ENOMEM;
	put_label(f, u);
	r = close_text(f, 0);
	if (r < 0)
		return r;
	f = open_memstream(&srv->uri, &size);
	if (!f)
		return -ENOMEM;
	return close_text(f, put_uri(f, u));
}

static bool is_no(struct part p)
{
	static const char *const no[] = { "0", "false", "f", "no", "n", "off" };

	for (size_t i = 0; i < ARRAY_SIZE(no); i++)
		if (part_is(p, no[i]))
			return true;
	return false;
}

/* Of what is said twice the last counts, as with libnbd. */
static int take_tls(struct tls *t, const struct uri *u)
{
	struct part rest = u->query, key, value;
	int r = 0;

	t->used = u->is_tls;
	t->no_host = u->is_unix || u->is_vsock;
	while (r == 0 && next_item(&rest, &key, &value)) {
		if (part_is(key, "tls-psk-file")) {
			t->key = true;
		} else if (part_is(key, "tls-verify-peer")) {
			t->unchecked = is_no(value);
		} else if (part_is(key, "tls-certificates")) {
			free(t->folder);
			t->folder = NULL;
			r = take_path(value, &t->folder);
		}
	}
	return r;
}

static int take_export(struct server *srv, const struct uri *u,
		       struct error *err)
{
	struct part p = u->path;
	int r;

	if (p.len > 0 && *p.text == '/') {
		p.text++;
		p.len--;
	}
	if (p.len == 0)
		return 0;
	r = percent_decode(p, &srv->export);
	if (r == -EINVAL)
		error_set(err, "%s: a wrong %%-escape in the export name",
			  srv->label);
	else if (r == 0 && strlen(srv->export) > EXPORT_NAME_MAX) {
		error_set(err,
			  "%.60s...: the export name is longer than %d "
			  "bytes",
			  srv->label, EXPORT_NAME_MAX);
		r = -ENAMETOOLONG;
	}
	return r;
}

/* ------------------------------------------------------------- servers */

static int fill_from_uri(struct server *srv, const char *text, struct uri *u,
			 struct error *err)
{
	int r = make_texts(srv, u);

	if (r == 0)
		r = take_tls(&srv->tls, u);
	if (r == -EINVAL)
		error_set(err, "%s: a wrong %%-escape", srv->label);
	else if (r == -ENAMETOOLONG)
		error_set(err, "%s: the path of the socket is too long",
			  srv->label);
	else if (r == -ENOTSOCK)
		error_set(err, "%s: there is something else than a socket",
			  srv->label);
	else if (r < 0)
		error_set(err, "%s: %s", text, strerror(-r));
	if (r == 0)
		r = check_port(u, srv->label, err);
	if (r == 0)
		r = check_socket(u, srv->label, err);
	if (r == 0)
		r = take_export(srv, u, err);
	return r;
}

static struct server *server_new(struct error *err)
{
	struct server *srv = calloc(1, sizeof(*srv));

	if (!srv)
		error_set(err, "out of memory");
	return srv;
}

int server_parse_uri(const char *operand, struct server **srvp,
		     struct error *err)
{
	const char *text = operand;
	struct part name = split_name(&text);
	struct server *srv;
	struct uri u;
	int r = 0;

	if (name.text)
		r = check_name(name, err);
	if (r == 0)
		r = check_scheme(text, &u, err);
	if (r < 0)
		return r;
	srv = server_new(err);
	if (!srv)
		return -ENOMEM;
	if (name.text) {
		srv->file_name = strndup(name.text, name.len);
		if (!srv->file_name) {
			error_set(err, "out of memory");
			r = -ENOMEM;
		}
	}
	if (r == 0)
		r = fill_from_uri(srv, text, &u, err);
	if (r < 0)
		server_free(srv);
	else
		*srvp = srv;
	return r;
}

int server_from_command(char *const argv[], struct server **srvp,
			struct error *err)
{
	struct server *srv = server_new(err);
	int r;

	if (!srv)
		return -ENOMEM;
	r = subproc_new(argv, &srv->proc, err);
	if (r == 0 && asprintf(&srv->label, "[ %s%s ]", argv[0],
			       argv[1] ? " ..." : "") < 0) {
		srv->label = NULL;
		error_set(err, "out of memory");
		r = -ENOMEM;
	}
	if (r < 0)
		server_free(srv);
	else
		*srvp = srv;
	return r;
}

int server_start(struct server *srv, const struct log *log, struct error *err)
{
	return srv->proc ? subproc_start(srv->proc, log, err) : 0;
}

void server_stop(struct server *srv, unsigned grace_ms)
{
	if (srv->proc)
		subproc_stop(srv->proc, grace_ms);
}

void server_free(struct server *srv)
{
	if (!srv)
		return;
	subproc_free(srv->proc);
	free(srv->uri);
	free(srv->label);
	free(srv->file_name);
	free(srv->export);
	free(srv->tls.folder);
	free(srv);
}

const char *server_file_name(const struct server *srv)
{
	return srv->file_name;
}

const char *server_export(const struct server *srv)
{
	return srv->export;
}

const char *server_label(const struct server *srv)
{
	return srv->label;
}

bool server_is_command(const struct server *srv)
{
	return srv->proc != NULL;
}

bool server_alive(struct server *srv)
{
	return !srv->proc || subproc_alive(srv->proc);
}

int server_check_tls(struct server *srv, struct nbd_handle *nbd,
		     struct error *why)
{
	const char *folder = NULL;
	char **defaults;
	int r;

	if (!srv->tls.used)
		return 0;
	defaults = tls_folders();
	if (!defaults)
		return -ENOMEM;
	r = tls_decide(&srv->tls, nbd_get_version(nbd), defaults, &folder, why);
	if (r == 0 && folder && nbd_set_tls_certificates(nbd, folder) < 0)
		r = -ENOMEM;
	/* Old ones do not find it in the URI. */
	if (r == 0 && srv->tls.unchecked &&
	    nbd_set_tls_verify_peer(nbd, false) < 0)
		r = -ENOMEM;
	tls_folders_free(defaults);
	return r;
}

int server_aio_connect(struct server *srv, struct nbd_handle *nbd)
{
	if (srv->proc)
		return nbd_aio_connect_unix(nbd, subproc_socket(srv->proc));
	return nbd_aio_connect_uri(nbd, srv->uri);
}

void server_answered(struct server *srv)
{
	if (srv->proc)
		subproc_answered(srv->proc);
}

bool server_ended(struct server *srv, unsigned wait_ms, struct error *how)
{
	return srv->proc && subproc_ended(srv->proc, wait_ms, how);
}
