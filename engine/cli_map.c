/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * cli_map.c - nbdfs-copy --map: where a source has its data, as a picture or
 * as JSON. Runs are told, or added to the picture, as they are learnt: memory
 * does not depend on how many there are.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli.h"
#include "util.h"

#define WIDTH_DEFAULT 80
#define WIDTH_MIN 20
#define CELLS_MAX 512
#define LARGEST 5
#define ASKED_AT_ONCE 1024

enum kind { KIND_DATA, KIND_ZERO, KIND_HOLE, KINDS };

static const char *const names[KINDS] = { "data", "zero", "hole" };
/* Of a bitmap. */
static const char *const mark_names[KINDS] = { "dirty", "clean", "clean" };

struct map_run {
	uint64_t start, len;
	enum kind kind;
};

struct map {
	struct cli *cli;
	struct lane *lane;
	struct watch watch;
	uint64_t size, pos;
	const char *const *names;
	/* the question that is out */
	struct dev_io io;
	bool answered, stopped, turned;
	struct loop_task turn;
	int error;
	/* what is known */
	struct map_run run; /* the last one; it may go on */
	uint64_t bytes[KINDS], count[KINDS], longest[KINDS];
	struct map_run largest[LARGEST];
	unsigned cells;
	uint64_t cell[CELLS_MAX][KINDS];
	struct error err;
};

/* ---------------------------------------------------------------- picture */

static uint64_t cell_start(const struct map *m, unsigned i)
{
	return (uint64_t)((unsigned __int128)m->size * i / m->cells);
}

static void fill_cells(struct map *m, const struct map_run *r)
{
	uint64_t end = r->start + r->len;
	unsigned i =
		(unsigned)((unsigned __int128)r->start * m->cells / m->size);

	for (; i < m->cells && cell_start(m, i) < end; i++) {
		uint64_t from = max_u64(r->start, cell_start(m, i));
		uint64_t to = min_u64(end, cell_start(m, i + 1));

		if (to > from)
			m->cell[i][r->kind] += to - from;
	}
}

static void note_largest(struct map *m, struct map_run r)
{
	for (size_t i = 0; i < LARGEST; i++) {
		struct map_run old = m->largest[i];

		if (r.len <= old.len)
			continue;
		m->largest[i] = r;
		r = old;
	}
}

static char symbol(const struct map *m, unsigned i)
{
	const uint64_t *b = m->cell[i];
	uint64_t rest = b[KIND_ZERO] + b[KIND_HOLE];

	if (b[KIND_DATA])
		return b[KIND_DATA] >= rest ? '#' : '+';
	return b[KIND_ZERO] > b[KIND_HOLE] ? '-' : '.';
}

static unsigned bar_width(void)
{
	struct winsize ws;
	unsigned width = WIDTH_DEFAULT;

	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &ws) == 0 && ws.ws_col > 0)
		width = ws.ws_col;
	if (width < WIDTH_MIN)
		width = WIDTH_MIN;
	/* Between brackets; and some terminals wrap a full line. */
	return (unsigned)min_u64(width - 3, CELLS_MAX);
}

static void print_bar(const struct map *m)
{
	char each[24];

	putchar('[');
	for (unsigned i = 0; i < m->cells; i++)
		putchar(symbol(m, i));
	printf("]\n# %s, + less than half", m->names[KIND_DATA]);
	if (m->bytes[KIND_ZERO])
		printf(", - zero");
	printf(", . %s; a character is %s\n\n", m->names[KIND_HOLE],
	       format_size(max_u64(1, m->size / m->cells), each, sizeof(each)));
}

static void print_totals(const struct map *m)
{
	char total[24], longest[24];

	for (unsigned k = 0; k < KINDS; k++) {
		if (m->count[k] == 0)
			continue;
		printf("%-6s %10s %5.1f%%  in %" PRIu64
		       " run%s, the longest %s\n",
		       m->names[k],
		       format_size(m->bytes[k], total, sizeof(total)),
		       100.0 * (double)m->bytes[k] / (double)m->size,
		       m->count[k], m->count[k] == 1 ? "" : "s",
		       format_size(m->longest[k], longest, sizeof(longest)));
	}
}

static void print_largest(const struct map *m)
{
	char len[24];

	printf("\nLargest runs:\n");
	for (size_t i = 0; i < LARGEST && m->largest[i].len; i++) {
		const struct map_run *r = &m->largest[i];

		printf("%-6s %10s  at %" PRIu64 "\n", m->names[r->kind],
		       format_size(r->len, len, sizeof(len)), r->start);
	}
}

static bool can_tell(const struct map *m)
{
	const struct blockdev *dev = m->lane->src.dev;

	return !m->cli->no_extents && dev->ops->extents &&
	       (dev->caps & (DEV_CAN_EXTENTS | DEV_HAS_MARKS));
}

/* Whether the source answered what it was asked. */
static bool has_told(const struct map *m)
{
	struct image_info info;

	if (!can_tell(m))
		return false;
	if (!m->lane->src.image)
		return true;
	image_get_info(m->lane->src.image, &info);
	return info.can_status;
}

static void print_picture(const struct map *m)
{
	char size[24];

	printf("%s: %s (%" PRIu64 " bytes)\n", m->lane->src.label,
	       format_size(m->size, size, sizeof(size)), m->size);
	if (m->size == 0)
		return;
	if (!has_told(m))
		printf("It does not tell where it has holes: all counts as "
		       "%s.\n",
		       m->names[KIND_DATA]);
	print_bar(m);
	print_totals(m);
	print_largest(m);
}

/* ------------------------------------------------------------------- runs */

static void print_run(const struct map *m, const struct map_run *r)
{
	printf("%s\n{ \"start\": %" PRIu64 ", \"length\": %" PRIu64
	       ", \"type\": \"%s\" }",
	       r->start ? "," : "", r->start, r->len, m->names[r->kind]);
}

static void run_ends(struct map *m)
{
	const struct map_run *r = &m->run;

	if (r->len == 0)
		return;
	if (m->cli->json) {
		print_run(m, r);
		return;
	}
	m->count[r->kind]++;
	m->bytes[r->kind] += r->len;
	m->longest[r->kind] = max_u64(m->longest[r->kind], r->len);
	fill_cells(m, r);
	note_largest(m, *r);
}

static void learn(struct map *m)
{
	const struct dev_io *io = &m->io;
	enum kind kind = !io->zero ? KIND_DATA :
			 io->hole  ? KIND_HOLE :
				     KIND_ZERO;
	uint64_t len = min_u64(io->run, m->size - m->pos);

	if (m->run.len == 0 || m->run.kind != kind) {
		run_ends(m);
		m->run = (struct map_run){ .start = m->pos, .kind = kind };
	}
	m->run.len += len;
	m->pos += len;
}

static void on_answer(struct dev_io *io, int error)
{
	struct map *m = container_of(io, struct map, io);

	m->answered = true;
	m->error = error;
	loop_stop(m->lane->loop);
}

/* What comes next in the source. */
static int ask(struct map *m)
{
	struct blockdev *dev = m->lane->src.dev;
	int r = 0;

	memset(&m->io, 0, sizeof(m->io));
	m->io.done = on_answer;
	m->io.offset = m->pos;
	m->io.len = m->size - m->pos;
	m->answered = !can_tell(m);
	m->error = 0;
	if (!m->answered)
		blockdev_extents(dev, &m->io);
	while (!m->answered && r == 0)
		r = loop_run(m->lane->loop);
	/* Files say that they cannot tell when they are asked. */
	if (r == 0 && !can_tell(m)) {
		m->io.run = m->io.len;
		m->io.zero = m->io.hole = false;
		m->error = 0;
	}
	if (r == 0 && m->error == 0 && m->io.run == 0)
		r = -EIO;
	return r < 0 ? r : m->error;
}

static uint64_t map_finished(void *arg)
{
	const struct map *m = arg;

	return m->pos;
}

static void map_stop(void *arg)
{
	struct map *m = arg;

	m->stopped = true;
	loop_stop(m->lane->loop);
}

static void on_turn(struct loop_task *t)
{
	struct map *m = container_of(t, struct map, turn);

	m->turned = true;
	loop_stop(m->lane->loop);
}

/* Signals and progress are seen when the loop runs, which it need not do for
 * answers that are there: now and then it must. */
static int let_loop_turn(struct map *m)
{
	int r = 0;

	m->turned = false;
	m->turn.run = on_turn;
	loop_defer(m->lane->loop, &m->turn);
	while (!m->turned && r == 0)
		r = loop_run(m->lane->loop);
	return r;
}

static int look(struct map *m)
{
	unsigned n = 0;
	int r = 0;

	while (m->pos < m->size && r == 0 && !m->stopped) {
		r = ask(m);
		if (r == 0)
			learn(m);
		if (r == 0 && ++n % ASKED_AT_ONCE == 0)
			r = let_loop_turn(m);
	}
	if (r < 0)
		error_set(&m->err,
			  "%s: cannot tell the extents at offset %" PRIu64
			  ": %s",
			  m->lane->src.label, m->pos, strerror(-r));
	return r == 0 && m->stopped ? -EINTR : r;
}

/* -------------------------------------------------------------------- all */

static int draw(struct map *m)
{
	int r;

	m->watch = (struct watch){
		.cli = m->cli,
		.loop = m->lane->loop,
		.size = m->size,
		.finished = map_finished,
		.stop = map_stop,
		.arg = m,
	};
	m->cells = (unsigned)min_u64(bar_width(), m->size);
	if (m->cli->json)
		putchar('[');
	watch_start(&m->watch);
	r = look(m);
	watch_end(&m->watch, r == 0);
	if (r < 0)
		return r;
	run_ends(m);
	if (m->cli->json)
		printf("\n]\n");
	else
		print_picture(m);
	return 0;
}

static int open_source(struct map *m)
{
	struct lane *lane = m->lane;
	int r = end_open_source(&lane->src, m->cli, lane->loop, &m->err);

	if (r < 0)
		return r;
	m->size = lane->src.size;
	if (m->size == UINT64_MAX) {
		error_set(&m->err, "%s: what is read like a pipe has no map",
			  lane->src.label);
		return -EINVAL;
	}
	return end_device(&lane->src, lane->loop, lane->workers, &m->err);
}

static int run_map(struct map *m)
{
	struct error err = { "" };
	int r = open_source(m);

	if (r == 0)
		r = draw(m);
	watch_early(false);
	if (r < 0 && !m->watch.signal)
		fprintf(stderr, PROGRAM ": %s\n",
			m->err.text[0] ? m->err.text : strerror(-r));
	end_close(&m->lane->src, m->lane->loop, &err);
	return r;
}

int cli_map(struct cli *cli)
{
	struct shared sh = { .cli = cli, .lanes = 1 };
	struct map *m = calloc(1, sizeof(*m));
	struct lane *lane = calloc(1, sizeof(*lane));
	int r = -ENOMEM, signal = 0;

	if (m && lane) {
		m->cli = cli;
		m->lane = lane;
		m->names = cli->dirty ? mark_names : names;
		r = lane_init(lane, &sh, &m->err);
		if (r == 0)
			r = run_map(m);
		else
			fprintf(stderr, PROGRAM ": %s\n", m->err.text);
		signal = m->watch.signal;
		lane_free(lane);
	}
	free(m);
	free(lane);
	if (r == 0)
		return CLI_OK;
	return signal ? 128 + signal : CLI_FAILED;
}
