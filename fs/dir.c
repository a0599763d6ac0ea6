/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The folder: names, listings, and how they follow the servers. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "fs.h"

/* A server that does not answer must not hold up a listing longer. */
#define REFRESH_WAIT_NS (2 * NS_PER_S)
/* Nor is it asked again sooner, whatever came of it. */
#define REFRESH_PAUSE_NS NS_PER_S

/* "." and ".." come first. */
#define DOTS 2

/* An open folder: what was in it when it was last read from the start. */
struct fs_dir {
	struct fs_inode **list;
	size_t count;
	bool begun;
};

/* ---------------------------------------------------------------- refresh */

static void go_on(struct fs_req *r)
{
	TAILQ_REMOVE(&r->fs->refresh.waiting, r, refresh);
	r->refreshing = false;
	loop_timer_cancel(r->fs->loop, &r->timer);
	r->then(r);
}

static void refreshed(struct catalog_wait *w)
{
	struct fs_refresh *re = container_of(w, struct fs_refresh, wait);
	struct fs *fs = container_of(re, struct fs, refresh);
	struct fs_req *r;

	re->running = false;
	re->not_before = loop_now(fs->loop) + REFRESH_PAUSE_NS;
	fs_inodes_sweep(fs);
	while ((r = TAILQ_FIRST(&re->waiting)))
		go_on(r);
}

static void waited_enough(struct loop_timer *t)
{
	go_on(container_of(t, struct fs_req, timer));
}

void fs_refresh(struct fs_req *r, void (*then)(struct fs_req *r))
{
	struct fs *fs = r->fs;
	struct fs_refresh *re = &fs->refresh;
	uint64_t now = loop_now(fs->loop);
	bool start = !re->running && catalog_stale(fs->catalog) &&
		     now >= re->not_before && fs->state == FS_SERVING;

	if (start)
		re->began = now;
	if ((!start && !re->running) || now - re->began >= REFRESH_WAIT_NS) {
		then(r);
		return;
	}
	r->then = then;
	r->refreshing = true;
	TAILQ_INSERT_TAIL(&re->waiting, r, refresh);
	r->timer.fire = waited_enough;
	loop_timer_set(fs->loop, &r->timer, re->began + REFRESH_WAIT_NS - now);
	if (start) {
		re->running = true;
		re->wait.done = refreshed;
		catalog_refresh(fs->catalog, &re->wait);
	}
}

/* ----------------------------------------------------------------- lookup */

static void look_up(struct fs_req *r)
{
	struct image *image = catalog_find(r->fs->catalog, r->u.dir.name);
	struct fs_inode *inode = NULL;

	if (image)
		inode = fs_inode_of(r->fs, image);
	if (!inode)
		fs_answer(r, image ? -ENOMEM : -ENOENT);
	else if (fs_answer_entry(r, inode))
		inode->nlookup++;
	free(r->u.dir.name);
	fs_req_free(r);
}

static void start_lookup(struct fs_req *r)
{
	if (catalog_find(r->fs->catalog, r->u.dir.name))
		look_up(r);
	else
		fs_refresh(r, look_up);
}

void fs_op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fs *fs = fs_of(req);
	struct fs_inode *root = fs_inode_find(fs, parent);
	struct fs_req *r;

	if (!root || root->image) {
		fuse_reply_err(req, root ? ENOTDIR : ESTALE);
		return;
	}
	r = fs_req_new(fs, req, root, NULL);
	if (!r)
		return;
	r->u.dir.name = strdup(name);
	if (r->u.dir.name)
		fs_req_start(r, start_lookup, fs_req_detach);
	else
		fs_finish(r, -ENOMEM);
}

/* --------------------------------------------------------------- listings */

static void dir_clear(struct fs_dir *dir)
{
	size_t i;

	for (i = 0; i < dir->count; i++)
		fs_inode_put(dir->list[i]);
	free(dir->list);
	dir->list = NULL;
	dir->count = 0;
}

/* Offsets into a listing are places in this list, which does not change. */
static int dir_fill(struct fs *fs, struct fs_dir *dir)
{
	size_t max = catalog_count(fs->catalog);
	struct image *image = NULL;
	struct fs_inode *inode;

	dir_clear(dir);
	dir->list = calloc(max + 1, sizeof(struct fs_inode *));
	if (!dir->list)
		return -ENOMEM;
	while (dir->count < max && (image = catalog_next(fs->catalog, image))) {
		inode = fs_inode_of(fs, image);
		if (!inode)
			return -ENOMEM;
		dir->list[dir->count++] = fs_inode_get(inode);
	}
	dir->begun = false;
	return 0;
}

static void dir_free(struct fs_dir *dir)
{
	dir_clear(dir);
	free(dir);
}

static void open_dir(struct fs_req *r)
{
	struct fs_dir *dir = calloc(1, sizeof(*dir));
	struct fuse_file_info fi = { .fh = (uintptr_t)dir };
	int error = dir ? dir_fill(r->fs, dir) : -ENOMEM;

	if (error)
		fs_answer(r, error);
	if (error || !fs_answer_open(r, &fi)) {
		if (dir)
			dir_free(dir);
	}
	fs_req_free(r);
}

static void start_opendir(struct fs_req *r)
{
	fs_refresh(r, open_dir);
}

void fs_op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct fs *fs = fs_of(req);
	struct fs_inode *root = fs_inode_find(fs, ino);
	struct fs_req *r;

	(void)fi;
	if (!root || root->image) {
		fuse_reply_err(req, root ? ENOTDIR : ESTALE);
		return;
	}
	r = fs_req_new(fs, req, root, NULL);
	if (r)
		fs_req_start(r, start_opendir, fs_req_detach);
}

/* Adds the entry at `index`: how much room it took, 0 at the end, or more than
 * there is. */
static size_t add_entry(fuse_req_t req, const struct fs_dir *dir, char *to,
			size_t room, size_t index)
{
	const char *name = index == 0 ? "." : "..";
	struct stat st = { .st_ino = FUSE_ROOT_ID, .st_mode = S_IFDIR };

	if (index >= DOTS) {
		if (index - DOTS >= dir->count)
			return 0;
		name = image_name(dir->list[index - DOTS]->image);
		st.st_ino = dir->list[index - DOTS]->ino;
		st.st_mode = S_IFREG;
	}
	return fuse_add_direntry(req, to, room, name, &st, (off_t)index + 1);
}

void fs_op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		   struct fuse_file_info *fi)
{
	struct fs_dir *dir = (struct fs_dir *)(uintptr_t)fi->fh;
	struct fs *fs = fs_of(req);
	size_t used = 0, n, index = (size_t)off;
	struct buf *buf;

	(void)ino;
	size = (size_t)min_u64(size, 1 * MiB);
	buf = buf_get(engine_pool(fs->engine), size);
	/* rewinddir(3): what there is now. */
	if (!buf || (off == 0 && dir->begun && dir_fill(fs, dir) < 0)) {
		buf_put(buf);
		fuse_reply_err(req, ENOMEM);
		return;
	}
	dir->begun = true;
	for (; off >= 0; index++) {
		n = add_entry(req, dir, (char *)buf->data + used, size - used,
			      index);
		if (n == 0 || n > size - used)
			break;
		used += n;
	}
	fuse_reply_buf(req, (const char *)buf->data, used);
	buf_put(buf);
}

void fs_op_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	(void)ino;
	dir_free((struct fs_dir *)(uintptr_t)fi->fh);
	fuse_reply_err(req, 0);
}
