#include "resharding/execute_private.h"

#include <inttypes.h>
#include <stdio.h>

char *xm_executor_describe_wait(const xm_executor_t *executor, char *buffer, size_t size)
{
    if (!xm_executor_describe_shares(executor, buffer, size)) {
        (void)snprintf(buffer, size, "has nothing in flight");
    }
    for (int64_t n = 0; n < executor->note_count; ++n) {
        const note_t *note = &executor->notes[n];

        if (note->busy && note->awaited) {
            (void)snprintf(buffer, size,
                           "waits for rank %d to pass the turn for transfer %" PRId64
                           " (tensor %.100s)",
                           note->peer, executor->hops[note->hop].transfer,
                           xm_plan_tensor_name(executor->plan, executor->hops[note->hop].tensor));
        } else if (note->busy) {
            (void)snprintf(buffer, size, "passes a turn to rank %d", note->peer);
        }
    }
    for (int i = 0; i < executor->lane_count; ++i) {
        const lane_t *lane = &executor->lanes[i];
        const slot_t *slot = &lane->slots[lane->oldest];

        if (lane->in_flight > 0) {
            (void)snprintf(buffer, size,
                           "waits for chunk %" PRId64 " of %" PRId64 " of transfer %" PRId64
                           " (tensor %.100s) %s rank %d",
                           slot->chunk + 1, slot->hop->chunks, slot->hop->transfer,
                           xm_plan_tensor_name(executor->plan, slot->hop->tensor),
                           lane_sends(lane) ? "to" : "from", lane->peer);
            if (!lane_sends(lane)) {
                break; /* a missing arrival says more than a blocked departure */
            }
        }
    }
    return buffer;
}

xm_status_t xm_reshard_name_culprit(xm_worker_t *worker, xm_status_t status)
{
    int64_t deadline = xm_worker_now(worker) + INT64_C(2000000000);
    char sentence[1024];
    xm_status_t verdict = XM_OK;

    (void)snprintf(sentence, sizeof(sentence), "%s", xm_last_error());
    while (verdict == XM_OK) {
        verdict = xm_worker_wait(worker, deadline);
    }
    if (verdict == XM_ERR_TIMEOUT) {
        return xm_error_set(status, "%s", sentence);
    }
    return verdict;
}

xm_status_t xm_reshard_run(xm_worker_t *worker, xm_executor_t *executor, int64_t deadline)
{
    xm_status_t status = xm_executor_post(executor), waited = XM_OK;
    int64_t start = xm_worker_now(worker);
    char sentence[1024], waits[256];

    if (status < 0) {
        return status;
    }
    while ((status = xm_executor_advance(executor)) == XM_IN_PROGRESS) {
        waited = xm_executor_may_sleep(executor) ? xm_worker_wait(worker, deadline)
                                                 : xm_worker_progress(worker);
        if (waited == XM_OK && xm_worker_now(worker) > deadline) {
            waited = XM_ERR_TIMEOUT;
        }
        if (waited == XM_OK) {
            continue;
        }
        if (waited == XM_ERR_TIMEOUT && executor->result < 0) {
            /* It failed before, and what was cancelled has not ended yet. */
            waited = executor->result;
            (void)snprintf(sentence, sizeof(sentence), "%s", executor->reason);
        } else if (waited == XM_ERR_TIMEOUT) {
            (void)snprintf(sentence, sizeof(sentence), "rank %d %s after %.1f s",
                           xm_worker_rank(worker),
                           xm_executor_describe_wait(executor, waits, sizeof(waits)),
                           (double)(xm_worker_now(worker) - start) * 1e-9);
        } else {
            (void)snprintf(sentence, sizeof(sentence), "%s", xm_last_error());
        }
        xm_executor_abandon(executor);
        return xm_error_set(waited, "%s", sentence);
    }
    return status < 0 && status != XM_ERR_CANCELED ? xm_reshard_name_culprit(worker, status)
                                                   : status;
}
