/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "extent.h"
#include "tree.h"
#include "util.h"

#define STATES (EXTENT_HOLE + 1)

/* Slabs grow from small (most maps stay small) to about 64 KiB. */
#define SLAB_FIRST 24
#define SLAB_MAX 1600

/* A node is the beginning of an extent, which reaches to the next node: its
 * key is the start, its tag the state, its user the stamp. */
struct slab {
	struct slab *next;
	size_t nodes;
	struct tree_node node[];
};

struct extent_map {
	uint64_t size;
	size_t max, count;
	uint64_t bytes[STATES];
	struct tree tree;
	struct tree_node first; /* the node with key 0, always there */
	struct tree_node *free; /* chained by `right` */
	size_t nfree;
	struct slab *slabs; /* the newest first */
};

struct value {
	enum extent_state state;
	uint32_t stamp;
};

static enum extent_state node_state(const struct tree_node *n)
{
	return (enum extent_state)n->tag;
}

static struct value node_value(const struct tree_node *n)
{
	return (struct value){ node_state(n), n->user };
}

static bool node_is(const struct tree_node *n, struct value v)
{
	return node_state(n) == v.state && n->user == v.stamp;
}

static void node_set(struct tree_node *n, struct value v)
{
	n->tag = v.state;
	n->user = v.stamp;
}

static uint64_t node_end(const struct extent_map *m, const struct tree_node *n)
{
	const struct tree_node *next = tree_next(n);

	return next ? next->key : m->size;
}

/* ------------------------------------------------------------------- memory */

/* Sees to it that n nodes are free. */
static int reserve(struct extent_map *m, size_t n)
{
	size_t nodes = m->slabs ? m->slabs->nodes * 2 : SLAB_FIRST, i;
	struct slab *s;

	if (m->nfree >= n)
		return 0;
	nodes = min_u64(nodes, SLAB_MAX);
	s = malloc(sizeof(*s) + nodes * sizeof(s->node[0]));
	if (!s)
		return -ENOMEM;
	s->nodes = nodes;
	s->next = m->slabs;
	m->slabs = s;
	/* In ascending order: neighbours on the disk, and in memory. */
	for (i = nodes; i-- > 0;) {
		s->node[i].right = m->free;
		m->free = &s->node[i];
	}
	m->nfree += nodes;
	return 0;
}

/* What was reserved. */
static struct tree_node *insert(struct extent_map *m, uint64_t start,
				struct value v)
{
	struct tree_node *n = m->free;

	m->free = n->right;
	m->nfree--;
	m->count++;
	node_set(n, v);
	tree_insert(&m->tree, n, start);
	return n;
}

static void discard(struct extent_map *m, struct tree_node *n)
{
	assert(n != &m->first);
	tree_remove(&m->tree, n);
	n->right = m->free;
	m->free = n;
	m->nfree++;
	m->count--;
}

static void free_slabs(struct extent_map *m)
{
	while (m->slabs) {
		struct slab *s = m->slabs;

		m->slabs = s->next;
		free(s);
	}
	m->free = NULL;
	m->nfree = 0;
}

void extent_forget(struct extent_map *m)
{
	enum extent_state state;

	free_slabs(m);
	m->tree.root = NULL;
	tree_insert(&m->tree, &m->first, 0);
	node_set(&m->first, (struct value){ EXTENT_UNKNOWN, 0 });
	m->count = m->size > 0;
	for (state = 0; state < STATES; state++)
		m->bytes[state] = 0;
	m->bytes[EXTENT_UNKNOWN] = m->size;
}

struct extent_map *extent_map_new(uint64_t size, size_t max_extents)
{
	struct extent_map *m = calloc(1, sizeof(*m));

	if (!m)
		return NULL;
	m->size = size;
	m->max = max_extents < 3 ? 3 : max_extents;
	tree_init(&m->tree);
	extent_forget(m);
	return m;
}

void extent_map_free(struct extent_map *m)
{
	if (!m)
		return;
	free_slabs(m);
	free(m);
}

/* ------------------------------------------------------------------ setting */

/* A change that is about to be made: [start, end) becomes v. */
struct change {
	uint64_t start, end;
	struct value v;
	struct tree_node *head;	 /* holds start */
	struct tree_node *tail;	 /* holds end - 1 */
	uint64_t tail_end;	 /* its end */
	struct value tail_value; /* its value */
	/* The node that will stand for the range, or for an extent of equal
	 * value before it; NULL: a new one at start. */
	struct tree_node *holder;
	bool keep_tail; /* something is left of the tail */
	bool move_tail; /* its node can be moved to `end` */
};

static void plan(const struct extent_map *m, struct change *c)
{
	struct tree_node *prev = NULL;

	c->head = tree_floor(&m->tree, c->start);
	c->tail = c->head;
	c->tail_end = node_end(m, c->head);
	if (c->tail_end < c->end) {
		c->tail = tree_floor(&m->tree, c->end - 1);
		c->tail_end = node_end(m, c->tail);
	}
	c->tail_value = node_value(c->tail);

	c->holder = NULL;
	if (c->head->key == c->start)
		prev = tree_prev(c->head);
	if (node_is(c->head, c->v) || (c->head->key == c->start && !prev))
		c->holder = c->head;
	else if (c->head->key == c->start)
		c->holder = node_is(prev, c->v) ? prev : c->head;

	c->keep_tail = c->tail_end > c->end && !node_is(c->tail, c->v);
	c->move_tail = c->keep_tail && c->tail != c->holder &&
		       c->tail->key >= c->start;
}

static size_t nodes_needed(const struct change *c)
{
	return (size_t)!c->holder + (size_t)(c->keep_tail && !c->move_tail);
}

/* Takes the range out of the accounts and out of the tree, apart from the
 * nodes that stay. Returns the first node behind it. */
static struct tree_node *clear_range(struct extent_map *m,
				     const struct change *c)
{
	struct tree_node *n = c->head, *next;

	for (; n && n->key < c->end; n = next) {
		uint64_t from = max_u64(n->key, c->start);
		uint64_t to;

		next = tree_next(n);
		to = min_u64(next ? next->key : m->size, c->end);
		m->bytes[node_state(n)] -= to - from;
		if (n->key >= c->start && n != c->holder &&
		    !(n == c->tail && c->move_tail))
			discard(m, n);
	}
	return n;
}

static void apply(struct extent_map *m, struct change *c)
{
	struct tree_node *behind = clear_range(m, c);

	if (!c->holder)
		c->holder = insert(m, c->start, c->v);
	node_set(c->holder, c->v);
	m->bytes[c->v.state] += c->end - c->start;

	if (c->move_tail)
		tree_rekey(&m->tree, c->tail, c->end);
	else if (c->keep_tail)
		insert(m, c->end, c->tail_value);
	else if (c->tail_end == c->end && behind && node_is(behind, c->v))
		discard(m, behind);
}

int extent_set(struct extent_map *m, uint64_t start, uint64_t end,
	       enum extent_state state, uint32_t stamp)
{
	bool zero = state == EXTENT_ZERO || state == EXTENT_HOLE;
	struct change c = { .start = start,
			    .end = min_u64(end, m->size),
			    .v = { state, zero ? stamp : 0 } };

	if (c.start >= c.end)
		return 0;
	plan(m, &c);
	if (c.tail == c.head && node_is(c.head, c.v))
		return 0;
	if (m->count + nodes_needed(&c) > m->max) {
		extent_forget(m);
		plan(m, &c);
	}
	if (reserve(m, nodes_needed(&c)) == 0) {
		apply(m, &c);
		return 0;
	}
	/* What was known is wrong now. Whole extents can be made unknown
	 * without a new node. */
	c.start = c.head->key;
	c.end = c.tail_end;
	c.v = (struct value){ EXTENT_UNKNOWN, 0 };
	plan(m, &c);
	assert(nodes_needed(&c) == 0);
	apply(m, &c);
	return state == EXTENT_UNKNOWN ? 0 : -ENOMEM;
}

/* ------------------------------------------------------------------- asking */

struct extent extent_get(const struct extent_map *m, uint64_t pos)
{
	const struct tree_node *n;

	assert(pos < m->size);
	n = tree_floor(&m->tree, pos);
	return (struct extent){ .start = n->key,
				.end = node_end(m, n),
				.state = node_state(n),
				.stamp = n->user };
}

uint64_t extent_bytes(const struct extent_map *m, enum extent_state state)
{
	return m->bytes[state];
}

size_t extent_count(const struct extent_map *m)
{
	return m->count;
}

uint64_t extent_next_unknown(const struct extent_map *m, uint64_t pos)
{
	const struct tree_node *n;

	if (pos >= m->size || m->bytes[EXTENT_UNKNOWN] == 0)
		return m->size;
	for (n = tree_floor(&m->tree, pos); n; n = tree_next(n)) {
		if (node_state(n) == EXTENT_UNKNOWN)
			return max_u64(n->key, pos);
	}
	return m->size;
}

void extent_check(const struct extent_map *m)
{
	const struct tree_node *n = tree_first(&m->tree), *prev = NULL;
	uint64_t bytes[STATES] = { 0 };
	enum extent_state state;
	size_t count = 0;

	assert(n == &m->first);
	for (; n && m->size > 0; prev = n, n = tree_next(n)) {
		uint64_t end = node_end(m, n);

		assert(prev || n->key == 0);
		assert(end > n->key && end <= m->size);
		assert(!prev || !node_is(prev, node_value(n)));
		assert(n->user == 0 || node_state(n) == EXTENT_ZERO ||
		       node_state(n) == EXTENT_HOLE);
		bytes[node_state(n)] += end - n->key;
		count++;
	}
	assert(count == m->count && count <= m->max);
	for (state = 0; state < STATES; state++)
		assert(bytes[state] == m->bytes[state]);
}
