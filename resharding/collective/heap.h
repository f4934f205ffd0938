/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file heap.h
 * The heaps of the simulations, by time and then by number. Nodes lie in an array of the caller's,
 * in which number 0 is nobody; each is in one heap at a time, of any number of heaps.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct xm_heap_node {
    double at;
    uint32_t left, right;
} xm_heap_node_t;

/** Skew heaps (Sleator and Tarjan): the way down both is swapped as it is gone. */
static inline uint32_t xm_heap_merge(xm_heap_node_t *nodes, uint32_t a, uint32_t b)
{
    uint32_t root = 0, *at = &root;

    while (a != 0 && b != 0) {
        bool a_first = nodes[a].at < nodes[b].at || (!(nodes[b].at < nodes[a].at) && a < b);
        uint32_t first = a_first ? a : b;

        b = a_first ? b : a;
        a = nodes[first].right;
        *at = first;
        nodes[first].right = nodes[first].left;
        at = &nodes[first].left;
    }
    *at = a != 0 ? a : b;
    return root;
}

static inline uint32_t xm_heap_pop(xm_heap_node_t *nodes, uint32_t *heap)
{
    uint32_t top = *heap;

    *heap = xm_heap_merge(nodes, nodes[top].left, nodes[top].right);
    return top;
}

static inline void xm_heap_push(xm_heap_node_t *nodes, uint32_t *heap, uint32_t number, double at)
{
    nodes[number] = (xm_heap_node_t){.at = at};
    *heap = xm_heap_merge(nodes, *heap, number);
}
