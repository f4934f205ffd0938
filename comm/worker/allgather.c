/* SPDX-License-Identifier: Apache-2.0 */
/* Allgathers over the bootstrap: those that a worker waits for, whose transport makes progress
 * meanwhile, and the same in three steps, for callers that look after other things, such as an
 * event loop of their own. These only check their arguments and pass on: the bootstrap keeps the
 * state. */
#include "comm/base.h"
#include "comm/worker/worker_private.h"

/* Longest sleep while an allgather runs over a bootstrap that has no descriptor. */
static const int64_t oob_nap_ns = 1000000;

/* An allgather over the bootstrap during which the transport makes progress and faults are
 * heard. When a wait fails the allgather is tested once more, because it may have ended in the
 * same moment; only then it is given up. */
xm_status_t xm_worker_allgather_wait(xm_worker_t *worker, int64_t start, int64_t until)
{
    int64_t deadline = start + (int64_t)(worker->timeout * 1e9);
    int64_t longest_sleep = xm_bootstrap_fd(worker->bootstrap) < 0 ? oob_nap_ns : INT64_MAX;
    xm_status_t status, waited = XM_OK;
    bool late = false;

    while ((status = xm_bootstrap_allgather_test(worker->bootstrap)) == XM_IN_PROGRESS) {
        if (waited < 0) {
            status = xm_bootstrap_allgather_abandon(worker->bootstrap,
                                                    (double)(xm_worker_now(worker) - start) * 1e-9);
            break;
        }
        if (late) {
            return XM_IN_PROGRESS;
        }
        waited = xm_worker_wait_at_most(worker, until < deadline ? until : deadline, longest_sleep);
        late = xm_worker_now(worker) >= until;
        if (waited == XM_ERR_TIMEOUT && xm_worker_now(worker) < deadline) {
            waited = XM_OK;
        }
    }
    /* A failed wait explains more than the allgather that was given up because of it, unless it
     * only says that time is up: the allgather can tell which ranks were missing. */
    return waited < 0 && waited != XM_ERR_TIMEOUT && status < 0 ? xm_worker_fault_status(worker)
                                                                : status;
}

static xm_status_t allgather(xm_worker_t *worker, const void *send, void *receive, size_t length)
{
    int64_t start = xm_worker_now(worker);
    xm_status_t status = xm_worker_fault_status(worker);

    XM_THEN(status, xm_bootstrap_allgather_post(worker->bootstrap, send, receive, length));
    return status < 0 ? status : xm_worker_allgather_wait(worker, start, INT64_MAX);
}

xm_status_t xm_worker_barrier(xm_worker_t *worker)
{
    return allgather(worker, NULL, NULL, 0);
}

xm_status_t xm_worker_allgather(xm_worker_t *worker, const void *send, void *receive, size_t length)
{
    XM_NEED_ARGUMENTS(worker, send, receive);
    return allgather(worker, send, receive, length);
}

/* A rank that fails waits for the others to fail, too, so that none leaves while others still
 * need it. */
xm_status_t xm_worker_fail_together(xm_worker_t *worker, xm_status_t status)
{
    xm_error_t error;

    if (status < 0) {
        xm_error_save(&error, status);
        /* If this fails, somebody else has died since. */
        (void)xm_worker_barrier(worker);
        (void)xm_error_restore(&error);
    }
    return status;
}

xm_status_t xm_worker_allgather_post(xm_worker_t *worker, const void *send, void *receive,
                                     size_t length)
{
    XM_NEED_ARGUMENTS(worker, send, receive);
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
