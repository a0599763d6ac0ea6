/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * fs.h - what the parts of the file system share.
 *
 * Units      bytes; nanoseconds of CLOCK_MONOTONIC.
 * Ownership  inodes and files are counted: the kernel, requests and open
 *            folders hold them. A request (struct fs_req) is freed by who
 *            answers it, or by what it waits for when it was answered early.
 * Threads    everything here belongs to the loop's thread. Only inval.c and
 *            end.c run something on helper threads, and say what.
 * Errors     0 or -errno.
 */
#ifndef NBDFS_FS_H
#define NBDFS_FS_H

#ifndef FUSE_USE_VERSION
#define FUSE_USE_VERSION 312
#endif
#include <fuse_lowlevel.h>
#include <sys/queue.h>
#include <time.h>

#include "blockdev.h"
#include "copy.h"
#include "engine.h"
#include "options.h"
#include "util.h"

struct fs;
struct fs_req;
struct fs_drop;
struct fs_mounted;

/* ----------------------------------------------------------------- inodes */

/* A file, or the folder they are in (image is NULL then). */
struct fs_inode {
	struct fs *fs;
	fuse_ino_t ino;
	struct image *image;
	uint64_t nlookup; /* how often the kernel knows it */
	unsigned refs;	  /* of requests, open files, folders */
	bool listed;	  /* the catalog has it */
	mode_t mode;	  /* permissions only */
	uid_t uid;
	gid_t gid;
	struct timespec atime, mtime, ctime;
	bool mtime_given; /* by utimens, nothing written since */
	unsigned writers; /* open files that may write */
	LIST_HEAD(, fs_file) files;
	struct fs_drop *drop; /* see inval.c; NULL mostly */
	bool paged;	      /* the kernel may have pages of it */
	unsigned page_writes; /* of them, on their way */
	LIST_ENTRY(fs_inode) by_ino, by_image;
};

/* An open file: what the kernel calls fh. */
struct fs_file {
	struct fs_inode *inode;
	struct handle *handle;
	int flags; /* of open(2) */
	bool writer;
	bool direct; /* its reads and writes go past the kernel's pages */
	bool wrote;  /* something that close must see to */
	bool released;
	unsigned refs;		  /* the kernel's and requests' */
	LIST_ENTRY(fs_file) link; /* inode's */
};

#define INODE_BUCKETS 1024

struct fs_inodes {
	LIST_HEAD(, fs_inode) by_ino[INODE_BUCKETS];
	LIST_HEAD(, fs_inode) by_image[INODE_BUCKETS];
	fuse_ino_t last;
};

/* inode.c */
int fs_inodes_init(struct fs *fs, bool single_file);
void fs_inodes_free(struct fs *fs);
/* NULL where the kernel asks for what it has forgotten. */
struct fs_inode *fs_inode_find(struct fs *fs, fuse_ino_t ino);
/* Of an image of the catalog; made when needed. NULL without memory. */
struct fs_inode *fs_inode_of(struct fs *fs, struct image *image);
struct fs_inode *fs_inode_get(struct fs_inode *inode);
void fs_inode_put(struct fs_inode *inode);
void fs_inode_forget(struct fs_inode *inode, uint64_t nlookup);
/* After the catalog was listed again: lets go of what is gone. */
void fs_inodes_sweep(struct fs *fs);
bool fs_inode_read_only(const struct fs_inode *inode);
void fs_inode_stat(const struct fs_inode *inode, struct stat *st);
double fs_inode_timeout(const struct fs_inode *inode);
/* The contents change now. */
void fs_inode_modified(struct fs_inode *inode);

/* file.c */
struct fs_file *fs_file_get(struct fs_file *file);
/* The last one closes the handle. */
void fs_file_put(struct fs_file *file);
/* An open file of the inode that may write; NULL if there is none. */
struct fs_file *fs_file_writer(struct fs_inode *inode);
/* Gives up everything that is still open, at the end of the mount. */
void fs_files_abandon(struct fs *fs);

static inline struct fs_file *fs_file_of(const struct fuse_file_info *fi)
{
	return (struct fs_file *)(uintptr_t)fi->fh;
}

/* --------------------------------------------------------------- requests */

struct fs_copy;
struct fs_inval;

struct fs_req_open {
	struct open_req o;
	struct fs_file *file; /* not open yet */
};

/* Writes what is left of a request in pieces: see inval.c. */
struct fs_req_write {
	struct image_write w;
	uint64_t pos, end; /* still to be written */
	uint64_t start;
	const uint8_t *data; /* of the byte at start */
	struct buf *buf;     /* holds data, or NULL */
	uint32_t count;	     /* for the answer, */
	uint32_t asked;	     /* and what was asked for */
	unsigned flags;
	int error;
	bool page; /* the kernel writes a page */
};

struct fs_req_setattr {
	union {
		struct open_req open;
		struct image_zero zero;
		struct image_sync sync;
	} u;
	struct handle *handle; /* opened for this alone */
	uint64_t size;	       /* asked for */
	struct stat attr;
	int to_set;
	int error;
};

struct fs_req_dir {
	char *name; /* looked up; its own */
};

struct fs_req {
	fuse_req_t req; /* NULL: has been answered */
	struct fs *fs;
	struct fs_inode *inode;
	struct fs_file *file;
	/* Ends the wait of a request that was interrupted: answers it, or
	 * makes what it waits for end. */
	void (*give_up)(struct fs_req *r);
	bool prompt; /* at once, not after patience */
	bool interrupted;
	bool *freed; /* set when this is freed */
	uint64_t interrupted_at;
	void (*then)(struct fs_req *r); /* what goes on after a wait */
	struct loop_timer timer;
	struct loop_task task;
	struct fs_inval *inval;	     /* what it waits for */
	TAILQ_ENTRY(fs_req) link;    /* active; or free */
	TAILQ_ENTRY(fs_req) wait;    /* interrupted */
	TAILQ_ENTRY(fs_req) refresh; /* waits for the catalog */
	bool refreshing;
	union {
		struct image_op op; /* the first of each below */
		struct image_read read;
		struct image_zero zero;
		struct image_seek seek;
		struct image_sync sync;
		struct fs_req_write write;
		struct fs_req_open open;
		struct fs_req_setattr setattr;
		struct fs_req_dir dir;
		struct fs_copy *copy;
	} u;
};
TAILQ_HEAD(fs_req_list, fs_req);

struct fs_reqs {
	struct fs_req_list active, free, interrupted;
	size_t nfree;
	struct loop_timer patience;
};

/* xattr.c: user.nbd.*, which describe an export */
void fs_op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name,
		    size_t size);
void fs_op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size);
/* Logs the statistics of all files. */
void fs_log_stats(struct fs *fs);

/* list.c: prints what the sources offer. An exit status. */
int fs_list(struct fs_options *opts);

/* signals.c: true if the thread has a signal pending that asks it to end, or
 * if that cannot be known. *dying: it ends without a chance to say no. */
bool fs_signals_end(pid_t tid, bool *dying);

/* reply.c */
void fs_reqs_init(struct fs *fs);
void fs_reqs_free(struct fs *fs);
/* Answers ENOMEM itself when it returns NULL. */
struct fs_req *fs_req_new(struct fs *fs, fuse_req_t req, struct fs_inode *inode,
			  struct fs_file *file);
void fs_req_free(struct fs_req *r);
/* Runs `start`, which submits or answers; arranges for an interrupt where the
 * request is still waiting after it. */
void fs_req_start(struct fs_req *r, void (*start)(struct fs_req *r),
		  void (*give_up)(struct fs_req *r));
/* For give_up: cancels u.op; answers EINTR and lets the rest go on. */
void fs_req_cancel_op(struct fs_req *r);
void fs_req_detach(struct fs_req *r);
/* At the end of the mount: nobody waits any more. */
void fs_reqs_abandon(struct fs *fs);
/* The errno (positive) that a program sees for an error of the engine. */
int fs_errno(int error);
/* Each answers, unless that was done, and leaves the request to be freed. */
void fs_answer(struct fs_req *r, int error);
void fs_answer_attr(struct fs_req *r);
void fs_answer_count(struct fs_req *r, size_t count);
void fs_answer_offset(struct fs_req *r, uint64_t offset);
void fs_answer_data(struct fs_req *r, struct iovec *iov, int niov);
/* False if the kernel did not take it: nothing will be released. */
bool fs_answer_buf(struct fs_req *r, const void *data, size_t len);
bool fs_answer_entry(struct fs_req *r, struct fs_inode *inode);
bool fs_answer_open(struct fs_req *r, const struct fuse_file_info *fi);
/* Answers and frees. */
void fs_finish(struct fs_req *r, int error);

/* ------------------------------------------------------------------ pages */

/* inval.c: pages that the kernel has of a file.
 *
 * Has a helper write out and drop all pages of the file, then calls `then`,
 * unless fs_inval_detach() gives the wait up. -ENOMEM: there is none. */
int fs_inval_wait(struct fs_req *r, void (*then)(struct fs_req *r));
void fs_inval_detach(struct fs_req *r);
/* The same of the pages of a range that has been written past them. */
int fs_inval_range(struct fs_req *r, uint64_t offset, uint64_t len,
		   void (*then)(struct fs_req *r));
/* The same of pages that the kernel is writing through, which it may hold on to
 * until the answer: does not wait for those. */
int fs_inval_spare(struct fs_req *r, uint64_t offset, uint64_t len,
		   void (*then)(struct fs_req *r));
/* The same without anybody waiting. */
void fs_inval_start(struct fs_inode *inode);
unsigned fs_inval_running(const struct fs *fs);
/* True if pages are being written because all are to be seen. */
bool fs_inval_sweeps(const struct fs *fs);
/* A truncation to `from` begins: from now on what the kernel writes from its
 * pages beyond `from` is older than it. -ENOMEM. */
int fs_drop_begin(struct fs_inode *inode, uint64_t from);
/* The zeroes are marked: makes the kernel drop its pages before truncate(2)
 * returns, then calls r->then. The caller answers in it and then calls
 * fs_drop_answered(). */
void fs_drop_pages(struct fs_req *r, void (*then)(struct fs_req *r));
void fs_drop_answered(struct fs_inode *inode);
/* Nothing was truncated after all. */
void fs_drop_end(struct fs_inode *inode);
/* A program reads or writes here: pages that come later are new. */
void fs_drop_touch(struct fs_inode *inode, uint64_t offset, uint64_t len);
/* The first piece of [*offset, end) to be kept: false if there is none. */
bool fs_drop_keep(const struct fs_inode *inode, uint64_t *offset,
		  uint64_t *end);

/* --------------------------------------------------------------- catalog */

struct fs_refresh {
	struct catalog_wait wait;
	struct fs_req_list waiting;
	bool running;
	uint64_t began;	     /* the last one */
	uint64_t not_before; /* asks no sooner again */
};

/* dir.c: goes on with r->then, when the catalog is fresh enough. */
void fs_refresh(struct fs_req *r, void (*then)(struct fs_req *r));

/* --------------------------------------------------------------- session */

enum fs_state {
	FS_SERVING,
	FS_LEAVING, /* is being unmounted, still serves */
	FS_ENDING,  /* answers EIO to all that comes */
	FS_ENDED,
};

struct fs {
	struct loop *loop;
	struct engine *engine;
	struct catalog *catalog;
	struct workers *helpers; /* for what waits for the kernel */
	struct workers *growers; /* the same, for truncations alone */
	const struct fs_options *opts;
	const struct log *log;

	/* session.c */
	struct fuse_session *se;
	const char *mountpoint;	  /* absolute */
	struct loop_watch watch;  /* of /dev/fuse */
	struct loop_timer memory; /* tries again to get a buffer */
	struct buf *rx;		  /* what the present request is in */
	bool mounted;		  /* requests are read */
	bool init_seen;
	bool direct_mmap;		  /* direct I/O and shared mappings */
	uint64_t init_unique;		  /* answer to be changed; 0: none */
	uint32_t init_flags, init_flags2; /* to be added to its answer */
	bool killpriv; /* the kernel need not ask at each write */

	struct fs_inodes inodes;
	struct fs_reqs reqs;
	struct fs_refresh refresh;
	unsigned invals; /* running, see inval.c; */
	unsigned ranges; /* of them, those of a range */
	unsigned copies; /* not freed yet, see copyrange.c */

	/* end.c */
	enum fs_state state;
	struct loop_timer grace;
	struct work unmount;
	bool unmount_failed; /* the helper's while it runs */
	uint64_t leaving_since;
	bool unmounting;	       /* `unmount` runs */
	bool detached;		       /* the mount point is not ours now */
	bool shutting_down, shut_down; /* the catalog is, has been */
	bool can_free;		       /* the engine is at rest */
	bool forced;		       /* nothing is waited for but pages */
	int error;		       /* what to end with */
};

/* session.c
 *
 * fs.loop, engine, catalog, opts, log and mountpoint are set, the rest is
 * zero. After a failure fs_free() gives up what there is. */
int fs_session_mount(struct fs *fs, struct error *err);
void fs_session_stop_reading(struct fs *fs);
void fs_session_unmount(struct fs *fs);
void fs_session_free(struct fs *fs);

/* end.c */
/* Somebody wants it to end. The second time it ends without waiting. */
void fs_end(struct fs *fs);
/* The kernel has gone. */
void fs_unmounted(struct fs *fs);
/* Something has ended that the end waits for. */
void fs_end_check(struct fs *fs);

/* The operations; `userdata` is the struct fs. */
extern const struct fuse_lowlevel_ops fs_ops;

static inline struct fs *fs_of(fuse_req_t req)
{
	return fuse_req_userdata(req);
}

/* io.c, space.c, setattr.c, copyrange.c, dir.c, file.c */
void fs_op_init(void *userdata, struct fuse_conn_info *conn);
void fs_op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		struct fuse_file_info *fi);
void fs_op_write(fuse_req_t req, fuse_ino_t ino, const char *data, size_t size,
		 off_t off, struct fuse_file_info *fi);
void fs_op_lseek(fuse_req_t req, fuse_ino_t ino, off_t off, int whence,
		 struct fuse_file_info *fi);
void fs_op_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t offset,
		     off_t length, struct fuse_file_info *fi);
void fs_op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr,
		   int to_set, struct fuse_file_info *fi);
void fs_op_copy_file_range(fuse_req_t req, fuse_ino_t ino_in, off_t off_in,
			   struct fuse_file_info *fi_in, fuse_ino_t ino_out,
			   off_t off_out, struct fuse_file_info *fi_out,
			   size_t len, int flags);
void fs_op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name);
void fs_op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void fs_op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		   struct fuse_file_info *fi);
void fs_op_releasedir(fuse_req_t req, fuse_ino_t ino,
		      struct fuse_file_info *fi);
void fs_op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void fs_op_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void fs_op_fsync(fuse_req_t req, fuse_ino_t ino, int datasync,
		 struct fuse_file_info *fi);
void fs_op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);

#endif
