/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The solver for problems without memory: presolve, then elimination, exactly; where tables would
 * be too large, a dual bound by diffusion and a decoded choice. planner/solver/solve.h treats usage
 * over time and searches longer; this one is small, has no threads and no clock, and so always
 * gives the same answer.
 */

#include "tests/planner/solver/elimination/pairwise.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "planner/solver/elimination/elimination.h"
#include "tests/planner/solver/elimination/pairwise_bound.h"
#include "tests/planner/solver/elimination/pairwise_reduce.h"

/* Tables up to QUICK_CELLS are cheaper than a bound that might make them smaller. */
enum { DEFAULT_MAX_CELLS = 4 << 20, QUICK_CELLS = 1 << 15 };

/* Relative gap that counts as none. */
static const double TOLERANCE = 1e-9;

/* Sums the chosen costs; a forbidden one makes the sum larger than AP_INTRA_OP_INFINITE. */
double ap_intra_op_cost(const ap_intra_op_problem_t *problem, const int *choice)
{
    double cost = 0;

    for (int n = 0; n < problem->nodes; ++n) {
        cost += problem->costs[n][choice[n]];
    }
    for (int e = 0; e < problem->edges; ++e) {
        const ap_intra_op_edge_t *edge = &problem->edge[e];

        cost += edge->costs[choice[edge->a] * problem->strategies[edge->b] + choice[edge->b]];
    }
    return cost;
}

/* Checks only what would lead outside of arrays; costs of any size are fine. */
static xm_status_t check(const ap_intra_op_problem_t *problem)
{
    for (int n = 0; n < problem->nodes; ++n) {
        if (problem->strategies[n] < 1) {
            return XM_INVALID("node %d has no strategies", n);
        }
    }
    for (int e = 0; e < problem->edges; ++e) {
        const ap_intra_op_edge_t *edge = &problem->edge[e];

        if (edge->a < 0 || edge->b < 0 || edge->a >= problem->nodes || edge->b >= problem->nodes ||
            edge->a == edge->b) {
            return XM_INVALID("edge %d joins nodes %d and %d of %d", e, edge->a, edge->b,
                              problem->nodes);
        }
    }
    return XM_OK;
}

/* Writes the reduced problem as a network of all nodes. Nodes that are gone have one value and no
 * link, which costs nothing and keeps their numbers. */
static xm_status_t fill_core(const ap_reduced_t *r, ap_cfn_core_t **core)
{
    ap_cfn_core_size_t size = {.variables = r->nodes, .links = r->edges};
    ap_cfn_core_maker_t maker;
    xm_status_t status;

    for (int n = 0; n < r->nodes; ++n) {
        size.values += r->node[n].gone ? 1 : (size_t)r->node[n].size;
    }
    status = ap_cfn_core_begin(&size, &maker);
    if (status != XM_OK) {
        return status;
    }
    for (int n = 0; n < r->nodes; ++n) {
        int count = r->node[n].gone ? 1 : r->node[n].size;
        double *cost = ap_cfn_core_add_variable(&maker, count);

        for (int x = 0; x < count; ++x) {
            cost[x] = r->node[n].gone ? 0.0 : r->node[n].cost[x];
        }
    }
    for (int e = 0; e < r->edges; ++e) {
        if (!r->edge[e].gone) {
            ap_cfn_core_borrow_link(&maker, r->edge[e].a, r->edge[e].b, r->edge[e].cost);
        }
    }
    *core = ap_cfn_core_finish(&maker);
    return XM_OK;
}

/* Solves what is left by elimination; XM_ERR_UNSUPPORTED when it is too wide, which callers take as
 * "try otherwise". */
static xm_status_t eliminate(const ap_reduced_t *reduced, size_t max_cells, int *choice)
{
    const ap_elimination_params_t params = {.cells = (double)max_cells};
    int *assignment = calloc((size_t)reduced->nodes + 1, sizeof(int));
    ap_elimination_t *elimination = NULL;
    ap_cfn_core_t *core = NULL;
    xm_status_t status =
        assignment == NULL ? XM_NO_MEMORY("an assignment") : fill_core(reduced, &core);

    if (status == XM_OK) {
        status = ap_elimination_create(core, &elimination);
    }
    if (status == XM_OK) {
        status = ap_elimination_plan(elimination, &params);
    }
    if (status == XM_OK) {
        (void)ap_elimination_solve(elimination, ap_cfn_core_costs(core), assignment);
        ap_reduced_restore(reduced, assignment, choice);
    }
    ap_elimination_destroy(elimination);
    ap_cfn_core_destroy(core);
    free(assignment);
    return status;
}

/* The way round a wide problem: diffusion gives a bound and a choice, the two rule out strategies,
 * and elimination is tried on what is left. When it is still too wide, the decoded choice is the
 * answer and `eliminated` stays false. After a successful elimination the answer is exact, because
 * ap_intra_op_fix() drops only what no better choice has. */
static xm_status_t solve_wide(const ap_intra_op_problem_t *problem, size_t max_cells,
                              ap_reduced_t *reduced, int *choice, ap_intra_op_result_t *found)
{
    int *assignment = calloc((size_t)reduced->nodes + 1, sizeof(int));
    double cost;
    xm_status_t status = assignment == NULL ? XM_NO_MEMORY("an assignment")
                                            : ap_intra_op_diffuse(reduced, TOLERANCE, assignment,
                                                                  &cost, &found->bound);

    if (status == XM_OK) {
        ap_reduced_restore(reduced, assignment, choice);
        /* The reduced costs were moved about, so the cost is taken from the problem itself. */
        cost = ap_intra_op_cost(problem, choice);
        found->eliminated = cost - found->bound <= TOLERANCE * fabs(cost);
    }
    if (status == XM_OK && !found->eliminated) {
        status = ap_intra_op_fix(reduced, cost);
        if (status == XM_OK) {
            status = eliminate(reduced, max_cells, choice);
            found->eliminated = status == XM_OK;
        }
        status = status == XM_ERR_UNSUPPORTED ? XM_OK : status;
    }
    free(assignment);
    return status;
}

/* Finds the best choice and a lower bound. Small tables first: where they are enough, a bound would
 * cost more than it saves. */
static xm_status_t solve(const ap_intra_op_problem_t *problem, size_t max_cells, int *choice,
                         ap_intra_op_result_t *found)
{
    size_t quick = max_cells < QUICK_CELLS ? max_cells : QUICK_CELLS;
    ap_reduced_t *reduced = NULL;
    xm_status_t status = ap_reduced_create(problem, &reduced);

    if (status == XM_OK) {
        for (int n = 0; n < reduced->nodes; ++n) {
            found->nodes_left += !reduced->node[n].gone && reduced->node[n].size > 1;
        }
        status = eliminate(reduced, quick, choice);
        found->eliminated = status == XM_OK;
    }
    if (status == XM_ERR_UNSUPPORTED) {
        status = solve_wide(problem, max_cells, reduced, choice, found);
    }
    ap_reduced_destroy(reduced);
    return status;
}

xm_status_t ap_intra_op_solve(const ap_intra_op_problem_t *problem, size_t max_cells, int *choice,
                              ap_intra_op_result_t *result)
{
    ap_intra_op_result_t made = {0};
    int *best;
    xm_status_t status = check(problem);

    if (status != XM_OK) {
        return status;
    }
    best = calloc((size_t)problem->nodes + 1, sizeof(*best));
    if (best == NULL) {
        return XM_NO_MEMORY("%d nodes", problem->nodes);
    }
    status = solve(problem, max_cells > 0 ? max_cells : DEFAULT_MAX_CELLS, best, &made);
    if (status == XM_OK) {
        made.objective = ap_intra_op_cost(problem, best);
        /* An exact solve is its own bound. */
        made.bound = made.eliminated ? made.objective : made.bound;
        /* Sums that reach the forbidding cost contain a forbidden term. */
        if (made.objective >= AP_INTRA_OP_INFINITE) {
            status = XM_NO_SOLUTION(made.eliminated ? "every choice of strategies is forbidden"
                                                    : "no allowed choice was found");
        }
    }
    if (status == XM_OK) {
        memcpy(choice, best, (size_t)problem->nodes * sizeof(int));
        *result = made;
    }
    free(best);
    return status;
}
