/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Pages that the kernel keeps of a file: of mappings, and of all reads with
 * --cache=kernel.
 *
 * Making the kernel drop its pages waits for those of them that are dirty, and
 * those are written through the loop: so a helper thread does it. It touches
 * only the constant part of a struct fs_inval, and the session, which libfuse
 * guards by itself.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "fs.h"

/* While a truncation is not answered, the kernel holds dirty pages back. What
 * waits for them must not be waited for longer than this. */
#define HELD_NS (20 * NS_PER_MS)

/* Parts of a truncated range in which pages are known to be new, at most. */
#define MAX_FRESH 256

struct fs_inval {
	struct work work;
	/* Constant while a helper has it. */
	struct fuse_session *se;
	fuse_ino_t ino;
	off_t from, len; /* pages from here on; 0: all, */
	off_t size;	 /* or see grow() */
	/* The loop's. */
	struct fs_inode *inode;
	struct fs_req *r; /* waits; or NULL */
	bool truncation;  /* ends with this */
	atomic_bool begun;
	unsigned idle; /* see spared_long_enough() */
};

/* Between truncate(2) and the end of the invalidation that it causes. */
struct fs_drop {
	unsigned truncations; /* whose end has not come */
	uint64_t from;	      /* from here on, pages are older */
	unsigned nfresh;
	struct {
		uint64_t start, end; /* but not in here */
	} fresh[MAX_FRESH];
};

static void drop_end(struct fs_inode *inode);

/* --------------------------------------------------------------- helpers */

static void drop_pages(struct work *w)
{
	struct fs_inval *v = container_of(w, struct fs_inval, work);

	atomic_store(&v->begun, true);
	/* ENOENT: the kernel has forgotten the inode, and so its pages. */
	fuse_lowlevel_notify_inval_inode(v->se, v->ino, v->from, v->len);
}

/*
 * Makes the kernel believe that the file is a byte longer, by storing that byte
 * in its cache. When the answer to SETATTR then gives the true size, the kernel
 * sees a file that has become shorter, and drops all its pages before
 * truncate(2) returns; without this it sees no change and drops nothing. A
 * program that truncates and then writes by a mapping thus never has new bytes
 * among old ones in one page.
 */
static void grow(struct work *w)
{
	struct fs_inval *v = container_of(w, struct fs_inval, work);
	struct fuse_bufvec byte = FUSE_BUFVEC_INIT(1);
	char zero = 0;

	atomic_store(&v->begun, true);
	byte.buf[0].mem = &zero;
	fuse_lowlevel_notify_store(v->se, v->ino, v->size, &byte, 0);
}

static void helper_done(struct work *w)
{
	struct fs_inval *v = container_of(w, struct fs_inval, work);
	struct fs_inode *inode = v->inode;
	struct fs *fs = inode->fs;
	struct fs_req *r = v->r;

	fs->invals--;
	fs->ranges -= v->len > 0;
	if (v->truncation)
		drop_end(inode);
	free(v);
	if (r) {
		r->inval = NULL;
		loop_timer_cancel(fs->loop, &r->timer);
		r->then(r);
	}
	fs_inode_put(inode);
	if (fs->state == FS_ENDING)
		fs_end_check(fs);
}

static struct fs_inval *inval_new(struct fs_inode *inode, struct fs_req *r)
{
	struct fs_inval *v = calloc(1, sizeof(*v));

	if (!v)
		return NULL;
	v->work.fn = drop_pages;
	v->work.done = helper_done;
	v->se = inode->fs->se;
	v->ino = inode->ino;
	v->inode = fs_inode_get(inode);
	v->r = r;
	if (r)
		r->inval = v;
	return v;
}

static void inval_run(struct fs_inval *v, struct workers *pool)
{
	v->inode->fs->invals++;
	v->inode->fs->ranges += v->len > 0;
	workers_run(pool, &v->work);
}

void fs_inval_start(struct fs_inode *inode)
{
	struct fs_inval *v = inval_new(inode, NULL);

	if (v)
		inval_run(v, inode->fs->helpers);
}

int fs_inval_wait(struct fs_req *r, void (*then)(struct fs_req *r))
{
	struct fs_inval *v = inval_new(r->inode, r);

	if (!v)
		return -ENOMEM;
	r->then = then;
	inval_run(v, r->fs->helpers);
	return 0;
}

/*
 * The kernel drops pages before it writes past them, and afterwards only where
 * somebody waits for the write. After one of asynchronous I/O a page that was
 * read meanwhile would stay as it was before.
 */
int fs_inval_range(struct fs_req *r, uint64_t offset, uint64_t len,
		   void (*then)(struct fs_req *r))
{
	struct fs_inval *v = inval_new(r->inode, r);

	if (!v)
		return -ENOMEM;
	v->from = (off_t)offset;
	v->len = (off_t)len;
	r->then = then;
	inval_run(v, v->inode->fs->helpers);
	return 0;
}

/* While pages are being written it is not the page of this request that is
 * waited for. */
static void spared_long_enough(struct loop_timer *t)
{
	struct fs_req *r = container_of(t, struct fs_req, timer);
	struct fs_inval *v = r->inval;

	if (!atomic_load(&v->begun) || r->inode->page_writes)
		v->idle = 0;
	else
		v->idle++;
	if (v->idle < 3) {
		loop_timer_set(r->fs->loop, t, HELD_NS);
		return;
	}
	fs_inval_detach(r);
	r->then(r);
}

/*
 * After a buffered write that failed, or was cut short, the kernel believes
 * none of the pages that it was for, also where they hold what was written by
 * a mapping and is nowhere else yet: so that is written before.
 */
int fs_inval_spare(struct fs_req *r, uint64_t offset, uint64_t len,
		   void (*then)(struct fs_req *r))
{
	int error = fs_inval_range(r, offset, len, then);

	if (error)
		return error;
	r->timer.fire = spared_long_enough;
	loop_timer_set(r->fs->loop, &r->timer, HELD_NS);
	return 0;
}

void fs_inval_detach(struct fs_req *r)
{
	r->inval->r = NULL;
	r->inval = NULL;
}

unsigned fs_inval_running(const struct fs *fs)
{
	return fs->invals;
}

bool fs_inval_sweeps(const struct fs *fs)
{
	return fs->invals > fs->ranges;
}

/* ----------------------------------------------------------- truncation */

int fs_drop_begin(struct fs_inode *inode, uint64_t from)
{
	struct fs_drop *d = inode->drop;

	if (!d) {
		d = malloc(sizeof(*d));
		if (!d)
			return -ENOMEM;
		inode->drop = d;
		d->truncations = 0;
		d->from = from;
	}
	d->truncations++;
	d->from = min_u64(d->from, from);
	/* All that is in the cache now is old again. */
	d->nfresh = 0;
	return 0;
}

static void drop_end(struct fs_inode *inode)
{
	if (--inode->drop->truncations > 0)
		return;
	free(inode->drop);
	inode->drop = NULL;
}

void fs_drop_end(struct fs_inode *inode)
{
	drop_end(inode);
}

static void held_too_long(struct loop_timer *t)
{
	struct fs_req *r = container_of(t, struct fs_req, timer);

	/* Dirty pages that are written before a helper comes to it would be
	 * taken for old ones. */
	if (!atomic_load(&r->inval->begun)) {
		loop_timer_set(r->fs->loop, t, HELD_NS);
		return;
	}
	fs_inval_detach(r);
	r->then(r);
}

void fs_drop_pages(struct fs_req *r, void (*then)(struct fs_req *r))
{
	uint64_t size = image_size(r->inode->image);
	struct fs_inval *v = inval_new(r->inode, r);

	r->then = then;
	if (!v) {
		then(r);
		return;
	}
	/* The last size that there is has none above it. */
	if (size < INT64_MAX) {
		v->work.fn = grow;
		v->size = (off_t)size;
	}
	r->timer.fire = held_too_long;
	loop_timer_set(r->fs->loop, &r->timer, HELD_NS);
	/* The other helpers may all be waiting for pages that are held back
	 * until truncations have been answered. These have begun soon. */
	inval_run(v, r->fs->growers);
}

void fs_drop_answered(struct fs_inode *inode)
{
	struct fs_inval *v = inval_new(inode, NULL);

	if (!v) {
		drop_end(inode);
		return;
	}
	/* Not those before: into a page of a mapping somebody may just be
	 * reading, with the file itself as the source, and the kernel would
	 * drop the page under that read. */
	v->from =
		(off_t)align_down(min_u64(inode->drop->from, INT64_MAX), 4096);
	v->truncation = true;
	inval_run(v, inode->fs->helpers);
}

void fs_drop_touch(struct fs_inode *inode, uint64_t offset, uint64_t len)
{
	struct fs_drop *d = inode->drop;
	uint64_t start = align_down(offset, 4096);
	uint64_t end = align_up(offset + len, 4096);
	unsigned i, n;

	if (!d || end <= d->from)
		return;
	/* Merges what it overlaps or touches. */
	for (i = 0; i < d->nfresh && d->fresh[i].end < start; i++)
		;
	for (n = i; n < d->nfresh && d->fresh[n].start <= end; n++) {
		start = min_u64(start, d->fresh[n].start);
		end = max_u64(end, d->fresh[n].end);
	}
	if (n == i && d->nfresh == MAX_FRESH)
		return;
	memmove(&d->fresh[i + 1], &d->fresh[n],
		(d->nfresh - n) * sizeof(d->fresh[0]));
	d->nfresh = d->nfresh - (n - i) + 1;
	d->fresh[i].start = start;
	d->fresh[i].end = end;
}

bool fs_drop_keep(const struct fs_inode *inode, uint64_t *offset, uint64_t *end)
{
	const struct fs_drop *d = inode->drop;
	unsigned i;

	if (!d || *offset >= *end)
		return *offset < *end;
	if (*offset < d->from) {
		*end = min_u64(*end, d->from);
		return true;
	}
	for (i = 0; i < d->nfresh; i++) {
		if (d->fresh[i].end <= *offset)
			continue;
		*offset = max_u64(*offset, d->fresh[i].start);
		*end = min_u64(*end, d->fresh[i].end);
		return *offset < *end;
	}
	return false;
}
