/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * truncmany ROUNDS FILE...: a thread for each file makes all its pages dirty
 * by a mapping and truncates it to 0, again and again. After each truncation
 * the mapping has to be zero. Prints "done", or what is wrong.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define THREADS_MAX 256
#define PAGE 4096

struct job {
	const char *name;
	unsigned long rounds;
	pthread_t thread;
	const char *wrong;
};

static const char *work(const struct job *job, int fd)
{
	struct stat st;
	size_t len, i;
	char *map;

	if (fstat(fd, &st) < 0)
		return "fstat";
	len = (size_t)st.st_size;
	map = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		return "mmap";
	for (unsigned long n = 0; n < job->rounds; n++) {
		for (i = 0; i < len; i += PAGE)
			map[i] = (char)(n | 1);
		if (ftruncate(fd, 0) < 0)
			return "ftruncate";
		for (i = 0; i < len; i += PAGE)
			if (map[i] != 0)
				return "old bytes after a truncation";
	}
	munmap(map, len);
	return NULL;
}

static void *run(void *arg)
{
	struct job *job = arg;
	int fd = open(job->name, O_RDWR | O_CLOEXEC);

	job->wrong = fd < 0 ? "open" : work(job, fd);
	if (fd >= 0)
		close(fd);
	return NULL;
}

int main(int argc, char **argv)
{
	static struct job jobs[THREADS_MAX];
	int n = argc - 2, status = 0;

	if (n < 1 || n > THREADS_MAX) {
		fprintf(stderr, "usage: truncmany ROUNDS FILE...\n");
		return 2;
	}
	for (int i = 0; i < n; i++) {
		jobs[i].name = argv[i + 2];
		jobs[i].rounds = strtoul(argv[1], NULL, 10);
		if (pthread_create(&jobs[i].thread, NULL, run, &jobs[i]))
			return 2;
	}
	for (int i = 0; i < n; i++) {
		pthread_join(jobs[i].thread, NULL);
		if (!jobs[i].wrong)
			continue;
		printf("%s: %s\n", jobs[i].name, jobs[i].wrong);
		status = 1;
	}
	if (status == 0)
		puts("done");
	return status;
}
