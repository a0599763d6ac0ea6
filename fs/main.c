/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* nbdfs: mounts NBD servers. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon.h"
#include "fs.h"
#include "loading.h"

/* Threads for what waits for the kernel. */
#define HELPERS 8

/* All of a mount. */
struct mount {
	struct fs fs;
	struct fs_options *opts;
	struct daemon *daemon;
	bool single_file; /* over a regular file */
	bool abandoned;	  /* ended by force: not all is freed */
	struct loop_watch signals;
};

/* ------------------------------------------------------------ mount point */

/* Absolute, in *path; of a kind that one can mount on. */
static int find_mountpoint(const char *name, char **path, bool *single_file,
			   struct error *err)
{
	struct stat st;
	int e;

	*path = realpath(name, NULL);
	if (*path && stat(*path, &st) == 0) {
		*single_file = S_ISREG(st.st_mode);
		if (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode))
			return 0;
		error_set(err, "%s: neither a folder nor a regular file", name);
		e = ENOTDIR;
	} else {
		e = errno;
		error_set(err, "%s: %s%s", *name ? name : "''", strerror(e),
			  e == ENOTCONN ? " (a mount that is left over: "
					  "unmount it first)" :
					  "");
	}
	free(*path);
	*path = NULL;
	return -e;
}

/* ---------------------------------------------------------------- signals */

static void got_signal(struct loop_watch *w, uint32_t events)
{
	struct mount *m = container_of(w, struct mount, signals);
	struct signalfd_siginfo si;

	(void)events;
	while (read(w->fd, &si, sizeof(si)) == (ssize_t)sizeof(si)) {
		if (si.ssi_signo == SIGUSR1)
			fs_log_stats(&m->fs);
		else
			fs_end(&m->fs);
	}
}

/* Ends the mount, or says how it is. */
static int watch_signals(struct mount *m, struct error *err)
{
	sigset_t set;
	int r;

	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGHUP);
	sigaddset(&set, SIGUSR1);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	m->signals.fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	r = m->signals.fd < 0 ? -errno : 0;
	m->signals.ready = got_signal;
	if (r == 0)
		r = loop_watch_add(m->fs.loop, &m->signals, EPOLLIN);
	if (r < 0)
		error_set(err, "signalfd: %s", strerror(-r));
	return r;
}

/* ----------------------------------------------------------------- set up */

static int no_memory(struct error *err)
{
	error_set(err, "out of memory");
	return -ENOMEM;
}

/* An image is not served by itself, as people may hope. */
static void explain_file(const char *word, struct error *err)
{
	struct stat st;

	if (!strstr(word, "://") && stat(word, &st) == 0 &&
	    (S_ISREG(st.st_mode) || S_ISBLK(st.st_mode)))
		error_set(err,
			  "%s is a file, not an NBD URI: run a server for it, "
			  "as in [ qemu-nbd -f FORMAT %s ]",
			  word, word);
}

static int add_sources(struct mount *m, struct error *err)
{
	size_t i;
	int r = 0;

	for (i = 0; i < m->opts->nsources && r == 0; i++) {
		const struct fs_source *s = &m->opts->sources[i];

		if (s->uri) {
			r = catalog_add_uri(m->fs.catalog, s->uri, err);
			if (r < 0)
				explain_file(s->uri, err);
		} else {
			r = catalog_add_command(m->fs.catalog, s->command, err);
		}
	}
	return r;
}

static int start_engine(struct mount *m, struct error *err)
{
	struct fs *fs = &m->fs;
	int r;

	fs->loop = loop_new();
	if (!fs->loop) {
		error_set(err, "epoll: %s", strerror(errno));
		return -errno;
	}
	m->opts->engine.log = m->daemon->log;
	fs->engine = engine_new(fs->loop, &m->opts->engine, err);
	if (!fs->engine)
		return -ENOMEM;
	fs->helpers = workers_new(fs->loop, HELPERS);
	fs->growers = workers_new(fs->loop, HELPERS);
	fs->catalog = catalog_new(fs->engine);
	if (!fs->helpers || !fs->growers || !fs->catalog)
		return no_memory(err);
	r = add_sources(m, err);
	if (r == 0)
		r = fs_load(fs->catalog, err);
	return r;
}

static int start(struct mount *m, struct error *err)
{
	struct fs *fs = &m->fs;
	size_t count;
	int r = start_engine(m, err);

	if (r < 0)
		return r;
	count = catalog_count(fs->catalog);
	if (m->single_file && count != 1) {
		error_set(err,
			  "%s is a file and can be one export only, but there "
			  "are %zu: name one of them in the URI",
			  fs->mountpoint, count);
		return -EINVAL;
	}
	fs_reqs_init(fs);
	TAILQ_INIT(&fs->refresh.waiting);
	if (fs_inodes_init(fs, m->single_file) < 0)
		return no_memory(err);
	r = watch_signals(m, err);
	if (r == 0)
		r = fs_session_mount(fs, err);
	if (r == 0 && m->opts->pidfile)
		r = daemon_write_pidfile(m->daemon, m->opts->pidfile, err);
	return r;
}

/* ---------------------------------------------------------------- the end */

static void free_engine(struct mount *m)
{
	struct fs *fs = &m->fs;

	if (fs->catalog)
		catalog_free(fs->catalog);
	if (fs->engine)
		engine_free(fs->engine);
	if (m->signals.fd >= 0) {
		loop_watch_del(fs->loop, &m->signals);
		close(m->signals.fd);
	}
	if (fs->loop)
		loop_free(fs->loop);
}

/* Also of what was only half built. */
static void mount_free(struct mount *m)
{
	struct fs *fs = &m->fs;
	/* Something still waits in the engine, as it was ended by force: what
	 * it holds goes with the process. */
	bool busy = fs->inodes.last && (!TAILQ_EMPTY(&fs->reqs.active) ||
					fs->copies || !fs->can_free);

	fs_session_unmount(fs);
	workers_free(fs->helpers);
	workers_free(fs->growers);
	m->abandoned = busy;
	if (busy)
		return;
	fs_session_free(fs);
	if (fs->inodes.last) {
		fs_reqs_free(fs);
		fs_inodes_free(fs);
	}
	free_engine(m);
}

/* Where the mount could not be made, the engine still has connections. */
static void stop_loop(void *arg, int error)
{
	struct fs *fs = arg;

	(void)error;
	fs->can_free = true;
	loop_stop(fs->loop);
}

static void take_down(struct mount *m)
{
	struct fs *fs = &m->fs;

	if (fs->catalog) {
		catalog_shutdown(fs->catalog, stop_loop, fs);
		loop_run(fs->loop);
	}
	fs->can_free = true;
}

static int serve(struct mount *m)
{
	struct error err = { .text = "" };
	int r;

	m->signals.fd = -1;
	if (start(m, &err) < 0) {
		/* Who hears of it finds the mount point free. */
		fs_session_unmount(&m->fs);
		daemon_failed(m->daemon, &err);
		take_down(m);
		mount_free(m);
		return 1;
	}
	daemon_started(m->daemon);
	r = loop_run(m->fs.loop);
	if (r < 0)
		log_msg(m->fs.log, LOG_LVL_ERROR, "epoll: %s", strerror(-r));
	if (r == 0)
		r = m->fs.error;
	m->fs.can_free = m->fs.shut_down;
	mount_free(m);
	return r < 0 ? 1 : 0;
}

/* *abandoned: something could not be freed, and the process must end by
 * _exit(2). */
static int mount_all(struct fs_options *opts, bool *abandoned)
{
	struct error err = { .text = "" };
	struct daemon daemon;
	struct mount *m;
	char *path;
	bool single_file = false;
	int status;

	daemon_clean_process(opts->debug);
	daemon_init(&daemon, !opts->foreground, opts->verbose, opts->debug);
	if (find_mountpoint(opts->mountpoint, &path, &single_file, &err) < 0) {
		daemon_failed(&daemon, &err);
		daemon_free(&daemon);
		return 1;
	}
	m = calloc(1, sizeof(*m));
	if (m && !daemon_fork(&daemon, &status, &err)) {
		m->opts = opts;
		m->daemon = &daemon;
		m->single_file = single_file;
		m->fs.opts = opts;
		m->fs.log = &daemon.log;
		m->fs.mountpoint = path;
		status = serve(m);
		*abandoned = m->abandoned;
	}
	if (!m)
		status = 1;
	if (!*abandoned)
		free(m);
	free(path);
	daemon_free(&daemon);
	return status;
}

/* ------------------------------------------------------------------- main */

static int print(const struct fs_options *opts)
{
	if (opts->dump)
		fs_options_dump(stdout);
	else if (opts->help)
		fs_options_help(stdout);
	else
		printf("nbdfs %s\n", NBDFS_VERSION);
	if (fflush(stdout) == 0 && !ferror(stdout))
		return 0;
	fprintf(stderr, "nbdfs: cannot write: %s\n", strerror(errno));
	return 1;
}

int main(int argc, char **argv)
{
	struct fs_options opts;
	struct error err;
	bool abandoned = false;
	int status;

	if (fs_options_parse(&opts, argc, argv, &err) < 0) {
		fprintf(stderr,
			"nbdfs: %s\nTry \"nbdfs --help\" for all options.\n",
			err.text);
		fs_options_free(&opts);
		return 2;
	}
	if (opts.help || opts.version || opts.dump)
		status = print(&opts);
	else if (opts.list)
		status = fs_list(&opts);
	else
		status = mount_all(&opts, &abandoned);
	fs_options_free(&opts);
	if (abandoned)
		_exit(status);
	return status;
}
