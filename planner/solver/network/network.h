/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/solver/network/network.h
 * A cost function network with a usage limit: the general form of "one strategy per operator".
 *
 * Every node takes one of its strategies. A choice costs the sum of its nodes' costs and of its
 * edges' cells. While a node is live (integer times lo <= t < hi) its strategy uses some memory;
 * at no time may the sum exceed the limit. This is the problem of the ASPLOS'25 contest on
 * intra-operator parallelism (IOPDDL), whose files planner/solver/network/read.h reads, and what
 * planner/solver/solve.h solves.
 *
 * Costs and usages are integers, 0 … 2^63 - 1, and a cost of AP_CFN_INFINITE or more forbids what
 * it is the cost of. Totals have 128 bits.
 *
 * Storage is flat: node n's values are [node_at[n], node_at[n + 1]) of `costs` and `usages`.
 * Ownership: the arrays belong to the object. Threads: immutable once finished.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/base.h"

#define AP_CFN_INFINITE INT64_C(1000000000000000000)

__extension__ typedef __int128 ap_cfn_total_t;

enum {
    AP_CFN_ARITY = 3,            /**< nodes of one edge, at most */
    AP_CFN_STRATEGIES = 1 << 15, /**< of one node, at most */
    AP_CFN_TOTAL_TEXT = 48       /**< buffer for a total's text */
};

typedef struct ap_cfn {
    char name[256];
    size_t nodes;
    size_t *node_at; /**< nodes + 1 */
    int64_t *costs, *usages;
    int64_t *interval; /**< 2 per node: lo, hi; lo >= hi: never live */
    size_t edges;
    size_t *scope_at; /**< edges + 1, into `scope` */
    int *scope;       /**< the edges' nodes */
    size_t *cell_at;  /**< edges + 1, into `cells` */
    int64_t *cells;   /**< row-major, an edge's first node slowest */
    bool limited;
    int64_t limit;
} ap_cfn_t;

static inline size_t ap_cfn_strategies(const ap_cfn_t *cfn, size_t node)
{
    return cfn->node_at[node + 1] - cfn->node_at[node];
}

/**
 * Checks what was put into an object: every node has a strategy, edges name existing, different
 * nodes and have one cell per combination, nothing is negative. The sentence names the node or
 * edge, from 0.
 */
xm_status_t ap_cfn_check(const ap_cfn_t *cfn);

/** Which part of a problem a check refuses. */
typedef enum ap_cfn_part {
    AP_CFN_WHOLE, /**< no part in particular */
    AP_CFN_NODE,
    AP_CFN_SCOPE, /**< the nodes of an edge */
    AP_CFN_CELLS  /**< the costs of an edge */
} ap_cfn_part_t;

typedef struct ap_cfn_fault {
    ap_cfn_part_t part;
    size_t index; /**< of the node or edge */
} ap_cfn_fault_t;

/** The same; tells where when it refuses. */
xm_status_t ap_cfn_check_at(const ap_cfn_t *cfn, ap_cfn_fault_t *fault);

typedef struct ap_cfn_value {
    ap_cfn_total_t cost;
    int64_t infinite;    /**< costs of AP_CFN_INFINITE or more among them */
    ap_cfn_total_t peak; /**< largest usage at any time */
    bool feasible;       /**< peak <= limit, or there is no limit */
} ap_cfn_value_t;

/** What @p choice (a strategy per node) costs and uses; exact. */
xm_status_t ap_cfn_evaluate(const ap_cfn_t *cfn, const int *choice, ap_cfn_value_t *value);

/** Writes the decimal digits of @p total into @p buffer (AP_CFN_TOTAL_TEXT bytes), returned. */
char *ap_cfn_format(ap_cfn_total_t total, char *buffer);

/** Frees the arrays and the object. NULL is accepted. */
void ap_cfn_destroy(ap_cfn_t *cfn);
