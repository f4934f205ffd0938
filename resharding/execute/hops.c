/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the plan to what this rank has to do: its hops, in plan order, and its lanes, one for each
 * peer and direction. Both ends of a lane enumerate its hops alike, from the plan alone; that is
 * why a chunk's number in its lane is all that its message has to say.
 */
#include "resharding/execute/execute_private.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    RECEIVE_AHEAD = 2, /* receives are posted this many windows ahead */
    PROOF_BEHIND = 3,  /* so many more windows wait for their proof only: the answer to a table
                          comes behind all that was sent before the table was */
    LANE_CHUNKS = 0x1ffffff0 /* sequence numbers of tags: what is above is for other messages */
};

/* What one rank has to do with every route: its own place, whom it feeds there, whom a sender
 * feeds. */
typedef struct {
    int *at; /* by route: place of the rank, or −1 */
    int64_t
        *roots; /* by route: first of the places fed by the sender, in `places`; one more entry */
    int64_t *kids; /* by route: the same for the places fed by the rank, behind the roots */
    int *places;
} route_table_t;

static void free_routes(route_table_t *table)
{
    free(table->places);
    free(table->kids);
    free(table->roots);
    free(table->at);
}

static int place_of(const xm_route_t *route, int rank)
{
    for (int i = 0; i < route->count; ++i) {
        if (route->ranks[i] == rank) {
            return i;
        }
    }
    return -1;
}

/* One pass over all routes: they are shared by many transfers, which then need no search. */
static xm_status_t read_routes(const xm_plan_t *plan, int rank, route_table_t *table)
{
    int routes = xm_plan_routes(plan);
    int64_t count = 0;

    table->at = malloc(((size_t)routes + 1) * sizeof(*table->at));
    table->roots = malloc(((size_t)routes + 1) * sizeof(*table->roots));
    table->kids = malloc(((size_t)routes + 1) * sizeof(*table->kids));
    table->places = NULL;
    if (table->at == NULL || table->roots == NULL || table->kids == NULL) {
        goto no_memory;
    }
    for (int r = 0; r < routes; ++r) {
        const xm_route_t *route = xm_plan_route(plan, r);

        table->at[r] = place_of(route, rank);
        for (int i = 0; i < route->count; ++i) {
            count += route->parents[i] < 0 || route->parents[i] == table->at[r];
        }
    }
    table->places = malloc(((size_t)count + 1) * sizeof(*table->places));
    if (table->places == NULL) {
        goto no_memory;
    }
    count = 0;
    for (int r = 0; r < routes; ++r) {
        const xm_route_t *route = xm_plan_route(plan, r);

        table->roots[r] = count;
        for (int i = 0; i < route->count; ++i) {
            if (route->parents[i] < 0) {
                table->places[count++] = i;
            }
        }
        table->kids[r] = count;
        for (int i = 0; table->at[r] >= 0 && i < route->count; ++i) {
            if (route->parents[i] == table->at[r]) {
                table->places[count++] = i;
            }
        }
    }
    table->roots[routes] = count;
    return XM_OK;

no_memory:
    free_routes(table);
    return XM_NO_MEMORY("the %d routes of a plan", routes);
}

/* This rank's part of a transfer: its incoming hop (or copy), and the places it feeds. */
typedef struct {
    int incoming; /* place in the route, or −1 */
    bool copy;
    int64_t fed, fed_end; /* in the table's places */
} part_t;

static part_t part_of(const xm_executor_t *executor, const route_table_t *table,
                      const xm_transfer_t *transfer)
{
    const xm_route_t *route = xm_plan_route(executor->plan, transfer->route);
    part_t part = {.incoming = -1};

    if (transfer->sender == executor->transport->rank) {
        part.copy = xm_transfer_is_copy(transfer, route);
        if (part.copy) {
            part.incoming = 0;
        } else {
            part.fed = table->roots[transfer->route];
            part.fed_end = table->kids[transfer->route];
        }
    } else if (table->at[transfer->route] >= 0) {
        part.incoming = table->at[transfer->route];
        part.fed = table->kids[transfer->route];
        part.fed_end = table->roots[transfer->route + 1];
    }
    return part;
}

/* Where the box of a transfer lies in the source tile of its task, or in the destination tile of
 * any of its receivers. */
static void init_view(const xm_executor_t *executor, const xm_transfer_t *transfer, bool in_dst,
                      xm_view_t *view)
{
    const xm_plan_t *plan = executor->plan;
    const xm_unit_task_t task = xm_plan_task(plan, transfer->task);
    xm_box_t tile, box;

    if (in_dst) {
        xm_layout_tile_box(xm_plan_tensor_dst(plan, task.tensor), task.dst_tile, &tile);
    } else {
        xm_layout_tile_box(xm_plan_tensor_src(plan, task.tensor), task.src_tile, &tile);
    }
    xm_plan_task_box(plan, transfer->task, &box);
    xm_view_init(view, &tile, &box, executor->tensors[task.tensor].element_size);
}

bool xm_executor_view_peer(const xm_executor_t *executor, hop_t *hop)
{
    const xm_transfer_t transfer = xm_plan_transfer(executor->plan, hop->transfer);
    const xm_route_t *route = xm_plan_route(executor->plan, transfer.route);
    int place = (int)(hop->number - xm_plan_first_hop(executor->plan, hop->transfer));
    bool relayed = route->parents[place] >= 0 || transfer.parent != XM_PARENT_SOURCE;

    init_view(executor, &transfer, relayed, &hop->peer_view);
    return relayed;
}

uint64_t xm_executor_tile_bytes(const lane_t *lane, int tensor, bool is_dst)
{
    const xm_executor_t *executor = lane->executor;

    return xm_layout_buffer_bytes(is_dst ? xm_plan_tensor_dst(executor->plan, tensor)
                                         : xm_plan_tensor_src(executor->plan, tensor),
                                  lane_sends(lane) ? executor->transport->rank : lane->peer,
                                  executor->tensors[tensor].element_size);
}

bool xm_executor_lane_is_inside(const lane_t *lane)
{
    const xm_plan_t *plan = lane->executor->plan;

    return xm_plan_host_of(plan, lane->executor->transport->rank) ==
           xm_plan_host_of(plan, lane->peer);
}

/* Fills in a hop at a place of its transfer's route; `feed` as in hop_t. */
static void init_hop(xm_executor_t *executor, hop_t *hop, int64_t index, int place,
                     int64_t first_message, int64_t feed, bool reads_source)
{
    const xm_plan_t *plan = executor->plan;
    const xm_transfer_t transfer = xm_plan_transfer(plan, index);

    hop->number = xm_plan_first_hop(plan, index) + place;
    hop->transfer = index;
    hop->message = first_message + place;
    hop->stride = xm_plan_route(plan, transfer.route)->count;
    hop->first = transfer.first;
    hop->end = transfer.end;
    hop->chunk = xm_plan_chunk_elements(plan, transfer.task);
    hop->chunks = xm_plan_chunks(plan, index);
    hop->feed = feed;
    hop->in_dst = !reads_source;
    hop->tensor = xm_plan_task(plan, transfer.task).tensor;
    hop->lane = -1;
    init_view(executor, &transfer, !reads_source, &hop->view);
    ++executor->tensors[hop->tensor].hops;
}

/* The next transfer to look at. Only a fabric that keeps the order has to know the number of every
 * message. */
static int64_t next_of(const xm_executor_t *executor, int64_t transfer)
{
    return executor->ordered
               ? transfer
               : xm_plan_next_transfer(executor->plan, executor->transport->rank, transfer);
}

static xm_status_t allocate_hops(xm_executor_t *executor, const route_table_t *table)
{
    int64_t count = xm_plan_transfer_count(executor->plan);

    for (int64_t t = next_of(executor, 0); t < count; t = next_of(executor, t + 1)) {
        const xm_transfer_t transfer = xm_plan_transfer(executor->plan, t);
        part_t part = part_of(executor, table, &transfer);

        executor->hop_count += (part.incoming >= 0) + part.fed_end - part.fed;
        executor->copy_count += part.copy;
    }
    executor->hops = calloc((size_t)executor->hop_count + 1, sizeof(*executor->hops));
    executor->copies = malloc(((size_t)executor->copy_count + 1) * sizeof(*executor->copies));
    executor->dependants =
        malloc(((size_t)executor->hop_count + 1) * sizeof(*executor->dependants));
    if (executor->hops == NULL || executor->copies == NULL || executor->dependants == NULL) {
        return XM_NO_MEMORY("the %" PRId64 " hops of rank %d", executor->hop_count,
                            executor->transport->rank);
    }
    return XM_OK;
}

/* Adds the hops of one transfer. What feeds them stands among the hops before. */
static void add_transfer(xm_executor_t *executor, const route_table_t *table, int64_t index,
                         int64_t first_message)
{
    const xm_transfer_t transfer = xm_plan_transfer(executor->plan, index);
    part_t part = part_of(executor, table, &transfer);
    int64_t feed = -1, *next = &executor->hop_count;

    if (part.incoming >= 0) {
        hop_t *hop = &executor->hops[*next];

        init_hop(executor, hop, index, part.incoming, first_message, -1, false);
        if (part.copy) {
            copy_t *copy = &executor->copies[executor->copy_count++];

            copy->hop = *next;
            init_view(executor, &transfer, false, &copy->from);
        }
        feed = (*next)++;
    } else if (transfer.parent >= 0 && part.fed < part.fed_end) {
        int route = xm_plan_transfer(executor->plan, transfer.parent).route;
        int64_t first = xm_plan_first_hop(executor->plan, transfer.parent);

        feed = xm_executor_find_hop(executor, first + table->at[route]);
    }
    for (int64_t i = part.fed; i < part.fed_end; ++i) {
        init_hop(executor, &executor->hops[(*next)++], index, table->places[i], first_message, feed,
                 feed < 0 && transfer.parent == XM_PARENT_SOURCE);
    }
}

/* Lists for every hop which hops it feeds. */
static void link_dependants(xm_executor_t *executor)
{
    int64_t next = 0;

    for (int64_t i = 0; i < executor->hop_count; ++i) {
        if (executor->hops[i].feed >= 0) {
            ++executor->hops[executor->hops[i].feed].dependant_count;
        }
    }
    for (int64_t i = 0; i < executor->hop_count; ++i) {
        executor->hops[i].dependants = next;
        next += executor->hops[i].dependant_count;
        executor->hops[i].dependant_count = 0;
    }
    for (int64_t i = 0; i < executor->hop_count; ++i) {
        if (executor->hops[i].feed >= 0) {
            hop_t *feed = &executor->hops[executor->hops[i].feed];

            executor->dependants[feed->dependants + feed->dependant_count++] = i;
        }
    }
}

xm_status_t xm_executor_list_hops(xm_executor_t *executor)
{
    route_table_t table;
    int64_t count = xm_plan_transfer_count(executor->plan), message = 0;
    xm_status_t status;

    XM_TRY(read_routes(executor->plan, executor->transport->rank, &table));
    status = allocate_hops(executor, &table);
    executor->hop_count = executor->copy_count = 0;
    for (int64_t t = next_of(executor, 0); status == XM_OK && t < count;
         t = next_of(executor, t + 1)) {
        const xm_transfer_t transfer = xm_plan_transfer(executor->plan, t);
        const xm_route_t *route = xm_plan_route(executor->plan, transfer.route);

        add_transfer(executor, &table, t, message);
        if (!xm_transfer_is_copy(&transfer, route)) {
            message += xm_plan_chunks(executor->plan, t) * route->count;
        }
    }
    link_dependants(executor);
    free_routes(&table);
    return status;
}

/* The peer of a hop. */
static int peer_of(const xm_executor_t *executor, const hop_t *hop, bool *sends)
{
    const xm_transfer_t transfer = xm_plan_transfer(executor->plan, hop->transfer);
    const xm_route_t *route = xm_plan_route(executor->plan, transfer.route);
    int place = (int)(hop->number - xm_plan_first_hop(executor->plan, hop->transfer));

    *sends = route->ranks[place] != executor->transport->rank;
    return *sends ? route->ranks[place] : xm_hop_sender(&transfer, route, place);
}

/* Finds or opens the lane of every hop and counts what goes through it. */
static void assign_lanes(xm_executor_t *executor, int *lane_of)
{
    int rank = executor->transport->rank, ranks = executor->transport->size;

    for (int64_t i = 0; i < executor->hop_count; ++i) {
        hop_t *hop = &executor->hops[i];
        bool sends;
        int peer = peer_of(executor, hop, &sends), *index = &lane_of[peer + (sends ? ranks : 0)];
        lane_t *lane;

        if (peer == rank) {
            continue; /* a copy */
        }
        if (*index < 0) {
            *index = executor->lane_count++;
            executor->lanes[*index] = (lane_t){.executor = executor, .peer = peer};
            if (sends) {
                executor->lanes[*index].kind = xm_executor_lane_is_inside(&executor->lanes[*index])
                                                   ? LANE_OUTGOING
                                                   : LANE_CROSSING;
            }
        }
        lane = &executor->lanes[*index];
        hop->lane = *index;
        hop->packs = !xm_view_chunks_contiguous(&hop->view, hop->first, hop->chunk);
        ++lane->item_count;
        lane->chunk_count += hop->chunks;
    }
}

static xm_status_t size_lanes(xm_executor_t *executor)
{
    int64_t items = 0, slots = 0;

    for (int l = 0; l < executor->lane_count; ++l) {
        lane_t *lane = &executor->lanes[l];
        int window = executor->window * ((lane_sends(lane) ? 1 : RECEIVE_AHEAD) +
                                         (executor->verify == XM_VERIFY_CHUNK ? PROOF_BEHIND : 0));

        if (lane->chunk_count > LANE_CHUNKS) {
            return XM_UNSUPPORTED(
                "rank %d would exchange %" PRId64
                " chunks with rank %d, more than %d: make the plan with larger ones",
                executor->transport->rank, lane->chunk_count, lane->peer, LANE_CHUNKS);
        }
        lane->slot_count = (int)min_of(window, lane->chunk_count);
        items += lane->item_count;
        slots += lane->slot_count;
    }
    executor->items = malloc(((size_t)items + 1) * sizeof(*executor->items));
    executor->slots = calloc((size_t)slots + 1, sizeof(*executor->slots));
    executor->ready = malloc(((size_t)executor->lane_count * LANE_KINDS + 1) * sizeof(lane_t *));
    if (executor->items == NULL || executor->slots == NULL || executor->ready == NULL) {
        return XM_NO_MEMORY("%" PRId64 " chunks in flight", slots);
    }
    return XM_OK;
}

/* Gives every lane its share of the common arrays and lists its hops. */
static void fill_lanes(xm_executor_t *executor)
{
    int64_t *items = executor->items;
    slot_t *slots = executor->slots;

    for (int k = 0; k < LANE_KINDS; ++k) {
        executor->heaps[k].lanes = executor->ready + (ptrdiff_t)k * executor->lane_count;
    }
    for (int l = 0; l < executor->lane_count; ++l) {
        lane_t *lane = &executor->lanes[l];

        lane->items = items;
        items += lane->item_count;
        lane->item_count = 0;
        lane->slots = slots;
        slots += lane->slot_count;
        for (int s = 0; s < lane->slot_count; ++s) {
            lane->slots[s].lane = lane;
            lane->slots[s].op.arg = &lane->slots[s];
        }
    }
    for (int64_t i = 0; i < executor->hop_count; ++i) {
        if (executor->hops[i].lane >= 0) {
            lane_t *lane = &executor->lanes[executor->hops[i].lane];

            lane->items[lane->item_count++] = i;
        }
    }
}

xm_status_t xm_executor_make_lanes(xm_executor_t *executor)
{
    size_t ranks = (size_t)executor->transport->size;
    int *lane_of = malloc(2 * ranks * sizeof(int)); /* by peer: incoming, then outgoing */
    xm_status_t status;

    executor->lanes = calloc(2 * ranks, sizeof(*executor->lanes));
    if (lane_of == NULL || executor->lanes == NULL) {
        free(lane_of);
        return XM_NO_MEMORY("%zu peers", ranks);
    }
    memset(lane_of, -1, 2 * ranks * sizeof(int));
    assign_lanes(executor, lane_of);
    status = size_lanes(executor);
    if (status == XM_OK) {
        fill_lanes(executor);
    }
    free(lane_of);
    return status;
}
