/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lays a problem out for the schedulers of the exclusive-host model: flat arrays over
 * senders and receivers instead of lists of hosts, with all durations computed once. The
 * searches look at each demand thousands of times, and divisions of bytes by rates would
 * dominate their time. An object takes time and memory in proportion to the holders and
 * receivers of all demands.
 */
#include "resharding/solve/exclusive.h"

#include <stdlib.h>

/* Every array gets at least one element, so that an empty problem is not mistaken for a
 * lack of memory. */
static xm_status_t allocate(xm_exclusive_t *x, int64_t holders, int64_t receivers, int hosts)
{
    size_t count = (size_t)x->count;

    x->host_of_sender = xm_arena_take(&x->arena, (size_t)hosts * sizeof(int));
    x->first_holder = xm_arena_take(&x->arena, (count + 1) * sizeof(int64_t));
    x->first_receiver = xm_arena_take(&x->arena, (count + 1) * sizeof(int64_t));
    x->shortest = xm_arena_take(&x->arena, (count + 1) * sizeof(int64_t));
    x->holder = xm_arena_take(&x->arena, (size_t)(holders + 1) * sizeof(int));
    x->duration = xm_arena_take(&x->arena, (size_t)(holders + 1) * sizeof(int64_t));
    x->receiver = xm_arena_take(&x->arena, (size_t)(receivers + 1) * sizeof(int));
    XM_NEED_MEMORY(!x->arena.failed, "scheduling %lld demands", (long long)x->count);
    return XM_OK;
}

/* Numbers the hosts that hold something and those that need something, each ascending;
 * the others get −1. Hosts without a role then cost the searches nothing. */
static void number_hosts(xm_exclusive_t *x, int *sender_of, int *receiver_of)
{
    int hosts = xm_network_hosts(x->problem->network);

    for (int h = 0; h < hosts; ++h) {
        sender_of[h] = receiver_of[h] = -1;
    }
    /*
     * A mark of 0 stands for "has the role" until all demands were seen; numbers are
     * given afterwards, by ascending host, so that they do not depend on the order of the
     * demands.
     */
    for (int64_t d = 0; d < x->count; ++d) {
        const xm_demand_t *demand = &x->problem->demands[d];

        for (int i = 0; i < demand->holder_count; ++i) {
            sender_of[demand->holders[i]] = 0;
        }
        for (int i = 0; i < demand->receiver_count; ++i) {
            receiver_of[demand->receivers[i]] = 0;
        }
    }
    for (int h = 0; h < hosts; ++h) {
        if (sender_of[h] == 0) {
            x->host_of_sender[x->senders] = h;
            sender_of[h] = x->senders++;
        }
        if (receiver_of[h] == 0) {
            receiver_of[h] = x->receivers++;
        }
    }
}

/* Fills the durations. The slowest ingress of a demand is the same for all its holders,
 * so it is found once; a holder with a slower egress takes longer. */
static void fill(xm_exclusive_t *x, const int *sender_of, const int *receiver_of)
{
    const xm_network_t *network = x->problem->network;

    x->first_holder[0] = x->first_receiver[0] = 0;
    for (int64_t d = 0; d < x->count; ++d) {
        const xm_demand_t *demand = &x->problem->demands[d];
        uint64_t bytes = (uint64_t)demand->bytes;
        int64_t to = x->first_receiver[d], ingress = 0;

        for (int i = 0; i < demand->receiver_count; ++i) {
            int64_t ns = xm_network_ingress_ns(network, demand->receivers[i], bytes);

            ingress = ns > ingress ? ns : ingress;
            x->receiver[to++] = receiver_of[demand->receivers[i]];
        }
        x->first_receiver[d + 1] = to;
        /* The holders come after the receivers, because every holder's duration needs the
         * slowest ingress. */
        to = x->first_holder[d];
        x->shortest[d] = INT64_MAX;
        for (int i = 0; i < demand->holder_count; ++i, ++to) {
            int64_t egress = xm_network_egress_ns(network, demand->holders[i], bytes);

            x->holder[to] = sender_of[demand->holders[i]];
            x->duration[to] = egress > ingress ? egress : ingress;
            x->shortest[d] = x->duration[to] < x->shortest[d] ? x->duration[to] : x->shortest[d];
        }
        x->first_holder[d + 1] = to;
    }
}

/* The problem must outlive the object, which points to it. */
xm_status_t xm_exclusive_create(const xm_problem_t *problem, xm_exclusive_t **exclusive)
{
    int hosts = xm_network_hosts(problem->network);
    int64_t holders = 0, receivers = 0;
    xm_exclusive_t *x = calloc(1, sizeof(*x));
    int *number = malloc(2 * (size_t)hosts * sizeof(int));
    xm_status_t status;

    if (x == NULL || number == NULL) {
        status = XM_NO_MEMORY("scheduling on %d hosts", hosts);
        goto free_all;
    }
    x->problem = problem;
    x->count = problem->count;
    /* Counts the entries first, so that each array is allocated once at its final size. */
    for (int64_t d = 0; d < x->count; ++d) {
        holders += problem->demands[d].holder_count;
        receivers += problem->demands[d].receiver_count;
    }
    status = allocate(x, holders, receivers, hosts);
    if (status < 0) {
        goto free_all;
    }
    number_hosts(x, number, number + hosts);
    fill(x, number, number + hosts);
    free(number);
    *exclusive = x;
    return XM_OK;

free_all:
    free(number);
    xm_exclusive_destroy(x);
    return status;
}

void xm_exclusive_destroy(xm_exclusive_t *x)
{
    if (x == NULL) {
        return;
    }
    xm_arena_clear(&x->arena);
    free(x);
}
