/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <stdlib.h>

#include "blockdev.h"

static void null_write(struct blockdev *dev, struct dev_io *io)
{
	(void)dev;
	io->done(io, 0);
}

static void null_close(struct blockdev *dev)
{
	free(dev);
}

/* No zero(): looking for zeroes in data would be for nothing. */
static const struct blockdev_ops null_ops = {
	.write = null_write,
	.close = null_close,
};

struct blockdev *dev_null_new(struct error *err)
{
	struct blockdev *dev = calloc(1, sizeof(*dev));

	if (!dev) {
		error_set(err, "out of memory");
		return NULL;
	}
	dev->ops = &null_ops;
	dev->name = "null:";
	dev->size = UINT64_MAX;
	dev->caps = DEV_CAN_WRITE | DEV_CAN_SEEK | DEV_IS_ZERO;
	dev->preferred = 1 << 20;
	dev->align = 1;
	dev->depth = 64;
	return dev;
}
