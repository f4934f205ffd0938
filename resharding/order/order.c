/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan's messages in the order in which the network is to serve them. The numbers follow the
 * rule of order.h, transfer by transfer, chunk by chunk, hop by hop, so an executor can compute a
 * message's number without the list.
 */
#include "resharding/order.h"

#include <inttypes.h>
#include <stdlib.h>

/* A copy inside a rank sends nothing and therefore has no number. */
static int64_t messages_of(const xm_plan_t *plan, int64_t index)
{
    const xm_transfer_t transfer = xm_plan_transfer(plan, index);
    const xm_route_t *route = xm_plan_route(plan, transfer.route);

    return xm_transfer_is_copy(&transfer, route) ? 0 : xm_plan_chunks(plan, index) * route->count;
}

static int64_t message_count(const xm_plan_t *plan)
{
    int64_t count = 0;

    for (int64_t t = 0; t < xm_plan_transfer_count(plan); ++t) {
        count += messages_of(plan, t);
    }
    return count;
}

/*
 * Lists each message with its sender, its receiver and its number. The list is for
 * simulated fabrics, so it is made in full; a plan of millions of messages is not run
 * there.
 */
xm_status_t xm_plan_messages(const xm_plan_t *plan, xm_sim_slot_t **messages, int64_t *count)
{
    int64_t next = 0, total = message_count(plan);
    xm_sim_slot_t *list = malloc(((size_t)total + 1) * sizeof(*list));

    XM_NEED_MEMORY(list, "listing %" PRId64 " messages", total);
    for (int64_t t = 0; t < xm_plan_transfer_count(plan); ++t) {
        const xm_transfer_t transfer = xm_plan_transfer(plan, t);
        const xm_route_t *route = xm_plan_route(plan, transfer.route);
        int64_t end = next + messages_of(plan, t);

        /* Every pass of this loop is one chunk over all hops of its route. */
        while (next < end) {
            for (int i = 0; i < route->count; ++i, ++next) {
                list[next] = (xm_sim_slot_t){xm_hop_sender(&transfer, route, i), route->ranks[i],
                                             (uint64_t)next + 1};
            }
        }
    }
    *messages = list;
    *count = total;
    return XM_OK;
}
