/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The regular all-to-all. Everything about it follows from a few numbers, so the plan is a
 * formula; who reads it cannot tell it from a list. The verifier and the simulation go
 * through it like through any other plan, transfer by transfer.
 */
#include "resharding/plan/regular.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "resharding/plan/simulate_private.h"

enum { FEWEST_TASKS = 4096 /* fewer are as quick by the other schedulers */ };

/* ---- does it fit? ------------------------------------------------------------------------------
 */

static bool parts_are_equal(const xm_layout_t *layout, int dim)
{
    const int64_t *cuts = xm_layout_cuts(layout, dim);

    for (int p = 1; p < xm_layout_parts(layout, dim); ++p) {
        if (cuts[p + 1] - cuts[p] != cuts[1] - cuts[0]) {
            return false;
        }
    }
    return cuts[1] > cuts[0];
}

/* True when each dimension is cut on one side at most, into equal parts: then every source tile has
 * one box in common with every destination tile. */
static bool tiles_cross(const xm_layout_t *src, const xm_layout_t *dst)
{
    if (xm_layout_dims(src) != xm_layout_dims(dst)) {
        return false; /* which has its own sentence elsewhere */
    }
    for (int d = 0; d < xm_layout_dims(src); ++d) {
        if (xm_layout_shape(src)[d] != xm_layout_shape(dst)[d] ||
            (xm_layout_parts(src, d) > 1 && xm_layout_parts(dst, d) > 1) ||
            !parts_are_equal(src, d) || !parts_are_equal(dst, d)) {
            return false;
        }
    }
    return true;
}

static bool is_spread(const xm_layout_t *layout)
{
    return xm_layout_tiles(layout) == xm_mesh_size(xm_layout_mesh(layout));
}

/* Counts the hosts of a layout's ranks; 0 where they have different numbers of them. */
static int count_hosts(const xm_layout_t *layout, const xm_network_t *network, int *load)
{
    const xm_mesh_t *mesh = xm_layout_mesh(layout);
    int hosts = xm_network_hosts(network), used = 0;

    memset(load, 0, (size_t)hosts * sizeof(*load));
    for (int p = 0; p < xm_mesh_size(mesh); ++p) {
        used += load[xm_network_host_of(network, xm_mesh_rank(mesh, p))]++ == 0;
    }
    for (int h = 0; h < hosts; ++h) {
        if (load[h] > 0 && load[h] != xm_mesh_size(mesh) / used) {
            return 0;
        }
    }
    return xm_mesh_size(mesh) % used == 0 ? used : 0;
}

static bool rates_are_equal(const xm_network_t *network)
{
    double egress = xm_network_rail_egress(network, 0),
           ingress = xm_network_rail_ingress(network, 0);

    for (int r = 1; r < xm_network_rails(network); ++r) {
        if (xm_network_rail_egress(network, r) != egress ||
            xm_network_rail_ingress(network, r) != ingress) {
            return false;
        }
    }
    return true;
}

bool xm_regular_fits(const xm_plan_t *plan, const xm_plan_params_t *params)
{
    const xm_planned_tensor_t *tensor = plan->tensors;
    int *load;
    bool fits;

    if (plan->tensor_count != 1 || params->scheduler != XM_SCHEDULER_AUTO ||
        !is_spread(tensor->src) || !is_spread(tensor->dst) ||
        (int64_t)xm_layout_tiles(tensor->src) * xm_layout_tiles(tensor->dst) < FEWEST_TASKS ||
        !tiles_cross(tensor->src, tensor->dst) || !rates_are_equal(params->network)) {
        return false;
    }
    load = malloc((size_t)xm_network_hosts(params->network) * sizeof(*load));
    fits = load != NULL && count_hosts(tensor->src, params->network, load) > 0 &&
           count_hosts(tensor->dst, params->network, load) > 0;
    free(load);
    return fits;
}

/* ---- making it ---------------------------------------------------------------------------------
 */

static xm_status_t no_memory(void)
{
    return xm_error_set(XM_ERR_NO_MEMORY, "no memory for a regular plan");
}

/* Sorts a side's tiles by host, with a counting pass first. Tiles of a host stay in their order. */
static xm_status_t make_side(const xm_layout_t *layout, const xm_network_t *network,
                             xm_side_t *side)
{
    int tiles = xm_layout_tiles(layout), hosts = xm_network_hosts(network), replicas, next = 0;
    int *first = calloc((size_t)hosts, sizeof(*first));

    if (first == NULL) {
        return no_memory();
    }
    side->hosts = count_hosts(layout, network, first);
    side->devices = tiles / side->hosts;
    side->rank = malloc((size_t)tiles * sizeof(*side->rank));
    side->tile = malloc((size_t)tiles * sizeof(*side->tile));
    for (int h = 0; h < hosts; ++h) {
        int count = first[h];

        first[h] = next;
        next += count;
    }
    for (int t = 0; side->rank != NULL && side->tile != NULL && t < tiles; ++t) {
        int rank = xm_layout_replicas(layout, t, &replicas)[0];
        int at = first[xm_network_host_of(network, rank)]++;

        side->rank[at] = rank;
        side->tile[at] = t;
    }
    free(first);
    return side->rank == NULL || side->tile == NULL ? no_memory() : XM_OK;
}

void xm_regular_destroy(xm_regular_t *regular)
{
    if (regular != NULL) {
        free(regular->dst.tile);
        free(regular->dst.rank);
        free(regular->src.tile);
        free(regular->src.rank);
        free(regular);
    }
}

/* The elements of every task: each dimension is cut on one side at most, so its shorter part is
 * what both have in common. */
static int64_t common_elements(const xm_layout_t *src, const xm_layout_t *dst)
{
    int64_t elements = 1;

    for (int d = 0; d < xm_layout_dims(src); ++d) {
        int64_t from = xm_layout_cuts(src, d)[1], to = xm_layout_cuts(dst, d)[1];

        elements *= from < to ? from : to;
    }
    return elements;
}

xm_unit_task_t xm_regular_task(const xm_regular_t *regular, int64_t task)
{
    return (xm_unit_task_t){.src_tile = (int)(task % regular->src_tiles),
                            .dst_tile = (int)(task / regular->src_tiles),
                            .elements = regular->elements};
}

/* Partner of `own` on the larger of two sides in a round. */
static int partner(int own, int round, int larger)
{
    return own + round < larger ? own + round : own + round - larger;
}

static int larger_of(int a, int b)
{
    return a > b ? a : b;
}

/* A number is, from its last digit on: device and host on the smaller side, turn, round. */
xm_transfer_t xm_regular_transfer(const xm_regular_t *regular, int64_t transfer)
{
    const xm_side_t *src = &regular->src, *dst = &regular->dst;
    int hosts = src->hosts < dst->hosts ? src->hosts : dst->hosts;
    int devices = src->devices < dst->devices ? src->devices : dst->devices;
    int rounds = larger_of(src->hosts, dst->hosts), turns = larger_of(src->devices, dst->devices);
    int64_t shift = transfer / (hosts * devices);
    int place = (int)(transfer % (hosts * devices)), host = place / devices;
    int device = place % devices, turn = (int)(shift % turns), round = (int)(shift / turns);
    int far_host = partner(host, round, rounds), far_device = partner(device, turn, turns);
    int from = (src->hosts == rounds ? far_host : host) * src->devices +
               (src->devices == turns ? far_device : device);
    int to = (src->hosts == rounds ? host : far_host) * dst->devices +
             (src->devices == turns ? device : far_device);

    return (xm_transfer_t){.task = (int64_t)dst->tile[to] * regular->src_tiles + src->tile[from],
                           .parent = -1,
                           .end = regular->elements,
                           .sender = src->rank[from],
                           .route = to};
}

/* Each message has one sender and one receiver, so what every resource must carry is known, and no
 * plan is faster than the busiest of them. */
static xm_status_t compute_bound(xm_plan_t *plan, const xm_network_t *network)
{
    uint64_t bytes = (uint64_t)xm_task_bytes(plan, 0);
    xm_resources_t resources;
    xm_status_t status = xm_resources_init(&resources, network);
    int64_t *messages;

    if (status < 0) {
        return status;
    }
    messages = calloc((size_t)resources.count, sizeof(*messages));
    if (messages == NULL) {
        xm_resources_clear(&resources);
        return no_memory();
    }
    for (int64_t t = 0; t < plan->builder.transfer_count; ++t) {
        const xm_transfer_t transfer = xm_regular_transfer(plan->regular, t);
        int receiver = plan->regular->dst.rank[transfer.route];
        xm_use_t use;

        xm_resources_use(&resources, transfer.sender, receiver, &use);
        for (int r = 0; transfer.sender != receiver && r < use.count; ++r) {
            ++messages[use.resource[r]];
        }
    }
    for (int r = 0; r < resources.count; ++r) {
        double ns = (double)messages[r] * (double)bytes * 1e9 / resources.rate[r];

        /* Less by more than the roundings. */
        plan->bound_ns = (int64_t)fmax((double)plan->bound_ns, floor(ns * (1 - 1e-12)));
    }
    free(messages);
    xm_resources_clear(&resources);
    return XM_OK;
}

xm_status_t xm_regular_create(xm_plan_t *plan, const xm_plan_params_t *params)
{
    const xm_planned_tensor_t *tensor = plan->tensors;
    int tiles = xm_layout_tiles(tensor->dst), route, root = -1;
    xm_regular_t *regular = plan->regular = calloc(1, sizeof(*regular));
    int64_t chunk = (int64_t)xm_schedule_chunk_limit(params) / tensor->element_size;
    xm_status_t status;

    if (regular == NULL) {
        return no_memory();
    }
    regular->elements = common_elements(tensor->src, tensor->dst);
    regular->chunk_elements =
        chunk < regular->elements ? (chunk > 0 ? chunk : 1) : regular->elements;
    regular->src_tiles = xm_layout_tiles(tensor->src);
    status = make_side(tensor->src, params->network, &regular->src);
    status = status == XM_OK ? make_side(tensor->dst, params->network, &regular->dst) : status;
    /* Without tasks yet, so that the builder makes no list of chunks. */
    status = status == XM_OK ? xm_builder_init(&plan->builder, plan) : status;
    for (int t = 0; status == XM_OK && t < tiles; ++t) {
        status = xm_builder_route(&plan->builder, 1, &regular->dst.rank[t], &root, &route);
    }
    if (status < 0) {
        return status;
    }
    plan->task_count = plan->builder.transfer_count = (int64_t)regular->src_tiles * tiles;
    plan->chosen = XM_SCHEDULER_OPENSHOP;
    plan->chosen_strategy = XM_STRATEGY_SEND_RECV;
    status = compute_bound(plan, params->network);
    return status < 0
               ? status
               : xm_simulate(plan, params->network, XM_SHARING_EXCLUSIVE, NULL, &plan->makespan_ns);
}
