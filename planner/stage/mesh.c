/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tables behind a stage context, made on first use and kept. For each submesh in a logical
 * shape: layer problems; for each memory price on it: the exact table of each distinct layer, and
 * prefix DPs over layers. A prefix DP from layer i holds, for each j, the min-plus product of the
 * tables of layers i to j, so a range is answered by its last row, and the ranges (i, j) for all j
 * cost one product each. Products of equal sequences of layers are shared, which turns layers²
 * products into a few times layers.
 */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/stage/stage_private.h"

/* Accepts a mesh that is only partly made. */
void ap_stage_mesh_release(const ap_stage_context_t *context, ap_stage_mesh_t *mesh)
{
    for (int d = 0; d < context->distinct && mesh->problem != NULL; ++d) {
        ap_layer_problem_release(mesh->problem[d]);
    }
    free(mesh->multiplier);
    ap_reshard_memo_destroy(mesh->memo);
    ap_cost_mesh_destroy(mesh->cost);
}

/* Opens a mesh without any problem or table. The memo of reshardings is per mesh, as their costs
 * depend on the logical shape. */
static xm_status_t mesh_create(ap_stage_context_t *context, const ap_stage_query_t *query,
                               ap_stage_mesh_t *made)
{
    made->hosts = query->hosts;
    made->devices = query->devices;
    made->shape[0] = query->shape[0];
    made->shape[1] = query->shape[1];
    made->problem =
        xm_arena_get(&context->arena, (size_t)context->distinct, sizeof(ap_layer_problem_t *));
    XM_TRY(made->problem == NULL ? XM_NO_MEMORY("stage tables")
                                 : ap_cost_mesh_create(context->cost, query->hosts, query->devices,
                                                       query->shape, 2, &made->cost));
    return ap_reshard_memo_create(made->cost, &made->memo);
}

/* Finds or makes the mesh of a query. A search by comparison is enough: a context has at most some
 * hundreds of them, and a query does far more work after it. */
xm_status_t ap_stage_mesh_get(ap_stage_context_t *context, const ap_stage_query_t *query,
                              ap_stage_mesh_t **mesh)
{
    ap_stage_mesh_t *made;
    xm_status_t status;

    for (int m = 0; m < context->meshes; ++m) {
        ap_stage_mesh_t *known = context->mesh[m];

        if (known->hosts == query->hosts && known->devices == query->devices &&
            known->shape[0] == query->shape[0] && known->shape[1] == query->shape[1]) {
            *mesh = known;
            return XM_OK;
        }
    }
    made = xm_arena_get(&context->arena, 1, sizeof(*made));
    if (made == NULL || !XM_ARRAY_ROOM(context->mesh, context->mesh_room, context->meshes)) {
        return XM_NO_MEMORY("stage tables");
    }
    status = mesh_create(context, query, made);
    if (status != XM_OK) {
        ap_stage_mesh_release(context, made);
        return status;
    }
    *mesh = context->mesh[context->meshes++] = made;
    return XM_OK;
}

/* Finds or makes a multiplier step. Activations count once for each micro-batch in flight, so steps
 * differ by that number as well; at price 0 it does not matter, and all queries share one. */
xm_status_t ap_stage_multiplier_get(ap_stage_context_t *context, ap_stage_mesh_t *mesh,
                                    int multiplier, int in_flight, ap_layer_tie_t tie,
                                    ap_stage_multiplier_t **found)
{
    /* The price in seconds per byte; stage_private.h says why there are fixed steps. */
    double price = multiplier == 0 ? 0 : 1e-16 * pow(2, 0.5 * multiplier);
    ap_stage_multiplier_t *made;

    in_flight = multiplier == 0 ? 0 : in_flight;
    for (int r = 0; r < mesh->multipliers; ++r) {
        const ap_layer_tie_t *other = &mesh->multiplier[r]->weights.tie;

        if (mesh->multiplier[r]->multiplier == multiplier &&
            mesh->multiplier[r]->in_flight == in_flight && other->alike == tie.alike &&
            other->held == tie.held && other->paid == tie.paid && other->view == tie.view) {
            *found = mesh->multiplier[r];
            return XM_OK;
        }
    }
    made = xm_arena_get(&context->arena, 1, sizeof(*made));
    if (made == NULL ||
        !XM_ARRAY_ROOM(mesh->multiplier, mesh->multiplier_room, mesh->multipliers)) {
        return XM_NO_MEMORY("stage tables");
    }
    made->multiplier = multiplier;
    made->in_flight = in_flight;
    made->weights = (ap_layer_weights_t){.forward = context->rematerialize ? 2 : 1,
                                         .per_iteration = 1.0 / context->micro_batches,
                                         .stage_byte = price,
                                         .act_byte = price * in_flight,
                                         .tie = tie};
    made->table =
        xm_arena_get(&context->arena, (size_t)context->distinct, sizeof(ap_layer_table_t *));
    made->chain = xm_arena_get(&context->arena, (size_t)context->layers, sizeof(*made->chain));
    XM_NEED_MEMORY(!context->arena.failed, "stage tables");
    mesh->multiplier[mesh->multipliers++] = made;
    *found = made;
    return XM_OK;
}

/* Problems do not depend on the price of memory, so all steps of a mesh share them. */
xm_status_t ap_stage_problem_get(ap_stage_context_t *context, ap_stage_mesh_t *mesh, int layer,
                                 const ap_layer_problem_t **problem)
{
    int distinct = context->distinct_of[layer];
    xm_status_t status = XM_OK;

    if (mesh->problem[distinct] == NULL) {
        status = ap_layer_problem_create(context->training, context->example[distinct],
                                         context->tied, mesh->cost, mesh->memo, AP_OPTIMIZER_ADAM,
                                         context->rematerialize,
                                         context->space.space != NULL ? &context->space : NULL,
                                         &context->arena, &mesh->problem[distinct]);
        if (status != XM_OK) {
            ap_layer_problem_release(mesh->problem[distinct]);
            mesh->problem[distinct] = NULL;
        }
    }
    *problem = mesh->problem[distinct];
    return status;
}

xm_status_t ap_stage_layer_problem(ap_stage_context_t *context, const ap_stage_query_t *query,
                                   int layer, const ap_layer_problem_t **problem)
{
    ap_stage_mesh_t *mesh = NULL;
    XM_TRY(ap_stage_mesh_get(context, query, &mesh));

    return ap_stage_problem_get(context, mesh, layer, problem);
}

/* Solves a layer at a price, the first time that anyone asks; in the ranges from `first` on. */
static xm_status_t table_of(ap_stage_context_t *context, ap_stage_mesh_t *mesh,
                            const ap_stage_multiplier_t *of, int first, int layer,
                            const ap_layer_table_t **table)
{
    int distinct = context->distinct_of[layer];
    const ap_layer_problem_t *problem;
    ap_stage_multiplier_t *multiplier;
    xm_status_t status = XM_OK;

    XM_TRY(ap_stage_multiplier_at(context, mesh, of, first, layer, &multiplier));
    if (multiplier->table[distinct] == NULL) {
        status = ap_stage_problem_get(context, mesh, layer, &problem);
        if (status == XM_OK) {
            status =
                ap_layer_problem_solve(problem, &multiplier->weights, &multiplier->table[distinct]);
        }
    }
    *table = multiplier->table[distinct];
    return status;
}

/* cost[in][out] = the minimum over mid of before[in][mid] + layer[mid][out]. `through` remembers
 * the mid; of equal ones the first stays. The inner loop is over `out`, so both tables are read in
 * order. */
static void min_plus(const double *before, int in_count, const ap_layer_table_t *layer,
                     double *cost, uint16_t *through)
{
    int outs = layer->out_count;

    for (int in = 0; in < in_count; ++in) {
        double *row = &cost[in * outs];
        uint16_t *from = &through[in * outs];

        for (int out = 0; out < outs; ++out) {
            row[out] = HUGE_VAL;
        }
        for (int mid = 0; mid < layer->in_count; ++mid) {
            double base = before[in * layer->in_count + mid];
            const double *step = &layer->cost[mid * outs];

            for (int out = 0; out < outs; ++out) {
                if (base + step[out] < row[out]) {
                    row[out] = base + step[out];
                    from[out] = (uint16_t)mid;
                }
            }
        }
    }
}

/* Adds a row to a prefix DP: the first layer's own table, or a product with it. */
static xm_status_t extend(xm_arena_t *arena, ap_stage_prefix_t *chain, int in_count,
                          const ap_layer_table_t *layer)
{
    size_t cells = (size_t)in_count * (size_t)layer->out_count;
    double *cost = xm_arena_take(arena, cells * sizeof(*cost));
    uint16_t *through = xm_arena_get(arena, cells, sizeof(*through));

    XM_NEED_MEMORY(!arena->failed, "stage tables");
    if (chain->rows == 0) {
        for (size_t c = 0; c < cells; ++c) {
            cost[c] = layer->cost[c];
        }
    } else {
        min_plus(chain->cost[chain->rows - 1], in_count, layer, cost, through);
    }
    chain->cost[chain->rows] = cost;
    chain->through[chain->rows] = through;
    ++chain->rows;
    return XM_OK;
}

/* The first earlier prefix DP that begins with the same layers, so many; -1: there is none. */
static int find_twin(const ap_stage_context_t *context, int first, int count)
{
    const int *of = context->distinct_of;

    for (int earlier = 0; earlier < first; ++earlier) {
        if (memcmp(of + earlier, of + first, (size_t)count * sizeof(*of)) == 0) {
            return earlier;
        }
    }
    return -1;
}

/* Takes the next row from an earlier prefix DP, while both go over equal layers. Once they part, no
 * later row can be equal, hence the test on `borrowed`. The earlier one may have to be extended
 * first, and may borrow itself from one that is still earlier; the first layer's number falls each
 * time, so this ends. */
static xm_status_t borrow(ap_stage_context_t *context, ap_stage_mesh_t *mesh,
                          ap_stage_multiplier_t *multiplier, int first, ap_stage_prefix_t *of,
                          bool *done)
{
    const ap_stage_prefix_t *twin;
    int earlier = of->borrowed == of->rows ? find_twin(context, first, of->rows + 1) : -1;
    xm_status_t status = XM_OK;

    *done = earlier >= 0;
    if (earlier >= 0) {
        status = ap_stage_prefix_get(context, mesh, multiplier, earlier, earlier + of->rows, &twin);
    }
    if (earlier >= 0 && status == XM_OK) {
        of->cost[of->rows] = twin->cost[of->rows];
        of->through[of->rows] = twin->through[of->rows];
        of->borrowed = ++of->rows;
    }
    return status;
}

/* Extends the prefix DP of a first layer up to the last one that is asked for. Rows are never
 * changed afterwards, so pointers to them stay valid. */
xm_status_t ap_stage_prefix_get(ap_stage_context_t *context, ap_stage_mesh_t *mesh,
                                ap_stage_multiplier_t *multiplier, int first, int last,
                                const ap_stage_prefix_t **chain)
{
    ap_stage_prefix_t *of = &multiplier->chain[first];
    const ap_layer_table_t *start, *layer;
    xm_status_t status = table_of(context, mesh, multiplier, first, first, &start);

    if (status == XM_OK && of->cost == NULL) {
        size_t rows = (size_t)(context->layers - first);

        of->cost = xm_arena_get(&context->arena, rows, sizeof(double *));
        of->through = xm_arena_get(&context->arena, rows, sizeof(uint16_t *));
        status = context->arena.failed ? XM_NO_MEMORY("stage tables") : XM_OK;
    }
    while (status == XM_OK && first + of->rows <= last) {
        bool done;

        status = borrow(context, mesh, multiplier, first, of, &done);
        if (status != XM_OK || done) {
            continue;
        }
        status = table_of(context, mesh, multiplier, first, first + of->rows, &layer);
        XM_THEN(status, extend(&context->arena, of, start->in_count, layer));
    }
    *chain = of;
    return status;
}
