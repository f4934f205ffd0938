/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stage slicing over a table: what a boundary costs, bounds, the search with its thresholds, and
 * what a result's stages are. The search runs on stages priced so far. Whether those are enough is
 * proved, not assumed: a plan below the threshold that was used to price is the best of all,
 * because every stage of a faster plan was priced as well.
 *
 * Searches are in units of T / fill, as inter_op.h knows only sum + (rounds - 1) * bottleneck;
 * results are turned back at the end.
 */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/inter_op/stage_table.h"
#include "planner/inter_op/stage_table_private.h"

/* So many micro-batches that the sum counts for nothing beside the bottleneck. */
static const int64_t STEADY = 1 << 30;

/* Port = (submesh * variants + variant) * specs + spec; see number_ports() in stage_table.c. */
static ap_spec_t side_of_port(const ap_stage_table_t *table, int port, ap_cross_mesh_side_t *side)
{
    int shape = port / table->max_specs;
    const ap_stage_variant_t *variant =
        &table->variants[shape / table->max_variants][shape % table->max_variants];

    side->shape[0] = variant->shape[0];
    side->shape[1] = variant->shape[1];
    return variant->specs[port % table->max_specs];
}

/* Numbers are given out for the largest variant and the most specs, so some of them stand for
 * nothing. */
static bool port_exists(const ap_stage_table_t *table, int port)
{
    int shape = port / table->max_specs, submesh = shape / table->max_variants;
    int v = shape % table->max_variants;

    return v < table->variant_count[submesh] &&
           port % table->max_specs < table->variants[submesh][v].spec_count;
}

/* Finds what passes a boundary, one tensor; false: there is no boundary of that kind. Stages take
 * consecutive devices, so the earlier one ends where the later one begins. */
static bool find_transfer(const ap_stage_table_t *table, const ap_inter_op_boundary_t *at,
                          ap_cross_mesh_tensor_t *passing, ap_cross_mesh_transfer_t *transfer)
{
    const ap_graph_t *graph = table->params.graph;
    const ap_tensor_t *tensor;

    if (table->failed || !port_exists(table, at->src_port) || !port_exists(table, at->dst_port)) {
        return false;
    }
    tensor = ap_graph_tensor(graph, ap_graph_boundary(graph, at->layer - 1));
    passing->shape = tensor->shape;
    passing->element_size = ap_dtype_bytes(tensor->dtype);
    passing->src = side_of_port(table, at->src_port, &transfer->src);
    passing->dst = side_of_port(table, at->dst_port, &transfer->dst);
    transfer->dst.first_device = at->dst_first_device;
    transfer->src.first_device =
        at->dst_first_device - transfer->src.shape[0] * transfer->src.shape[1];
    transfer->tensors = passing;
    transfer->count = 1;
    return true;
}

/* The search's callback has no status, so a failure is kept in the table, and infinity makes the
 * search end soon. */
static double boundary_failed(ap_stage_table_t *table)
{
    table->failed = true;
    (void)snprintf(table->failure, sizeof(table->failure), "%s", xm_last_error());
    return INFINITY;
}

/* Both directions count: the activation forwards and its gradient backwards, once per micro-batch
 * each. */
static double boundary_seconds(void *arg, const ap_inter_op_boundary_t *at)
{
    ap_stage_table_t *table = arg;
    ap_cross_mesh_tensor_t tensor;
    ap_cross_mesh_transfer_t transfer;
    ap_cross_mesh_cost_t cost;

    if (!find_transfer(table, at, &tensor, &transfer)) {
        return INFINITY;
    }
    if (ap_cross_mesh_cost(table->params.cross_mesh, &transfer, &cost) != XM_OK) {
        return boundary_failed(table);
    }
    return cost.forward + cost.backward;
}

/* A lower bound of the same in about a microsecond; the search asks for the cost itself only where
 * it decides. */
static double boundary_lower_bound(void *arg, const ap_inter_op_boundary_t *at)
{
    ap_stage_table_t *table = arg;
    ap_cross_mesh_tensor_t tensor;
    ap_cross_mesh_transfer_t transfer;
    double seconds;

    if (!find_transfer(table, at, &tensor, &transfer)) {
        return INFINITY;
    }
    if (ap_cross_mesh_lower_bound(table->params.cross_mesh, &transfer, &seconds) != XM_OK) {
        return boundary_failed(table);
    }
    return seconds;
}

/* What all searches over this table have in common. */
void ap_stage_table_problem(ap_stage_table_t *table, ap_inter_op_problem_t *problem)
{
    *problem = (ap_inter_op_problem_t)AP_INTER_OP_PROBLEM_INIT;
    problem->layers = table->layers;
    problem->hosts = table->params.hosts;
    problem->devices_per_host = table->params.devices_per_host;
    problem->submeshes = table->submeshes;
    problem->submesh_count = table->submesh_count;
    problem->config_count = table->config_count;
    problem->cost = table->cost;
    problem->max_successors = table->successors;
    problem->range_row = table->row;
    problem->allowed = table->allowed;
    problem->micro_batches = table->rounds;
    problem->ordered = true;
    problem->stop = table->params.stop;
    problem->stop_arg = table->params.stop_arg;
}

/* Searches once over what is priced by now. With `steady`, the bottleneck is all that counts; the
 * objective is then computed for the true number of micro-batches. */
static xm_status_t slice(ap_stage_table_t *table, int min_stages, int max_stages, double known,
                         ap_inter_op_result_t *result)
{
    ap_inter_op_problem_t problem;
    xm_status_t status;

    ap_stage_table_problem(table, &problem);
    problem.min_stages = min_stages;
    problem.max_stages = max_stages;
    problem.known = known;
    /* The cutoff only holds for the objective T, not for the bottleneck alone. */
    problem.worth = table->params.steady ? 0.0 : table->beat / table->fill;
    problem.micro_batches = table->params.steady ? STEADY : table->rounds;
    if (!table->params.free_boundaries) {
        problem.boundary = boundary_seconds;
        problem.boundary_lower_bound = boundary_lower_bound;
        problem.boundary_arg = table;
        problem.boundary_kind = table->boundary_kind;
        problem.boundary_place = table->boundary_place;
        problem.in_port = table->in_port;
        problem.out_port = table->out_port;
    }
    status = ap_inter_op_solve(&problem, result);
    /* A boundary that could not be priced makes any result worthless. */
    if (table->failed) {
        if (status == XM_OK) {
            ap_inter_op_result_clear(result);
        }
        return xm_error_set(XM_ERR_INTERNAL, "the cost of a stage boundary: %s", table->failure);
    }
    if (status == XM_OK) {
        result->objective = result->sum + (double)(table->rounds - 1) * result->bottleneck;
    }
    return status;
}

/* Bounds the objective by a search over given costs without boundaries, in the units of the search
 * (objectives over `fill`). */
static xm_status_t bound(ap_stage_table_t *table, const double *cost, const int32_t *successors,
                         int min_stages, int max_stages, double *seconds)
{
    ap_inter_op_problem_t problem;
    ap_inter_op_result_t result;
    xm_status_t status;

    ap_stage_table_problem(table, &problem);
    problem.config_count = table->recompute_modes;
    problem.cost = cost;
    problem.max_successors = successors;
    problem.min_stages = min_stages;
    problem.max_stages = max_stages;
    status = ap_inter_op_solve(&problem, &result);
    if (status == XM_OK) {
        *seconds = result.bound;
        ap_inter_op_result_clear(&result);
    }
    return status;
}

/* Bounds with memory: how many stages each could allow at best is part of the problem. */
xm_status_t ap_stage_table_bound(ap_stage_table_t *table, int min_stages, int max_stages,
                                 double *seconds)
{
    xm_status_t status = bound(table, table->least, table->room, min_stages, max_stages, seconds);

    if (status == XM_OK) {
        *seconds *= table->fill;
    }
    return status;
}

/* The devices of the busiest stage work through all micro-batches under every schedule, so B times
 * the smallest bottleneck bounds them all. */
xm_status_t ap_stage_table_busy_bound(ap_stage_table_t *table, int min_stages, int max_stages,
                                      double *seconds)
{
    ap_inter_op_problem_t problem;
    ap_inter_op_result_t result;
    xm_status_t status;

    ap_stage_table_problem(table, &problem);
    problem.config_count = table->recompute_modes;
    problem.cost = table->least;
    problem.max_successors = table->room;
    problem.min_stages = min_stages;
    problem.max_stages = max_stages;
    problem.micro_batches = STEADY;
    status = ap_inter_op_solve(&problem, &result);
    if (status == XM_OK) {
        /* The bound has the sum in it, which is at most the number of stages times the bottleneck;
         * over 2^30 micro-batches that is less than the factor takes off. */
        *seconds = fmin(result.bottleneck, result.bound / (double)STEADY) * (1.0 - 1e-6) *
                   table->params.micro_batches;
        ap_inter_op_result_clear(&result);
    }
    return status;
}

/* Bounds the case with recomputation by the table without it, so that many such cases never need a
 * table of their own. Recomputing takes at least the forward pass' FLOPs at full speed. Memory is
 * dropped, as that other case needs less of it. */
xm_status_t ap_stage_table_bound_recomputing(ap_stage_table_t *table, int min_stages,
                                             int max_stages, double *seconds)
{
    size_t cells = (size_t)table->rows * (size_t)table->submesh_count;
    double *cost = malloc(cells * sizeof(*cost));
    xm_status_t status;

    if (table->recompute_modes > 1 || table->recomputes[0]) {
        free(cost);
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "the table has stages that recompute");
    }

    if (cost == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for %zu stages", cells);
    }
    for (size_t cell = 0; cell < cells; ++cell) {
        cost[cell] = table->least[cell] + table->again[cell];
    }
    status = bound(table, cost, NULL, min_stages, max_stages, seconds);
    if (status == XM_OK) {
        *seconds *= table->fill;
    }
    free(cost);
    return status;
}

/* Adds the transfers that the search was told to leave out: they are part of the plan all the
 * same. */
static void add_boundaries(ap_stage_table_t *table, ap_inter_op_result_t *result)
{
    result->sum = 0.0;
    result->bottleneck = 0.0;
    for (int i = 0; i < result->stage_count; ++i) {
        ap_inter_op_stage_t *stage = &result->stages[i];

        if (i > 0) {
            const ap_inter_op_stage_t *source = &result->stages[i - 1];
            int from = source->submesh * table->config_count + source->config;
            int to = stage->submesh * table->config_count + stage->config;
            ap_inter_op_boundary_t at = {stage->first_layer, table->out_port[from],
                                         table->in_port[to], stage->first_device};

            stage->boundary_seconds = boundary_seconds(table, &at);
        }
        result->sum += stage->seconds + stage->boundary_seconds;
        result->bottleneck =
            fmax(result->bottleneck, fmax(stage->seconds, stage->boundary_seconds));
    }
    result->objective = result->sum + (double)(table->rounds - 1) * result->bottleneck;
}

/* What plans must stay below, in the units of the search. It is the smaller of the limit that the
 * table was made with and the best plan that other cases have found by now. */
static double worth_of(const ap_stage_table_t *table)
{
    double worth = table->params.worth > 0.0 ? table->params.worth : INFINITY;

    /* A search for the smallest bottleneck has another objective than T, so no bound on T may leave
     * stages out: all are priced. */
    if (table->params.steady) {
        return INFINITY;
    }
    return fmin(worth, table->beat > 0.0 ? table->beat : INFINITY) / table->fill;
}

/* Prices and searches with a rising threshold. Only stages that can be part of a plan below the
 * threshold are priced. The best plan of those is the best of all if it is below the threshold
 * itself; otherwise its T is the next threshold, since no better plan can lie above that, and
 * without a plan the threshold rises by a half. After a few rounds it goes to the limit at once, so
 * the loop ends. */
xm_status_t ap_stage_table_solve(ap_stage_table_t *table, int min_stages, int max_stages,
                                 ap_inter_op_result_t *result)
{
    enum { ROUNDS = 8 };
    bool steady = table->params.steady;
    double worth = worth_of(table);
    double threshold = 0.0;
    double known = 0.0;
    xm_status_t status =
        bound(table, table->least, table->room, min_stages, max_stages, &threshold);

    if (status != XM_OK) {
        return status;
    }
    /* Boundaries and memory usually cost a few per cent over the bound without them. */
    threshold = steady ? INFINITY : 1.06 * threshold;
    for (int i = 0;; ++i) {
        threshold = threshold < worth && i < ROUNDS ? threshold : worth;
        /* Price first, then search; stages priced for an earlier threshold are still there. */
        status = ap_stage_table_reach(table, threshold);
        if (status == XM_OK) {
            status = slice(table, min_stages, max_stages, known, result);
        }
        if (status != XM_OK && status != XM_ERR_NO_SOLUTION) {
            return status;
        }
        if (threshold >= worth || table->params.pins != NULL ||
            (status == XM_OK && result->objective <= threshold)) {
            break;
        }
        if (status == XM_OK) {
            if (table->params.stop != NULL && table->params.stop(table->params.stop_arg)) {
                break;
            }
            /* A plan with this T exists, so the next search needs no guess of its own. */
            known = threshold = result->objective;
            ap_inter_op_result_clear(result);
        } else {
            /* No plan was found among what is priced: nothing tells how far away one is. */
            threshold *= 1.5;
        }
    }
    /* Everything below the threshold was priced, so the threshold bounds what was not. */
    if (status == XM_OK) {
        result->bound = fmin(result->bound, threshold);
        if (table->params.free_boundaries) {
            add_boundaries(table, result);
        }
        result->objective = table->fill * result->sum +
                            (table->params.micro_batches - table->fill) * result->bottleneck;
        result->bound = fmin(table->fill * result->bound, result->objective);
    }
    return status;
}

/* A stage's configuration from the number of its state: boundary layouts give shape and specs,
 * the memory level gives the recompute mode. */
void ap_stage_table_config(const ap_stage_table_t *table, const ap_inter_op_stage_t *stage,
                           ap_stage_config_t *config)
{
    const ap_stage_level_t *level = &table->levels[stage->config % table->level_count];
    int state = stage->submesh * table->config_count + stage->config;
    ap_cross_mesh_side_t in, out;
    ap_spec_t input = side_of_port(table, table->in_port[state], &in);
    ap_spec_t output = side_of_port(table, table->out_port[state], &out);

    *config = (ap_stage_config_t){.submesh = table->submeshes[stage->submesh],
                                  .shape = {in.shape[0], in.shape[1]},
                                  .has_input = stage->first_layer > 0,
                                  .has_output = stage->last_layer < table->layers - 1,
                                  .input = input,
                                  .output = output,
                                  .recompute = table->recomputes[level->recompute_mode]};
}
