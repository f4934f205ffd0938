/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated fabric's clock and resources. A message occupies a fixed set of resources (NIC
 * directions, uplinks, ports), starts when all are free, and leaves each when that one's time
 * has passed. Times are computed once, when it starts, and rounded up to nanoseconds, so a
 * planner with the same rule predicts the same numbers exactly. Messages end by a heap; nothing
 * is searched, which makes a million messages cost about a second and a half. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "comm/transport/sim/transport_sim_private.h"

/* Messages that end at the same time end in the order in which they started: runs are
 * deterministic. */
static bool earlier(const xm_sim_message_t *a, const xm_sim_message_t *b)
{
    return a->end_ns < b->end_ns || (a->end_ns == b->end_ns && a->sequence < b->sequence);
}

/* Appends to a list of messages. */
static xm_status_t append(xm_sim_message_t **list, size_t *count, size_t *capacity,
                          xm_sim_message_t message)
{
    XM_NEED_MEMORY(XM_ARRAY_ROOM(*list, *capacity, *count), "%zu simulated messages", *count + 1);
    (*list)[(*count)++] = message;
    return XM_OK;
}

/* Adds a message to those on the wire; the next to end is always at the top. */
static xm_status_t heap_push(xm_sim_fabric_t *fabric, xm_sim_message_t message)
{
    size_t i = fabric->heap_count;

    if (append(&fabric->heap, &fabric->heap_count, &fabric->heap_capacity, message) < 0) {
        return XM_ERR_NO_MEMORY;
    }
    /* The place moves up past all messages that end later. */
    while (i > 0 && earlier(&message, &fabric->heap[(i - 1) / 2])) {
        fabric->heap[i] = fabric->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    fabric->heap[i] = message;
    return XM_OK;
}

/* Puts `message` at hole i, whose children may be earlier, and lets it sink to its place. */
static void heap_sink(xm_sim_fabric_t *fabric, size_t i, xm_sim_message_t message)
{
    for (;;) {
        size_t child = 2 * i + 1;

        /* The earlier of the two children moves up, or else it would stand below a later one. */
        if (child + 1 < fabric->heap_count &&
            earlier(&fabric->heap[child + 1], &fabric->heap[child])) {
            ++child;
        }
        if (child >= fabric->heap_count || !earlier(&fabric->heap[child], &message)) {
            break;
        }
        fabric->heap[i] = fabric->heap[child];
        i = child;
    }
    fabric->heap[i] = message;
}

static xm_sim_message_t heap_pop(xm_sim_fabric_t *fabric)
{
    xm_sim_message_t top = fabric->heap[0];

    /* The last message fills the hole at the top and sinks to its place. */
    --fabric->heap_count;
    if (fabric->heap_count > 0) {
        heap_sink(fabric, 0, fabric->heap[fabric->heap_count]);
    }
    return top;
}

/* The resources of a message by position in one array: egress and ingress of rails, uplinks,
 * ports. Plans' orders use the same function, so both agree about who waits for what. */
void xm_sim_route(const xm_sim_fabric_t *fabric, int sender, int receiver, xm_sim_route_t *route)
{
    int from = fabric->host_of_rank[sender], to = fabric->host_of_rank[receiver];
    int uplinks = 2 * fabric->rails, ports = uplinks + 2 * fabric->racks;

    route->count = 2;
    /* Inside a host the NIC is not involved: the ports of the two ranks are. */
    if (from == to) {
        route->resource[0] = ports + sender;
        route->resource[1] = ports + fabric->ranks + receiver;
        route->latency = fabric->host_latency;
        return;
    }
    route->resource[0] = fabric->rail_of_rank[sender];
    route->resource[1] = fabric->rails + fabric->rail_of_rank[receiver];
    route->latency = fabric->nic_latency;
    from = fabric->rack_of_host[from];
    to = fabric->rack_of_host[to];
    /* Racks matter only if uplinks are limited. */
    if (fabric->uplinks && from != to) {
        route->resource[2] = uplinks + from;
        route->resource[3] = uplinks + fabric->racks + to;
        route->count = 4;
    }
}

/* Most fabrics have no cut link and no table of them, and pay nothing for the test. */
static bool is_cut(const xm_sim_fabric_t *fabric, const xm_sim_message_t *message)
{
    int from = fabric->host_of_rank[xm_sim_rank(message->send)];
    int to = fabric->host_of_rank[xm_sim_rank(message->receive)];

    return fabric->cut != NULL && fabric->cut[from * fabric->hosts + to];
}

/* A link is down: the message stands still, with all that waits for it, until the link is back.
 * It is not lost, because TCP would not lose it either. */
static void stall(xm_sim_fabric_t *fabric, xm_sim_message_t message)
{
    if (append(&fabric->stalled, &fabric->stalled_count, &fabric->stalled_capacity, message) < 0) {
        xm_sim_finish(message.send, XM_ERR_NO_MEMORY);
        xm_sim_finish(message.receive, XM_ERR_NO_MEMORY);
        return;
    }
    message.send->priv.kind = message.receive->priv.kind = XM_SIM_ON_WIRE;
}

/* Starts a message: it takes its resources in the order in which messages come here, and knows
 * its end at once. A resource is released when its own time has passed, even though a slower
 * one holds the message longer: a fast NIC is not blocked by a slow receiver's. */
void xm_sim_start(xm_sim_fabric_t *fabric, xm_op_t *send, xm_op_t *receive)
{
    double bytes = (double)send->priv.length;
    int64_t start = fabric->now, longest = 0;
    xm_sim_route_t route;
    xm_sim_message_t message = {.sequence = fabric->sequence++, .send = send, .receive = receive};

    if (is_cut(fabric, &message)) {
        stall(fabric, message);
        return;
    }
    xm_sim_route(fabric, xm_sim_rank(send), xm_sim_rank(receive), &route);
    /* The message waits until all its resources are free at the same time. */
    for (int i = 0; i < route.count; ++i) {
        int64_t free_at = fabric->resource[route.resource[i]].free_at;

        start = free_at > start ? free_at : start;
    }
    for (int i = 0; i < route.count; ++i) {
        xm_sim_resource_t *resource = &fabric->resource[route.resource[i]];
        /* Rounding up is part of the contract with planners; rounding to the nearest would let
         * errors add up either way. */
        int64_t occupied = (int64_t)ceil(bytes * 1e9 / resource->rate);

        resource->free_at = start + occupied;
        longest = occupied > longest ? occupied : longest;
    }
    /* The latency delays the end only. It occupies nothing, so further messages may follow at
     * once. */
    message.end_ns = start + longest + route.latency;
    if (heap_push(fabric, message) < 0) {
        xm_sim_finish(send, XM_ERR_NO_MEMORY);
        xm_sim_finish(receive, XM_ERR_NO_MEMORY);
        return;
    }
    send->priv.kind = receive->priv.kind = XM_SIM_ON_WIRE;
}

/* The fate of a message of a rank that is gone or fenced: it is dropped with both halves, or
 * recalled. */
typedef void end_message_t(xm_sim_fabric_t *fabric, const xm_sim_message_t *message, int rank,
                           xm_status_t own);

/* The bytes of a dropped message are not copied: a receiver must not see part of what a dead rank
 * sent. */
static void drop(xm_sim_fabric_t *fabric, const xm_sim_message_t *message, int rank,
                 xm_status_t own)
{
    (void)fabric;
    xm_sim_end_own(message->send, rank, own);
    xm_sim_end_own(message->receive, rank, own);
}

/* A fence ends the rank's own half; the other one waits for a new match, since its rank has not
 * heard of anything. */
static void recall(xm_sim_fabric_t *fabric, const xm_sim_message_t *message, int rank,
                   xm_status_t own)
{
    xm_op_t *halves[2] = {message->send, message->receive};

    /* First the send, then the receive, whichever of them belongs to the rank. */
    for (int h = 0; h < 2; ++h) {
        if (xm_sim_rank(halves[h]) == rank) {
            xm_sim_finish(halves[h], own);
        } else {
            halves[h]->priv.kind = h == 0 ? XM_SIM_SEND : XM_SIM_RECEIVE;
            xm_sim_wait_for_match(fabric, halves[h]);
        }
    }
}

/* Takes a rank's messages out of a list, in place; returns how many are left. */
static size_t end_messages(xm_sim_fabric_t *fabric, xm_sim_message_t *list, size_t count, int rank,
                           xm_status_t own, end_message_t *end)
{
    size_t kept = 0;

    for (size_t i = 0; i < count; ++i) {
        if (xm_sim_rank(list[i].send) != rank && xm_sim_rank(list[i].receive) != rank) {
            list[kept++] = list[i];
        } else {
            end(fabric, &list[i], rank, own);
        }
    }
    return kept;
}

/* Filtering destroys the heap's order, so it is built again, which takes linear time. */
static void end_all_messages(xm_sim_fabric_t *fabric, int rank, xm_status_t own, end_message_t *end)
{
    fabric->heap_count = end_messages(fabric, fabric->heap, fabric->heap_count, rank, own, end);
    for (size_t i = fabric->heap_count; i-- > 0;) {
        heap_sink(fabric, i, fabric->heap[i]);
    }
    fabric->stalled_count =
        end_messages(fabric, fabric->stalled, fabric->stalled_count, rank, own, end);
}

/* Messages can be on the wire, on a link that is down, or in the order; a rank that is gone leaves
 * all three. */
void xm_sim_drop_messages(xm_sim_fabric_t *fabric, int rank, xm_status_t own)
{
    end_all_messages(fabric, rank, own, drop);
    xm_sim_order_drop(fabric, rank, own);
}

/* The same three places for a fence, where only the rank's own halves end. */
void xm_sim_recall_messages(xm_sim_fabric_t *fabric, int rank)
{
    end_all_messages(fabric, rank, XM_ERR_CANCELED, recall);
    xm_sim_order_recall(fabric, rank);
}

/* Takes a link down or up again. Messages on it stop and begin anew when it is back: what had
 * passed is not counted, which errs on the slow side. */
xm_status_t xm_sim_fabric_cut(xm_sim_fabric_t *fabric, int host, int other, bool down)
{
    size_t count = fabric->heap_count, kept = 0;

    if (host < 0 || other < 0 || host >= fabric->hosts || other >= fabric->hosts) {
        return XM_INVALID("no link between host %d and host %d of %d", host, other, fabric->hosts);
    }
    if (fabric->cut == NULL) {
        fabric->cut = calloc((size_t)fabric->hosts * (size_t)fabric->hosts, sizeof(*fabric->cut));
        XM_NEED_MEMORY(fabric->cut, "the links of %d hosts", fabric->hosts);
    }
    /* Links are cut in both directions. */
    fabric->cut[host * fabric->hosts + other] = fabric->cut[other * fabric->hosts + host] = down;
    for (size_t i = 0; i < count; ++i) {
        if (is_cut(fabric, &fabric->heap[i])) {
            stall(fabric, fabric->heap[i]);
        } else {
            fabric->heap[kept++] = fabric->heap[i];
        }
    }
    /* As after a death, what is left is made a heap again. */
    fabric->heap_count = kept;
    for (size_t i = kept; i-- > 0;) {
        heap_sink(fabric, i, fabric->heap[i]);
    }
    count = fabric->stalled_count;
    fabric->stalled_count = 0; /* those that still are stalled come back */
    for (size_t i = 0; i < count; ++i) {
        /* Taken by value: starting may stall it again, into the list that is being read. */
        xm_sim_message_t message = fabric->stalled[i];

        xm_sim_start(fabric, message.send, message.receive);
    }
    return XM_OK;
}

/* Moves the clock to the next end, and ends everything that ends at that time. False when
 * nothing is on the wire: what still waits then waits for ever, unless somebody posts. */
bool xm_sim_fabric_step(xm_sim_fabric_t *fabric)
{
    bool stepped = false;

    /* Several messages may end at the same instant: they belong to one step. */
    while (fabric->heap_count > 0 && (!stepped || fabric->heap[0].end_ns == fabric->now)) {
        xm_sim_message_t message = heap_pop(fabric);

        fabric->now = message.end_ns;
        if (!fabric->no_copy) {
            memcpy(message.receive->priv.buffer, message.send->priv.buffer,
                   message.send->priv.length);
        }
        xm_sim_finish(message.send, XM_OK);
        xm_sim_finish(message.receive, XM_OK);
        stepped = true;
    }
    return stepped;
}

int64_t xm_sim_fabric_now(const xm_sim_fabric_t *fabric)
{
    return fabric->now;
}

/* Kills a rank as SIGKILL would: no callbacks for itself, XM_ERR_PEER_DIED for all others, and
 * its turns in the order are passed over. */
void xm_sim_fabric_kill(xm_sim_fabric_t *fabric, int rank)
{
    if (!fabric->dead[rank]) {
        /* The mark comes first: whatever is posted or started from here on sees the rank as
         * dead. */
        fabric->dead[rank] = true;
        xm_sim_drop_messages(fabric, rank, XM_OK);
        xm_sim_end_waiting(fabric, rank, XM_OK);
        /* Messages are ended before the order is told, so that slots of the dead are empty when
         * they are passed over. */
        xm_sim_order_pass_dead(fabric);
    }
}

/* Copies the groups of members, and counts them. Without a list, every member is a group of its
 * own (`apart`) or all are in the same one. */
static xm_status_t copy_groups(const char *member, const char *group, const int *list, int count,
                               bool apart, int **copy, int *groups)
{
    int *made = malloc((size_t)count * sizeof(*made));

    XM_NEED_MEMORY(made, "a fabric of %d %ss", count, member);
    *copy = made;
    *groups = 1;
    for (int i = 0; i < count; ++i) {
        made[i] = list != NULL ? list[i] : apart ? i : 0;
        if (made[i] < 0 || made[i] >= count) {
            return XM_INVALID("%s %d is on %s %d, outside 0 … %d", member, i, group, made[i],
                              count - 1);
        }
        /* Group numbers need not be dense; the largest one counts. */
        *groups = made[i] >= *groups ? made[i] + 1 : *groups;
    }
    return XM_OK;
}

/* Sets the rates, in the order in which xm_sim_route() counts: egress, ingress, uplinks up and
 * down, ports out and in. */
static xm_status_t fill_resources(xm_sim_fabric_t *fabric, const xm_sim_fabric_params_t *params)
{
    /* Rates that are not given have round defaults: they serve programs that only care about
     * order. */
    double nic = params->nic_bandwidth > 0 ? params->nic_bandwidth : 1e9;
    double port = params->host_bandwidth > 0 ? params->host_bandwidth : 1e10;
    xm_sim_resource_t *next;

    fabric->resources = 2 * (fabric->rails + fabric->racks + fabric->ranks);
    fabric->resource = calloc((size_t)fabric->resources, sizeof(*fabric->resource));
    XM_NEED_MEMORY(fabric->resource, "a fabric of %d ranks", fabric->ranks);
    /* The order of these loops is that of the numbers in xm_sim_route(). */
    next = fabric->resource;
    for (int i = 0; i < 2 * fabric->rails; ++i) {
        const double *rates = i < fabric->rails ? params->egress : params->ingress;
        int rail = i % fabric->rails;

        next->rate = rates != NULL ? rates[rail] : nic;
        /* Written so that a NaN is refused as well. */
        if (!(next++->rate > 0)) {
            return XM_INVALID("the NICs of %s %d have no bandwidth",
                              params->rail_of_rank != NULL ? "rail" : "host", rail);
        }
    }
    for (int i = 0; i < 2 * fabric->racks; ++i) {
        next++->rate = params->uplink_bandwidth;
    }
    for (int i = 0; i < 2 * fabric->ranks; ++i) {
        next++->rate = port;
    }
    return XM_OK;
}

/* Fills the fabric; on failure the caller destroys what there is, so everything is zero or
 * valid. */
static xm_status_t fill_fabric(xm_sim_fabric_t *fabric, const xm_sim_fabric_params_t *params)
{
    size_t ranks = (size_t)params->ranks;
    xm_status_t status;

    fabric->ranks = params->ranks;
    fabric->nic_latency = llround(params->nic_latency * 1e9);
    fabric->host_latency = llround(params->host_latency * 1e9);
    fabric->uplinks = params->uplink_bandwidth > 0;
    fabric->no_copy = params->no_copy;
    fabric->transport = calloc(ranks, sizeof(*fabric->transport));
    fabric->dead = calloc(ranks, sizeof(*fabric->dead));
    /* Fences are counted by rank and outlive the transports. */
    fabric->fences = calloc(ranks, sizeof(*fabric->fences));
    fabric->bucket_bits = 6;
    fabric->bucket = xm_sim_make_buckets(fabric->bucket_bits);
    if (fabric->transport == NULL || fabric->dead == NULL || fabric->fences == NULL ||
        fabric->bucket == NULL) {
        return XM_NO_MEMORY("a fabric of %d ranks", fabric->ranks);
    }
    status = copy_groups("rank", "host", params->host_of_rank, fabric->ranks, true,
                         &fabric->host_of_rank, &fabric->hosts);
    XM_THEN(status, copy_groups("host", "rack", params->rack_of_host, fabric->hosts, false,
                                &fabric->rack_of_host, &fabric->racks));
    if (status == XM_OK) {
        const int *rails = params->rail_of_rank;

        status = copy_groups("rank", "rail", rails != NULL ? rails : fabric->host_of_rank,
                             fabric->ranks, true, &fabric->rail_of_rank, &fabric->rails);
    }
    return status == XM_OK ? fill_resources(fabric, params) : status;
}

/* Makes a fabric. Transports are made on it by xm_transport_sim_create() and have to go before
 * it. */
xm_status_t xm_sim_fabric_create(const xm_sim_fabric_params_t *params, xm_sim_fabric_t **fabric)
{
    xm_sim_fabric_t *created;
    xm_status_t status;

    if (params->ranks < 1) {
        return XM_INVALID("a fabric has at least one rank, not %d", params->ranks);
    }
    created = calloc(1, sizeof(*created));
    XM_NEED_MEMORY(created, "a simulated fabric");
    status = fill_fabric(created, params);
    if (status < 0) {
        xm_sim_fabric_destroy(created);
        return status;
    }
    *fabric = created;
    return XM_OK;
}

/* Everything is zero or valid even after a failed creation, so this is the only way out. */
void xm_sim_fabric_destroy(xm_sim_fabric_t *fabric)
{
    if (fabric != NULL) {
        xm_sim_order_destroy(fabric->order);
        free(fabric->bucket);
        free(fabric->heap);
        free(fabric->resource);
        free(fabric->stalled);
        free(fabric->cut);
        free(fabric->fences);
        free(fabric->dead);
        free(fabric->transport);
        free(fabric->rack_of_host);
        free(fabric->rail_of_rank);
        free(fabric->host_of_rank);
        free(fabric);
    }
}
