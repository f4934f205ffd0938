#include "resharding/execute_private.h"

#include <inttypes.h>
#include <stdio.h>

#include "comm/config.h"
#include "comm/log.h"

char *xm_executor_describe_wait(const xm_executor_t *executor, char *buffer, size_t size)
{
    if (!xm_executor_describe_directs(executor, buffer, size) &&
        !xm_executor_describe_shares(executor, buffer, size)) {
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
            char path[128];

            xm_transport_path(executor->transport, lane->peer, path, sizeof(path));
            (void)snprintf(buffer, size,
                           "waits for chunk %" PRId64 " of %" PRId64 " of transfer %" PRId64
                           " (tensor %.100s) %s rank %d%s%s",
                           slot->chunk + 1, slot->hop->chunks, slot->hop->transfer,
                           xm_plan_tensor_name(executor->plan, slot->hop->tensor),
                           lane_sends(lane) ? "to" : "from", lane->peer,
                           path[0] != '\0' ? " over " : "", path);
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

/* The same without waiting: a fault that is known already. */
static xm_status_t worker_verdict(xm_worker_t *worker, xm_status_t status)
{
    char sentence[1024];
    xm_status_t verdict;

    (void)snprintf(sentence, sizeof(sentence), "%s", xm_last_error());
    verdict = xm_worker_progress(worker);
    return verdict < 0 ? verdict : xm_error_set(status, "%s", sentence);
}

static void log_line(void *arg, const char *text)
{
    xm_log_warn("watchdog: rank %d %s", *(const int *)arg, text);
}

/* The watchdog: notices that nothing moves, and says so once per stall. `limit` is in ns; 0: off.
 */
static void look_for_stall(int64_t limit, const xm_worker_t *worker, xm_executor_t *executor)
{
    watch_t *watch = &executor->watch;
    int64_t now = xm_worker_now(worker);
    int rank = xm_worker_rank(worker);

    if (limit == 0) {
        return;
    }
    if (watch->steps != executor->steps) {
        watch->steps = executor->steps;
        watch->since_ns = now;
        watch->told = false;
    } else if (!watch->told && now - watch->since_ns >= limit) {
        watch->told = true;
        xm_log_warn("watchdog: rank %d: nothing of a reshard has moved for %.1f s", rank,
                    (double)(now - watch->since_ns) * 1e-9);
        xm_executor_describe(executor, worker, log_line, &rank);
    }
}

/* Sleeps until something happens, at most until the deadline. */
static xm_status_t wait_watched(xm_worker_t *worker, xm_executor_t *executor, int64_t limit,
                                int64_t deadline)
{
    const watch_t *watch = &executor->watch;
    int64_t until = deadline;
    xm_status_t status;

    if (!xm_executor_may_sleep(executor)) {
        status = xm_worker_progress(worker);
    } else {
        if (limit > 0 && !watch->told && watch->since_ns + limit < until) {
            until = watch->since_ns + limit;
        }
        status = xm_worker_wait(worker, until);
    }
    look_for_stall(limit, worker, executor);
    if (status == XM_ERR_TIMEOUT && xm_worker_now(worker) <= deadline) {
        return XM_OK;
    }
    return status == XM_OK && xm_worker_now(worker) > deadline ? XM_ERR_TIMEOUT : status;
}

/* Ends a run whose wait has failed, with the sentence that says most. */
static xm_status_t give_up(xm_worker_t *worker, xm_executor_t *executor, xm_status_t waited)
{
    char sentence[1024], waits[512];

    if (waited == XM_ERR_TIMEOUT && executor->result < 0) {
        /* It failed before, and what was cancelled has not ended yet. */
        waited = executor->result;
        (void)snprintf(sentence, sizeof(sentence), "%s", executor->reason);
    } else if (waited == XM_ERR_TIMEOUT) {
        (void)snprintf(sentence, sizeof(sentence), "rank %d %s after %.1f s",
                       xm_worker_rank(worker),
                       xm_executor_describe_wait(executor, waits, sizeof(waits)),
                       (double)(xm_worker_now(worker) - executor->watch.start_ns) * 1e-9);
    } else {
        (void)snprintf(sentence, sizeof(sentence), "%s", xm_last_error());
    }
    xm_executor_abandon(executor);
    return xm_error_set(waited, "%s", sentence);
}

xm_status_t xm_executor_wait(xm_worker_t *worker, xm_executor_t *executor, int64_t until,
                             int64_t deadline)
{
    int64_t limit = (int64_t)(xm_config_seconds(XM_CONFIG_WATCHDOG) * 1e9);
    int64_t stop = until < deadline ? until : deadline;
    xm_status_t status, waited;

    if (executor->watch.run != executor->runs) {
        int64_t now = xm_worker_now(worker);

        executor->watch = (watch_t){
            .run = executor->runs, .start_ns = now, .since_ns = now, .steps = executor->steps};
    }
    while ((status = xm_executor_advance(executor)) == XM_IN_PROGRESS) {
        waited = wait_watched(worker, executor, limit, stop);
        if (waited == XM_OK) {
            continue;
        }
        if (waited == XM_ERR_TIMEOUT && xm_worker_now(worker) <= deadline) {
            return XM_IN_PROGRESS;
        }
        return give_up(worker, executor, waited);
    }
    if (status < 0) {
        /* Somebody else may have seen the end before: a guest of the worker. */
        (void)xm_error_set(status, "%s", executor->reason);
    }
    if (status == XM_ERR_CANCELED) {
        /* By the caller, or because the group failed before the run began: that has a reason. */
        return worker_verdict(worker, status);
    }
    return status < 0 ? xm_reshard_name_culprit(worker, status) : status;
}

xm_status_t xm_executor_run(xm_worker_t *worker, xm_executor_t *executor, int64_t deadline)
{
    xm_status_t status = xm_executor_post(executor);

    return status < 0 ? status : xm_executor_wait(worker, executor, INT64_MAX, deadline);
}
