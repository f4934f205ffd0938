/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lower bound of bound.h: the best of several conditions that every schedule must
 * meet, each of them exact in whole bytes and whole nanoseconds. Every condition counts
 * only what must pass one set of NICs, uplinks or ports, and none counts latency, so the
 * largest of them is still a lower bound. The sets of senders are too many to list;
 * cut_bound.c finds the tightest one by maximum flow.
 */
#include "resharding/solve/bound.h"

#include <stdlib.h>
#include <string.h>

#include "resharding/flow.h"

/* Raises the bound when a condition asks for more. The comparison is strict so that the
 * first of several equal conditions is the one that is named. */
static void raise_bound(xm_bound_t *bound, int64_t ns, xm_bound_limit_t limit)
{
    if (ns > bound->ns) {
        bound->ns = ns;
        bound->limit = limit;
    }
}

void xm_bound_set_device(xm_bound_t *bound, int64_t device_ns)
{
    bound->device_ns = device_ns;
    raise_bound(bound, device_ns, XM_BOUND_DEVICE);
}

void xm_bound_set_rails(xm_bound_t *bound, int64_t send_ns, int64_t receive_ns)
{
    bound->receive_ns = receive_ns > bound->receive_ns ? receive_ns : bound->receive_ns;
    bound->send_ns = send_ns > bound->send_ns ? send_ns : bound->send_ns;
    raise_bound(bound, bound->receive_ns, XM_BOUND_RECEIVE);
    raise_bound(bound, bound->send_ns, XM_BOUND_SEND);
}

void xm_bound_set_relay(xm_bound_t *bound, int64_t relay_ns)
{
    bound->relay_ns = relay_ns;
    raise_bound(bound, relay_ns, XM_BOUND_RELAY);
}

/*
 * The receive condition, host by host. Sets of receivers would add nothing: each host
 * takes in its own copy through its own NIC, so a set never needs more time than its
 * worst member.
 */
static xm_status_t bound_receivers(const xm_problem_t *problem, xm_bound_t *bound)
{
    int hosts = xm_network_hosts(problem->network);
    int64_t *received = calloc((size_t)hosts, sizeof(*received));

    XM_NEED_MEMORY(received, "the bound of %d hosts", hosts);
    for (int64_t d = 0; d < problem->count; ++d) {
        const xm_demand_t *demand = &problem->demands[d];

        for (int r = 0; r < demand->receiver_count; ++r) {
            received[demand->receivers[r]] += demand->bytes;
        }
    }
    for (int h = 0; h < hosts; ++h) {
        int64_t ns = xm_cut_bound_single(xm_network_ingress(problem->network, h), received[h]);

        bound->receive_ns = ns > bound->receive_ns ? ns : bound->receive_ns;
    }
    free(received);
    return XM_OK;
}

/*
 * The send condition, over all sets of hosts at once. Every demand counts, because a
 * demand exists only when some host needs it and does not hold it; it counts once,
 * however many need it, because receivers may pass it on among themselves.
 */
static xm_status_t bound_senders(const xm_problem_t *problem, xm_bound_t *bound)
{
    int hosts = xm_network_hosts(problem->network);
    double *rate = malloc((size_t)hosts * sizeof(*rate));
    xm_cut_bound_t *cut_bound = NULL;
    xm_status_t status;

    XM_NEED_MEMORY(rate, "the bound of %d hosts", hosts);
    for (int h = 0; h < hosts; ++h) {
        rate[h] = xm_network_egress(problem->network, h);
    }
    status = xm_cut_bound_create(hosts, rate, &cut_bound);
    for (int64_t d = 0; status == XM_OK && d < problem->count; ++d) {
        const xm_demand_t *demand = &problem->demands[d];

        status = xm_cut_bound_add(cut_bound, demand->holders, demand->holder_count, demand->bytes);
    }
    XM_THEN(status, xm_cut_bound_time(cut_bound, &bound->send_ns));
    xm_cut_bound_destroy(cut_bound);
    free(rate);
    return status;
}

/* The state of the bound on racks. */
typedef struct {
    const xm_network_t *network;
    xm_cut_bound_t *up;
    int64_t *down;  /* by rack: bytes that must come down its uplink */
    int64_t *stamp; /* by rack: last demand that met it, as a holder's or counted receiver's */
    int *holding;   /* racks that hold a demand, ascending */
    double *rate;
} racks_t;

/*
 * Adds one demand to the conditions of the racks. A stamp marks the racks that this
 * demand has met, so that a rack that holds it needs nothing over its uplink, and a rack
 * with several receivers needs it once. A demand that no other rack needs does not leave
 * its rack and puts no load on uplinks.
 */
static xm_status_t add_to_racks(racks_t *racks, const xm_demand_t *demand, int64_t d)
{
    bool crosses = false;
    int holding = 0;

    for (int i = 0; i < demand->holder_count; ++i) {
        int rack = xm_network_rack_of(racks->network, demand->holders[i]);

        if (racks->stamp[rack] != d) {
            racks->stamp[rack] = d;
            holding = xm_set_insert(racks->holding, holding, rack);
        }
    }
    for (int i = 0; i < demand->receiver_count; ++i) {
        int rack = xm_network_rack_of(racks->network, demand->receivers[i]);

        if (racks->stamp[rack] != d) {
            racks->stamp[rack] = d;
            racks->down[rack] += demand->bytes;
            crosses = true;
        }
    }
    return crosses ? xm_cut_bound_add(racks->up, racks->holding, holding, demand->bytes) : XM_OK;
}

/* Allocates the arrays of the racks; bound_uplinks() frees them, also after a failure in
 * here. */
static xm_status_t fill_racks(racks_t *racks, int count, double uplink)
{
    size_t n = (size_t)count;

    racks->down = calloc(n, sizeof(*racks->down));
    racks->stamp = malloc(n * sizeof(*racks->stamp));
    racks->holding = malloc(n * sizeof(*racks->holding));
    racks->rate = malloc(n * sizeof(*racks->rate));
    if (racks->down == NULL || racks->stamp == NULL || racks->holding == NULL ||
        racks->rate == NULL) {
        return XM_NO_MEMORY("the bound of %d racks", count);
    }
    memset(racks->stamp, -1, n * sizeof(*racks->stamp));
    for (int r = 0; r < count; ++r) {
        racks->rate[r] = uplink;
    }
    return xm_cut_bound_create(count, racks->rate, &racks->up);
}

/*
 * The uplink conditions, in both directions: each rack alone for what must come down, and
 * every set of racks for what must go up. They are skipped where uplinks are unlimited or
 * nothing can cross one.
 */
static xm_status_t bound_uplinks(const xm_problem_t *problem, xm_bound_t *bound)
{
    int count = xm_network_racks(problem->network);
    double uplink = xm_network_uplink_bandwidth(problem->network);
    racks_t racks = {.network = problem->network};
    xm_status_t status;

    if (count == 1 || !(uplink > 0)) {
        return XM_OK;
    }
    status = fill_racks(&racks, count, uplink);
    for (int64_t d = 0; status == XM_OK && d < problem->count; ++d) {
        status = add_to_racks(&racks, &problem->demands[d], d);
    }
    XM_THEN(status, xm_cut_bound_time(racks.up, &bound->uplink_ns));
    for (int r = 0; status == XM_OK && r < count; ++r) {
        int64_t ns = xm_cut_bound_single(uplink, racks.down[r]);

        bound->uplink_ns = ns > bound->uplink_ns ? ns : bound->uplink_ns;
    }
    xm_cut_bound_destroy(racks.up);
    free(racks.rate);
    free(racks.holding);
    free(racks.stamp);
    free(racks.down);
    return status;
}

xm_status_t xm_bound_compute_problem(const xm_problem_t *problem, xm_bound_t *bound)
{
    xm_bound_t result = {0};

    /* First the senders: they add all bytes up and refuse sums that do not fit. */
    XM_TRY(bound_senders(problem, &result));
    XM_TRY(bound_receivers(problem, &result));
    XM_TRY(bound_uplinks(problem, &result));
    /* The result is handed over only when it is complete, so a failure leaves the
     * caller's bound as it was. */
    raise_bound(&result, result.receive_ns, XM_BOUND_RECEIVE);
    raise_bound(&result, result.send_ns, XM_BOUND_SEND);
    raise_bound(&result, result.uplink_ns, XM_BOUND_UPLINK);
    *bound = result;
    return XM_OK;
}
