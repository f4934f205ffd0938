#include "resharding/plan_private.h"

#include <stdlib.h>

/*
 * Each task in turn goes to the holding host that has the fewest bytes to send so far; the order
 * stays (MLSys'23 section 5.3.1, "Load balance only"). Loads are slice bytes, which is what the NIC
 * carries.
 */
xm_status_t xm_schedule_balance(const xm_plan_t *plan, const xm_network_t *network, xm_work_t *work,
                                int64_t count)
{
    int64_t *load = calloc((size_t)xm_network_hosts(network), sizeof(*load));

    if (load == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for the loads of %d hosts",
                            xm_network_hosts(network));
    }
    for (int64_t i = 0; i < count; ++i) {
        int holder_count, best = -1;
        const int *holders =
            xm_layout_replicas(plan->src, plan->tasks[work[i].task].src_tile, &holder_count);

        for (int h = 0; h < holder_count; ++h) {
            int host = xm_network_host_of(network, holders[h]);

            if (best < 0 || load[host] < load[best] || (load[host] == load[best] && host < best)) {
                best = host;
            }
        }
        work[i].sender_host = best;
        load[best] += work[i].bytes;
    }
    free(load);
    return XM_OK;
}
