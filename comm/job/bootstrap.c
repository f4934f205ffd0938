/* SPDX-License-Identifier: Apache-2.0 */
/* What all kinds of bootstrap share: checks, blocking calls, and the sticky fault status. The
 * kinds offer post and test, which never wait; everything that blocks is built here once, as
 * post, test and sleep until the deadline. A bootstrap that has failed stays failed: every
 * later call returns the first fault's sentence, because ranks that have seen different numbers
 * of allgathers can never agree again. */
#include "comm/job/bootstrap.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm/job/bootstrap_private.h"
#include "comm/base.h"

/* Longest sleep between two looks at a bootstrap that has no descriptor. */
enum { OOB_NAP_NS = 1000000, OOB_FIRST_NAP_NS = 20000 };

/* The fault status with its sentence set anew, since the thread's last error may be another one
 * by now. */
xm_status_t xm_bootstrap_fault_status(const xm_bootstrap_t *bootstrap)
{
    if (bootstrap->fault.status == XM_OK) {
        return XM_OK;
    }
    return xm_error_set(bootstrap->fault.status, "%s", bootstrap->fault.sentence);
}

int xm_bootstrap_rank(const xm_bootstrap_t *bootstrap)
{
    return bootstrap->rank;
}

int xm_bootstrap_size(const xm_bootstrap_t *bootstrap)
{
    return bootstrap->size;
}

/* Checks every post: no fault so far, nothing else in flight, a size that one frame can hold. */
static xm_status_t check_post(const xm_bootstrap_t *bootstrap, const char *function,
                              const void *send, size_t length, size_t limit)
{
    XM_TRY(xm_bootstrap_fault_status(bootstrap));
    if (bootstrap->posted) {
        return XM_INVALID("%s: another one is in flight", function);
    }
    if (length > limit) {
        return XM_INVALID("%s: %zu bytes from each of %d ranks exceed %d", function, length,
                          bootstrap->size, XM_BOOTSTRAP_MAX_GATHER);
    }
    if (length > 0 && send == NULL) {
        return XM_INVALID("%s: NULL buffer for %zu bytes", function, length);
    }
    return XM_OK;
}

xm_status_t xm_bootstrap_allgather_post(xm_bootstrap_t *bootstrap, const void *send, void *receive,
                                        size_t length)
{
    xm_status_t status = check_post(bootstrap, "allgather", receive != NULL ? send : NULL, length,
                                    XM_BOOTSTRAP_MAX_GATHER / (size_t)bootstrap->size);

    if (status < 0) {
        return status;
    }
    status = bootstrap->ops->post(bootstrap, send, receive, length);
    bootstrap->posted = status >= 0;
    return status < 0 ? status : XM_OK;
}

/* Tests without waiting. Any result but "in progress" takes the allgather out of flight, so a
 * failed one can be neither tested nor abandoned twice. */
xm_status_t xm_bootstrap_allgather_test(xm_bootstrap_t *bootstrap)
{
    xm_status_t status;

    if (!bootstrap->posted) {
        return XM_INVALID("allgather: none was posted");
    }
    status = bootstrap->ops->test(bootstrap);
    bootstrap->posted = status == XM_IN_PROGRESS;
    return status;
}

/* Gives up waiting. That is a fault of the whole bootstrap, because this rank may no longer
 * take part in the next allgather as the next. */
xm_status_t xm_bootstrap_allgather_abandon(xm_bootstrap_t *bootstrap, double waited)
{
    if (!bootstrap->posted) {
        return XM_INVALID("allgather: none was posted");
    }
    bootstrap->posted = false;
    return bootstrap->ops->abandon(bootstrap, waited);
}

/* Sleeps until there may be news, at most `remaining` seconds. A caller's table has no
 * descriptor, so it is asked again after naps that grow from 20 us to 1 ms: short allgathers
 * stay fast, long ones cost no processor time. */
static void wait_for_news(const xm_bootstrap_t *bootstrap, double remaining, long *nap_ns)
{
    struct pollfd entry = {.fd = xm_bootstrap_fd(bootstrap), .events = POLLIN};
    struct timespec nap = {.tv_nsec = *nap_ns};

    if (entry.fd < 0) {
        (void)nanosleep(&nap, NULL);
        *nap_ns = *nap_ns * 2 < OOB_NAP_NS ? *nap_ns * 2 : OOB_NAP_NS;
    } else {
        /* Errors need no care: the next test meets them. */
        (void)poll(&entry, 1, remaining > 3600.0 ? 3600000 : (int)(remaining * 1000.0) + 1);
    }
}

/* Waits for the end of what was posted, at most `timeout` seconds; then it becomes a timeout
 * whose sentence names the missing ranks where they are known. */
static xm_status_t await_gathered(xm_bootstrap_t *bootstrap, double timeout)
{
    double deadline = xm_clock_seconds() + timeout;
    long nap_ns = OOB_FIRST_NAP_NS;
    xm_status_t status;

    while ((status = xm_bootstrap_allgather_test(bootstrap)) == XM_IN_PROGRESS) {
        double remaining = deadline - xm_clock_seconds();

        if (remaining <= 0.0) {
            return xm_bootstrap_allgather_abandon(bootstrap, timeout);
        }
        if (bootstrap->silence > 0) {
            double pause = (double)bootstrap->silence / XM_BOOTSTRAP_SIGNS * 1e-9;

            remaining = pause < remaining ? pause : remaining;
        }
        wait_for_news(bootstrap, remaining, &nap_ns);
    }
    return status;
}

xm_status_t xm_bootstrap_allgather(xm_bootstrap_t *bootstrap, const void *send, void *receive,
                                   size_t length, double timeout)
{
    xm_status_t status = xm_bootstrap_allgather_post(bootstrap, send, receive, length);

    return status < 0 ? status : await_gathered(bootstrap, timeout);
}

/* Turns the gathered lengths into offsets. They are other ranks' numbers, so each is bounded
 * before it is added. */
static xm_status_t offsets_from_lengths(const xm_bootstrap_t *bootstrap, const uint8_t *lengths,
                                        size_t *offsets, size_t *longest)
{
    offsets[0] = 0;
    *longest = 0;
    for (int rank = 0; rank < bootstrap->size; ++rank) {
        uint64_t length = xm_get_le(lengths + 8 * rank, 8);

        if (length > XM_BOOTSTRAP_MAX_GATHER / (uint64_t)bootstrap->size) {
            return XM_INVALID("allgatherv: rank %d offers %" PRIu64
                              " bytes; %d ranks may exchange %d together",
                              rank, length, bootstrap->size, XM_BOOTSTRAP_MAX_GATHER);
        }
        offsets[rank + 1] = offsets[rank] + (size_t)length;
        *longest = (size_t)length > *longest ? (size_t)length : *longest;
    }
    return XM_OK;
}

/* Gathers blocks of differing lengths by two allgathers of equal ones: first the lengths, then
 * the blocks padded to the longest. It is for callers' tables, which can do nothing else. */
static xm_status_t gather_padded(xm_bootstrap_t *bootstrap, const void *send, size_t length,
                                 void **receive, size_t *offsets, double timeout)
{
    size_t size = (size_t)bootstrap->size, longest = 0;
    double deadline = xm_clock_seconds() + timeout;
    uint8_t *lengths = malloc(8 * size), *padded = NULL, *all = NULL;
    uint8_t own[8];
    xm_status_t status;

    if (lengths == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "allgatherv: no memory for %zu lengths", size);
    }
    xm_put_le(own, length, 8);
    status = xm_bootstrap_allgather(bootstrap, own, lengths, sizeof(own), timeout);
    XM_THEN(status, offsets_from_lengths(bootstrap, lengths, offsets, &longest));
    if (status < 0) {
        goto free_lengths;
    }
    /* One byte more than needed: malloc(0) may return NULL. */
    padded = calloc(1, longest + 1);
    all = malloc(size * longest + 1);
    if (padded == NULL || all == NULL) {
        status = xm_error_set(XM_ERR_NO_MEMORY, "allgatherv: no memory for %zu bytes of %zu ranks",
                              longest, size);
        goto free_blobs;
    }
    if (length > 0) {
        memcpy(padded, send, length);
    }
    if (longest > 0) {
        status =
            xm_bootstrap_allgather(bootstrap, padded, all, longest, deadline - xm_clock_seconds());
        if (status < 0) {
            goto free_blobs;
        }
    }
    /* Moves the blocks together. Each moves to a lower or the same place, so none is
     * overwritten before its turn. */
    for (size_t rank = 0; rank < size; ++rank) {
        memmove(all + offsets[rank], all + rank * longest, offsets[rank + 1] - offsets[rank]);
    }
    *receive = all;
    all = NULL;
    status = XM_OK;

free_blobs:
    free(all);
    free(padded);
free_lengths:
    free(lengths);
    return status;
}

/* Gathers them in one go, where the bootstrap can. */
static xm_status_t gather_blobs(xm_bootstrap_t *bootstrap, const void *send, size_t length,
                                void **receive, size_t *offsets, double timeout)
{
    xm_status_t status = check_post(bootstrap, "allgatherv", send, length, XM_BOOTSTRAP_MAX_GATHER);

    if (status == XM_OK) {
        status = bootstrap->ops->post_blobs(bootstrap, send, length);
        bootstrap->posted = status >= 0;
    }
    if (status >= 0) {
        status = await_gathered(bootstrap, timeout);
    }
    return status < 0 ? status : bootstrap->ops->take_blobs(bootstrap, receive, offsets);
}

/* Offers one signature for both ways; on failure nothing belongs to the caller. */
xm_status_t xm_bootstrap_allgatherv(xm_bootstrap_t *bootstrap, const void *send, size_t length,
                                    void **receive, size_t **offsets, double timeout)
{
    size_t size = (size_t)bootstrap->size, *starts = malloc((size + 1) * sizeof(*starts));
    xm_status_t status;

    if (starts == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "allgatherv: no memory for %zu lengths", size);
    }
    status = bootstrap->ops->post_blobs != NULL
                 ? gather_blobs(bootstrap, send, length, receive, starts, timeout)
                 : gather_padded(bootstrap, send, length, receive, starts, timeout);
    if (status < 0) {
        free(starts);
        return status;
    }
    *offsets = starts;
    return XM_OK;
}

/* A barrier is an allgather of nothing. */
xm_status_t xm_bootstrap_barrier(xm_bootstrap_t *bootstrap, double timeout)
{
    return xm_bootstrap_allgather(bootstrap, NULL, NULL, 0, timeout);
}

void xm_bootstrap_abort(xm_bootstrap_t *bootstrap, const char *sentence)
{
    bootstrap->ops->abort(bootstrap, sentence);
}

void xm_bootstrap_mark_failed(xm_bootstrap_t *bootstrap, const xm_bootstrap_fault_t *fault)
{
    bootstrap->ops->mark_failed(bootstrap, fault);
}

xm_status_t xm_bootstrap_set_guard(xm_bootstrap_t *bootstrap, const xm_bootstrap_guard_t *guard)
{
    return bootstrap->ops->set_guard != NULL ? bootstrap->ops->set_guard(bootstrap, guard) : XM_OK;
}

xm_status_t xm_bootstrap_poll(xm_bootstrap_t *bootstrap, int *failed_rank)
{
    xm_status_t status = bootstrap->ops->poll(bootstrap);

    if (status < 0 && failed_rank != NULL) {
        *failed_rank = bootstrap->fault.rank;
    }
    return status;
}

int xm_bootstrap_fd(const xm_bootstrap_t *bootstrap)
{
    return bootstrap->ops->fd(bootstrap);
}

void xm_bootstrap_destroy(xm_bootstrap_t *bootstrap)
{
    if (bootstrap != NULL) {
        bootstrap->ops->destroy(bootstrap);
    }
}
