/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The regular all-to-all. Everything about it follows from a few numbers, so the plan is a
 * formula; who reads it cannot tell it from a list. What is worked out here grows with the ranks,
 * where the transfers grow with their square: hosts that are alike have the same times.
 */
#include "resharding/plan/regular/regular.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "resharding/plan/simulate.h"

enum {
    FEWEST_TASKS = 4096, /* fewer are as quick by the other schedulers */
    PIECES = 256         /* that a device takes in, roughly, where it passes them on */
};

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

/* True when the devices of every host that has some of the layout's ranks are equally many, and
 * either have a tile each or all the same one. */
static bool has_equal_hosts(const xm_layout_t *layout, const xm_network_t *network)
{
    const xm_mesh_t *mesh = xm_layout_mesh(layout);
    int hosts = xm_network_hosts(network), size = xm_mesh_size(mesh), used = 0;
    int replicas = size / xm_layout_tiles(layout);
    int *load = calloc((size_t)hosts, sizeof(*load));
    bool equal = load != NULL;

    for (int p = 0; equal && p < size; ++p) {
        used += load[xm_network_host_of(network, xm_mesh_rank(mesh, p))]++ == 0;
    }
    for (int h = 0; equal && h < hosts; ++h) {
        equal = load[h] == 0 || (size % used == 0 && load[h] == size / used);
    }
    equal = equal && (replicas == 1 || replicas == size / used);
    for (int t = 0; equal && t < xm_layout_tiles(layout); ++t) {
        const int *ranks = xm_layout_replicas(layout, t, &replicas);

        for (int r = 1; equal && r < replicas; ++r) {
            equal = xm_network_host_of(network, ranks[r]) == xm_network_host_of(network, ranks[0]);
        }
    }
    free(load);
    return equal;
}

static bool is_spread(const xm_layout_t *layout)
{
    return xm_layout_tiles(layout) == xm_mesh_size(xm_layout_mesh(layout));
}

/* True when no host has ranks of both sides. */
static bool are_apart(const xm_planned_tensor_t *tensor, const xm_network_t *network)
{
    const xm_mesh_t *src = xm_layout_mesh(tensor->src), *dst = xm_layout_mesh(tensor->dst);
    bool *sends = calloc((size_t)xm_network_hosts(network), sizeof(*sends));
    bool apart = sends != NULL;

    for (int p = 0; apart && p < xm_mesh_size(src); ++p) {
        sends[xm_network_host_of(network, xm_mesh_rank(src, p))] = true;
    }
    for (int p = 0; apart && p < xm_mesh_size(dst); ++p) {
        apart = !sends[xm_network_host_of(network, xm_mesh_rank(dst, p))];
    }
    free(sends);
    return apart;
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

bool xm_regular_fits(const xm_plan_t *plan, const xm_plan_params_t *params)
{
    const xm_layout_t *src = plan->tensors->src, *dst = plan->tensors->dst;
    const xm_network_t *network = params->network;
    int copies = xm_mesh_size(xm_layout_mesh(dst)) / xm_layout_tiles(dst);

    return plan->tensor_count == 1 && params->strategy == XM_STRATEGY_AUTO &&
           params->scheduler == XM_SCHEDULER_AUTO &&
           (int64_t)xm_layout_tiles(src) * xm_layout_tiles(dst) >= FEWEST_TASKS &&
           tiles_cross(src, dst) && common_elements(src, dst) >= copies &&
           rates_are_equal(network) && has_equal_hosts(src, network) &&
           has_equal_hosts(dst, network) &&
           ((is_spread(src) && is_spread(dst)) || are_apart(plan->tensors, network));
}

/* ---- making it ---------------------------------------------------------------------------------
 */

static xm_status_t no_memory(void)
{
    return XM_NO_MEMORY("a regular plan");
}

/* Sorts a side's ranks by host, with a counting pass first. Those of a host stay in the order of
 * their tiles. */
static xm_status_t make_side(const xm_layout_t *layout, const xm_network_t *network,
                             xm_side_t *side)
{
    int ranks = xm_mesh_size(xm_layout_mesh(layout)), hosts = xm_network_hosts(network);
    int *first = calloc((size_t)hosts + 1, sizeof(*first)), replicas;

    side->rank = malloc((size_t)ranks * sizeof(*side->rank));
    side->tile = malloc((size_t)ranks * sizeof(*side->tile));
    side->place = malloc((size_t)hosts * sizeof(*side->place));
    if (first == NULL || side->rank == NULL || side->tile == NULL || side->place == NULL) {
        free(first);
        return no_memory();
    }
    for (int p = 0; p < ranks; ++p) {
        ++first[xm_network_host_of(network, xm_mesh_rank(xm_layout_mesh(layout), p)) + 1];
    }
    for (int h = 0; h < hosts; ++h) {
        side->place[h] = first[h + 1] > 0 ? side->hosts++ : -1;
        first[h + 1] += first[h];
    }
    side->devices = ranks / side->hosts;
    side->whole = !is_spread(layout);
    for (int t = 0; t < xm_layout_tiles(layout); ++t) {
        const int *holders = xm_layout_replicas(layout, t, &replicas);

        for (int r = 0; r < replicas; ++r) {
            int at = first[xm_network_host_of(network, holders[r])]++;

            side->rank[at] = holders[r];
            side->tile[at] = t;
        }
    }
    free(first);
    return XM_OK;
}

/* Raises the bound to the time of so many bytes at a rate, less by more than the roundings. */
static void raise_bound(xm_plan_t *plan, double bytes, double rate)
{
    plan->bound_ns = (int64_t)fmax((double)plan->bound_ns, floor(bytes * 1e9 / rate * (1 - 1e-12)));
}

/* Counts the ranks of a side by host and by rack. */
static void count_ranks(const xm_side_t *side, const xm_network_t *network, int *on_host,
                        int *in_rack)
{
    memset(on_host, 0, (size_t)xm_network_hosts(network) * sizeof(*on_host));
    memset(in_rack, 0, (size_t)xm_network_racks(network) * sizeof(*in_rack));
    for (int p = 0; p < side->hosts * side->devices; ++p) {
        int host = xm_network_host_of(network, side->rank[p]);

        ++on_host[host];
        ++in_rack[xm_network_rack_of(network, host)];
    }
}

/* Where each message has one possible sender and one receiver, what every rail, uplink and port
 * must carry is known, and no plan is faster than the busiest of them. Each rank exchanges one
 * message with every rank of the other side. */
static xm_status_t bound_resources(xm_plan_t *plan, const xm_network_t *network)
{
    const xm_side_t *sides[] = {&plan->regular->src, &plan->regular->dst};
    const xm_layout_t *layouts[] = {plan->tensors->src, plan->tensors->dst};
    double bytes = (double)xm_task_bytes(plan, 0), uplink = xm_network_uplink_bandwidth(network);
    int *on_host = calloc((size_t)xm_network_hosts(network), sizeof(*on_host));
    int *in_rack = calloc((size_t)xm_network_racks(network), sizeof(*in_rack));
    int64_t *by_rail = calloc(2 * (size_t)xm_network_rails(network), sizeof(*by_rail));
    int64_t *by_rack = calloc(2 * (size_t)xm_network_racks(network), sizeof(*by_rack));
    bool done = on_host != NULL && in_rack != NULL && by_rail != NULL && by_rack != NULL;

    for (int d = 0; done && d < 2; ++d) {
        int ranks = sides[d]->hosts * sides[d]->devices;
        int others = sides[!d]->hosts * sides[!d]->devices;

        count_ranks(sides[!d], network, on_host, in_rack);
        for (int p = 0; p < ranks; ++p) {
            int rank = sides[d]->rank[p], host = xm_network_host_of(network, rank);
            int rack = xm_network_rack_of(network, host);
            int inside = on_host[host] - (xm_layout_tile_of_rank(layouts[!d], rank) >= 0);

            by_rail[2 * xm_network_rail_of(network, rank) + d] += others - on_host[host];
            by_rack[2 * rack + d] += others - in_rack[rack];
            raise_bound(plan, inside * bytes, xm_network_host_bandwidth(network));
            plan->net_bytes += d == 0 ? (uint64_t)((others - on_host[host]) * bytes) : 0;
        }
    }
    for (int r = 0; done && r < 2 * xm_network_rails(network); ++r) {
        raise_bound(plan, (double)by_rail[r] * bytes,
                    r % 2 == 0 ? xm_network_rail_egress(network, r / 2)
                               : xm_network_rail_ingress(network, r / 2));
    }
    for (int r = 0; done && uplink > 0 && r < 2 * xm_network_racks(network); ++r) {
        raise_bound(plan, (double)by_rack[r] * bytes, uplink);
    }
    free(by_rack);
    free(by_rail);
    free(in_rack);
    free(on_host);
    return done ? XM_OK : no_memory();
}

/* Where devices of a host stand for each other: a host's NICs together, out and in, and the devices
 * of each NIC, which take a tile in through their ports and the NIC. */
static void bound_hosts(xm_plan_t *plan, const xm_network_t *network)
{
    const xm_side_t *src = &plan->regular->src, *dst = &plan->regular->dst;
    double task = (double)xm_task_bytes(plan, 0);
    double sent = task * xm_layout_tiles(plan->tensors->dst) * (src->whole ? 1 : src->devices);
    double received = task * plan->regular->src_tiles * (dst->whole ? 1 : dst->devices);
    int host = xm_network_host_of(network, dst->rank[0]), rails, sharing = 0;

    raise_bound(plan, sent, xm_network_egress(network, xm_network_host_of(network, src->rank[0])));
    raise_bound(plan, received, xm_network_ingress(network, host));
    (void)xm_network_host_rails(network, host, &rails);
    for (int d = 0; d < dst->devices; ++d) {
        sharing +=
            xm_network_rail_of(network, dst->rank[d]) == xm_network_rail_of(network, dst->rank[0]);
    }
    raise_bound(plan, task * plan->regular->src_tiles * sharing,
                sharing * xm_network_host_bandwidth(network) +
                    xm_network_rail_ingress(network, xm_network_rail_of(network, dst->rank[0])));
}

/* The route to every receiver: it alone, or it and then its neighbours, from the last to the first
 * as heads take turns from the first to the last: so no port has two messages at a time. */
static xm_status_t make_routes(xm_plan_t *plan)
{
    const xm_side_t *dst = &plan->regular->dst;
    int ranks = dst->hosts * dst->devices, reached = plan->regular->reached, route;
    int *list = malloc(2 * (size_t)reached * sizeof(*list)), *parents = list + reached;
    xm_status_t status = list == NULL ? no_memory() : xm_builder_init(&plan->builder, plan);

    for (int p = 0; status == XM_OK && p < ranks; ++p) {
        int first = p / dst->devices * dst->devices;

        list[0] = dst->rank[p];
        parents[0] = -1;
        for (int i = 1; i < reached; ++i) {
            int next = first + reached - i;

            list[i] = dst->rank[next > p ? next : next - 1];
            parents[i] = 0;
        }
        status = xm_builder_route(&plan->builder, reached, list, parents, &route);
    }
    free(list);
    return status;
}

/* The number of pieces of a part that a device takes in of one task and passes on. A piece is one
 * chunk, since the chunks of one device would hold up the other devices' first ones. */
static uint32_t count_pieces(const xm_regular_t *regular, int64_t limit, int64_t element_size)
{
    int64_t elements = regular->elements / regular->dst.devices;
    int64_t bytes = elements * element_size, piece = bytes * regular->src_tiles / PIECES;

    piece = piece > XM_SMALLEST_CHUNK ? piece : XM_SMALLEST_CHUNK;
    piece = piece < limit ? piece : limit;
    piece = piece > element_size ? piece / element_size : 1;
    return (uint32_t)((elements + piece - 1) / piece);
}

/* Fills in sides and counts. The routes are made before the plan has tasks, so that the builder
 * makes no list of them. */
static xm_status_t make_regular(xm_plan_t *plan, const xm_plan_params_t *params,
                                xm_regular_t *regular)
{
    const xm_planned_tensor_t *tensor = plan->tensors;
    int64_t limit = (int64_t)xm_schedule_chunk_limit(params), chunk = limit / tensor->element_size;
    xm_side_t *src = &regular->src, *dst = &regular->dst;
    xm_status_t status;

    XM_TRY(make_side(tensor->src, params->network, src));
    XM_TRY(make_side(tensor->dst, params->network, dst));
    regular->elements = common_elements(tensor->src, tensor->dst);
    chunk = chunk > 0 ? chunk : 1;
    regular->chunk_elements = chunk < regular->elements ? chunk : regular->elements;
    regular->src_tiles = (uint32_t)xm_layout_tiles(tensor->src);
    regular->by_receiver = src->whole || dst->devices <= src->devices;
    regular->hosts = (uint32_t)(src->hosts < dst->hosts ? src->hosts : dst->hosts);
    regular->rounds = (uint32_t)(src->hosts + dst->hosts) - regular->hosts;
    regular->devices = (uint32_t)(regular->by_receiver ? dst->devices : src->devices);
    regular->turns = src->whole ? 1 : (uint32_t)(src->devices + dst->devices) - regular->devices;
    regular->pieces = dst->whole ? count_pieces(regular, limit, tensor->element_size) : 1;
    regular->reached = dst->whole ? dst->devices : 1;
    status = make_routes(plan);
    plan->task_count = (int64_t)regular->src_tiles * xm_layout_tiles(tensor->dst);
    plan->builder.transfer_count = plan->task_count * regular->reached * regular->pieces;
    return status;
}

/* The rank at a place of a host, where those that receive stand behind those that send. */
static int rank_at(const xm_regular_t *regular, int host, int place)
{
    const xm_side_t *src = &regular->src, *dst = &regular->dst;

    return place < src->devices ? src->rank[host * src->devices + place]
                                : dst->rank[host * dst->devices + place - src->devices];
}

/* True when a host's devices, sending and receiving, are to each other as those of the first are:
 * the same device, on the same rail, on the same host. */
static bool is_like_first(const xm_regular_t *regular, const xm_network_t *network, int host)
{
    int places = regular->src.devices + regular->dst.devices;

    for (int i = 0; i < places * places; ++i) {
        int a = rank_at(regular, host, i / places), b = rank_at(regular, host, i % places);
        int x = rank_at(regular, 0, i / places), y = rank_at(regular, 0, i % places);

        if ((a == b) != (x == y) ||
            (xm_network_rail_of(network, a) == xm_network_rail_of(network, b)) !=
                (xm_network_rail_of(network, x) == xm_network_rail_of(network, y)) ||
            (xm_network_host_of(network, a) == xm_network_host_of(network, b)) !=
                (xm_network_host_of(network, x) == xm_network_host_of(network, y))) {
            return false;
        }
    }
    return true;
}

/* True when every host goes through the same as any other: as many send as receive, either they or
 * others like them, and no uplink tells one partner from another. Processors may have to send and
 * receive, of which one host alone shows half. */
static bool are_alike(const xm_plan_t *plan, const xm_network_t *network)
{
    const xm_regular_t *regular = plan->regular;
    bool alike = regular->src.hosts == regular->dst.hosts &&
                 !(xm_network_uplink_bandwidth(network) > 0) &&
                 !(xm_network_cores_per_host(network) > 0) &&
                 (regular->src.place[xm_network_host_of(network, regular->dst.rank[0])] == 0 ||
                  are_apart(plan->tensors, network));

    for (int h = 1; alike && h < regular->src.hosts; ++h) {
        alike = is_like_first(regular, network, h);
    }
    return alike;
}

/*
 * Simulates the plan. Where all hosts are alike, they have the same times after every round, so one
 * receiving host is enough: it meets one sending host again and again, which in each round is where
 * the next one would be. What it has for itself (round 0) is not that host's.
 */
static xm_status_t simulate(xm_plan_t *plan, const xm_network_t *network)
{
    xm_regular_t one = *plan->regular;
    xm_plan_t folded = *plan;
    int devices = one.src.devices, host = xm_network_host_of(network, one.dst.rank[0]);
    int partner = one.src.place[host] == 0 && one.src.hosts > 1 ? devices : 0;
    xm_status_t status;

    if (!are_alike(plan, network)) {
        return xm_simulate(plan, network, XM_SHARING_EXCLUSIVE, NULL, &plan->makespan_ns);
    }
    one.src.rank = malloc((size_t)one.src.hosts * (size_t)devices * sizeof(*one.src.rank));
    if (one.src.rank == NULL) {
        return no_memory();
    }
    for (int p = 0; p < one.src.hosts * devices; ++p) {
        one.src.rank[p] = plan->regular->src.rank[p < devices ? p : partner + p % devices];
    }
    folded.regular = &one;
    folded.builder.transfer_count /= one.hosts;
    one.hosts = 1;
    status = xm_simulate(&folded, network, XM_SHARING_EXCLUSIVE, NULL, &plan->makespan_ns);
    free(one.src.rank);
    return status;
}

xm_status_t xm_regular_create(xm_plan_t *plan, const xm_plan_params_t *params)
{
    xm_status_t status = XM_OK;

    plan->regular = calloc(1, sizeof(*plan->regular));
    XM_TRY(plan->regular == NULL ? no_memory() : make_regular(plan, params, plan->regular));
    plan->chosen = XM_SCHEDULER_OPENSHOP;
    plan->chosen_strategy =
        plan->regular->dst.whole ? XM_STRATEGY_ALLGATHER : XM_STRATEGY_SEND_RECV;
    if (plan->regular->src.whole || plan->regular->dst.whole) {
        bound_hosts(plan, params->network);
        plan->net_bytes = (uint64_t)(plan->task_count * xm_task_bytes(plan, 0));
    } else {
        status = bound_resources(plan, params->network);
    }
    return status < 0 ? status : simulate(plan, params->network);
}
