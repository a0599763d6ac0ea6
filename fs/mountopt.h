/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * mountopt.h - mount options that are not ours, and lists of them.
 *
 * Ownership  the table is constant.
 * Threads    any.
 * Errors     NULL: there is no such option.
 */
#ifndef NBDFS_FS_MOUNTOPT_H
#define NBDFS_FS_MOUNTOPT_H

/* Who has to know it. */
struct mount_opt {
	const char *name; /* "x-*": all that begin so */
	enum { TO_NOBODY, TO_LIBFUSE, TO_US } to;
};

const struct mount_opt *mount_opt_find(const char *name);

#endif
