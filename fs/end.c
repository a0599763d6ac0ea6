/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The end of a mount.
 *
 *	SERVING --signal--> LEAVING --> ENDING --> ENDED
 *	   \--unmounted-------------------/
 *
 * LEAVING: the mount point is being given up. Pages of mappings are written,
 * requests that are there are answered, also new ones of files that are still
 * open, for a moment. ENDING: nobody is waited for any more; what was
 * acknowledged is written to the servers.
 */
#include <errno.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fs.h"

/* How long open files are served after a signal. */
#define LEAVE_NS (2 * NS_PER_S)
#define LEAVE_STEP_NS (20 * NS_PER_MS)
/* Requests are given up at the end: they need only a moment for it. */
#define GIVE_UP_NS NS_PER_S
/* And pages that nobody writes any more need none. */
#define PAGES_NS (5 * NS_PER_S)

static int unmount_by_helper(const char *mountpoint)
{
	char name[] = "fusermount3", u[] = "-u", q[] = "-q", z[] = "-z",
	     end[] = "--";
	char *copy = strdup(mountpoint);
	char *argv[] = { name, u, q, z, end, copy, NULL };
	int status = -1;
	pid_t pid;

	if (copy && posix_spawnp(&pid, name, NULL, NULL, argv, environ) == 0) {
		while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
			;
	}
	free(copy);
	return status;
}

/* On a helper thread: the loop has to answer meanwhile. */
static void unmount(struct work *w)
{
	struct fs *fs = container_of(w, struct fs, unmount);

	if (umount2(fs->mountpoint, MNT_DETACH | UMOUNT_NOFOLLOW) == 0 ||
	    errno == EINVAL)
		fs->unmount_failed = false;
	else
		fs->unmount_failed = unmount_by_helper(fs->mountpoint) != 0;
}

static void unmounted(struct work *w)
{
	struct fs *fs = container_of(w, struct fs, unmount);

	fs->unmounting = false;
	if (!fs->unmount_failed)
		fs->detached = true;
	fs_end_check(fs);
}

/* ---------------------------------------------------------------- ending */

static void stop(struct fs *fs)
{
	if (fs->state == FS_ENDED)
		return;
	fs->state = FS_ENDED;
	loop_timer_cancel(fs->loop, &fs->grace);
	loop_stop(fs->loop);
}

static void pages_took_too_long(struct loop_timer *t)
{
	stop(container_of(t, struct fs, grace));
}

static void shut_down(void *arg, int error)
{
	struct fs *fs = arg;

	if (error) {
		fs->error = error;
		log_msg(fs->log, LOG_LVL_ERROR,
			"not everything could be written: %s",
			strerror(-error));
	}
	fs->shut_down = true;
	if (fs->state != FS_ENDING || fs->forced)
		return;
	fs->grace.fire = pages_took_too_long;
	loop_timer_set(fs->loop, &fs->grace, PAGES_NS);
	fs_end_check(fs);
}

static void start_shutdown(struct fs *fs)
{
	if (fs->shutting_down || fs->forced)
		return;
	fs->shutting_down = true;
	loop_timer_cancel(fs->loop, &fs->grace);
	catalog_shutdown(fs->catalog, shut_down, fs);
}

static void gave_up(struct loop_timer *t)
{
	start_shutdown(container_of(t, struct fs, grace));
}

void fs_end_check(struct fs *fs)
{
	if (fs->state != FS_ENDING)
		return;
	if (fs->forced) {
		if (!fs_inval_running(fs))
			stop(fs);
		return;
	}
	if (fs->shut_down && !fs_inval_running(fs) && !fs->unmounting)
		stop(fs);
	else if (TAILQ_EMPTY(&fs->reqs.active) && !fs->copies)
		start_shutdown(fs);
}

static void begin_ending(struct fs *fs)
{
	if (fs->state >= FS_ENDING)
		return;
	fs->state = FS_ENDING;
	engine_ending(fs->engine);
	fs_reqs_abandon(fs);
	fs_files_abandon(fs);
	fs->grace.fire = gave_up;
	loop_timer_set(fs->loop, &fs->grace, GIVE_UP_NS);
	fs_end_check(fs);
}

void fs_unmounted(struct fs *fs)
{
	fs_session_stop_reading(fs);
	fs->detached = true;
	begin_ending(fs);
}

/* --------------------------------------------------------------- leaving */

static void leave_step(struct loop_timer *t)
{
	struct fs *fs = container_of(t, struct fs, grace);
	uint64_t limit = engine_config(fs->engine)->timeout_ms * NS_PER_MS / 2;
	bool idle = !fs->unmounting && !fs_inval_running(fs) &&
		    TAILQ_EMPTY(&fs->reqs.active);

	limit = min_u64(limit, LEAVE_NS);
	if (idle || loop_now(fs->loop) - fs->leaving_since >= limit)
		begin_ending(fs);
	else
		loop_timer_set(fs->loop, t, LEAVE_STEP_NS);
}

static void leave(struct fs *fs)
{
	struct fs_inode *inode;
	size_t i;

	fs->state = FS_LEAVING;
	fs->leaving_since = loop_now(fs->loop);
	engine_ending(fs->engine);
	fs->unmounting = true;
	fs->unmount.fn = unmount;
	fs->unmount.done = unmounted;
	workers_run(fs->helpers, &fs->unmount);
	for (i = 0; i < INODE_BUCKETS; i++) {
		LIST_FOREACH(inode, &fs->inodes.by_ino[i], by_ino) {
			if (inode->writers)
				fs_inval_start(inode);
		}
	}
	fs->grace.fire = leave_step;
	loop_timer_set(fs->loop, &fs->grace, LEAVE_STEP_NS);
}

/* A helper that waits for pages would keep the process, and the device open, so
 * that nobody could ever end either. The pages are given up and refused; that
 * takes a moment. */
static void end_by_force(struct fs *fs)
{
	fs->error = -EINTR;
	if (fs->forced || !fs_inval_running(fs)) {
		stop(fs);
		return;
	}
	fs->forced = true;
	fs->grace.fire = pages_took_too_long;
	loop_timer_set(fs->loop, &fs->grace, GIVE_UP_NS);
}

void fs_end(struct fs *fs)
{
	switch (fs->state) {
	case FS_SERVING:
		log_msg(fs->log, LOG_LVL_INFO, "ending");
		leave(fs);
		break;
	case FS_LEAVING:
		begin_ending(fs);
		break;
	case FS_ENDING:
		log_msg(fs->log, LOG_LVL_WARN,
			"ended at once: what was not written is lost");
		end_by_force(fs);
		break;
	case FS_ENDED:
		break;
	}
}
