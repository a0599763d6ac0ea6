/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The connection to the kernel: mounting, reading requests, its end. */
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "capture.h"
#include "fs.h"

#define MAX_WRITE ((size_t)1 << 20)
/* What stands before the data of a WRITE. */
#define WRITE_HEADER \
	(sizeof(struct fuse_in_header) + sizeof(struct fuse_write_in))
/* Requests are read to a place from which the data of a WRITE begins on a
 * page: copying it on costs less then. */
#define RX_DATA ((size_t)4096)
#define RX_START (RX_DATA - WRITE_HEADER)
#define RX_SIZE (WRITE_HEADER + MAX_WRITE)

/* Requests that are taken before others on the loop get their turn. */
#define BATCH 32
#define MEMORY_RETRY_NS (10 * NS_PER_MS)
#define MAX_BACKGROUND 128

/* What this libfuse has no name for. */
#ifndef FUSE_CAP_DIRECT_IO_ALLOW_MMAP
#ifndef FUSE_INIT_EXT
#define FUSE_INIT_EXT (1 << 30)
#endif
/* Bit 36 of the flags of INIT, which is bit 4 of their second half. */
#define ALLOW_MMAP_2 (1u << 4)
#endif

/* ------------------------------------------------------------------- INIT */

void fs_op_init(void *userdata, struct fuse_conn_info *conn)
{
	struct fs *fs = userdata;
	unsigned want = FUSE_CAP_ASYNC_READ | FUSE_CAP_ASYNC_DIO |
			FUSE_CAP_PARALLEL_DIROPS;

	/* What is not wanted: ATOMIC_O_TRUNC makes the kernel believe in a
	 * size of 0; AUTO_INVAL_DATA drops all pages with each write of ours;
	 * WRITEBACK_CACHE hides data from seeks; SPLICE brings it in pipes. */
#ifdef FUSE_CAP_DIRECT_IO_ALLOW_MMAP
	want |= FUSE_CAP_DIRECT_IO_ALLOW_MMAP;
	fs->direct_mmap = conn->capable & FUSE_CAP_DIRECT_IO_ALLOW_MMAP;
#else
	fs->direct_mmap = fs->init_flags2 & ALLOW_MMAP_2;
#endif
	conn->want = conn->capable & want;
	conn->max_write = MAX_WRITE;
	conn->max_background = MAX_BACKGROUND;
	conn->congestion_threshold = MAX_BACKGROUND * 3 / 4;
}

/*
 * libfuse has no way to ask for HANDLE_KILLPRIV_V2, without which the kernel
 * sends a GETXATTR (of security.capability) with every WRITE, and before 3.16
 * none for shared mappings of files with direct I/O. The bits are put into the
 * answer to INIT on its way, where the kernel has offered them. libfuse writes
 * each answer as its header and then the rest.
 */
static bool add_init_flags(struct fs *fs, const struct iovec *iov, int count,
			   struct fuse_init_out *out)
{
	const struct fuse_out_header *h = iov[0].iov_base;

	if (count != 2 || iov[0].iov_len != sizeof(*h) ||
	    h->unique != fs->init_unique)
		return false;
	fs->init_unique = 0;
	if (h->error || iov[1].iov_len != sizeof(*out))
		return false;
	memcpy(out, iov[1].iov_base, sizeof(*out));
	out->flags |= fs->init_flags;
	out->flags2 |= fs->init_flags2;
	fs->killpriv = out->flags & FUSE_HANDLE_KILLPRIV_V2;
	return true;
}

static ssize_t io_writev(int fd, struct iovec *iov, int count, void *userdata)
{
	struct fs *fs = userdata;
	struct fuse_init_out out;
	struct iovec changed[2];

	if (fs->init_unique && add_init_flags(fs, iov, count, &out)) {
		changed[0] = iov[0];
		changed[1].iov_base = &out;
		changed[1].iov_len = sizeof(out);
		iov = changed;
	}
	return writev(fd, iov, count);
}

static ssize_t io_read(int fd, void *buf, size_t len, void *userdata)
{
	(void)userdata;
	return read(fd, buf, len);
}

static int take_over_io(struct fs *fs)
{
	const struct fuse_custom_io io = {
		.writev = io_writev,
		.read = io_read,
	};

	return fuse_session_custom_io(fs->se, &io, fuse_session_fd(fs->se));
}

/* Notes what the kernel offers before libfuse answers. */
static void watch_for_init(struct fs *fs, const void *request, size_t len)
{
	struct fuse_in_header h;
	struct fuse_init_in in = { 0 };

	memcpy(&h, request, sizeof(h));
	if (fs->init_seen || h.opcode != FUSE_INIT)
		return;
	fs->init_seen = true;
	len -= sizeof(h);
	memcpy(&in, (const char *)request + sizeof(h),
	       min_u64(len, sizeof(in)));
	fs->init_flags = in.flags & FUSE_HANDLE_KILLPRIV_V2;
#ifndef FUSE_CAP_DIRECT_IO_ALLOW_MMAP
	if (in.flags & FUSE_INIT_EXT && in.flags2 & ALLOW_MMAP_2) {
		fs->init_flags |= FUSE_INIT_EXT;
		fs->init_flags2 = ALLOW_MMAP_2;
	}
#endif
	if (fs->init_flags)
		fs->init_unique = h.unique;
}

/* --------------------------------------------------------------- requests */

/* The mount is at its end, and somebody still asks: the invalidation of pages,
 * say, which must not wait for ever. */
static void refuse(struct fs *fs, const void *request)
{
	struct fuse_out_header out = { .len = sizeof(out), .error = -EIO };
	struct fuse_in_header h;

	memcpy(&h, request, sizeof(h));
	switch (h.opcode) {
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
	case FUSE_INTERRUPT:
		return;
	case FUSE_RELEASE:
	case FUSE_RELEASEDIR:
	case FUSE_DESTROY:
		out.error = 0;
		break;
	default:
		break;
	}
	out.unique = h.unique;
	/* It may have been interrupted, or all may be over. */
	if (write(fuse_session_fd(fs->se), &out, sizeof(out)) < 0)
		log_msg(fs->log, LOG_LVL_DEBUG, "answer not taken: %s",
			strerror(errno));
}

static void process(struct fs *fs, size_t len)
{
	struct fuse_buf request = {
		.size = len,
		.mem = fs->rx->data + RX_START,
	};

	if (len < sizeof(struct fuse_in_header))
		return;
	if (fs->state == FS_ENDING) {
		refuse(fs, request.mem);
		return;
	}
	watch_for_init(fs, request.mem, len);
	fuse_session_process_buf(fs->se, &request);
	/* A write has kept it. */
	if (fs->rx->refs > 1) {
		buf_put(fs->rx);
		fs->rx = NULL;
	}
	if (fuse_session_exited(fs->se))
		fs_unmounted(fs);
}

static void memory_again(struct loop_timer *t)
{
	struct fs *fs = container_of(t, struct fs, memory);

	if (fs->mounted)
		loop_watch_set(fs->loop, &fs->watch, EPOLLIN);
}

static bool have_buffer(struct fs *fs)
{
	if (!fs->rx)
		fs->rx = buf_get(engine_pool(fs->engine), RX_DATA + MAX_WRITE);
	if (fs->rx)
		return true;
	/* What is in flight will give its own back. */
	loop_watch_set(fs->loop, &fs->watch, 0);
	loop_timer_set(fs->loop, &fs->memory, MEMORY_RETRY_NS);
	return false;
}

/* Zero or more bytes; 0 when there is nothing more to read now. */
static size_t read_request(struct fs *fs)
{
	ssize_t n;

	do {
		n = read(fs->watch.fd, fs->rx->data + RX_START, RX_SIZE);
		/* ENOENT: it was interrupted before it could be read. */
	} while (n < 0 && (errno == EINTR || errno == ENOENT));
	if (n >= 0)
		return (size_t)n;
	if (errno == EAGAIN)
		return 0;
	if (errno != ENODEV) {
		fs->error = -errno;
		log_msg(fs->log, LOG_LVL_ERROR, "/dev/fuse: %s",
			strerror(errno));
	}
	fs_unmounted(fs);
	return 0;
}

static void ready(struct loop_watch *w, uint32_t events)
{
	struct fs *fs = container_of(w, struct fs, watch);
	size_t len;
	int i;

	(void)events;
	for (i = 0; i < BATCH && fs->mounted && have_buffer(fs); i++) {
		len = read_request(fs);
		if (len == 0)
			return;
		process(fs, len);
	}
}

/* ----------------------------------------------------------------- mount */

static int add_mount_opts(const struct fs_options *o, char **list)
{
	char label[512];
	int r;

	fs_source_label(&o->sources[0], label, sizeof(label));
	r = fs_mount_opt_add(list, "default_permissions", NULL);
	if (r == 0)
		r = fs_mount_opt_add(list, "subtype", "nbdfs");
	if (r == 0 && !o->has_fsname)
		r = fs_mount_opt_add(list, "fsname", label);
	if (r == 0 && o->engine.read_only)
		r = fs_mount_opt_add(list, "ro", NULL);
	return r;
}

/* The options of the user are escaped already. */
static char *mount_opts(const struct fs_options *o)
{
	char *own = NULL, *all = NULL;

	if (add_mount_opts(o, &own) == 0) {
		if (!o->mount_opts)
			return own;
		if (asprintf(&all, "%s,%s", own, o->mount_opts) < 0)
			all = NULL;
	}
	free(own);
	return all;
}

static int session_create(struct fs *fs)
{
	struct fuse_args args = FUSE_ARGS_INIT(0, NULL);
	char *opts = mount_opts(fs->opts);
	int r = -ENOMEM;

	if (opts && fuse_opt_add_arg(&args, "nbdfs") == 0 &&
	    fuse_opt_add_arg(&args, "-o") == 0 &&
	    fuse_opt_add_arg(&args, opts) == 0 &&
	    (!fs->opts->debug || fuse_opt_add_arg(&args, "-d") == 0)) {
		fs->se = fuse_session_new(&args, &fs_ops, sizeof(fs_ops), fs);
		r = fs->se ? 0 : -EINVAL;
	}
	fuse_opt_free_args(&args);
	free(opts);
	return r;
}

/* An absolute path on which something is mounted: users may not mount there
 * again, and are told something else. */
static bool is_mount(const char *path)
{
	const char *slash = strrchr(path, '/');
	struct stat here, above;
	char *parent;
	bool is;

	if (!slash || slash == path)
		return false;
	parent = strndup(path, (size_t)(slash - path));
	is = parent && stat(path, &here) == 0 && stat(parent, &above) == 0 &&
	     here.st_dev != above.st_dev;
	free(parent);
	return is;
}

/* libfuse and fusermount3 say on stderr what is wrong. */
static int session_mount(struct fs *fs, struct error *err)
{
	struct capture cap;
	char text[256];
	int r;

	capture_begin(&cap, !fs->opts->debug);
	r = session_create(fs);
	if (r == 0 && fuse_session_mount(fs->se, fs->mountpoint) < 0)
		r = -EIO;
	capture_end(&cap, text, sizeof(text));
	if (r < 0)
		error_set(err, "cannot mount on %s: %s%s", fs->mountpoint,
			  *text ? text : strerror(-r),
			  is_mount(fs->mountpoint) ?
				  " (something is mounted there already)" :
				  "");
	return r;
}

static int watch_device(struct fs *fs)
{
	int fd = fuse_session_fd(fs->se);
	int flags = fcntl(fd, F_GETFL);

	if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
		return -errno;
	fs->watch.fd = fd;
	fs->watch.ready = ready;
	fs->memory.fire = memory_again;
	return loop_watch_add(fs->loop, &fs->watch, EPOLLIN);
}

int fs_session_mount(struct fs *fs, struct error *err)
{
	int r = session_mount(fs, err);

	if (r < 0)
		return r;
	fs->mounted = true;
	r = take_over_io(fs);
	if (r == 0)
		r = watch_device(fs);
	if (r < 0)
		error_set(err, "/dev/fuse: %s", strerror(-r));
	return r;
}

void fs_session_stop_reading(struct fs *fs)
{
	if (!fs->mounted)
		return;
	fs->mounted = false;
	loop_timer_cancel(fs->loop, &fs->memory);
	loop_watch_del(fs->loop, &fs->watch);
}

/* libfuse would unmount what is on the mount point, even when that is not ours
 * any more: it leaves it alone when the device is at its end. So does a pipe
 * that nobody reads. This also closes the device, and ends what still waits
 * for it. */
static void replace_device(struct fs *fs)
{
	int fd = fuse_session_fd(fs->se);
	int p[2];

	if (fd < 0 || pipe2(p, O_CLOEXEC) < 0)
		return;
	close(p[0]);
	dup3(p[1], fd, O_CLOEXEC);
	close(p[1]);
}

void fs_session_unmount(struct fs *fs)
{
	if (!fs->se)
		return;
	fs_session_stop_reading(fs);
	if (fs->detached)
		replace_device(fs);
	fuse_session_unmount(fs->se);
}

void fs_session_free(struct fs *fs)
{
	buf_put(fs->rx);
	fs->rx = NULL;
	if (fs->se)
		fuse_session_destroy(fs->se);
	fs->se = NULL;
}
