/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * xattr.c - extended attributes that describe an export: user.nbd.*.
 *
 * They are told to who asks for one by name, but not listed, so that cp -a,
 * rsync -X and tar --xattrs do not carry them along; --xattrs lists them.
 * Where the kernel would ask for an attribute at every write (before it knows
 * HANDLE_KILLPRIV_V2), there are none: ENOSYS, which it remembers.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fs.h"

#define PREFIX "user.nbd."

static void print_extents(FILE *out, const struct image *img)
{
	struct image_map m;

	image_get_map(img, &m);
	fprintf(out,
		"extents=%" PRIu64 " data=%" PRIu64 " zero=%" PRIu64
		" hole=%" PRIu64 " unknown=%" PRIu64,
		m.extents, m.data, m.zero, m.hole, m.unknown);
}

static void print_stats(FILE *out, const struct image *img)
{
	struct image_stats s;

	image_get_stats(img, &s);
	fprintf(out,
		"reads=%" PRIu64 " read-bytes=%" PRIu64 " writes=%" PRIu64
		" write-bytes=%" PRIu64 " zeroes=%" PRIu64
		" zero-bytes=%" PRIu64 " zero-skipped-bytes=%" PRIu64,
		s.reads, s.read_bytes, s.writes, s.write_bytes, s.zeroes,
		s.zero_bytes, s.zero_skipped_bytes);
	fprintf(out,
		" block-status=%" PRIu64 " flushes=%" PRIu64
		" read-ahead-hits=%" PRIu64 " read-ahead-bytes=%" PRIu64
		" hole-bytes=%" PRIu64 " reconnects=%" PRIu64
		" errors=%" PRIu64,
		s.statuses, s.flushes, s.hits, s.hit_bytes, s.hole_bytes,
		s.reconnects, s.errors);
}

static void print_uri(FILE *out, const struct image *img)
{
	fputs(image_source(img), out);
}

static void print_export(FILE *out, const struct image *img)
{
	fputs(image_export(img), out);
}

static void print_description(FILE *out, const struct image *img)
{
	fputs(image_description(img), out);
}

static void print_size(FILE *out, const struct image *img)
{
	fprintf(out, "%" PRIu64, image_size(img));
}

static void print_flags(FILE *out, const struct image *img)
{
	char flags[256];

	image_flags_text(img, flags, sizeof(flags));
	fputs(flags, out);
}

static void print_blocks(FILE *out, const struct image *img)
{
	struct image_info i;

	image_get_info(img, &i);
	fprintf(out, "minimum=%u preferred=%u maximum=%u", i.min_block,
		i.pref_block, i.max_block);
}

static const struct attribute {
	const char *name;
	void (*print)(FILE *out, const struct image *img);
} attributes[] = {
	{ PREFIX "uri", print_uri },
	{ PREFIX "export", print_export },
	{ PREFIX "description", print_description },
	{ PREFIX "size", print_size },
	{ PREFIX "flags", print_flags },
	{ PREFIX "block-sizes", print_blocks },
	{ PREFIX "extents", print_extents },
	{ PREFIX "stats", print_stats },
};

/* As getxattr(2) and listxattr(2) have it: with size 0 only the length. */
static void answer(fuse_req_t req, const char *text, size_t len, size_t size)
{
	if (size == 0)
		fuse_reply_xattr(req, len);
	else if (size < len)
		fuse_reply_err(req, ERANGE);
	else
		fuse_reply_buf(req, text, len);
}

/* The text of an attribute, or of all names; NULL without memory. */
static char *collect(const struct attribute *a, const struct image *img,
		     size_t *len)
{
	char *text = NULL;
	FILE *out = open_memstream(&text, len);

	if (!out)
		return NULL;
	if (a)
		a->print(out, img);
	for (size_t i = 0; !a && i < ARRAY_SIZE(attributes); i++) {
		fputs(attributes[i].name, out);
		fputc('\0', out);
	}
	if (fclose(out) == 0)
		return text;
	free(text);
	return NULL;
}

void fs_op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name,
		    size_t size)
{
	struct fs *fs = fuse_req_userdata(req);
	struct fs_inode *inode = fs_inode_find(fs, ino);
	size_t i, len;
	char *text;

	if (!fs->killpriv) {
		fuse_reply_err(req, ENOSYS);
		return;
	}
	for (i = 0; i < ARRAY_SIZE(attributes); i++)
		if (strcmp(attributes[i].name, name) == 0)
			break;
	if (!inode || !inode->image || i == ARRAY_SIZE(attributes)) {
		fuse_reply_err(req, inode ? ENODATA : ENOENT);
		return;
	}
	text = collect(&attributes[i], inode->image, &len);
	if (text)
		answer(req, text, len, size);
	else
		fuse_reply_err(req, ENOMEM);
	free(text);
}

void fs_op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size)
{
	struct fs *fs = fuse_req_userdata(req);
	struct fs_inode *inode = fs_inode_find(fs, ino);
	char *text;
	size_t len;

	if (!fs->opts->xattrs || !fs->killpriv || !inode || !inode->image) {
		answer(req, "", 0, size);
		return;
	}
	text = collect(NULL, inode->image, &len);
	if (text)
		answer(req, text, len, size);
	else
		fuse_reply_err(req, ENOMEM);
	free(text);
}

void fs_log_stats(struct fs *fs)
{
	struct image *img;
	size_t len;
	char *text;

	for (img = catalog_next(fs->catalog, NULL); img;
	     img = catalog_next(fs->catalog, img)) {
		text = collect(&(struct attribute){ .print = print_stats }, img,
			       &len);
		if (text)
			log_msg(fs->log, LOG_LVL_WARN, "%s: %s",
				image_name(img), text);
		free(text);
	}
}
