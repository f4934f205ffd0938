/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The all-gather baselines as they were published (MLSys'23, section 3.1, and Alpa's code), so
 * that the paper's figures can be repeated. The sender sends every receiver a part of the slice;
 * when all parts are there, the receivers pass them round a ring. Our own `allgather` differs in
 * all that costs time: it cuts any count, sends each part over one chain of hosts, and overlaps
 * the chains.
 */
#include "resharding/plan/plan_private.h"

/* Receivers of one task that gather together: those of one host, or all. */
typedef struct {
    const int *ranks;
    int count;
    int parts; /* divides the count; each part goes to count / parts receivers */
} group_t;

/*
 * Alpa cuts one dimension after the other into as many equal parts as its extent and the receivers
 * that are left over have in common, which is all that the receivers and the elements have in
 * common. What nothing divides is sent to several receivers: with three receivers and 2^28
 * elements, all of the slice goes to each.
 */
static int count_parts(int64_t elements, int receivers)
{
    int64_t parts = receivers;

    while (elements != 0) {
        int64_t rest = parts % elements;

        parts = elements;
        elements = rest;
    }
    return (int)parts;
}

static group_t find_group(const xm_plan_t *plan, const xm_class_t *class, int64_t task, int host)
{
    int first = host < 0 ? 0 : class->remote_first[host];
    int end = host < 0 ? class->remote_count : class->remote_first[host + 1];

    return (group_t){class->remote + first, end - first,
                     count_parts(plan->tasks[task].elements, end - first)};
}

/* The sum cannot exceed one copy for each receiver, which the plan has found to fit. */
int64_t xm_published_bytes(const xm_plan_t *plan, const xm_class_t *class, int64_t task, int host)
{
    group_t group = find_group(plan, class, task, host);
    int64_t part = xm_task_bytes(plan, task) / group.parts;
    bool crosses = host < 0 && class->remote_host_count > 1;

    return part * group.count + (crosses ? part * (group.parts - 1) : 0);
}

/* Appends elements of a task, if any, along the route of so many ranks that lies in the emitter. */
static xm_status_t append_range(xm_transfer_emitter_t *emitter, xm_transfer_t transfer,
                                int64_t first, int64_t end, int count)
{
    const xm_plan_t *plan = emitter->plan;

    if (first == end) {
        return XM_OK;
    }
    XM_TRY(xm_builder_route(emitter->builder, count, emitter->ranks, emitter->parents,
                            &transfer.route));
    transfer.first = first;
    transfer.end = end;
    emitter->sent[transfer.sender] +=
        (end - first) * plan->tensors[plan->tasks[transfer.task].tensor].element_size;
    return xm_builder_append(emitter->builder, &transfer, NULL);
}

/*
 * Passes the parts of neighbours in a group round, each from the rank that it was sent to. A
 * collective begins when all its ranks have come to it, hence the order: the very last element that
 * is sent goes round first, and no link of the ring passes anything on before. The rest follows
 * from the last part to the first, so that from then on every link always has something to carry.
 */
static xm_status_t emit_ring(xm_transfer_emitter_t *emitter, int64_t task, const group_t *group,
                             int first_rank, int64_t first_sent)
{
    int64_t elements = emitter->plan->tasks[task].elements / group->parts;
    const int *ranks = group->ranks + first_rank;

    for (int part = group->parts - 1; group->parts > 1 && part >= 0; --part) {
        xm_transfer_t transfer = {
            .task = task, .parent = first_sent + first_rank + part, .sender = ranks[part]};
        int64_t end = (part + 1) * elements;
        bool last = part == group->parts - 1;

        for (int i = 0; i < group->parts - 1; ++i) {
            emitter->ranks[i] = ranks[(part + 1 + i) % group->parts];
            emitter->parents[i] = i - 1;
        }
        if (last) {
            XM_TRY(append_range(emitter, transfer, end - 1, end, group->parts - 1));
        }
        XM_TRY(append_range(emitter, transfer, end - elements, last ? end - 1 : end,
                            group->parts - 1));
    }
    return XM_OK;
}

/* Neighbours get different parts, so the rings of a group that is not cut as finely as it has
 * receivers stay inside a host where they can. */
xm_status_t xm_strategy_published_emit(xm_transfer_emitter_t *emitter, int64_t task,
                                       int sender_rail, int host)
{
    const xm_class_t *class = &emitter->classes->classes[emitter->classes->class_of[task]];
    group_t group = find_group(emitter->plan, class, task, host);
    xm_transfer_t transfer = {.task = task,
                              .parent = -1,
                              .sender = xm_transfer_emitter_pick_rail(emitter, class, sender_rail)};
    int64_t first_sent = emitter->builder->transfer_count;
    int64_t elements = emitter->plan->tasks[task].elements / group.parts;

    for (int i = 0; i < group.count; ++i) {
        int64_t first = i % group.parts * elements;

        emitter->ranks[0] = group.ranks[i];
        emitter->parents[0] = -1;
        XM_TRY(append_range(emitter, transfer, first, first + elements, 1));
    }
    for (int i = 0; i < group.count; i += group.parts) {
        XM_TRY(emit_ring(emitter, task, &group, i, first_sent));
    }
    return XM_OK;
}
