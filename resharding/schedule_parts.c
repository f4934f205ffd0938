#include <inttypes.h>
#include <stdlib.h>

#include "resharding/schedule_private.h"
#include "resharding/strategy_chain.h"

/* Where the transfers of a hop are, for the hops that pass its data on. */
typedef struct {
    int64_t first_transfer, end_transfer;
} emitted_t;

/* A chunk must not be longer than what a relay waits for. */
static void set_part_chunks(const xm_scheduling_t *s, const xm_hop_t *hops, int64_t count,
                            xm_draft_t *draft)
{
    for (int64_t i = 0; i < count; ++i) {
        const xm_class_t *class = &s->classes->classes[s->items[hops[i].demand].class];

        if (hops[i].parent < 0) {
            continue;
        }
        for (int64_t k = 0; k < class->task_count; ++k) {
            xm_scheduling_set_chunk(s, draft, s->classes->tasks[class->first_task + k],
                                    hops[i].end - hops[i].first);
        }
    }
}

/* The transfer of hop `parent` that is of this task. */
static int64_t find_parent(const xm_draft_t *draft, const emitted_t *parent, int64_t task)
{
    int64_t low = parent->first_transfer, high = parent->end_transfer;

    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;

        if (draft->transfers[middle].task <= task) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

/* The route inside the receiving host: the device that gets the data, then its neighbours. */
static xm_status_t part_route(xm_emitter_t *emitter, const xm_class_t *class, const xm_item_t *item,
                              int host, int *route)
{
    int at, low = 0, high = class->remote_host_count, count;

    if (item->receiver >= 0) {
        emitter->ranks[0] = item->receiver;
        emitter->parents[0] = -1;
        return xm_draft_route(emitter->draft, 1, emitter->ranks, emitter->parents, route);
    }
    while (low < high) {
        int middle = low + (high - low) / 2;

        if (class->remote_hosts[middle] < host) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    count = class->remote_first[low + 1] - class->remote_first[low];
    at = xm_chain_host(emitter, class->remote + class->remote_first[low], count,
                       (int)(emitter->turn++ % (uint64_t)count), 0, -1);
    return xm_draft_route(emitter->draft, at, emitter->ranks, emitter->parents, route);
}

/* Cuts a hop of a class's bytes into transfers of its tasks. */
static xm_status_t emit_hop(xm_scheduling_t *s, xm_emitter_t *emitter, const xm_hop_t *hop,
                            emitted_t *own, const emitted_t *parent)
{
    const xm_item_t *item = &s->items[hop->demand];
    const xm_class_t *class = &s->classes->classes[item->class];
    xm_draft_t *draft = emitter->draft;
    xm_transfer_t transfer = {.parent = -1};
    int64_t offset = 0;
    xm_status_t status;

    status = part_route(emitter, class, item, hop->receiver, &transfer.route);
    if (status == XM_OK && hop->parent < 0) {
        transfer.sender =
            xm_emitter_pick(emitter, class->holders, class->holder_count, hop->sender);
        emitter->sent[transfer.sender] += hop->end - hop->first;
    }
    own->first_transfer = draft->transfer_count;
    for (int64_t k = 0; status == XM_OK && k < class->task_count && offset < hop->end; ++k) {
        int64_t bytes, size;

        transfer.task = s->classes->tasks[class->first_task + k];
        bytes = xm_task_bytes(s->plan, transfer.task);
        size = s->plan->tensors[s->plan->tasks[transfer.task].tensor].element_size;
        transfer.first = hop->first > offset ? (hop->first - offset) / size : 0;
        transfer.end = hop->end < offset + bytes ? (hop->end - offset) / size : bytes / size;
        offset += bytes;
        if (transfer.first >= transfer.end) {
            continue;
        }
        if (hop->parent >= 0) {
            transfer.parent = find_parent(draft, parent, transfer.task);
            transfer.sender =
                xm_draft_route_of(draft, &draft->transfers[transfer.parent])->ranks[0];
        }
        status = xm_draft_append(draft, &transfer, NULL);
    }
    own->end_transfer = draft->transfer_count;
    return status;
}

xm_status_t xm_schedule_parts(xm_scheduling_t *s, xm_emitter_t *emitter)
{
    xm_problem_t problem = {s->params->network, s->demands, s->count};
    xm_openshop_params_t params = {.seed = s->params->seed};
    xm_hop_t *hops = NULL;
    emitted_t *emitted = NULL;
    int64_t count = 0, makespan;
    xm_status_t status;

    if (s->count == 0) {
        return XM_OK;
    }
    status = xm_schedule_openshop(&problem, &params, &hops, &count, &makespan);
    if (status < 0) {
        return status;
    }
    emitted = malloc(((size_t)count + 1) * sizeof(*emitted));
    if (emitted == NULL) {
        status = xm_error_set(XM_ERR_NO_MEMORY, "no memory for %" PRId64 " hops", count);
        goto free_hops;
    }
    set_part_chunks(s, hops, count, emitter->draft);
    for (int64_t i = 0; status == XM_OK && i < count; ++i) {
        status = emit_hop(s, emitter, &hops[i], &emitted[i],
                          hops[i].parent < 0 ? NULL : &emitted[hops[i].parent]);
    }
    free(emitted);

free_hops:
    free(hops);
    return status;
}
