#include "resharding/plan_private.h"

/* Every task is sent from its first holder's host, in the given order (MLSys'23 section 5.3.1,
 * "Naive"). */
xm_status_t xm_schedule_naive(const xm_plan_t *plan, const xm_network_t *network, xm_work_t *work,
                              int64_t count)
{
    for (int64_t i = 0; i < count; ++i) {
        int holder_count;
        const int *holders =
            xm_layout_replicas(plan->src, plan->tasks[work[i].task].src_tile, &holder_count);

        work[i].sender_host = xm_network_host_of(network, holders[0]);
    }
    return XM_OK;
}
