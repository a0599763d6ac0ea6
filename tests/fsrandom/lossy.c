/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Disks that fail: with --lossy an operation may give EIO. Then what has been
 * changed since the last fsync is in doubt, and only that: each byte is what
 * the last fsync promised, or what it became since. All handles are synced
 * until they have nothing more to report, and the model learns what there is.
 *
 * What is in doubt may also be found lost without an error before: but then an
 * fsync must have one.
 *
 * `by` and `synced` are numbers of operations. Under several workers these do
 * not end in their order: an fsync promises what is below all that ran when it
 * began.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "fsr.h"

#define TRIES 400
#define PAUSE_MS 50

bool loss_allowed(const struct worker *w, int error)
{
	return w->c->cfg.lossy && error == EIO;
}

/* ------------------------------------------------- what there may be */

static int add_change(struct worker *w, const struct file *f, uint64_t off,
		      const uint8_t *data, uint64_t len, bool durable)
{
	struct change *ch = calloc(1, sizeof(*ch));

	if (!ch)
		return fail(w, "no memory");
	*ch = (struct change){
		.f = f, .op = w->op, .off = off, .len = len, .durable = durable
	};
	if (data) {
		ch->data = malloc(len + 1);
		if (!ch->data) {
			free(ch);
			return fail(w, "no memory");
		}
		memcpy(ch->data, data, len);
	}
	pthread_mutex_lock(&w->c->past_lock);
	TAILQ_INSERT_TAIL(&w->c->past, ch, link);
	pthread_mutex_unlock(&w->c->past_lock);
	return 0;
}

static void drop_change(struct ctx *c, struct change *ch)
{
	TAILQ_REMOVE(&c->past, ch, link);
	free(ch->data);
	free(ch);
}

int may_change(struct worker *w, struct file *f, uint64_t off,
	       const uint8_t *data, uint64_t len)
{
	if (!w->c->cfg.lossy)
		return 0;
	if (w->ntouched == MAX_TOUCHED)
		return fail(w, "too many changes");
	w->touched[w->ntouched].f = f;
	w->touched[w->ntouched].r = (struct range){ off, len };
	w->ntouched++;
	return add_change(w, f, off, data, len, false);
}

int is_durable(struct worker *w, struct file *f, uint64_t off, uint64_t len)
{
	if (!w->c->cfg.lossy)
		return 0;
	memset(f->by + off, 0, len * sizeof(*f->by));
	return add_change(w, f, off, f->model + off, len, true);
}

uint64_t all_ended(const struct ctx *c)
{
	uint64_t op, min = UINT64_MAX;
	unsigned i;

	for (i = 0; i < c->cfg.threads; i++) {
		op = atomic_load(&c->worker[i].op);
		if (op < min)
			min = op;
	}
	return min ? min - 1 : 0;
}

void all_durable(struct worker *w, struct file *f, uint64_t op)
{
	struct ctx *c = w->c;
	struct change *ch, *next;

	if (!c->cfg.lossy)
		return;
	pthread_mutex_lock(&c->past_lock);
	if (op > f->synced)
		f->synced = op;
	for (ch = TAILQ_FIRST(&c->past); ch; ch = next) {
		next = TAILQ_NEXT(ch, link);
		if (ch->f != f)
			continue;
		/* They are in the order in which they were done; numbers may
		 * not be, and what comes later must stay later. */
		if (ch->op > op)
			break;
		if (ch->data)
			memcpy(f->base + ch->off, ch->data, ch->len);
		else
			memset(f->base + ch->off, 0, ch->len);
		drop_change(c, ch);
	}
	pthread_mutex_unlock(&c->past_lock);
}

/* The byte at off may be `found`: it is in doubt, and was that since it was
 * last certain. */
static bool may_be(struct worker *w, const struct file *f, uint64_t off,
		   uint8_t found)
{
	struct ctx *c = w->c;
	const struct change *ch;
	bool may = false;
	uint8_t value;

	pthread_mutex_lock(&c->past_lock);
	if (f->by[off] > f->synced) {
		may = found == f->base[off];
		TAILQ_FOREACH(ch, &c->past, link) {
			if (ch->f != f || off < ch->off ||
			    off - ch->off >= ch->len)
				continue;
			value = ch->data ? ch->data[off - ch->off] : 0;
			may = value == found || (may && !ch->durable);
		}
	}
	pthread_mutex_unlock(&c->past_lock);
	return may;
}

bool doubtful(struct worker *w, const struct file *f, uint64_t off,
	      uint8_t found)
{
	if (!w->c->cfg.lossy || !may_be(w, f, off, found))
		return false;
	w->lost = true;
	w->unheard = true;
	return true;
}

/*
 * One at a time, where an error may be heard: it is told once, and who asks
 * next on the same descriptor must not believe that all is well.
 */
int sync_fd(struct worker *w, struct file *f, int fd, bool data)
{
	struct ctx *c = w->c;
	uint64_t ended;
	int ret = 0;

	if (c->cfg.lossy)
		pthread_mutex_lock(&c->sync_lock);
	ended = all_ended(c);
	if (data ? fdatasync(fd) : fsync(fd))
		ret = fail_errno(w, "fsync");
	/* What others wrote is no affair of a handle that cannot write. */
	else if (fd != f->fd[FD_READ] && !atomic_load(&c->heard))
		all_durable(w, f, ended);
	if (c->cfg.lossy)
		pthread_mutex_unlock(&c->sync_lock);
	return ret;
}

int settle_range(struct worker *w, struct file *f, uint64_t off, uint64_t len)
{
	uint64_t i;

	if (!w->c->cfg.lossy)
		return 0;
	pthread_mutex_lock(&w->c->past_lock);
	for (i = off; i < off + len && f->by[i] <= f->synced; i++)
		;
	pthread_mutex_unlock(&w->c->past_lock);
	if (i == off + len)
		return 0;
	if (sync_fd(w, f, f->fd[FD_SECOND], false))
		return -1;
	/* A copy must not spread what may be lost. */
	if (atomic_load(&w->c->heard)) {
		errno = EIO;
		return fail_errno(w, "others");
	}
	return 0;
}

bool op_lost(struct worker *w)
{
	const struct touched *t;
	uint64_t pos;
	unsigned i;

	for (i = 0; i < w->ntouched && w->lost; i++) {
		t = &w->touched[i];
		for (pos = t->r.off; pos < t->r.off + t->r.len; pos++)
			t->f->by[pos] = UINT32_MAX;
	}
	w->ntouched = 0;
	if (w->lost)
		atomic_store(&w->c->lost, true);
	return w->lost;
}

/* ------------------------------------------------------------ mappings */

static __thread sigjmp_buf *volatile on_bus;

static void bus_error(int sig)
{
	sigjmp_buf *to = on_bus;

	if (to)
		siglongjmp(*to, 1);
	signal(sig, SIG_DFL);
	raise(sig);
}

int catch_bus_errors(void)
{
	struct sigaction sa = { .sa_handler = bus_error };

	return sigaction(SIGBUS, &sa, NULL);
}

int map_copy(struct worker *w, void *to, const void *from, uint64_t len)
{
	sigjmp_buf env;

	if (sigsetjmp(env, 1)) {
		on_bus = NULL;
		errno = EIO;
		return fail_errno(w, "a mapped page");
	}
	on_bus = &env;
	memcpy(to, from, len);
	on_bus = NULL;
	return 0;
}

/* ---------------------------------------------------------- recovering */

static void pause_ms(unsigned ms)
{
	struct timespec ts = { 0, (long)ms * 1000000 };

	nanosleep(&ts, NULL);
}

/* 0, or -1 where it stays broken. */
static int sync_all(struct worker *w, struct file *f)
{
	int i, tries = 0;

	for (i = 0; i < FD_COUNT; i++) {
		while (f->fd[i] < 0 ? file_open(w, f, false) :
				      fsync(f->fd[i])) {
			if (!loss_allowed(w, errno))
				return fail_errno(w, "fsync to recover");
			atomic_fetch_add(&w->c->heard, 1);
			if (++tries == TRIES)
				return fail(w, "%s does not recover", f->path);
			pause_ms(PAUSE_MS);
		}
	}
	return 0;
}

/* Pages that could not be written are like new, but nowhere else. */
static int drop_pages(struct worker *w, struct file *f)
{
	if (f->map && munmap(f->map, f->size))
		return fail_errno(w, "munmap");
	f->map_dirty = false;
	errno = posix_fadvise(f->fd[FD_MAIN], 0, 0, POSIX_FADV_DONTNEED);
	return errno ? fail_errno(w, "posix_fadvise") : 0;
}

static ssize_t read_again(struct worker *w, int fd, uint64_t off, uint64_t len)
{
	int tries = 0;
	ssize_t n;

	while ((n = pread(fd, w->buf, len, (off_t)off)) < 0) {
		if (!loss_allowed(w, errno) || ++tries == TRIES)
			break;
		pause_ms(PAUSE_MS);
	}
	return n;
}

static int learn_byte(struct worker *w, struct file *f, uint64_t off,
		      uint8_t found)
{
	if (f->model[off] == found)
		return 0;
	if (!may_be(w, f, off, found))
		return fail(w,
			    "%s is wrong at %" PRIu64 ": expected 0x%02x, found"
			    " 0x%02x, last synced 0x%02x; changed by #%" PRIu32
			    ", synced up to #%" PRIu64,
			    f->path, off, f->model[off], found, f->base[off],
			    f->by[off], f->synced);
	f->model[off] = found;
	return 0;
}

static int learn(struct worker *w, struct file *f)
{
	uint64_t off, i, len;
	ssize_t n;

	for (off = 0; off < f->size; off += len) {
		len = f->size - off < w->c->cfg.max_io ? f->size - off :
							 w->c->cfg.max_io;
		n = read_again(w, f->fd[FD_DIRECT], off, len);
		if (n != (ssize_t)len)
			return fail(w, "reading to recover gave %zd: %s", n,
				    strerror(n < 0 ? errno : 0));
		for (i = 0; i < len; i++)
			if (learn_byte(w, f, off + i, w->buf[i]))
				return -1;
	}
	memcpy(f->base, f->model, f->size);
	memset(f->by, 0, f->size * sizeof(*f->by));
	return 0;
}

static int recover_file(struct worker *w, struct file *f)
{
	bool mapped = f->map != NULL;

	if (sync_all(w, f) || drop_pages(w, f))
		return -1;
	f->map = NULL;
	if (learn(w, f))
		return -1;
	return mapped ? file_map(w, f) : 0;
}

static int recover_locked(struct worker *w)
{
	struct ctx *c = w->c;
	struct worker *other;
	bool unheard = false;
	unsigned i;

	for (i = 0; i < c->nfiles; i++)
		if (recover_file(w, &c->file[i]))
			return -1;
	while (!TAILQ_EMPTY(&c->past))
		drop_change(c, TAILQ_FIRST(&c->past));
	for (i = 0; i < c->cfg.threads; i++) {
		other = &c->worker[i];
		unheard |= other->lost && other->unheard;
		other->lost = false;
		other->unheard = false;
	}
	if (unheard && !atomic_load(&c->heard))
		return fail(w, "something is lost, and no fsync says so");
	atomic_store(&c->heard, 0);
	atomic_store(&c->lost, false);
	c->recoveries++;
	return 0;
}

int recover(struct worker *w)
{
	int ret = 0;

	pthread_rwlock_wrlock(&w->c->lock);
	trace(w, "... recovers%s", w->c->lost ? "" : ": another one has");
	/* Another one may have done it for all. */
	if (w->c->lost && recover_locked(w))
		ret = fail(w, "no recovery");
	pthread_rwlock_unlock(&w->c->lock);
	return ret;
}
