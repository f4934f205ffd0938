/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The exact table of a layer: the cost of the best plan for every input and output spec. All nodes
 * but the two boundary tensors are eliminated (elimination.h); the trace then gives, for each cell,
 * the choice behind it, whose parts are stored beside the cost. Plans found at one memory price can
 * so be compared at another. A block's graph is narrow, so the largest message stays small.
 */

#include <stdlib.h>
#include <string.h>

#include "planner/solver/elimination.h"
#include "planner/stage/layer_problem.h"

/* Tables beyond this are refused; a transformer block needs a thousandth of it. */
enum { MAX_CELLS = 1 << 24 };

/* A problem under given weights, being eliminated. Variables are the nodes, then input and
 * output. */
typedef struct solver {
    const ap_layer_problem_t *problem;
    const ap_layer_weights_t *weights;
    ap_cfn_core_t *core;
    ap_elimination_t *elimination;
    xm_arena_t arena; /* scratch */
    int **best;       /* per node and class: cheapest strategy */
} solver_t;

static int variable_of(const ap_layer_problem_t *problem, int end)
{
    return end == AP_IN ? problem->nodes : end == AP_OUT ? problem->nodes + 1 : end;
}

static void solver_free(solver_t *solver)
{
    ap_elimination_destroy(solver->elimination);
    ap_cfn_core_destroy(solver->core);
    xm_arena_clear(&solver->arena);
}

/* The cost of a class is that of its cheapest strategy, which depends on the weights; `best`
 * remembers it. */
static xm_status_t add_node(solver_t *solver, ap_cfn_core_maker_t *maker, int n)
{
    const ap_layer_node_t *node = &solver->problem->node[n];
    double *costs = ap_cfn_core_add_variable(maker, node->classes);

    solver->best[n] = xm_arena_take(&solver->arena, (size_t)node->classes * sizeof(int));
    XM_NEED_MEMORY(solver->best[n], "%d classes", node->classes);
    for (int c = 0; c < node->classes; ++c) {
        solver->best[n][c] = -1;
    }
    for (int s = 0; s < node->strategies.count; ++s) {
        ap_parts_t parts = ap_layer_strategy_parts(node, s, solver->weights);
        double cost = ap_parts_cost(&parts, solver->weights);
        int c = node->class_of[s];

        if (solver->best[n][c] < 0 || cost < costs[c]) {
            solver->best[n][c] = s;
            costs[c] = cost;
        }
    }
    return XM_OK;
}

/* Resharding takes no memory in this model, so only the seconds are weighed. */
static void add_edge(const solver_t *solver, ap_cfn_core_maker_t *maker,
                     const ap_layer_edge_t *edge)
{
    double *costs = ap_cfn_core_add_link(maker, variable_of(solver->problem, edge->from),
                                         variable_of(solver->problem, edge->to));

    for (int c = 0; c < edge->from_count * edge->to_count; ++c) {
        costs[c] = solver->weights->forward * edge->forward[c] + edge->backward[c];
    }
}

static void add_boundaries(const solver_t *solver, ap_cfn_core_maker_t *maker)
{
    const ap_layer_problem_t *problem = solver->problem;
    double *costs = ap_cfn_core_add_variable(maker, problem->in_count);

    for (int s = 0; s < problem->in_count; ++s) {
        costs[s] = ap_parts_cost(&problem->in_parts[s], solver->weights);
    }
    costs = ap_cfn_core_add_variable(maker, problem->out_count);
    memset(costs, 0, (size_t)problem->out_count * sizeof(*costs));
}

/* The layer as a network at the weights. */
static xm_status_t make_core(solver_t *solver)
{
    const ap_layer_problem_t *problem = solver->problem;
    ap_cfn_core_size_t size = {.variables = problem->nodes + 2, .links = problem->edges};
    ap_cfn_core_maker_t maker;
    xm_status_t status = XM_OK;

    size.values = (size_t)problem->in_count + (size_t)problem->out_count;
    for (int n = 0; n < problem->nodes; ++n) {
        size.values += (size_t)problem->node[n].classes;
    }
    for (int e = 0; e < problem->edges; ++e) {
        size.cells += (size_t)problem->edge[e].from_count * (size_t)problem->edge[e].to_count;
    }
    solver->best = xm_arena_get(&solver->arena, (size_t)problem->nodes, sizeof(*solver->best));
    XM_NEED_MEMORY(solver->best, "layer %d", problem->layer);
    XM_TRY(ap_cfn_core_begin(&size, &maker));
    for (int n = 0; n < problem->nodes && status == XM_OK; ++n) {
        status = add_node(solver, &maker, n);
    }
    if (status == XM_OK) {
        add_boundaries(solver, &maker);
        for (int e = 0; e < problem->edges; ++e) {
            add_edge(solver, &maker, &problem->edge[e]);
        }
    }
    solver->core = ap_cfn_core_finish(&maker);
    return status;
}

/* Eliminates everything but the two boundaries. */
static xm_status_t eliminate(solver_t *solver)
{
    int nodes = solver->problem->nodes;
    bool *keep = xm_arena_get(&solver->arena, (size_t)nodes + 2, sizeof(bool));
    const ap_elimination_params_t params = {.keep = keep, .cells = MAX_CELLS};
    XM_TRY(keep != NULL ? make_core(solver) : XM_NO_MEMORY("layer %d", solver->problem->layer));

    keep[nodes] = keep[nodes + 1] = true;
    XM_TRY(ap_elimination_create(solver->core, &solver->elimination));
    XM_TRY(ap_elimination_plan(solver->elimination, &params));
    ap_elimination_run(solver->elimination, ap_cfn_core_costs(solver->core));
    return XM_OK;
}

/* The class at one end of an edge, or its boundary spec. */
static int class_at(const ap_layer_problem_t *problem, int end, int in, int out,
                    const int *strategies)
{
    if (end == AP_IN) {
        return in;
    }
    return end == AP_OUT ? out : problem->node[end].class_of[strategies[end]];
}

/* Adds up the parts of a whole layer. Recomputed activations live only while their layer runs
 * backward, so they end up in the layer's buffers; across layers the largest counts. */
ap_parts_t ap_layer_assignment_parts(const ap_layer_problem_t *problem,
                                     const ap_layer_weights_t *weights, int in, int out,
                                     const int *strategies)
{
    ap_parts_t sum = problem->in_parts[in];

    for (int n = 0; n < problem->nodes; ++n) {
        ap_parts_t parts = ap_layer_strategy_parts(&problem->node[n], strategies[n], weights);

        ap_parts_add(&sum, &parts);
    }
    for (int e = 0; e < problem->edges; ++e) {
        const ap_layer_edge_t *edge = &problem->edge[e];
        ap_parts_t parts =
            ap_layer_edge_parts(edge, class_at(problem, edge->from, in, out, strategies),
                                class_at(problem, edge->to, in, out, strategies));

        ap_parts_add(&sum, &parts);
    }
    sum.mem_work += sum.mem_layer;
    sum.mem_layer = 0;
    return sum;
}

/* The parts of the layer under the classes that an elimination has chosen. */
static ap_parts_t assignment_parts(const solver_t *solver, const int *assignment, int *strategies)
{
    const ap_layer_problem_t *problem = solver->problem;

    for (int n = 0; n < problem->nodes; ++n) {
        strategies[n] = solver->best[n][assignment[n]];
    }
    return ap_layer_assignment_parts(problem, solver->weights, assignment[problem->nodes],
                                     assignment[problem->nodes + 1], strategies);
}

/* Traces every cell of the table. That is cheap beside the elimination, and later questions need no
 * trace. */
static xm_status_t read_table(solver_t *solver, ap_layer_table_t **table)
{
    const ap_layer_problem_t *problem = solver->problem;
    size_t cells = (size_t)problem->in_count * (size_t)problem->out_count;
    ap_layer_table_t *made = xm_arena_get(problem->arena, 1, sizeof(*made));
    double *cost = xm_arena_take(problem->arena, cells * sizeof(*cost));
    ap_parts_t *parts = xm_arena_take(problem->arena, cells * sizeof(*parts));
    int *assignment = xm_arena_get(&solver->arena, (size_t)problem->nodes + 2, sizeof(int));
    int *strategies = xm_arena_get(&solver->arena, (size_t)problem->nodes, sizeof(int));

    XM_NEED_MEMORY(!problem->arena->failed && !solver->arena.failed, "a table of %zu cells", cells);
    *made = (ap_layer_table_t){problem->in_count, problem->out_count, cost, parts};
    for (size_t c = 0; c < cells; ++c) {
        assignment[problem->nodes] = (int)c / problem->out_count;
        assignment[problem->nodes + 1] = (int)c % problem->out_count;
        made->cost[c] = ap_elimination_minimum(solver->elimination, ap_cfn_core_costs(solver->core),
                                               assignment);
        ap_elimination_trace(solver->elimination, ap_cfn_core_costs(solver->core), assignment);
        made->parts[c] = assignment_parts(solver, assignment, strategies);
    }
    *table = made;
    return XM_OK;
}

/* The table for one set of weights; nothing of the elimination is kept. */
xm_status_t ap_layer_problem_solve(const ap_layer_problem_t *problem,
                                   const ap_layer_weights_t *weights, ap_layer_table_t **table)
{
    solver_t solver = {.problem = problem, .weights = weights};
    xm_status_t status = eliminate(&solver);

    XM_THEN(status, read_table(&solver, table));
    solver_free(&solver);
    return status;
}

/* Finds the strategies behind one cell. The elimination is done again, as keeping that of every
 * table would take far more memory than the few traces of a final plan are worth. */
xm_status_t ap_layer_problem_trace(const ap_layer_problem_t *problem,
                                   const ap_layer_weights_t *weights, int in, int out,
                                   int *strategies)
{
    solver_t solver = {.problem = problem, .weights = weights};
    int *assignment = xm_arena_get(&solver.arena, (size_t)problem->nodes + 2, sizeof(int));
    xm_status_t status = assignment == NULL ? XM_NO_MEMORY("a plan") : eliminate(&solver);

    if (status == XM_OK) {
        assignment[problem->nodes] = in;
        assignment[problem->nodes + 1] = out;
        ap_elimination_trace(solver.elimination, ap_cfn_core_costs(solver.core), assignment);
        for (int n = 0; n < problem->nodes; ++n) {
            strategies[n] = solver.best[n][assignment[n]];
        }
    }
    solver_free(&solver);
    return status;
}
