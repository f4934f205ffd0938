#include "resharding/plan_private.h"

/* One direct message per receiver, from the least loaded holder of the chosen host. */
xm_status_t xm_strategy_send_recv_emit(xm_plan_t *plan, xm_device_load_t *load,
                                       const xm_work_t *work, int *receivers)
{
    int holder_count;
    const int *holders =
        xm_layout_replicas(plan->src, plan->tasks[work->task].src_tile, &holder_count);

    for (int i = 0; i < work->receiver_count; ++i) {
        int sender = xm_device_load_pick(load, holders, holder_count, work->sender_host);
        int64_t index;
        xm_status_t status = xm_plan_append(plan, work->task, sender, receivers[i], -1, &index);

        if (status < 0) {
            return status;
        }
        load->sent[sender] += work->bytes;
    }
    return XM_OK;
}
