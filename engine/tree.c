/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <assert.h>
#include <string.h>
#include <sys/auxv.h>

#include "tree.h"

void tree_init(struct tree *t)
{
	uint64_t seed = (uintptr_t)t;
	uint64_t secret = 0;
	/* Sixteen random bytes that the kernel gives to every process: who
	 * knew the priorities could choose keys that make the tree deep. */
	uintptr_t random = getauxval(AT_RANDOM);

	if (random)
		memcpy(&secret, (const void *)random, sizeof(secret));
	seed = (seed ^ secret) * 0x9e3779b97f4a7c15;
	t->root = NULL;
	t->random = (uint32_t)(seed >> 32) | 1;
}

/* Xorshift: never zero as long as it did not begin so. */
static uint32_t next_prio(struct tree *t)
{
	uint32_t x = t->random;

	x ^= x << 13;
	x ^= x >> 17;
	x ^= x << 5;
	t->random = x;
	return x >> 2;
}

/* Where the pointer to a node is kept. */
static struct tree_node **link_of(struct tree *t, const struct tree_node *n)
{
	struct tree_node *p = n->parent;

	if (!p)
		return &t->root;
	return p->left == n ? &p->left : &p->right;
}

/* Parts the subtree into what is below the key of n and what is above; n gets
 * them as children. */
static void split_below(struct tree_node *n, struct tree_node *sub)
{
	struct tree_node **low = &n->left, **high = &n->right;
	struct tree_node *low_parent = n, *high_parent = n;

	while (sub) {
		assert(sub->key != n->key);
		if (sub->key < n->key) {
			*low = sub;
			sub->parent = low_parent;
			low_parent = sub;
			low = &sub->right;
			sub = *low;
		} else {
			*high = sub;
			sub->parent = high_parent;
			high_parent = sub;
			high = &sub->left;
			sub = *high;
		}
	}
	*low = NULL;
	*high = NULL;
}

void tree_insert(struct tree *t, struct tree_node *n, uint64_t key)
{
	struct tree_node **link = &t->root, *parent = NULL;

	n->key = key;
	n->prio = next_prio(t);
	while (*link && (*link)->prio >= n->prio) {
		parent = *link;
		assert(parent->key != key);
		link = key < parent->key ? &parent->left : &parent->right;
	}
	split_below(n, *link);
	n->parent = parent;
	*link = n;
}

void tree_remove(struct tree *t, struct tree_node *n)
{
	struct tree_node **link = link_of(t, n), *parent = n->parent;
	struct tree_node *low = n->left, *high = n->right, *rest;

	/* Joins the two subtrees in its place, the higher priority above. */
	while (low && high) {
		if (low->prio >= high->prio) {
			*link = low;
			low->parent = parent;
			parent = low;
			link = &low->right;
			low = *link;
		} else {
			*link = high;
			high->parent = parent;
			parent = high;
			link = &high->left;
			high = *link;
		}
	}
	rest = low ? low : high;
	*link = rest;
	if (rest)
		rest->parent = parent;
	n->left = NULL;
	n->right = NULL;
	n->parent = NULL;
}

struct tree_node *tree_floor(const struct tree *t, uint64_t key)
{
	struct tree_node *n = t->root, *best = NULL;

	while (n) {
		if (n->key <= key) {
			best = n;
			n = n->right;
		} else {
			n = n->left;
		}
	}
	return best;
}

struct tree_node *tree_ceil(const struct tree *t, uint64_t key)
{
	struct tree_node *n = t->root, *best = NULL;

	while (n) {
		if (n->key >= key) {
			best = n;
			n = n->left;
		} else {
			n = n->right;
		}
	}
	return best;
}

struct tree_node *tree_first(const struct tree *t)
{
	struct tree_node *n = t->root;

	while (n && n->left)
		n = n->left;
	return n;
}

struct tree_node *tree_next(const struct tree_node *n)
{
	struct tree_node *p;

	if (n->right) {
		p = n->right;
		while (p->left)
			p = p->left;
		return p;
	}
	for (p = n->parent; p && p->right == n; p = p->parent)
		n = p;
	return p;
}

struct tree_node *tree_prev(const struct tree_node *n)
{
	struct tree_node *p;

	if (n->left) {
		p = n->left;
		while (p->right)
			p = p->right;
		return p;
	}
	for (p = n->parent; p && p->left == n; p = p->parent)
		n = p;
	return p;
}

void tree_rekey(struct tree *t, struct tree_node *n, uint64_t key)
{
	const struct tree_node *prev = tree_prev(n), *next = tree_next(n);

	(void)t;
	assert(!prev || prev->key < key);
	assert(!next || key < next->key);
	n->key = key;
}
