/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lower bound of a plan, computed on its classes of tasks rather than on the tasks: a
 * model of thousands of tensors has few classes, and tasks of one class load the same
 * NICs. It adds the conditions that bound.c cannot see: the devices' rails and ports,
 * which hosts hide, and all copies together.
 */
#include <math.h>
#include <stdlib.h>

#include "resharding/flow.h"
#include "resharding/solve.h"
#include "resharding/plan/plan_private.h"

enum {
    RELAY_CLASSES = 4096, /* the bound on all copies is left out beyond */
    RAIL_CLASSES = 65536  /* that of rails likewise */
};

/* A device, and what it needs from others. */
typedef struct {
    int rail;
    double bytes;
} need_t;

/* By rail, the needier devices first. */
static int compare_needs(const void *a, const void *b)
{
    const need_t *x = a, *y = b;

    XM_ORDER_BY(x->rail, y->rail);
    return (x->bytes < y->bytes) - (x->bytes > y->bytes);
}

/*
 * Seconds that the tightest set of devices of one rail needs: the bytes of a set come
 * over its ports and the rail together. A set over several rails is never tighter than
 * its tightest part. Sorting by need makes one pass enough: of
 * all sets of k devices of a rail the k neediest are the tightest, and they are the first
 * k of the rail's run.
 */
static double slowest_devices(const xm_network_t *network, need_t *needs, int count)
{
    double slowest = 0, bytes = 0;
    int first = 0;

    qsort(needs, (size_t)count, sizeof(*needs), compare_needs);
    for (int i = 0; i < count; ++i) {
        if (needs[i].rail != needs[first].rail) {
            first = i;
            bytes = 0;
        }
        bytes += needs[i].bytes;
        slowest = fmax(slowest, bytes / (xm_network_host_bandwidth(network) * (i - first + 1) +
                                         xm_network_rail_ingress(network, needs[i].rail)));
    }
    return slowest;
}

/* Adds the rails of ranks to a list, ascending and each once, and returns how many there are. */
static int list_rails(const xm_network_t *network, const int *ranks, int count, int *rails,
                      int kept)
{
    for (int i = 0; i < count; ++i) {
        kept = xm_set_insert(rails, kept, xm_network_rail_of(network, ranks[i]));
    }
    return kept;
}

/* Adds what leaves by the rails of a class's holders and of receivers beside them, and what each
 * host takes in by those of its receivers. */
static xm_status_t add_rails(const xm_class_t *class, const xm_network_t *network, int *rails,
                             xm_cut_bound_t *out, xm_cut_bound_t *in)
{
    if (class->remote_count > 0) {
        int count = list_rails(network, class->holders, class->holder_count, rails, 0);

        count = list_rails(network, class->near_ranks, class->near_count, rails, count);
        XM_TRY(xm_cut_bound_add(out, rails, count, class->bytes));
    }
    for (int h = 0; h < class->remote_host_count; ++h) {
        int first = class->remote_first[h];
        int count = list_rails(network, class->remote + first, class->remote_first[h + 1] - first,
                               rails, 0);

        XM_TRY(xm_cut_bound_add(in, rails, count, class->bytes));
    }
    return XM_OK;
}

/*
 * The send and receive conditions over all sets of rails: a slice leaves a host by a rail of a
 * rank there that holds or needs it, and enters one by a rail of one of its receivers there, since
 * no other rank has any of it. With one rail a host they say what the hosts' conditions say.
 */
static xm_status_t bound_rails(const xm_classes_t *classes, const xm_network_t *network,
                               xm_bound_t *bound)
{
    int rails = xm_network_rails(network);
    double *rates = malloc((size_t)rails * 2 * sizeof(*rates));
    int *list = malloc(((size_t)xm_network_ranks(network) + 1) * sizeof(*list));
    xm_cut_bound_t *out = NULL, *in = NULL;
    int64_t send_ns = 0, receive_ns = 0;
    xm_status_t status;

    if (rates == NULL || list == NULL) {
        status = XM_NO_MEMORY("the bound of %d rails", rails);
        goto free_all;
    }
    for (int r = 0; r < rails; ++r) {
        rates[r] = xm_network_rail_egress(network, r);
        rates[rails + r] = xm_network_rail_ingress(network, r);
    }
    status = xm_cut_bound_create(rails, rates, &out);
    XM_THEN(status, xm_cut_bound_create(rails, rates + rails, &in));
    for (int64_t k = 0; status == XM_OK && k < classes->count; ++k) {
        status = add_rails(&classes->classes[k], network, list, out, in);
    }
    XM_THEN(status, xm_cut_bound_time(out, &send_ns));
    XM_THEN(status, xm_cut_bound_time(in, &receive_ns));
    if (status == XM_OK) {
        xm_bound_set_rails(bound, send_ns, receive_ns);
    }

free_all:
    xm_cut_bound_destroy(in);
    xm_cut_bound_destroy(out);
    free(list);
    free(rates);
    return status;
}

/* Computes all conditions of a plan. The demands point into the classes' host lists, so
 * nothing is copied. */
xm_status_t xm_classes_bound(const xm_classes_t *classes, const xm_network_t *network,
                             xm_bound_t *bound)
{
    int ranks = xm_network_ranks(network);
    xm_demand_t *demands = malloc(((size_t)classes->count + 1) * sizeof(*demands));
    need_t *needed = calloc((size_t)ranks, sizeof(*needed)); /* by rank */
    int64_t relay_ns = 0;
    xm_problem_t problem = {network, demands, 0};
    xm_status_t status;

    if (demands == NULL || needed == NULL) {
        status = XM_NO_MEMORY("the bound of %d ranks", ranks);
        goto free_all;
    }
    /* A device's need is what it must take in from others, from its own host or from the
     * network; a slice that it holds itself is in neither list of its class. */
    for (int r = 0; r < ranks; ++r) {
        needed[r].rail = xm_network_rail_of(network, r);
    }
    for (int64_t k = 0; k < classes->count; ++k) {
        const xm_class_t *class = &classes->classes[k];

        for (int i = 0; i < class->near_count; ++i) {
            needed[class->near_ranks[i]].bytes += (double)class->bytes;
        }
        for (int i = 0; i < class->remote_count; ++i) {
            needed[class->remote[i]].bytes += (double)class->bytes;
        }
        if (class->remote_count > 0) {
            demands[problem.count++] = (xm_demand_t){.bytes = class->bytes,
                                                     .holders = class->holder_hosts,
                                                     .holder_count = class->holder_host_count,
                                                     .receivers = class->remote_hosts,
                                                     .receiver_count = class->remote_host_count};
        }
    }
    status = xm_bound_compute_problem(&problem, bound);
    if (status == XM_OK) {
        double seconds = slowest_devices(network, needed, ranks);

        /* Less by more than the sums' rounding. */
        xm_bound_set_device(bound, (int64_t)(seconds * 1e9 * (1 - 1e-12)));
    }
    /* Large problems do without, like those on all copies below. */
    if (status == XM_OK && xm_network_rails(network) > xm_network_hosts(network) &&
        classes->count <= RAIL_CLASSES) {
        status = bound_rails(classes, network, bound);
    }
    /* The flow on all copies grows with classes times hosts; beyond the limit it is left
     * out, which only makes the bound weaker, never wrong. */
    if (status == XM_OK && problem.count <= RELAY_CLASSES) {
        status = xm_bound_relay(&problem, &relay_ns);
        status = status == XM_ERR_UNSUPPORTED ? XM_OK : status; /* more bytes than it counts */
    }
    if (status == XM_OK) {
        xm_bound_set_relay(bound, relay_ns);
    }

free_all:
    free(needed);
    free(demands);
    return status;
}
