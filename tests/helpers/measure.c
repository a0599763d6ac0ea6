/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * measure [-o FILE] [-l SECONDS] [-d PID]... [-s PID]... COMMAND...: runs a
 * command and adds one line to FILE, or to standard output:
 *
 *	SECONDS TOOL DAEMON SERVER TOOL-KIB DAEMON-KIB
 *
 * how long it took; processor seconds of the command with its children, of the
 * processes given with -d, and of those given with -s; peak memory of the
 * command's largest process, and of the largest of -d. Nothing is written
 * where the command fails. After -l SECONDS the command is killed.
 *
 * Exits as the command does; 124 where it was killed in time, 125 where it
 * could not be run or a watched process is gone.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAX_WATCHED 64

struct watched {
	pid_t pid;
	clockid_t clock;
	double before;
};

struct group {
	struct watched list[MAX_WATCHED];
	size_t count;
};

/* What a signal handler must reach. */
static volatile sig_atomic_t child;
static volatile sig_atomic_t late;

static double seconds(const struct timespec *t)
{
	return (double)t->tv_sec + (double)t->tv_nsec / 1e9;
}

static double now(clockid_t clock)
{
	struct timespec t;

	return clock_gettime(clock, &t) ? -1 : seconds(&t);
}

static int group_add(struct group *group, const char *text)
{
	struct watched *w = &group->list[group->count];
	char *end;
	long pid = strtol(text, &end, 10);

	if (*end || pid <= 0 || pid > INT32_MAX || group->count == MAX_WATCHED)
		return -EINVAL;
	w->pid = (pid_t)pid;
	group->count++;
	return -clock_getcpuclockid(w->pid, &w->clock);
}

/* The kernel remembers peak memory from now on. */
static void forget_peak(pid_t pid)
{
	char name[64];
	ssize_t n;
	int fd;

	snprintf(name, sizeof(name), "/proc/%d/clear_refs", (int)pid);
	fd = open(name, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	n = write(fd, "5", 1);
	(void)n;
	close(fd);
}

static int group_start(struct group *group)
{
	for (size_t i = 0; i < group->count; i++) {
		struct watched *w = &group->list[i];

		forget_peak(w->pid);
		w->before = now(w->clock);
		if (w->before < 0)
			return -ESRCH;
	}
	return 0;
}

/* Processor seconds since group_start; negative where a process is gone. */
static double group_used(const struct group *group)
{
	double sum = 0;

	for (size_t i = 0; i < group->count; i++) {
		double t = now(group->list[i].clock);

		if (t < 0)
			return -1;
		sum += t - group->list[i].before;
	}
	return sum;
}

static long peak_kib(pid_t pid)
{
	char name[64], line[256];
	long kib = 0;
	FILE *file;

	snprintf(name, sizeof(name), "/proc/%d/status", (int)pid);
	file = fopen(name, "re");
	if (!file)
		return 0;
	while (fgets(line, sizeof(line), file))
		if (!strncmp(line, "VmHWM:", 6))
			kib = strtol(line + 6, NULL, 10);
	fclose(file);
	return kib;
}

static long group_peak(const struct group *group)
{
	long peak = 0;

	for (size_t i = 0; i < group->count; i++) {
		long kib = peak_kib(group->list[i].pid);

		if (kib > peak)
			peak = kib;
	}
	return peak;
}

static void on_signal(int sig)
{
	if (sig == SIGALRM)
		late = 1;
	if (child > 0)
		kill(-(pid_t)child, SIGKILL);
}

/* The command gets a process group, so that all of it can be ended. */
static int run(char **argv, unsigned int limit, int *status,
	       struct rusage *usage)
{
	pid_t pid = fork();

	if (pid < 0)
		return -errno;
	if (!pid) {
		setpgid(0, 0);
		execvp(argv[0], argv);
		fprintf(stderr, "measure: %s: %s\n", argv[0], strerror(errno));
		_exit(125);
	}
	setpgid(pid, pid);
	child = pid;
	alarm(limit);
	while (wait4(pid, status, 0, usage) < 0)
		if (errno != EINTR)
			return -errno;
	child = 0;
	alarm(0);
	return 0;
}

static int report(const char *file, double took, const struct rusage *usage,
		  const struct group *daemons, const struct group *servers)
{
	double daemon = group_used(daemons), server = group_used(servers);
	double tool = (double)usage->ru_utime.tv_sec +
		      (double)usage->ru_utime.tv_usec / 1e6 +
		      (double)usage->ru_stime.tv_sec +
		      (double)usage->ru_stime.tv_usec / 1e6;
	FILE *out = stdout;

	if (daemon < 0 || server < 0) {
		fprintf(stderr, "measure: a watched process has ended\n");
		return 125;
	}
	if (file)
		out = fopen(file, "ae");
	if (!out) {
		fprintf(stderr, "measure: %s: %s\n", file, strerror(errno));
		return 125;
	}
	fprintf(out, "%.6f %.6f %.6f %.6f %ld %ld\n", took, tool, daemon,
		server, usage->ru_maxrss, group_peak(daemons));
	if (!file)
		return fflush(out) ? 125 : 0;
	return fclose(out) ? 125 : 0;
}

static int usage_error(void)
{
	fprintf(stderr, "usage: measure [-o FILE] [-l SECONDS] [-d PID]... "
			"[-s PID]... COMMAND...\n");
	return 125;
}

int main(int argc, char **argv)
{
	static struct group daemons, servers;
	struct sigaction action = { .sa_handler = on_signal };
	struct rusage usage;
	const char *file = NULL;
	unsigned int limit = 0;
	double begin, took;
	int opt, err = 0, status = 0;

	while ((opt = getopt(argc, argv, "+o:l:d:s:")) != -1) {
		if (opt == 'o')
			file = optarg;
		else if (opt == 'l')
			limit = (unsigned int)strtoul(optarg, NULL, 10);
		else if (opt == 'd')
			err = group_add(&daemons, optarg);
		else if (opt == 's')
			err = group_add(&servers, optarg);
		else
			err = -EINVAL;
		if (err)
			return usage_error();
	}
	if (optind == argc)
		return usage_error();
	sigaction(SIGALRM, &action, NULL);
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGHUP, &action, NULL);
	if (group_start(&daemons) || group_start(&servers)) {
		fprintf(stderr, "measure: a process to watch is gone\n");
		return 125;
	}
	begin = now(CLOCK_MONOTONIC);
	err = run(argv + optind, limit, &status, &usage);
	took = now(CLOCK_MONOTONIC) - begin;
	if (err) {
		fprintf(stderr, "measure: %s\n", strerror(-err));
		return 125;
	}
	if (late)
		return 124;
	if (WIFSIGNALED(status))
		return 128 + WTERMSIG(status);
	if (WEXITSTATUS(status))
		return WEXITSTATUS(status);
	return report(file, took, &usage, &daemons, &servers);
}
