/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * options.h - the command line of nbdfs.
 *
 * Ownership  a struct fs_options owns all that it points to.
 * Threads    start-up only; constant afterwards.
 * Errors     0 or -EINVAL with one line for the user.
 */
#ifndef NBDFS_FS_OPTIONS_H
#define NBDFS_FS_OPTIONS_H

#include <stdio.h>
#include <sys/types.h>

#include "engine.h"

enum fs_cache { CACHE_DIRECT, CACHE_KERNEL };
enum fs_on_truncate { TRUNCATE_ZERO, TRUNCATE_KEEP, TRUNCATE_DENY };

/* One operand: exactly one of the two is set. */
struct fs_source {
	char *uri;	/* URI or NAME=URI */
	char **command; /* NULL-terminated */
};

struct fs_options {
	struct engine_config engine; /* without its log */
	bool foreground, debug, verbose;
	bool help, version, dump; /* print and leave */
	bool list;		  /* print what there is and leave */
	bool xattrs;		  /* listxattr(2) tells of ours */
	enum fs_cache cache;
	enum fs_on_truncate on_truncate;
	uid_t uid;
	gid_t gid;
	mode_t umask;
	char *meta_context; /* or NULL: engine.meta_context */
	char *pidfile;	    /* or NULL */
	char *mountpoint;   /* as given; NULL with help and so on */
	struct fs_source *sources;
	size_t nsources;
	char *mount_opts;  /* for libfuse: comma-separated, escaped */
	bool has_fsname;   /* mount_opts says fsname= */
	bool operand_none; /* the source was a mere placeholder */
	size_t nset;	   /* sources given by options */
};

int fs_options_parse(struct fs_options *o, int argc, char **argv,
		     struct error *err);
/* Safe on what fs_options_parse() has left after a failure. */
void fs_options_free(struct fs_options *o);
void fs_options_help(FILE *out);
void fs_options_dump(FILE *out);

/* What a source is called in messages and in /proc/mounts: no user, no
 * password, no names of key files. Always terminated. */
void fs_source_label(const struct fs_source *s, char *out, size_t size);

/* Appends one option to a list for libfuse, escaping what needs it; value may
 * be NULL. 0 or -ENOMEM. */
int fs_mount_opt_add(char **list, const char *name, const char *value);

#endif
