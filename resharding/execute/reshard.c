/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a reshard on a worker and waits for it: progress, sleep, deadline, watchdog, and
 * the sentence when it fails. The executor only advances as far as it can without
 * blocking; what has to do with waiting is in this file.
 */
#include "resharding/execute/execute_private.h"

#include <crossmesh/group.h>
#include <stdio.h>

#include "comm/base.h"
#include "resharding/execute/checksum.h"

/*
 * Waits a little for the worker to learn which rank failed. A peer's death often shows
 * first as a broken connection, and "rank 3 died" helps more than "connection reset";
 * after two seconds the first sentence stands.
 */
xm_status_t xm_reshard_name_culprit(xm_worker_t *worker, xm_status_t status)
{
    int64_t deadline = xm_worker_now(worker) + INT64_C(2000000000);
    xm_status_t fault_status = XM_OK;
    xm_error_t error;

    xm_error_save(&error, status);
    while (fault_status == XM_OK) {
        fault_status = xm_worker_wait(worker, deadline);
    }
    return fault_status == XM_ERR_TIMEOUT ? xm_error_restore(&error) : fault_status;
}

/* The same without waiting, for a fault that the worker knows already. */
static xm_status_t worker_fault_status(xm_worker_t *worker, xm_status_t status)
{
    xm_status_t fault_status;
    xm_error_t error;

    xm_error_save(&error, status);
    fault_status = xm_worker_progress(worker);
    return fault_status < 0 ? fault_status : xm_error_restore(&error);
}

static void log_line(void *arg, const char *text)
{
    xm_log_warn("watchdog: rank %d %s", *(const int *)arg, text);
}

/*
 * The watchdog notices that nothing moves and says so once per stall. `limit` is in ns; 0
 * turns it off. It counts the executor's steps instead of bytes, so a run that is slow
 * but alive stays quiet.
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
        watch->reported = false;
    } else if (!watch->reported && now - watch->since_ns >= limit) {
        watch->reported = true;
        xm_log_warn("watchdog: rank %d: nothing of a reshard has moved for %.1f s", rank,
                    (double)(now - watch->since_ns) * 1e-9);
        xm_executor_describe(executor, worker, log_line, &rank);
    }
}

/* Sleeps until something happens, at most until the deadline, and wakes earlier when the
 * watchdog has to look. A timeout before the deadline is the watchdog's and no failure. */
static xm_status_t wait_watched(xm_worker_t *worker, xm_executor_t *executor, int64_t limit,
                                int64_t deadline)
{
    const watch_t *watch = &executor->watch;
    int64_t until = deadline;
    xm_status_t status;

    if (!xm_executor_may_sleep(executor)) {
        status = xm_worker_progress(worker);
    } else {
        if (limit > 0 && !watch->reported && watch->since_ns + limit < until) {
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

/* Ends a run whose wait has failed, with the sentence that says most. It is composed
 * before the run is abandoned, as afterwards nothing is in flight to be described. */
static xm_status_t give_up(xm_worker_t *worker, xm_executor_t *executor, xm_status_t waited)
{
    char waits[512];
    xm_error_t error;

    if (waited == XM_ERR_TIMEOUT && executor->result < 0) {
        /* It failed before, and what was cancelled has not ended yet. */
        waited = xm_error_set(executor->result, "%s", executor->reason);
    } else if (waited == XM_ERR_TIMEOUT) {
        waited = xm_error_set(waited, "rank %d %s after %.1f s", xm_worker_rank(worker),
                              xm_executor_describe_wait(executor, waits, sizeof(waits)),
                              (double)(xm_worker_now(worker) - executor->began_ns) * 1e-9);
    }
    xm_error_save(&error, waited);
    xm_executor_abandon(executor);
    return xm_error_restore(&error);
}

/*
 * Waits until the run ends or `until` passes, in which case the run stays in progress and
 * can be waited for again; the deadline ends it. The watchdog's times are kept in the
 * executor, so that they survive between such calls and start anew with each run.
 */
xm_status_t xm_executor_wait(xm_worker_t *worker, xm_executor_t *executor, int64_t until,
                             int64_t deadline)
{
    int64_t limit = (int64_t)(xm_config_seconds(XM_CONFIG_WATCHDOG) * 1e9);
    int64_t stop = until < deadline ? until : deadline;
    xm_status_t status, waited;

    if (executor->watch.run != executor->runs) {
        executor->watch = (watch_t){
            .run = executor->runs, .since_ns = xm_worker_now(worker), .steps = executor->steps};
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
    if (status == XM_ERR_CORRUPT && executor->verify != XM_VERIFY_OFF) {
        xm_group_abort(worker, executor->reason); /* so that all ranks hear of it */
        return xm_error_set(status, "%s", executor->reason);
    }
    if (status == XM_ERR_CANCELED) {
        /* By the caller, or because the group failed before the run began: that has a reason. */
        return worker_fault_status(worker, status);
    }
    return status < 0 ? xm_reshard_name_culprit(worker, status) : status;
}

xm_status_t xm_executor_run(xm_worker_t *worker, xm_executor_t *executor, int64_t deadline)
{
    XM_TRY(xm_executor_post(executor));

    return xm_executor_wait(worker, executor, INT64_MAX, deadline);
}

/*
 * The whole verification with a deadline. On a failure other than different data it looks
 * for the rank that caused it, because a peer's death shows here only as a cancelled
 * message.
 */
xm_status_t xm_executor_verify(xm_worker_t *worker, xm_executor_t *executor, int64_t deadline)
{
    int64_t start = xm_worker_now(worker);
    xm_error_t error;
    xm_checksum_t *checksum;
    xm_status_t status = xm_checksum_create(executor, &checksum), waited = XM_OK;

    if (status < 0) {
        return status;
    }
    while (waited == XM_OK && (status = xm_checksum_advance(checksum)) == XM_IN_PROGRESS) {
        waited = xm_checksum_may_sleep(checksum) ? xm_worker_wait(worker, deadline)
                                                 : xm_worker_progress(worker);
        if (waited == XM_OK && xm_worker_now(worker) > deadline) {
            waited = XM_ERR_TIMEOUT;
        }
    }
    if (waited == XM_ERR_TIMEOUT) {
        waited = xm_checksum_give_up(checksum, (double)(xm_worker_now(worker) - start) * 1e-9);
    }
    xm_error_save(&error, waited < 0 ? waited : status);
    xm_checksum_destroy(checksum);
    status = xm_error_restore(&error);
    return waited == XM_OK && status < 0 && status != XM_ERR_CORRUPT
               ? xm_reshard_name_culprit(worker, status)
               : status;
}
