/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "fs.h"

/* cp and others write this much at a time. */
#define BLOCK_SIZE (1 << 20)

#define ROOT FUSE_ROOT_ID

static size_t ino_bucket(fuse_ino_t ino)
{
	return ino % INODE_BUCKETS;
}

static size_t image_bucket(const struct image *image)
{
	/* The low bits are those of the allocator. */
	return ((uintptr_t)image >> 6) % INODE_BUCKETS;
}

static struct timespec wall_clock(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME_COARSE, &ts);
	return ts;
}

bool fs_inode_read_only(const struct fs_inode *inode)
{
	return inode->fs->opts->engine.read_only ||
	       image_read_only(inode->image);
}

static struct fs_inode *inode_new(struct fs *fs, fuse_ino_t ino,
				  struct image *image)
{
	struct fs_inode *inode = calloc(1, sizeof(*inode));

	if (!inode)
		return NULL;
	inode->fs = fs;
	inode->ino = ino;
	inode->listed = true;
	inode->uid = fs->opts->uid;
	inode->gid = fs->opts->gid;
	inode->mode = 0755;
	if (image) {
		inode->image = image_ref(image);
		inode->mode = fs_inode_read_only(inode) ? 0400 : 0600;
	}
	inode->mode &= ~fs->opts->umask;
	inode->atime = inode->mtime = inode->ctime = wall_clock();
	LIST_INIT(&inode->files);
	LIST_INSERT_HEAD(&fs->inodes.by_ino[ino_bucket(ino)], inode, by_ino);
	if (image)
		LIST_INSERT_HEAD(&fs->inodes.by_image[image_bucket(image)],
				 inode, by_image);
	return inode;
}

static void inode_free(struct fs_inode *inode)
{
	LIST_REMOVE(inode, by_ino);
	if (inode->image) {
		LIST_REMOVE(inode, by_image);
		image_unref(inode->image);
	}
	free(inode->drop);
	free(inode);
}

/* Attributes live as long as the file is listed. */
static void free_if_unused(struct fs_inode *inode)
{
	if (!inode->listed && !inode->refs && !inode->nlookup)
		inode_free(inode);
}

struct fs_inode *fs_inode_find(struct fs *fs, fuse_ino_t ino)
{
	struct fs_inode *inode;

	LIST_FOREACH(inode, &fs->inodes.by_ino[ino_bucket(ino)], by_ino) {
		if (inode->ino == ino)
			return inode;
	}
	return NULL;
}

struct fs_inode *fs_inode_of(struct fs *fs, struct image *image)
{
	struct fs_inode *inode;

	LIST_FOREACH(inode, &fs->inodes.by_image[image_bucket(image)],
		     by_image) {
		if (inode->image == image) {
			inode->listed = true;
			return inode;
		}
	}
	/* Numbers are not used twice, so that they need no generation. */
	inode = inode_new(fs, fs->inodes.last + 1, image);
	if (inode)
		fs->inodes.last++;
	return inode;
}

struct fs_inode *fs_inode_get(struct fs_inode *inode)
{
	inode->refs++;
	return inode;
}

void fs_inode_put(struct fs_inode *inode)
{
	inode->refs--;
	free_if_unused(inode);
}

void fs_inode_forget(struct fs_inode *inode, uint64_t nlookup)
{
	inode->nlookup -= min_u64(nlookup, inode->nlookup);
	free_if_unused(inode);
}

void fs_inodes_sweep(struct fs *fs)
{
	struct fs_inode *inode, *next;
	struct image *image;
	size_t i;

	for (i = 0; i < INODE_BUCKETS; i++)
		LIST_FOREACH(inode, &fs->inodes.by_image[i], by_image)
			inode->listed = inode->ino == ROOT;
	for (image = catalog_next(fs->catalog, NULL); image;
	     image = catalog_next(fs->catalog, image)) {
		LIST_FOREACH(inode, &fs->inodes.by_image[image_bucket(image)],
			     by_image)
			inode->listed |= inode->image == image;
	}
	for (i = 0; i < INODE_BUCKETS; i++) {
		for (inode = LIST_FIRST(&fs->inodes.by_ino[i]); inode;
		     inode = next) {
			next = LIST_NEXT(inode, by_ino);
			free_if_unused(inode);
		}
	}
}

int fs_inodes_init(struct fs *fs, bool single_file)
{
	struct image *image = NULL;
	struct fs_inode *root;
	size_t i;

	for (i = 0; i < INODE_BUCKETS; i++) {
		LIST_INIT(&fs->inodes.by_ino[i]);
		LIST_INIT(&fs->inodes.by_image[i]);
	}
	fs->inodes.last = ROOT;
	if (single_file)
		image = catalog_next(fs->catalog, NULL);
	root = inode_new(fs, ROOT, image);
	if (!root)
		return -ENOMEM;
	/* The kernel knows it from the start, and never forgets it. */
	fs_inode_get(root);
	return 0;
}

void fs_inodes_free(struct fs *fs)
{
	struct fs_inode *inode;
	size_t i;

	for (i = 0; i < INODE_BUCKETS; i++) {
		while ((inode = LIST_FIRST(&fs->inodes.by_ino[i])))
			inode_free(inode);
	}
}

/* ------------------------------------------------------------- attributes */

void fs_inode_stat(const struct fs_inode *inode, struct stat *st)
{
	*st = (struct stat){
		.st_ino = inode->ino,
		.st_mode = (inode->image ? S_IFREG : S_IFDIR) | inode->mode,
		.st_nlink = inode->image ? 1 : 2,
		.st_uid = inode->uid,
		.st_gid = inode->gid,
		.st_blksize = inode->image ? BLOCK_SIZE : 4096,
		.st_atim = inode->atime,
		.st_mtim = inode->mtime,
		.st_ctim = inode->ctime,
	};
	if (!inode->image)
		return;
	st->st_size = (off_t)image_size(inode->image);
	st->st_blocks = (blkcnt_t)image_blocks(inode->image);
}

/* A file's blocks change while it is scanned, and du is to tell the truth; the
 * folder's attributes change through the kernel alone, which asks for them at
 * every look-up otherwise. */
double fs_inode_timeout(const struct fs_inode *inode)
{
	return inode->image ? 0 : 1;
}

void fs_inode_modified(struct fs_inode *inode)
{
	inode->mtime = inode->ctime = wall_clock();
	inode->mtime_given = false;
}
