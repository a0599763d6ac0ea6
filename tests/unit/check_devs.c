/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Ends of a copy that are no server: zeroes in files by every rung of the
 * ladder, holes, pipes that are slow; comparing; what progress looks like.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "blockdev.h"
#include "progress.h"
#include "unit.h"
#include "util.h"
#include "verify.h"

#define SIZE ((uint64_t)1 << 20)

struct bench {
	struct loop *loop;
	struct workers *workers;
	struct pool *pool;
	struct error err;
	/* of the last request */
	bool done;
	int error;
};

static void bench_init(struct bench *b)
{
	memset(b, 0, sizeof(*b));
	b->loop = loop_new();
	b->workers = workers_new(b->loop, 2);
	b->pool = pool_new(16 * MiB);
	ck_assert(b->loop && b->workers && b->pool);
}

static void bench_free(struct bench *b)
{
	workers_free(b->workers);
	pool_free(b->pool);
	loop_free(b->loop);
}

static void io_done(struct dev_io *io, int error)
{
	struct bench *b = io->user;

	ck_assert(!b->done);
	b->done = true;
	b->error = error;
	loop_stop(b->loop);
}

static void io_prepare(struct bench *b, struct dev_io *io, uint64_t offset,
		       uint64_t len, uint8_t *data)
{
	memset(io, 0, sizeof(*io));
	io->done = io_done;
	io->user = b;
	io->offset = offset;
	io->len = len;
	io->data = data;
	b->done = false;
}

static int io_wait(struct bench *b)
{
	while (!b->done)
		ck_assert_int_eq(loop_run(b->loop), 0);
	return b->error;
}

static int do_zero(struct bench *b, struct blockdev *dev, uint64_t offset,
		   uint64_t len, unsigned flags)
{
	struct dev_io io;

	io_prepare(b, &io, offset, len, NULL);
	io.flags = flags;
	blockdev_zero(dev, &io);
	return io_wait(b);
}

static int do_write(struct bench *b, struct blockdev *dev, uint64_t offset,
		    uint64_t len, uint8_t *data)
{
	struct dev_io io;

	io_prepare(b, &io, offset, len, data);
	blockdev_write(dev, &io);
	return io_wait(b);
}

static int do_read(struct bench *b, struct blockdev *dev, uint64_t offset,
		   uint64_t len, uint8_t *data, uint64_t *got)
{
	struct dev_io io;

	io_prepare(b, &io, offset, len, data);
	blockdev_read(dev, &io);
	io_wait(b);
	if (got)
		*got = io.got;
	return b->error;
}

/* In memory, or in the folder for temporary files. */
static int make_file(bool memory)
{
	char path[] = "/var/tmp/nbdfs-unit-XXXXXX";
	int fd;

	if (memory) {
		fd = memfd_create("unit", MFD_CLOEXEC);
	} else {
		fd = mkostemp(path, O_CLOEXEC);
		unlink(path);
	}
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(ftruncate(fd, (off_t)SIZE), 0);
	return fd;
}

static struct blockdev *file_dev(struct bench *b, int fd, bool is_zero)
{
	struct dev_file_params p = {
		.fd = fd,
		.name = "unit",
		.size = SIZE,
		.read = true,
		.write = true,
		.is_zero = is_zero,
		.workers = b->workers,
	};
	struct blockdev *dev = dev_file_new(&p, &b->err);

	ck_assert_ptr_nonnull(dev);
	return dev;
}

/* Writes and zeroes anywhere, against a copy in memory. */
START_TEST(zeroes_anywhere)
{
	struct bench b;
	uint8_t *model = calloc(1, SIZE), *data = malloc(SIZE);
	uint64_t seed = (uint64_t)_i;
	struct blockdev *dev;
	int fd = make_file(_i & 1), i;

	ck_assert(model && data);
	bench_init(&b);
	dev = file_dev(&b, fd, false);
	for (i = 0; i < 200; i++) {
		uint64_t offset = unit_below(&seed, SIZE);
		uint64_t len = 1 + unit_below(&seed, SIZE - offset);
		unsigned flags = unit_below(&seed, 2) ? DEV_ALLOCATE : 0;
		int r;

		if (unit_below(&seed, 2)) {
			memset(data, 1 + i % 200, len);
			memset(model + offset, 1 + i % 200, len);
			r = do_write(&b, dev, offset, len, data);
		} else {
			memset(model + offset, 0, len);
			r = do_zero(&b, dev, offset, len, flags);
		}
		ck_assert_int_eq(r, 0);
	}
	ck_assert_int_eq(do_read(&b, dev, 0, SIZE, data, NULL), 0);
	ck_assert(memcmp(model, data, SIZE) == 0);
	blockdev_close(dev);
	bench_free(&b);
	free(model);
	free(data);
}
END_TEST

static uint64_t space_of(int fd)
{
	struct stat st;

	ck_assert_int_eq(fstat(fd, &st), 0);
	return (uint64_t)st.st_blocks * 512;
}

/* Zeroes give space back, or take it. */
START_TEST(zeroes_and_space)
{
	static uint8_t data[SIZE];
	struct bench b;
	struct blockdev *dev;
	int fd = make_file(_i & 1), fd2;

	bench_init(&b);
	memset(data, 1, SIZE);
	fd2 = dup(fd);
	dev = file_dev(&b, fd, false);
	ck_assert_int_eq(do_write(&b, dev, 0, SIZE, data), 0);
	ck_assert_int_eq(do_zero(&b, dev, 0, SIZE, DEV_ALLOCATE), 0);
	ck_assert_uint_ge(space_of(fd2), SIZE);
	ck_assert_int_eq(do_zero(&b, dev, 0, SIZE, 0), 0);
	ck_assert_uint_lt(space_of(fd2), 65536);
	blockdev_close(dev);
	dev = file_dev(&b, fd2, true);
	ck_assert_int_eq(do_zero(&b, dev, 0, SIZE, DEV_ALLOCATE), 0);
	fd = dup(fd2);
	ck_assert_uint_ge(space_of(fd), SIZE);
	close(fd);
	blockdev_close(dev);
	bench_free(&b);
}
END_TEST

/* A file that has become shorter is no source of zeroes. */
START_TEST(short_read)
{
	static uint8_t data[SIZE];
	struct bench b;
	int fd = make_file(_i & 1);
	struct blockdev *dev;

	bench_init(&b);
	dev = file_dev(&b, fd, false);
	ck_assert_int_eq(ftruncate(fd, 5000), 0);
	ck_assert_int_eq(do_read(&b, dev, 0, 5000, data, NULL), 0);
	ck_assert_int_eq(do_read(&b, dev, 0, 5001, data, NULL), -EIO);
	blockdev_close(dev);
	bench_free(&b);
}
END_TEST

static void add_run(char *text, size_t size, const struct dev_io *io)
{
	size_t used = strlen(text);

	snprintf(text + used, size - used, "%s%u-%u ", io->zero ? "z" : "d",
		 (unsigned)io->offset, (unsigned)(io->offset + io->run));
}

START_TEST(holes_of_a_file)
{
	static uint8_t data[65536];
	struct bench b;
	int fd = make_file(_i & 1);
	struct blockdev *dev;
	char text[256] = "";
	uint64_t at;

	bench_init(&b);
	memset(data, 1, sizeof(data));
	dev = file_dev(&b, fd, false);
	do_write(&b, dev, 131072, 65536, data);
	do_write(&b, dev, 524288, 65536, data);
	for (at = 0; at < SIZE;) {
		struct dev_io io;

		/* 96 KiB at most: runs that are cut are gone on with. */
		io_prepare(&b, &io, at, min_u64(SIZE - at, 98304), NULL);
		blockdev_extents(dev, &io);
		ck_assert_int_eq(io_wait(&b), 0);
		ck_assert(io.run > 0 && io.run <= io.len);
		add_run(text, sizeof(text), &io);
		at += io.run;
	}
	ck_assert_str_eq(text, "z0-98304 z98304-131072 d131072-196608 "
			       "z196608-294912 z294912-393216 z393216-491520 "
			       "z491520-524288 d524288-589824 z589824-688128 "
			       "z688128-786432 z786432-884736 z884736-983040 "
			       "z983040-1048576 ");
	blockdev_close(dev);
	bench_free(&b);
}
END_TEST

/* ------------------------------------------------------------------ pipes */

struct feeder {
	struct loop_timer timer;
	struct bench *b;
	int fd;
	unsigned left;
};

/* A byte at a time. */
static void feed(struct loop_timer *t)
{
	struct feeder *f = container_of(t, struct feeder, timer);

	if (f->left-- == 0) {
		close(f->fd);
		return;
	}
	ck_assert_int_eq(write(f->fd, "x", 1), 1);
	loop_timer_set(f->b->loop, t, NS_PER_MS);
}

START_TEST(slow_pipe)
{
	uint8_t data[16];
	struct bench b;
	struct feeder f = { .timer = { .fire = feed }, .b = &b, .left = 24 };
	struct blockdev *dev;
	uint64_t got;
	int fds[2];

	bench_init(&b);
	ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
	f.fd = fds[1];
	dev = dev_pipe_new(b.loop, fds[0], "pipe", false, &b.err);
	ck_assert_ptr_nonnull(dev);
	loop_timer_set(b.loop, &f.timer, 0);
	ck_assert_int_eq(do_read(&b, dev, 0, 16, data, &got), 0);
	ck_assert_uint_eq(got, 16);
	ck_assert_int_eq(do_read(&b, dev, 16, 16, data, &got), 0);
	ck_assert_uint_eq(got, 8);
	ck_assert_int_eq(do_read(&b, dev, 24, 16, data, &got), 0);
	ck_assert_uint_eq(got, 0);
	blockdev_close(dev);
	bench_free(&b);
}
END_TEST

static void stop_it(struct loop_timer *t)
{
	struct feeder *f = container_of(t, struct feeder, timer);
	struct blockdev *dev = *(struct blockdev **)(f + 1);

	dev->ops->stop(dev);
}

/* Nobody reads, nobody writes: a stop ends the waiting. The flags of the
 * descriptor that others share stay what they were. */
START_TEST(stopped_pipe)
{
	static uint8_t data[4 * SIZE];
	struct bench b;
	struct {
		struct feeder f;
		struct blockdev *dev;
	} s = { .f = { .timer = { .fire = stop_it } } };
	bool write_end = _i & 1;
	int fds[2], mine, flags;

	bench_init(&b);
	ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
	mine = dup(fds[write_end]);
	flags = fcntl(mine, F_GETFL);
	s.dev = dev_pipe_new(b.loop, fds[write_end], "pipe", write_end, &b.err);
	ck_assert_ptr_nonnull(s.dev);
	ck_assert_int_eq(fcntl(mine, F_GETFL), flags);
	loop_timer_set(b.loop, &s.f.timer, NS_PER_MS);
	if (write_end)
		do_write(&b, s.dev, 0, sizeof(data), data);
	else
		do_read(&b, s.dev, 0, sizeof(data), data, NULL);
	ck_assert_int_eq(b.error, -EINTR);
	blockdev_close(s.dev);
	ck_assert_int_eq(fcntl(mine, F_GETFL), flags);
	close(mine);
	close(fds[!write_end]);
	bench_free(&b);
}
END_TEST

/* -------------------------------------------------------------- comparing */

struct comparison {
	struct bench b;
	struct verify_result res;
	struct verify_job *job;
	int error;
};

static void compared(void *arg, int error, const struct verify_result *res)
{
	struct comparison *c = arg;

	c->error = error;
	c->res = *res;
	verify_free(c->job);
	loop_stop(c->b.loop);
}

static void compare(struct comparison *c, int fd[2])
{
	struct verify_params p = {
		.len = SIZE,
		.loop = c->b.loop,
		.pool = c->b.pool,
		.queue_size = 4 * MiB,
		.done = compared,
		.arg = c,
	};

	p.a = file_dev(&c->b, dup(fd[0]), false);
	p.b = file_dev(&c->b, dup(fd[1]), false);
	ck_assert_int_eq(verify_start(&p, &c->job), 0);
	ck_assert_int_eq(loop_run(c->b.loop), 0);
	blockdev_close(p.a);
	blockdev_close(p.b);
	ck_assert_uint_eq(pool_in_use(c->b.pool), 0);
}

START_TEST(differences_are_found)
{
	struct comparison c;
	uint64_t seed = (uint64_t)_i + 77, first, second, i;
	int fd[2] = { make_file(true), make_file(_i & 1) };
	char byte = 1;

	memset(&c, 0, sizeof(c));
	bench_init(&c.b);
	for (i = 0; i < 20; i++) {
		uint64_t at = unit_below(&seed, SIZE);

		ck_assert_int_eq(pwrite(fd[0], &byte, 1, (off_t)at), 1);
		ck_assert_int_eq(pwrite(fd[1], &byte, 1, (off_t)at), 1);
	}
	compare(&c, fd);
	ck_assert_int_eq(c.error, 0);
	ck_assert(!c.res.differs);
	ck_assert_uint_eq(c.res.finished, SIZE);
	/* On either side, also where the other one has a hole. */
	first = unit_below(&seed, SIZE / 2);
	second = first + 1 + unit_below(&seed, SIZE / 2 - 1);
	byte = 2;
	ck_assert_int_eq(pwrite(fd[_i & 1], &byte, 1, (off_t)first), 1);
	ck_assert_int_eq(pwrite(fd[!(_i & 1)], &byte, 1, (off_t)second), 1);
	compare(&c, fd);
	ck_assert_int_eq(c.error, 0);
	ck_assert(c.res.differs);
	ck_assert_uint_eq(c.res.offset, first);
	/* The last byte counts. */
	byte = 0;
	ck_assert_int_eq(pwrite(fd[_i & 1], &byte, 1, (off_t)first), 1);
	ck_assert_int_eq(pwrite(fd[!(_i & 1)], &byte, 1, (off_t)first), 1);
	ck_assert_int_eq(pwrite(fd[0], &byte, 1, (off_t)second), 1);
	ck_assert_int_eq(pwrite(fd[1], &byte, 1, (off_t)second), 1);
	byte = 2;
	ck_assert_int_eq(pwrite(fd[_i & 1], &byte, 1, (off_t)SIZE - 1), 1);
	compare(&c, fd);
	ck_assert(c.res.differs);
	ck_assert_uint_eq(c.res.offset, SIZE - 1);
	close(fd[0]);
	close(fd[1]);
	bench_free(&c.b);
}
END_TEST

/* A device whose answers come in the wrong order: all of 1, or all of 2. */
struct backwards {
	struct blockdev dev;
	struct loop *loop;
	struct loop_task task;
	struct dev_io *io[16];
	unsigned count;
	uint8_t byte;
};

static void answer_all(struct loop_task *t)
{
	struct backwards *d = container_of(t, struct backwards, task);

	while (d->count > 0) {
		struct dev_io *io = d->io[--d->count];

		memset(io->data, d->byte, io->len);
		io->done(io, 0);
	}
}

static void read_backwards(struct blockdev *dev, struct dev_io *io)
{
	struct backwards *d = container_of(dev, struct backwards, dev);

	ck_assert_uint_lt(d->count, ARRAY_SIZE(d->io));
	d->io[d->count++] = io;
	loop_defer(d->loop, &d->task);
}

START_TEST(first_difference_counts)
{
	static const struct blockdev_ops ops = { .read = read_backwards };
	struct backwards d[2];
	struct comparison c;
	struct verify_params p = {
		.a = &d[0].dev,
		.b = &d[1].dev,
		.len = 64 * MiB,
		.queue_size = 16 * MiB,
		.done = compared,
		.arg = &c,
	};
	int i;

	memset(&c, 0, sizeof(c));
	bench_init(&c.b);
	p.loop = c.b.loop;
	p.pool = c.b.pool;
	for (i = 0; i < 2; i++)
		d[i] = (struct backwards){
			.dev = { .ops = &ops,
				 .size = 64 * MiB,
				 .caps = DEV_CAN_READ | DEV_CAN_SEEK },
			.loop = c.b.loop,
			.task = { .run = answer_all },
			.byte = (uint8_t)(1 + i),
		};
	ck_assert_int_eq(verify_start(&p, &c.job), 0);
	ck_assert_int_eq(loop_run(c.b.loop), 0);
	ck_assert(c.res.differs);
	ck_assert_uint_eq(c.res.offset, 0);
	ck_assert_uint_eq(pool_in_use(c.b.pool), 0);
	bench_free(&c.b);
}
END_TEST

/* --------------------------------------------------------------- progress */

START_TEST(progress_for_people)
{
	struct progress p;
	char line[128];

	progress_init(&p, -1, true, 4 * GiB, NS_PER_S);
	progress_line(&p, 0, line, sizeof(line));
	ck_assert_str_eq(line, "0 B of 4 GiB, 0%, -/s");
	progress_show(&p, GiB, 2 * NS_PER_S);
	progress_line(&p, GiB, line, sizeof(line));
	ck_assert_str_eq(line, "1 GiB of 4 GiB, 25%, 1 GiB/s, 0:03 left");
	progress_line(&p, 4 * GiB - 1, line, sizeof(line));
	ck_assert_ptr_nonnull(strstr(line, " 99%"));
	progress_line(&p, 4 * GiB, line, sizeof(line));
	ck_assert_ptr_nonnull(strstr(line, " 100%"));
	progress_init(&p, -1, true, UINT64_MAX, NS_PER_S);
	progress_show(&p, MiB, 2 * NS_PER_S);
	progress_line(&p, MiB, line, sizeof(line));
	ck_assert_str_eq(line, "1 MiB, 1 MiB/s");
	progress_init(&p, -1, true, INT64_MAX, NS_PER_S);
	progress_show(&p, 2, 3 * NS_PER_S);
	progress_line(&p, 2, line, sizeof(line));
	ck_assert_ptr_nonnull(strstr(line, "more than 4 days left"));
}
END_TEST

START_TEST(progress_for_programs)
{
	struct progress p;
	char text[256];
	int fds[2];
	ssize_t n;

	ck_assert_int_eq(pipe(fds), 0);
	progress_init(&p, fds[1], false, 1000, 1);
	progress_show(&p, 0, 2);
	progress_show(&p, 5, 3);
	progress_show(&p, 10, 4);
	progress_show(&p, 999, 5);
	progress_show(&p, 1000, 6);
	progress_end(&p, true);
	n = read(fds[0], text, sizeof(text) - 1);
	ck_assert_int_gt(n, 0);
	text[n] = '\0';
	ck_assert_str_eq(text, "0/100\n1/100\n99/100\n100/100\n");
	close(fds[0]);
	close(fds[1]);
}
END_TEST

int main(void)
{
	const struct unit_case cases[] = {
		{ zeroes_anywhere, 4 },
		{ zeroes_and_space, 2 },
		{ short_read, 2 },
		{ holes_of_a_file, 2 },
		{ slow_pipe, 0 },
		{ stopped_pipe, 2 },
		{ differences_are_found, 8 },
		{ first_difference_counts, 0 },
		{ progress_for_people, 0 },
		{ progress_for_programs, 0 },
	};

	return unit_main("devs", cases, ARRAY_SIZE(cases));
}
