/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * aiopages FILE SECONDS - writes past the pages that the kernel has of a file,
 * asynchronously and with O_DIRECT, a few bytes in several places of one page
 * at a time, while a child looks at this page all the time. Prints how often
 * the page was not what had been written.
 */
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
#define PIECES 7
#define LEN 2

static uint8_t model[PAGE];

static void look(const volatile uint8_t *page)
{
	unsigned sum = 0;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (unsigned i = 0;; i++)
		sum += page[i % PAGE];
}

static int write_some(aio_context_t ctx, int fd, unsigned n)
{
	struct iocb cb[PIECES], *list[PIECES];
	struct io_event done[PIECES];
	unsigned at = n * 31 % (PAGE - PIECES * LEN);

	memset(cb, 0, sizeof(cb));
	for (unsigned i = 0; i < PIECES; i++, at += LEN) {
		model[at] = (uint8_t)(n + i);
		model[at + 1] = (uint8_t)(n >> 8);
		cb[i].aio_lio_opcode = IOCB_CMD_PWRITE;
		cb[i].aio_fildes = (uint32_t)fd;
		cb[i].aio_buf = (uintptr_t)&model[at];
		cb[i].aio_nbytes = LEN;
		cb[i].aio_offset = at;
		list[i] = &cb[i];
	}
	if (syscall(SYS_io_submit, ctx, PIECES, list) != PIECES ||
	    syscall(SYS_io_getevents, ctx, PIECES, PIECES, done, NULL) !=
		    PIECES)
		return -1;
	for (unsigned i = 0; i < PIECES; i++)
		if (done[i].res != LEN)
			return -1;
	return 0;
}

int main(int argc, char **argv)
{
	unsigned stale = 0, n = 0;
	aio_context_t ctx = 0;
	uint8_t *page;
	time_t end;
	int fd;

	if (argc != 3)
		return 2;
	end = time(NULL) + (time_t)strtol(argv[2], NULL, 10);
	fd = open(argv[1], O_RDWR | O_DIRECT | O_CLOEXEC);
	page = mmap(NULL, PAGE, PROT_READ, MAP_SHARED,
		    open(argv[1], O_RDONLY | O_CLOEXEC), 0);
	if (fd < 0 || page == MAP_FAILED || pread(fd, model, PAGE, 0) != PAGE ||
	    syscall(SYS_io_setup, PIECES, &ctx) < 0) {
		perror(argv[1]);
		return 1;
	}
	if (fork() == 0)
		look(page);
	for (; time(NULL) < end; n++) {
		if (write_some(ctx, fd, n)) {
			perror("aio");
			return 1;
		}
		stale += memcmp(page, model, PAGE) != 0;
	}
	printf("stale %u\n", stale);
	fprintf(stderr, "of %u\n", n);
	return 0;
}
