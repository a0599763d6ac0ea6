/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The command line of nbdfs: options, -o lists, sources, names of sources. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "options.h"
#include "unit.h"
#include "util.h"

#define MAX_ARGS 32

static struct fs_options o;
static struct error err;

/* Parses "nbdfs" and the words, up to NULL. */
static int parse(const char *first, ...)
{
	char name[] = "nbdfs", *argv[MAX_ARGS] = { name };
	int argc = 1;
	va_list ap;

	va_start(ap, first);
	for (const char *a = first; a; a = va_arg(ap, const char *)) {
		ck_assert_int_lt(argc, MAX_ARGS - 1);
		argv[argc++] = strdup(a);
	}
	va_end(ap);
	err.text[0] = '\0';
	int r = fs_options_parse(&o, argc, argv, &err);
	while (argc > 1)
		free(argv[--argc]);
	return r;
}

#define OPT(...) parse(__VA_ARGS__, "nbd://h/x", "/m", NULL)
#define BAD(says, ...) check_bad(says, parse(__VA_ARGS__, NULL))

static void check_bad(const char *says, int r)
{
	ck_assert_int_eq(r, -EINVAL);
	if (!strstr(err.text, says))
		ck_abort_msg("\"%s\" is not in \"%s\"", says, err.text);
	fs_options_free(&o);
}

START_TEST(defaults)
{
	mode_t mask = umask(027);

	ck_assert_int_eq(parse("nbd://h/x", "/m", NULL), 0);
	umask(mask);
	ck_assert_uint_eq(o.engine.connections, 4);
	ck_assert_uint_eq(o.engine.requests, 64);
	ck_assert_uint_eq(o.engine.read_ahead, 32 * MiB);
	ck_assert_uint_eq(o.engine.write_behind, 32 * MiB);
	ck_assert_uint_eq(o.engine.min_hole, 0);
	ck_assert_uint_eq(o.engine.timeout_ms, 30000);
	ck_assert_uint_eq(o.engine.reconnect_ms, 60000);
	ck_assert_uint_eq(o.engine.extent_timeout_ms, 1000);
	ck_assert_uint_eq(o.engine.list_timeout_ms, 5000);
	ck_assert(!o.engine.read_only && !o.engine.detect_zeroes);
	ck_assert(!o.foreground && !o.debug && !o.verbose);
	ck_assert_int_eq(o.cache, CACHE_DIRECT);
	ck_assert_int_eq(o.on_truncate, TRUNCATE_ZERO);
	ck_assert_uint_eq(o.uid, geteuid());
	ck_assert_uint_eq(o.gid, getegid());
	ck_assert_uint_eq(o.umask, 027);
	ck_assert_ptr_null(o.pidfile);
	ck_assert_ptr_null(o.mount_opts);
	ck_assert_str_eq(o.mountpoint, "/m");
	ck_assert_uint_eq(o.nsources, 1);
	ck_assert_str_eq(o.sources[0].uri, "nbd://h/x");
	fs_options_free(&o);
}
END_TEST

static void check_all_set(void)
{
	ck_assert_uint_eq(o.engine.connections, 7);
	ck_assert_uint_eq(o.engine.requests, 9);
	ck_assert_uint_eq(o.engine.read_ahead, 1 * MiB);
	ck_assert_uint_eq(o.engine.write_behind, 0);
	ck_assert_uint_eq(o.engine.min_hole, 64 * KiB);
	ck_assert_uint_eq(o.engine.timeout_ms, 1500);
	ck_assert_uint_eq(o.engine.reconnect_ms, 0);
	ck_assert_uint_eq(o.engine.extent_timeout_ms, 250);
	ck_assert_uint_eq(o.engine.list_timeout_ms, 11000);
	ck_assert(o.engine.read_only && o.engine.detect_zeroes);
	ck_assert(o.engine.no_extents);
	ck_assert_int_eq(o.cache, CACHE_KERNEL);
	ck_assert_int_eq(o.on_truncate, TRUNCATE_DENY);
	ck_assert_uint_eq(o.uid, 12);
	ck_assert_uint_eq(o.gid, 34);
	ck_assert_uint_eq(o.umask, 0137);
	ck_assert_str_eq(o.pidfile, "p.pid");
	fs_options_free(&o);
}

START_TEST(every_option)
{
	ck_assert_int_eq(OPT("-r", "-C7", "--requests=9", "--read-ahead", "1M",
			     "--write-behind=0", "--min-hole=64k",
			     "--timeout=1.5", "--reconnect=0",
			     "--extent-timeout=0.25", "--list-timeout=11",
			     "--on-truncate=deny", "--detect-zeroes",
			     "--no-extents", "--cache=kernel", "--uid=12",
			     "--gid=34", "--umask=137", "-P", "p.pid"),
			 0);
	check_all_set();
	ck_assert_int_eq(OPT("-fv"), 0);
	ck_assert(o.foreground && o.verbose && !o.debug);
	fs_options_free(&o);
	ck_assert_int_eq(OPT("-d"), 0);
	ck_assert(o.foreground && o.debug);
	fs_options_free(&o);
}
END_TEST

START_TEST(every_option_in_a_list)
{
	ck_assert_int_eq(
		OPT("-o", "read-only,connections=7,requests=9,read-ahead=1M",
		    "-owrite-behind=0,min-hole=64k,timeout=1.5,reconnect=0",
		    "-o", "extent-timeout=0.25,list-timeout=11,pidfile=p.pid",
		    "-o", "on-truncate=deny,detect-zeroes,cache=kernel,uid=12",
		    "-o", ",gid=34,,umask=137,no-extents,"),
		0);
	check_all_set();
	ck_assert_int_eq(OPT("-o", "foreground"), 0);
	ck_assert(o.foreground);
	fs_options_free(&o);
}
END_TEST

START_TEST(mount_options)
{
	ck_assert_int_eq(OPT("-o", "rw,suid,dev,noauto,_netdev,nofail,x-a.b=c,"
				   "user,allow_other,relatime,comment=x y,"
				   "default_permissions,nosuid,subtype=foo"),
			 0);
	ck_assert(!o.engine.read_only);
	ck_assert_str_eq(o.mount_opts, "suid,dev,allow_other,nosuid");
	fs_options_free(&o);
	ck_assert_int_eq(OPT("-o", "ro"), 0);
	ck_assert(o.engine.read_only);
	fs_options_free(&o);
	ck_assert_int_eq(OPT("-o", "ro,rw"), 0);
	ck_assert(!o.engine.read_only);
	fs_options_free(&o);
}
END_TEST

START_TEST(commas_in_values)
{
	ck_assert_int_eq(OPT("-o", "fsname=a\\,b\\\\c,noexec"), 0);
	ck_assert(o.has_fsname);
	ck_assert_str_eq(o.mount_opts, "fsname=a\\,b\\\\c,noexec");
	fs_options_free(&o);
	/* As mount(8) hands it on. */
	ck_assert_int_eq(parse("none", "/m", "-o",
			       "source=\"nbd://a/x,y\",uid=1", NULL),
			 0);
	ck_assert_uint_eq(o.nsources, 1);
	ck_assert_str_eq(o.sources[0].uri, "nbd://a/x,y");
	ck_assert_uint_eq(o.uid, 1);
	fs_options_free(&o);
}
END_TEST

START_TEST(mistakes)
{
	BAD("a source and a mount point", "-f");
	BAD("a source and a mount point", "/m");
	BAD("must be a mount point", "[", "nbdkit", "]");
	BAD("unknown option --nonsense", "--nonsense", "nbd://h", "/m");
	BAD("unknown mount option nonsense", "-o", "nonsense", "nbd://h", "/m");
	BAD("unknown mount option help", "-o", "help", "nbd://h", "/m");
	BAD("unknown mount option options", "-o", "options=ro", "nbd://h",
	    "/m");
	BAD("unknown mount option dump-options", "-o", "dump-options",
	    "nbd://h", "/m");
	BAD("--connections", "-C0", "nbd://h", "/m");
	BAD("--connections", "-o", "connections=65", "nbd://h", "/m");
	BAD("--connections", "-o", "connections", "nbd://h", "/m");
	BAD("--read-only", "-o", "read-only=yes", "nbd://h", "/m");
	BAD("--cache", "--cache=some", "nbd://h", "/m");
	BAD("--read-ahead", "--read-ahead=1X", "nbd://h", "/m");
	BAD("--umask", "--umask=8", "nbd://h", "/m");
	BAD("--umask", "--umask=1000", "nbd://h", "/m");
	BAD("--umask", "--umask=", "nbd://h", "/m");
	BAD("no such user", "--uid=no such user", "nbd://h", "/m");
	BAD("no such user", "--uid=4294967295", "nbd://h", "/m");
	BAD("no such group", "--gid=", "nbd://h", "/m");
	BAD("--pidfile", "--pidfile=", "nbd://h", "/m");
	BAD("fsname", "-o", "fsname", "nbd://h", "/m");
	BAD("none", "none", "nbd://h", "/m");
	BAD("no source", "none", "/m");
}
END_TEST

START_TEST(users_by_name)
{
	ck_assert_int_eq(OPT("--uid=root", "--gid=root"), 0);
	ck_assert_uint_eq(o.uid, 0);
	ck_assert_uint_eq(o.gid, 0);
	fs_options_free(&o);
}
END_TEST

START_TEST(many_sources)
{
	ck_assert_int_eq(parse("nbd://a", "[", "nbdkit", "-o", "memory", "]",
			       "-r", "d=nbd://b/c", "/m", NULL),
			 0);
	ck_assert_uint_eq(o.nsources, 3);
	ck_assert_str_eq(o.sources[0].uri, "nbd://a");
	ck_assert_ptr_null(o.sources[1].uri);
	ck_assert_str_eq(o.sources[1].command[0], "nbdkit");
	ck_assert_str_eq(o.sources[1].command[1], "-o");
	ck_assert_str_eq(o.sources[1].command[2], "memory");
	ck_assert_ptr_null(o.sources[1].command[3]);
	ck_assert_str_eq(o.sources[2].uri, "d=nbd://b/c");
	ck_assert(o.engine.read_only);
	fs_options_free(&o);
}
END_TEST

START_TEST(sources_in_one_word)
{
	ck_assert_int_eq(parse("nbd://a/x  d=nbd+unix:///y?socket=s", "/m",
			       "-o", "source=nbds://c", NULL),
			 0);
	ck_assert_uint_eq(o.nsources, 3);
	ck_assert_str_eq(o.sources[0].uri, "nbds://c");
	ck_assert_str_eq(o.sources[1].uri, "nbd://a/x");
	ck_assert_str_eq(o.sources[2].uri, "d=nbd+unix:///y?socket=s");
	fs_options_free(&o);

	/* A name with a blank in it. */
	ck_assert_int_eq(parse("my disk=nbd://a/x", "/m", NULL), 0);
	ck_assert_uint_eq(o.nsources, 1);
	ck_assert_str_eq(o.sources[0].uri, "my disk=nbd://a/x");
	fs_options_free(&o);

	ck_assert_int_eq(parse("[ nbdkit  memory 1G ]", "/m", NULL), 0);
	ck_assert_uint_eq(o.nsources, 1);
	ck_assert_str_eq(o.sources[0].command[0], "nbdkit");
	ck_assert_str_eq(o.sources[0].command[1], "memory");
	ck_assert_str_eq(o.sources[0].command[2], "1G");
	ck_assert_ptr_null(o.sources[0].command[3]);
	fs_options_free(&o);

	ck_assert_int_eq(parse("", "/m", "-o", "source=nbd://a", NULL), 0);
	ck_assert_uint_eq(o.nsources, 1);
	fs_options_free(&o);
	ck_assert_int_eq(parse("/m", "-o", "source=nbd://a", NULL), 0);
	ck_assert_str_eq(o.mountpoint, "/m");
	fs_options_free(&o);
}
END_TEST

START_TEST(printing_needs_no_source)
{
	ck_assert_int_eq(parse("-h", NULL), 0);
	ck_assert(o.help);
	fs_options_free(&o);
	ck_assert_int_eq(parse("--version", NULL), 0);
	ck_assert(o.version);
	fs_options_free(&o);
	ck_assert_int_eq(parse("--dump-options", NULL), 0);
	ck_assert(o.dump);
	fs_options_free(&o);
}
END_TEST

static const char *label(const char *uri)
{
	static char text[64];
	struct fs_source s = { .uri = strdup(uri) };

	fs_source_label(&s, text, sizeof(text));
	free(s.uri);
	return text;
}

START_TEST(labels_without_secrets)
{
	char program[] = "/usr/bin/nbdkit", arg[] = "password=secret";
	char *command[] = { program, arg, NULL };
	struct fs_source s = { .command = command };
	char text[64];

	ck_assert_str_eq(label("nbd://h:1/x"), "nbd://h:1/x");
	ck_assert_str_eq(label("d=nbd://h/x"), "nbd://h/x");
	ck_assert_str_eq(label("nbds://u@h/x?tls-psk-file=/k"), "nbds://h/x");
	ck_assert_str_eq(label("nbds://u:p@ss@h/x"), "nbds://h/x");
	ck_assert_str_eq(label("nbd+unix:///x?socket=/s"),
			 "nbd+unix:///x?socket=/s");
	ck_assert_str_eq(
		label("nbds+unix://u:p@/x?tls-psk-file=/k&socket=/s&a"),
		"nbds+unix:///x?socket=/s");
	ck_assert_str_eq(label("nbd:///e?notsocket=/k"), "nbd:///e");
	ck_assert_str_eq(label("nbd:"), "nbd:");
	ck_assert_uint_eq(strlen(label("nbd://0123456789012345678901234567890"
				       "0123456789012345678901234567890")),
			  63);
	fs_source_label(&s, text, sizeof(text));
	ck_assert_str_eq(text, "[ nbdkit ]");
}
END_TEST

START_TEST(lists_are_escaped)
{
	char *list = NULL;

	ck_assert_int_eq(fs_mount_opt_add(&list, "ro", NULL), 0);
	ck_assert_int_eq(fs_mount_opt_add(&list, "fsname", ",\\,"), 0);
	ck_assert_int_eq(fs_mount_opt_add(&list, "x", ""), 0);
	ck_assert_str_eq(list, "ro,fsname=\\,\\\\\\,,x=");
	free(list);
}
END_TEST

int main(void)
{
	const struct unit_case cases[] = {
		{ defaults, 0 },
		{ every_option, 0 },
		{ every_option_in_a_list, 0 },
		{ mount_options, 0 },
		{ commas_in_values, 0 },
		{ mistakes, 0 },
		{ users_by_name, 0 },
		{ many_sources, 0 },
		{ sources_in_one_word, 0 },
		{ printing_needs_no_source, 0 },
		{ labels_without_secrets, 0 },
		{ lists_are_escaped, 0 },
	};

	return unit_main("fs_options", cases, ARRAY_SIZE(cases));
}
