/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * local.h - files, block devices and pipes as ends of a copy: opening them so
 * that nothing is lost by mistake.
 *
 * Units      bytes.
 * Ownership  a struct local holds a descriptor until local_close(), or until
 *            local_device() has given it to a device.
 * Threads    any; may block.
 * Errors     0 or -errno with a text.
 */
#ifndef NBDFS_LOCAL_H
#define NBDFS_LOCAL_H

#include "blockdev.h"

enum local_kind { LOCAL_FILE, LOCAL_BLOCK, LOCAL_PIPE };

struct local {
	enum local_kind kind;
	int fd;			 /* -1: none */
	const char *name;	 /* as given; the caller's */
	uint64_t size;		 /* UINT64_MAX: not known */
	uint64_t dev, ino, rdev; /* to recognise it, */
	uint32_t type;		 /* S_IF*, also where it is used as a pipe */
	bool fuse;		 /* on a FUSE file system */
	bool read, write;
	bool is_zero;  /* known to read as zero */
	bool standard; /* standard input or output */
};

/* "-" is standard input; a regular file there counts as one if nothing of it
 * has been read yet. A file of which only reading tells how long it is, as in
 * /proc, counts as a pipe. */
int local_open_source(const char *path, struct local *l, struct error *err);
/* Its size as of now; of a pipe, as ever, none. */
int local_size_now(const struct local *l, uint64_t *size);

struct local_want {
	uint64_t size;		    /* of the source; UINT64_MAX: unknown */
	const struct local *source; /* NULL: not a local one */
	bool read_back;		    /* will be read as well */
	bool keep; /* what is there stays: no new file, no other size */
};
/* "-" is standard output. Creates or empties a file and gives it its size.
 * Refuses the source itself, and what is too small, before it changes
 * anything. */
int local_open_dest(const char *path, const struct local_want *want,
		    struct local *l, struct error *err);
/* The end of a copy of unknown length to a file. */
int local_set_size(const char *name, int fd, uint64_t size, struct error *err);

/* A device for it. `share` leaves the descriptor open in l, for more. */
struct blockdev *local_device(struct local *l, struct loop *loop,
			      struct workers *workers, bool share,
			      struct error *err);
void local_close(struct local *l);

#endif
