/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Forwarding: a rank that neither needs a box nor holds it passes it on, so that a host's other
 * rails carry a part of it. There is no tile to receive into, so each chunk stays in the pack
 * buffer it came in until all that this rank feeds have had it.
 *
 * Why that cannot block (execute.h): the earliest unfinished message of all has everything before
 * it passed on already, as a chunk's messages follow each other in the order of messages; so
 * nothing before it holds a buffer, and what is behind it never takes the reserve.
 */
#include <stdlib.h>

#include "resharding/execute/execute_private.h"

/* Windows of chunks of a lane that may be here at once: some arrive, some leave. */
enum { DEPTH = 2 };

typedef struct {
    char *packed;
    size_t length;
    int64_t left; /* of those that have yet to get it */
} kept_t;

struct forward {
    hop_t *incoming;
    int64_t depth;
    int64_t
        passed;   /* chunks that all have got; the lanes keep their order, so these are the first */
    kept_t *kept; /* ring of `depth` */
};

static bool needs(const xm_executor_t *executor, const hop_t *hop, int rank)
{
    const xm_unit_task_t task =
        xm_plan_task(executor->plan, xm_plan_transfer(executor->plan, hop->transfer).task);

    return xm_layout_tile_of_rank(xm_plan_tensor_dst(executor->plan, task.tensor), rank) ==
           task.dst_tile;
}

/* The sender of a transfer has its box in a tile, as the verifier knows; only ranks inside of a
 * route may have none. */
static void mark(xm_executor_t *executor, hop_t *hop)
{
    const xm_transfer_t transfer = xm_plan_transfer(executor->plan, hop->transfer);
    const xm_route_t *route = xm_plan_route(executor->plan, transfer.route);
    int place = (int)(hop->number - xm_plan_first_hop(executor->plan, hop->transfer));

    hop->in_tiles =
        needs(executor, hop, route->ranks[place]) &&
        (route->parents[place] < 0 || needs(executor, hop, route->ranks[route->parents[place]]));
}

bool xm_forward_takes(const xm_executor_t *executor, const hop_t *hop)
{
    return needs(executor, hop, executor->transport->rank);
}

static bool is_forwarded(const xm_executor_t *executor, const hop_t *hop)
{
    return hop->lane >= 0 && !lane_sends(&executor->lanes[hop->lane]) &&
           !xm_forward_takes(executor, hop);
}

/* The simulation of plans knows no limit, and a fabric that keeps its order is to be as exact. */
int64_t xm_forward_depth(const lane_t *lane)
{
    return lane->executor->ordered ? lane->chunk_count : DEPTH * (int64_t)lane->slot_count;
}

/* Takes the hop out of tiles: all of it goes by pack buffers, and what it feeds needs none. */
static xm_status_t add_forward(xm_executor_t *executor, hop_t *hop)
{
    forward_t *forward = &executor->forwards[executor->forward_count++];

    *forward =
        (forward_t){.incoming = hop,
                    .depth = min_of(hop->chunks, xm_forward_depth(&executor->lanes[hop->lane]))};
    hop->forward = forward;
    hop->packs = hop->staged = true;
    for (int64_t i = 0; i < hop->dependant_count; ++i) {
        hop_t *fed = &executor->hops[executor->dependants[hop->dependants + i]];

        fed->forward = forward;
        fed->packs = false;
    }
    forward->kept = calloc((size_t)forward->depth, sizeof(*forward->kept));
    return forward->kept != NULL ? XM_OK : XM_ERR_NO_MEMORY;
}

xm_status_t xm_forwards_create(xm_executor_t *executor, bool encoded)
{
    int64_t count = 0;
    xm_status_t status = XM_OK;

    for (int64_t i = 0; i < executor->hop_count; ++i) {
        mark(executor, &executor->hops[i]);
        if (encoded && executor->hops[i].lane >= 0) { /* never sent out of a tile, nor into one */
            executor->hops[i].packs = executor->hops[i].staged = true;
        }
        count += is_forwarded(executor, &executor->hops[i]);
    }
    if (count == 0) {
        return XM_OK;
    }
    executor->forwards = malloc((size_t)count * sizeof(*executor->forwards));
    status = executor->forwards != NULL ? XM_OK : XM_ERR_NO_MEMORY;
    for (int64_t i = 0; i < executor->hop_count && status == XM_OK; ++i) {
        if (is_forwarded(executor, &executor->hops[i])) {
            status = add_forward(executor, &executor->hops[i]);
        }
    }
    return status == XM_OK ? XM_OK
                           : xm_error_set(status, "no memory for what rank %d passes on",
                                          executor->transport->rank);
}

void xm_forwards_destroy(xm_executor_t *executor)
{
    for (int64_t f = 0; f < executor->forward_count; ++f) {
        free(executor->forwards[f].kept);
    }
    free(executor->forwards);
}

static kept_t *kept_of(const forward_t *forward, int64_t chunk)
{
    return &forward->kept[chunk % forward->depth];
}

static void release(xm_executor_t *executor, const forward_t *forward, kept_t *kept)
{
    xm_executor_return_pack_buffer(&executor->lanes[forward->incoming->lane], kept->packed);
    kept->packed = NULL;
}

void xm_forwards_start(xm_executor_t *executor)
{
    for (int64_t f = 0; f < executor->forward_count; ++f) {
        forward_t *forward = &executor->forwards[f];

        forward->passed = 0;
        for (int64_t i = 0; i < forward->depth; ++i) {
            if (forward->kept[i].packed != NULL) {
                release(executor, forward, &forward->kept[i]);
            }
        }
    }
}

bool xm_forward_has_room(const hop_t *hop, int64_t chunk)
{
    return chunk < hop->forward->passed + hop->forward->depth;
}

void xm_forward_keep(const hop_t *hop, int64_t chunk, char *packed, size_t length)
{
    *kept_of(hop->forward, chunk) = (kept_t){packed, length, hop->dependant_count};
}

char *xm_forward_buffer(const hop_t *hop, int64_t chunk, size_t *length)
{
    *length = kept_of(hop->forward, chunk)->length;
    return kept_of(hop->forward, chunk)->packed;
}

void xm_forward_passed(xm_executor_t *executor, const hop_t *hop, int64_t chunk)
{
    forward_t *forward = hop->forward;
    kept_t *kept = kept_of(forward, chunk);

    if (--kept->left == 0) {
        release(executor, forward, kept);
        ++forward->passed;
        xm_executor_revisit(&executor->lanes[forward->incoming->lane]);
    }
}
