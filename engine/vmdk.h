/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * vmdk.h - VMDK images in one file: what their sectors hold.
 *
 * An image is cut into grains. A grain table says for each where it lies in the
 * file; a grain directory says where the tables are. There are two kinds. In
 * monolithicSparse the tables stand before the grains, twice. In
 * streamOptimized each grain is deflated, and all comes in order, each part
 * with a marker before it; a footer at the end repeats the header.
 *
 * Source     VMware's "Virtual Disk Format" 5.0; what qemu-img 7.2 writes.
 * Units      sectors of 512 bytes where a name says so, else bytes.
 * Ownership  plain structures of the caller's.
 * Threads    any; pure, without input and output.
 * Errors     0, or -EINVAL (damaged) or -ENOTSUP (another kind) with a text
 *            that goes on after the file's name.
 */
#ifndef NBDFS_VMDK_H
#define NBDFS_VMDK_H

#include "engine.h"

#define VMDK_SECTOR 512
#define VMDK_GRAIN ((uint64_t)65536) /* that we write */
#define VMDK_TABLE 512		     /* entries of a table that we write */
#define VMDK_SIZE_MAX ((uint64_t)2 << 40)
/* A compressed grain has to be in memory. */
#define VMDK_PACKED_MAX ((uint64_t)32 << 20)
#define VMDK_AT_END UINT64_MAX /* directory: look at the footer */

enum {
	VMDK_NEWLINES = 1,
	VMDK_REDUNDANT = 2,
	VMDK_ZEROED = 4, /* entries of 1 are grains of zeroes */
	VMDK_COMPRESSED = 1 << 16,
	VMDK_MARKERS = 1 << 17,
};

struct vmdk_header {
	uint32_t version, flags;
	uint64_t capacity;		 /* sectors */
	uint64_t grain;			 /* sectors */
	uint64_t desc_offset, desc_size; /* sectors */
	uint32_t table_entries;
	uint64_t spare_directory, directory, overhead; /* sectors */
	bool unclean;
	uint16_t compression;
};

/* Into a sector. */
void vmdk_encode(const struct vmdk_header *h, uint8_t *sector);
/* Checked: all derived numbers fit, see vmdk_tables(). */
int vmdk_decode(const uint8_t *sector, struct vmdk_header *h,
		struct error *err);
/* True if the sector begins like an image of one file. */
bool vmdk_is(const uint8_t *sector);

/* Bytes of a grain; of what a table covers; number of tables. */
uint64_t vmdk_grain_bytes(const struct vmdk_header *h);
uint64_t vmdk_table_bytes(const struct vmdk_header *h);
uint64_t vmdk_tables(const struct vmdk_header *h);

/* Where all is in a monolithicSparse image of so many bytes. -EFBIG. */
int vmdk_layout(uint64_t size, struct vmdk_header *h, struct error *err);
/* The sector of a table of the first or second directory. */
uint64_t vmdk_table_sector(const struct vmdk_header *h, bool spare, uint64_t n);
/* The same for a streamOptimized one. */
int vmdk_stream_header(uint64_t size, struct vmdk_header *h, struct error *err);

/* The description, as text; to be freed. NULL without memory. `name` is the
 * file's, `adapter` one that vmdk_adapter() knows, `id` anything. */
char *vmdk_describe(const struct vmdk_header *h, const char *name,
		    const char *adapter, uint32_t id);
bool vmdk_adapter(const char *name);
/* Refuses what is not all in this file. `text` ends with a 0. */
int vmdk_check_description(const char *text, struct error *err);

enum vmdk_marker_kind {
	VMDK_MARK_END = 0,
	VMDK_MARK_TABLE = 1,
	VMDK_MARK_DIRECTORY = 2,
	VMDK_MARK_FOOTER = 3,
};
/* A sector that stands before `sectors` of something. */
void vmdk_encode_marker(enum vmdk_marker_kind kind, uint64_t sectors,
			uint8_t *sector);
/* True if the sector is that marker. */
bool vmdk_is_marker(const uint8_t *sector, enum vmdk_marker_kind kind);

/* The 12 bytes before the deflated bytes of a grain. */
#define VMDK_GRAIN_HEAD 12
void vmdk_encode_grain(uint64_t sector, uint32_t len, uint8_t *head);
void vmdk_decode_grain(const uint8_t *head, uint64_t *sector, uint32_t *len);

static inline uint32_t vmdk_get32(const uint8_t *p)
{
	return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
	       (uint32_t)p[3] << 24;
}

static inline void vmdk_put32(uint8_t *p, uint32_t x)
{
	for (int i = 0; i < 4; i++, x >>= 8)
		p[i] = (uint8_t)x;
}

#endif
