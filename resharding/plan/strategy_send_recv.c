/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The send_recv strategy: one message per receiver, from the least loaded rank of the
 * sending host. It is the baseline of the paper, and the best choice where there is one
 * receiver.
 */
#include "resharding/plan/plan_private.h"

xm_status_t xm_strategy_send_recv_emit(xm_transfer_emitter_t *emitter, int64_t task,
                                       int sender_rail, int receiver)
{
    const xm_class_t *class = &emitter->classes->classes[emitter->classes->class_of[task]];

    return xm_emit_single(emitter, task, xm_transfer_emitter_pick_rail(emitter, class, sender_rail),
                          receiver);
}
