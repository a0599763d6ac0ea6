/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * fileops OPERATION... - does operations on files, one after another, and
 * prints what each gave: a number or the name of an error. Scripts compare
 * the lines with what they expect.
 *
 * Operations are words with arguments after colons; numbers take K and M.
 *   open:FLAGS:PATH       FLAGS: r w rw, and after commas trunc append direct
 *                         sync dsync creat; into the current slot
 *   slot:N                0 to 7: the one used from here on
 *   close  dupclose       of the slot; of a duplicate of it
 *   child                 a child process with the same files exits
 *   read:OFF:LEN          the count, and the byte if all are the same
 *   write:OFF:LEN:BYTE    append:LEN:BYTE    dsync:OFF:LEN:BYTE (RWF_DSYNC)
 *   aioread:OFF:LEN       aiowrite:OFF:LEN:BYTE
 *   map:OFF:LEN  mapread  mapwrite:BYTE  msync  unmap     one for each slot
 *   fsync fdatasync truncate:LEN punch:OFF:LEN zero:OFF:LEN alloc:OFF:LEN
 *   copy:SLOT:OFF:OFF:LEN from that slot (and offset) to this one
 *   size blocks data:OFF hole:OFF
 *   touch:PATH remove:PATH await:PATH sleep:MS    silent; await waits for it
 *                         to exist, 20 s at most
 *   alarm:MS              silent; a signal with a handler comes then
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/aio_abi.h>
#include <linux/falloc.h>
#include <setjmp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SLOTS 8
#define MAX_ARGS 5
#define SILENT INT64_MIN    /* no line is printed */
#define BAD (INT64_MIN + 1) /* the operation is not understood */

struct slot {
	int fd;
	uint8_t *page; /* the mapping, from a page on */
	uint8_t *map;  /* what was asked for, inside it */
	size_t page_len, len;
};

struct state {
	struct slot slot[SLOTS];
	unsigned now;
	char note[64]; /* stands after the number */
};

/* One operation, cut at its colons. */
struct words {
	char text[512];
	const char *arg[MAX_ARGS];
	uint64_t num[MAX_ARGS];
	unsigned n;
};

static sigjmp_buf bus_jump;

static void on_bus(int sig)
{
	siglongjmp(bus_jump, sig);
}

static struct slot *current(struct state *s)
{
	return &s->slot[s->now];
}

static int64_t result(int64_t ret)
{
	return ret < 0 ? -errno : ret;
}

/* ---------------------------------------------------------- the operations */

static int64_t op_open(struct state *s, const struct words *w)
{
	static const struct {
		const char *name;
		int flag;
	} names[] = {
		{ "r", O_RDONLY },	{ "w", O_WRONLY },
		{ "rw", O_RDWR },	{ "trunc", O_TRUNC },
		{ "append", O_APPEND }, { "direct", O_DIRECT },
		{ "sync", O_SYNC },	{ "dsync", O_DSYNC },
		{ "creat", O_CREAT },
	};
	const char *p = w->arg[0];
	int flags = O_CLOEXEC;
	size_t i, len;

	while (*p) {
		len = strcspn(p, ",");
		for (i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
			if (strlen(names[i].name) == len &&
			    !strncmp(p, names[i].name, len))
				break;
		}
		if (i == sizeof(names) / sizeof(names[0]))
			return BAD;
		flags |= names[i].flag;
		p += len + (p[len] == ',');
	}
	current(s)->fd = open(w->arg[1], flags, 0600);
	return current(s)->fd < 0 ? -errno : 0;
}

static int64_t op_slot(struct state *s, const struct words *w)
{
	if (w->num[0] >= SLOTS)
		return BAD;
	s->now = (unsigned)w->num[0];
	return SILENT;
}

static int64_t op_close(struct state *s, const struct words *w)
{
	int ret = close(current(s)->fd);

	(void)w;
	current(s)->fd = -1;
	return result(ret);
}

static int64_t op_dupclose(struct state *s, const struct words *w)
{
	int fd = dup(current(s)->fd);

	(void)w;
	return fd < 0 ? -errno : result(close(fd));
}

static int64_t op_child(struct state *s, const struct words *w)
{
	pid_t pid = fork();
	int status;

	(void)s;
	(void)w;
	if (pid < 0)
		return -errno;
	if (pid == 0)
		_exit(0);
	if (waitpid(pid, &status, 0) < 0)
		return -errno;
	return status;
}

/* Says which byte it is, or that there are several. */
static void note_bytes(struct state *s, const uint8_t *data, size_t len)
{
	size_t i;

	for (i = 1; i < len; i++) {
		if (data[i] != data[0]) {
			snprintf(s->note, sizeof(s->note), " mixed at %zu", i);
			return;
		}
	}
	if (len)
		snprintf(s->note, sizeof(s->note), " %02x", data[0]);
}

static int64_t aio(int fd, int opcode, void *data, size_t len, uint64_t off)
{
	aio_context_t ctx = 0;
	struct iocb cb = { .aio_fildes = (uint32_t)fd,
			   .aio_lio_opcode = (uint16_t)opcode,
			   .aio_buf = (uintptr_t)data,
			   .aio_nbytes = len,
			   .aio_offset = (int64_t)off };
	struct iocb *list[] = { &cb };
	struct io_event ev = { .res = 0 };
	int64_t ret;

	if (syscall(SYS_io_setup, 1, &ctx))
		return -errno;
	if (syscall(SYS_io_submit, ctx, 1L, list) != 1 ||
	    syscall(SYS_io_getevents, ctx, 1L, 1L, &ev, NULL) != 1)
		ret = -errno;
	else
		ret = ev.res;
	syscall(SYS_io_destroy, ctx);
	return ret;
}

static void *get_buffer(uint64_t len)
{
	return len > 256 << 20 ?
		       NULL :
		       aligned_alloc(4096, (len + 4096) / 4096 * 4096);
}

static int64_t op_read(struct state *s, const struct words *w)
{
	void *data = get_buffer(w->num[1]);
	int64_t n;

	if (!data)
		return BAD;
	memset(data, 0xee, w->num[1]);
	if (!strcmp(w->text, "aioread"))
		n = aio(current(s)->fd, IOCB_CMD_PREAD, data, w->num[1],
			w->num[0]);
	else
		n = result(pread(current(s)->fd, data, w->num[1],
				 (off_t)w->num[0]));
	if (n > 0)
		note_bytes(s, data, (size_t)n);
	free(data);
	return n;
}

static int64_t op_write(struct state *s, const struct words *w)
{
	struct iovec iov = { get_buffer(w->num[1]), w->num[1] };
	int fd = current(s)->fd;
	off_t off = (off_t)w->num[0];
	int64_t n;

	if (!iov.iov_base)
		return BAD;
	memset(iov.iov_base, (int)w->num[2], iov.iov_len);
	if (!strcmp(w->text, "aiowrite"))
		n = aio(fd, IOCB_CMD_PWRITE, iov.iov_base, iov.iov_len,
			w->num[0]);
	else if (!strcmp(w->text, "dsync"))
		n = result(pwritev2(fd, &iov, 1, off, RWF_DSYNC));
	else
		n = result(pwrite(fd, iov.iov_base, iov.iov_len, off));
	free(iov.iov_base);
	return n;
}

static int64_t op_append(struct state *s, const struct words *w)
{
	void *data = get_buffer(w->num[0]);
	int64_t n;

	if (!data)
		return BAD;
	memset(data, (int)w->num[1], w->num[0]);
	n = result(write(current(s)->fd, data, w->num[0]));
	free(data);
	return n;
}

static int64_t op_map(struct state *s, const struct words *w)
{
	struct slot *sl = current(s);
	uint64_t start = w->num[0] & ~(uint64_t)4095;
	int prot = PROT_READ, flags = fcntl(sl->fd, F_GETFL);

	if (flags >= 0 && (flags & O_ACCMODE) == O_RDWR)
		prot |= PROT_WRITE;
	sl->len = w->num[1];
	sl->page_len = w->num[0] - start + w->num[1];
	sl->page = mmap(NULL, sl->page_len, prot, MAP_SHARED, sl->fd,
			(off_t)start);
	if (sl->page == MAP_FAILED) {
		sl->page = NULL;
		return -errno;
	}
	sl->map = sl->page + (w->num[0] - start);
	return 0;
}

static int64_t op_mapread(struct state *s, const struct words *w)
{
	struct slot *sl = current(s);

	(void)w;
	if (!sl->page)
		return BAD;
	if (sigsetjmp(bus_jump, 1)) {
		snprintf(s->note, sizeof(s->note), " SIGBUS");
		return 0;
	}
	note_bytes(s, sl->map, sl->len);
	return (int64_t)sl->len;
}

static int64_t op_mapwrite(struct state *s, const struct words *w)
{
	struct slot *sl = current(s);

	if (!sl->page)
		return BAD;
	if (sigsetjmp(bus_jump, 1)) {
		snprintf(s->note, sizeof(s->note), " SIGBUS");
		return 0;
	}
	memset(sl->map, (int)w->num[0], sl->len);
	return (int64_t)sl->len;
}

static int64_t op_msync(struct state *s, const struct words *w)
{
	struct slot *sl = current(s);

	(void)w;
	return result(msync(sl->page, sl->page_len, MS_SYNC));
}

static int64_t op_unmap(struct state *s, const struct words *w)
{
	struct slot *sl = current(s);
	int ret = munmap(sl->page, sl->page_len);

	(void)w;
	sl->page = NULL;
	return result(ret);
}

static int64_t op_sync(struct state *s, const struct words *w)
{
	int fd = current(s)->fd;

	return result(!strcmp(w->text, "fsync") ? fsync(fd) : fdatasync(fd));
}

static int64_t op_truncate(struct state *s, const struct words *w)
{
	return result(ftruncate(current(s)->fd, (off_t)w->num[0]));
}

static int64_t op_fallocate(struct state *s, const struct words *w)
{
	int mode = 0;

	if (!strcmp(w->text, "punch"))
		mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
	else if (!strcmp(w->text, "zero"))
		mode = FALLOC_FL_ZERO_RANGE;
	return result(fallocate(current(s)->fd, mode, (off_t)w->num[0],
				(off_t)w->num[1]));
}

static int64_t op_copy(struct state *s, const struct words *w)
{
	off_t from = (off_t)w->num[1], to = (off_t)w->num[2];

	if (w->num[0] >= SLOTS)
		return BAD;
	return result(copy_file_range(s->slot[w->num[0]].fd, &from,
				      current(s)->fd, &to, w->num[3], 0));
}

static int64_t op_stat(struct state *s, const struct words *w)
{
	struct stat st;

	if (fstat(current(s)->fd, &st))
		return -errno;
	return !strcmp(w->text, "size") ? st.st_size : st.st_blocks;
}

static int64_t op_seek(struct state *s, const struct words *w)
{
	return result(lseek(current(s)->fd, (off_t)w->num[0],
			    !strcmp(w->text, "data") ? SEEK_DATA : SEEK_HOLE));
}

static void sleep_ms(uint64_t ms)
{
	struct timespec ts = { (time_t)(ms / 1000),
			       (long)(ms % 1000) * 1000000 };

	nanosleep(&ts, NULL);
}

static int64_t op_sleep(struct state *s, const struct words *w)
{
	(void)s;
	sleep_ms(w->num[0]);
	return SILENT;
}

static void on_alarm(int sig)
{
	(void)sig;
}

static int64_t op_alarm(struct state *s, const struct words *w)
{
	struct sigaction sa = { .sa_handler = on_alarm };
	struct itimerval t = {
		.it_value = { .tv_sec = (time_t)(w->num[0] / 1000),
			      .tv_usec =
				      (suseconds_t)(w->num[0] % 1000) * 1000 },
	};

	(void)s;
	if (sigaction(SIGALRM, &sa, NULL) || setitimer(ITIMER_REAL, &t, NULL))
		return -errno;
	return SILENT;
}

static int64_t op_touch(struct state *s, const struct words *w)
{
	int fd = open(w->arg[0], O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

	(void)s;
	if (fd < 0)
		return -errno;
	close(fd);
	return SILENT;
}

static int64_t op_remove(struct state *s, const struct words *w)
{
	(void)s;
	return unlink(w->arg[0]) ? -errno : SILENT;
}

static int64_t op_await(struct state *s, const struct words *w)
{
	unsigned tries = 2000;

	(void)s;
	while (access(w->arg[0], F_OK)) {
		if (!tries--)
			return -ETIMEDOUT;
		sleep_ms(10);
	}
	return SILENT;
}

/* ------------------------------------------------------------------ driving */

static const struct {
	const char *name;
	unsigned nargs;
	unsigned numbers; /* bit i: argument i is a number */
	int64_t (*run)(struct state *s, const struct words *w);
} ops[] = {
	{ "open", 2, 0, op_open },	   { "slot", 1, 1, op_slot },
	{ "close", 0, 0, op_close },	   { "dupclose", 0, 0, op_dupclose },
	{ "child", 0, 0, op_child },	   { "read", 2, 3, op_read },
	{ "aioread", 2, 3, op_read },	   { "write", 3, 7, op_write },
	{ "dsync", 3, 7, op_write },	   { "aiowrite", 3, 7, op_write },
	{ "append", 2, 3, op_append },	   { "map", 2, 3, op_map },
	{ "mapread", 0, 0, op_mapread },   { "mapwrite", 1, 1, op_mapwrite },
	{ "msync", 0, 0, op_msync },	   { "unmap", 0, 0, op_unmap },
	{ "fsync", 0, 0, op_sync },	   { "fdatasync", 0, 0, op_sync },
	{ "truncate", 1, 1, op_truncate }, { "punch", 2, 3, op_fallocate },
	{ "zero", 2, 3, op_fallocate },	   { "alloc", 2, 3, op_fallocate },
	{ "copy", 4, 15, op_copy },	   { "size", 0, 0, op_stat },
	{ "blocks", 0, 0, op_stat },	   { "data", 1, 1, op_seek },
	{ "hole", 1, 1, op_seek },	   { "touch", 1, 0, op_touch },
	{ "remove", 1, 0, op_remove },	   { "await", 1, 0, op_await },
	{ "sleep", 1, 1, op_sleep },	   { "alarm", 1, 1, op_alarm },
};

static int parse_num(const char *text, uint64_t *n)
{
	char *end;

	errno = 0;
	*n = strtoull(text, &end, 0);
	if (errno || end == text)
		return -1;
	if (*end == 'K' || *end == 'M') {
		*n <<= *end == 'K' ? 10 : 20;
		end++;
	}
	return *end ? -1 : 0;
}

/* The last argument may hold colons itself. */
static int cut(struct words *w, unsigned nargs, unsigned numbers)
{
	char *p = w->text;
	unsigned i;

	for (i = 0; i < nargs; i++) {
		p = strchr(p, ':');
		if (!p)
			return -1;
		*p++ = '\0';
		w->arg[i] = p;
	}
	if (!nargs && strchr(w->text, ':'))
		return -1;
	w->n = nargs;
	for (i = 0; i < nargs; i++) {
		if (numbers >> i & 1 && parse_num(w->arg[i], &w->num[i]))
			return -1;
	}
	return 0;
}

static int64_t run_word(struct state *s, const char *text)
{
	size_t len = strcspn(text, ":"), i;
	struct words w = { .n = 0 };

	if (strlen(text) >= sizeof(w.text))
		return BAD;
	memcpy(w.text, text, strlen(text) + 1);
	s->note[0] = '\0';
	for (i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
		if (strlen(ops[i].name) == len &&
		    !strncmp(ops[i].name, text, len))
			break;
	}
	if (i == sizeof(ops) / sizeof(ops[0]) ||
	    cut(&w, ops[i].nargs, ops[i].numbers))
		return BAD;
	return ops[i].run(s, &w);
}

int main(int argc, char **argv)
{
	struct sigaction sa = { .sa_handler = on_bus };
	struct state s = { .now = 0 };
	int64_t ret;
	int i;

	for (i = 0; i < SLOTS; i++)
		s.slot[i].fd = -1;
	sigaction(SIGBUS, &sa, NULL);
	for (i = 1; i < argc; i++) {
		ret = run_word(&s, argv[i]);
		if (ret == BAD) {
			fprintf(stderr, "fileops: %s: what is this?\n",
				argv[i]);
			return 2;
		}
		if (ret == SILENT)
			continue;
		printf("%.*s ", (int)strcspn(argv[i], ":"), argv[i]);
		if (ret < 0)
			printf("%s\n", strerrorname_np((int)-ret));
		else
			printf("%" PRId64 "%s\n", ret, s.note);
		fflush(stdout);
	}
	return 0;
}
