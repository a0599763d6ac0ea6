/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * interrupted MS[:EVERY] OPERATION FILE [FILE2] - what a system call gives when
 * a signal with a handler comes while it runs: SIGINT after MS milliseconds, or
 * SIGALRM after these and then every EVERY of them. Prints the name of the operation, its result or the name
 * of the error, and how many milliseconds it took.
 *
 * Operations: open, read, write (1 MiB at 0), fsync and close (after such a
 * write), punch, truncate, data, hole, and copy (from FILE to FILE2).
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LEN ((size_t)1 << 20)

struct what {
	const char *name;
	int flags; /* to open FILE; -1: that is the operation */
	ssize_t (*prepare)(int fd, char *buf);
	ssize_t (*run)(int fd, int fd2, char *buf);
};

static void on_signal(int sig)
{
	(void)sig;
}

static ssize_t fill(int fd, char *buf)
{
	memset(buf, 'x', LEN);
	return pwrite(fd, buf, LEN, 0);
}

static ssize_t do_read(int fd, int fd2, char *buf)
{
	(void)fd2;
	return pread(fd, buf, LEN, 0);
}

static ssize_t do_write(int fd, int fd2, char *buf)
{
	(void)fd2;
	return fill(fd, buf);
}

static ssize_t do_fsync(int fd, int fd2, char *buf)
{
	(void)fd2;
	(void)buf;
	return fsync(fd);
}

static ssize_t do_close(int fd, int fd2, char *buf)
{
	(void)fd2;
	(void)buf;
	return close(fd);
}

static ssize_t do_punch(int fd, int fd2, char *buf)
{
	(void)fd2;
	(void)buf;
	return fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
			 LEN);
}

static ssize_t do_truncate(int fd, int fd2, char *buf)
{
	(void)fd2;
	(void)buf;
	return ftruncate(fd, 0);
}

static ssize_t do_data(int fd, int fd2, char *buf)
{
	(void)fd2;
	(void)buf;
	return lseek(fd, 0, SEEK_DATA);
}

static ssize_t do_hole(int fd, int fd2, char *buf)
{
	(void)fd2;
	(void)buf;
	return lseek(fd, 0, SEEK_HOLE);
}

static ssize_t do_copy(int fd, int fd2, char *buf)
{
	loff_t in = 0, out = 0;

	(void)buf;
	return copy_file_range(fd, &in, fd2, &out, (size_t)1 << 30, 0);
}

static const struct what table[] = {
	{ .name = "open", .flags = -1 },
	{ .name = "read", .flags = O_RDONLY, .run = do_read },
	{ .name = "write", .flags = O_WRONLY | O_DSYNC, .run = do_write },
	{ .name = "fsync", .flags = O_WRONLY, .prepare = fill, .run = do_fsync },
	{ .name = "close", .flags = O_WRONLY, .prepare = fill, .run = do_close },
	{ .name = "punch", .flags = O_WRONLY | O_DSYNC, .run = do_punch },
	{ .name = "truncate", .flags = O_WRONLY, .run = do_truncate },
	{ .name = "data", .flags = O_RDONLY, .run = do_data },
	{ .name = "hole", .flags = O_RDONLY, .run = do_hole },
	{ .name = "copy", .flags = O_RDONLY, .run = do_copy },
	{ .name = NULL },
};

static struct timespec milliseconds(unsigned long ms)
{
	return (struct timespec){ .tv_sec = (time_t)(ms / 1000),
				  .tv_nsec = (long)(ms % 1000 * 1000000) };
}

static int set_timer(const char *text)
{
	struct sigaction sa = { .sa_handler = on_signal };
	struct sigevent ev = { .sigev_notify = SIGEV_SIGNAL,
			       .sigev_signo = SIGINT };
	struct itimerspec it = { { 0, 0 }, { 0, 0 } };
	timer_t timer;
	char *end;

	it.it_value = milliseconds(strtoul(text, &end, 10));
	if (*end == ':') {
		it.it_interval = milliseconds(strtoul(end + 1, &end, 10));
		ev.sigev_signo = SIGALRM;
	}
	if (*end || sigaction(ev.sigev_signo, &sa, NULL) ||
	    timer_create(CLOCK_MONOTONIC, &ev, &timer))
		return -1;
	return timer_settime(timer, 0, &it, NULL);
}

static long long now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (long long)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

static int complain(const char *name)
{
	fprintf(stderr, "interrupted: %s: %s\n", name, strerror(errno));
	return 1;
}

static int try(const struct what *w, char **argv, char *buf)
{
	int fd = -1, fd2 = -1, error;
	long long began;
	ssize_t n;

	if (w->flags >= 0) {
		fd = open(argv[3], w->flags);
		if (fd < 0)
			return complain(argv[3]);
	}
	if (argv[4]) {
		fd2 = open(argv[4], O_WRONLY);
		if (fd2 < 0)
			return complain(argv[4]);
	}
	printf("ready\n");
	fflush(stdout);
	/* The script freezes the server now. */
	if (getchar() == EOF && ferror(stdin))
		return complain("stdin");
	if (w->prepare && w->prepare(fd, buf) < 0)
		return complain("prepare");
	if (set_timer(argv[1]))
		return complain("timer");
	began = now_ms();
	n = w->run ? w->run(fd, fd2, buf) : open(argv[3], O_RDWR);
	error = errno;
	began = now_ms() - began;
	if (n < 0)
		printf("%s %s %lld\n", w->name, strerrorname_np(error), began);
	else
		printf("%s %zd %lld\n", w->name, n, began);
	fflush(stdout);
	/* What closing the files waits for is not of interest. */
	_exit(0);
}

int main(int argc, char **argv)
{
	const struct what *w = table;
	char *buf = malloc(LEN);

	while (argc >= 4 && w->name && strcmp(w->name, argv[2]) != 0)
		w++;
	if (argc < 4 || argc > 5 || !w->name || !buf) {
		fprintf(stderr,
			"usage: interrupted MS[:EVERY] OPERATION FILE [FILE2]\n");
		return 2;
	}
	return try(w, argv, buf);
}
