/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <errno.h>
#include <unistd.h>

#include "cli.h"
#include "util.h"

/* One call at most, so that progress is seen and a stop is soon obeyed. */
#define SLICE (64 * MiB)

bool range_copy_suits(const struct cli *cli, const struct end *src,
		      const struct end *dst)
{
	if (src->kind != END_LOCAL || dst->kind != END_LOCAL ||
	    src->local.kind != LOCAL_FILE || dst->local.kind != LOCAL_FILE ||
	    !src->local.fuse || src->local.dev != dst->local.dev)
		return false;
	/* What only our own engine can do. */
	return !cli->allocated && !cli->no_extents && !cli->rate &&
	       !cli->request_size && !cli->requests && !cli->synchronous &&
	       !cli->sparse_set;
}

/* Not possible here, as opposed to gone wrong. */
static bool not_possible(int e)
{
	return e == EXDEV || e == EOPNOTSUPP || e == ENOSYS || e == EINVAL ||
	       e == EPERM;
}

/* On a helper thread: the call waits until the mount has done its part. */
void range_copy_run(struct work *w)
{
	struct range_copy *rc = container_of(w, struct range_copy, work);
	off_t in = 0, out = 0;

	while ((uint64_t)in < rc->size) {
		size_t len = min_u64(rc->size - (uint64_t)in, SLICE);
		ssize_t n;

		if (atomic_load(&rc->stop)) {
			rc->result = -EINTR;
			return;
		}
		n = copy_file_range(rc->in, &in, rc->out, &out, len, 0);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			/* No bytes before the end: the source has shrunk, or
			 * the kernel will not copy this file. */
			rc->result = n < 0 ? -errno : -EIO;
			rc->unsupported = in == 0 &&
					  (n == 0 || not_possible(errno));
			return;
		}
		atomic_store(&rc->finished, (uint64_t)in);
	}
}
