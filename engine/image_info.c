/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * image_info.c - an image for people: where it comes from, what it can do,
 * what is known of its contents.
 */
#include <stdio.h>
#include <string.h>

#include "image_int.h"
#include "util.h"

const char *image_source(const struct image *img)
{
	return export_label(img->x);
}

void image_get_map(const struct image *img, struct image_map *map)
{
	*map = (struct image_map){ .unknown = img->size };
	if (!img->clean)
		return;
	map->data = extent_bytes(img->clean, EXTENT_DATA);
	map->zero = extent_bytes(img->clean, EXTENT_ZERO);
	map->hole = extent_bytes(img->clean, EXTENT_HOLE);
	map->unknown = extent_bytes(img->clean, EXTENT_UNKNOWN);
	map->extents = extent_count(img->clean);
}

void image_flags_text(const struct image *img, char *out, size_t size)
{
	const struct nbd_caps *c = export_caps(img->x);
	const struct {
		bool set;
		const char *name;
	} flags[] = {
		{ c->flush, ",flush" },
		{ c->fua, ",fua" },
		{ c->trim, ",trim" },
		{ c->zero, ",write-zeroes" },
		{ c->fast_zero, ",fast-zero" },
		{ c->multi_conn, ",multi-conn" },
		{ c->status, ",block-status" },
		{ c->rotational, ",rotational" },
	};
	size_t len;

	snprintf(out, size, "%s", img->read_only ? "ro" : "rw");
	for (size_t i = 0; i < ARRAY_SIZE(flags); i++) {
		len = strlen(out);
		if (flags[i].set)
			snprintf(out + len, size - len, "%s", flags[i].name);
	}
}

void image_get_stats(const struct image *img, struct image_stats *st)
{
	const struct export_stats *x = export_stats(img->x);

	*st = img->stats;
	st->reads = x->count[REQ_READ];
	st->read_bytes = x->bytes[REQ_READ];
	st->writes = x->count[REQ_WRITE];
	st->write_bytes = x->bytes[REQ_WRITE];
	st->zeroes = x->count[REQ_ZERO];
	st->zero_bytes = x->bytes[REQ_ZERO];
	st->statuses = x->count[REQ_STATUS];
	st->flushes = x->count[REQ_FLUSH];
	st->reconnects = x->reconnects;
	st->errors = x->errors;
}

void image_get_info(const struct image *img, struct image_info *info)
{
	const struct nbd_caps *c = export_caps(img->x);

	*info = (struct image_info){
		.min_block = c->min_block,
		.pref_block = c->pref_block,
		.max_block = c->max_block,
		.can_multi_conn = c->multi_conn,
		.can_flush = c->flush,
		.can_fua = c->fua,
		.can_zero = c->zero,
		.can_fast_zero = c->fast_zero,
		.can_trim = c->trim,
		.can_status = img->can_status,
		.is_rotational = c->rotational,
		.connections = export_connections(img->x),
	};
}
