/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "mountopt.h"
#include "options.h"

static const struct mount_opt mount_opts[] = {
	{ "ro", TO_US },
	{ "rw", TO_US },
	{ "fsname", TO_US },
	{ "subtype", TO_NOBODY },
	{ "default_permissions", TO_NOBODY }, /* always on */
	{ "allow_other", TO_LIBFUSE },
	{ "allow_root", TO_LIBFUSE },
	{ "auto_unmount", TO_LIBFUSE },
	{ "suid", TO_LIBFUSE },
	{ "nosuid", TO_LIBFUSE },
	{ "dev", TO_LIBFUSE },
	{ "nodev", TO_LIBFUSE },
	{ "exec", TO_LIBFUSE },
	{ "noexec", TO_LIBFUSE },
	{ "sync", TO_LIBFUSE },
	{ "async", TO_LIBFUSE },
	{ "noatime", TO_LIBFUSE },
	{ "context", TO_LIBFUSE },
	{ "fscontext", TO_LIBFUSE },
	{ "defcontext", TO_LIBFUSE },
	{ "rootcontext", TO_LIBFUSE },
	/* For mount(8) and systemd. */
	{ "auto", TO_NOBODY },
	{ "noauto", TO_NOBODY },
	{ "user", TO_NOBODY },
	{ "nouser", TO_NOBODY },
	{ "users", TO_NOBODY },
	{ "owner", TO_NOBODY },
	{ "group", TO_NOBODY },
	{ "_netdev", TO_NOBODY },
	{ "nofail", TO_NOBODY },
	{ "defaults", TO_NOBODY },
	{ "comment", TO_NOBODY },
	{ "x-*", TO_NOBODY },
	{ "X-*", TO_NOBODY },
	{ "silent", TO_NOBODY },
	{ "loud", TO_NOBODY },
	/* Without a meaning here. */
	{ "atime", TO_NOBODY },
	{ "diratime", TO_NOBODY },
	{ "nodiratime", TO_NOBODY },
	{ "relatime", TO_NOBODY },
	{ "norelatime", TO_NOBODY },
	{ "strictatime", TO_NOBODY },
	{ "nostrictatime", TO_NOBODY },
	{ "lazytime", TO_NOBODY },
	{ "nolazytime", TO_NOBODY },
	{ "dirsync", TO_NOBODY },
	{ "nosymfollow", TO_NOBODY },
	{ NULL, TO_NOBODY },
};

const struct mount_opt *mount_opt_find(const char *name)
{
	const struct mount_opt *m;
	size_t len;

	for (m = mount_opts; m->name; m++) {
		len = strlen(m->name);
		if (m->name[len - 1] == '*') {
			if (strncmp(name, m->name, len - 1) == 0)
				return m;
		} else if (strcmp(name, m->name) == 0) {
			return m;
		}
	}
	return NULL;
}

int fs_mount_opt_add(char **list, const char *name, const char *value)
{
	size_t have = *list ? strlen(*list) : 0;
	size_t room = have + strlen(name) + 3;
	char *p;

	if (value)
		room += 2 * strlen(value);
	p = realloc(*list, room);
	if (!p)
		return -ENOMEM;
	*list = p;
	p += have;
	if (have)
		*p++ = ',';
	p = stpcpy(p, name);
	if (value)
		*p++ = '=';
	for (; value && *value; value++) {
		if (*value == ',' || *value == '\\')
			*p++ = '\\';
		*p++ = *value;
	}
	*p = '\0';
	return 0;
}
