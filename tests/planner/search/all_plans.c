/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/planner/search/all_plans.h"

#include <math.h>
#include <stdlib.h>

#include "xm_test.h"

enum { SPECS = 9, TENSORS = 64 };

/* A boundary that lies as the resting copy does goes once. */
static void add_passing(const ap_graph_t *graph, int tensor, ap_spec_t src, ap_spec_t dst, int *ids,
                        ap_cross_mesh_tensor_t *passing, int *count)
{
    const ap_tensor_t *of = ap_graph_tensor(graph, tensor);

    for (int i = 0; i < *count; ++i) {
        if (ids[i] == tensor && passing[i].src == src && passing[i].dst == dst) {
            return;
        }
    }
    ids[*count] = tensor;
    passing[(*count)++] = (ap_cross_mesh_tensor_t){of->shape, ap_dtype_bytes(of->dtype), src, dst};
}

/* Prices what passes from a stage to the newest. */
static void price_transfer(all_plans_t *all, int from, int to)
{
    const ap_stage_query_t *src = &all->query[from], *dst = &all->query[to];
    const int there[] = {src->first, src->last}, here[] = {dst->first, dst->last};
    ap_cross_mesh_tensor_t passing[TENSORS];
    ap_cross_mesh_transfer_t moved = {{all->device[from], {src->shape[0], src->shape[1]}},
                                      {all->device[to], {dst->shape[0], dst->shape[1]}},
                                      passing,
                                      0,
                                      false};
    ap_pipeline_transfer_t *transfer = &all->transfer[all->transfers];
    int ids[TENSORS], resting[TENSORS], count;
    ap_cross_mesh_cost_t cost;

    if (to == from + 1) {
        add_passing(all->graph, ap_graph_boundary(all->graph, src->last), all->cost[from].output,
                    all->cost[to].input, ids, passing, &moved.count);
    }
    count = ap_graph_resting(all->graph, there, here, resting);
    for (int i = 0; i < count; ++i) {
        const ap_shape_t *shape = &ap_graph_tensor(all->graph, resting[i])->shape;

        add_passing(
            all->graph, resting[i], ap_spec_resting(shape->rank, shape->dims, src->shape, 3),
            ap_spec_resting(shape->rank, shape->dims, dst->shape, 3), ids, passing, &moved.count);
    }
    if (moved.count == 0 || all->params.free_boundaries) {
        return;
    }
    ck_assert_xm_ok(ap_cross_mesh_cost(all->setup.cross_mesh, &moved, &cost));
    *transfer = (ap_pipeline_transfer_t){
        .from = from, .to = to, .forward = cost.forward, .backward = cost.backward};
    ck_assert_xm_ok(ap_cross_mesh_loads(all->setup.cross_mesh, &moved, &all->links[to],
                                        &transfer->links, &transfer->link_count));
    ++all->transfers;
}

static void judge(all_plans_t *all)
{
    ap_pipeline_step_t step = {.kind = all->kind,
                               .micro_batches = (int)all->micro_batches,
                               .stages = all->stage,
                               .stage_count = all->stages,
                               .split = xm_cluster_profile_runtime(all->params.profile)->split,
                               .weight = xm_cluster_profile_runtime(all->params.profile)->weight,
                               .transfers = all->transfer,
                               .transfer_count = all->transfers};
    double seconds;

    if (!all->params.free_boundaries) {
        step.send = xm_cluster_profile_runtime(all->params.profile)->send;
    }
    if (!ap_schedule_is_synchronous(all->kind) && all->micro_batches < all->stages) {
        return;
    }
    ck_assert_xm_ok(ap_pipeline_step_seconds(&step, &seconds));
    all->best = fmin(all->best, seconds);
    ++all->plans;
}

static void try_stage(all_plans_t *all, int index, int first, int device);

/* What a stage does in a step, after the first micro-batch has come through the stages before. */
static double work_alone(const all_plans_t *all, int index)
{
    const ap_pipeline_stage_t *stage = &all->stage[index];
    double seconds = (double)all->micro_batches * (stage->forward + stage->backward) + stage->once;

    for (int i = 0; i < index && ap_schedule_is_synchronous(all->kind); ++i) {
        seconds += all->stage[i].forward;
    }
    return seconds;
}

/* A stage with everything said; then whatever may follow. */
static void try_cost(all_plans_t *all, int index, int device, const ap_stage_cost_t *cost)
{
    const ap_stage_query_t *query = &all->query[index];
    int transfers = all->transfers, end = device + query->hosts * query->devices;
    int left = all->hosts * all->per_host - end;

    all->cost[index] = *cost;
    all->device[index] = device;
    all->stage[index] = (ap_pipeline_stage_t){.forward = cost->forward,
                                              .backward = cost->backward,
                                              .once = cost->sync + cost->update,
                                              .recompute = cost->recompute};
    if (all->prune && work_alone(all, index) >= all->best) {
        return;
    }
    for (int from = 0; from < index; ++from) {
        price_transfer(all, from, index);
    }
    if (index + 1 < all->stages) {
        try_stage(all, index + 1, query->last + 1, end);
    } else if (left == 0 || (!all->params.all_devices && left % all->per_host == 0)) {
        judge(all);
    }
    all->transfers = transfers;
    xm_arena_reset(&all->links[index]);
}

/* Every spec that a tensor of two dimensions can have: each axis cuts one of them, or none. The
 * ends of the model have no specs, and stand for themselves. */
static int list_specs(const int *shape, bool end, ap_spec_t *specs)
{
    int first = shape[0] > 1 && !end ? 3 : 1, second = shape[1] > 1 && !end ? 3 : 1;

    for (int way = 0; way < first * second; ++way) {
        specs[way] = AP_SPEC_REPLICATED;
        for (int dim = 0; dim < 2; ++dim) {
            unsigned axes = (way % first == dim + 1 ? 1U : 0U) | (way / first == dim + 1 ? 2U : 0U);

            specs[way] = ap_spec_with(specs[way], dim, axes);
        }
    }
    return first * second;
}

/* A stage as the stage solver plans it. Running forward passes again is of use only where a stage
 * that keeps its activations does not fit, or has to be slower to fit. */
static void try_query(all_plans_t *all, int index, int device)
{
    const ap_device_classes_t *classes = all->setup.classes;
    const ap_stage_query_t *query = &all->query[index];
    int kind = ap_device_classes_find(classes, device / all->per_host, query->hosts);
    int m = ap_schedule_accumulated(all->kind, (int)all->micro_batches);
    ap_stage_cost_t kept, again;
    xm_status_t status = ap_stage_evaluate(all->context[kind], query, &kept);
    bool fits = status == XM_OK;

    ck_assert(fits || status == XM_ERR_NO_SOLUTION);
    if (fits) {
        try_cost(all, index, device, &kept);
    }
    if (all->params.recompute == AP_RECOMPUTE_AUTO) {
        status = ap_stage_evaluate(all->context[classes->count + kind], query, &again);
        ck_assert(status == XM_OK || status == XM_ERR_NO_SOLUTION);
        if (status == XM_OK &&
            (!fits || ap_stage_objective(&again, m) < ap_stage_objective(&kept, m))) {
            try_cost(all, index, device, &again);
        }
    }
}

static void try_specs(all_plans_t *all, int index, int device)
{
    ap_stage_query_t *query = &all->query[index];
    ap_spec_t inputs[SPECS], outputs[SPECS];
    int ins = list_specs(query->shape, query->first == 0, inputs);
    int outs = list_specs(query->shape, query->last == all->layers - 1, outputs);

    query->fix_input = query->first > 0;
    query->fix_output = query->last < all->layers - 1;
    for (int way = 0; way < ins * outs; ++way) {
        query->input = inputs[way % ins];
        query->output = outputs[way / ins];
        try_query(all, index, device);
    }
}

/* All logical shapes of a submesh. */
static void try_submesh(all_plans_t *all, int index, int device, int hosts, int devices)
{
    ap_stage_query_t *query = &all->query[index];

    query->hosts = hosts;
    query->devices = devices;
    query->memory_limit = all->params.memory_limit;
    query->in_flight =
        (int)ap_schedule_in_flight(all->kind, index, all->stages - 1 - index, all->micro_batches);
    for (int d0 = 1; d0 < hosts * devices || d0 == 1; ++d0) {
        if (hosts * devices % d0 == 0) {
            query->shape[0] = d0;
            query->shape[1] = hosts * devices / d0;
            try_specs(all, index, device);
        }
    }
}

/* A number of which the search makes submeshes: a power of two, or a divisor of all. */
static bool is_usual(int part, int all)
{
    return (part & (part - 1)) == 0 || all % part == 0;
}

static void try_stage(all_plans_t *all, int index, int first, int device)
{
    int per_host = all->per_host, place = device % per_host, host = device / per_host;
    int after = all->stages - 1 - index;

    if (host == all->hosts) { /* no device is left */
        return;
    }
    for (int last = after > 0 ? first : all->layers - 1; last < all->layers - after; ++last) {
        all->query[index].first = first;
        all->query[index].last = last;
        for (int devices = 1; place + devices <= per_host; ++devices) {
            if (is_usual(devices, per_host)) {
                try_submesh(all, index, device, 1, devices);
            }
        }
        for (int hosts = 2; place == 0 && host + hosts <= all->hosts; ++hosts) {
            if (is_usual(hosts, all->hosts)) {
                try_submesh(all, index, device, hosts, per_host);
            }
        }
    }
}

/* One order of the hosts: that of a profile. */
static void try_profile(all_plans_t *all, const xm_cluster_profile_t *profile)
{
    ap_stage_context_params_t context = AP_STAGE_CONTEXT_PARAMS_INIT;
    const xm_cluster_profile_t *own = all->params.profile;
    int contexts = 0;
    ap_graph_t *made;

    all->params.profile = profile;
    ck_assert_xm_ok(ap_planner_setup_open(&all->params, 0.0, &all->setup));
    ck_assert_xm_ok(ap_planner_graph_open(&all->setup, all->micro_batches, &all->graph, &made));
    all->layers = ap_graph_layers(all->graph);
    ck_assert_int_le(all->layers, ALL_PLANS_LAYERS);
    ck_assert_int_le(ap_graph_tensors(all->graph), TENSORS);
    all->context = calloc(2 * (size_t)all->setup.classes->count, sizeof(ap_stage_context_t *));
    context.graph = all->graph;
    context.micro_batches = ap_schedule_accumulated(all->kind, (int)all->micro_batches);
    for (int again = 0; again < 2; ++again) {
        context.rematerialize = again == 1 || all->params.recompute == AP_RECOMPUTE_ON;
        for (int c = 0; c < all->setup.classes->count; ++c) {
            context.cost = all->setup.classes->classes[c].cost;
            ck_assert_xm_ok(ap_stage_context_create(&context, &all->context[contexts++]));
        }
    }
    for (all->stages = 1; all->stages <= all->layers; ++all->stages) {
        try_stage(all, 0, 0, 0);
    }
    while (contexts > 0) {
        ap_stage_context_destroy(all->context[--contexts]);
    }
    for (int i = 0; i < ALL_PLANS_LAYERS; ++i) {
        xm_arena_clear(&all->links[i]);
    }
    free(all->context);
    ap_graph_destroy(made);
    ap_planner_setup_close(&all->setup);
    all->params.profile = own;
}

/* Hosts that differ in nothing. */
static bool alike(const xm_cluster_profile_t *profile, int a, int b)
{
    return xm_cluster_profile_host_nic_bandwidth(profile, a) ==
               xm_cluster_profile_host_nic_bandwidth(profile, b) &&
           xm_cluster_profile_host_device(profile, a).flops ==
               xm_cluster_profile_host_device(profile, b).flops;
}

/* All orders; of those that are the same, the one in which like hosts stand as in the profile. */
static void try_orders(all_plans_t *all, int *order, int placed, unsigned taken)
{
    if (placed == all->hosts) {
        xm_cluster_profile_t *profile;

        ck_assert_xm_ok(xm_cluster_profile_reorder(all->params.profile, order, &profile));
        try_profile(all, profile);
        xm_cluster_profile_destroy(profile);
        return;
    }
    for (int host = 0; host < all->hosts; ++host) {
        bool skip = (taken >> host & 1U) != 0 || (all->params.keep_host_order && host != placed);

        for (int before = 0; before < host; ++before) {
            skip =
                skip || ((taken >> before & 1U) == 0 && alike(all->params.profile, before, host));
        }
        if (!skip) {
            order[placed] = host;
            try_orders(all, order, placed + 1, taken | 1U << host);
        }
    }
}

void all_plans_try(all_plans_t *all)
{
    int order[ALL_PLANS_HOSTS];

    all->hosts = xm_cluster_profile_hosts(all->params.profile);
    all->per_host = xm_cluster_profile_devices_per_host(all->params.profile);
    ck_assert_int_le(all->hosts, ALL_PLANS_HOSTS);
    try_orders(all, order, 0, 0);
}
