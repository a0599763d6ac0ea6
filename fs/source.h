/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * source.h - the sources of a mount, as words of a command line or of fstab.
 *
 * Ownership  the list and all in it belong to who calls; sources_free().
 * Threads    start-up only.
 * Errors     0 or -ENOMEM, and the list is as it was.
 */
#ifndef NBDFS_FS_SOURCE_H
#define NBDFS_FS_SOURCE_H

#include <stddef.h>

struct fs_source;

/* One operand. A line of fstab has room for one word only (with \040 for a
 * space), so a word may also hold several URIs with blanks between them, which
 * is unambiguous as a URI holds none, or be a whole "[ CMD ARGS... ]", whose
 * words are what blanks separate. */
int source_add_word(struct fs_source **list, size_t *count, const char *word);
int source_add_command(struct fs_source **list, size_t *count,
		       char *const argv[]);
void sources_free(struct fs_source *list, size_t count);

#endif
