/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * image.h - what the catalog needs of an image beyond engine.h.
 *
 * Units bytes. Threads: the engine's loop (image_new() also before it runs).
 */
#ifndef NBDFS_IMAGE_H
#define NBDFS_IMAGE_H

#include "connect.h"
#include "engine.h"

/* refs is 1. `keep`, if not NULL, is taken over as its first connection,
 * which stays open as long as the image lives; also on failure. `srv` must
 * outlive the image. */
struct image *image_new(struct engine *e, struct server *srv,
			const struct export_entry *entry, const char *file_name,
			struct nbd_handle *keep,
			const struct nbd_caps *keep_caps, struct error *err);
/* A later listing of the same export: takes a new size and description
 * where no handle is open. */
void image_relist(struct image *img, const struct export_entry *entry);
/* True if somebody besides one holder has a reference, or something is not on
 * the server yet. */
bool image_in_use(const struct image *img);
/* Writes and zeroes what is queued, flushes, disconnects. A server that answers
 * nothing for the time-out is given up: what could not be written is logged,
 * `done` gets an error. */
void image_shutdown(struct image *img, void (*done)(void *arg, int error),
		    void *arg);

#endif
