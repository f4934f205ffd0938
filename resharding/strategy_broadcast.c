#include "resharding/plan_private.h"

#include <stdlib.h>
#include <string.h>

/* Hosts in chain order: cyclically after the sender's, so that relays of several tasks differ. */
static int chain_place(const xm_device_load_t *load, int rank, int sender_host)
{
    int hosts = xm_network_hosts(load->network);

    return (xm_network_host_of(load->network, rank) - sender_host + hosts) % hosts;
}

/*
 * Stable merge sort by place in the chain, so that the order within a host stays. Receivers usually
 * come sorted but for a rotation, for which one merge is enough. `spare` has room for half of them.
 */
static void sort_by_place(const xm_device_load_t *load, int *receivers, int count, int sender_host,
                          int *spare)
{
    int left = count / 2, right_at = left, next = 0;

    if (count < 2) {
        return;
    }
    sort_by_place(load, receivers, left, sender_host, spare);
    sort_by_place(load, receivers + left, count - left, sender_host, spare);
    if (chain_place(load, receivers[left - 1], sender_host) <=
        chain_place(load, receivers[left], sender_host)) {
        return;
    }
    memcpy(spare, receivers, (size_t)left * sizeof(*spare));
    for (int left_at = 0; left_at < left; ++next) {
        receivers[next] = right_at < count && chain_place(load, receivers[right_at], sender_host) <
                                                  chain_place(load, spare[left_at], sender_host)
                              ? receivers[right_at++]
                              : spare[left_at++];
    }
}

/* Passes the box from rank to rank inside a host, starting at `head`, which got it by `parent`. */
static xm_status_t chain_inside(xm_plan_t *plan, xm_device_load_t *load, const xm_work_t *work,
                                const int *receivers, int count, int head, int64_t parent)
{
    int from = head;

    for (int i = 0; i < count; ++i) {
        xm_status_t status;

        if (receivers[i] == head) {
            continue;
        }
        status = xm_plan_append(plan, work->task, from, receivers[i], parent, &parent);
        if (status < 0) {
            return status;
        }
        load->sent[from] += work->bytes;
        from = receivers[i];
    }
    return XM_OK;
}

/*
 * A chain over the receiving hosts: the sender feeds one rank of the first host, that rank feeds
 * one of the second, and so on; each of these heads also starts a chain inside its host. All hops
 * are pipelined by chunk, so the whole takes little longer than one hop (MLSys'23 section 3.1,
 * "broadcast"). With the receivers on the sender's own host (place 0) this is only the chain
 * inside.
 */
xm_status_t xm_strategy_broadcast_emit(xm_plan_t *plan, xm_device_load_t *load,
                                       const xm_work_t *work, int *receivers)
{
    int holder_count, sender;
    const int *holders =
        xm_layout_replicas(plan->src, plan->tasks[work->task].src_tile, &holder_count);
    int64_t parent = -1;

    sender = xm_device_load_pick(load, holders, holder_count, work->sender_host);
    sort_by_place(load, receivers, work->receiver_count, work->sender_host,
                  receivers + work->receiver_count);
    for (int first = 0, end; first < work->receiver_count; first = end) {
        int host = xm_network_host_of(load->network, receivers[first]), head;
        xm_status_t status;

        for (end = first + 1; end < work->receiver_count &&
                              xm_network_host_of(load->network, receivers[end]) == host;
             ++end) {
        }
        if (host == work->sender_host) {
            status = chain_inside(plan, load, work, receivers + first, end - first, sender, -1);
            if (status < 0) {
                return status;
            }
            continue;
        }
        head = xm_device_load_pick(load, receivers + first, end - first, host);
        status = xm_plan_append(plan, work->task, sender, head, parent, &parent);
        if (status == XM_OK) {
            status = chain_inside(plan, load, work, receivers + first, end - first, head, parent);
        }
        if (status < 0) {
            return status;
        }
        load->sent[sender] += work->bytes;
        sender = head;
    }
    return XM_OK;
}
