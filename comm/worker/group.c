/* SPDX-License-Identifier: Apache-2.0 */
/* Aborting and shrinking a group. After a failure the survivors need a transport in which no
 * message of the past can appear, so a new group gets everything anew: bootstrap, transport,
 * path probe. The old ones are kept until the new ones work, because a failed attempt must
 * leave the worker as it was, able to try again. Ranks are renumbered in the old order;
 * counters, detector and sockets belong to the job and stay. */
#include <crossmesh/group.h>

#include <stdio.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include "comm/job.h"
#include "comm/base.h"
#include "comm/fault.h"
#include "comm/worker/worker_private.h"

int xm_group_generation(const xm_worker_t *worker)
{
    if (XM_IS_NULL(worker)) {
        return -1;
    }
    return worker->generation;
}

int xm_group_job_rank(const xm_worker_t *worker, int rank)
{
    if (XM_IS_NULL(worker) || rank < 0 || rank >= xm_worker_size(worker)) {
        return -1;
    }
    return worker->job_rank[rank];
}

/* Keeps the last error as the fault status of the group. */
static void keep_fault_status(xm_worker_t *worker, xm_status_t status, int failed_rank)
{
    worker->fault_status = status;
    worker->failed_rank = failed_rank;
    (void)snprintf(worker->sentence, sizeof(worker->sentence), "%s", xm_last_error());
}

/* Ends what the group is doing, on all ranks. When it returns, all operations of this rank have
 * ended and no byte is written to the user's memory any more. It cannot fail: ranks that cannot
 * be told find out by their detectors. */
xm_status_t xm_group_abort(xm_worker_t *worker, const char *sentence)
{
    char reason[XM_BOOTSTRAP_SENTENCE_SIZE];

    XM_NEED_ARGUMENTS(worker, sentence);
    /* What made the caller give up may be the first sign of a death, which is a better reason. */
    (void)snprintf(reason, sizeof(reason), "%s", sentence);
    if (worker->fault_status == XM_OK) {
        (void)(worker->transport->failed_peer >= 0 ? xm_worker_check_lost_peer(worker)
                                                   : xm_worker_poll_faults(worker));
    }
    if (worker->fault_status == XM_OK) {
        int failed_rank = xm_worker_rank(worker);
        xm_status_t status;

        xm_bootstrap_abort(worker->bootstrap, reason);
        status = xm_bootstrap_poll(worker->bootstrap, &failed_rank);
        keep_fault_status(worker, status, failed_rank);
    }
    xm_transport_fence(worker->transport);
    return XM_OK;
}

/* Everything that belongs to one generation of a worker. */
typedef struct {
    xm_bootstrap_t *bootstrap;
    xm_transport_t *transport;
    xm_path_probe_t *path_probe;
    xm_worker_slots_t slots;
} era_t;

/* Takes the generation's parts out of the worker, so that xm_worker_enter() finds it empty. */
static era_t take_era(xm_worker_t *worker)
{
    era_t era = {worker->bootstrap, worker->transport, worker->path_probe, worker->slots};

    worker->bootstrap = NULL;
    worker->transport = NULL;
    worker->path_probe = NULL;
    worker->slots = (xm_worker_slots_t){0};
    return era;
}

static void give_era(xm_worker_t *worker, era_t era)
{
    worker->bootstrap = era.bootstrap;
    worker->transport = era.transport;
    worker->path_probe = era.path_probe;
    worker->slots = era.slots;
}

/* Numbers the ranks of the job that are in the new group, in their order. */
static void number_members(xm_worker_t *worker, const bool *out)
{
    int size = worker->endpoints.of != NULL ? worker->endpoints.size : 1, count = 0;

    for (int rank = 0; rank < size; ++rank) {
        worker->group_rank[rank] = -1;
        if (!out[rank]) {
            worker->group_rank[rank] = count;
            worker->job_rank[count++] = rank;
        }
    }
}

/* What a shrink is asked for and knows, by rank of the job. */
typedef struct {
    const xm_group_shrink_params_t *params;
    bool *out, *excluded;
} shrink_t;

/* Meets the survivors. A job of one rank has nobody to meet, and just begins a new generation. */
static xm_status_t gather(const xm_worker_t *worker, const shrink_t *shrink, double timeout,
                          xm_bootstrap_t **bootstrap, uint32_t *generation)
{
    xm_regroup_params_t params = {.endpoints = &worker->endpoints,
                                  .detector = worker->detector,
                                  .generation = *generation,
                                  .timeout = timeout,
                                  .least = shrink->params->min_size,
                                  .excluded = shrink->excluded,
                                  .cut = worker->cut};
    xm_bootstrap_slot_t alone = {.host = NULL};

    if (worker->endpoints.of == NULL) {
        ++*generation;
        return xm_bootstrap_adopt(0, 1, &alone, NULL, bootstrap);
    }
    return xm_regroup(&params, shrink->out, bootstrap, generation);
}

/* Opens the new group's transport. On success the old generation is taken apart; on failure the
 * worker gets it back. A failure that is another rank's is noted, and *again says that a smaller
 * group may still work. */
static xm_status_t enter(xm_worker_t *worker, xm_bootstrap_t *bootstrap, bool *again)
{
    era_t old = take_era(worker);
    xm_status_t status, fault;
    int failed_rank = -1;

    worker->bootstrap = bootstrap;
    status = xm_worker_enter(worker);
    if (status == XM_OK) {
        era_t entered = take_era(worker);

        old.transport->all_live = entered.transport->size == old.transport->size;
        give_era(worker, old);
        xm_worker_leave(worker);
        give_era(worker, entered);
#ifdef __GLIBC__
        /* The new transport was made beside the old one, whose memory would stay as holes. */
        (void)malloc_trim(0);
#endif
        return XM_OK;
    }
    /* The others must not wait for this rank in a group that will not exist. */
    xm_bootstrap_abort(bootstrap, xm_last_error());
    fault = xm_bootstrap_poll(bootstrap, &failed_rank);
    *again = fault == XM_ERR_PEER_DIED ||
             (fault == XM_ERR_CANCELED && failed_rank != xm_bootstrap_rank(bootstrap));
    if (fault == XM_ERR_PEER_DIED && failed_rank >= 0) {
        worker->cut[worker->job_rank[failed_rank]] = true;
    }
    xm_worker_leave(worker);
    give_era(worker, old);
    return *again ? fault : status;
}

/* Meets the survivors and opens the transport, again and again as long as some rank dies in
 * between. Each round has fewer ranks, so it ends; the deadline covers all rounds together. */
static xm_status_t form_group(xm_worker_t *worker, const shrink_t *shrink, double timeout)
{
    double deadline = xm_clock_seconds() + timeout;
    uint32_t generation = (uint32_t)worker->generation;
    xm_bootstrap_t *bootstrap;
    xm_status_t status;
    bool again;

    do {
        again = false;
        status = gather(worker, shrink, deadline - xm_clock_seconds(), &bootstrap, &generation);
        if (status == XM_OK) {
            number_members(worker, shrink->out);
            worker->generation = (int)generation;
            status = enter(worker, bootstrap, &again);
        }
    } while (again && xm_clock_seconds() < deadline);
    return status;
}

/* Takes down what is known of the ranks. Who was found gone is cut off from all that know of it. */
static xm_status_t consider(const xm_worker_t *worker, const shrink_t *shrink)
{
    const xm_group_shrink_params_t *params = shrink->params;
    int size = worker->endpoints.of != NULL ? worker->endpoints.size : 1;

    for (int rank = 0; rank < size; ++rank) {
        shrink->out[rank] = worker->group_rank[rank] < 0;
    }
    for (int i = 0; i < params->exclude_count; ++i) {
        int rank = params->exclude[i];

        if (rank < 0 || rank >= xm_worker_size(worker) || rank == xm_worker_rank(worker)) {
            return XM_INVALID("rank %d of %d cannot leave out rank %d", xm_worker_rank(worker),
                              xm_worker_size(worker), rank);
        }
        shrink->excluded[worker->job_rank[rank]] = true;
    }
    if (worker->fault_status == XM_ERR_PEER_DIED && worker->failed_rank >= 0 && size > 1) {
        worker->cut[worker->job_rank[worker->failed_rank]] = true;
    }
    return XM_OK;
}

static xm_status_t check_shrink(const xm_worker_t *worker, const xm_group_shrink_params_t *params)
{
    if (params->min_size < 0 || params->exclude_count < 0 ||
        (params->exclude_count > 0 && params->exclude == NULL)) {
        return XM_INVALID("shrink: at least %d ranks, without %d of them", params->min_size,
                          params->exclude_count);
    }
    if (worker->endpoints.of == NULL && xm_worker_size(worker) > 1) {
        return XM_UNSUPPORTED("a group over the caller's own allgather cannot be shrunk");
    }
    if (worker->fault_status == XM_ERR_PEER_DIED && worker->failed_rank == xm_worker_rank(worker)) {
        char sentence[sizeof(worker->sentence)];

        (void)snprintf(sentence, sizeof(sentence), "%s", worker->sentence);
        return xm_error_set(XM_ERR_PEER_DIED, "the others go on without this rank: %s", sentence);
    }
    return XM_OK;
}

/* Shrinks the group. The transport is fenced first, so nothing of the old group writes into user
 * memory while the new one forms. A rank that the others take for dead is told so and stays
 * out. */
xm_status_t xm_group_shrink_with(xm_worker_t *worker, const xm_group_shrink_params_t *given)
{
    xm_group_shrink_params_t own = XM_GROUP_SHRINK_PARAMS_INIT;
    shrink_t shrink = {.params = &own};
    size_t size;
    xm_status_t status;

    XM_NEED_ARGUMENTS(worker);
    XM_TRY(XM_PARAMS_COPY(xm_group_shrink_params_t, &own, given));
    XM_TRY(check_shrink(worker, &own));
    size = worker->endpoints.of != NULL ? (size_t)worker->endpoints.size : 1;
    shrink.out = calloc(2 * size, sizeof(*shrink.out));
    XM_NEED_MEMORY(shrink.out, "regrouping %zu ranks", size);
    shrink.excluded = shrink.out + size;
    status = consider(worker, &shrink);
    if (status < 0) {
        free(shrink.out);
        return status;
    }
    xm_transport_fence(worker->transport);
    xm_worker_dismiss_guests(worker);
    status = form_group(worker, &shrink, own.timeout > 0.0 ? own.timeout : worker->timeout);
    free(shrink.out);
    if (status == XM_OK) {
        memset(worker->cut, 0, size * sizeof(*worker->cut));
        worker->fault_status = XM_OK;
        worker->failed_rank = -1;
        return XM_OK;
    }
    keep_fault_status(worker, status, -1);
    return status;
}
