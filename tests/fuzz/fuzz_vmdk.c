/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A whole VMDK image, read from its beginning to its end: extents and bytes. The
 * first byte says how long the file is made.
 */
#include <sys/mman.h>
#include <unistd.h>

#include "dev_vmdk.h"
#include "fuzz.h"
#include "util.h"

#define LEN_MAX ((uint64_t)4 * MiB) /* of the disk, that is read */

struct run {
	struct loop *loop;
	int error;
};

static void done(struct dev_io *io, int error)
{
	struct run *r = io->user;

	r->error = error;
	loop_stop(r->loop);
}

static int one(struct run *r, struct blockdev *dev, struct dev_io *io,
	       void (*op)(struct blockdev *, struct dev_io *))
{
	io->done = done;
	io->user = r;
	op(dev, io);
	CHECK(loop_run(r->loop) == 0);
	return r->error;
}

static void read_all(struct run *r, struct blockdev *dev, uint8_t *room)
{
	uint64_t end = min_u64(dev->size, LEN_MAX), at = 0;

	while (at < end) {
		struct dev_io io = { .offset = at, .len = dev->size - at };

		if (one(r, dev, &io, blockdev_extents) == 0) {
			CHECK(io.run > 0 && io.run <= dev->size - at);
		} else {
			io.run = 100000;
		}
		io = (struct dev_io){
			.offset = at,
			.len = min_u64(end - at, min_u64(io.run, 100000)),
			.data = room,
		};
		one(r, dev, &io, blockdev_read);
		at += io.len;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	int fd = memfd_create("vmdk", MFD_CLOEXEC);
	struct run r = { .loop = loop_new() };
	struct workers *w = workers_new(r.loop, 1);
	struct dev_vmdk_params p = {
		.fd = fd, .name = "x", .loop = r.loop, .workers = w
	};
	uint8_t *room = malloc(100000);
	struct blockdev *dev;
	struct error err;

	CHECK(fd >= 0 && r.loop && w && room);
	if (size > 0) {
		CHECK(write(fd, data + 1, size - 1) == (ssize_t)size - 1);
		p.size = size - 1;
		if (data[0] > p.size / VMDK_SECTOR) {
			p.size = (uint64_t)data[0] * VMDK_SECTOR;
			CHECK(ftruncate(fd, (off_t)p.size) == 0);
		}
	}
	dev = dev_vmdk_read(&p, &err);
	if (dev)
		read_all(&r, dev, room);
	blockdev_close(dev);
	if (!dev)
		close(fd);
	free(room);
	workers_free(w);
	loop_free(r.loop);
	return 0;
}
