/* A stage table's prices: the configurations of the stages that can matter. */
#include <math.h>
#include <stdlib.h>

#include "planner/stage_table_private.h"

/* The first of its levels. */
static int config_index(const ap_stage_table_t *table, int variant, int input, int output)
{
    return ((variant * table->max_specs + input) * table->max_specs + output) * table->level_count;
}

static int submesh_index(const ap_stage_table_t *table, const ap_stage_query_t *query)
{
    int submesh = 0;

    while (table->submeshes[submesh].hosts != query->hosts ||
           table->submeshes[submesh].devices != query->devices) {
        ++submesh;
    }
    return submesh;
}

/* Micro-batches a level plans for: with no more stages after it than any pipeline puts there. */
int ap_stage_table_level_in_flight(const ap_stage_table_t *table, const ap_stage_query_t *query,
                                   int level)
{
    int most = ap_stage_table_most_successors(table, query->first, query->last,
                                              submesh_index(table, query));
    int successors = table->levels[level].successors;

    return ap_stage_table_in_flight(table, query->first, successors < most ? successors : most);
}

static void store(ap_stage_table_t *table, const ap_stage_query_t *query, int submesh, int config,
                  const ap_stage_cost_t *cost)
{
    size_t at = ap_stage_table_cell(table, query->first, query->last, submesh) *
                    (size_t)table->config_count +
                (size_t)config;

    table->cost[at] = ap_stage_objective(cost, table->params.micro_batches);
    table->successors[at] = ap_stage_table_successors(table, query->first, submesh, cost);
}

/* One configuration in the memory levels of a flavour, from the one without a limit on. Levels that
 * the last plan serves, or that no pipeline has a use for, are left out. *successors: how many
 * stages the plans so far allow. */
static xm_status_t fill_levels(ap_stage_table_t *table, ap_stage_query_t *query, int submesh,
                               int config, int level, int *successors)
{
    int most = ap_stage_table_most_successors(table, query->first, query->last, submesh);
    int least = query->last < table->layers - 1 ? 1 : 0, flavour = table->levels[level].flavour;
    int room = table->room[ap_stage_table_cell(table, query->first, query->last, submesh) *
                               (size_t)table->flavours +
                           (size_t)flavour];
    ap_stage_cost_t cost;
    xm_status_t status;

    /* A second flavour is dearer: it must allow more. */
    if (room < least || (level > 0 && room <= *successors)) {
        return XM_OK;
    }
    query->memory_limit = 0.0;
    query->in_flight = 1;
    status = ap_stage_table_ask(table, flavour, submesh, query, &cost);
    if (status != XM_OK) {
        return status;
    }
    *successors = ap_stage_table_successors(table, query->first, submesh, &cost);
    store(table, query, submesh, config + level, &cost);
    for (++level; level < table->level_count && table->levels[level].flavour == flavour; ++level) {
        int wanted = table->levels[level].successors;

        if (*successors >= most || wanted <= *successors || wanted < least) {
            continue;
        }
        query->memory_limit = ap_stage_table_memory(table, submesh);
        query->in_flight = ap_stage_table_level_in_flight(table, query, level);
        if ((wanted < most ? wanted : most) > room) {
            break;
        }
        status = ap_stage_table_ask(table, flavour, submesh, query, &cost);
        if (status != XM_OK) {
            return status;
        }
        *successors = ap_stage_table_successors(table, query->first, submesh, &cost);
        store(table, query, submesh, config + level, &cost);
    }
    return XM_OK;
}

/* One configuration in all flavours. */
static xm_status_t fill_config(ap_stage_table_t *table, ap_stage_query_t *query, int submesh,
                               int config)
{
    int most = ap_stage_table_most_successors(table, query->first, query->last, submesh);
    int allowed = -1;
    xm_status_t status = XM_OK;

    for (int level = 0; level < table->level_count && allowed < most; ++level) {
        if (table->levels[level].successors >= 0) {
            continue;
        }
        status = fill_levels(table, query, submesh, config, level, &allowed);
        if (status != XM_OK && status != XM_ERR_NO_SOLUTION) {
            return status;
        }
    }
    return XM_OK;
}

static xm_status_t fill_variant(ap_stage_table_t *table, int first, int last, int submesh, int v)
{
    const ap_stage_variant_t *variant = &table->variants[submesh][v];
    int inputs = first > 0 ? variant->spec_count : 1;
    int outputs = last < table->layers - 1 ? variant->spec_count : 1;

    for (int input = 0; input < inputs; ++input) {
        for (int output = 0; output < outputs; ++output) {
            ap_stage_query_t query = ap_stage_table_ask_for(table, first, last, submesh, variant);
            xm_status_t status;

            query.fix_input = first > 0;
            query.input = variant->specs[input];
            query.fix_output = last < table->layers - 1;
            query.output = variant->specs[output];
            status = fill_config(table, &query, submesh, config_index(table, v, input, output));
            if (status != XM_OK) {
                return status;
            }
        }
    }
    return XM_OK;
}

/* The configurations of one kind of range on one submesh, once. */
static xm_status_t fill_cell(ap_stage_table_t *table, int first, int last, int submesh)
{
    bool *filled = &table->filled[ap_stage_table_cell(table, first, last, submesh)];
    xm_status_t status = XM_OK;

    for (int v = 0; !*filled && v < table->variant_count[submesh] && status == XM_OK; ++v) {
        status = fill_variant(table, first, last, submesh, v);
    }
    *filled = true;
    return status;
}

/* n x 1 is 1 x n. */
static bool same_shape(const int *a, const int *b)
{
    int rows_a = a[1] == 1 ? 1 : a[0], rows_b = b[1] == 1 ? 1 : b[0];

    return rows_a == rows_b && a[0] * a[1] == b[0] * b[1];
}

/* The variants of a given stage from @p v on; returns the first, or the number of variants. */
static int next_variant(const ap_stage_table_t *table, const ap_planner_pin_t *pin, int submesh,
                        int v)
{
    while (v < table->variant_count[submesh] && pin->shape[0] != 0 &&
           !same_shape(table->variants[submesh][v].shape, pin->shape)) {
        ++v;
    }
    return v;
}

/* Prices a given stage on its logical shape, or on all, wherever it stands. */
static xm_status_t fill_pin(ap_stage_table_t *table, const ap_planner_pin_t *pin)
{
    bool known = false;
    xm_status_t status = XM_OK;

    if (pin->first_layer < 0 || pin->last_layer < pin->first_layer ||
        pin->last_layer >= table->layers) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "layers %d to %d are not a range of 0 to %d",
                            pin->first_layer, pin->last_layer, table->layers - 1);
    }
    for (int submesh = 0; submesh < table->submesh_count && status == XM_OK; ++submesh) {
        bool *filled =
            &table->filled[ap_stage_table_cell(table, pin->first_layer, pin->last_layer, submesh)];
        int v = next_variant(table, pin, submesh, 0);

        if (table->submeshes[submesh].hosts != pin->hosts ||
            table->submeshes[submesh].devices != pin->devices) {
            continue;
        }
        known = known || v < table->variant_count[submesh];
        while (!*filled && v < table->variant_count[submesh] && status == XM_OK) {
            status = fill_variant(table, pin->first_layer, pin->last_layer, submesh, v);
            v = next_variant(table, pin, submesh, v + 1);
        }
        *filled = true;
    }
    if (status == XM_OK && !known) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "a stage on %d x %d devices in the shape %d x %d is not in the space",
                            pin->hosts, pin->devices, pin->shape[0], pin->shape[1]);
    }
    return status;
}

xm_status_t ap_stage_table_reach(ap_stage_table_t *table, double threshold)
{
    ap_inter_op_problem_t problem;
    int layers = table->layers, submeshes = table->submesh_count;
    bool *useful = calloc((size_t)layers * (size_t)layers * (size_t)submeshes + 1, sizeof(*useful));
    xm_status_t status = XM_OK;

    if (useful == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for %d layers", layers);
    }
    for (int i = 0; i < table->params.pin_count && status == XM_OK; ++i) {
        status = fill_pin(table, &table->params.pins[i]);
    }
    if (table->params.pins != NULL || status != XM_OK) {
        free(useful);
        return status;
    }
    ap_stage_table_pose(table, &problem);
    problem.config_count = table->flavours;
    problem.cost = table->least;
    status = ap_inter_op_useful(&problem, threshold, useful);
    for (int range = 0; range < layers * layers && status == XM_OK; ++range) {
        int same = table->same_as[range];

        if (range / layers > range % layers) {
            continue;
        }
        for (int submesh = 0; submesh < submeshes && status == XM_OK; ++submesh) {
            if (useful[range * submeshes + submesh]) {
                status = fill_cell(table, same / layers, same % layers, submesh);
            }
        }
    }
    free(useful);
    return status;
}
