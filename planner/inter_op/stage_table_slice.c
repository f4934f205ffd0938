/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stage slicing over a table: what a boundary costs, bounds, the search with its thresholds, and
 * what a result's stages are. The search runs on stages priced so far. Whether those are enough is
 * proved, not assumed: a plan below the threshold that was used to price is the best of all,
 * because every stage of a faster plan was priced as well.
 */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/inter_op/stage_table.h"
#include "planner/inter_op/stage_table_private.h"

/* The share of the sum that a bound counts where filling the pipeline may cost next to nothing. */
static const double NOTHING = 1.0 / 1024.0;

/* Port = (submesh * variants + variant) * specs + spec; see number_ports() in stage_table.c. */
ap_spec_t ap_stage_table_side(const ap_stage_table_t *table, int port, ap_cross_mesh_side_t *side)
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

    *transfer = (ap_cross_mesh_transfer_t){
        .tensors = passing, .count = 1, .one_way = at->layer <= ap_graph_frozen(graph)};
    if (table->failed || !port_exists(table, at->src_port) || !port_exists(table, at->dst_port)) {
        return false;
    }
    tensor = ap_graph_tensor(graph, ap_graph_boundary(graph, at->layer - 1));
    passing->shape = tensor->shape;
    passing->element_size = ap_dtype_bytes(tensor->dtype);
    passing->src = ap_stage_table_side(table, at->src_port, &transfer->src);
    passing->dst = ap_stage_table_side(table, at->dst_port, &transfer->dst);
    transfer->dst.first_device = at->dst_first_device;
    transfer->src.first_device =
        at->dst_first_device - transfer->src.shape[0] * transfer->src.shape[1];
    return true;
}

/* The search's callback has no status, so a failure is kept in the table, and infinity makes the
 * search end soon. */
double ap_stage_table_failed(ap_stage_table_t *table)
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
        return ap_stage_table_failed(table);
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
        return ap_stage_table_failed(table);
    }
    return seconds;
}

/* The smallest part of a transfer that counts in a window: a window of d micro-batches goes by
 * whole times only. */
static double certain_part(const ap_stage_table_t *table, int most_stages)
{
    int rounds = table->params.micro_batches - 1;
    int most = ap_schedule_traits(table->params.schedule)->ahead * (most_stages - 1) + 1;
    double part = 1.0;

    for (int d = 1; d <= most && rounds > 0; ++d) {
        part = fmin(part, (double)(rounds - rounds % d) / rounds);
    }
    return part;
}

double ap_stage_table_delayed(const ap_stage_table_t *table)
{
    double measured = ap_cross_mesh_runtime(table->params.cross_mesh)->weight;

    return ap_schedule_traits(table->params.schedule)->splits ? ap_pipeline_weight_share(measured)
                                                              : 0.0;
}

/* The share of the sum that the first search counts. A backward pass takes as long as two forward
 * passes, and is two of three of a stage's time, or of four where all stages run them twice. */
double ap_stage_table_share(const ap_stage_table_t *table)
{
    double backward = table->params.recompute == AP_RECOMPUTE_ON ? 2.0 / 4.0 : 2.0 / 3.0;

    return fmax(NOTHING, ap_schedule_fill_share(table->params.schedule,
                                                ap_stage_table_delayed(table) * backward));
}

/* Some micro-batch is the last to go forward through a stage and goes the rest of its way after all
 * others did; some is the first to come back, and all others' backward passes follow. So beside one
 * whole way all of the forward passes count or all of the backward passes, whichever take longer
 * (of frozen layers the forward passes); halves of backward passes leave that way. */
void ap_stage_table_note_share(ap_stage_table_t *table, const ap_stage_cost_t *cost)
{
    bool whole = !ap_schedule_traits(table->params.schedule)->splits;
    double out = whole ? fmin(cost->forward, cost->backward) : cost->forward;

    table->forward_share = fmax(table->forward_share, out / (cost->forward + cost->backward));
}

/* Makes the objective of a problem a bound of steps. Under gpipe it is as it stands, for all
 * forward passes come before all backward passes. Under other schedules forward passes of the
 * busiest stage may run while the first micro-batch is on its way: either the whole sum counts and
 * the forward passes after the first do not (@p paced), or all the passes of the busiest stage
 * count and next to nothing of the sum. Returns the share of the sum. */
static double make_bound(const ap_stage_table_t *table, bool paced, ap_inter_op_problem_t *problem)
{
    ap_schedule_kind_t kind = table->params.schedule;
    double share = kind == AP_SCHEDULE_GPIPE || paced ? 1.0 : NOTHING;

    ap_stage_table_problem(table, share, problem);
    if (paced) {
        problem->micro_batches =
            1 + (int64_t)((table->params.micro_batches - 1) * (1.0 - table->forward_share));
    }
    problem->clock.delayed = ap_stage_table_delayed(table);
    return share;
}

/* What all searches over this table have in common. A sum that counts for a share of its own makes
 * other units: T / share = sum + (B / share - 1) * period, B / share rounded down; 1e-9 keeps a
 * quotient that is whole from being rounded down by floating-point error. */
void ap_stage_table_problem(const ap_stage_table_t *table, double share,
                            ap_inter_op_problem_t *problem)
{
    ap_schedule_kind_t kind = table->params.schedule;

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
    problem->micro_batches = (int64_t)floor(table->params.micro_batches / share + 1e-9);
    problem->clock = (ap_inter_op_clock_t){.ahead = ap_schedule_traits(kind)->ahead,
                                           .station = kind == AP_SCHEDULE_GPIPE ? 1.0 : 0.5,
                                           .certain = 1.0};
    problem->ordered = true;
    problem->spare_hosts = table->params.spare_hosts;
    problem->stop = table->params.stop;
    problem->stop_arg = table->params.stop_arg;
}

/* Simulations of a search besides those of its best plans: so many that a long step takes no longer
 * than a short one. */
static int evaluations(const ap_stage_table_t *table)
{
    enum { PASSES = 1 << 16, MOST = 4096 };
    int most = (int)(PASSES / ((int64_t)4 * table->params.micro_batches));

    return most < MOST ? most : MOST;
}

/* Searches once over what is priced by now. *result is in seconds. */
static xm_status_t run(ap_stage_slicing_t *slicing, ap_inter_op_problem_t *problem,
                       ap_inter_op_result_t *result)
{
    ap_stage_table_t *table = slicing->table;
    xm_status_t status;

    if (!table->params.free_boundaries) {
        problem->boundary = boundary_seconds;
        problem->boundary_lower_bound = boundary_lower_bound;
        problem->boundary_arg = table;
        problem->boundary_kind = table->boundary_kind;
        problem->boundary_place = table->boundary_place;
        problem->in_port = table->in_port;
        problem->out_port = table->out_port;
    }
    problem->judge = ap_stage_table_judge;
    problem->floor = ap_stage_table_floor;
    problem->judge_arg = slicing;
    status = ap_inter_op_solve(problem, result);
    result->bound *= slicing->share;
    result->objective *= slicing->share;
    result->seconds *= slicing->share;
    /* A boundary that could not be priced makes any result worthless. */
    if (table->failed) {
        if (status == XM_OK) {
            ap_inter_op_result_clear(result);
        }
        return xm_error_set(XM_ERR_INTERNAL, "the cost of a stage boundary: %s", table->failure);
    }
    return status;
}

/* The search that proposes. */
static xm_status_t propose(ap_stage_slicing_t *slicing, int min_stages, int max_stages,
                           double known, ap_inter_op_result_t *result)
{
    ap_stage_table_t *table = slicing->table;
    ap_inter_op_problem_t problem;

    slicing->share = ap_stage_table_share(table);
    ap_stage_table_problem(table, slicing->share, &problem);
    problem.min_stages = min_stages;
    problem.max_stages = max_stages;
    problem.known = known / slicing->share;
    problem.worth = table->beat / slicing->share;
    return run(slicing, &problem, result);
}

/* The search that proves: no step of the stages priced is below the bound, and none of others below
 * @p reached. It may find a faster plan, which then takes the place of the other; there is none to
 * begin with where it has no stages. */
static xm_status_t prove(ap_stage_slicing_t *slicing, int min_stages, int max_stages,
                         double reached, ap_inter_op_result_t *result)
{
    ap_stage_table_t *table = slicing->table;
    int most = ap_stage_table_most_stages(table);
    ap_inter_op_result_t found = {0};
    ap_inter_op_problem_t problem;
    xm_status_t status;

    slicing->share = make_bound(table, table->paced, &problem);
    problem.cost = table->certain;
    problem.clock.certain =
        certain_part(table, max_stages > 0 && max_stages < most ? max_stages : most);
    problem.min_stages = min_stages;
    problem.max_stages = max_stages;
    problem.worth = (result->stage_count > 0 ? result->seconds : table->beat) / slicing->share;
    problem.evaluations = evaluations(table);
    status = run(slicing, &problem, &found);
    if (status == XM_ERR_TIMEOUT || (status == XM_ERR_NO_SOLUTION && result->stage_count > 0)) {
        status = XM_OK;
    }
    if (found.stage_count > 0) {
        ap_inter_op_result_clear(result);
        *result = found;
    }
    result->bound = fmin(reached, (1.0 - (slicing->share < 1.0 ? NOTHING : 0.0)) * found.bound);
    return status;
}

/* The problem of the bounds: recompute modes are its configurations, and boundaries are free. */
static void outline_problem(const ap_stage_table_t *table, const double *cost,
                            ap_inter_op_problem_t *problem)
{
    problem->config_count = table->recompute_modes;
    problem->cost = cost;
    problem->max_successors = table->room;
}

/* Searches over the costs of the bounding pass, without boundaries. How many stages each could
 * allow at best is part of the problem. */
static xm_status_t outline(ap_stage_table_t *table, const double *cost, int min_stages,
                           int max_stages, ap_inter_op_problem_t *problem, double *seconds)
{
    ap_inter_op_result_t result;

    outline_problem(table, cost, problem);
    problem->min_stages = min_stages;
    problem->max_stages = max_stages;
    XM_TRY(ap_inter_op_solve(problem, &result));
    *seconds = result.bound;
    ap_inter_op_result_clear(&result);
    return XM_OK;
}

/* The objective of the search that proposes, without transfers. */
xm_status_t ap_stage_table_estimate(ap_stage_table_t *table, int min_stages, int max_stages,
                                    double *seconds)
{
    double share = ap_stage_table_share(table);
    ap_inter_op_problem_t problem;
    xm_status_t status;

    ap_stage_table_problem(table, share, &problem);
    status = outline(table, table->least_certain, min_stages, max_stages, &problem, seconds);
    *seconds *= share;
    return status;
}

/* The better of the two bounds is also the one that is worth proving. Where splitting backward
 * passes leaves weight halves for the end, only the busiest stage counts. */
xm_status_t ap_stage_table_bound(ap_stage_table_t *table, int min_stages, int max_stages,
                                 double *seconds)
{
    bool one = table->params.schedule == AP_SCHEDULE_GPIPE ||
               ap_schedule_traits(table->params.schedule)->splits ||
               !ap_schedule_is_synchronous(table->params.schedule);
    xm_status_t status = XM_OK;

    *seconds = 0.0;
    for (int paced = 0; paced < (one ? 1 : 2) && status == XM_OK; ++paced) {
        ap_inter_op_problem_t problem;
        double share = make_bound(table, paced == 1, &problem), found = 0.0;

        status = outline(table, table->least_certain, min_stages, max_stages, &problem, &found);
        found *= share < 1.0 ? share * (1.0 - NOTHING) : 1.0;
        if (status == XM_OK && found > *seconds) {
            table->paced = paced == 1;
            *seconds = found;
        }
    }
    return status;
}

/* Prices the stages that a plan estimated below so many seconds can have. */
static xm_status_t reach(ap_stage_table_t *table, double seconds)
{
    double share = ap_stage_table_share(table);
    ap_inter_op_problem_t problem;

    ap_stage_table_problem(table, share, &problem);
    outline_problem(table, table->least, &problem);
    return ap_stage_table_reach(table, &problem, seconds / share, 0.0, NULL);
}

/* Prices the stages that a plan with a step below *seconds can have. A device does the passes of
 * all micro-batches within the step, and what happens once, so no stage of such a plan costs more
 * than the step divided by their number. The search that proves has these stages only; where these
 * are too many, lowers *seconds until they are not. */
static xm_status_t reach_bound(ap_stage_table_t *table, double *seconds)
{
    enum { ROUNDS = 8, QUESTIONS = 1 << 17 };
    ap_inter_op_problem_t problem;
    double share = make_bound(table, table->paced, &problem), low = 0.0, high = *seconds;
    double middle = high, rate = (1.0 + 1e-9) / table->params.micro_batches;
    int most = QUESTIONS / table->config_count;
    xm_status_t status = XM_OK;

    outline_problem(table, table->least_certain, &problem);
    for (int i = 0; i < ROUNDS && low < high && status == XM_OK; ++i) {
        int open = 0;

        status = ap_stage_table_reach(table, &problem, middle / share, middle * rate, &open);
        *(open <= most ? &low : &high) = middle;
        middle = 0.5 * (low + high);
    }
    *seconds = low;
    return status == XM_OK ? ap_stage_table_reach(table, &problem, low / share, low * rate, NULL)
                           : status;
}

/* Prices and searches with a rising threshold. Only stages that can be part of a plan below the
 * threshold are priced. The best plan of those is the best of all if it is below the threshold
 * itself; otherwise its T is the next threshold, since no better plan can lie above that, and
 * without a plan the threshold rises by a half. After a few rounds it goes to the limit at once, so
 * the loop ends. */
static xm_status_t reach_and_propose(ap_stage_slicing_t *slicing, int min_stages, int max_stages,
                                     ap_inter_op_result_t *result)
{
    enum { ROUNDS = 8 };
    ap_stage_table_t *table = slicing->table;
    double worth = table->beat > 0.0 ? table->beat / AP_STAGE_TABLE_ESTIMATED : INFINITY;
    double threshold = 0.0, known = 0.0;
    xm_status_t status = ap_stage_table_estimate(table, min_stages, max_stages, &threshold);

    XM_TRY(status); /* there is no plan at all */
    /* Boundaries and memory usually cost a few per cent over the bound without them. */
    threshold *= 1.06;
    for (int i = 0;; ++i) {
        threshold = threshold < worth && i < ROUNDS ? threshold : worth;
        /* Price first, then search; stages priced for an earlier threshold are still there. */
        status = reach(table, threshold);
        XM_THEN(status, propose(slicing, min_stages, max_stages, known, result));
        if ((status != XM_OK && status != XM_ERR_NO_SOLUTION) || threshold >= worth ||
            table->params.pins != NULL || (status == XM_OK && result->objective <= threshold) ||
            (table->params.stop != NULL && table->params.stop(table->params.stop_arg))) {
            return status;
        }
        if (status == XM_OK) {
            /* A plan with this T exists, so the next search needs no guess of its own. */
            known = threshold = result->objective;
            ap_inter_op_result_clear(result);
        } else {
            /* No plan was found among what is priced: nothing tells how far away one is. */
            threshold *= 1.5;
        }
    }
}

/* Stages whose estimate is below the best step are priced before the second search, as far as they
 * are not much above the objective: its bound holds as far as nothing else could be faster. */
xm_status_t ap_stage_table_solve(ap_stage_table_t *table, int min_stages, int max_stages,
                                 ap_inter_op_result_t *result)
{
    size_t most = (size_t)ap_stage_table_most_stages(table);
    size_t pairs = table->skips ? most * (most - 1) / 2 + 1 : most;
    ap_stage_slicing_t slicing = {.table = table};
    xm_status_t status;
    bool proves = true;

    *result = (ap_inter_op_result_t){0};
    slicing.stages = xm_arena_get(&slicing.arena, most, sizeof(*slicing.stages));
    slicing.transfers = xm_arena_get(&slicing.arena, pairs, sizeof(*slicing.transfers));
    status = ap_passing_open(table->params.graph, &slicing.arena, &slicing.passing);
    XM_THEN(status, reach_and_propose(&slicing, min_stages, max_stages, result));
    if (status == XM_OK && table->params.pins == NULL) {
        status = reach(table, fmin(result->seconds, 1.2 * result->objective));
        if (status == XM_ERR_TIMEOUT) { /* the plan is one, and nothing is proved */
            result->bound = 0.0;
            proves = false;
            status = XM_OK;
        }
    }
    if ((status == XM_OK || (status == XM_ERR_NO_SOLUTION && table->beat > 0.0)) && proves) {
        double least, reached = result->stage_count > 0 ? result->seconds : table->beat;

        (void)ap_stage_table_bound(table, min_stages, max_stages, &least); /* sets `paced` */
        status = reach_bound(table, &reached);
        XM_THEN(status, prove(&slicing, min_stages, max_stages, reached, result));
        result->bound = fmax(result->bound, least);
    }
    xm_arena_clear(&slicing.links);
    xm_arena_clear(&slicing.arena);
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
    ap_spec_t input = ap_stage_table_side(table, table->in_port[state], &in);
    ap_spec_t output = ap_stage_table_side(table, table->out_port[state], &out);

    *config = (ap_stage_config_t){.submesh = table->submeshes[stage->submesh],
                                  .shape = {in.shape[0], in.shape[1]},
                                  .has_input = stage->first_layer > 0,
                                  .has_output = stage->last_layer < table->layers - 1,
                                  .input = input,
                                  .output = output,
                                  .recompute = table->recomputes[level->recompute_mode]};
}
