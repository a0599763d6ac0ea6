/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * dev_vmdk.c - a monolithicSparse VMDK is written.
 *
 * The next free grain is a number in memory, and so are the tables: a grain is
 * written once, as a whole, and nothing is asked of the file or said of it on
 * the way. What describes the grains follows when all of them are there.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "dev_vmdk.h"
#include "util.h"

#define BATCH ((uint64_t)MiB) /* of tables written at once */
#define TABLE_BYTES ((uint64_t)VMDK_TABLE * 4)
#define UNCLEAN_AT 72 /* in the header */

struct vmdk_write {
	struct blockdev dev;
	struct workers *workers;
	char *name;
	int fd;
	struct vmdk_header h;
	uint64_t ntables;

	pthread_mutex_t lock; /* for all below */
	uint64_t next;	      /* the next free sector */
	uint32_t **tables;    /* NULL: no grain of it is there */
};

/* ---------------------------------------------------------------- grains */

/* With the lock. */
static uint32_t *get_entry(struct vmdk_write *v, uint64_t grain)
{
	uint32_t **t = &v->tables[grain / VMDK_TABLE];

	if (!*t)
		*t = calloc(VMDK_TABLE, sizeof(**t));
	return *t ? *t + grain % VMDK_TABLE : NULL;
}

/* A place for a grain that has none. With the lock. */
static int take_place(struct vmdk_write *v, uint32_t *entry)
{
	if (v->next > UINT32_MAX - v->h.grain)
		return -EFBIG;
	*entry = (uint32_t)v->next;
	v->next += v->h.grain;
	return 0;
}

/* A new grain of which only a part is given: the rest is zero. Under the lock,
 * so that whoever has another part of it finds it complete. */
static int write_filled(struct vmdk_write *v, uint64_t sector, uint64_t from,
			const uint8_t *data, uint64_t len)
{
	uint8_t *all = calloc(1, VMDK_GRAIN);
	int r;

	if (!all)
		return -ENOMEM;
	memcpy(all + from, data, len);
	r = file_write_all(v->fd, all, VMDK_GRAIN, sector * VMDK_SECTOR);
	free(all);
	return r;
}

/* What one step of a write has found: bytes that go to one place. */
struct step {
	uint64_t len;	/* of the data that is dealt with */
	uint64_t place; /* bytes in the file */
	bool written;	/* nothing is left to do */
};

/* As many grains from `at` on as lie side by side in the file. With the lock.
 * Without `fresh`, only where a grain is there already. */
static int take_step(struct vmdk_write *v, uint64_t at, const uint8_t *data,
		     uint64_t len, bool fresh, struct step *s)
{
	uint64_t in = at % VMDK_GRAIN, grain = at / VMDK_GRAIN, n;
	uint32_t *entry, first = 0, last = 0;
	int r = 0;

	*s = (struct step){ 0 };
	for (; s->len < len; grain++, in = 0) {
		n = min_u64(len - s->len, VMDK_GRAIN - in);
		entry = fresh || v->tables[grain / VMDK_TABLE] ?
				get_entry(v, grain) :
				NULL;
		if (!entry && fresh)
			return -ENOMEM;
		if (!entry || (!fresh && *entry == 0)) {
			if (s->len == 0) {
				s->len = n;
				s->written = true;
			}
			return 0;
		}
		if (*entry == 0) {
			if (s->len > 0 && n < VMDK_GRAIN)
				return 0;
			if (s->len > 0 && v->next != last + v->h.grain)
				return 0;
			r = take_place(v, entry);
			if (r < 0)
				return r;
			if (n < VMDK_GRAIN) {
				s->len = n;
				s->written = true;
				return write_filled(v, *entry, in, data, n);
			}
		} else if (s->len > 0 && *entry != last + v->h.grain) {
			return 0;
		}
		if (s->len == 0) {
			first = *entry;
			s->place = (uint64_t)first * VMDK_SECTOR + in;
		}
		last = *entry;
		s->len += n;
	}
	return 0;
}

static int write_range(struct vmdk_write *v, uint64_t offset,
		       const uint8_t *data, uint64_t len, bool fresh)
{
	struct step s;
	int r;

	for (; len > 0; offset += s.len, data += s.len, len -= s.len) {
		pthread_mutex_lock(&v->lock);
		r = take_step(v, offset, data, len, fresh, &s);
		pthread_mutex_unlock(&v->lock);
		if (r == 0 && !s.written)
			r = file_write_all(v->fd, data, s.len, s.place);
		if (r < 0)
			return r;
	}
	return 0;
}

/* Grains that are not there are zero, unless they are to take space. */
static int zero_range(struct vmdk_write *v, uint64_t offset, uint64_t len,
		      bool allocate)
{
	int r = 0;

	while (len > 0 && r == 0) {
		uint64_t n = min_u64(len, ZERO_BLOCK_SIZE -
						  offset % ZERO_BLOCK_SIZE);

		r = write_range(v, offset, zero_block, n, allocate);
		offset += n;
		len -= n;
	}
	return r;
}

/* ------------------------------------------------------ start and finish */

static int write_directory(struct vmdk_write *v, bool spare)
{
	uint64_t at = spare ? v->h.spare_directory : v->h.directory;
	uint64_t bytes = align_up(max_u64(v->ntables, 1) * 4, VMDK_SECTOR);
	uint8_t *all = calloc(1, bytes);
	int r;

	if (!all)
		return -ENOMEM;
	for (uint64_t i = 0; i < v->ntables; i++)
		vmdk_put32(all + i * 4,
			   (uint32_t)vmdk_table_sector(&v->h, spare, i));
	r = file_write_all(v->fd, all, bytes, at * VMDK_SECTOR);
	free(all);
	return r;
}

/* The header says that the image is being written. */
static int write_start(struct vmdk_write *v, const char *adapter)
{
	uint64_t bytes = (v->h.desc_offset + v->h.desc_size) * VMDK_SECTOR;
	uint8_t *all = calloc(1, bytes);
	uint32_t id = 1;
	char *text;
	int r = -ENOMEM;

	if (getrandom(&id, sizeof(id), GRND_NONBLOCK) < 0)
		id = 1;
	text = vmdk_describe(&v->h, v->name, adapter, id & INT32_MAX);
	if (all && text) {
		vmdk_encode(&v->h, all);
		memccpy(all + VMDK_SECTOR, text, 0, bytes - VMDK_SECTOR);
		r = file_write_all(v->fd, all, bytes, 0);
	}
	free(text);
	free(all);
	if (r == 0)
		r = write_directory(v, true);
	if (r == 0)
		r = write_directory(v, false);
	/* So that the tables are inside the file, whatever follows. */
	if (r == 0)
		r = file_write_all(v->fd, zero_block, VMDK_SECTOR,
				   (v->h.overhead - 1) * VMDK_SECTOR);
	return r;
}

static void encode_table(const uint32_t *table, uint8_t *to)
{
	for (unsigned i = 0; i < VMDK_TABLE; i++)
		vmdk_put32(to + i * 4, table[i]);
}

/* Tables that are not there are holes of the file: zeroes. */
static int write_tables(struct vmdk_write *v, bool spare, uint8_t *batch)
{
	for (uint64_t i = 0; i < v->ntables;) {
		uint64_t first = i, len = 0;
		int r;

		while (i < v->ntables && v->tables[i] && len < BATCH) {
			encode_table(v->tables[i++], batch + len);
			len += TABLE_BYTES;
		}
		if (len == 0) {
			i++;
			continue;
		}
		r = file_write_all(v->fd, batch, len,
				   vmdk_table_sector(&v->h, spare, first) *
					   VMDK_SECTOR);
		if (r < 0)
			return r;
	}
	return 0;
}

/* Grains, tables, and the word that all is well: in this order. */
static int perform_finish(struct vmdk_write *v, struct dev_io *io)
{
	bool flush = io->flags & DEV_FLUSH;
	uint8_t *batch = malloc(BATCH);
	const uint8_t clean = 0;
	int r = batch ? 0 : -ENOMEM;

	if (r == 0 && flush && fsync(v->fd) < 0)
		r = -errno;
	/* Nobody else is here any more. */
	if (r == 0)
		r = write_tables(v, true, batch);
	if (r == 0)
		r = write_tables(v, false, batch);
	if (r == 0)
		r = file_write_all(v->fd, &clean, 1, UNCLEAN_AT);
	if (r == 0)
		r = file_finish(v->fd, flush);
	free(batch);
	return r;
}

/* ------------------------------------------------------------------- ops */

static struct vmdk_write *to_vmdk(struct blockdev *dev)
{
	return container_of(dev, struct vmdk_write, dev);
}

static void help_write(struct work *w)
{
	struct dev_io *io = container_of(w, struct dev_io, u.helper.work);

	io->u.helper.error = write_range(to_vmdk(io->dev), io->offset, io->data,
					 io->len, true);
}

static void help_zero(struct work *w)
{
	struct dev_io *io = container_of(w, struct dev_io, u.helper.work);

	io->u.helper.error = zero_range(to_vmdk(io->dev), io->offset, io->len,
					io->flags & DEV_ALLOCATE);
}

static void help_finish(struct work *w)
{
	struct dev_io *io = container_of(w, struct dev_io, u.helper.work);

	io->u.helper.error = perform_finish(to_vmdk(io->dev), io);
}

static void helped(struct work *w)
{
	struct dev_io *io = container_of(w, struct dev_io, u.helper.work);

	io->done(io, io->u.helper.error);
}

static void submit(struct dev_io *io, void (*fn)(struct work *))
{
	io->u.helper.work.fn = fn;
	io->u.helper.work.done = helped;
	workers_run(to_vmdk(io->dev)->workers, &io->u.helper.work);
}

static void vmdk_write_submit(struct blockdev *dev, struct dev_io *io)
{
	io->dev = dev;
	submit(io, help_write);
}

static void vmdk_zero_submit(struct blockdev *dev, struct dev_io *io)
{
	io->dev = dev;
	submit(io, help_zero);
}

static void vmdk_finish_submit(struct blockdev *dev, struct dev_io *io)
{
	io->dev = dev;
	submit(io, help_finish);
}

static void vmdk_free(struct vmdk_write *v)
{
	for (uint64_t i = 0; v->tables && i < v->ntables; i++)
		free(v->tables[i]);
	free(v->tables);
	pthread_mutex_destroy(&v->lock);
	free(v->name);
	free(v);
}

static void vmdk_close(struct blockdev *dev)
{
	struct vmdk_write *v = to_vmdk(dev);

	close(v->fd);
	vmdk_free(v);
}

static const struct blockdev_ops write_ops = {
	.write = vmdk_write_submit,
	.zero = vmdk_zero_submit,
	.finish = vmdk_finish_submit,
	.close = vmdk_close,
};

struct blockdev *dev_vmdk_new(const struct dev_vmdk_params *p,
			      struct error *err)
{
	struct vmdk_write *v = calloc(1, sizeof(*v));
	struct error why;
	int r = -ENOMEM;

	if (!v)
		goto fail;
	pthread_mutex_init(&v->lock, NULL);
	v->fd = p->fd;
	v->workers = p->workers;
	v->name = strdup(p->name);
	r = vmdk_layout(p->size, &v->h, &why);
	if (!v->name || r < 0)
		goto fail;
	v->h.unclean = true;
	v->next = v->h.overhead;
	v->ntables = vmdk_tables(&v->h);
	v->tables = calloc(v->ntables + 1, sizeof(*v->tables));
	r = v->tables ? write_start(v, p->adapter) : -ENOMEM;
	if (r < 0)
		goto fail;
	v->dev.ops = &write_ops;
	v->dev.name = v->name;
	v->dev.size = v->h.capacity * VMDK_SECTOR;
	v->dev.caps = DEV_CAN_WRITE | DEV_CAN_ZERO | DEV_CAN_SEEK | DEV_IS_ZERO;
	v->dev.preferred = 256 * KiB;
	v->dev.align = (uint32_t)VMDK_GRAIN;
	v->dev.depth = 64;
	return &v->dev;

fail:
	error_set(err, "%s: %s", p->name, strerror(-r));
	if (v)
		vmdk_free(v);
	return NULL;
}
