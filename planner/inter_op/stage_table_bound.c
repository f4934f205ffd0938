/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bounding pass of a stage table: every kind of range is planned freely once on every submesh
 * and shape, without demands on its ends and without a memory limit. Nothing that a search could
 * choose is faster. With the bounds come the specs that free plans have at their ends, most
 * frequent first, which are the ones worth demanding later, and whether memory ever binds; if it
 * does not, memory levels and recomputation are left out altogether.
 */

#include <math.h>

#include "planner/inter_op/stage_table_private.h"

/* Counts a use of a spec and keeps the tally sorted by uses. A spec moves up only when it has more
 * uses than the one before, so of equal ones the first seen stays ahead. A full tally ignores
 * newcomers: only three specs are kept in the end. */
static void count_spec(ap_stage_variant_t *variant, ap_spec_t spec)
{
    int i = 0;

    while (i < variant->spec_count && variant->specs[i] != spec) {
        ++i;
    }
    if (i == AP_TABLE_TALLY) {
        return;
    }
    if (i == variant->spec_count) {
        variant->specs[variant->spec_count] = spec;
        variant->uses[variant->spec_count++] = 0;
    }
    ++variant->uses[i];
    for (; i > 0 && variant->uses[i] > variant->uses[i - 1]; --i) {
        int uses = variant->uses[i];
        ap_spec_t moved = variant->specs[i];

        variant->uses[i] = variant->uses[i - 1];
        variant->specs[i] = variant->specs[i - 1];
        variant->uses[i - 1] = uses;
        variant->specs[i - 1] = moved;
    }
}

/* A bound over all logical shapes. */
static void keep_least(ap_stage_table_t *table, int first, size_t cell, const ap_stage_cost_t *cost)
{
    double objective = ap_stage_objective(cost, table->accumulated);
    double certain = first == 0 ? objective : cost->forward + cost->backward;

    ap_stage_table_note_share(table, cost);
    cell *= (size_t)table->recompute_modes;
    table->least[cell] = fmin(table->least[cell], objective);
    table->least_certain[cell] = fmin(table->least_certain[cell], certain);
}

/* Finds how many stages could follow each stage at best. What any plan keeps on all its devices
 * together is at least what a single device would keep, so that divided by the devices is a lower
 * bound; if not even that fits, no plan does. Working buffers are left out, as they need not
 * divide. */
static xm_status_t find_room(ap_stage_table_t *table, int recompute_mode, int first, int last)
{
    ap_stage_query_t query = ap_stage_table_ask_for(table, first, last, 0, &table->variants[0][0]);
    ap_stage_cost_t whole;
    xm_status_t status = ap_stage_table_ask(table, recompute_mode, 0, &query, &whole);

    if (status == XM_ERR_NO_SOLUTION) { /* nothing is known, so anything might fit */
        whole = (ap_stage_cost_t){0};
        status = XM_OK;
    }
    for (int submesh = 0; submesh < table->submesh_count && status == XM_OK; ++submesh) {
        int devices = table->submeshes[submesh].hosts * table->submeshes[submesh].devices;
        /* All devices together have so much. */
        double limit = ap_stage_table_memory(table, submesh) * devices;
        size_t cell = ap_stage_table_cell(table, first, last, submesh);

        table->room[cell * (size_t)table->recompute_modes + (size_t)recompute_mode] =
            ap_stage_table_fitting(table, first, whole.mem_stage, whole.mem_act, limit);
    }
    return status;
}

/* Finds a lower bound on the seconds of running the forward pass again: no plan divides its FLOPs
 * among more than the stage's devices, and none is faster than their peak. */
static void find_again(ap_stage_table_t *table, int first, int last)
{
    const ap_graph_t *graph = table->params.graph;
    double flops = 0.0;

    for (int o = 0; o < ap_graph_ops(graph); ++o) {
        const ap_op_t *op = ap_graph_op(graph, o);

        if (op->phase == AP_PHASE_FORWARD && op->layer >= first && op->layer <= last) {
            flops += op->flops;
        }
    }
    for (int submesh = 0; submesh < table->submesh_count; ++submesh) {
        int devices = table->submeshes[submesh].hosts * table->submeshes[submesh].devices;
        double rate = table->params.classes->classes[table->class_of[submesh]].device.flops;

        table->again[ap_stage_table_cell(table, first, last, submesh)] = flops / (devices * rate);
    }
}

/* Plans one range freely on every submesh and logical shape: its minimum time, the specs of its
 * ends, and whether memory limits the stages after it. */
static xm_status_t bounding_pass_range(ap_stage_table_t *table, int first, int last)
{
    xm_status_t found = find_room(table, 0, first, last);

    if (found != XM_OK) {
        return found;
    }
    find_again(table, first, last);
    for (int submesh = 0; submesh < table->submesh_count; ++submesh) {
        int most = ap_stage_table_most_successors(table, first, last, submesh);

        for (int v = 0; most >= 0 && v < table->variant_count[submesh]; ++v) {
            ap_stage_variant_t *variant = &table->variants[submesh][v];
            ap_stage_query_t query = ap_stage_table_ask_for(table, first, last, submesh, variant);
            ap_stage_cost_t cost;
            xm_status_t status = ap_stage_table_may_have(table, first, last, submesh, variant)
                                     ? ap_stage_table_ask(table, 0, submesh, &query, &cost)
                                     : XM_ERR_NO_SOLUTION;

            /* Some shapes have no plan, for instance where nothing divides by the axis. */
            if (status == XM_ERR_NO_SOLUTION) {
                continue;
            }
            XM_TRY(status);
            if (cost.input_tensor >= 0) {
                count_spec(variant, cost.input);
            }
            if (cost.output_tensor >= 0) {
                count_spec(variant, cost.output);
            }
            table->memory_binds = table->memory_binds ||
                                  ap_stage_table_successors(table, first, submesh, &cost) < most;
            keep_least(table, first, ap_stage_table_cell(table, first, last, submesh), &cost);
        }
    }
    return XM_OK;
}

/* Bounds the same range if it recomputes: as fast as without, plus the forward pass once more. A
 * stage that keeps its activations and cannot fit even so is left out in the mode without
 * recomputation. */
static xm_status_t bound_recomputing(ap_stage_table_t *table, int first, int last)
{
    XM_TRY(find_room(table, 1, first, last));

    for (int submesh = 0; submesh < table->submesh_count; ++submesh) {
        size_t cell = ap_stage_table_cell(table, first, last, submesh);
        double *least = &table->least[cell * (size_t)table->recompute_modes];
        double *certain = &table->least_certain[cell * (size_t)table->recompute_modes];

        least[1] = least[0] + table->again[cell];
        certain[1] = certain[0] + table->again[cell];
        if (table->room[cell * (size_t)table->recompute_modes] < 0) {
            least[0] = certain[0] = INFINITY;
        }
    }
    return XM_OK;
}

/* Goes over every kind of range once, unless time is up. */
static xm_status_t bounding_pass_all(ap_stage_table_t *table,
                                     xm_status_t (*bounding_pass)(ap_stage_table_t *table,
                                                                  int first, int last))
{
    for (int first = 0; first < table->layers; ++first) {
        for (int last = first; last < table->layers; ++last) {
            int range = first * table->layers + last;
            bool asked = table->same_as[range] == range &&
                         ap_stage_table_may_have(table, first, last, -1, NULL);

            XM_TRY(asked ? bounding_pass(table, first, last) : XM_OK);
        }
    }
    return XM_OK;
}

/* A way to trade time for memory; the search sees each as a configuration. */
static void add_level(ap_stage_table_t *table, int recompute_mode, int successors)
{
    table->levels[table->level_count++] = (ap_stage_level_t){recompute_mode, successors};
}

/* Lists the memory levels. Recomputation is never faster, so where memory does not matter the first
 * mode without a limit is enough. Levels plan for 0 to 3 stages after, then for twice as many each
 * time: a stage with many stages after it loses little by planning for a few more, and every level
 * multiplies the table. */
static void list_levels(ap_stage_table_t *table)
{
    int most = ap_stage_table_most_stages(table);

    for (int recompute_mode = 0;
         recompute_mode < (table->memory_binds ? table->recompute_modes : 1); ++recompute_mode) {
        add_level(table, recompute_mode, -1);
        if (!table->memory_binds || !table->params.lean_plans) {
            continue;
        }
        for (int f = 1; f < most; f = f < 4 ? f + 1 : 2 * f) {
            add_level(table, recompute_mode, f - 1);
        }
        add_level(table, recompute_mode, most - 1);
    }
}

/* Adds the specs that a tensor of two mesh axes can have beside those that free plans like: each
 * axis cuts one dimension, or none. */
static void add_specs(ap_stage_variant_t *variant, const ap_shape_t *shape)
{
    int ways = shape->rank + 1, first = variant->shape[0] > 1 ? ways : 1;
    int second = variant->shape[1] > 1 ? ways : 1;

    for (int way = 0; way < first * second; ++way) {
        /* The last way is not to cut. */
        const int cut[] = {first > 1 ? way % first : shape->rank,
                           second > 1 ? way / first : shape->rank};
        ap_spec_t spec = AP_SPEC_REPLICATED;
        bool divides = true;
        int i = 0;

        for (int dim = 0; dim < shape->rank; ++dim) {
            unsigned axes = (cut[0] == dim ? 1U : 0U) | (cut[1] == dim ? 2U : 0U);
            int parts =
                (cut[0] == dim ? variant->shape[0] : 1) * (cut[1] == dim ? variant->shape[1] : 1);

            divides = divides && shape->dims[dim] % parts == 0;
            spec = ap_spec_with(spec, dim, axes);
        }
        while (i < variant->spec_count && variant->specs[i] != spec) {
            ++i;
        }
        if (divides && i == variant->spec_count && i < AP_TABLE_TALLY) {
            variant->specs[variant->spec_count++] = spec;
        }
    }
}

/* How many specs of each variant are kept. A free plan does not know what its neighbours like, so
 * where activations are large beside the work of a layer, the best pair of stages may agree on a
 * spec that neither has as its first choice. That is found only if all specs are tried: all
 * combinations of input and output are priced, so their number counts squared. In a small table all
 * have room; in a large one the most frequent. */
static int most_specs(const ap_stage_table_t *table)
{
    enum { ROOM = 1 << 17 };
    size_t each = (size_t)table->rows * (size_t)table->submesh_count * (size_t)table->max_variants *
                  (size_t)table->level_count;
    size_t most = AP_TABLE_SPECS;

    while (most < AP_TABLE_TALLY && each * (most + 1) * (most + 1) <= ROOM) {
        ++most;
    }
    return (int)most;
}

/* Lists the specs that are demanded of the ends of a variant's stages. */
static void keep_specs(ap_stage_table_t *table, ap_stage_variant_t *variant, int most)
{
    const ap_graph_t *graph = table->params.graph;

    for (int layer = 0; layer + 1 < table->layers && variant->spec_count < most; ++layer) {
        add_specs(variant, &ap_graph_tensor(graph, ap_graph_boundary(graph, layer))->shape);
    }
    variant->spec_count = variant->spec_count < most ? variant->spec_count : most;
    if (variant->spec_count > table->max_specs) {
        table->max_specs = variant->spec_count;
    }
}

/* The second pass, with recomputation, is needed only where memory binds. */
xm_status_t ap_stage_table_bounding_pass(ap_stage_table_t *table)
{
    xm_status_t status = bounding_pass_all(table, bounding_pass_range);
    int most;

    if (status == XM_OK && table->recompute_modes > 1 && table->memory_binds) {
        status = bounding_pass_all(table, bound_recomputing);
    }
    XM_TRY(status);
    list_levels(table);
    most = most_specs(table);
    table->max_specs = 1;
    for (int submesh = 0; submesh < table->submesh_count; ++submesh) {
        for (int v = 0; v < table->variant_count[submesh]; ++v) {
            keep_specs(table, &table->variants[submesh][v], most);
        }
    }
    table->config_count =
        table->max_variants * table->max_specs * table->max_specs * table->level_count;
    return XM_OK;
}
