/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util.h"
#include "vmdk.h"

#define VERSION_MAX 3
#define GRAIN_MAX ((uint64_t)2 << 20) /* sectors: 1 GiB */
#define DIRECTORY_MAX ((uint64_t)32 << 20)
#define DESC_SECTORS 20

static const uint8_t magic[4] = { 'K', 'D', 'M', 'V' };
static const uint8_t newlines[4] = { '\n', ' ', '\r', '\n' };

static uint64_t get64(const uint8_t *p)
{
	return vmdk_get32(p) | (uint64_t)vmdk_get32(p + 4) << 32;
}

static void put64(uint8_t *p, uint64_t x)
{
	vmdk_put32(p, (uint32_t)x);
	vmdk_put32(p + 4, (uint32_t)(x >> 32));
}

/* ---------------------------------------------------------------- header */

void vmdk_encode(const struct vmdk_header *h, uint8_t *s)
{
	memset(s, 0, VMDK_SECTOR);
	memcpy(s, magic, sizeof(magic));
	vmdk_put32(s + 4, h->version);
	vmdk_put32(s + 8, h->flags);
	put64(s + 12, h->capacity);
	put64(s + 20, h->grain);
	put64(s + 28, h->desc_offset);
	put64(s + 36, h->desc_size);
	vmdk_put32(s + 44, h->table_entries);
	put64(s + 48, h->spare_directory);
	put64(s + 56, h->directory);
	put64(s + 64, h->overhead);
	s[72] = h->unclean;
	memcpy(s + 73, newlines, sizeof(newlines));
	s[77] = (uint8_t)h->compression;
	s[78] = (uint8_t)(h->compression >> 8);
}

bool vmdk_is(const uint8_t *sector)
{
	return memcmp(sector, magic, sizeof(magic)) == 0;
}

static int damaged(struct error *err, const char *what)
{
	error_set(err, "damaged VMDK: %s", what);
	return -EINVAL;
}

static int check_numbers(const struct vmdk_header *h, struct error *err)
{
	if (h->table_entries == 0 || h->table_entries > VMDK_TABLE)
		return damaged(err, "grain tables of a wrong length");
	if (!is_pow2(h->grain) || h->grain > GRAIN_MAX)
		return damaged(err, "grains of a wrong size");
	if (h->capacity > (uint64_t)INT64_MAX / VMDK_SECTOR)
		return damaged(err, "the disk is too large");
	if (vmdk_tables(h) > DIRECTORY_MAX)
		return damaged(err, "the grain directory is too long");
	if (!(h->flags & VMDK_COMPRESSED))
		return 0;
	if (h->compression != 1)
		return damaged(err, "an unknown compression");
	if (vmdk_grain_bytes(h) > VMDK_PACKED_MAX)
		return damaged(err, "compressed grains are too large");
	return 0;
}

int vmdk_decode(const uint8_t *s, struct vmdk_header *h, struct error *err)
{
	if (!vmdk_is(s)) {
		error_set(err, "not a VMDK image");
		return -EINVAL;
	}
	*h = (struct vmdk_header){
		.version = vmdk_get32(s + 4),
		.flags = vmdk_get32(s + 8),
		.capacity = get64(s + 12),
		.grain = get64(s + 20),
		.desc_offset = get64(s + 28),
		.desc_size = get64(s + 36),
		.table_entries = vmdk_get32(s + 44),
		.spare_directory = get64(s + 48),
		.directory = get64(s + 56),
		.overhead = get64(s + 64),
		.unclean = s[72] != 0,
		.compression = (uint16_t)(s[77] | s[78] << 8),
	};
	if (h->version == 0 || h->version > VERSION_MAX) {
		error_set(err, "VMDK of version %" PRIu32 ", which is unknown",
			  h->version);
		return -ENOTSUP;
	}
	if ((h->flags & VMDK_NEWLINES) &&
	    memcmp(s + 73, newlines, sizeof(newlines)) != 0)
		return damaged(err, "it was moved as if it were text");
	return check_numbers(h, err);
}

uint64_t vmdk_grain_bytes(const struct vmdk_header *h)
{
	return h->grain * VMDK_SECTOR;
}

uint64_t vmdk_table_bytes(const struct vmdk_header *h)
{
	return vmdk_grain_bytes(h) * h->table_entries;
}

uint64_t vmdk_tables(const struct vmdk_header *h)
{
	uint64_t covers = h->grain * h->table_entries;

	return h->capacity / covers + (h->capacity % covers != 0);
}

/* ---------------------------------------------------------------- layout */

static int set_size(uint64_t size, struct vmdk_header *h, struct error *err)
{
	if (size > VMDK_SIZE_MAX) {
		error_set(err,
			  "a VMDK image holds 2 TiB at most, not %" PRIu64
			  " bytes",
			  size);
		return -EFBIG;
	}
	*h = (struct vmdk_header){
		.capacity = align_up(size, VMDK_SECTOR) / VMDK_SECTOR,
		.grain = VMDK_GRAIN / VMDK_SECTOR,
		.desc_offset = 1,
		.desc_size = DESC_SECTORS,
		.table_entries = VMDK_TABLE,
	};
	return 0;
}

static uint64_t table_sectors(const struct vmdk_header *h)
{
	return align_up((uint64_t)h->table_entries * 4, VMDK_SECTOR) /
	       VMDK_SECTOR;
}

static uint64_t directory_sectors(const struct vmdk_header *h)
{
	return align_up(max_u64(vmdk_tables(h), 1) * 4, VMDK_SECTOR) /
	       VMDK_SECTOR;
}

uint64_t vmdk_table_sector(const struct vmdk_header *h, bool spare, uint64_t n)
{
	uint64_t directory = spare ? h->spare_directory : h->directory;

	return directory + directory_sectors(h) + n * table_sectors(h);
}

int vmdk_layout(uint64_t size, struct vmdk_header *h, struct error *err)
{
	int r = set_size(size, h, err);

	if (r < 0)
		return r;
	h->version = 1;
	h->flags = VMDK_NEWLINES | VMDK_REDUNDANT;
	h->spare_directory = h->desc_offset + h->desc_size;
	h->directory = vmdk_table_sector(h, true, vmdk_tables(h));
	h->overhead =
		align_up(vmdk_table_sector(h, false, vmdk_tables(h)), h->grain);
	return 0;
}

int vmdk_stream_header(uint64_t size, struct vmdk_header *h, struct error *err)
{
	int r = set_size(size, h, err);

	if (r < 0)
		return r;
	h->version = 3;
	h->flags = VMDK_NEWLINES | VMDK_COMPRESSED | VMDK_MARKERS;
	h->directory = VMDK_AT_END;
	h->overhead = h->grain;
	h->compression = 1;
	return 0;
}

/* ----------------------------------------------------------- description */

static const char *const adapters[] = { "ide", "buslogic", "lsilogic",
					"legacyESX" };

bool vmdk_adapter(const char *name)
{
	for (size_t i = 0; i < ARRAY_SIZE(adapters); i++)
		if (strcmp(name, adapters[i]) == 0)
			return true;
	return false;
}

/* The last part of a path, with nothing in it that ends the line or string. */
static void plain_name(const char *path, char *out, size_t size)
{
	const char *base = strrchr(path, '/');
	size_t n = 0;

	for (base = base ? base + 1 : path; *base && n + 1 < size; base++)
		out[n++] = *base == '"' || iscntrl((unsigned char)*base) ?
				   '_' :
				   *base;
	out[n] = '\0';
}

char *vmdk_describe(const struct vmdk_header *h, const char *name,
		    const char *adapter, uint32_t id)
{
	bool ide = strcmp(adapter, "ide") == 0;
	uint64_t heads = ide ? 16 : 255, cylinders;
	char plain[256], *text;

	plain_name(name, plain, sizeof(plain));
	cylinders = h->capacity / (heads * 63);
	cylinders = min_u64(cylinders, ide ? 16383 : 65535);
	if (asprintf(&text,
		     "# Disk DescriptorFile\n"
		     "version=1\n"
		     "CID=%08" PRIx32 "\n"
		     "parentCID=ffffffff\n"
		     "createType=\"%s\"\n"
		     "\n"
		     "# Extent description\n"
		     "RW %" PRIu64 " SPARSE \"%s\"\n"
		     "\n"
		     "# The Disk Data Base\n"
		     "#DDB\n"
		     "\n"
		     "ddb.virtualHWVersion = \"4\"\n"
		     "ddb.geometry.cylinders = \"%" PRIu64 "\"\n"
		     "ddb.geometry.heads = \"%" PRIu64 "\"\n"
		     "ddb.geometry.sectors = \"63\"\n"
		     "ddb.adapterType = \"%s\"\n",
		     id,
		     h->flags & VMDK_COMPRESSED ? "streamOptimized" :
						  "monolithicSparse",
		     h->capacity, plain, cylinders, heads, adapter) < 0)
		return NULL;
	return text;
}

/* The value of key=value or key = "value" in a line, copied; false: another. */
static bool line_value(const char *line, const char *key, char *out,
		       size_t size)
{
	size_t n = strlen(key), i = 0;

	if (strncasecmp(line, key, n) != 0)
		return false;
	line += n;
	line += strspn(line, " \t");
	if (*line++ != '=')
		return false;
	line += strspn(line, " \t\"");
	while (line[i] && !strchr("\"\r\n", line[i]) && i + 1 < size) {
		out[i] = isprint((unsigned char)line[i]) ? line[i] : '?';
		i++;
	}
	out[i] = '\0';
	return true;
}

static bool is_extent_line(const char *line)
{
	return strncmp(line, "RW ", 3) == 0 ||
	       strncmp(line, "RDONLY ", 7) == 0 ||
	       strncmp(line, "NOACCESS ", 9) == 0;
}

int vmdk_check_description(const char *text, struct error *err)
{
	char type[64] = "", parent[64] = "ffffffff", id[64];
	unsigned extents = 0;

	for (const char *line = text; line; line = strchr(line, '\n')) {
		line += *line == '\n';
		line += strspn(line, " \t");
		if (line_value(line, "parentCID", id, sizeof(id)))
			memcpy(parent, id, sizeof(parent));
		line_value(line, "createType", type, sizeof(type));
		extents += is_extent_line(line);
	}
	if (strcasecmp(parent, "ffffffff") != 0) {
		error_set(err,
			  "this VMDK holds changes to another one (its parent "
			  "has CID %s), which cannot be read",
			  parent);
		return -ENOTSUP;
	}
	if (strcasecmp(type, "monolithicSparse") != 0 &&
	    strcasecmp(type, "streamOptimized") != 0) {
		error_set(err,
			  "VMDK of type '%s': only monolithicSparse and "
			  "streamOptimized can be read",
			  type);
		return -ENOTSUP;
	}
	if (extents == 1)
		return 0;
	error_set(err, "VMDK of %u extents: only one of one file can be read",
		  extents);
	return -ENOTSUP;
}

/* --------------------------------------------------------------- markers */

void vmdk_encode_marker(enum vmdk_marker_kind kind, uint64_t sectors,
			uint8_t *s)
{
	memset(s, 0, VMDK_SECTOR);
	put64(s, sectors);
	vmdk_put32(s + 12, kind);
}

bool vmdk_is_marker(const uint8_t *s, enum vmdk_marker_kind kind)
{
	return vmdk_get32(s + 8) == 0 && vmdk_get32(s + 12) == (uint32_t)kind;
}

void vmdk_encode_grain(uint64_t sector, uint32_t len, uint8_t *head)
{
	put64(head, sector);
	vmdk_put32(head + 8, len);
}

void vmdk_decode_grain(const uint8_t *head, uint64_t *sector, uint32_t *len)
{
	*sector = get64(head);
	*len = vmdk_get32(head + 8);
}
