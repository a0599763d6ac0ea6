/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * engine.c - what all images on one loop share.
 */
#include <errno.h>
#include <stdlib.h>

#include "engine.h"
#include "util.h"

/* Connecting to, or leaving, that many servers at a time. */
#define HELPERS 16
/* Free buffers that are kept, beyond what read-ahead and write-behind use. */
#define IDLE_BUFFERS (16 * MiB)

struct engine {
	struct loop *loop;
	struct pool *pool;
	struct workers *workers;
	struct engine_config cfg;
	uint64_t ending_since;
};

void engine_config_defaults(struct engine_config *cfg)
{
	*cfg = (struct engine_config){
		.connections = 4,
		.requests = 64,
		.read_ahead = 32 * MiB,
		.write_behind = 32 * MiB,
		.timeout_ms = 30000,
		.reconnect_ms = 60000,
		.extent_timeout_ms = 1000,
		.list_timeout_ms = 5000,
	};
}

struct engine *engine_new(struct loop *loop, const struct engine_config *cfg,
			  struct error *err)
{
	struct engine *e = calloc(1, sizeof(*e));

	if (!e)
		goto fail;
	e->loop = loop;
	e->cfg = *cfg;
	e->pool = pool_new(IDLE_BUFFERS);
	e->workers = workers_new(loop, HELPERS);
	if (e->pool && e->workers)
		return e;
	engine_free(e);
fail:
	error_set(err, "out of memory");
	return NULL;
}

void engine_free(struct engine *e)
{
	if (!e)
		return;
	if (e->workers)
		workers_free(e->workers);
	if (e->pool)
		pool_free(e->pool);
	free(e);
}

struct loop *engine_loop(struct engine *e)
{
	return e->loop;
}

struct pool *engine_pool(struct engine *e)
{
	return e->pool;
}

struct workers *engine_workers(struct engine *e)
{
	return e->workers;
}

void engine_ending(struct engine *e)
{
	if (!e->ending_since)
		e->ending_since = loop_now(e->loop);
}

uint64_t engine_ending_since(struct engine *e)
{
	engine_ending(e);
	return e->ending_since;
}

const struct engine_config *engine_config(const struct engine *e)
{
	return &e->cfg;
}
