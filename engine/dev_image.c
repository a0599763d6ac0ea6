/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <stdlib.h>
#include <string.h>

#include "blockdev.h"
#include "util.h"

struct image_dev {
	struct blockdev dev;
	struct handle *h;
	char *name;
	bool owns;		      /* nobody else uses the handle */
	unsigned losses;	      /* of the image, as last seen */
	TAILQ_HEAD(, dev_io) changes; /* writes and zeroes under way */
};

static struct image_dev *to_image(struct blockdev *dev)
{
	return container_of(dev, struct image_dev, dev);
}

/* All members of the union begin with the image_op. */
static struct dev_io *to_io(struct image_op *op)
{
	return container_of(op, struct dev_io, u.op);
}

static void op_done(struct image_op *op, int error)
{
	struct dev_io *io = to_io(op);

	io->done(io, error);
}

static void change_done(struct image_op *op, int error)
{
	struct dev_io *io = to_io(op);

	TAILQ_REMOVE(&to_image(io->dev)->changes, io, link);
	io->done(io, error);
}

static void extent_done(struct image_op *op, int error)
{
	struct dev_io *io = to_io(op);

	io->run = io->u.extent.len;
	io->zero = io->u.extent.zero;
	io->hole = io->u.extent.hole;
	io->done(io, error);
}

static void image_dev_read(struct blockdev *dev, struct dev_io *io)
{
	struct image_read *r = &io->u.read;

	memset(&r->op, 0, sizeof(r->op));
	r->op.done = op_done;
	r->op.h = to_image(dev)->h;
	r->offset = io->offset;
	r->len = (uint32_t)io->len;
	r->dst = io->data;
	r->niov = r->npieces = 0;
	image_read(r);
}

static void image_dev_write(struct blockdev *dev, struct dev_io *io)
{
	struct image_dev *d = to_image(dev);
	struct image_write *w = &io->u.write;

	*w = (struct image_write){
		.op = { .done = change_done, .h = d->h },
		.offset = io->offset,
		.len = (uint32_t)io->len,
		.flags = WRITE_DIRECT | (d->owns ? WRITE_ANYWAY : 0),
		.data = io->data,
		.buf = io->buf,
	};
	TAILQ_INSERT_TAIL(&d->changes, io, link);
	image_write(w);
}

static void image_dev_zero(struct blockdev *dev, struct dev_io *io)
{
	struct image_zero *z = &io->u.zero;
	struct image_dev *d = to_image(dev);
	bool allocate = io->flags & DEV_ALLOCATE;

	*z = (struct image_zero){
		.op = { .done = change_done, .h = d->h },
		.offset = io->offset,
		.len = io->len,
		.flags = ZERO_WAIT | (d->owns ? ZERO_ANYWAY : 0) |
			 (allocate ? ZERO_NO_HOLE : ZERO_HOLE_HINT),
	};
	TAILQ_INSERT_TAIL(&d->changes, io, link);
	image_zero(z);
}

static void image_dev_extents(struct blockdev *dev, struct dev_io *io)
{
	struct image_extent *x = &io->u.extent;

	*x = (struct image_extent){
		.op = { .done = extent_done, .h = to_image(dev)->h },
		.offset = io->offset,
		.limit = io->len,
		.strict = true,
	};
	image_extent(x);
}

static void image_dev_flush(struct blockdev *dev, struct dev_io *io)
{
	struct image_sync *s = &io->u.sync;

	*s = (struct image_sync){
		.op = { .done = op_done, .h = to_image(dev)->h },
		.flags = SYNC_FLUSH,
	};
	image_sync(s);
}

/* Or they would be sent when newer bytes are there already. */
static void image_dev_stop(struct blockdev *dev)
{
	struct dev_io *io;

	TAILQ_FOREACH(io, &to_image(dev)->changes, link)
		image_withdraw(&io->u.op);
}

static void image_dev_close(struct blockdev *dev)
{
	struct image_dev *d = to_image(dev);

	free(d->name);
	free(d);
}

static const struct blockdev_ops image_ops = {
	.read = image_dev_read,
	.write = image_dev_write,
	.zero = image_dev_zero,
	.extents = image_dev_extents,
	.flush = image_dev_flush,
	.stop = image_dev_stop,
	.close = image_dev_close,
};

struct blockdev *dev_image_new(struct handle *h, struct error *err)
{
	struct image *img = handle_image(h);
	struct image_dev *d = calloc(1, sizeof(*d));
	struct image_info info;

	if (d)
		d->name = strdup(image_name(img));
	if (!d || !d->name) {
		free(d);
		error_set(err, "%s: out of memory", image_name(img));
		return NULL;
	}
	image_get_info(img, &info);
	d->h = h;
	d->losses = image_losses(img);
	TAILQ_INIT(&d->changes);
	d->dev.ops = &image_ops;
	d->dev.name = d->name;
	d->dev.size = image_size(img);
	d->dev.caps = DEV_CAN_READ | DEV_CAN_SEEK | DEV_REMOTE;
	if (!image_read_only(img))
		d->dev.caps |= DEV_CAN_WRITE;
	if (info.can_status)
		d->dev.caps |= image_marked(img) ? DEV_HAS_MARKS :
						   DEV_CAN_EXTENTS;
	if (info.can_zero)
		d->dev.caps |= DEV_CAN_ZERO;
	d->dev.align = info.min_block;
	d->dev.depth = 64 * (info.connections ? info.connections : 1);
	return &d->dev;
}

void dev_image_owns(struct blockdev *dev)
{
	to_image(dev)->owns = true;
}

bool dev_image_lost(struct blockdev *dev)
{
	struct image_dev *d = to_image(dev);
	unsigned before = d->losses;

	/* Each request has said itself how it went. */
	handle_error_take(d->h);
	d->losses = image_losses(handle_image(d->h));
	return d->losses != before;
}
