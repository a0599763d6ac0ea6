/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "fsr.h"

static const struct op *const tables[] = { io_ops, space_ops, map_ops,
					   whole_ops };

/* ------------------------------------------------------------- running */

static bool in_list(const char *list, const char *name)
{
	size_t len = strlen(name);

	while (list && *list) {
		size_t n = strcspn(list, ",");

		if (n == len && !strncmp(list, name, n))
			return true;
		list += n + (list[n] == ',');
	}
	return false;
}

static unsigned op_weight(const struct worker *w, const struct op *op)
{
	const struct config *cfg = &w->c->cfg;

	if (cfg->only && !in_list(cfg->only, op->name))
		return 0;
	if (in_list(cfg->without, op->name))
		return 0;
	if (op->fixed && cfg->plain)
		return 0;
	if (op->single && cfg->threads > 1)
		return 0;
	/* A page must not have two owners. */
	if (op->paged && cfg->threads > 1 && cfg->stripe % PAGE)
		return 0;
	/* Everybody waits for these. */
	if (op->exclusive && cfg->threads > 1)
		return (op->weight + 1) / 2;
	return op->weight;
}

static const struct op *pick_op(struct worker *w)
{
	uint64_t total = 0, n;
	const struct op *op;
	size_t i;

	for (i = 0; i < ARRAY_SIZE(tables); i++)
		for (op = tables[i]; op->name; op++)
			total += op_weight(w, op);
	if (!total)
		return NULL;
	n = rng_below(&w->rng, total);
	for (i = 0; i < ARRAY_SIZE(tables); i++) {
		for (op = tables[i]; op->name; op++) {
			if (n < op_weight(w, op))
				return op;
			n -= op_weight(w, op);
		}
	}
	return NULL;
}

static int run_op(struct worker *w)
{
	const struct op *op = pick_op(w);
	struct ctx *c = w->c;
	struct file *f = &c->file[0];
	bool lost;
	int ret = 0;

	if (!op)
		return fail(w, "no operation is left");
	if (c->nfiles > 1 && rng_chance(&w->rng, 30))
		f = &c->file[1];
	w->op_name = op->name;
	if (op->exclusive)
		pthread_rwlock_wrlock(&c->lock);
	else
		pthread_rwlock_rdlock(&c->lock);
	/* Files may be closed until somebody recovers. */
	lost = atomic_load(&c->lost);
	if (lost)
		ret = -1;
	else if (!op->mapped || f->map)
		ret = op->run(w, f);
	lost |= op_lost(w);
	pthread_rwlock_unlock(&c->lock);
	return lost ? recover(w) : ret;
}

static int check_all(struct worker *w)
{
	struct ctx *c = w->c;
	int ret = 0;
	unsigned i;
	bool lost;

	w->op_name = "check";
	pthread_rwlock_wrlock(&c->lock);
	lost = atomic_load(&c->lost);
	for (i = 0; i < c->nfiles && !ret && !lost; i++)
		ret = check_whole(w, &c->file[i]);
	lost |= op_lost(w);
	pthread_rwlock_unlock(&c->lock);
	return lost ? recover(w) : ret;
}

static bool time_is_up(const struct ctx *c)
{
	return c->cfg.seconds && time(NULL) - c->start >= c->cfg.seconds;
}

static void *worker_main(void *arg)
{
	struct worker *w = arg;
	struct ctx *c = w->c;

	while (!atomic_load(&c->failed)) {
		atomic_store(&w->op, atomic_fetch_add(&c->next_op, 1) + 1);
		if (w->op > c->cfg.ops || time_is_up(c))
			break;
		if (run_op(w))
			break;
		if (c->cfg.check_every && w->op % c->cfg.check_every == 0 &&
		    check_all(w))
			break;
	}
	return NULL;
}

static int worker_init(struct worker *w, struct ctx *c, unsigned id)
{
	w->c = c;
	w->id = id;
	w->op_name = "start";
	w->rng.state = c->cfg.seed * 1000003 + id;
	w->buf = aligned_alloc(PAGE, c->cfg.max_io + 16 * PAGE);
	if (!w->buf)
		return -1;
	if (syscall(SYS_io_setup, 32, &w->aio)) {
		fprintf(stderr, "fsrandom: io_setup: %s\n", strerror(errno));
		return -1;
	}
	return 0;
}

static void worker_free(struct worker *w)
{
	if (w->aio)
		syscall(SYS_io_destroy, w->aio);
	free(w->buf);
}

static int run_threads(struct ctx *c, struct worker *w)
{
	unsigned i, started = 0;
	int error = 0;

	if (c->cfg.threads == 1) {
		worker_main(w);
		return 0;
	}
	for (; started < c->cfg.threads && !error; started++)
		error = pthread_create(&w[started].thread, NULL, worker_main,
				       &w[started]);
	if (error) {
		started--;
		fail(&w[0], "pthread_create: %s", strerror(error));
	}
	for (i = 0; i < started; i++)
		pthread_join(w[i].thread, NULL);
	return error ? -1 : 0;
}

/* All is compared once more before and after the last close. */
static int finish_file(struct worker *w, struct file *f)
{
	if (check_whole(w, f))
		return -1;
	if (f->map && msync(f->map, f->size, MS_SYNC))
		return fail_errno(w, "msync");
	if (fsync(f->fd[FD_MAIN]))
		return fail_errno(w, "fsync");
	if (file_close(w, f) || file_open(w, f, false) || check_whole(w, f))
		return -1;
	return file_close(w, f);
}

static int finish(struct ctx *c, struct worker *w)
{
	unsigned i, tries;

	w->op_name = "end";
	for (i = 0; i < c->cfg.threads; i++)
		atomic_store(&w[i].op, c->next_op + 1);
	for (i = 0; i < c->nfiles; i++) {
		for (tries = 20; finish_file(w, &c->file[i]); tries--) {
			if (!op_lost(w) || !tries || recover(w))
				return -1;
		}
	}
	for (i = 0; i < c->nfiles; i++) {
		if (file_save_model(&c->file[i]))
			return -1;
	}
	return 0;
}

static void on_alarm(int sig)
{
	(void)sig;
}

static int start_itimer(unsigned ms)
{
	struct sigaction sa = { .sa_handler = on_alarm,
				.sa_flags = SA_RESTART };
	struct itimerval it = { { ms / 1000, ms % 1000 * 1000 },
				{ ms / 1000, ms % 1000 * 1000 } };

	if (!ms)
		return 0;
	if (sigaction(SIGALRM, &sa, NULL) ||
	    setitimer(ITIMER_REAL, &it, NULL)) {
		fprintf(stderr, "fsrandom: setitimer: %s\n", strerror(errno));
		return -1;
	}
	return 0;
}

static int run(struct ctx *c)
{
	struct worker w[MAX_THREADS];
	unsigned i;
	int ret = 1;

	memset(w, 0, sizeof(w));
	TAILQ_INIT(&c->past);
	c->worker = w;
	if (c->cfg.lossy && catch_bus_errors())
		return 1;
	for (i = 0; i < c->nfiles; i++) {
		if (file_prepare(c, &c->file[i]))
			goto out;
	}
	for (i = 0; i < c->cfg.threads; i++) {
		if (worker_init(&w[i], c, i))
			goto out;
	}
	for (i = 0; i < c->nfiles; i++) {
		if (file_open(&w[0], &c->file[i], false) ||
		    check_whole(&w[0], &c->file[i]))
			goto out;
	}
	c->start = time(NULL);
	if (start_itimer(c->cfg.itimer_ms) || run_threads(c, w) ||
	    atomic_load(&c->failed) || finish(c, &w[0]))
		goto out;
	printf("fsrandom: seed %" PRIu64 ": %" PRIu64 " operations, %" PRIu64
	       " recoveries\n",
	       c->cfg.seed,
	       c->cfg.seconds ? c->next_op - c->cfg.threads : c->cfg.ops,
	       c->recoveries);
	ret = 0;
out:
	for (i = 0; i < MAX_THREADS; i++)
		worker_free(&w[i]);
	for (i = 0; i < c->nfiles; i++) {
		free(c->file[i].model);
		free(c->file[i].by);
		free(c->file[i].base);
	}
	return ret;
}

/* ------------------------------------------------------------- options */

enum {
	O_SEED = 256,
	O_OPS,
	O_THREADS,
	O_STRIPE,
	O_SIZE,
	O_MAX_IO,
	O_FILE2,
	O_INITIAL,
	O_INITIAL2,
	O_MODEL,
	O_MODEL2,
	O_CHECK,
	O_PAUSE,
	O_ITIMER,
	O_PLAIN,
	O_VERBOSE,
	O_SETTLE,
	O_ONLY,
	O_WITHOUT,
	O_AT_REOPEN,
	O_LOSSY,
	O_SECONDS,
	O_HELP,
};

static const struct option options[] = {
	{ "seed", 1, NULL, O_SEED },
	{ "ops", 1, NULL, O_OPS },
	{ "threads", 1, NULL, O_THREADS },
	{ "stripe", 1, NULL, O_STRIPE },
	{ "size", 1, NULL, O_SIZE },
	{ "max-io", 1, NULL, O_MAX_IO },
	{ "file2", 1, NULL, O_FILE2 },
	{ "initial", 1, NULL, O_INITIAL },
	{ "initial2", 1, NULL, O_INITIAL2 },
	{ "model", 1, NULL, O_MODEL },
	{ "model2", 1, NULL, O_MODEL2 },
	{ "check-every", 1, NULL, O_CHECK },
	{ "pause", 1, NULL, O_PAUSE },
	{ "itimer", 1, NULL, O_ITIMER },
	{ "plain", 0, NULL, O_PLAIN },
	{ "verbose", 0, NULL, O_VERBOSE },
	{ "settle", 0, NULL, O_SETTLE },
	{ "only", 1, NULL, O_ONLY },
	{ "without", 1, NULL, O_WITHOUT },
	{ "at-reopen", 1, NULL, O_AT_REOPEN },
	{ "lossy", 0, NULL, O_LOSSY },
	{ "seconds", 1, NULL, O_SECONDS },
	{ "help", 0, NULL, O_HELP },
	{ NULL, 0, NULL, 0 },
};

static void usage(FILE *out)
{
	fprintf(out,
		"usage: fsrandom [OPTIONS] FILE\n"
		"  --seed=N --ops=N          what is done, and how much of it\n"
		"  --threads=N               each owns a part of the file,\n"
		"  --stripe=BYTES            or every Nth piece of this size\n"
		"  --file2=FILE              a second file, also copied to\n"
		"  --initial=FILE            known contents (--initial2)\n"
		"  --model=FILE              gets what is expected (--model2)\n"
		"  --size=BYTES --max-io=BYTES --check-every=N\n"
		"  --seconds=N               ends after so long\n"
		"  --lossy                   the disk may fail\n"
		"  --pause=MS                pauses of up to so long\n"
		"  --itimer=MS               a signal so often: no EINTR\n"
		"  --plain                   a local file plays the disk\n"
		"  --settle                  msync before each truncation\n"
		"  --only=OP,... --without=OP,... --verbose\n"
		"  --at-reopen=CMD           changes a file while it is closed:\n"
		"        FSR_LENGTH bytes at FSR_OFFSET of file FSR_FILE (1, 2)\n"
		"        become FSR_BYTE\n");
}

static int number(const char *text, uint64_t max, uint64_t *n)
{
	char *end;

	errno = 0;
	*n = strtoull(text, &end, 0);
	if (errno || end == text || *end || *n > max || *text == '-') {
		fprintf(stderr,
			"fsrandom: %s: not a number up to %" PRIu64 "\n", text,
			max);
		return -1;
	}
	return 0;
}

static int set_numeric(struct config *cfg, int opt, const char *arg)
{
	uint64_t n, max = opt == O_SEED ? UINT64_MAX : UINT32_MAX;

	if (opt == O_THREADS)
		max = MAX_THREADS;
	if (opt == O_MAX_IO)
		max = 64 << 20;
	if (number(arg, max, &n))
		return -1;
	switch (opt) {
	case O_SEED:
		cfg->seed = n;
		break;
	case O_OPS:
		cfg->ops = n;
		break;
	case O_THREADS:
		cfg->threads = n ? (unsigned)n : 1;
		break;
	case O_STRIPE:
		cfg->stripe = n;
		break;
	case O_SIZE:
		cfg->size = n;
		break;
	case O_MAX_IO:
		cfg->max_io = (n + PAGE) / PAGE * PAGE;
		break;
	case O_SECONDS:
		cfg->seconds = (unsigned)n;
		break;
	case O_CHECK:
		cfg->check_every = (unsigned)n;
		break;
	case O_PAUSE:
		cfg->pause_ms = (unsigned)n;
		break;
	case O_ITIMER:
		cfg->itimer_ms = (unsigned)n;
		break;
	default:
		return -1;
	}
	return 0;
}

static int set_option(struct ctx *c, int opt, const char *arg)
{
	switch (opt) {
	case O_FILE2:
		c->file[1].path = arg;
		c->nfiles = 2;
		break;
	case O_INITIAL:
		c->file[0].initial = arg;
		break;
	case O_INITIAL2:
		c->file[1].initial = arg;
		break;
	case O_MODEL:
		c->file[0].result = arg;
		break;
	case O_MODEL2:
		c->file[1].result = arg;
		break;
	case O_LOSSY:
		c->cfg.lossy = true;
		break;
	case O_PLAIN:
		c->cfg.plain = true;
		break;
	case O_VERBOSE:
		c->cfg.verbose = true;
		break;
	case O_SETTLE:
		c->cfg.settle = true;
		break;
	case O_ONLY:
		c->cfg.only = arg;
		break;
	case O_WITHOUT:
		c->cfg.without = arg;
		break;
	case O_AT_REOPEN:
		c->cfg.at_reopen = arg;
		break;
	default:
		return set_numeric(&c->cfg, opt, arg);
	}
	return 0;
}

int main(int argc, char **argv)
{
	static struct ctx ctx = {
		.cfg = { .ops = 1000,
			 .threads = 1,
			 .max_io = MAX_IO,
			 .check_every = 500 },
		.nfiles = 1,
		.lock = PTHREAD_RWLOCK_INITIALIZER,
		.trace_lock = PTHREAD_MUTEX_INITIALIZER,
		.past_lock = PTHREAD_MUTEX_INITIALIZER,
		.sync_lock = PTHREAD_MUTEX_INITIALIZER,
	};
	int opt;

	ctx.file[1].index = 1;
	while ((opt = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (opt == O_HELP) {
			usage(stdout);
			return 0;
		}
		if (opt == '?' || set_option(&ctx, opt, optarg)) {
			usage(stderr);
			return 2;
		}
	}
	if (optind + 1 != argc) {
		usage(stderr);
		return 2;
	}
	ctx.file[0].path = argv[optind];
	return run(&ctx);
}
