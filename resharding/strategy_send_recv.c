#include "resharding/plan_private.h"

xm_status_t xm_strategy_send_recv_emit(xm_emitter_t *emitter, int64_t task, int sender_host,
                                       int receiver)
{
    const xm_class_t *class = &emitter->classes->classes[emitter->classes->class_of[task]];
    int64_t bytes = xm_task_bytes(emitter->plan, task);
    int parent = -1;
    xm_transfer_t transfer = {
        .task = task,
        .parent = -1,
        .end = emitter->plan->tasks[task].elements,
        .sender = xm_emitter_pick(emitter, class->holders, class->holder_count, sender_host)};
    xm_status_t status = xm_draft_route(emitter->draft, 1, &receiver, &parent, &transfer.route);

    if (status < 0) {
        return status;
    }
    emitter->sent[transfer.sender] += bytes;
    return xm_draft_append(emitter->draft, &transfer, NULL);
}
