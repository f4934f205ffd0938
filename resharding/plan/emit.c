/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes transfers for the strategies, and all transfers that cost no NIC. The emitter
 * counts what each rank has sent and taken in so far, so that work spreads over the
 * devices of a host without any device-level scheduling: schedulers think in hosts, and
 * the rank is chosen last.
 */
#include <stdlib.h>
#include <string.h>

#include "resharding/plan/plan_private.h"

/* One emitter serves one schedule: the counts begin at 0 for each. */
xm_status_t xm_transfer_emitter_init(xm_transfer_emitter_t *emitter, const xm_plan_t *plan,
                                     const xm_network_t *network, const xm_network_t *rails,
                                     const xm_classes_t *classes, xm_builder_t *builder)
{
    size_t ranks = (size_t)xm_network_ranks(network), count = (size_t)xm_network_hosts(rails);

    *emitter = (xm_transfer_emitter_t){.plan = plan,
                                       .network = network,
                                       .rails = rails,
                                       .classes = classes,
                                       .builder = builder,
                                       .sent = calloc(ranks, sizeof(*emitter->sent)),
                                       .taken = calloc(ranks, sizeof(*emitter->taken)),
                                       .ranks = malloc(ranks * sizeof(*emitter->ranks)),
                                       .parents = malloc(ranks * sizeof(*emitter->parents)),
                                       .order = malloc(count * sizeof(*emitter->order)),
                                       .known = calloc(XM_KNOWN_CHAINS, sizeof(*emitter->known))};
    if (emitter->sent == NULL || emitter->taken == NULL || emitter->ranks == NULL ||
        emitter->parents == NULL || emitter->order == NULL || emitter->known == NULL) {
        xm_transfer_emitter_clear(emitter);
        return XM_NO_MEMORY("planning for %zu ranks", ranks);
    }
    return XM_OK;
}

void xm_transfer_emitter_clear(xm_transfer_emitter_t *emitter)
{
    free(emitter->known);
    free(emitter->order);
    free(emitter->parents);
    free(emitter->ranks);
    free(emitter->taken);
    free(emitter->sent);
    memset(emitter, 0, sizeof(*emitter));
}

/* Where the run of a host begins, or would, in a list of ranks that is sorted by host. */
static int first_of_host(const xm_transfer_emitter_t *emitter, const int *ranks, int count,
                         int host)
{
    int low = 0;

    XM_BISECT(int, i, low, count, xm_network_host_of(emitter->network, ranks[i]) < host);
    return low;
}

/* The holder of a class on a host that has one; −1: it has several. */
static int only_holder(const xm_transfer_emitter_t *emitter, const xm_class_t *class, int host)
{
    int first = first_of_host(emitter, class->holders, class->holder_count, host);

    return first + 1 == class->holder_count ||
                   xm_network_host_of(emitter->network, class->holders[first + 1]) != host
               ? class->holders[first]
               : -1;
}

/* The ranks are sorted by host, so only the host's run is looked at, its ranks of one rail or (−1)
 * all. Every plan is deterministic, so ties go to the first. */
static int pick(const xm_transfer_emitter_t *emitter, const int *ranks, int count, int host,
                int rail)
{
    int low = first_of_host(emitter, ranks, count, host), best = -1;

    for (; low < count && xm_network_host_of(emitter->network, ranks[low]) == host; ++low) {
        if ((rail < 0 || xm_network_host_of(emitter->rails, ranks[low]) == rail) &&
            (best < 0 || emitter->sent[ranks[low]] < emitter->sent[best])) {
            best = ranks[low];
        }
    }
    return best;
}

int xm_transfer_emitter_pick(const xm_transfer_emitter_t *emitter, const int *ranks, int count,
                             int host)
{
    return pick(emitter, ranks, count, host, -1);
}

int xm_transfer_emitter_pick_rail(const xm_transfer_emitter_t *emitter, const xm_class_t *class,
                                  int rail)
{
    return pick(emitter, class->holders, class->holder_count,
                xm_network_host_of_rail(emitter->network, rail), rail);
}

int xm_transfer_emitter_pick_near(const xm_transfer_emitter_t *emitter, const xm_class_t *class,
                                  int rail)
{
    return pick(emitter, class->near_ranks, class->near_count,
                xm_network_host_of_rail(emitter->network, rail), rail);
}

/* Appends the whole task along the route that lies in the emitter's `ranks` and
 * `parents`. */
static xm_status_t append_route(xm_transfer_emitter_t *emitter, int64_t task, int sender, int count)
{
    xm_transfer_t transfer = {
        .task = task, .parent = -1, .end = emitter->plan->tasks[task].elements, .sender = sender};
    XM_TRY(xm_builder_route(emitter->builder, count, emitter->ranks, emitter->parents,
                            &transfer.route));

    return xm_builder_append(emitter->builder, &transfer, NULL);
}

/* A copy inside a rank uses no link and does not count as sent. */
xm_status_t xm_emit_single(xm_transfer_emitter_t *emitter, int64_t task, int sender, int receiver)
{
    if (sender != receiver) {
        emitter->sent[sender] += xm_task_bytes(emitter->plan, task);
    }
    emitter->ranks[0] = receiver;
    emitter->parents[0] = -1;
    return append_route(emitter, task, sender, 1);
}

/* One message per receiver: the baseline of the paper, and best where there is one receiver. */
xm_status_t xm_strategy_send_recv_emit(xm_transfer_emitter_t *emitter, int64_t task,
                                       int sender_rail, int receiver)
{
    const xm_class_t *class = &emitter->classes->classes[emitter->classes->class_of[task]];

    return xm_emit_single(emitter, task, xm_transfer_emitter_pick_rail(emitter, class, sender_rail),
                          receiver);
}

/*
 * Serves receivers [first, end) of a class, which share a host with a holder: as a chain,
 * where each rank passes on to the next, so that the work spreads over their ports; or
 * with send_recv one by one, each from the least loaded holder.
 */
static xm_status_t emit_beside(xm_transfer_emitter_t *emitter, const xm_class_t *class,
                               int64_t task, int first, int end, xm_strategy_t strategy)
{
    int host = xm_network_host_of(emitter->network, class->near_ranks[first]);
    int64_t bytes = xm_task_bytes(emitter->plan, task);
    xm_status_t status = XM_OK;

    if (strategy != XM_STRATEGY_SEND_RECV) {
        int sender = xm_transfer_emitter_pick(emitter, class->holders, class->holder_count, host);

        for (int i = first; i < end; ++i) {
            emitter->ranks[i - first] = class->near_ranks[i];
            emitter->parents[i - first] = i - first - 1;
        }
        if (only_holder(emitter, class, host) < 0) {
            emitter->sent[sender] += bytes;
        }
        return append_route(emitter, task, sender, end - first);
    }
    for (int i = first; status == XM_OK && i < end; ++i) {
        status = xm_emit_single(
            emitter, task,
            xm_transfer_emitter_pick(emitter, class->holders, class->holder_count, host),
            class->near_ranks[i]);
    }
    return status;
}

/* The end of the run of near receivers that share the host of the first of them. */
static int end_of_host(const xm_transfer_emitter_t *emitter, const xm_class_t *class, int first)
{
    int host = xm_network_host_of(emitter->network, class->near_ranks[first]), end = first + 1;

    while (end < class->near_count &&
           xm_network_host_of(emitter->network, class->near_ranks[end]) == host) {
        ++end;
    }
    return end;
}

/* Counts what chains inside hosts leave no choice about, before the first choice: what a host's
 * only holder sends, and what receivers pass on. */
static void count_forced(xm_transfer_emitter_t *emitter)
{
    for (int64_t k = 0; k < emitter->classes->count; ++k) {
        const xm_class_t *class = &emitter->classes->classes[k];

        for (int first = 0, end; first < class->near_count; first = end) {
            int only = only_holder(emitter, class,
                                   xm_network_host_of(emitter->network, class->near_ranks[first]));

            end = end_of_host(emitter, class, first);
            if (only >= 0) {
                emitter->sent[only] += class->bytes;
            }
            for (int i = first + 1; i < end; ++i) {
                emitter->sent[class->near_ranks[i - 1]] += class->bytes;
            }
        }
    }
}

/* Goes through the tasks in order and groups the near receivers by host, which they are
 * sorted by. */
xm_status_t xm_emit_local(xm_transfer_emitter_t *emitter, xm_strategy_t strategy)
{
    xm_status_t status = XM_OK;

    if (strategy != XM_STRATEGY_SEND_RECV) {
        count_forced(emitter);
    }
    for (int64_t t = 0; status == XM_OK && t < emitter->plan->task_count; ++t) {
        const xm_class_t *class = &emitter->classes->classes[emitter->classes->class_of[t]];

        for (int i = 0; status == XM_OK && i < class->copy_count; ++i) {
            status = xm_emit_single(emitter, t, class->copies[i], class->copies[i]);
        }
        for (int first = 0, end; status == XM_OK && first < class->near_count; first = end) {
            end = end_of_host(emitter, class, first);
            status = emit_beside(emitter, class, t, first, end, strategy);
        }
    }
    return status;
}
