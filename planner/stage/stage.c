/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One pipeline stage: the best plan of a range of layers on a submesh, within a memory limit.
 * Without the limit it is one look into the tables of planner/stage/mesh.c. With one, memory is
 * priced: the tables at a price give the best plan at that price, and bisection over fixed
 * multiplier steps of the price finds the one at which plans begin to fit.
 *
 * The steps are fixed and do not come from each query's own bisection, because tables are
 * expensive: all queries share those of a multiplier step, and a stage table asks many thousands. A
 * factor of √2 between steps leaves a gap that moving single layers back to the cheaper step mostly
 * closes.
 */

#include "planner/stage/stage.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "planner/stage/stage_private.h"

/* Gradient synchronisation and updates happen once per iteration, so a micro-batch carries its
 * share. */
double ap_stage_objective(const ap_stage_cost_t *cost, int micro_batches)
{
    return cost->forward + cost->backward + (cost->sync + cost->update) / micro_batches;
}

double ap_stage_memory(const ap_stage_cost_t *cost, int in_flight)
{
    return cost->mem_stage + in_flight * cost->mem_act + cost->mem_work;
}

/* Finds the layers that differ, by hash. Problems and tables are made once for each of them, so a
 * model of 48 equal blocks costs as much as one of three layers. */
static xm_status_t find_distinct(ap_stage_context_t *context)
{
    size_t layers = (size_t)context->layers;
    uint64_t *hashes = xm_arena_take(&context->arena, layers * sizeof(*hashes));

    context->distinct_of = xm_arena_take(&context->arena, layers * sizeof(int));
    context->example = xm_arena_take(&context->arena, layers * sizeof(int));
    XM_NEED_MEMORY(!context->arena.failed, "%zu layers", layers);
    for (int layer = 0; layer < context->layers; ++layer) {
        int d = 0;

        hashes[layer] =
            ap_graph_layer_hash(context->training, layer) + (uint64_t)context->ties[layer];
        while (d < context->distinct && hashes[context->example[d]] != hashes[layer]) {
            ++d;
        }
        if (d == context->distinct) {
            context->example[context->distinct++] = layer;
        }
        context->distinct_of[layer] = d;
    }
    return XM_OK;
}

/* Expands the graph to the training step once; everything after that reads the expanded graph.
 * Alpa's cost model has no seconds and no memory, so stages cannot be priced with it. */
xm_status_t ap_stage_context_create(const ap_stage_context_params_t *params,
                                    ap_stage_context_t **context)
{
    ap_stage_context_t *made;
    xm_status_t status;

    if (params->micro_batches < 1) {
        return XM_INVALID("%d micro-batches: at least 1 is needed", params->micro_batches);
    }
    if (ap_cost_model_is_alpa(params->cost)) {
        return XM_INVALID("stages need a cost model on a cluster profile, in seconds");
    }
    made = calloc(1, sizeof(*made));
    XM_NEED_MEMORY(made, "a stage context");
    made->cost = params->cost;
    made->micro_batches = params->micro_batches;
    made->rematerialize = params->rematerialize;
    made->layers = ap_graph_layers(params->graph);
    status = ap_training_expand(params->graph, AP_OPTIMIZER_ADAM, &made->training);
    /* A part of the space needs to know what each factor is (batch, sequence, features). */
    if (status == XM_OK && params->space != NULL) {
        made->part = *params->space;
        status = ap_space_roles(made->training, &made->roles);
        made->space = (ap_layer_space_t){.space = &made->part, .roles = made->roles};
    }
    XM_THEN(status, ap_stage_find_tied(made));
    XM_THEN(status, find_distinct(made));
    if (status != XM_OK) {
        ap_stage_context_destroy(made);
        return status;
    }
    *context = made;
    return XM_OK;
}

/* Accepts a context that is only partly made, and NULL. */
void ap_stage_context_destroy(ap_stage_context_t *context)
{
    if (context == NULL) {
        return;
    }
    for (int m = 0; m < context->meshes; ++m) {
        ap_stage_mesh_release(context, context->mesh[m]);
    }
    free(context->mesh);
    free(context->roles);
    xm_arena_clear(&context->arena);
    ap_graph_destroy(context->training);
    free(context);
}

const ap_graph_t *ap_stage_training(const ap_stage_context_t *context)
{
    return context->training;
}

const ap_factor_roles_t *ap_stage_roles(const ap_stage_context_t *context)
{
    return context->roles;
}

ap_layer_weights_t ap_stage_weights(const ap_stage_context_t *context)
{
    return (ap_layer_weights_t){.forward = context->rematerialize ? 2 : 1,
                                .per_iteration = 1.0 / context->micro_batches};
}

int ap_stage_layer_kinds(const ap_stage_context_t *context)
{
    return context->distinct;
}

int ap_stage_layer_kind(const ap_stage_context_t *context, int layer)
{
    return context->distinct_of[layer];
}

void ap_stage_plan_free(ap_stage_plan_t *plan)
{
    free(plan->cells);
    plan->cells = NULL;
}

/* What is held against the limit: state once, activations for every micro-batch in flight, buffers
 * once. */
static double memory_of(const ap_parts_t *parts, int in_flight)
{
    return parts->mem_stage + in_flight * parts->mem_act + parts->mem_work;
}

/* The objective without any price on memory, in which plans at different prices can be compared. */
static double objective_of(const ap_stage_context_t *context, const ap_parts_t *parts)
{
    const ap_layer_weights_t free_memory = ap_stage_weights(context);

    return ap_parts_cost(parts, &free_memory);
}

/* A layer's parts in a plan, if its cell were of this multiplier step. */
static const ap_parts_t *cell_parts(const ap_stage_context_t *context, const ap_stage_cell_t *cell,
                                    const ap_stage_multiplier_t *multiplier, int layer)
{
    const ap_layer_table_t *table = multiplier->table[context->distinct_of[layer]];

    return &table->parts[cell->in * table->out_count + cell->out];
}

/* Sums are taken anew rather than updated: a plan has few layers, and mem_work is a maximum, which
 * cannot be updated downwards. */
static void sum_cells(const ap_stage_context_t *context, ap_stage_plan_t *plan)
{
    memset(&plan->parts, 0, sizeof(plan->parts));
    for (int layer = plan->first; layer <= plan->last; ++layer) {
        const ap_stage_cell_t *cell = &plan->cells[layer - plan->first];

        ap_parts_add(&plan->parts, cell_parts(context, cell, cell->multiplier, layer));
    }
}

/* The index of a demanded boundary spec, -1 = free. A spec that the mesh does not have is no error
 * of the caller's: other shapes may have it. */
static xm_status_t demanded(const ap_spec_t *specs, int count, bool fixed, ap_spec_t spec,
                            const char *which, int *index)
{
    *index = -1;
    for (int s = 0; s < count && fixed; ++s) {
        *index = specs[s] == spec ? s : *index;
    }
    if (fixed && *index < 0) {
        char text[AP_SPEC_TEXT];

        return XM_NO_SOLUTION("the stage's %s cannot have spec %s on this mesh", which,
                              ap_spec_format(spec, AP_MAX_RANK, text, sizeof(text)));
    }
    return XM_OK;
}

static xm_status_t nothing_divides(const ap_stage_query_t *query)
{
    return XM_NO_SOLUTION("layers %d … %d on %d x %d devices (logical %d x %d) have no sharding "
                          "that divides and takes less than %g s",
                          query->first, query->last, query->hosts, query->devices, query->shape[0],
                          query->shape[1], AP_COST_INFINITE);
}

/* The prefix DP has the minimum for every pair of end specs, so the query's demands only choose
 * among its cells; of equal costs the first pair wins. */
xm_status_t ap_stage_improve_ends(ap_stage_context_t *context, const ap_stage_query_t *query,
                                  int number, ap_layer_tie_t tie, const ap_stage_plan_t *plan,
                                  ap_stage_ends_t *best)
{
    const ap_layer_problem_t *start, *end;
    const ap_stage_prefix_t *chain;
    ap_stage_multiplier_t *multiplier;
    int fixed_in, fixed_out;

    XM_TRY(
        ap_stage_multiplier_get(context, plan->mesh, number, query->in_flight, tie, &multiplier));
    XM_TRY(ap_stage_prefix_get(context, plan->mesh, multiplier, plan->first, plan->last, &chain));
    XM_TRY(ap_stage_problem_get(context, plan->mesh, plan->first, &start));
    XM_TRY(ap_stage_problem_get(context, plan->mesh, plan->last, &end));
    XM_TRY(demanded(start->in_specs, start->in_count, query->fix_input, query->input, "input",
                    &fixed_in));
    XM_TRY(demanded(end->out_specs, end->out_count, query->fix_output, query->output, "output",
                    &fixed_out));
    for (int i = 0; i < start->in_count; ++i) {
        for (int o = 0; o < end->out_count; ++o) {
            double cost = chain->cost[plan->last - plan->first][i * end->out_count + o];

            if ((fixed_in < 0 || i == fixed_in) && (fixed_out < 0 || o == fixed_out) &&
                cost < best->priced) {
                *best = (ap_stage_ends_t){multiplier, chain, i, o, cost};
            }
        }
    }
    return XM_OK;
}

/* The best plan at one memory price, ignoring the limit. Writes what no plan costs less than. The
 * specs between layers are traced from the last layer back. */
static xm_status_t plan_at(ap_stage_context_t *context, const ap_stage_query_t *query, int number,
                           ap_stage_plan_t *plan, double *priced)
{
    ap_stage_ends_t best = {.priced = HUGE_VAL};
    double least = HUGE_VAL;
    xm_status_t status =
        ap_stage_improve_ends(context, query, number, (ap_layer_tie_t){0}, plan, &best);

    XM_THEN(status, ap_stage_try_ties(context, query, number, plan, &best, &least));
    *priced = fmin(best.priced, least);
    /* Costs from here on mean that no strategy divides: the forbidding cost is in the sum. */
    if (status == XM_OK && !(best.priced < AP_COST_INFINITE)) {
        return nothing_divides(query);
    }
    plan->tie = status == XM_OK && number == 0 ? best.multiplier->weights.tie : plan->tie;
    for (int layer = plan->last; layer >= plan->first && status == XM_OK; --layer) {
        ap_stage_cell_t *cell = &plan->cells[layer - plan->first];

        status = ap_stage_multiplier_at(context, plan->mesh, best.multiplier, plan->first, layer,
                                        &cell->multiplier);
        if (status == XM_OK) {
            int outs = cell->multiplier->table[context->distinct_of[layer]]->out_count;

            cell->out = best.out;
            cell->in = layer == plan->first
                           ? best.in
                           : best.chain->through[layer - plan->first][best.in * outs + best.out];
            best.out = cell->in;
        }
    }
    if (status == XM_OK) {
        sum_cells(context, plan);
    }
    return status;
}

/* Moves layers of a plan that fits to the cheaper multiplier step, with the same boundary specs,
 * while it still fits. Plans of a step move all layers at once, and the truth between two steps
 * usually is that some of them move. Each round takes the layer that saves most seconds per byte.
 * It ends, since no layer moves twice. Layers that have a parameter alike stay, as they keep it in
 * one mode. */
static xm_status_t spend_slack(ap_stage_context_t *context, const ap_stage_query_t *query,
                               int cheaper, ap_stage_plan_t *plan)
{
    ap_stage_multiplier_t *multiplier;
    xm_status_t status = ap_stage_multiplier_get(context, plan->mesh, cheaper, query->in_flight,
                                                 (ap_layer_tie_t){0}, &multiplier);
    int best = 0;

    while (status == XM_OK && best >= 0) {
        double best_rate = 0, memory = memory_of(&plan->parts, query->in_flight);

        best = -1;
        for (int layer = plan->first; layer <= plan->last; ++layer) {
            ap_stage_cell_t *cell = &plan->cells[layer - plan->first];
            const ap_parts_t *now = cell_parts(context, cell, cell->multiplier, layer);
            const ap_parts_t *then = cell_parts(context, cell, multiplier, layer);
            double saved = objective_of(context, now) - objective_of(context, then);
            double bytes = then->mem_stage - now->mem_stage +
                           query->in_flight * (then->mem_act - now->mem_act);
            /* Buffers are shared by the layers, so only what exceeds the largest one so far costs
             * anything. */
            double work = fmax(0, then->mem_work - plan->parts.mem_work);
            double rate = saved / fmax(bytes, 1);

            if (cell->multiplier != multiplier && !cell->multiplier->weights.tie.alike &&
                saved > 0 && rate > best_rate && memory + bytes + work <= query->memory_limit) {
                best_rate = rate;
                best = layer - plan->first;
            }
        }
        if (best >= 0) {
            plan->cells[best].multiplier = multiplier;
            sum_cells(context, plan);
        }
    }
    return status;
}

/* The smallest plan is the one at the highest price, so what it needs is nearly the minimum over
 * all plans; "about" says so. */
static xm_status_t does_not_fit(const ap_stage_query_t *query, double needed)
{
    char need[32], limit[32];

    return XM_NO_SOLUTION(
        "layers %d … %d on %d x %d devices (logical %d x %d) with %d micro-batches in flight need "
        "at least about %s per device, %s are available",
        query->first, query->last, query->hosts, query->devices, query->shape[0], query->shape[1],
        query->in_flight, xm_text_format_bytes((uint64_t)needed, need, sizeof(need)),
        xm_text_format_bytes((uint64_t)query->memory_limit, limit, sizeof(limit)));
}

/* Bisects the multiplier steps of the price for the lowest one whose plan fits. Memory falls as
 * its price rises, up to buffers, which have no price; so the step that is found fits in any
 * case, and is the lowest up to that. At the highest price a plan is as small as it gets; if
 * that one does not fit, nothing does. */
static xm_status_t meet_limit(ap_stage_context_t *context, const ap_stage_query_t *query,
                              ap_stage_plan_t *plan)
{
    int too_cheap = 0, fits = AP_STAGE_MULTIPLIERS;
    double priced, needed;
    xm_status_t status = plan_at(context, query, fits, plan, &priced);

    needed = memory_of(&plan->parts, query->in_flight);
    if (status == XM_OK && needed > query->memory_limit) {
        return does_not_fit(query, needed);
    }
    while (status == XM_OK && fits - too_cheap > 1) {
        int middle = (fits + too_cheap) / 2;

        status = plan_at(context, query, middle, plan, &priced);
        XM_TRY(status);
        /* Weak duality: every plan within the limit costs at least this, whatever the price. */
        plan->bound = fmax(plan->bound, priced - plan->cells[0].multiplier->weights.stage_byte *
                                                     query->memory_limit);
        if (query->worth > 0.0 && plan->bound > query->worth) {
            return XM_NO_SOLUTION("layers %d … %d take more than %g s within the memory limit",
                                  query->first, query->last, query->worth);
        }
        if (memory_of(&plan->parts, query->in_flight) <= query->memory_limit) {
            fits = middle;
        } else {
            too_cheap = middle;
        }
    }
    XM_THEN(status, plan_at(context, query, fits, plan, &priced));
    return status == XM_OK ? spend_slack(context, query, too_cheap, plan) : status;
}

/* Demands on the boundary specs are checked later, as they depend on the mesh. */
static xm_status_t check_query(const ap_stage_context_t *context, const ap_stage_query_t *query)
{
    if (query->first < 0 || query->last < query->first || query->last >= context->layers) {
        return XM_INVALID("layers %d … %d are not a range of 0 … %d", query->first, query->last,
                          context->layers - 1);
    }
    if (query->in_flight < 1 || query->memory_limit < 0) {
        return XM_INVALID("%d micro-batches in flight with a limit of %g bytes", query->in_flight,
                          query->memory_limit);
    }
    return XM_OK;
}

/* Answers without a price first. If that plan fits, it is the best of all; otherwise its cost is a
 * first bound for the search with prices. */
xm_status_t ap_stage_plan(ap_stage_context_t *context, const ap_stage_query_t *query,
                          ap_stage_plan_t *plan)
{
    ap_stage_plan_t made = {.first = query->first, .last = query->last};
    xm_status_t status;

    XM_TRY(check_query(context, query));
    XM_TRY(ap_stage_mesh_get(context, query, &made.mesh));
    made.cells = calloc((size_t)query->last - (size_t)query->first + 1, sizeof(*made.cells));
    XM_NEED_MEMORY(made.cells, "a plan");
    status = plan_at(context, query, 0, &made, &made.bound);
    if (status == XM_OK && query->memory_limit > 0 &&
        memory_of(&made.parts, query->in_flight) > query->memory_limit) {
        status = meet_limit(context, query, &made);
    }
    if (status != XM_OK) {
        ap_stage_plan_free(&made);
        return status;
    }
    *plan = made;
    return XM_OK;
}

unsigned ap_stage_batch_axes(const ap_stage_context_t *context)
{
    return ap_space_batch_axes(context->space.space);
}

/* With recomputation, the forward pass runs once more in the backward pass; the tables weigh it
 * twice already. In them the sums of gradients have linear prices, which are too low where these
 * take longer than the pass that they hide behind: what is cheapest by them is priced as it is. */
void ap_stage_plan_cost(const ap_stage_context_t *context, const ap_stage_plan_t *plan,
                        ap_stage_cost_t *cost)
{
    const ap_layer_problem_t *start = plan->mesh->problem[context->distinct_of[plan->first]];
    const ap_layer_problem_t *end = plan->mesh->problem[context->distinct_of[plan->last]];
    const ap_parts_t *parts = &plan->parts;

    memset(cost, 0, sizeof(*cost));
    cost->forward = parts->forward;
    cost->backward = parts->backward + (context->rematerialize ? parts->forward : 0);
    cost->sync = ap_cost_gradient_exposed(context->cost, parts->sync, cost->backward);
    cost->update = parts->update;
    cost->mem_stage = parts->mem_stage;
    cost->mem_act = parts->mem_act;
    cost->mem_work = parts->mem_work;
    cost->input = start->in_specs[plan->cells[0].in];
    cost->output = end->out_specs[plan->cells[plan->last - plan->first].out];
    cost->batch_axes = ap_stage_batch_axes(context);
    cost->input_tensor =
        plan->first > 0 ? ap_graph_boundary(context->training, plan->first - 1) : -1;
    cost->output_tensor = ap_graph_boundary(context->training, plan->last);
    cost->bound = plan->bound;
    cost->recompute = context->rematerialize;
}

/* Only the costs: what each operator does is traced for the few stages of the final plan, by
 * ap_stage_solve(). */
xm_status_t ap_stage_evaluate(ap_stage_context_t *context, const ap_stage_query_t *query,
                              ap_stage_cost_t *cost)
{
    ap_stage_plan_t plan = {0};
    XM_TRY(ap_stage_plan(context, query, &plan));

    ap_stage_plan_cost(context, &plan, cost);
    ap_stage_plan_free(&plan);
    return XM_OK;
}
