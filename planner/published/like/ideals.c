/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows that pose a problem of their own on the chain of layers: Piper's, and device placement's.
 * Both were published for general graphs of operators with given times; here a node is a layer with
 * our measured times, the solvers are those for the authors' own inputs (piper.h, placement.h), and
 * the answer is turned back into stages.
 */

#include <stdio.h>
#include <string.h>

#include "planner/published/like/like_private.h"
#include "planner/published/piper.h"
#include "planner/published/placement.h"

enum { MAX_TENSOR_DEGREES = 16 };

/* These planners know one bandwidth: the slowest that stages may meet. */
static xm_link_class_t slowest_link(const ap_like_t *like)
{
    return like->hosts > 1 ? XM_LINK_INTER_HOST : XM_LINK_INTRA_HOST;
}

/* Sets the submesh of @p devices devices; false when whole hosts or equal parts of one cannot give
 * it. */
static bool set_devices(const ap_like_t *like, int devices, ap_stage_query_t *query)
{
    int per_host = like->devices_per_host;

    if (devices <= per_host ? per_host % devices != 0
                            : devices % per_host != 0 || devices > like->hosts * per_host) {
        return false;
    }
    query->hosts = devices <= per_host ? 1 : devices / per_host;
    query->devices = devices / query->hosts;
    return true;
}

/* Prices a layer by itself on @p tensor devices that cut it. */
static xm_status_t layer_alone(const ap_like_t *like, const ap_like_case_t *one, int layer,
                               int tensor, ap_stage_cost_t *cost)
{
    ap_stage_query_t query = AP_STAGE_QUERY_INIT;

    query.first = query.last = layer;
    (void)set_devices(like, tensor, &query);
    query.shape[0] = 1;
    query.shape[1] = tensor;
    return ap_stage_evaluate(one->context, &query, cost);
}

static double boundary_bytes(const ap_like_case_t *one, int layer)
{
    return ap_graph_tensor_bytes(one->graph, ap_graph_boundary(one->graph, layer));
}

static double parameter_bytes(const ap_like_case_t *one, int layer)
{
    double bytes = 0.0;

    for (int t = 0; t < ap_graph_tensors(one->graph); ++t) {
        const ap_tensor_t *tensor = ap_graph_tensor(one->graph, t);

        if (tensor->kind == AP_TENSOR_PARAMETER && tensor->layer == layer) {
            bytes += ap_graph_tensor_bytes(one->graph, t);
        }
    }
    return bytes;
}

/* Adds a node's way to run on @p tensor devices; it is left out when nothing divides. */
static xm_status_t add_degree(const ap_like_t *like, const ap_like_case_t *one, int layer,
                              int tensor, xm_arena_t *arena, ap_piper_node_t *node)
{
    ap_piper_degree_t *degree = &node->degrees[node->degree_count];
    ap_piper_variant_t *variant = &degree->variants[0];
    ap_stage_cost_t cost;
    xm_status_t status = layer_alone(like, one, layer, tensor, &cost);

    if (status == XM_ERR_NO_SOLUTION) {
        return XM_OK;
    }
    XM_TRY(status);
    degree->tensor = tensor;
    degree->variant_count = 1;
    ++node->degree_count;
    variant->time = cost.forward + cost.backward + cost.update / (double)one->micro_batches;
    variant->parameters = parameter_bytes(one, layer) / tensor;
    variant->memory_each = cost.mem_act;
    variant->memory = cost.mem_stage;
    variant->in_bytes = xm_arena_get(arena, 1, sizeof(double));
    variant->out_bytes = xm_arena_get(arena, 1, sizeof(double));
    return arena->failed ? XM_NO_MEMORY("%d layers", like->layers) : XM_OK;
}

static xm_status_t add_node(const ap_like_t *like, const ap_like_case_t *one, int layer,
                            ap_piper_problem_t *problem)
{
    int total = like->hosts * like->devices_per_host;
    ap_piper_node_t *node = &problem->nodes[layer];
    xm_status_t status = XM_OK;

    node->id = layer;
    node->degrees = xm_arena_get(&problem->arena, MAX_TENSOR_DEGREES, sizeof(*node->degrees));
    node->in = xm_arena_get(&problem->arena, 1, sizeof(int));
    node->out = xm_arena_get(&problem->arena, 1, sizeof(int));
    XM_NEED_MEMORY(!problem->arena.failed, "%d layers", like->layers);
    if (layer > 0) {
        node->in[node->in_count++] = layer - 1;
    }
    if (layer < like->layers - 1) {
        node->out[node->out_count++] = layer;
    }
    for (int t = 1; t <= total && node->degree_count < MAX_TENSOR_DEGREES && status == XM_OK; ++t) {
        ap_stage_query_t query = AP_STAGE_QUERY_INIT;

        if (set_devices(like, t, &query)) {
            status = add_degree(like, one, layer, t, &problem->arena, node);
        }
    }
    return status;
}

static xm_status_t pose_piper(const ap_like_t *like, const ap_like_case_t *one,
                              ap_piper_problem_t *problem)
{
    size_t layers = (size_t)like->layers;
    double largest = 1.0;
    xm_status_t status = XM_OK;

    problem->nodes = xm_arena_get(&problem->arena, layers, sizeof(*problem->nodes));
    problem->edges = xm_arena_get(&problem->arena, layers, sizeof(*problem->edges));
    problem->bytes = xm_arena_get(&problem->arena, layers, sizeof(*problem->bytes));
    XM_NEED_MEMORY(!problem->arena.failed, "%d layers", like->layers);
    problem->node_count = like->layers;
    problem->edge_count = like->layers - 1;
    for (int l = 0; l + 1 < like->layers; ++l) {
        problem->edges[l] = (ap_precedence_t){l, l + 1};
        problem->bytes[l] = boundary_bytes(one, l);
        largest = problem->bytes[l] > largest ? problem->bytes[l] : largest;
    }
    for (int l = 0; l < like->layers && status == XM_OK; ++l) {
        status = add_node(like, one, l, problem);
    }
    problem->devices = like->hosts * like->devices_per_host;
    problem->micro_batches = (int)one->micro_batches;
    problem->memory = like->limit;
    problem->bandwidth =
        largest / xm_cluster_profile_seconds(like->params.profile, slowest_link(like), largest);
    return status;
}

/* Gives the stages their devices, the largest first, so that none straddles a host. That keeps the
 * stages' order of layers and gives up their order of devices, which these planners do not
 * price. */
static xm_status_t place(const ap_like_t *like, ap_plan_part_t *parts, int count)
{
    int per_host = like->devices_per_host, next = 0;

    for (int size = like->hosts * per_host; size >= 1; --size) {
        for (int i = 0; i < count; ++i) {
            int devices = parts[i].query.hosts * parts[i].query.devices;

            if (devices != size) {
                continue;
            }
            if (next % per_host != 0 && next % per_host + devices > per_host) {
                next += per_host - next % per_host;
            }
            parts[i].first_device = next;
            next += devices;
        }
    }
    return next <= like->hosts * per_host
               ? XM_OK
               : XM_NO_SOLUTION("%s: its stages do not fit on hosts of %d devices", like->row->name,
                                per_host);
}

/* Solves the stages, which know their layers and shapes, and has the plan judged. */
static xm_status_t evaluate(ap_like_t *like, const ap_like_case_t *one, ap_plan_part_t *parts,
                            int count)
{
    bool kept;
    xm_status_t status = place(like, parts, count);

    if (count < like->params.min_stages ||
        (like->params.max_stages > 0 && count > like->params.max_stages)) {
        status =
            XM_NO_SOLUTION("%s chooses the number of stages itself: %d, which is not asked for",
                           like->row->name, count);
    }
    for (int i = 0; i < count && status == XM_OK; ++i) {
        status = ap_stage_solve(one->context, &parts[i].query, &parts[i].solution);
    }
    XM_THEN(status, ap_like_consider(like, one, parts, count, &kept));
    for (int i = 0; i < count; ++i) {
        ap_stage_solution_destroy(parts[i].solution);
    }
    return status;
}

static xm_status_t read_piper(const ap_like_t *like, const ap_piper_plan_t *plan,
                              ap_plan_part_t *parts)
{
    for (int i = 0; i < plan->stage_count; ++i) {
        const ap_piper_stage_t *stage = &plan->stages[i];
        ap_stage_query_t query = AP_STAGE_QUERY_INIT;

        query.first = query.last = stage->nodes[0];
        for (int n = 0; n < stage->node_count; ++n) {
            query.first = stage->nodes[n] < query.first ? stage->nodes[n] : query.first;
            query.last = stage->nodes[n] > query.last ? stage->nodes[n] : query.last;
        }
        if (!set_devices(like, stage->data * stage->tensor, &query)) {
            return XM_NO_SOLUTION("%s: a stage of %d x %d devices does not fit on hosts of %d",
                                  like->row->name, stage->data, stage->tensor,
                                  like->devices_per_host);
        }
        query.shape[0] = stage->data;
        query.shape[1] = stage->tensor;
        parts[i].query = query;
    }
    return XM_OK;
}

xm_status_t ap_like_ideals(ap_like_t *like, ap_like_case_t *one)
{
    ap_piper_problem_t problem = {0};
    ap_piper_plan_t plan = {0};
    ap_plan_part_t *parts = NULL;
    xm_status_t status = pose_piper(like, one, &problem);

    XM_THEN(status, ap_piper_solve(&problem, &plan));
    if (status == XM_OK) {
        parts = xm_arena_get(&plan.arena, (size_t)plan.stage_count, sizeof(*parts));
        status = parts == NULL ? XM_NO_MEMORY("%d layers", like->layers)
                               : read_piper(like, &plan, parts);
    }
    XM_THEN(status, evaluate(like, one, parts, plan.stage_count));
    ap_piper_plan_clear(&plan);
    ap_piper_problem_clear(&problem);
    return status;
}

static xm_status_t pose_placement(const ap_like_t *like, const ap_like_case_t *one,
                                  ap_placement_problem_t *problem)
{
    size_t layers = (size_t)like->layers;
    xm_status_t status = XM_OK;

    problem->nodes = xm_arena_get(&problem->arena, layers, sizeof(*problem->nodes));
    problem->edges = xm_arena_get(&problem->arena, layers, sizeof(*problem->edges));
    XM_NEED_MEMORY(!problem->arena.failed, "%d layers", like->layers);
    problem->node_count = like->layers;
    problem->edge_count = like->layers - 1;
    problem->accelerators = like->hosts * like->devices_per_host;
    problem->memory = like->limit;
    problem->chain = true;
    for (int l = 0; l < like->layers && status == XM_OK; ++l) {
        ap_placement_node_t *node = &problem->nodes[l];
        ap_stage_cost_t cost = {0};

        status = layer_alone(like, one, l, 1, &cost);
        *node =
            (ap_placement_node_t){.id = l,
                                  .colour = l,
                                  .accelerator = ap_stage_objective(&cost, (int)one->micro_batches),
                                  .size = cost.mem_stage + cost.mem_act,
                                  .on_accelerator = true};
        if (l + 1 < like->layers) {
            problem->edges[l] = (ap_precedence_t){l, l + 1};
            /* The activation one way and its gradient the other. */
            node->transfer =
                2.0 * xm_cluster_profile_seconds(like->params.profile, slowest_link(like),
                                                 boundary_bytes(one, l));
        }
    }
    return status;
}

/* The stages of a placement: its devices in the order of their layers. On a chain, a contiguous
 * part is a run of layers. */
static int read_placement(const ap_like_t *like, const ap_placement_t *placement,
                          ap_plan_part_t *parts)
{
    int count = 0;

    for (int l = 0; l < like->layers; ++l) {
        if (l > 0 && placement->device_of[l] == placement->device_of[l - 1]) {
            parts[count - 1].query.last = l;
            continue;
        }
        parts[count].query = (ap_stage_query_t)AP_STAGE_QUERY_INIT;
        parts[count].query.first = parts[count].query.last = l;
        parts[count].query.hosts = parts[count].query.devices = 1;
        parts[count].query.shape[0] = parts[count].query.shape[1] = 1;
        ++count;
    }
    return count;
}

xm_status_t ap_like_placement(ap_like_t *like, ap_like_case_t *one)
{
    ap_placement_problem_t problem = {0};
    ap_placement_t placement = {0};
    ap_plan_part_t *parts = xm_arena_get(&problem.arena, (size_t)like->layers, sizeof(*parts));
    xm_status_t status = parts == NULL ? XM_NO_MEMORY("%d layers", like->layers)
                                       : pose_placement(like, one, &problem);

    if (status == XM_OK && like->row->search == AP_SEARCH_PLACEMENT) {
        status = ap_placement_solve(&problem, &placement);
    } else if (status == XM_OK) {
        const ap_placement_query_t query = {like->row->proposals, 1, AP_PLACEMENT_BUDGET / 8, NULL};

        status = ap_placement_search(&problem, &query, &placement);
    }
    XM_THEN(status, evaluate(like, one, parts, read_placement(like, &placement, parts)));
    ap_placement_clear(&placement);
    ap_placement_problem_clear(&problem);
    return status;
}
