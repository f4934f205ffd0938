/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A solution in the form that reports and exports read: the spec in which every tensor is made and
 * the strategy of every operator, copied out of a problem and a choice. Exports so depend on
 * neither the solver nor the problem, which may be gone by then.
 */

#include "planner/intra_op/solution.h"

#include <stdlib.h>

/* Strategies are copied whole, so a solution needs only the graph and the mesh from here on. */
xm_status_t ap_shard_solution_create(const ap_shard_problem_t *problem, const int *choice,
                                     ap_shard_solution_t **solution)
{
    const ap_shard_params_t *params = ap_shard_problem_params(problem);
    size_t tensors = (size_t)ap_graph_tensors(params->graph);
    size_t ops = (size_t)ap_graph_ops(params->graph);
    ap_shard_solution_t *made = calloc(1, sizeof(*made));

    if (made != NULL) {
        made->graph = params->graph;
        made->mesh = params->mesh;
        made->micro_batches = params->micro_batches;
        made->state_bytes = params->state_bytes;
        made->made = calloc(tensors + 1, sizeof(*made->made));
        made->ops = calloc(ops + 1, sizeof(*made->ops));
    }
    if (made == NULL || made->made == NULL || made->ops == NULL) {
        ap_shard_solution_destroy(made);
        return XM_NO_MEMORY("a solution of %zu operators", ops);
    }
    for (size_t t = 0; t < tensors; ++t) {
        made->made[t] = ap_shard_problem_spec(problem, choice, (int)t);
    }
    for (size_t o = 0; o < ops; ++o) {
        xm_status_t status =
            ap_strategy_copy(&ap_graph_op(params->graph, (int)o)->rule,
                             ap_shard_problem_op_strategy(problem, choice, (int)o), &made->ops[o]);

        if (status != XM_OK) {
            ap_shard_solution_destroy(made);
            return status;
        }
    }
    *solution = made;
    return XM_OK;
}

/* A tensor that takes over storage ends in the spec of the tensor whose storage it is. */
ap_spec_t ap_shard_solution_kept(const ap_shard_solution_t *solution, int tensor)
{
    int old = ap_graph_tensor(solution->graph, tensor)->alias_of;

    return solution->made[old >= 0 ? old : tensor];
}

/* Updates run once per step, everything else once per micro-batch. */
double ap_shard_solution_times(const ap_shard_solution_t *solution, int op)
{
    bool once = ap_graph_op(solution->graph, op)->phase == AP_PHASE_UPDATE;

    return once || solution->micro_batches == 0 ? 1 : solution->micro_batches;
}

/* A tensor from outside of a loop is resharded before the loop, hence the smaller count of runs. */
double ap_shard_solution_runs(const ap_shard_solution_t *solution, int tensor, int op)
{
    double made = ap_graph_tensor_turns(solution->graph, tensor);
    double used = ap_graph_op(solution->graph, op)->repeat;

    return ap_shard_solution_times(solution, op) * (made < used ? made : used);
}

void ap_shard_solution_destroy(ap_shard_solution_t *solution)
{
    if (solution != NULL) {
        for (int o = 0; solution->ops != NULL && o < ap_graph_ops(solution->graph); ++o) {
            ap_strategy_release(&solution->ops[o]);
        }
        free(solution->made);
        free(solution->ops);
        free(solution);
    }
}
