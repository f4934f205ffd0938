/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verifier's part for regular plans. Such a plan has as many transfers as pairs of ranks, but
 * what they are follows from a few numbers. So its sides are checked, and that pairs of hosts are
 * like the first one: in each round one pair, and all of the first round. Between these stands only
 * the sum of two numbers. The first pair itself is checked transfer by transfer (verify.c).
 */
#include <inttypes.h>
#include <limits.h>

#include "resharding/plan/regular/regular.h"
#include "resharding/plan/verify/tiles.h"

static xm_status_t no_formula(const char *what, int64_t number)
{
    return xm_error_set(XM_ERR_CORRUPT, "the formula of a regular plan is wrong: %s %" PRId64, what,
                        number);
}

/* Checks that a side has every rank of the layout's mesh once, with its tile, and that all devices
 * of a host have one tile where it says so. `mark` is different for each side. */
static xm_status_t verify_side(const xm_plan_t *plan, const xm_side_t *side,
                               const xm_layout_t *layout, int mark, int *seen)
{
    int size = xm_mesh_size(xm_layout_mesh(layout));

    if (side->hosts < 1 || (int64_t)side->hosts * side->devices != size ||
        xm_layout_tiles(layout) != (side->whole ? side->hosts : size)) {
        return no_formula("ranks of a side:", size);
    }
    for (int p = 0; p < size; ++p) {
        int rank = side->rank[p];

        if (rank < 0 || rank >= plan->ranks || seen[rank] == mark ||
            xm_layout_tile_of_rank(layout, rank) != side->tile[p] ||
            (side->whole && side->tile[p] != side->tile[p - p % side->devices])) {
            return no_formula("rank", rank);
        }
        seen[rank] = mark;
    }
    return XM_OK;
}

/* Checks that the route to each receiver begins with it and goes to all that need its tile. */
static xm_status_t verify_routes_to(const xm_plan_t *plan, const xm_side_t *dst)
{
    for (int p = 0; p < dst->hosts * dst->devices; ++p) {
        const xm_route_t *route = &plan->builder.routes[p];
        bool right = p < plan->builder.route_count && route->ranks[0] == dst->rank[p] &&
                     route->count == (dst->whole ? dst->devices : 1);

        for (int i = 0; right && i < route->count; ++i) {
            right = xm_layout_tile_of_rank(plan->tensors->dst, route->ranks[i]) == dst->tile[p];
        }
        if (!right) {
            return no_formula("route", p);
        }
    }
    return XM_OK;
}

/* Checks that transfers between two hosts, in this round and with this host of the smaller side,
 * are those between the first two hosts, but for the hosts. */
static xm_status_t verify_shift(const xm_plan_t *plan, int64_t round, int64_t host)
{
    const xm_regular_t *regular = plan->regular;
    const xm_side_t *src = &regular->src, *dst = &regular->dst;
    int64_t far = (host + round) % regular->rounds, width = regular->devices;
    bool more_send = src->hosts == (int)regular->rounds;
    int64_t from = (more_send ? far : host) * src->devices;
    int64_t to = (more_send ? host : far) * dst->devices;
    int64_t blocks = (int64_t)regular->turns * regular->pieces, block = regular->hosts * width;

    for (int64_t i = 0; i < blocks * width; ++i) {
        int64_t at = i / width * block + i % width, sender = 0;
        const xm_transfer_t first = xm_plan_transfer(plan, at);
        const xm_transfer_t other =
            xm_plan_transfer(plan, at + round * blocks * block + host * width);

        while (sender < src->devices && src->rank[sender] != first.sender) {
            ++sender;
        }
        if (sender == src->devices || other.sender != src->rank[from + sender] ||
            other.route != to + first.route || other.parent != first.parent ||
            other.first != first.first || other.end != first.end ||
            other.task !=
                (int64_t)dst->tile[other.route] * regular->src_tiles + src->tile[from + sender]) {
            return no_formula("transfer", at + round * blocks * block + host * width);
        }
    }
    return XM_OK;
}

static bool numbers_fit(const xm_plan_t *plan, int64_t fewer)
{
    const xm_regular_t *regular = plan->regular;

    return regular->hosts == fewer &&
           regular->rounds == regular->src.hosts + regular->dst.hosts - fewer &&
           regular->src_tiles == (uint32_t)xm_layout_tiles(plan->tensors->src) &&
           regular->devices ==
               (uint32_t)(regular->by_receiver ? regular->dst.devices : regular->src.devices) &&
           plan->kept_count == 0 &&
           plan->builder.transfer_count == (int64_t)regular->rounds * regular->turns *
                                               regular->pieces * regular->hosts * regular->devices;
}

xm_status_t xm_verify_formula(const xm_plan_t *plan, int *seen)
{
    const xm_side_t *src = &plan->regular->src, *dst = &plan->regular->dst;
    int64_t fewer = src->hosts < dst->hosts ? src->hosts : dst->hosts;
    XM_TRY(verify_side(plan, src, plan->tensors->src, INT_MAX, seen));

    XM_TRY(verify_side(plan, dst, plan->tensors->dst, INT_MAX - 1, seen));
    if (!numbers_fit(plan, fewer)) {
        XM_TRY(no_formula("transfers:", plan->builder.transfer_count));
    }
    XM_TRY(verify_routes_to(plan, dst));
    for (int64_t r = 0; r < plan->regular->rounds; ++r) {
        XM_TRY(verify_shift(plan, r, r % fewer));
    }
    for (int64_t h = 0; h < fewer; ++h) {
        XM_TRY(verify_shift(plan, 0, h));
    }
    return XM_OK;
}
