/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "dev_vmdk.h"
#include "util.h"

#define DESC_MAX ((uint64_t)64 * KiB)
#define GRAIN_MIN 8 /* sectors */
#define CACHED 256  /* tables */
#define DIRECTORY_PART 1024
/* One answer about extents looks at so many tables, at most. */
#define TABLES_A_TURN 4096

struct table {
	bool valid;
	uint64_t n;
	uint32_t entry[VMDK_TABLE];
};

struct vmdk_read {
	struct blockdev dev;
	struct workers *workers;
	char *name;
	int fd;
	uint64_t file_size;
	struct vmdk_header h;
	bool packed;

	pthread_mutex_t lock; /* for all below, also while it is read */
	struct table *tables; /* CACHED of them: table n in n % CACHED */
	uint32_t part[DIRECTORY_PART]; /* of the directory */
	uint64_t part_at;	       /* its first entry; UINT64_MAX: none */
	uint8_t *checked;	       /* a bit for each table */
	uint8_t *used; /* a bit for each place of a grain in the file */
};

/* --------------------------------------------------------------- opening */

static int header_failed(struct error *err, const char *name, int r,
			 const char *text)
{
	error_set(err, "%s: %s", name, text ? text : strerror(-r));
	return r;
}

/* A description without an image: it lists files of other kinds. */
static int refuse_text(const char *name, char *text, struct error *err)
{
	struct error why = { "not a VMDK image" };

	if (strncmp(text, "# Disk DescriptorFile", 21) == 0 &&
	    vmdk_check_description(text, &why) == 0)
		error_set(&why, "a VMDK description without its image");
	return header_failed(err, name, -EINVAL, why.text);
}

static int read_description(int fd, const struct vmdk_header *h, uint64_t size,
			    struct error *why)
{
	uint64_t len =
		min_u64(h->desc_size, DESC_MAX / VMDK_SECTOR) * VMDK_SECTOR;
	char *text;
	int r;

	if (h->desc_offset == 0 || len == 0 ||
	    h->desc_offset > size / VMDK_SECTOR ||
	    !range_inside(h->desc_offset * VMDK_SECTOR, len, size)) {
		error_set(why, "damaged VMDK: no description in it");
		return -EINVAL;
	}
	text = malloc(len + 1);
	if (!text)
		return -ENOMEM;
	r = file_read_all(fd, text, len, h->desc_offset * VMDK_SECTOR);
	text[len] = '\0';
	if (r == 0)
		r = vmdk_check_description(text, why);
	free(text);
	return r;
}

/* The header's twin at the end, which alone knows where the directory is. */
static int read_footer(int fd, uint64_t size, struct vmdk_header *h,
		       struct error *why)
{
	uint8_t s[3 * VMDK_SECTOR];
	struct vmdk_header foot;
	uint64_t start = size / VMDK_SECTOR * VMDK_SECTOR;
	int r;

	error_set(why, "incomplete VMDK: it has no footer, so that writing it "
		       "was not finished");
	if (start < 2 * sizeof(s))
		return -EINVAL;
	r = file_read_all(fd, s, sizeof(s), start - sizeof(s));
	if (r < 0)
		return r;
	if (!vmdk_is_marker(s, VMDK_MARK_FOOTER) || !vmdk_is(s + VMDK_SECTOR) ||
	    !vmdk_is_marker(s + 2 * (size_t)VMDK_SECTOR, VMDK_MARK_END))
		return -EINVAL;
	r = vmdk_decode(s + VMDK_SECTOR, &foot, why);
	if (r < 0)
		return r;
	if (foot.capacity != h->capacity || foot.grain != h->grain ||
	    foot.flags != h->flags || foot.directory == VMDK_AT_END ||
	    foot.table_entries != h->table_entries) {
		error_set(why, "damaged VMDK: its footer contradicts its "
			       "header");
		return -EINVAL;
	}
	foot.desc_offset = h->desc_offset;
	foot.desc_size = h->desc_size;
	*h = foot;
	return 0;
}

static int check_places(const struct vmdk_header *h, uint64_t size,
			struct error *why)
{
	uint64_t bytes = vmdk_tables(h) * 4;

	if (h->grain < GRAIN_MIN) {
		error_set(why, "damaged VMDK: grains of a wrong size");
		return -EINVAL;
	}
	if (h->directory <= size / VMDK_SECTOR &&
	    range_inside(h->directory * VMDK_SECTOR, bytes, size))
		return 0;
	error_set(why, "damaged VMDK: its grain directory lies outside of it");
	return -EINVAL;
}

int vmdk_read_header(int fd, const char *name, uint64_t size,
		     struct vmdk_header *h, struct error *err)
{
	char s[VMDK_SECTOR + 1] = { 0 };
	struct error why = { "" };
	int r;

	if (size < VMDK_SECTOR) {
		if (file_read_all(fd, s, size, 0) == 0 &&
		    !vmdk_is((uint8_t *)s))
			return refuse_text(name, s, err);
		return header_failed(err, name, -EINVAL, "not a VMDK image");
	}
	r = file_read_all(fd, s, VMDK_SECTOR, 0);
	if (r < 0)
		return header_failed(err, name, r, NULL);
	if (!vmdk_is((uint8_t *)s))
		return refuse_text(name, s, err);
	r = vmdk_decode((uint8_t *)s, h, &why);
	if (r == 0 && h->directory == VMDK_AT_END)
		r = read_footer(fd, size, h, &why);
	if (r == 0)
		r = read_description(fd, h, size, &why);
	if (r == 0)
		r = check_places(h, size, &why);
	if (r < 0)
		return header_failed(err, name, r,
				     why.text[0] ? why.text : NULL);
	return 0;
}

/* ---------------------------------------------------------------- tables */

static bool test_bit(const uint8_t *bits, uint64_t n)
{
	return bits[n / 8] & (1 << (n % 8));
}

static void set_bit(uint8_t *bits, uint64_t n)
{
	bits[n / 8] |= (uint8_t)(1 << (n % 8));
}

/* The sector of table n, 0 where there is none. */
static int directory_entry(struct vmdk_read *v, uint64_t n, uint32_t *sector)
{
	uint64_t at = n / DIRECTORY_PART * DIRECTORY_PART;
	uint64_t count = min_u64(vmdk_tables(&v->h) - at, DIRECTORY_PART);
	int r;

	if (v->part_at != at) {
		v->part_at = UINT64_MAX;
		r = file_read_all(v->fd, v->part, count * 4,
				  v->h.directory * VMDK_SECTOR + at * 4);
		if (r < 0)
			return r;
		v->part_at = at;
	}
	*sector = vmdk_get32((uint8_t *)&v->part[n - at]);
	return 0;
}

static bool is_zero_entry(const struct vmdk_read *v, uint32_t e)
{
	return e == 0 || (e == 1 && (v->h.flags & VMDK_ZEROED));
}

/* Each grain lies inside the file, behind what describes it, and alone. A table
 * that is wrong stays so: its grains are in the way of themselves. */
static int check_table(struct vmdk_read *v, const struct table *t)
{
	bool alone = v->packed || test_bit(v->checked, t->n);
	uint64_t grains = align_up(v->h.capacity, v->h.grain) / v->h.grain;
	uint64_t first = t->n * v->h.table_entries;
	uint64_t front = v->h.desc_offset + min_u64(v->h.desc_size, 128);

	/* There the tables are too. Streams have theirs behind the grains. */
	if (!v->packed)
		front = max_u64(front, v->h.overhead);
	for (uint32_t i = 0; i < v->h.table_entries; i++) {
		uint32_t e = t->entry[i];

		if (is_zero_entry(v, e))
			continue;
		if (first + i >= grains || e < front ||
		    e >= v->file_size / VMDK_SECTOR)
			return -EUCLEAN;
		if (alone)
			continue;
		if (test_bit(v->used, e / v->h.grain))
			return -EUCLEAN;
		set_bit(v->used, e / v->h.grain);
	}
	set_bit(v->checked, t->n);
	return 0;
}

static int load_table(struct vmdk_read *v, struct table *t, uint64_t n,
		      uint32_t sector)
{
	uint64_t bytes = (uint64_t)v->h.table_entries * 4;
	uint64_t at = (uint64_t)sector * VMDK_SECTOR;
	int r;

	t->valid = false;
	t->n = n;
	if (!range_inside(at, bytes, v->file_size))
		return -EUCLEAN;
	r = file_read_all(v->fd, t->entry, bytes, at);
	if (r < 0)
		return r;
	for (uint32_t i = 0; i < v->h.table_entries; i++)
		t->entry[i] = vmdk_get32((uint8_t *)&t->entry[i]);
	r = check_table(v, t);
	t->valid = r == 0;
	return r;
}

/* Table n, or NULL where nothing of it is there. With the lock. */
static int get_table(struct vmdk_read *v, uint64_t n, struct table **table)
{
	struct table *t = &v->tables[n % CACHED];
	uint32_t sector;
	int r = 0;

	if (!t->valid || t->n != n) {
		r = directory_entry(v, n, &sector);
		t = sector && r == 0 ? t : NULL;
		if (t)
			r = load_table(v, t, n, sector);
	}
	*table = t;
	return r;
}

static int get_entry(struct vmdk_read *v, uint64_t grain, uint32_t *e)
{
	struct table *t;
	int r;

	pthread_mutex_lock(&v->lock);
	r = get_table(v, grain / v->h.table_entries, &t);
	*e = t && r == 0 ? t->entry[grain % v->h.table_entries] : 0;
	pthread_mutex_unlock(&v->lock);
	if (r == 0 && is_zero_entry(v, *e))
		*e = 0;
	return r;
}

/* --------------------------------------------------------------- reading */

/* [from, from + len) of a grain that is deflated at sector e. `room` is for
 * what is in the file, and then for the grain. */
static int unpack(struct vmdk_read *v, uint64_t grain, uint32_t e,
		  uint64_t from, uint8_t *data, uint64_t len, uint8_t *room)
{
	uint64_t bytes = vmdk_grain_bytes(&v->h), at, lba;
	uint64_t most = VMDK_GRAIN_HEAD + compressBound(bytes);
	uint8_t *grain_data = room + most;
	uLongf got = bytes;
	uint32_t packed;
	int r;

	at = (uint64_t)e * VMDK_SECTOR;
	most = min_u64(most, v->file_size - at);
	r = file_read_all(v->fd, room, most, at);
	if (r < 0)
		return r;
	vmdk_decode_grain(room, &lba, &packed);
	if (lba != grain * v->h.grain || packed == 0 ||
	    packed > most - VMDK_GRAIN_HEAD)
		return -EUCLEAN;
	if (uncompress(grain_data, &got, room + VMDK_GRAIN_HEAD, packed) !=
		    Z_OK ||
	    got < from + len)
		return -EUCLEAN;
	memcpy(data, grain_data + from, len);
	return 0;
}

static int read_packed(struct vmdk_read *v, struct dev_io *io)
{
	uint64_t bytes = vmdk_grain_bytes(&v->h), pos = 0, n;
	uint8_t *room = malloc(VMDK_GRAIN_HEAD + compressBound(bytes) + bytes);
	int r = room ? 0 : -ENOMEM;
	uint32_t e;

	for (; pos < io->len && r == 0; pos += n) {
		uint64_t at = io->offset + pos;

		n = min_u64(io->len - pos, bytes - at % bytes);
		r = get_entry(v, at / bytes, &e);
		if (r == 0 && e)
			r = unpack(v, at / bytes, e, at % bytes, io->data + pos,
				   n, room);
		else if (r == 0)
			memset(io->data + pos, 0, n);
	}
	free(room);
	return r;
}

/* Grains that follow each other in the file are read at once. */
static int read_plain(struct vmdk_read *v, struct dev_io *io)
{
	uint64_t bytes = vmdk_grain_bytes(&v->h), pos = 0, n;
	uint32_t e, next;
	int r = 0;

	for (; pos < io->len && r == 0; pos += n) {
		uint64_t at = io->offset + pos, grain = at / bytes;
		uint64_t file;

		n = min_u64(io->len - pos, bytes - at % bytes);
		r = get_entry(v, grain, &e);
		if (r < 0)
			break;
		if (e == 0) {
			memset(io->data + pos, 0, n);
			continue;
		}
		file = (uint64_t)e * VMDK_SECTOR + at % bytes;
		while (n < io->len - pos) {
			r = get_entry(v, ++grain, &next);
			if (r < 0 || next != e + v->h.grain)
				break;
			e = next;
			n += min_u64(io->len - pos - n, bytes);
		}
		if (r == 0 && !range_inside(file, n, v->file_size))
			r = -EUCLEAN;
		if (r == 0)
			r = file_read_all(v->fd, io->data + pos, n, file);
	}
	return r;
}

static int perform_read(struct vmdk_read *v, struct dev_io *io)
{
	return v->packed ? read_packed(v, io) : read_plain(v, io);
}

/* Grains from the one at io->offset on that are of the same kind. */
static int perform_extents(struct vmdk_read *v, struct dev_io *io)
{
	uint64_t bytes = vmdk_grain_bytes(&v->h);
	uint64_t covers = vmdk_table_bytes(&v->h);
	uint64_t pos = io->offset, end = io->offset + io->len, tables = 0;
	bool first = true;
	int r = 0;

	pthread_mutex_lock(&v->lock);
	while (pos < end) {
		struct table *t = NULL;
		bool zero = true;
		uint64_t next;

		if ((first || pos % covers == 0) && ++tables > TABLES_A_TURN)
			break;
		r = get_table(v, pos / covers, &t);
		if (r < 0)
			break;
		next = align_down(pos, covers) + covers;
		if (t) {
			zero = is_zero_entry(v, t->entry[pos % covers / bytes]);
			next = align_down(pos, bytes) + bytes;
		}
		if (first)
			io->zero = io->hole = zero;
		else if (zero != io->zero)
			break;
		first = false;
		pos = min_u64(next, end);
	}
	pthread_mutex_unlock(&v->lock);
	io->run = pos - io->offset;
	return r < 0 && first ? r : 0;
}

/* ------------------------------------------------------------------- ops */

static struct vmdk_read *to_vmdk(struct blockdev *dev)
{
	return container_of(dev, struct vmdk_read, dev);
}

static void help_read(struct work *w)
{
	struct dev_io *io = container_of(w, struct dev_io, u.helper.work);

	io->u.helper.error = perform_read(to_vmdk(io->dev), io);
}

static void help_extents(struct work *w)
{
	struct dev_io *io = container_of(w, struct dev_io, u.helper.work);

	io->u.helper.error = perform_extents(to_vmdk(io->dev), io);
}

static void helped(struct work *w)
{
	struct dev_io *io = container_of(w, struct dev_io, u.helper.work);

	io->done(io, io->u.helper.error);
}

static void submit(struct blockdev *dev, struct dev_io *io,
		   void (*fn)(struct work *))
{
	io->u.helper.work.fn = fn;
	io->u.helper.work.done = helped;
	workers_run(to_vmdk(dev)->workers, &io->u.helper.work);
}

static void vmdk_read_submit(struct blockdev *dev, struct dev_io *io)
{
	submit(dev, io, help_read);
}

static void vmdk_extents_submit(struct blockdev *dev, struct dev_io *io)
{
	submit(dev, io, help_extents);
}

static void vmdk_free(struct vmdk_read *v)
{
	pthread_mutex_destroy(&v->lock);
	free(v->tables);
	free(v->checked);
	free(v->used);
	free(v->name);
	free(v);
}

static void vmdk_close(struct blockdev *dev)
{
	struct vmdk_read *v = to_vmdk(dev);

	close(v->fd);
	vmdk_free(v);
}

static const struct blockdev_ops read_ops = {
	.read = vmdk_read_submit,
	.extents = vmdk_extents_submit,
	.close = vmdk_close,
};

static bool make_room(struct vmdk_read *v, const char *name)
{
	/* Sectors of grains have 32 bits. */
	uint64_t places =
		min_u64(v->file_size / VMDK_SECTOR, UINT32_MAX) / v->h.grain +
		1;

	v->name = strdup(name);
	v->tables = calloc(CACHED, sizeof(*v->tables));
	/* Fresh pages of zeroes: only those that are used take memory. */
	v->checked = calloc(1, vmdk_tables(&v->h) / 8 + 1);
	v->used = calloc(1, places / 8 + 1);
	return v->name && v->tables && v->checked && v->used;
}

struct blockdev *dev_vmdk_read(const struct dev_vmdk_params *p,
			       struct error *err)
{
	struct vmdk_read *v = calloc(1, sizeof(*v));

	if (!v) {
		error_set(err, "%s: out of memory", p->name);
		return NULL;
	}
	pthread_mutex_init(&v->lock, NULL);
	v->fd = p->fd;
	v->workers = p->workers;
	v->file_size = p->size;
	v->part_at = UINT64_MAX;
	if (vmdk_read_header(p->fd, p->name, p->size, &v->h, err) < 0)
		goto fail;
	v->packed = v->h.flags & VMDK_COMPRESSED;
	if (!make_room(v, p->name)) {
		error_set(err, "%s: out of memory", p->name);
		goto fail;
	}
	v->dev.ops = &read_ops;
	v->dev.name = v->name;
	v->dev.size = v->h.capacity * VMDK_SECTOR;
	v->dev.caps = DEV_CAN_READ | DEV_CAN_SEEK | DEV_CAN_EXTENTS;
	v->dev.preferred = 256 * KiB;
	v->dev.align = VMDK_SECTOR;
	v->dev.depth = 64;
	return &v->dev;

fail:
	vmdk_free(v);
	return NULL;
}
