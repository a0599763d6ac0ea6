/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "options.h"
#include "source.h"
#include "util.h"

static void free_words(char **words)
{
	char **w;

	for (w = words; w && *w; w++)
		free(*w);
	free(words);
}

static int append(struct fs_source **list, size_t *count, struct fs_source s)
{
	struct fs_source *p;

	p = realloc(*list, (*count + 1) * sizeof(*p));
	if (!p) {
		free(s.uri);
		free_words(s.command);
		return -ENOMEM;
	}
	*list = p;
	p[(*count)++] = s;
	return 0;
}

/* ------------------------------------------------------------------- words */

/* The words of a text, blanks between them; NULL without memory. */
static char **split_words(const char *text, size_t len, size_t *n)
{
	char **words = calloc(len / 2 + 2, sizeof(*words));
	const char *end = text + len;

	*n = 0;
	while (words) {
		size_t word = 0;

		while (text < end && (*text == ' ' || *text == '\t'))
			text++;
		while (text + word < end && text[word] != ' ' &&
		       text[word] != '\t')
			word++;
		if (word == 0)
			break;
		words[*n] = strndup(text, word);
		if (!words[*n]) {
			free_words(words);
			return NULL;
		}
		(*n)++;
		text += word;
	}
	return words;
}

/* Where the URI of NAME=URI begins: the first "=" that has neither "/" nor ":"
 * before it; else the word itself. */
static const char *uri_of(const char *word)
{
	size_t n = strcspn(word, "=/:");

	return word[n] == '=' ? word + n + 1 : word;
}

static bool is_uri(const char *word)
{
	const char *uri = uri_of(word);

	return strncmp(uri, "nbd", 3) == 0 && strstr(uri, "://");
}

/* "[ CMD ARGS... ]" as one word. */
static bool is_group(const char *word, size_t len)
{
	return len > 4 && strncmp(word, "[ ", 2) == 0 &&
	       strcmp(word + len - 2, " ]") == 0;
}

static int add_uri(struct fs_source **list, size_t *count, const char *uri)
{
	struct fs_source s = { .uri = strdup(uri) };

	return s.uri ? append(list, count, s) : -ENOMEM;
}

static int add_all(struct fs_source **list, size_t *count, char **words)
{
	size_t before = *count;
	int r = 0;

	for (; *words && r == 0; words++)
		r = add_uri(list, count, *words);
	while (r < 0 && *count > before)
		free((*list)[--*count].uri);
	return r;
}

int source_add_word(struct fs_source **list, size_t *count, const char *word)
{
	size_t len = strlen(word), n, uris = 0, i;
	bool group = is_group(word, len);
	char **words;
	int r;

	words = group ? split_words(word + 1, len - 2, &n) :
			split_words(word, len, &n);
	if (!words)
		return -ENOMEM;
	if (group && n > 0)
		return append(list, count,
			      (struct fs_source){ .command = words });
	for (i = 0; i < n; i++)
		uris += is_uri(words[i]);
	if (n > 1 && uris == n)
		r = add_all(list, count, words);
	else
		r = add_uri(list, count, word);
	free_words(words);
	return r;
}

int source_add_command(struct fs_source **list, size_t *count,
		       char *const argv[])
{
	char **copy;
	size_t n = 0, i;

	while (argv[n])
		n++;
	copy = calloc(n + 1, sizeof(*copy));
	for (i = 0; copy && i < n; i++) {
		copy[i] = strdup(argv[i]);
		if (!copy[i]) {
			free_words(copy);
			return -ENOMEM;
		}
	}
	if (!copy)
		return -ENOMEM;
	return append(list, count, (struct fs_source){ .command = copy });
}

void sources_free(struct fs_source *list, size_t count)
{
	while (count-- > 0) {
		free(list[count].uri);
		free_words(list[count].command);
	}
	free(list);
}

/* ------------------------------------------------------------------ labels */

struct text {
	char *out;
	size_t size, used; /* used < size */
};

static void put(struct text *t, const char *from, size_t len)
{
	len = min_u64(len, t->size - 1 - t->used);
	memcpy(t->out + t->used, from, len);
	t->used += len;
	t->out[t->used] = '\0';
}

/* The path of a socket is what tells local servers apart; everything else in
 * the query is about keys. */
static void put_query(struct text *t, const char *query)
{
	while (*query) {
		size_t len = strcspn(query, "&;");

		if (strncmp(query, "socket=", 7) == 0) {
			put(t, "?", 1);
			put(t, query, len);
			return;
		}
		query += len + (query[len] != '\0');
	}
}

static void label_uri(struct text *t, const char *uri)
{
	const char *host = strstr(uri, "://");
	const char *at, *end;

	if (!host) {
		put(t, uri, strcspn(uri, "?"));
		return;
	}
	host += 3;
	put(t, uri, (size_t)(host - uri));
	/* A password may hold an unescaped "@": the last one counts. */
	end = host + strcspn(host, "/?");
	for (at = end; at > host && at[-1] != '@'; at--)
		;
	put(t, at, (size_t)(end - at));
	put(t, end, strcspn(end, "?"));
	end += strcspn(end, "?");
	if (*end)
		put_query(t, end + 1);
}

void fs_source_label(const struct fs_source *s, char *out, size_t size)
{
	struct text t = { .out = out, .size = size };
	const char *name;

	out[0] = '\0';
	if (s->uri) {
		label_uri(&t, uri_of(s->uri));
		return;
	}
	/* Arguments of a server may hold secrets. */
	name = strrchr(s->command[0], '/');
	name = name ? name + 1 : s->command[0];
	put(&t, "[ ", 2);
	put(&t, name, strlen(name));
	put(&t, " ]", 2);
}
