/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <syslog.h>
#include <unistd.h>

#include "daemon.h"
#include "util.h"

/* -------------------------------------------------------------- messages */

static void say_stderr(const char *line)
{
	fprintf(stderr, "nbdfs: %s\n", line);
}

static void say_syslog(enum log_level level, const char *line)
{
	static const int priority[] = {
		[LOG_LVL_ERROR] = LOG_ERR,
		[LOG_LVL_WARN] = LOG_WARNING,
		[LOG_LVL_INFO] = LOG_INFO,
		[LOG_LVL_DEBUG] = LOG_DEBUG,
	};

	syslog(priority[level], "%s", line);
}

static void sink(void *arg, enum log_level level, const char *line)
{
	struct daemon *d = arg;

	pthread_mutex_lock(&d->lock);
	switch (d->say) {
	case SAY_LATER:
		if (d->nheld < DAEMON_HELD)
			d->held[d->nheld++] = strdup(line);
		break;
	case SAY_STDERR:
		say_stderr(line);
		break;
	case SAY_SYSLOG:
		say_syslog(level, line);
		break;
	}
	pthread_mutex_unlock(&d->lock);
}

/* What was held back is said where the user still looks. */
static void say_held(struct daemon *d, bool forget)
{
	unsigned i;

	for (i = 0; i < d->nheld; i++) {
		if (!forget && d->held[i])
			say_stderr(d->held[i]);
		free(d->held[i]);
	}
	d->nheld = 0;
}

void daemon_init(struct daemon *d, bool background, bool verbose, bool debug)
{
	*d = (struct daemon){
		.log = { .level = debug	  ? LOG_LVL_DEBUG :
				  verbose ? LOG_LVL_INFO :
					    LOG_LVL_WARN,
			 .sink = sink,
			 .arg = d },
		.background = background,
		.parent = -1,
		.say = verbose || debug ? SAY_STDERR : SAY_LATER,
	};
	pthread_mutex_init(&d->lock, NULL);
}

void daemon_free(struct daemon *d)
{
	if (d->pidfile)
		unlink(d->pidfile);
	free(d->pidfile);
	say_held(d, true);
	if (d->parent >= 0)
		close(d->parent);
	pthread_mutex_destroy(&d->lock);
}

/* --------------------------------------------------------------- process */

static void open_standard_files(void)
{
	int fd;

	do {
		fd = open("/dev/null", O_RDWR);
	} while (fd >= 0 && fd <= STDERR_FILENO);
	if (fd >= 0)
		close(fd);
}

void daemon_clean_process(bool debug)
{
	open_standard_files();
	if (close_range(STDERR_FILENO + 1, ~0u, 0) < 0) {
		int fd, max = (int)sysconf(_SC_OPEN_MAX);

		for (fd = STDERR_FILENO + 1; fd < max && fd < 65536; fd++)
			close(fd);
	}
	signal(SIGPIPE, SIG_IGN);
	if (!debug)
		process_forbid_core();
}

/* ------------------------------------------------------------ background */

/* The parent and the daemon: one byte that means that all is well, or the line
 * that says what is wrong. */
#define WELL '\n'

static void tell_parent(struct daemon *d, const char *text, size_t len)
{
	ssize_t n = 0;

	while (len > 0 && (n >= 0 || errno == EINTR)) {
		n = write(d->parent, text, len);
		if (n > 0) {
			text += n;
			len -= (size_t)n;
		}
	}
	close(d->parent);
	d->parent = -1;
}

/* A child that ends without a word. */
static void say_how_it_ended(pid_t child)
{
	int status;

	while (waitpid(child, &status, 0) < 0) {
		if (errno != EINTR)
			return;
	}
	if (WIFSIGNALED(status))
		fprintf(stderr, "nbdfs: ended by signal %d while starting\n",
			WTERMSIG(status));
	else
		fprintf(stderr, "nbdfs: ended with status %d while starting\n",
			WEXITSTATUS(status));
}

/* Signals that the user sends while it waits are for the child. */
static bool wait_for_word(int word, int signals, pid_t child)
{
	struct pollfd p[2] = {
		{ .fd = word, .events = POLLIN },
		{ .fd = signals, .events = POLLIN },
	};
	struct signalfd_siginfo si;

	for (;;) {
		if (poll(p, 2, -1) < 0 && errno != EINTR)
			return false;
		if (p[1].revents && read(signals, &si, sizeof(si)) > 0)
			kill(child, (int)si.ssi_signo);
		if (p[0].revents)
			return true;
	}
}

static int parent(int word, int signals, pid_t child)
{
	char text[sizeof(struct error)];
	size_t len = 0;
	ssize_t n;

	while (len < sizeof(text) - 1 && wait_for_word(word, signals, child)) {
		n = read(word, text + len, sizeof(text) - 1 - len);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			break;
		len += (size_t)n;
	}
	text[len] = '\0';
	if (len == 1 && text[0] == WELL)
		return 0;
	if (len > 0)
		fprintf(stderr, "nbdfs: %s\n", text);
	else
		say_how_it_ended(child);
	return 1;
}

static void take_signals(sigset_t *set)
{
	sigemptyset(set);
	sigaddset(set, SIGINT);
	sigaddset(set, SIGTERM);
	sigaddset(set, SIGHUP);
}

bool daemon_fork(struct daemon *d, int *status, struct error *err)
{
	sigset_t set, old;
	int word[2], signals;
	pid_t child;

	*status = 0;
	if (!d->background)
		return false;
	take_signals(&set);
	sigprocmask(SIG_BLOCK, &set, &old);
	signals = signalfd(-1, &set, SFD_CLOEXEC);
	if (signals < 0 || pipe2(word, O_CLOEXEC) < 0)
		goto fail;
	child = fork();
	if (child < 0)
		goto fail;
	if (child > 0) {
		close(word[1]);
		*status = parent(word[0], signals, child);
		return true;
	}
	close(word[0]);
	close(signals);
	sigprocmask(SIG_SETMASK, &old, NULL);
	setsid();
	d->parent = word[1];
	return false;
fail:
	error_set(err, "cannot go to the background: %s", strerror(errno));
	say_stderr(err->text);
	*status = 1;
	return true;
}

static void leave_terminal(void)
{
	int fd = open("/dev/null", O_RDWR | O_CLOEXEC);

	if (fd < 0)
		return;
	dup2(fd, STDIN_FILENO);
	dup2(fd, STDOUT_FILENO);
	dup2(fd, STDERR_FILENO);
	close(fd);
}

void daemon_started(struct daemon *d)
{
	char well = WELL;

	pthread_mutex_lock(&d->lock);
	say_held(d, false);
	d->say = SAY_STDERR;
	if (d->background) {
		openlog("nbdfs", LOG_PID, LOG_DAEMON);
		d->say = SAY_SYSLOG;
		leave_terminal();
		if (chdir("/") < 0)
			say_syslog(LOG_LVL_WARN, "cannot go to /");
	}
	pthread_mutex_unlock(&d->lock);
	if (d->parent >= 0)
		tell_parent(d, &well, 1);
}

void daemon_failed(struct daemon *d, const struct error *err)
{
	const char *text = err->text[0] ? err->text : "cannot start";

	if (d->parent >= 0)
		tell_parent(d, text, strlen(text));
	else
		say_stderr(text);
}

/* --------------------------------------------------------------- pid file */

/* The daemon does not stay where it was started. */
static char *absolute(const char *path)
{
	char *cwd, *all = NULL;

	if (path[0] == '/')
		return strdup(path);
	cwd = getcwd(NULL, 0);
	if (cwd && asprintf(&all, "%s/%s", cwd, path) < 0)
		all = NULL;
	free(cwd);
	return all;
}

int daemon_write_pidfile(struct daemon *d, const char *path, struct error *err)
{
	char *name = absolute(path);
	int fd, r = 0;

	if (!name) {
		error_set(err, "out of memory");
		return -ENOMEM;
	}
	fd = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (fd < 0 || dprintf(fd, "%ld\n", (long)getpid()) < 0)
		r = -errno;
	if (fd >= 0 && close(fd) < 0 && r == 0)
		r = -errno;
	if (r < 0) {
		error_set(err, "cannot write %s: %s", path, strerror(-r));
		free(name);
		return r;
	}
	d->pidfile = name;
	return 0;
}
