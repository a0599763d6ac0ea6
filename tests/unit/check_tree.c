/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The tree against a sorted array. */
#include <string.h>

#include "tree.h"
#include "unit.h"
#include "util.h"

#define NODES 600
#define STEPS 20000

struct model {
	struct tree tree;
	struct tree_node node[NODES];
	struct tree_node *free[NODES];
	size_t nfree;
	struct tree_node *sorted[NODES]; /* by key */
	size_t count;
	uint64_t seed;
};

/* How many have a smaller key. */
static size_t rank(const struct model *m, uint64_t key)
{
	size_t low = 0, high = m->count;

	while (low < high) {
		size_t mid = low + (high - low) / 2;

		if (m->sorted[mid]->key < key)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

/* Dense keys in small ranges, the ends of the number range included. */
static uint64_t some_key(struct model *m)
{
	uint64_t r = unit_below(&m->seed, 1000);

	switch (unit_below(&m->seed, 4)) {
	case 0:
		return UINT64_MAX - r;
	case 1:
		return ((uint64_t)1 << 63) + r * 4096;
	default:
		return r;
	}
}

static struct tree_node *at(const struct model *m, size_t i)
{
	return i < m->count ? m->sorted[i] : NULL;
}

static void check_lookups(const struct model *m, uint64_t key)
{
	size_t i = rank(m, key);
	struct tree_node *here = at(m, i);
	struct tree_node *floor = i > 0 ? m->sorted[i - 1] : NULL;

	if (here && here->key == key)
		floor = here;
	unit_assert(tree_ceil(&m->tree, key) == here);
	unit_assert(tree_floor(&m->tree, key) == floor);
}

static void try_insert(struct model *m, uint64_t key)
{
	size_t i = rank(m, key);
	struct tree_node *n;

	if (m->nfree == 0 || (at(m, i) && at(m, i)->key == key))
		return;
	n = m->free[--m->nfree];
	n->tag = (uint32_t)(key & 3);
	n->user = (uint32_t)key;
	tree_insert(&m->tree, n, key);
	unit_assert(n->tag == (key & 3));
	unit_assert(n->user == (uint32_t)key);
	memmove(&m->sorted[i + 1], &m->sorted[i],
		(m->count - i) * sizeof(m->sorted[0]));
	m->sorted[i] = n;
	m->count++;
}

static void remove_one(struct model *m)
{
	size_t i = unit_below(&m->seed, m->count);
	struct tree_node *n = m->sorted[i];

	tree_remove(&m->tree, n);
	m->count--;
	memmove(&m->sorted[i], &m->sorted[i + 1],
		(m->count - i) * sizeof(m->sorted[0]));
	m->free[m->nfree++] = n;
}

static void rekey_one(struct model *m)
{
	size_t i = unit_below(&m->seed, m->count);
	uint64_t low = i > 0 ? m->sorted[i - 1]->key + 1 : 0;
	uint64_t high = at(m, i + 1) ? at(m, i + 1)->key - 1 : UINT64_MAX;
	uint64_t key = low + unit_below(&m->seed, min_u64(high - low, 99) + 1);

	tree_rekey(&m->tree, m->sorted[i], key);
	unit_assert(m->sorted[i]->key == key);
}

/* The depth; asserts parents and the order of priorities. */
static unsigned check_shape(const struct tree_node *n)
{
	unsigned left = 0, right = 0;

	if (!n)
		return 0;
	if (n->left) {
		unit_assert(n->left->parent == n);
		unit_assert(n->left->prio <= n->prio);
		left = check_shape(n->left);
	}
	if (n->right) {
		unit_assert(n->right->parent == n);
		unit_assert(n->right->prio <= n->prio);
		right = check_shape(n->right);
	}
	return 1 + (left > right ? left : right);
}

static void check_all(const struct model *m)
{
	const struct tree_node *n = tree_first(&m->tree), *prev = NULL;
	size_t i;

	for (i = 0; i < m->count; i++) {
		unit_assert(n == m->sorted[i]);
		unit_assert(tree_prev(n) == prev);
		prev = n;
		n = tree_next(n);
	}
	unit_assert(!n);
	if (m->tree.root)
		unit_assert(!m->tree.root->parent);
	check_shape(m->tree.root);
}

START_TEST(random_operations)
{
	static struct model m;
	size_t i;
	int step;

	m.seed = (uint64_t)_i;
	tree_init(&m.tree);
	for (i = 0; i < NODES; i++)
		m.free[m.nfree++] = &m.node[i];
	for (step = 0; step < STEPS; step++) {
		/* Grows and shrinks in turns. */
		bool grow = step / 2000 % 2 == 0;
		uint64_t what = unit_below(&m.seed, 10);

		if (what == 0 && m.count > 0)
			rekey_one(&m);
		else if (what < (grow ? 7 : 4))
			try_insert(&m, some_key(&m));
		else if (m.count > 0)
			remove_one(&m);
		check_lookups(&m, some_key(&m));
		if (step % 100 == 0)
			check_all(&m);
	}
	while (m.count > 0)
		remove_one(&m);
	ck_assert_ptr_null(m.tree.root);
	ck_assert_ptr_null(tree_first(&m.tree));
}
END_TEST

#define MANY 100000

/* Whatever the order of insertion, the tree stays shallow. */
START_TEST(stays_shallow)
{
	struct tree_node *node = calloc(MANY, sizeof(*node));
	struct tree tree;
	uint64_t i, seed = 3;

	ck_assert_ptr_nonnull(node);
	tree_init(&tree);
	for (i = 0; i < MANY; i++) {
		uint64_t key = _i == 0 ? i :
			       _i == 1 ? MANY - i :
					 unit_random(&seed);

		tree_insert(&tree, &node[i], key);
	}
	/* Expected is about 40; a list would have MANY. */
	ck_assert_uint_lt(check_shape(tree.root), 100);
	free(node);
}
END_TEST

START_TEST(node_is_small)
{
	/* A million extents must stay cheap. */
	ck_assert_uint_le(sizeof(struct tree_node), 40);
}
END_TEST

int main(void)
{
	const struct unit_case cases[] = {
		{ random_operations, 20 },
		{ stays_shallow, 3 },
		{ node_is_small, 0 },
	};

	return unit_main("tree", cases, ARRAY_SIZE(cases));
}
