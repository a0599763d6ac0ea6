/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "util.h"

/* Each lane gets several pieces, so that all end at about the same time. */
#define PIECES_EACH 4
#define PIECE_MIN (16 * MiB)

struct run {
	const struct cli *cli;
	struct shared shared;
	struct lane *lanes; /* the first is this thread's */
	struct lane *main;
	struct watch watch;
	bool stopped;
	struct range_copy range;
	bool ranging;
	struct verify_job *verify;
	struct verify_result verified;
	int verify_error;
	bool verify_over;
	uint64_t compared;
	struct error err;
};

/* ------------------------------------------------------- what watch asks */

static uint64_t run_finished(void *arg)
{
	struct run *run = arg;
	uint64_t sum = 0;
	unsigned i;

	if (run->watch.comparing)
		return run->compared;
	if (run->ranging)
		return atomic_load(&run->range.finished);
	for (i = 0; i < run->shared.lanes; i++)
		sum += atomic_load(&run->lanes[i].finished);
	return sum;
}

static void run_stop(void *arg)
{
	struct run *run = arg;
	unsigned i;

	if (!run->stopped) {
		atomic_store(&run->shared.stop, true);
		lane_stop(run->main);
		for (i = 1; i < run->shared.lanes; i++) {
			if (run->lanes[i].started)
				loop_post(run->lanes[i].loop,
					  &run->lanes[i].stop_task);
		}
	}
	run->stopped = true;
	atomic_store(&run->range.stop, true);
	if (run->verify)
		verify_cancel(run->verify);
}

/* ---------------------------------------------------------------- opening */

static void decide(struct run *run)
{
	const struct end *src = &run->main->src, *dst = &run->main->dst;
	const struct cli *cli = run->cli;
	struct shared *sh = &run->shared;

	sh->size = src->size;
	sh->piece = sh->size;
	sh->sparse = cli->sparse;
	/* Smaller holes than a server's blocks would only cost. */
	if (!cli->sparse_set && dst->preferred > sh->sparse)
		sh->sparse = dst->preferred;
	if (!src->parallel || !dst->parallel || cli->synchronous ||
	    sh->size == UINT64_MAX)
		return;
	sh->lanes = (unsigned)max_u64(1, min_u64(cli->lanes_max,
						 sh->size / PIECE_MIN));
	if (sh->lanes == 1)
		return;
	sh->piece = sh->size / ((uint64_t)sh->lanes * PIECES_EACH);
	sh->piece = align_up(max_u64(sh->piece, PIECE_MIN), MiB);
}

static int check_verify(struct run *run)
{
	const struct end *src = &run->main->src;

	if (!run->cli->verify || src->size != UINT64_MAX)
		return 0;
	error_set(&run->err, "%s: cannot be read again for --verify",
		  src->label);
	return -EINVAL;
}

static int open_ends(struct run *run)
{
	struct lane *lane = run->main;
	struct error *err = &run->err;
	int r;

	r = end_open_source(&lane->src, run->cli, lane->loop, err);
	if (r == 0)
		r = check_verify(run);
	if (r == 0)
		r = end_open_dest(&lane->dst, run->cli, &lane->src, lane->loop,
				  err);
	if (r == 0)
		r = end_device(&lane->src, lane->loop, lane->workers, err);
	if (r == 0)
		r = end_device(&lane->dst, lane->loop, lane->workers, err);
	if (r == 0)
		decide(run);
	return r;
}

static int close_ends(struct run *run)
{
	struct lane *lane = run->main;
	struct error err = { "" };
	int r;

	end_close(&lane->src, lane->loop, &err);
	err.text[0] = '\0';
	r = end_close(&lane->dst, lane->loop, &err);
	if (r < 0 && !run->err.text[0])
		run->err = err;
	return r;
}

/* ---------------------------------------------------------------- copying */

/* A lane's thread has nothing left to do. */
static void lane_gone(struct loop_task *t)
{
	struct lane *lane = container_of(t, struct lane, gone_task);
	struct run *run = container_of(lane->shared, struct run, shared);

	lane_free(lane);
	if (lane->result)
		run_stop(run);
	loop_stop(run->main->loop);
}

static int start_lanes(struct run *run)
{
	unsigned i;
	int r = 0;

	for (i = 1; i < run->shared.lanes && r == 0; i++) {
		struct lane *lane = &run->lanes[i];

		r = lane_init(lane, &run->shared, &run->err);
		lane->gone_task.run = lane_gone;
		if (r == 0)
			r = lane_start(lane, run->main, &run->err);
		if (r < 0)
			lane_free(lane);
	}
	return r;
}

static bool lanes_running(const struct run *run)
{
	unsigned i;

	for (i = 1; i < run->shared.lanes; i++) {
		if (run->lanes[i].started)
			return true;
	}
	return run->main->running;
}

/* The first thing that went wrong on any lane. */
static int lanes_result(struct run *run)
{
	unsigned i;
	int r = 0;

	for (i = 0; i < run->shared.lanes; i++) {
		struct lane *lane = &run->lanes[i];

		if (lane->result == 0 || (r != 0 && r != -EINTR))
			continue;
		r = lane->result;
		run->err = lane->err;
	}
	return r;
}

static int run_lanes(struct run *run)
{
	int r = start_lanes(run);

	if (r < 0)
		run_stop(run);
	else
		lane_copy(run->main);
	while (lanes_running(run)) {
		int e = loop_run(run->main->loop);

		if (e < 0)
			return e;
		if (!run->main->running && run->main->result)
			run_stop(run);
	}
	return r < 0 ? r : lanes_result(run);
}

static void range_done(struct work *w)
{
	struct range_copy *rc = container_of(w, struct range_copy, work);
	struct run *run = container_of(rc, struct run, range);

	run->ranging = false;
	loop_stop(run->main->loop);
}

/* The mount does the copy. 1 where it cannot. */
static int run_range(struct run *run)
{
	struct range_copy *rc = &run->range;
	struct lane *lane = run->main;
	int r = 0;

	if (!range_copy_suits(run->cli, &lane->src, &lane->dst))
		return 1;
	rc->in = lane->src.local.fd;
	rc->out = lane->dst.local.fd;
	rc->size = run->shared.size;
	rc->work.fn = range_copy_run;
	rc->work.done = range_done;
	run->ranging = true;
	workers_run(lane->workers, &rc->work);
	while (run->ranging && r == 0)
		r = loop_run(lane->loop);
	if (r < 0)
		return r;
	if (rc->unsupported)
		return 1;
	lane->stats.read = lane->stats.written = rc->finished;
	atomic_store(&lane->finished, rc->finished);
	if (rc->result < 0)
		error_set(&run->err,
			  "%s: cannot copy at offset %" PRIu64 ": %s",
			  lane->dst.label, (uint64_t)rc->finished,
			  strerror(-rc->result));
	return rc->result;
}

/* How long the source is now, where that can change and means something. */
static int source_now(struct run *run, uint64_t *now)
{
	const struct end *src = &run->main->src;
	int r;

	*now = run->shared.size;
	if (src->kind != END_LOCAL || src->format != FORMAT_RAW)
		return 0;
	r = local_size_now(&src->local, now);
	if (r < 0)
		error_set(&run->err, "%s: %s", src->label, strerror(-r));
	return r;
}

/* A file or a device that has become shorter: what was copied of its end is
 * from another time than the rest, or zeroes that it never had. */
static int check_source(struct run *run, int result)
{
	uint64_t size = run->shared.size, now;
	int r;

	if (result < 0 && result != -EIO)
		return result;
	r = source_now(run, &now);
	if (r < 0)
		return r;
	if (now >= size)
		return result;
	error_set(&run->err,
		  "%s: became shorter while it was copied: it had %" PRIu64
		  " bytes, and has %" PRIu64,
		  run->main->src.label, size, now);
	return -EIO;
}

/* No error: what was appended is for the next copy. */
static bool has_grown(struct run *run)
{
	uint64_t now;

	return source_now(run, &now) == 0 && now > run->shared.size;
}

static void warn_longer(const struct run *run)
{
	fprintf(stderr,
		PROGRAM ": warning: %s: became longer while it was copied: "
			"the copy has its first %" PRIu64 " bytes\n",
		run->main->src.label, run->shared.size);
}

/* A file gets the size that the input turned out to have. */
static int finish_size(struct run *run)
{
	struct lane *lane = run->main;
	struct local *l = &lane->dst.local;
	uint64_t size = run->shared.size;

	if (lane->dst.kind != END_LOCAL || l->kind != LOCAL_FILE)
		return 0;
	if (lane->dst.format != FORMAT_RAW) {
		/* One that is written in order moves by itself. */
		if (l->standard && lane->dst.format == FORMAT_VMDK)
			lseek(l->fd, 0, SEEK_END);
		return 0;
	}
	/* Of an unknown size there is one lane alone. */
	if (size == UINT64_MAX) {
		int r = 0;

		size = lane->stats.finished;
		if (l->size == UINT64_MAX)
			r = local_set_size(l->name, l->fd, size, &run->err);
		if (r < 0)
			return r;
	}
	/* What others write to it comes after this. */
	if (l->standard)
		lseek(l->fd, (off_t)size, SEEK_SET);
	return 0;
}

static int copy_once(struct run *run)
{
	int r = run_range(run);

	if (r == 1)
		r = run_lanes(run);
	if (r == 0)
		r = finish_size(run);
	if (r == 0)
		r = lane_complete(run->main, &run->err);
	return r;
}

/* Back to the beginning. */
static void rewind_all(struct run *run)
{
	struct lane *lane = run->main;

	atomic_store(&run->shared.cursor, 0);
	atomic_store(&lane->finished, 0);
	lane->stats = (struct copy_stats){ 0 };
}

/* What a server had before its connection was lost, and had not flushed, may
 * have been lost with it: then all is copied again. */
static int copy(struct run *run)
{
	struct lane *lane = run->main;
	unsigned tries = 0;
	int r = copy_once(run);

	while (r == 0 && lane_lost(lane)) {
		if (tries++ == run->cli->retries || run->shared.lanes > 1 ||
		    run->shared.size == UINT64_MAX)
			return lane_say_lost(lane, &run->err);
		log_msg(&run->cli->log, LOG_LVL_INFO,
			"%s: the connection was lost: copying again",
			lane->dst.label);
		rewind_all(run);
		r = copy_once(run);
	}
	return r;
}

/* --------------------------------------------------------------- comparing */

static void verify_progress(void *arg, uint64_t finished)
{
	struct run *run = arg;

	run->compared = finished;
}

static void verify_done(void *arg, int error, const struct verify_result *res)
{
	struct run *run = arg;

	run->verified = *res;
	run->compared = res->finished;
	run->verify_error = error;
	run->verify_over = true;
	verify_free(run->verify);
	run->verify = NULL;
	loop_stop(run->main->loop);
}

static int verify_result(struct run *run)
{
	struct lane *lane = run->main;
	const struct verify_result *v = &run->verified;

	if (v->differs) {
		error_set(&run->err,
			  "%s: differs from the source at offset %" PRIu64,
			  lane->dst.label, v->offset);
		return -EIO;
	}
	if (run->verify_error && run->verify_error != -EINTR)
		error_set(&run->err,
			  "%s: cannot read at offset %" PRIu64 ": %s",
			  v->side == 0 ? lane->src.label : lane->dst.label,
			  v->offset, strerror(-run->verify_error));
	return run->verify_error;
}

static int verify(struct run *run)
{
	struct lane *lane = run->main;
	struct verify_params p = {
		.len = run->shared.size,
		.loop = lane->loop,
		.pool = lane->pool,
		.queue_size = run->cli->queue_size,
		.no_extents = run->cli->no_extents,
		.progress = verify_progress,
		.done = verify_done,
		.arg = run,
	};
	int r;

	if (!run->cli->verify)
		return 0;
	/* What was written is read again, not remembered. */
	r = lane_flush(lane, &run->err);
	if (r == 0)
		r = end_reopen(&lane->src, lane->loop, lane->workers,
			       &run->err);
	if (r == 0)
		r = end_reopen(&lane->dst, lane->loop, lane->workers,
			       &run->err);
	if (r < 0 || run->stopped)
		return r < 0 ? r : -EINTR;
	watch_compare(&run->watch);
	p.a = lane->src.dev;
	p.b = lane->dst.dev;
	r = verify_start(&p, &run->verify);
	if (r < 0) {
		error_set(&run->err, "cannot compare: %s", strerror(-r));
		return r;
	}
	while (!run->verify_over && r == 0)
		r = loop_run(lane->loop);
	return r < 0 ? r : verify_result(run);
}

/* ---------------------------------------------------------------- the end */

static void print_json(struct run *run, uint64_t ns)
{
	const struct operand *dest = run->cli->dest;
	bool taken = dest->word && strcmp(dest->word, "-") == 0;
	struct copy_stats sum = { 0 };
	unsigned i;

	for (i = 0; i < run->shared.lanes; i++) {
		sum.read += run->lanes[i].stats.read;
		sum.written += run->lanes[i].stats.written;
		sum.zeroed += run->lanes[i].stats.zeroed;
		sum.skipped += run->lanes[i].stats.skipped;
	}
	fprintf(taken ? stderr : stdout,
		"{ \"bytes_read\": %" PRIu64 ", \"bytes_written\": %" PRIu64
		", \"bytes_zeroed\": %" PRIu64 ", \"bytes_skipped\": %" PRIu64
		", \"seconds\": %" PRIu64 ".%03u%s }\n",
		sum.read, sum.written, sum.zeroed, sum.skipped, ns / NS_PER_S,
		(unsigned)(ns / NS_PER_MS % 1000),
		run->cli->verify ? ", \"verified\": true" : "");
}

static void say_plan(struct run *run)
{
	const struct lane *lane = run->main;
	char size[24];

	if (run->shared.size == UINT64_MAX)
		snprintf(size, sizeof(size), "unknown size");
	else
		format_size(run->shared.size, size, sizeof(size));
	log_msg(&run->cli->log, LOG_LVL_INFO,
		"copying %s from %s to %s, threads: %u", size, lane->src.label,
		lane->dst.label, run->shared.lanes);
}

/* Everything between having both ends and leaving them. */
static int work(struct run *run)
{
	uint64_t began = cli_now();
	bool grown;
	int r;

	run->watch = (struct watch){
		.cli = run->cli,
		.loop = run->main->loop,
		.size = run->shared.size,
		.finished = run_finished,
		.stop = run_stop,
		.arg = run,
	};
	say_plan(run);
	watch_start(&run->watch);
	r = check_source(run, copy(run));
	if (r == 0)
		r = verify(run);
	grown = r == 0 && has_grown(run);
	if (r == 0)
		r = close_ends(run);
	watch_end(&run->watch, r == 0);
	if (r == 0 && grown)
		warn_longer(run);
	if (r == 0 && run->cli->json)
		print_json(run, cli_now() - began);
	return r;
}

/* One line, with what the engine had to say of it, unless that is the same. */
static void say_error(struct cli *cli, const char *text)
{
	const char *reason = cli->reason, *why = strrchr(reason, ':');

	if (!*reason || strstr(text, why ? why : reason))
		fprintf(stderr, PROGRAM ": %s\n", text);
	else
		fprintf(stderr, PROGRAM ": %s (%s)\n", text, reason);
}

int cli_run(struct cli *cli)
{
	struct run *run = calloc(1, sizeof(*run));
	int r = -ENOMEM, signal = 0;

	if (!run)
		return CLI_FAILED;
	run->cli = cli;
	run->shared.cli = cli;
	run->shared.lanes = 1;
	run->lanes = calloc(cli->lanes_max, sizeof(*run->lanes));
	if (!run->lanes)
		goto out;
	run->main = &run->lanes[0];
	r = lane_init(run->main, &run->shared, &run->err);
	if (r == 0)
		r = open_ends(run);
	if (r == 0)
		r = work(run);
	signal = run->watch.signal;
out:
	watch_early(false);
	/* Now: to leave a server may take a while. */
	if (r < 0 && !signal)
		say_error(cli, run->err.text[0] ? run->err.text : strerror(-r));
	if (run->main) {
		if (run->main->loop)
			close_ends(run);
		lane_free(run->main);
	}
	free(run->lanes);
	free(run);
	if (signal && r < 0)
		return 128 + signal;
	return r < 0 ? CLI_FAILED : CLI_OK;
}
