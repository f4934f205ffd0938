/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fair simulation: all pairs of ranks work at once, and what is moving shares its
 * resources max-min fairly, as flows under congestion control do. It advances from event
 * to event; rates change only when a message ends or begins, so between events everything
 * is linear. An event costs resources times active pairs, which is why plans are chosen
 * by the exclusive simulation and this one serves comparisons.
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "resharding/plan/plan_private.h"
#include "resharding/plan/simulate/private.h"

/* A message is one chunk of one hop. Messages are listed beforehand, numbered as in the
 * plan, so that a message can name the one that feeds it. */
typedef struct {
    int64_t transfer, hop; /* the hop's number in the plan */
    int64_t feeds;         /* the message that brings the data to the sender, or −1 */
    int64_t next;          /* of the same lane, or −1 */
    int64_t waiter;        /* first lane that waits for this one to arrive, or −1 */
    double left;           /* bytes */
    double rate;           /* bytes/ns */
    int lane;
    bool arrived;
} message_t;

/* One (sender, receiver) pair: messages one after the other. */
typedef struct {
    int sender, receiver;
    int64_t head, tail;
    int64_t next_waiter;
    xm_use_t use;
} lane_t;

/* Messages on the way, in the order in which they arrive: all have the same latency. */
typedef struct {
    int64_t *messages;
    double *due;
    int64_t first, end;
} pipe_t;

typedef struct {
    const xm_plan_t *plan;
    xm_resources_t resources;
    message_t *messages;
    int64_t count;
    lane_t *lanes;
    int lane_count;
    size_t lane_capacity;
    xm_index_t lane_index; /* by pair */
    int *active;           /* lanes whose head is moving */
    int active_count;
    double *capacity; /* by resource, while rates are shared out */
    int *users;
    pipe_t pipes[2]; /* inside a host, between hosts */
    xm_span_t *spans;
    double now, makespan;
} fair_t;

static xm_status_t no_memory(const fair_t *f)
{
    return XM_NO_MEMORY("simulating %" PRId64 " messages", f->count);
}

/* The lane of a pair, made when it is new, with what its messages occupy: that depends on
 * the pair alone. */
static xm_status_t find_lane(fair_t *f, int sender, int receiver, int *lane)
{
    uint64_t hash = xm_hash_pair(sender, receiver);
    int64_t at;
    lane_t *added;

    for (size_t step = 0; (at = xm_index_next(&f->lane_index, hash, &step)) >= 0;) {
        if (f->lanes[at].sender == sender && f->lanes[at].receiver == receiver) {
            *lane = (int)at;
            return XM_OK;
        }
    }
    if (!XM_ARRAY_ROOM(f->lanes, f->lane_capacity, f->lane_count) ||
        !xm_index_enter(&f->lane_index, hash, f->lane_count)) {
        return no_memory(f);
    }
    added = &f->lanes[f->lane_count];
    *added =
        (lane_t){.sender = sender, .receiver = receiver, .head = -1, .tail = -1, .next_waiter = -1};
    xm_resources_use(&f->resources, sender, receiver, &added->use);
    *lane = f->lane_count++;
    return XM_OK;
}

/* The number of the message that brings a chunk ending at element `end` to the sender of
 * a transfer with a parent. Chunks of a task have one length, so it is a division. */
static int64_t feeding_message(const fair_t *f, const int64_t *first_message,
                               const xm_transfer_t *transfer, int64_t end)
{
    const xm_transfer_t parent = xm_plan_transfer(f->plan, transfer->parent);
    const xm_route_t *route = xm_plan_route(f->plan, parent.route);
    int hop = 0;

    while (route->ranks[hop] != transfer->sender) {
        ++hop;
    }
    return first_message[transfer->parent] +
           (end - 1 - parent.first) / xm_plan_chunk_elements(f->plan, parent.task) * route->count +
           hop;
}

/* Lists a transfer's messages chunk by chunk and hop by hop, and appends each to its
 * lane; so a lane's list is in plan order. */
static xm_status_t add_messages(fair_t *f, const int64_t *first_message, int64_t index)
{
    int64_t next = first_message[index];
    const xm_transfer_t one = xm_plan_transfer(f->plan, index), *transfer = &one;
    const xm_route_t *route = xm_plan_route(f->plan, transfer->route);
    int64_t chunk = xm_plan_chunk_elements(f->plan, transfer->task);
    int64_t size = xm_task_element_size(f->plan, transfer->task);

    if (xm_transfer_is_copy(transfer, route)) {
        return XM_OK;
    }
    for (int64_t first = transfer->first; first < transfer->end; first += chunk) {
        int64_t end = first + chunk < transfer->end ? first + chunk : transfer->end, start = next;

        for (int h = 0; h < route->count; ++h, ++next) {
            message_t *message = &f->messages[next];
            xm_status_t status =
                find_lane(f, xm_hop_sender(transfer, route, h), route->ranks[h], &message->lane);
            lane_t *lane;

            XM_TRY(status);
            message->transfer = index;
            message->hop = xm_plan_first_hop(f->plan, index) + h;
            message->left = (double)((end - first) * size);
            message->next = message->waiter = -1;
            message->feeds = route->parents[h] >= 0 ? start + route->parents[h]
                             : transfer->parent >= 0
                                 ? feeding_message(f, first_message, transfer, end)
                                 : -1;
            lane = &f->lanes[message->lane];
            if (lane->tail >= 0) {
                f->messages[lane->tail].next = next;
            } else {
                lane->head = next;
            }
            lane->tail = next;
        }
    }
    return XM_OK;
}

/* Counts the messages first, so that all arrays have their final size. */
static xm_status_t list_messages(fair_t *f)
{
    int64_t transfers = xm_plan_transfer_count(f->plan);
    int64_t *first_message = malloc(((size_t)transfers + 1) * sizeof(*first_message));
    xm_status_t status = XM_OK;

    if (first_message == NULL) {
        return no_memory(f);
    }
    for (int64_t i = 0; i < transfers; ++i) {
        const xm_transfer_t transfer = xm_plan_transfer(f->plan, i);
        const xm_route_t *route = xm_plan_route(f->plan, transfer.route);

        first_message[i] = f->count;
        f->count +=
            xm_transfer_is_copy(&transfer, route) ? 0 : xm_plan_chunks(f->plan, i) * route->count;
    }
    f->messages = calloc((size_t)f->count + 1, sizeof(*f->messages));
    for (int p = 0; p < 2; ++p) {
        f->pipes[p].messages = malloc(((size_t)f->count + 1) * sizeof(int64_t));
        f->pipes[p].due = malloc(((size_t)f->count + 1) * sizeof(double));
        if (f->pipes[p].messages == NULL || f->pipes[p].due == NULL) {
            status = no_memory(f);
        }
    }
    if (f->messages == NULL) {
        status = no_memory(f);
    }
    for (int64_t i = 0; status == XM_OK && i < transfers; ++i) {
        status = add_messages(f, first_message, i);
    }
    free(first_message);
    return status;
}

/* The head of a lane starts moving, or joins those that wait for the message that feeds
 * it. */
static void start_head(fair_t *f, int index)
{
    lane_t *lane = &f->lanes[index];
    message_t *message, *feeds;

    if (lane->head < 0) {
        return;
    }
    message = &f->messages[lane->head];
    feeds = message->feeds >= 0 ? &f->messages[message->feeds] : NULL;
    if (feeds != NULL && !feeds->arrived) {
        lane->next_waiter = feeds->waiter;
        feeds->waiter = index;
        return;
    }
    f->active[f->active_count++] = index;
    /* An end of 0 says that the hop has not begun; it is set to 1 until the first chunk
     * has arrived. */
    if (f->spans != NULL && f->spans[message->hop].end_ns == 0) {
        f->spans[message->hop] = (xm_span_t){llround(f->now), 1};
    }
}

/*
 * Max-min shares by progressive filling: the scarcest resource sets the rate of all that
 * use it, and what they leave is shared among the rest. Every pass settles at least the
 * users of one resource, so the loop ends. Near ties count as ties, so that rounding does
 * not cost a pass each.
 */
static void share_rates(fair_t *f)
{
    int settled = 0;

    for (int r = 0; r < f->resources.count; ++r) {
        f->capacity[r] = f->resources.rate[r] * 1e-9;
        f->users[r] = 0;
    }
    for (int a = 0; a < f->active_count; ++a) {
        const lane_t *lane = &f->lanes[f->active[a]];

        f->messages[lane->head].rate = -1;
        for (int u = 0; u < lane->use.count; ++u) {
            ++f->users[lane->use.resource[u]];
        }
    }
    while (settled < f->active_count) {
        double least = INFINITY;

        for (int r = 0; r < f->resources.count; ++r) {
            if (f->users[r] > 0) {
                least = fmin(least, f->capacity[r] / f->users[r]);
            }
        }
        for (int a = 0; a < f->active_count; ++a) {
            const lane_t *lane = &f->lanes[f->active[a]];
            bool scarce = false;

            for (int u = 0; u < lane->use.count; ++u) {
                int r = lane->use.resource[u];

                scarce = scarce || f->capacity[r] / f->users[r] <= least * (1 + 1e-12);
            }
            if (f->messages[lane->head].rate >= 0 || !scarce) {
                continue;
            }
            f->messages[lane->head].rate = least;
            ++settled;
            for (int u = 0; u < lane->use.count; ++u) {
                f->capacity[lane->use.resource[u]] -= least;
                --f->users[lane->use.resource[u]];
            }
        }
    }
}

/* A message has arrived: whoever waited for it may start. */
static void arrive(fair_t *f, int64_t index)
{
    message_t *message = &f->messages[index];

    message->arrived = true;
    f->makespan = fmax(f->makespan, f->now);
    if (f->spans != NULL) {
        f->spans[message->hop].end_ns = llround(ceil(f->now));
    }
    for (int64_t lane = message->waiter, next; lane >= 0; lane = next) {
        next = f->lanes[lane].next_waiter;
        start_head(f, (int)lane);
    }
}

/*
 * Messages that have left their NICs travel for their latency, and their lanes go on with
 * the next. What is left of a message may be a rounding error, so less than a millionth
 * of a nanosecond's bytes counts as nothing.
 */
static void finish_moved(fair_t *f, double step)
{
    int active = f->active_count, kept = 0;
    int started = 0;

    for (int a = 0; a < active; ++a) {
        f->messages[f->lanes[f->active[a]].head].left -=
            f->messages[f->lanes[f->active[a]].head].rate * step;
    }
    for (int a = 0; a < active; ++a) {
        lane_t *lane = &f->lanes[f->active[a]];
        message_t *message = &f->messages[lane->head];
        pipe_t *pipe = &f->pipes[lane->use.resource[0] < 2 * f->resources.rails];

        if (message->left > 1e-6 * message->rate) {
            f->active[kept++] = f->active[a];
            continue;
        }
        pipe->messages[pipe->end] = lane->head;
        pipe->due[pipe->end++] = f->now + (double)lane->use.latency_ns;
        lane->head = message->next;
        f->users[started++] = f->active[a]; /* free until rates are shared out again */
    }
    f->active_count = kept;
    for (int s = 0; s < started; ++s) {
        start_head(f, f->users[s]);
    }
}

/* Goes to the next event, the end of a message or an arrival, whichever is earlier. It
 * returns when nothing moves and nothing is on its way. */
static void run(fair_t *f)
{
    for (int l = 0; l < f->lane_count; ++l) {
        start_head(f, l);
    }
    for (;;) {
        double step = INFINITY, due = INFINITY;

        share_rates(f);
        for (int a = 0; a < f->active_count; ++a) {
            const message_t *message = &f->messages[f->lanes[f->active[a]].head];

            step = fmin(step, message->left / message->rate);
        }
        for (int p = 0; p < 2; ++p) {
            if (f->pipes[p].first < f->pipes[p].end) {
                due = fmin(due, f->pipes[p].due[f->pipes[p].first]);
            }
        }
        if (isinf(step) && isinf(due)) {
            return;
        }
        step = fmin(step, fmax(due - f->now, 0));
        f->now += step;
        finish_moved(f, step);
        for (int p = 0; p < 2; ++p) {
            pipe_t *pipe = &f->pipes[p];

            while (pipe->first < pipe->end && pipe->due[pipe->first] <= f->now) {
                arrive(f, pipe->messages[pipe->first++]);
            }
        }
    }
}

/* Uplinks without a limit get an infinite rate; they are not used in that case, but are
 * counted. */
xm_status_t xm_simulate_fair(const xm_plan_t *plan, const xm_network_t *network, xm_span_t *spans,
                             int64_t *makespan_ns)
{
    fair_t f = {.plan = plan, .spans = spans};
    xm_status_t status = xm_resources_init(&f.resources, network);

    if (status == XM_OK) {
        for (int u = 0; u < 2 * f.resources.racks && xm_network_uplink_bandwidth(network) <= 0;
             ++u) {
            f.resources.rate[2 * f.resources.rails + u] = INFINITY;
        }
        status = list_messages(&f);
    }
    if (status == XM_OK) {
        size_t users =
            (size_t)(f.resources.count > f.lane_count ? f.resources.count : f.lane_count);

        f.active = malloc(((size_t)f.lane_count + 1) * sizeof(*f.active));
        f.capacity = malloc((size_t)f.resources.count * sizeof(*f.capacity));
        f.users = malloc(users * sizeof(*f.users));
        if (f.active == NULL || f.capacity == NULL || f.users == NULL) {
            status = no_memory(&f);
        }
    }
    if (status == XM_OK) {
        run(&f);
        *makespan_ns = llround(ceil(f.makespan));
    }
    free(f.users);
    free(f.capacity);
    free(f.active);
    for (int p = 0; p < 2; ++p) {
        free(f.pipes[p].due);
        free(f.pipes[p].messages);
    }
    xm_index_clear(&f.lane_index);
    free(f.lanes);
    free(f.messages);
    xm_resources_clear(&f.resources);
    return status;
}
