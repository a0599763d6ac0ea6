/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Operands: URIs and NAME=URI. Accepted or refused in words; no password in
 * what is shown of them. */
#include "connect.h"
#include "fuzz.h"

/* The text between "//" and the last "@" before the path. */
static const char *password(const char *uri, size_t *len)
{
	const char *host = strchr(uri, ':'), *end, *at, *colon;

	/* Not an authority where it comes later. */
	if (!host || strncmp(host, "://", 3) != 0)
		return NULL;
	host += 3;
	end = host + strcspn(host, "/?#");
	at = memchr(host, '@', (size_t)(end - host));
	if (!at)
		return NULL;
	colon = memchr(host, ':', (size_t)(at - host));
	if (!colon)
		return NULL;
	*len = (size_t)(at - colon - 1);
	return colon + 1;
}

static bool found_before(const char *text, const char *secret, size_t len)
{
	size_t before = (size_t)(secret - text);

	return memmem(text, before, secret, len) != NULL;
}

static void check(const char *operand, struct server *srv)
{
	const char *label = server_label(srv), *name = server_file_name(srv);
	const char *secret;
	size_t len = 0;

	CHECK(label && *label);
	CHECK(!name || (*name && !strchr(name, '/')));
	CHECK(!server_is_command(srv));
	secret = password(operand, &len);
	/* One that stands elsewhere too is no secret. */
	if (secret && len >= 8 && !found_before(operand, secret, len) &&
	    !memmem(secret + 1, strlen(secret + 1), secret, len))
		CHECK(!memmem(label, strlen(label), secret, len));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = take_text(data, size);
	struct server *srv = NULL;
	struct error err = { "" };

	if (!text)
		return 0;
	if (server_parse_uri(text, &srv, &err) == 0) {
		CHECK(srv);
		check(text, srv);
		server_free(srv);
	} else {
		CHECK(err.text[0] != '\0');
		CHECK(!strchr(err.text, '\n'));
	}
	free(text);
	return 0;
}
