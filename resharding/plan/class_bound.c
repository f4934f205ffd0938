/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lower bound of a plan, computed on its classes of tasks rather than on the tasks: a
 * model of thousands of tensors has few classes, and tasks of one class load the same
 * NICs. It adds the two conditions that bound.c cannot see: the devices' ports, which
 * hosts hide, and all copies together.
 */
#include <math.h>
#include <stdlib.h>

#include "resharding/solve.h"
#include "resharding/plan/plan_private.h"

enum { RELAY_CLASSES = 4096 /* the bound on all copies is left out beyond */ };

/* A device, and what it needs from others. */
typedef struct {
    int rail;
    double bytes;
} need_t;

/* By rail, the needier devices first. */
static int compare_needs(const void *a, const void *b)
{
    const need_t *x = a, *y = b;

    if (x->rail != y->rail) {
        return x->rail < y->rail ? -1 : 1;
    }
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
        status = xm_error_set(XM_ERR_NO_MEMORY, "no memory for the bound of %d ranks", ranks);
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
