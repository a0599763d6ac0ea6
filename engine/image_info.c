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
