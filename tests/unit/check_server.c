/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Operands, block sizes, and servers that run as a child. */
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "negotiate.h"
#include "subproc.h"
#include "unit.h"
#include "util.h"

/* ------------------------------------------------------------ operands */

static struct server *parse(const char *operand)
{
	struct server *srv = NULL;
	struct error err = { "" };

	ck_assert_msg(server_parse_uri(operand, &srv, &err) == 0, "%s: %s",
		      operand, err.text);
	return srv;
}

static void is_or_null(const char *got, const char *want)
{
	if (want)
		ck_assert_pstr_eq(got, want);
	else
		ck_assert_ptr_null(got);
}

START_TEST(good_operands)
{
	static const struct {
		const char *operand, *label, *name, *export;
	} good[] = {
		{ "nbd://h", "nbd://h", NULL, NULL },
		{ "nbd://h/", "nbd://h/", NULL, NULL },
		{ "nbd://h:10810/x", "nbd://h:10810/x", NULL, "x" },
		{ "NBD://h/x", "NBD://h/x", NULL, "x" },
		{ "nbd://[::1]:1/", "nbd://[::1]:1/", NULL, NULL },
		{ "nbd://[::1]/x", "nbd://[::1]/x", NULL, "x" },
		{ "nbd://h//x", "nbd://h//x", NULL, "/x" },
		{ "nbd://h/a%2Fb%20c", "nbd://h/a%2Fb%20c", NULL, "a/b c" },
		{ "nbd://h/x#frag", "nbd://h/x", NULL, "x" },
		{ "nbd://h?a=b", "nbd://h?a=b", NULL, NULL },
		{ "nbds://alice@h/x", "nbds://alice@h/x", NULL, "x" },
		{ "nbds://alice:pass:w@h/x", "nbds://alice@h/x", NULL, "x" },
		{ "nbds://alice:p@ss@h/x", "nbds://alice@h/x", NULL, "x" },
		{ "nbds://h/x?tls-psk-file=/secret&a=b&TLS-certificates=/c",
		  "nbds://h/x?a=b", NULL, "x" },
		{ "nbds://h/x?tls-psk-file=/s;a=b", "nbds://h/x?a=b", NULL,
		  "x" },
		{ "nbds://h/x?tls-psk-file=/secret", "nbds://h/x", NULL, "x" },
		{ "nbd+unix:///?socket=/s", "nbd+unix:///?socket=/s", NULL,
		  NULL },
		{ "nbd+unix:///x?socket=/s", "nbd+unix:///x?socket=/s", NULL,
		  "x" },
		{ "nbds+unix://u@/x?socket=/s", "nbds+unix://u@/x?socket=/s",
		  NULL, "x" },
		{ "nbd+vsock://2:4294967295/x", "nbd+vsock://2:4294967295/x",
		  NULL, "x" },
		{ "nbds+vsock:///", "nbds+vsock:///", NULL, NULL },
		{ "disk=nbd://h", "nbd://h", "disk", NULL },
		{ "a b.img=nbd://h/x=y", "nbd://h/x=y", "a b.img", "x=y" },
		{ ".hidden=nbd://h/", "nbd://h/", ".hidden", NULL },
		{ "nbd://h/a=b", "nbd://h/a=b", NULL, "a=b" },
		{ "nbd://h=/", "nbd://h=/", NULL, NULL },
	};

	for (size_t i = 0; i < ARRAY_SIZE(good); i++) {
		struct server *srv = parse(good[i].operand);

		ck_assert_str_eq(server_label(srv), good[i].label);
		is_or_null(server_file_name(srv), good[i].name);
		is_or_null(server_export(srv), good[i].export);
		ck_assert(!server_is_command(srv));
		ck_assert(server_alive(srv));
		server_free(srv);
	}
}
END_TEST

START_TEST(bad_operands)
{
	static const struct {
		const char *operand, *text;
	} bad[] = {
		{ "", "is not an NBD URI" },
		{ "disk.img", "is not an NBD URI" },
		{ "/dev/nbd0", "is not an NBD URI" },
		{ "http://h/", "is not an NBD URI" },
		{ "nbdx://h/", "is not an NBD URI" },
		{ "nbd+ssh://h/", "is not an NBD URI" },
		{ "nbd+unixx:///?socket=/s", "is not an NBD URI" },
		{ "nb://h/", "is not an NBD URI" },
		{ "a/b=nbd://h", "is not an NBD URI" },
		{ "a:b=nbd://h", "is not an NBD URI" },
		{ "name=", "is not an NBD URI" },
		{ "a=b=nbd://h", "is not an NBD URI" },
		{ "=nbd://h", "is empty" },
		{ ".=nbd://h", "is no file name" },
		{ "..=nbd://h", "is no file name" },
		{ "nbd:h:10809", "'//' must follow" },
		{ "nbd:/x", "'//' must follow" },
		{ "nbd://h:port/", "is not a port number" },
		{ "nbd://h:0/", "is not a port number" },
		{ "nbd://h:65536/", "is not a port number" },
		{ "nbd://h:-1/", "is not a port number" },
		{ "nbd+vsock://2:4294967296/", "is not a port number" },
		{ "nbd://h/%", "wrong %-escape" },
		{ "nbd://h/%4", "wrong %-escape" },
		{ "nbd://h/%zz", "wrong %-escape" },
		{ "nbd://h/a%00b", "wrong %-escape" },
		{ "nbd+unix:///?socket=%zz", "wrong %-escape" },
		{ "nbd+unix:///x", "names no socket" },
		{ "nbd+unix:///x?socket=", "names no socket" },
		{ "nbd://h/x?socket=/s", "takes ?socket=" },
	};

	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		struct server *srv = NULL;
		struct error err = { "" };
		int r = server_parse_uri(bad[i].operand, &srv, &err);

		ck_assert_msg(r == -EINVAL, "%s: %d", bad[i].operand, r);
		ck_assert_ptr_null(srv);
		ck_assert_msg(strstr(err.text, bad[i].text), "%s: %s",
			      bad[i].operand, err.text);
	}
}
END_TEST

START_TEST(long_operands)
{
	static char text[8192];
	struct server *srv = NULL;
	struct error err;

	/* A name of 255 bytes is one, 256 are too many. */
	memset(text, 'n', 256);
	snprintf(text + 255, 100, "=nbd://h");
	server_free(parse(text));
	memset(text, 'n', 256);
	snprintf(text + 256, 100, "=nbd://h");
	ck_assert_int_eq(server_parse_uri(text, &srv, &err), -EINVAL);
	/* So it is with 4096 for the export. */
	memset(text, 'n', sizeof(text));
	memcpy(text, "nbd://h/", 8);
	text[8 + 4096] = '\0';
	server_free(parse(text));
	text[8 + 4096] = 'n';
	text[8 + 4097] = '\0';
	ck_assert_int_eq(server_parse_uri(text, &srv, &err), -ENAMETOOLONG);
	/* And with what fits into an address. */
	memset(text, 'n', sizeof(text));
	memcpy(text, "nbd+unix:///?socket=/", 21);
	text[20 + 107] = '\0';
	server_free(parse(text));
	text[20 + 107] = 'n';
	text[20 + 108] = '\0';
	ck_assert_int_eq(server_parse_uri(text, &srv, &err), -ENAMETOOLONG);
}
END_TEST

/* A daemon changes its folder: relative paths are of the folder in which they
 * were given. */
START_TEST(relative_socket)
{
	char dir[] = "/tmp/nbdfs-check-XXXXXX";
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	struct nbd_handle *nbd = nbd_create();
	struct server *srv;
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);

	ck_assert_ptr_nonnull(mkdtemp(dir));
	ck_assert_int_eq(chdir(dir), 0);
	snprintf(sa.sun_path, sizeof(sa.sun_path), "a b%%");
	ck_assert_int_eq(bind(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
	ck_assert_int_eq(listen(fd, 1), 0);
	srv = parse("nbd+unix:///?socket=a%20b%25");
	ck_assert_int_eq(chdir("/"), 0);
	ck_assert_int_eq(server_aio_connect(srv, nbd), 0);
	server_free(srv);
	nbd_close(nbd);
	close(fd);
	ck_assert_int_eq(chdir(dir), 0);
	unlink("a b%");
	rmdir(dir);
}
END_TEST

/* --------------------------------------------------------- block sizes */

START_TEST(block_sizes)
{
	static const uint64_t none = UINT32_MAX;
	static const struct {
		uint64_t min, pref, max;
		int result;
		uint32_t emin, epref, emax;
	} c[] = {
		{ 0, 0, 0, 0, 1, 4096, 32 << 20 },
		{ 1, 4096, none, 0, 1, 4096, 32 << 20 },
		{ 1, 4096, 32 << 20, 0, 1, 4096, 32 << 20 },
		{ 1, 4096, 64 << 20, 0, 1, 4096, 32 << 20 },
		{ 512, 4096, 65536, 0, 512, 4096, 65536 },
		{ 65536, 65536, 65536, 0, 65536, 65536, 65536 },
		{ 65536, 0, 0, 0, 65536, 65536, 32 << 20 },
		{ 512, 1 << 20, 3 * 512, 0, 512, 1024, 3 * 512 },
		{ 512, 1U << 31, none, 0, 512, 32 << 20, 32 << 20 },
		{ 3, 4096, none, -EPROTO, 0, 0, 0 },
		{ 131072, 131072, none, -EPROTO, 0, 0, 0 },
		{ 512, 256, none, -EPROTO, 0, 0, 0 },
		{ 512, 1000, none, -EPROTO, 0, 0, 0 },
		{ 512, 512, 1000, -EPROTO, 0, 0, 0 },
		{ 512, 512, 256, -EPROTO, 0, 0, 0 },
		{ 1, 1, none + 1, -EPROTO, 0, 0, 0 },
		{ 1, 1ULL << 33, none, -EPROTO, 0, 0, 0 },
		{ INT64_MAX, 1, none, -EPROTO, 0, 0, 0 },
	};

	for (size_t i = 0; i < ARRAY_SIZE(c); i++) {
		struct nbd_caps caps = { 0 };
		struct error why = { "" };

		ck_assert_int_eq(nbd_caps_blocks(c[i].min, c[i].pref, c[i].max,
						 &caps, &why),
				 c[i].result);
		ck_assert_uint_eq(caps.min_block, c[i].emin);
		ck_assert_uint_eq(caps.pref_block, c[i].epref);
		ck_assert_uint_eq(caps.max_block, c[i].emax);
		ck_assert((*why.text != '\0') == (c[i].result < 0));
	}
}
END_TEST

START_TEST(caps_same)
{
	struct nbd_caps a = { .size = 1000,
			      .min_block = 512,
			      .pref_block = 4096,
			      .max_block = 65536,
			      .flush = true,
			      .status = true };
	struct nbd_caps b = a;

	ck_assert(nbd_caps_same(&a, &b));
	b.size++;
	ck_assert(!nbd_caps_same(&a, &b));
	b = a;
	b.min_block = 1024;
	ck_assert(!nbd_caps_same(&a, &b));
	b.min_block = 1;
	ck_assert(nbd_caps_same(&a, &b));
	b = a;
	b.max_block = 32768;
	ck_assert(!nbd_caps_same(&a, &b));
	b.max_block = 131072;
	ck_assert(nbd_caps_same(&a, &b));
	b = a;
	b.read_only = true;
	ck_assert(!nbd_caps_same(&a, &b));
	b = a;
	b.flush = false;
	ck_assert(!nbd_caps_same(&a, &b));
	b = a;
	b.status = false;
	ck_assert(!nbd_caps_same(&a, &b));
	b = a;
	b.zero = b.trim = b.fua = true;
	ck_assert(nbd_caps_same(&a, &b));
}
END_TEST

/* ------------------------------------------------------------ children */

struct lines {
	pthread_mutex_t lock;
	char text[4096];
};

static void add_line(void *arg, enum log_level level, const char *line)
{
	struct lines *l = arg;
	size_t n;

	(void)level;
	pthread_mutex_lock(&l->lock);
	n = strlen(l->text);
	snprintf(l->text + n, sizeof(l->text) - n, "%s\n", line);
	pthread_mutex_unlock(&l->lock);
}

/* While the reader is at work. */
static bool has_line(struct lines *l)
{
	bool has;

	pthread_mutex_lock(&l->lock);
	has = strchr(l->text, '\n') != NULL;
	pthread_mutex_unlock(&l->lock);
	return has;
}

static struct subproc *start_shell(const char *script, const struct log *log)
{
	char sh[] = "sh", c[] = "-c", text[1024];
	char *argv[] = { sh, c, text, NULL };
	struct subproc *p;
	struct error err = { "" };

	snprintf(text, sizeof(text), "%s", script);
	ck_assert_int_eq(subproc_new(argv, &p, &err), 0);
	/* Copied: ours may go. */
	memset(text, 'x', sizeof(text) - 1);
	ck_assert_msg(subproc_start(p, log, &err) == 0, "%s", err.text);
	return p;
}

/* A socket that can be reached, but has no name that could be left behind. */
static bool is_hidden_socket(const char *path)
{
	struct stat st;

	return strncmp(path, "/proc/self/fd/", 14) == 0 &&
	       stat(path, &st) == 0 && S_ISSOCK(st.st_mode);
}

/* How many private folders of ours are in a folder. */
static unsigned folders_in(const char *base)
{
	char pattern[200];
	unsigned n = 0;
	glob_t g;

	snprintf(pattern, sizeof(pattern), "%s/nbdfs-??????", base);
	if (glob(pattern, 0, NULL, &g) == 0) {
		n = (unsigned)g.gl_pathc;
		globfree(&g);
	}
	return n;
}

/* What the child finds: exit status 0 when all is as it should be. */
START_TEST(child_surroundings)
{
	static const char script[] =
		"test \"$LISTEN_PID\" = $$ || exit 11;"
		"test \"$LISTEN_FDS\" = 1 || exit 12;"
		"test -S /proc/$$/fd/3 || exit 13;"
		"test ! -e /proc/$$/fd/33 || exit 14;"
		"test ! -e /proc/$$/fd/34 || exit 15;"
		"test /dev/null -ef /proc/$$/fd/0 || exit 16;"
		"test -p /proc/$$/fd/1 || exit 17;"
		"test -p /proc/$$/fd/2 || exit 18;"
		"test \"$LISTEN_FDNAMES\" = '' || exit 19;"
		"test \"$(cut -d' ' -f5 /proc/$$/stat)\" = $$ || exit 20";
	struct subproc *p;
	struct error how = { "" };
	char dir[] = "/tmp/check-server-XXXXXX";

	/* None of it may be inherited. */
	ck_assert_int_eq(dup2(0, 33), 33);
	ck_assert_int_eq(open("/dev/null", O_RDONLY) < 0, 0);
	setenv("LISTEN_PID", "1", 1);
	setenv("LISTEN_FDNAMES", "x", 1);

	ck_assert_ptr_nonnull(mkdtemp(dir));
	setenv("XDG_RUNTIME_DIR", dir, 1);
	p = start_shell(script, NULL);
	ck_assert(is_hidden_socket(subproc_socket(p)));
	/* Empty already, while the child runs. */
	ck_assert_uint_eq(folders_in(dir), 0);
	ck_assert_int_eq(rmdir(dir), 0);
	ck_assert(subproc_ended(p, 5000, &how));
	ck_assert_str_eq(how.text, "ended with status 0 before answering");
	ck_assert(!subproc_alive(p));
	subproc_stop(p, 100);
	ck_assert_int_ne(access(dir, F_OK), 0);
	subproc_free(p);
	/* Nobody is left to be waited for. */
	ck_assert_int_eq(waitpid(-1, NULL, WNOHANG), -1);
	ck_assert_int_eq(errno, ECHILD);
}
END_TEST

/* Without a shell, which sets its own signals. */
START_TEST(child_signals)
{
	char grep[] = "grep", file[] = "/proc/self/status";
	/* 32 and 33 are the C library's; below make they are ignored. */
	char text[] = "^Sig(Blk|Ign):[[:blank:]]0*(1?80000000)?$", c[] = "-Ec";
	char *argv[] = { grep, c, text, file, NULL };
	struct lines lines = { PTHREAD_MUTEX_INITIALIZER, "" };
	struct log log = { LOG_LVL_WARN, add_line, &lines };
	struct error how = { "" };
	struct subproc *p;
	sigset_t some;

	sigemptyset(&some);
	sigaddset(&some, SIGTERM);
	sigprocmask(SIG_BLOCK, &some, NULL);
	signal(SIGPIPE, SIG_IGN);
	ck_assert_int_eq(subproc_new(argv, &p, &how), 0);
	ck_assert_int_eq(subproc_start(p, &log, &how), 0);
	subproc_answered(p);
	ck_assert(subproc_ended(p, 5000, &how));
	subproc_free(p);
	ck_assert_str_eq(lines.text, "grep: 2\n");
	ck_assert_str_eq(how.text, "ended with status 0");
}
END_TEST

START_TEST(child_cannot_run)
{
	char name[] = "/no/such/program";
	char *argv[] = { name, NULL }, *none[] = { NULL };
	struct subproc *p;
	struct error err;

	ck_assert_int_eq(subproc_new(none, &p, &err), -EINVAL);
	ck_assert_int_eq(subproc_new(argv, &p, &err), 0);
	ck_assert_int_eq(subproc_start(p, NULL, &err), -ENOENT);
	ck_assert_str_eq(err.text, "cannot run '/no/such/program': "
				   "No such file or directory");
	ck_assert_ptr_null(subproc_socket(p));
	ck_assert(!subproc_alive(p));
	subproc_free(p);
	ck_assert_int_eq(waitpid(-1, NULL, WNOHANG), -1);
}
END_TEST

START_TEST(child_says_why)
{
	struct lines lines = { PTHREAD_MUTEX_INITIALIZER, "" };
	struct log log = { LOG_LVL_WARN, add_line, &lines };
	struct subproc *p;
	struct error how = { "" };

	p = start_shell("echo hello; echo 'it is an error' >&2; echo usage;"
			"exit 3",
			&log);
	ck_assert(subproc_ended(p, 5000, &how));
	ck_assert_str_eq(how.text, "ended with status 3 before answering: "
				   "it is an error");
	ck_assert_str_eq(lines.text, "");
	subproc_free(p);

	p = start_shell("kill -KILL $$", &log);
	ck_assert(subproc_ended(p, 5000, &how));
	ck_assert_str_eq(how.text, "was ended by signal 9 before answering");
	subproc_free(p);
}
END_TEST

START_TEST(child_talks)
{
	struct lines lines = { PTHREAD_MUTEX_INITIALIZER, "" };
	struct log log = { LOG_LVL_WARN, add_line, &lines };
	struct subproc *p;
	struct error how;

	/* The last line has no end; a very long one is cut. */
	p = start_shell("echo early; read x <&3 2>/dev/null; echo sh: late;"
			"head -c 3000 /dev/zero | tr '\\0' y; echo;"
			"printf last",
			&log);
	subproc_answered(p);
	ck_assert(subproc_ended(p, 5000, &how));
	ck_assert_str_eq(how.text, "ended with status 0");
	subproc_stop(p, 1000);
	ck_assert_int_eq(
		strncmp(lines.text, "sh: early\nsh: late\nsh: yyy", 25), 0);
	ck_assert_uint_eq(strlen(lines.text), 10 + 9 + 1005 + 9);
	ck_assert_ptr_nonnull(strstr(lines.text, "y\nsh: last\n"));
	subproc_free(p);
}
END_TEST

/* One that does not go, and one that has children. */
START_TEST(child_is_stubborn)
{
	char path[200], line[64] = "";
	struct lines lines = { PTHREAD_MUTEX_INITIALIZER, "" };
	struct log log = { LOG_LVL_WARN, add_line, &lines };
	struct subproc *p;
	uint64_t began;
	int pid;

	p = start_shell("trap '' TERM; (sleep 1000)& echo $!;"
			"while :; do sleep 1000; done",
			&log);
	subproc_answered(p);
	for (int i = 0; i < 500 && !has_line(&lines); i++)
		usleep(10000);
	ck_assert_int_eq(sscanf(lines.text, "sh: %d", &pid), 1);
	ck_assert(subproc_alive(p));
	snprintf(path, sizeof(path), "%s", subproc_socket(p));
	ck_assert(is_hidden_socket(path));
	began = clock_now();
	subproc_stop(p, 300);
	ck_assert_uint_lt(clock_now() - began, 3 * NS_PER_S);
	ck_assert_uint_ge(clock_now() - began, 250 * NS_PER_MS);
	ck_assert(!is_hidden_socket(path));
	/* The child of the child is dead, or waits for init to notice. */
	if (kill(pid, 0) == 0) {
		FILE *f;

		snprintf(path, sizeof(path), "/proc/%d/stat", pid);
		f = fopen(path, "r");
		if (f) {
			ck_assert_ptr_nonnull(fgets(line, sizeof(line), f));
			ck_assert_ptr_nonnull(strstr(line, ") Z"));
			fclose(f);
		}
	}
	subproc_stop(p, 300);
	subproc_free(p);
	ck_assert_int_eq(waitpid(-1, NULL, WNOHANG), -1);
}
END_TEST

/* Where the folder cannot be made, the next place is taken. */
START_TEST(child_folder)
{
	static char text[200];
	struct subproc *p;

	setenv("XDG_RUNTIME_DIR", "/no/such/folder", 1);
	memset(text, 'x', sizeof(text) - 1);
	text[0] = '/';
	setenv("TMPDIR", text, 1);
	p = start_shell("exit 0", NULL);
	ck_assert(is_hidden_socket(subproc_socket(p)));
	subproc_free(p);
	setenv("TMPDIR", "relative", 1);
	p = start_shell("exit 0", NULL);
	ck_assert(is_hidden_socket(subproc_socket(p)));
	subproc_free(p);
}
END_TEST

START_TEST(command_label)
{
	char prog[] = "nbdkit", arg[] = "secret";
	char *one[] = { prog, NULL }, *two[] = { prog, arg, NULL };
	char *none[] = { NULL };
	struct server *srv;
	struct error err;

	ck_assert_int_eq(server_from_command(one, &srv, &err), 0);
	ck_assert_str_eq(server_label(srv), "[ nbdkit ]");
	ck_assert(server_is_command(srv));
	ck_assert(!server_alive(srv));
	ck_assert_ptr_null(server_export(srv));
	ck_assert_ptr_null(server_file_name(srv));
	server_stop(srv, 100);
	server_free(srv);
	ck_assert_int_eq(server_from_command(two, &srv, &err), 0);
	ck_assert_str_eq(server_label(srv), "[ nbdkit ... ]");
	server_free(srv);
	ck_assert_int_eq(server_from_command(none, &srv, &err), -EINVAL);
}
END_TEST

int main(void)
{
	const struct unit_case cases[] = {
		{ good_operands, 0 },	   { bad_operands, 0 },
		{ long_operands, 0 },	   { relative_socket, 0 },
		{ block_sizes, 0 },	   { caps_same, 0 },
		{ child_surroundings, 0 }, { child_signals, 0 },
		{ child_cannot_run, 0 },   { child_says_why, 0 },
		{ child_talks, 0 },	   { child_is_stubborn, 0 },
		{ child_folder, 0 },	   { command_label, 0 },
	};

	return unit_main("server", cases, ARRAY_SIZE(cases));
}
