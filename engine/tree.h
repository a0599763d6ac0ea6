/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * tree.h - an ordered set of intrusive nodes, keyed by a 64-bit offset.
 *
 * A treap: expected O(log n) for everything. No allocation. Not thread-safe:
 * a tree belongs to its owner's loop. No errors: misuse asserts.
 */
#ifndef NBDFS_TREE_H
#define NBDFS_TREE_H

#include <stddef.h>
#include <stdint.h>

struct tree_node {
	struct tree_node *left, *right, *parent;
	uint64_t key;
	uint32_t prio : 30;
	uint32_t tag : 2; /* the owner's, to fill the gap */
	uint32_t user;	  /* the owner's too */
};

struct tree {
	struct tree_node *root;
	uint32_t random; /* state of the priority generator */
};

void tree_init(struct tree *t);
/* The key must not be in the tree yet. Leaves tag and user alone. */
void tree_insert(struct tree *t, struct tree_node *n, uint64_t key);
void tree_remove(struct tree *t, struct tree_node *n);
/* The node with the largest key <= key, or NULL. */
struct tree_node *tree_floor(const struct tree *t, uint64_t key);
/* The node with the smallest key >= key, or NULL. */
struct tree_node *tree_ceil(const struct tree *t, uint64_t key);
struct tree_node *tree_first(const struct tree *t);
struct tree_node *tree_next(const struct tree_node *n);
struct tree_node *tree_prev(const struct tree_node *n);
/* Changes a key where the order stays the same (asserted). */
void tree_rekey(struct tree *t, struct tree_node *n, uint64_t key);

#endif
