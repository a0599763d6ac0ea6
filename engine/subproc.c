/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * subproc.c - running a server: its socket, its start, its end.
 * What it prints is read by subproc_log.c.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "subproc.h"
#include "subproc_log.h"
#include "util.h"

/* The first descriptor after stdin, stdout, stderr: where socket activation
 * puts the socket. */
#define LISTEN_FD 3
/* Descriptors that the child puts elsewhere are kept clear of its targets. */
#define HIGH_FD 10
/* Room for a process id in LISTEN_PID. */
#define PID_DIGITS 12
/* What a killed process may take to go. */
#define KILL_WAIT_MS 2000

struct subproc {
	char **argv;
	char *dir, *path;	 /* private folder, socket in it; or only a
				  * path, by way of: */
	int path_fd;		 /* or -1 */
	struct subproc_log *out; /* what it prints */

	pthread_mutex_t lock; /* guards what follows */
	pid_t pid;	      /* 0: not started, or reaped */
	bool ended, answered;
	siginfo_t how; /* when ended */
};

/* All that the child needs, made before the fork: after it, in a program with
 * threads, nothing may allocate. */
struct launch {
	char *const *argv;
	char **env;
	char *listen_pid; /* in env: the digits go here */
	int listen_fd, out_fd, null_fd, report_fd;
	pid_t parent;
};

/* ---------------------------------------------------------- making one */

static void free_strings(char **list)
{
	if (!list)
		return;
	for (size_t i = 0; list[i]; i++)
		free(list[i]);
	free(list);
}

static char **copy_strings(char *const list[])
{
	size_t n = 0;
	char **copy;

	while (list[n])
		n++;
	copy = calloc(n + 1, sizeof(*copy));
	if (!copy)
		return NULL;
	for (size_t i = 0; i < n; i++) {
		copy[i] = strdup(list[i]);
		if (!copy[i]) {
			free_strings(copy);
			return NULL;
		}
	}
	return copy;
}

int subproc_new(char *const argv[], struct subproc **proc, struct error *err)
{
	struct subproc *p;

	if (!argv[0] || !*argv[0]) {
		error_set(err, "no command stands between [ and ]");
		return -EINVAL;
	}
	p = calloc(1, sizeof(*p));
	if (!p)
		goto no_memory;
	p->argv = copy_strings(argv);
	if (!p->argv)
		goto no_memory;
	p->path_fd = -1;
	pthread_mutex_init(&p->lock, NULL);
	*proc = p;
	return 0;
no_memory:
	free(p);
	error_set(err, "out of memory");
	return -ENOMEM;
}

/* ------------------------------------------------------------- a socket */

static int socket_in(struct subproc *p, const char *base)
{
	if (asprintf(&p->dir, "%s/nbdfs-XXXXXX", base) < 0) {
		p->dir = NULL;
		return -ENOMEM;
	}
	if (strlen(p->dir) + sizeof("/nbd") >
	    sizeof(((struct sockaddr_un *)NULL)->sun_path)) {
		free(p->dir);
		p->dir = NULL;
		return -ENAMETOOLONG;
	}
	if (!mkdtemp(p->dir)) {
		int r = -errno;

		free(p->dir);
		p->dir = NULL;
		return r;
	}
	if (asprintf(&p->path, "%s/nbd", p->dir) < 0) {
		p->path = NULL;
		return -ENOMEM;
	}
	return 0;
}

static void remove_socket(struct subproc *p)
{
	if (p->path_fd >= 0)
		close(p->path_fd);
	if (p->path && p->dir)
		unlink(p->path);
	if (p->dir)
		rmdir(p->dir);
	p->path_fd = -1;
	free(p->path);
	free(p->dir);
	p->path = p->dir = NULL;
}

static int make_folder(struct subproc *p, struct error *err)
{
	const char *bases[] = { getenv("XDG_RUNTIME_DIR"), getenv("TMPDIR"),
				"/tmp" };
	int r = -ENOENT;

	for (size_t i = 0; i < ARRAY_SIZE(bases); i++) {
		/* Relative ones would not outlive a change of folder. */
		if (!bases[i] || bases[i][0] != '/')
			continue;
		r = socket_in(p, bases[i]);
		if (r == 0 || r == -ENOMEM)
			break;
	}
	if (r < 0)
		error_set(err, "cannot make a private folder in /tmp: %s",
			  strerror(-r));
	return r;
}

/* Never one of the low numbers; closed on exec. Takes fd over. */
static int move_high(int fd)
{
	int high, e;

	if (fd < 0)
		return -1;
	high = fcntl(fd, F_DUPFD_CLOEXEC, HIGH_FD);
	e = errno;
	close(fd);
	errno = e;
	return high;
}

/* A socket without a name can still be reached by a descriptor: then nothing is
 * left behind, however this process ends. Where that does not work, it keeps
 * its name. */
static void hide_socket(struct subproc *p)
{
	char *path;
	int fd = move_high(open(p->path, O_PATH | O_NOFOLLOW | O_CLOEXEC));

	if (fd < 0)
		return;
	if (asprintf(&path, "/proc/self/fd/%d", fd) < 0)
		path = NULL;
	if (!path || access(path, F_OK) < 0) {
		free(path);
		close(fd);
		return;
	}
	remove_socket(p);
	p->path_fd = fd;
	p->path = path;
}

static int make_listener(struct subproc *p, int *listen_fd, struct error *err)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	int fd, r;

	r = make_folder(p, err);
	if (r < 0)
		return r;
	/* Fits: socket_in() has measured it. */
	memcpy(sa.sun_path, p->path, strlen(p->path) + 1);
	fd = move_high(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
	if (fd < 0 || bind(fd, (struct sockaddr *)&sa, sizeof(sa)) < 0 ||
	    listen(fd, SOMAXCONN) < 0) {
		r = -errno;
		error_set(err, "cannot listen on %s: %s", p->path,
			  strerror(-r));
		if (fd >= 0)
			close(fd);
		return r;
	}
	hide_socket(p);
	*listen_fd = fd;
	return 0;
}

/* -------------------------------------------------------------- a child */

/* Everything below runs in the child between fork and exec. */

static void child_set_pid(char *to, pid_t pid)
{
	char digits[PID_DIGITS];
	size_t n = 0;

	do {
		digits[n++] = (char)('0' + pid % 10);
		pid /= 10;
	} while (pid > 0 && n < sizeof(digits));
	while (n > 0)
		*to++ = digits[--n];
	*to = '\0';
}

static void child_signals(void)
{
	struct sigaction sa = { .sa_handler = SIG_DFL };
	sigset_t none;

	for (int sig = 1; sig < NSIG; sig++)
		sigaction(sig, &sa, NULL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
}

/* What other code in this process may have left inheritable. */
static void child_close_others(void)
{
	unsigned first = LISTEN_FD + 1;
	struct rlimit rl;

#ifdef SYS_close_range
	/* 4: set close-on-exec instead of closing (the report must live). */
	if (syscall(SYS_close_range, first, ~0U, 4) == 0)
		return;
#endif
	if (getrlimit(RLIMIT_NOFILE, &rl) < 0 || rl.rlim_cur > 65536)
		rl.rlim_cur = 65536;
	for (int fd = (int)first; fd < (int)rl.rlim_cur; fd++)
		fcntl(fd, F_SETFD, FD_CLOEXEC);
}

static void child_fail(const struct launch *l)
{
	int e = errno;
	ssize_t n = write(l->report_fd, &e, sizeof(e));

	(void)n;
	_exit(127);
}

static void child_run(const struct launch *l)
{
	/* A group of its own: Ctrl-C at the terminal is for us, and we end
	 * the server when everything has been written. */
	setpgid(0, 0);
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (getppid() != l->parent)
		_exit(127);
	/* Its output must not run into what we print on ours. */
	if (dup2(l->null_fd, 0) < 0 || dup2(l->out_fd, 1) < 0 ||
	    dup2(l->out_fd, 2) < 0 || dup2(l->listen_fd, LISTEN_FD) < 0)
		child_fail(l);
	child_close_others();
	child_set_pid(l->listen_pid, getpid());
	child_signals();
	execvpe(l->argv[0], l->argv, l->env);
	child_fail(l);
}

/* The parent's again. */

static int make_env(struct launch *l)
{
	static char listen_fds[] = "LISTEN_FDS=1";
	static const char name[] = "LISTEN_PID=";
	size_t n = 0, out = 0;

	while (environ && environ[n])
		n++;
	l->env = calloc(n + 3, sizeof(*l->env));
	l->listen_pid = calloc(1, sizeof(name) + PID_DIGITS);
	if (!l->env || !l->listen_pid)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++)
		if (strncmp(environ[i], "LISTEN_", 7) != 0)
			l->env[out++] = environ[i];
	memcpy(l->listen_pid, name, sizeof(name));
	l->env[out++] = l->listen_pid;
	l->env[out++] = listen_fds;
	l->listen_pid += sizeof(name) - 1;
	return 0;
}

static void free_env(struct launch *l)
{
	if (l->listen_pid)
		free(l->listen_pid - (sizeof("LISTEN_PID=") - 1));
	free(l->env);
}

/* Waits until the exec has happened or has failed; -errno of the failure. */
static int exec_result(int fd)
{
	int e = 0;
	ssize_t n;

	do
		n = read(fd, &e, sizeof(e));
	while (n < 0 && errno == EINTR);
	if (n == 0)
		return 0;
	return n == (ssize_t)sizeof(e) && e > 0 ? -e : -EIO;
}

static int launch_fork(struct subproc *p, struct launch *l)
{
	sigset_t all, old;
	int report[2], r;
	pid_t pid;

	if (pipe2(report, O_CLOEXEC) < 0)
		return -errno;
	l->report_fd = move_high(report[1]);
	if (l->report_fd < 0) {
		r = -errno;
		goto out;
	}
	l->parent = getpid();
	/* No handler of ours may run in the child. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	pid = fork();
	if (pid == 0)
		child_run(l);
	r = pid < 0 ? -errno : 0;
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	close(l->report_fd);
	if (r < 0)
		goto out;
	r = exec_result(report[0]);
	if (r < 0)
		waitpid(pid, NULL, 0);
	else
		p->pid = pid;
out:
	close(report[0]);
	return r;
}

static int launch(struct subproc *p, int listen_fd, int out_fd,
		  struct error *err)
{
	struct launch l = {
		.argv = p->argv,
		.listen_fd = listen_fd,
		.out_fd = out_fd,
	};
	int r;

	l.null_fd = move_high(open("/dev/null", O_RDONLY | O_CLOEXEC));
	if (l.null_fd < 0)
		r = -errno;
	else
		r = make_env(&l);
	if (r == 0)
		r = launch_fork(p, &l);
	if (r < 0)
		error_set(err, "cannot run '%s': %s", p->argv[0], strerror(-r));
	free_env(&l);
	if (l.null_fd >= 0)
		close(l.null_fd);
	return r;
}

int subproc_start(struct subproc *p, const struct log *log, struct error *err)
{
	int listen_fd = -1, out_fd = -1, r;

	r = make_listener(p, &listen_fd, err);
	if (r < 0)
		goto out;
	r = subproc_log_new(p->argv[0], log, &p->out, &out_fd, err);
	if (r < 0)
		goto out;
	out_fd = move_high(out_fd);
	if (out_fd < 0) {
		r = -errno;
		error_set(err, "cannot run '%s': %s", p->argv[0], strerror(-r));
		goto out;
	}
	r = launch(p, listen_fd, out_fd, err);
out:
	/* Only the child listens: when it ends, connecting fails. */
	if (listen_fd >= 0)
		close(listen_fd);
	if (out_fd >= 0)
		close(out_fd);
	if (r < 0) {
		subproc_log_free(p->out);
		p->out = NULL;
		remove_socket(p);
	}
	return r;
}

void subproc_answered(struct subproc *p)
{
	pthread_mutex_lock(&p->lock);
	p->answered = true;
	pthread_mutex_unlock(&p->lock);
	if (p->out)
		subproc_log_release(p->out);
}

const char *subproc_socket(const struct subproc *p)
{
	return p->path;
}

/* ----------------------------------------------------------- its end */

static void pause_ms(unsigned ms)
{
	struct timespec ts = { .tv_sec = ms / 1000,
			       .tv_nsec = (long)(ms % 1000) * 1000000 };

	while (clock_nanosleep(CLOCK_MONOTONIC, 0, &ts, &ts) == EINTR)
		;
}

/* Looks whether it has ended, without taking its number out of the table:
 * that stays reserved for signals to the group. With the lock held. */
static bool look(struct subproc *p)
{
	siginfo_t si = { 0 };

	if (p->ended || p->pid == 0)
		return true;
	if (waitid(P_PID, (id_t)p->pid, &si, WEXITED | WNOHANG | WNOWAIT) < 0) {
		/* Somebody else has reaped it. */
		p->ended = errno == ECHILD;
	} else if (si.si_pid == p->pid) {
		p->ended = true;
		p->how = si;
	}
	return p->ended;
}

static bool ends_within(struct subproc *p, unsigned ms)
{
	unsigned step = 1;
	bool ended;

	while (1) {
		pthread_mutex_lock(&p->lock);
		ended = look(p);
		pthread_mutex_unlock(&p->lock);
		if (ended || ms == 0)
			return ended;
		if (step > ms)
			step = ms;
		pause_ms(step);
		ms -= step;
		step = step < 16 ? step * 2 : 20;
	}
}

bool subproc_alive(struct subproc *p)
{
	bool alive;

	pthread_mutex_lock(&p->lock);
	alive = p->pid > 0 && !look(p);
	pthread_mutex_unlock(&p->lock);
	return alive;
}

bool subproc_ended(struct subproc *p, unsigned wait_ms, struct error *how)
{
	struct error said;
	const char *colon, *when;
	siginfo_t si;

	if (!p->out || !ends_within(p, wait_ms))
		return false;
	subproc_log_said(p->out, &said);
	colon = *said.text ? ": " : "";
	pthread_mutex_lock(&p->lock);
	si = p->how;
	when = p->answered ? "" : " before answering";
	pthread_mutex_unlock(&p->lock);
	if (si.si_pid == 0)
		error_set(how, "ended%s%s%s", when, colon, said.text);
	else if (si.si_code == CLD_EXITED)
		error_set(how, "ended with status %d%s%s%s", si.si_status, when,
			  colon, said.text);
	else
		error_set(how, "was ended by signal %d%s%s%s", si.si_status,
			  when, colon, said.text);
	return true;
}

/* Programs that it started and that are still there. */
static void end_group(pid_t pgid, unsigned grace_ms)
{
	for (unsigned ms = 0; ms < grace_ms; ms += 10) {
		if (kill(-pgid, 0) < 0)
			return;
		pause_ms(10);
	}
	kill(-pgid, SIGKILL);
}

void subproc_stop(struct subproc *p, unsigned grace_ms)
{
	pid_t pid = p->pid;

	if (pid > 0) {
		kill(-pid, SIGTERM);
		if (!ends_within(p, grace_ms)) {
			kill(-pid, SIGKILL);
			ends_within(p, KILL_WAIT_MS);
		}
		pthread_mutex_lock(&p->lock);
		waitpid(pid, NULL, WNOHANG);
		p->pid = 0;
		p->ended = true;
		pthread_mutex_unlock(&p->lock);
		end_group(pid, grace_ms);
	}
	subproc_log_free(p->out);
	p->out = NULL;
	remove_socket(p);
}

void subproc_free(struct subproc *p)
{
	if (!p)
		return;
	subproc_stop(p, 1000);
	free_strings(p->argv);
	pthread_mutex_destroy(&p->lock);
	free(p);
}
