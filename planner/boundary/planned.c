/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the resharding between two stages takes: all tensors that pass together are planned and
 * simulated as the runtime would execute them, instead of being taken from a formula, because
 * broadcasts, shared NICs and shared hosts make formulas wrong by factors.
 */

#include "planner/boundary/planned.h"

#include <stdlib.h>

#include "resharding/plan.h"

static const xm_strategy_t used_strategy = XM_STRATEGY_AUTO;
static const xm_scheduler_t used_scheduler = XM_SCHEDULER_AUTO;

/* What one direction of a resharding keeps busy, in seconds. */
typedef struct bounding_pass {
    const xm_cluster_profile_t *profile;
    const xm_network_t *network;
    const xm_plan_t *plan;
    int ranks;
    double *busy;          /* devices sending, then receiving */
    ap_link_load_t *links; /* hosts, then racks */
    bool back, one_way;
} bounding_pass_t;

static int size_of(const ap_cross_mesh_side_t *side)
{
    return side->shape[0] * side->shape[1];
}

static xm_status_t make_mesh(const ap_cross_mesh_side_t *side, xm_mesh_t **mesh)
{
    int count = size_of(side);
    int *ranks = malloc((size_t)count * sizeof(*ranks));
    xm_status_t status;

    XM_NEED_MEMORY(ranks, "a mesh of %d devices", count);
    for (int i = 0; i < count; ++i) {
        ranks[i] = side->first_device + i;
    }
    status = xm_mesh_create(2, side->shape, ranks, mesh);
    free(ranks);
    return status;
}

static xm_status_t make_layout(const xm_mesh_t *mesh, const ap_shape_t *shape, ap_spec_t cuts,
                               xm_layout_t **layout)
{
    const xm_spec_t spec = ap_spec_unpack(cuts, shape->rank);

    return xm_layout_create(mesh, &spec, XM_PARTITION_EVEN, shape->dims, layout);
}

static xm_status_t make_network(const xm_cluster_profile_t *profile, int ranks,
                                xm_network_t **network)
{
    int per_host = xm_cluster_profile_devices_per_host(profile);
    int *host_of_rank = malloc((size_t)ranks * sizeof(*host_of_rank));
    xm_status_t status;

    XM_NEED_MEMORY(host_of_rank, "%d ranks", ranks);
    for (int rank = 0; rank < ranks; ++rank) {
        host_of_rank[rank] = rank / per_host;
    }
    status = xm_network_from_profile(profile, ranks, host_of_rank, network);
    free(host_of_rank);
    return status;
}

static void add_to_link(const bounding_pass_t *bounding_pass, int link, int direction,
                        double seconds)
{
    ap_link_load_t *load = &bounding_pass->links[link];

    (bounding_pass->back ? load->backward : load->forward)[direction] += seconds;
}

/* Adds so many bytes from a host to another: to both hosts' NICs, and to the uplinks of their racks
 * where these differ. */
static void add_to_links(const bounding_pass_t *bounding_pass, int from, int to, double bytes)
{
    const xm_network_t *network = bounding_pass->network;
    double uplink = xm_network_uplink_bandwidth(network);
    int hosts = xm_network_hosts(network), up = xm_network_rack_of(network, from),
        down = xm_network_rack_of(network, to);

    add_to_link(bounding_pass, from, AP_LINK_OUT, bytes / xm_network_egress(network, from));
    add_to_link(bounding_pass, to, AP_LINK_IN, bytes / xm_network_ingress(network, to));
    if (uplink > 0.0 && up != down) {
        add_to_link(bounding_pass, hosts + up, AP_LINK_OUT, bytes / uplink);
        add_to_link(bounding_pass, hosts + down, AP_LINK_IN, bytes / uplink);
    }
}

/* Adds the time of every hop of a transfer to its sender's and its receiver's, and to the links. */
static void add_hops(const bounding_pass_t *bounding_pass, int64_t index,
                     const xm_transfer_t *transfer)
{
    const xm_plan_t *plan = bounding_pass->plan;
    const xm_route_t *route = xm_plan_route(plan, transfer->route);
    double bytes = (double)xm_plan_transfer_bytes(plan, index);

    if (xm_transfer_is_copy(transfer, route)) {
        return;
    }
    for (int h = 0; h < route->count; ++h) {
        int sender = xm_hop_sender(transfer, route, h), receiver = route->ranks[h];
        int from = xm_plan_host_of(plan, sender), to = xm_plan_host_of(plan, receiver);
        double time = xm_cluster_profile_seconds(
            bounding_pass->profile, from == to ? XM_LINK_INTRA_HOST : XM_LINK_INTER_HOST, bytes);

        bounding_pass->busy[sender] += time;
        bounding_pass->busy[bounding_pass->ranks + receiver] += time;
        if (from != to) {
            add_to_links(bounding_pass, from, to, bytes);
        }
    }
}

/* Seconds of the busiest device's messages, one after the other, from the measured curves; and what
 * the links carry. */
static xm_status_t look_at_hops(bounding_pass_t *bounding_pass, double *seconds)
{
    bounding_pass->ranks = xm_plan_ranks(bounding_pass->plan);
    bounding_pass->busy = calloc(2 * (size_t)bounding_pass->ranks, sizeof(*bounding_pass->busy));
    XM_NEED_MEMORY(bounding_pass->busy, "%d ranks", bounding_pass->ranks);
    for (int64_t i = 0; i < xm_plan_transfer_count(bounding_pass->plan); ++i) {
        const xm_transfer_t transfer = xm_plan_transfer(bounding_pass->plan, i);

        add_hops(bounding_pass, i, &transfer);
    }
    *seconds = 0.0;
    for (int i = 0; i < 2 * bounding_pass->ranks; ++i) {
        *seconds = bounding_pass->busy[i] > *seconds ? bounding_pass->busy[i] : *seconds;
    }
    free(bounding_pass->busy);
    return XM_OK;
}

/* Seconds of one direction: what the NICs take together, or the busiest device by itself, whichever
 * is longer. */
static xm_status_t one_way(bounding_pass_t *bounding_pass, const xm_plan_params_t *params,
                           double *seconds, double *bound, int64_t *net_bytes)
{
    xm_plan_t *plan;
    xm_status_t status = xm_plan_create(params, &plan);
    double device = 0.0, nics;

    XM_TRY(status);
    bounding_pass->plan = plan;
    status = look_at_hops(bounding_pass, &device);
    if (status == XM_OK) {
        *net_bytes = (int64_t)xm_plan_net_bytes(plan);
        *bound = 1e-9 * (double)xm_plan_bound_ns(plan);
        nics = 1e-9 * (double)xm_plan_makespan_ns(plan);
        *seconds = nics > device ? nics : device;
    }
    xm_plan_destroy(plan);
    return status;
}

/* The tensors with source and destination exchanged: the gradients' way. */
static void turn_round(xm_tensor_t *tensors, int count)
{
    for (int i = 0; i < count; ++i) {
        const xm_layout_t *src = tensors[i].src;

        tensors[i].src = tensors[i].dst;
        tensors[i].dst = src;
    }
}

static xm_status_t both_ways(bounding_pass_t *bounding_pass, xm_tensor_t *tensors, int count,
                             ap_cross_mesh_cost_t *cost)
{
    xm_plan_params_t params = XM_PLAN_PARAMS_INIT;
    double bound;
    int64_t net_bytes;
    xm_status_t status;

    params.tensors = tensors;
    params.tensor_count = count;
    params.strategy = used_strategy;
    params.scheduler = used_scheduler;
    params.network = bounding_pass->network;
    status = one_way(bounding_pass, &params, &cost->forward, &cost->bound, &cost->net_bytes);
    /* The gradient takes the way back; its bound is asked for by nobody. */
    if (status != XM_OK || bounding_pass->one_way) {
        return status;
    }
    turn_round(tensors, count);
    bounding_pass->back = true;
    return one_way(bounding_pass, &params, &cost->backward, &bound, &net_bytes);
}

static bool is_idle(const ap_link_load_t *link)
{
    return link->forward[AP_LINK_OUT] + link->forward[AP_LINK_IN] + link->backward[AP_LINK_OUT] +
               link->backward[AP_LINK_IN] <=
           0.0;
}

/* Costs of both directions, and the links that they occupy. */
static xm_status_t look_at_both(const xm_cluster_profile_t *profile, xm_tensor_t *tensors,
                                const ap_cross_mesh_transfer_t *transfer,
                                const xm_network_t *network, ap_cross_mesh_cost_t *cost,
                                ap_link_load_t **kept, int *kept_count)
{
    int hosts = xm_network_hosts(network), links = hosts + xm_network_racks(network);
    bounding_pass_t bounding_pass = {.profile = profile,
                                     .one_way = transfer->one_way,
                                     .network = network,
                                     .links = calloc((size_t)links, sizeof(*bounding_pass.links))};
    xm_status_t status;

    XM_NEED_MEMORY(bounding_pass.links, "the NICs of %d hosts", hosts);
    status = both_ways(&bounding_pass, tensors, transfer->count, cost);
    if (status != XM_OK) {
        free(bounding_pass.links);
        return status;
    }
    *kept_count = 0;
    for (int i = 0; i < links; ++i) {
        ap_link_load_t link = bounding_pass.links[i];

        link.rack = i >= hosts;
        link.index = link.rack ? i - hosts : i;
        if (!is_idle(&link)) {
            bounding_pass.links[(*kept_count)++] = link;
        }
    }
    /* Many are kept, most with few links. A shrinking that fails leaves the longer array. */
    *kept = realloc(bounding_pass.links, ((size_t)*kept_count + 1) * sizeof(*bounding_pass.links));
    if (*kept == NULL) {
        *kept = bounding_pass.links;
    }
    return XM_OK;
}

/* The batch of a transfer. The layouts are the caller's also after a failure. */
static xm_status_t make_batch(const ap_cross_mesh_transfer_t *transfer, xm_layout_t **layouts,
                              xm_tensor_t *batch)
{
    xm_mesh_t *src = NULL, *dst = NULL;
    xm_status_t status = make_mesh(&transfer->src, &src);

    XM_THEN(status, make_mesh(&transfer->dst, &dst));
    for (int i = 0; i < transfer->count && status == XM_OK; ++i) {
        const ap_cross_mesh_tensor_t *tensor = &transfer->tensors[i];
        xm_layout_t **pair = &layouts[2 * i];

        status = make_layout(src, &tensor->shape, tensor->src, &pair[0]);
        XM_THEN(status, make_layout(dst, &tensor->shape, tensor->dst, &pair[1]));
        batch[i] =
            (xm_tensor_t){.src = pair[0], .dst = pair[1], .element_bits = 8 * tensor->element_size};
    }
    xm_mesh_destroy(dst);
    xm_mesh_destroy(src);
    return status;
}

xm_status_t ap_cross_mesh_plan(const xm_cluster_profile_t *profile,
                               const ap_cross_mesh_transfer_t *transfer, ap_cross_mesh_cost_t *cost,
                               ap_link_load_t **links, int *link_count)
{
    size_t count = (size_t)transfer->count;
    int src_end = transfer->src.first_device + size_of(&transfer->src);
    int dst_end = transfer->dst.first_device + size_of(&transfer->dst);
    xm_layout_t **layouts = calloc(2 * count, sizeof(*layouts));
    xm_tensor_t *batch = calloc(count, sizeof(*batch));
    xm_network_t *network = NULL;
    xm_status_t status;

    if (layouts == NULL || batch == NULL) {
        status = XM_NO_MEMORY("%zu tensors", count);
    } else {
        status = make_batch(transfer, layouts, batch);
    }
    XM_THEN(status, make_network(profile, src_end > dst_end ? src_end : dst_end, &network));
    XM_THEN(status, look_at_both(profile, batch, transfer, network, cost, links, link_count));
    xm_network_destroy(network);
    for (size_t i = 0; layouts != NULL && i < 2 * count; ++i) {
        xm_layout_destroy(layouts[i]);
    }
    free(batch);
    free(layouts);
    return status;
}

const char *ap_cross_mesh_strategy(void)
{
    return xm_strategy_name(used_strategy);
}

const char *ap_cross_mesh_scheduler(void)
{
    return xm_scheduler_name(used_scheduler);
}
