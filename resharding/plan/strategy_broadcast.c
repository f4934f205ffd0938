/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The broadcast strategy: one chain with everything.
 */
#include "resharding/plan/strategy_chain.h"

/*
 * A chain over the receiving hosts: the sender feeds one rank of the first host, that
 * rank feeds one of the second, and so on; each of these heads also starts a chain inside
 * its host. All hops are pipelined by chunk, so the whole takes little longer than one
 * hop (MLSys'23, section 3.1, "broadcast").
 */
xm_status_t xm_strategy_broadcast_emit(xm_transfer_emitter_t *emitter, int64_t task,
                                       int sender_host)
{
    const xm_plan_t *plan = emitter->plan;

    return xm_chain_emit(emitter, task, sender_host, 0, plan->tasks[task].elements);
}
