/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * dev_vmdk.h - VMDK images as ends of a copy.
 *
 * dev_vmdk_read.c   both kinds as a source: any range, in any order.
 * dev_vmdk.c        monolithicSparse as a destination: any range, in any
 *                   order.
 * dev_vmdk_stream.c streamOptimized as a destination: in order, to a pipe too.
 *
 * The destinations are complete only after their finish() (blockdev.h); without
 * it, a reader is told that the image is not.
 *
 * Units      bytes.
 * Ownership  `fd` becomes the device's when a constructor succeeds.
 * Threads    as blockdev.h says. Requests are carried out by helper threads;
 *            what these share is under a lock of the device.
 * Errors     0 or -errno with a text. -EUCLEAN: the image is damaged there.
 */
#ifndef NBDFS_DEV_VMDK_H
#define NBDFS_DEV_VMDK_H

#include "blockdev.h"
#include "vmdk.h"

/* What an image that is there holds: reads and checks what describes it. May
 * block. `size` is the file's. */
int vmdk_read_header(int fd, const char *name, uint64_t size,
		     struct vmdk_header *h, struct error *err);

struct dev_vmdk_params {
	int fd;
	const char *name;    /* for messages, and the last part in the image */
	uint64_t size;	     /* source: of the file; else: of the disk */
	bool read;	     /* fd can be read: for --verify */
	const char *adapter; /* destination: see vmdk_adapter() */
	int level;	     /* of compression, 1 to 9 */
	bool allocate;	     /* stream: zeroes that are written are kept */
	struct loop *loop;
	struct workers *workers;
	unsigned threads; /* how many of them */
};

struct blockdev *dev_vmdk_read(const struct dev_vmdk_params *p,
			       struct error *err);
struct blockdev *dev_vmdk_new(const struct dev_vmdk_params *p,
			      struct error *err);
struct blockdev *dev_vmdk_stream_new(const struct dev_vmdk_params *p,
				     struct error *err);

#endif
