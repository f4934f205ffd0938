/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stage table's prices: the configurations of the stages that can matter. For each range, submesh
 * and logical shape, the specs that free plans like at their ends are demanded in all combinations,
 * and where memory binds, also plans that need less of it. Each combination is a question to
 * stage.h, which answers from tables that it made before. That is quick, but a cell can still ask
 * hundreds of them, so cells are filled when a search first needs them, and each only once.
 */

#include <math.h>
#include <stdlib.h>

#include "planner/inter_op/stage_table_private.h"

/* The number of a configuration in its first memory level; the other levels follow it. */
static int config_index(const ap_stage_table_t *table, int variant, int input, int output)
{
    return ((variant * table->max_specs + input) * table->max_specs + output) * table->level_count;
}

/* A search among the submeshes is enough here: it is asked once per question at most. */
static int submesh_index(const ap_stage_table_t *table, const ap_stage_query_t *query)
{
    int submesh = 0;

    while (table->submeshes[submesh].hosts != query->hosts ||
           table->submeshes[submesh].devices != query->devices) {
        ++submesh;
    }
    return submesh;
}

/* Micro-batches that a memory level plans for. No more stages are counted after it than any
 * pipeline puts there, so that the limit is not stricter than it need be. */
int ap_stage_table_level_in_flight(const ap_stage_table_t *table, const ap_stage_query_t *query,
                                   int level)
{
    int most = ap_stage_table_most_successors(table, query->first, query->last,
                                              submesh_index(table, query));
    int successors = table->levels[level].successors;

    return ap_stage_table_in_flight(table, query->first, successors < most ? successors : most);
}

/* What the plans so far of a configuration allow, and cost at most. */
typedef struct reached {
    int successors; /* stages that may follow; -1: none fits */
    double dearest; /* objective of the leanest */
} reached_t;

/* Stores the price that the search compares, with the share of what happens once per iteration, and
 * how many stages may follow. */
static reached_t store(ap_stage_table_t *table, const ap_stage_query_t *query, int submesh,
                       int config, const ap_stage_cost_t *cost)
{
    size_t at = ap_stage_table_cell(table, query->first, query->last, submesh) *
                    (size_t)table->config_count +
                (size_t)config;

    double objective = ap_stage_objective(cost, table->accumulated);

    ap_stage_table_note_share(table, cost);
    table->cost[at] =
        objective * (1.0 + (table->params.spare_hosts ? AP_TABLE_HOST * query->hosts : 0.0));
    table->backward[at] = cost->backward;
    table->forward[at] = cost->forward;
    table->once[at] = cost->sync + cost->update;
    /* What the first stage does once a step comes after all else; that of others may hide behind
     * the passes of those before them. */
    table->certain[at] = query->first == 0 ? objective : cost->forward + cost->backward;
    table->successors[at] = ap_stage_table_successors(table, query->first, submesh, cost);
    return (reached_t){table->successors[at], objective};
}

/* Prices one configuration in the memory levels of one recompute mode, from the level without a
 * limit on. Levels that the last plan serves already, or that no pipeline has a use for, are left
 * out; so where memory is no matter there is one question. */
static xm_status_t fill_levels(ap_stage_table_t *table, ap_stage_query_t *query, int submesh,
                               int config, int level, reached_t *reached)
{
    int most = ap_stage_table_most_successors(table, query->first, query->last, submesh);
    int least = query->last < table->layers - 1 ? 1 : 0,
        recompute_mode = table->levels[level].recompute_mode;
    size_t cell = ap_stage_table_cell(table, query->first, query->last, submesh) *
                      (size_t)table->recompute_modes +
                  (size_t)recompute_mode;
    int room = table->room[cell];
    ap_stage_cost_t cost;

    /* A second recompute mode takes longer than plans that keep everything, so it is of use only
     * if it can allow more stages, or where keeping everything in less memory takes longer yet. */
    if (room < least || table->least[cell] > query->worth ||
        (level > 0 && room <= reached->successors && table->least[cell] >= reached->dearest)) {
        return XM_OK;
    }
    query->memory_limit = 0.0;
    query->in_flight = 1;
    XM_TRY(ap_stage_table_ask(table, recompute_mode, submesh, query, &cost));
    *reached = store(table, query, submesh, config + level, &cost);
    /* Levels are in the order of the stages that they plan for. */
    for (++level;
         level < table->level_count && table->levels[level].recompute_mode == recompute_mode;
         ++level) {
        int wanted = table->levels[level].successors;

        /* Leaner plans take no less time. */
        if (reached->dearest > query->worth) {
            break;
        }
        /* The last plan allows enough already; or the level is for the end of the pipeline and this
         * stage is not there. */
        if (reached->successors >= most || wanted <= reached->successors || wanted < least) {
            continue;
        }
        query->memory_limit = ap_stage_table_memory(table, submesh);
        query->in_flight = ap_stage_table_level_in_flight(table, query, level);
        /* Not even a division of its memory without waste would allow so many; higher levels need
         * more. */
        if ((wanted < most ? wanted : most) > room) {
            break;
        }
        XM_TRY(ap_stage_table_ask(table, recompute_mode, submesh, query, &cost));
        *reached = store(table, query, submesh, config + level, &cost);
    }
    return XM_OK;
}

/* Prices one configuration in all recompute modes. A mode that has no plan at all is skipped. */
static xm_status_t fill_config(ap_stage_table_t *table, ap_stage_query_t *query, int submesh,
                               int config)
{
    reached_t reached = {-1, INFINITY};
    xm_status_t status = XM_OK;

    for (int level = 0; level < table->level_count; ++level) {
        if (table->levels[level].successors >= 0) {
            continue;
        }
        /* A mode without a plan here is no error: its entries stay infinite. */
        status = fill_levels(table, query, submesh, config, level, &reached);
        if (status != XM_OK && status != XM_ERR_NO_SOLUTION) {
            return status;
        }
    }
    return XM_OK;
}

/* The ends of the model have no specs, so one combination stands for them. */
static xm_status_t fill_variant(ap_stage_table_t *table, int first, int last, int submesh, int v,
                                double worth)
{
    const ap_stage_variant_t *variant = &table->variants[submesh][v];
    int inputs = first > 0 ? variant->spec_count : 1;
    int outputs = last < table->layers - 1 ? variant->spec_count : 1;

    for (int input = 0; input < inputs; ++input) {
        for (int output = 0; output < outputs; ++output) {
            ap_stage_query_t query = ap_stage_table_ask_for(table, first, last, submesh, variant);

            query.worth = worth;
            query.fix_input = first > 0;
            query.input = variant->specs[input];
            query.fix_output = last < table->layers - 1;
            query.output = variant->specs[output];
            XM_TRY(fill_config(table, &query, submesh, config_index(table, v, input, output)));
        }
    }
    return XM_OK;
}

/* Prices the configurations of one kind of range on one submesh that take no longer than @p worth,
 * unless they are. */
static xm_status_t fill_cell(ap_stage_table_t *table, int first, int last, int submesh,
                             double worth)
{
    double *filled = &table->filled[ap_stage_table_cell(table, first, last, submesh)];
    xm_status_t status = XM_OK;

    for (int v = 0; *filled < worth && v < table->variant_count[submesh] && status == XM_OK; ++v) {
        if (ap_stage_table_may_have(table, first, last, submesh, &table->variants[submesh][v])) {
            status = fill_variant(table, first, last, submesh, v, worth);
        }
    }
    *filled = fmax(*filled, worth);
    return status;
}

/* Prices the pinned stages, which are all there is with pins. */
static xm_status_t fill_pins(ap_stage_table_t *table)
{
    int submeshes = table->submesh_count;

    for (int i = 0; i < table->params.pin_count * submeshes; ++i) {
        const ap_planner_pin_t *pin = &table->params.pins[i / submeshes];

        XM_TRY(fill_cell(table, pin->first_layer, pin->last_layer, i % submeshes, INFINITY));
    }
    return XM_OK;
}

/* Which stages a plan below the threshold can have, and how long they take, follows from the bounds
 * of the bounding pass, so a higher threshold only adds stages; what is priced already stays. */
xm_status_t ap_stage_table_reach(ap_stage_table_t *table, const ap_inter_op_problem_t *problem,
                                 double threshold, double most, int *open)
{
    int layers = table->layers, submeshes = table->submesh_count;
    double *longest;
    xm_status_t status;

    if (table->params.pins != NULL) {
        return fill_pins(table);
    }
    longest = calloc((size_t)layers * (size_t)layers * (size_t)submeshes + 1, sizeof(*longest));
    XM_NEED_MEMORY(longest, "%d layers", layers);
    /* Every stage of every plan below the threshold takes no longer. */
    status = ap_inter_op_useful(problem, threshold, longest);
    for (int i = 0; i < layers * layers * submeshes && status == XM_OK; ++i) {
        /* A range that equals an earlier one is priced there. */
        int same = table->same_as[i / submeshes], first = same / layers, last = same % layers;
        double worth = most > 0.0 ? most : longest[i];

        if (!(longest[i] > 0.0)) {
            continue;
        }
        if (open != NULL) {
            *open += table->filled[ap_stage_table_cell(table, first, last, i % submeshes)] < worth;
        } else {
            status = fill_cell(table, first, last, i % submeshes, worth);
        }
    }
    free(longest);
    return status;
}
