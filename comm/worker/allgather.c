/* SPDX-License-Identifier: Apache-2.0 */
/* An allgather in three steps, for callers that look after other things meanwhile, such as an
 * event loop of their own. They only check their arguments and pass on: the bootstrap keeps the
 * state. */
#include "comm/base.h"
#include "comm/worker/worker_private.h"

xm_status_t xm_worker_allgather_post(xm_worker_t *worker, const void *send, void *receive,
                                     size_t length)
{
    if (XM_IS_NULL(worker) || XM_IS_NULL(send) || XM_IS_NULL(receive)) {
        return XM_ERR_INVALID_ARGUMENT;
    }
    return xm_bootstrap_allgather_post(worker->bootstrap, send, receive, length);
}

xm_status_t xm_worker_allgather_test(xm_worker_t *worker)
{
    return XM_IS_NULL(worker) ? XM_ERR_INVALID_ARGUMENT
                              : xm_bootstrap_allgather_test(worker->bootstrap);
}

xm_status_t xm_worker_allgather_abandon(xm_worker_t *worker, double waited)
{
    return XM_IS_NULL(worker) ? XM_ERR_INVALID_ARGUMENT
                              : xm_bootstrap_allgather_abandon(worker->bootstrap, waited);
}
