/* SPDX-License-Identifier: Apache-2.0 */
/* A sharding problem as full tables between all its nodes, solved without the network of
 * planner/intra_op/: what the product's way is held against. */
#pragma once

#include <stdlib.h>

#include "planner/intra_op/intra_op_private.h"
#include "tests/planner/solver/elimination/pairwise.h"
#include "xm_test.h"

typedef struct tables {
    ap_intra_op_problem_t problem;
    int *counts;
    const double **costs;
    double **cells;
    ap_intra_op_edge_t *edges;
} tables_t;

static inline void tables_open(const ap_shard_problem_t *p, tables_t *t)
{
    t->counts = calloc((size_t)p->nodes + 1, sizeof(*t->counts));
    t->costs = calloc((size_t)p->nodes + 1, sizeof(*t->costs));
    t->cells = calloc((size_t)p->wires + 1, sizeof(*t->cells));
    t->edges = calloc((size_t)p->wires + 1, sizeof(*t->edges));
    ck_assert(t->counts != NULL && t->costs != NULL && t->cells != NULL && t->edges != NULL);
    for (int n = 0; n < p->nodes; ++n) {
        t->counts[n] = ap_strategy_table_of(p, n)->count;
        t->costs[n] = ap_strategy_table_of(p, n)->costs;
    }
    for (int w = 0; w < p->wires; ++w) {
        const ap_shard_wire_t *wire = &p->wire[w];

        t->cells[w] = malloc((size_t)t->counts[wire->from] * (size_t)t->counts[wire->to] *
                             sizeof(**t->cells));
        ck_assert_ptr_nonnull(t->cells[w]);
        ck_assert_xm_ok(ap_shard_wire_costs(p, wire, t->cells[w]));
        t->edges[w] = (ap_intra_op_edge_t){.a = wire->from, .b = wire->to, .costs = t->cells[w]};
    }
    t->problem = (ap_intra_op_problem_t){.nodes = p->nodes,
                                         .strategies = t->counts,
                                         .costs = t->costs,
                                         .edges = p->wires,
                                         .edge = t->edges};
}

static inline void tables_close(tables_t *t)
{
    for (int w = 0; w < t->problem.edges; ++w) {
        free(t->cells[w]);
    }
    free(t->counts);
    free(t->costs);
    free(t->cells);
    free(t->edges);
}

/* The best strategy of every node; the caller frees them. */
static inline int *tables_solve(const ap_shard_problem_t *p, ap_intra_op_result_t *result)
{
    int *choice = calloc((size_t)p->nodes + 1, sizeof(*choice));
    tables_t t;

    ck_assert_ptr_nonnull(choice);
    tables_open(p, &t);
    ck_assert_xm_ok(ap_intra_op_solve(&t.problem, 0, choice, result));
    tables_close(&t);
    return choice;
}
