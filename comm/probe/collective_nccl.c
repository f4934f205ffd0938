/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's collectives, measured on the devices' memory. NCCL is opened at run time and used
 * without blocking calls: every call is followed by a wait of our own, which has a deadline and
 * looks after the other ranks, because NCCL itself would wait for a dead rank for ever. After
 * any failure the communicator is aborted, so nothing of it is under way when the buffers are
 * freed. Ranks agree on each step's outcome before the next. */
#include "comm/probe/collective_nccl.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "comm/memory.h"
#include "comm/probe/nccl_library.h"
#include "comm/probe/compute.h"

/* The seconds between two looks at the other ranks while NCCL works. */
static const double look_around = 1e-3;

/* NCCL's part of the job's time limit: the ranks that NCCL did not keep wait for the others,
 * whose limit must pass first. */
static const double share_of_timeout = 0.5;

typedef struct nccl {
    xm_collective_library_t base;
    const xm_collective_job_t *job;
    xm_nccl_library_t api;
    xm_memory_space_t *space;
    xm_memory_queue_t *queue;
    xm_memory_mark_t *mark;
    void *comm; /* of the axis that was entered */
    xm_collective_axis_t axis;
} nccl_t;

static nccl_t *nccl_of(xm_collective_library_t *library)
{
    return (nccl_t *)library;
}

static void *stream_of(const nccl_t *nccl)
{
    return ((const xm_cuda_queue_t *)nccl->queue)->stream;
}

/* Aborts the communicator: nothing of it is under way afterwards. It keeps the sentence of the
 * failure that led here. */
static void abort_comm(nccl_t *nccl)
{
    if (nccl->comm != NULL) {
        (void)nccl->api.ncclCommAbort(nccl->comm);
        nccl->comm = NULL;
    }
}

/* One wait: until a deadline, and while all ranks are there. */
typedef struct {
    double started, looked;
} wait_t;

static wait_t begin_wait(void)
{
    double now = xm_clock_seconds();

    return (wait_t){.started = now, .looked = now};
}

/* Decides whether a wait goes on. XM_OK: yes. */
static xm_status_t keep_waiting(const nccl_t *nccl, wait_t *wait, const char *what)
{
    const xm_collective_job_t *job = nccl->job;
    double now = xm_clock_seconds(), limit = job->timeout * share_of_timeout;

    if (now - wait->started > limit) {
        return xm_error_set(XM_ERR_TIMEOUT, "NCCL: %s of %d devices has not ended in %g s", what,
                            nccl->axis.size, limit);
    }
    if (now - wait->looked > look_around && job->alive != NULL) {
        XM_TRY(job->alive(job->context));
        wait->looked = now;
    }
    (void)sched_yield();
    return XM_OK;
}

/* Waits until the communicator has taken in what a call gave it: calls that do not block return
 * before. */
static xm_status_t settle(nccl_t *nccl, const char *what, int result)
{
    wait_t wait = begin_wait();
    xm_status_t status = XM_OK;

    while (status == XM_OK && result == XM_NCCL_IN_PROGRESS && nccl->comm != NULL) {
        int asked = nccl->api.ncclCommGetAsyncError(nccl->comm, &result);

        if (asked != XM_NCCL_SUCCESS) {
            return xm_nccl_error(&nccl->api, nccl->comm, "ncclCommGetAsyncError", asked);
        }
        if (result == XM_NCCL_IN_PROGRESS) {
            status = keep_waiting(nccl, &wait, what);
        }
    }
    if (status == XM_OK && result != XM_NCCL_SUCCESS) {
        return xm_nccl_error(&nccl->api, nccl->comm, what, result);
    }
    return status;
}

/* Gets the id of this rank's group from the group's first rank. All ids travel in one
 * allgather, since groups of an axis are formed at the same time. The agreement comes before
 * it, or ranks would wait for the id of one that has failed. */
static xm_status_t share_id(const nccl_t *nccl, xm_nccl_id_t *id)
{
    const xm_collective_job_t *job = nccl->job;
    xm_nccl_id_t own = {{0}}, *all = calloc((size_t)job->ranks, sizeof(*all));
    xm_status_t status = all != NULL ? XM_OK : XM_NO_MEMORY("%d ids", job->ranks);

    if (status == XM_OK && nccl->axis.root == job->rank) {
        int result = nccl->api.ncclGetUniqueId(&own);

        if (result != XM_NCCL_SUCCESS) {
            status = xm_nccl_error(&nccl->api, NULL, "ncclGetUniqueId", result);
        }
    }
    status = xm_collective_agree(job, status);
    XM_THEN(status, job->allgather(job->context, &own, all, sizeof(own)));
    if (status == XM_OK) {
        *id = all[nccl->axis.root];
    }
    free(all);
    return status;
}

/* Makes the communicator; the struct's magic number and oldest version are what NCCL checks. */
static xm_status_t make_comm(nccl_t *nccl, xm_nccl_id_t id)
{
    xm_nccl_config_t config = {.size = sizeof(config),
                               .magic = XM_NCCL_CONFIG_MAGIC,
                               .version = XM_NCCL_OLDEST,
                               .blocking = 0};
    xm_status_t status = xm_cuda_enter(xm_cuda_space_of(nccl->space));
    int result;

    if (status < 0) {
        return status;
    }
    result = nccl->api.ncclCommInitRankConfig(&nccl->comm, nccl->axis.size, id, nccl->axis.rank,
                                              &config);
    status = settle(nccl, "ncclCommInitRankConfig", result);
    if (status < 0) {
        abort_comm(nccl);
    }
    xm_cuda_leave(xm_cuda_space_of(nccl->space));
    return status;
}

/* Enters an axis; collective. If any rank has failed, all give up their communicator. */
static xm_status_t nccl_enter(xm_collective_library_t *library, const xm_collective_axis_t *axis)
{
    nccl_t *nccl = nccl_of(library);
    xm_nccl_id_t id;
    xm_status_t status;

    nccl->axis = *axis;
    XM_TRY(share_id(nccl, &id));
    status = xm_collective_agree(nccl->job, make_comm(nccl, id));
    if (status < 0) {
        abort_comm(nccl);
    }
    return status;
}

/* Finalising waits for all ranks of the group; if it does not end, aborting does. */
static void nccl_leave(xm_collective_library_t *library)
{
    nccl_t *nccl = nccl_of(library);

    if (nccl->comm == NULL || xm_cuda_enter(xm_cuda_space_of(nccl->space)) < 0) {
        return;
    }
    if (settle(nccl, "ncclCommFinalize", nccl->api.ncclCommFinalize(nccl->comm)) == XM_OK) {
        (void)nccl->api.ncclCommDestroy(nccl->comm);
        nccl->comm = NULL;
    }
    abort_comm(nccl);
    xm_cuda_leave(xm_cuda_space_of(nccl->space));
}

static xm_status_t nccl_allocate(xm_collective_library_t *library, size_t bytes, void **address)
{
    return xm_memory_allocate(nccl_of(library)->space, bytes, address);
}

static void nccl_release(xm_collective_library_t *library, void *address)
{
    xm_memory_release(nccl_of(library)->space, address);
}

static xm_status_t nccl_copy(xm_collective_library_t *library, void *to, const void *from,
                             size_t bytes)
{
    return xm_memory_copy(nccl_of(library)->space, to, from, bytes);
}

/* Exchanges as NCCL does it: all sends and receives in one group, the own part included. The
 * group is ended even after a failure inside, because it would otherwise stay open. */
static int all_to_all(const nccl_t *nccl, const xm_collective_call_t *call)
{
    const xm_nccl_library_t *api = &nccl->api;
    int result = api->ncclGroupStart(), ended;

    if (result != XM_NCCL_SUCCESS) {
        return result;
    }
    for (int peer = 0; result == XM_NCCL_SUCCESS && peer < nccl->axis.size; ++peer) {
        size_t at = (size_t)peer * call->part;

        result = api->ncclSend((const int32_t *)call->in + at, call->part, XM_NCCL_INT32, peer,
                               nccl->comm, stream_of(nccl));
        if (result == XM_NCCL_SUCCESS) {
            result = api->ncclRecv((int32_t *)call->out + at, call->part, XM_NCCL_INT32, peer,
                                   nccl->comm, stream_of(nccl));
        }
    }
    ended = api->ncclGroupEnd();
    return result != XM_NCCL_SUCCESS ? result : ended;
}

/* Hands one collective to NCCL's stream. */
static xm_status_t launch(nccl_t *nccl, const xm_collective_call_t *call)
{
    const xm_nccl_library_t *api = &nccl->api;

    switch (call->kind) {
    case XM_ALL_GATHER:
        return settle(nccl, "ncclAllGather",
                      api->ncclAllGather(call->in, call->out, call->part, XM_NCCL_INT32, nccl->comm,
                                         stream_of(nccl)));
    case XM_ALL_REDUCE:
        return settle(nccl, "ncclAllReduce",
                      api->ncclAllReduce(call->in, call->out, call->part, XM_NCCL_INT32,
                                         XM_NCCL_SUM, nccl->comm, stream_of(nccl)));
    case XM_REDUCE_SCATTER:
        return settle(nccl, "ncclReduceScatter",
                      api->ncclReduceScatter(call->in, call->out, call->part, XM_NCCL_INT32,
                                             XM_NCCL_SUM, nccl->comm, stream_of(nccl)));
    case XM_ALL_TO_ALL:
    case XM_COLLECTIVE_COUNT:
        break;
    }
    return settle(nccl, "ncclSend and ncclRecv in a group", all_to_all(nccl, call));
}

/* Waits until the device is done. Errors of NCCL show in the communicator while the stream
 * waits. */
static xm_status_t await(nccl_t *nccl, const char *what)
{
    wait_t wait = begin_wait();
    xm_status_t status = xm_memory_mark_set(nccl->mark, nccl->queue);

    while (status == XM_OK) {
        int result = XM_NCCL_SUCCESS, asked;

        status = xm_memory_mark_test(nccl->mark);
        if (status != XM_IN_PROGRESS) {
            return status;
        }
        asked = nccl->api.ncclCommGetAsyncError(nccl->comm, &result);
        result = asked != XM_NCCL_SUCCESS ? asked : result;
        if (result != XM_NCCL_SUCCESS && result != XM_NCCL_IN_PROGRESS) {
            return xm_nccl_error(&nccl->api, nccl->comm, what, result);
        }
        status = keep_waiting(nccl, &wait, what);
    }
    return status;
}

/* Runs a collective several times in a row; only the last one is waited for, so that launches
 * overlap as in a real program. */
static xm_status_t nccl_run(xm_collective_library_t *library, const xm_collective_call_t *call,
                            int times)
{
    nccl_t *nccl = nccl_of(library);
    xm_status_t status = XM_OK;

    XM_TRY(xm_cuda_enter(xm_cuda_space_of(nccl->space)));
    for (int i = 0; status == XM_OK && i < times; ++i) {
        status = launch(nccl, call);
    }
    XM_THEN(status, await(nccl, xm_collective_name(call->kind)));
    if (status < 0) {
        abort_comm(nccl);
    }
    xm_cuda_leave(xm_cuda_space_of(nccl->space));
    return status;
}

static void nccl_destroy(xm_collective_library_t *library)
{
    nccl_t *nccl = nccl_of(library);

    xm_memory_mark_destroy(nccl->mark);
    xm_memory_queue_destroy(nccl->queue);
    xm_memory_space_destroy(nccl->space);
    free(nccl);
}

static const xm_collective_ops_t nccl_ops = {.enter = nccl_enter,
                                             .leave = nccl_leave,
                                             .allocate = nccl_allocate,
                                             .release = nccl_release,
                                             .copy = nccl_copy,
                                             .run = nccl_run,
                                             .destroy = nccl_destroy};

/* Each rank tells this to the others, so that devices are chosen alike everywhere. */
typedef struct {
    uint64_t machine;
    int32_t devices;
    int32_t version; /* of NCCL */
} place_t;

/* Counts how many ranks are where this rank is, and how many of these come before it. */
static int count_beside(const xm_collective_job_t *job, const place_t *places, bool machine,
                        int *before)
{
    int beside = 0;

    *before = 0;
    for (int r = 0; r < job->ranks; ++r) {
        bool same = machine ? places[r].machine == places[job->rank].machine
                            : job->host_of[r] == job->host_of[job->rank];

        beside += same;
        *before += same && r < job->rank;
    }
    return beside;
}

/* Chooses a device: the rank's number on its machine, or on its host where emulated hosts share
 * a machine's devices. With one device for several ranks all take it, if NCCL allows that. */
static xm_status_t choose_device(const xm_collective_job_t *job, const place_t *places, int *device)
{
    int devices = places[job->rank].devices;
    int on_machine = count_beside(job, places, true, device), on_host;

    if (on_machine <= devices) {
        return XM_OK;
    }
    on_host = count_beside(job, places, false, device);
    if (on_host <= devices) {
        return XM_OK;
    }
    *device = 0;
    return devices == 1 ? XM_OK
                        : XM_UNSUPPORTED("NCCL needs a device for each rank, and a host has %d "
                                         "ranks and %d CUDA devices",
                                         on_host, devices);
}

/* A failure that is certain is found here, before any rank depends on this one. */
static xm_status_t open_library(nccl_t *nccl, place_t *own)
{
    const char *blocking = getenv("NCCL_COMM_BLOCKING");
    int devices = 0;
    xm_status_t status = xm_memory_cuda_count(&devices);

    if (status == XM_OK && devices == 0) {
        status = XM_UNSUPPORTED("no CUDA: the driver knows no device");
    }
    XM_THEN(status, xm_nccl_library_open(&nccl->api));
    if (status == XM_OK && blocking != NULL && strcmp(blocking, "1") == 0) {
        status = XM_UNSUPPORTED("NCCL_COMM_BLOCKING=1 would let NCCL wait without a deadline");
    }
    if (status == XM_OK) {
        *own = (place_t){
            .machine = xm_probe_machine(), .devices = devices, .version = nccl->api.version};
    }
    return status;
}

/* Versions must be equal: NCCL's protocol has no promise between them. */
static xm_status_t open_device(nccl_t *nccl, const place_t *places)
{
    const xm_collective_job_t *job = nccl->job;
    int device = 0;
    xm_status_t status = choose_device(job, places, &device);

    for (int r = 0; status == XM_OK && r < job->ranks; ++r) {
        if (places[r].version != nccl->api.version) {
            status = XM_MISMATCH("NCCL is version %d here and %d on rank %d",
                                 (int)nccl->api.version, (int)places[r].version, r);
        }
    }
    XM_THEN(status, xm_memory_cuda_create(device, &nccl->space));
    XM_THEN(status, xm_memory_queue_create(nccl->space, &nccl->queue));
    return status == XM_OK ? xm_memory_mark_create(nccl->space, &nccl->mark) : status;
}

/* Opens NCCL; collective. "Unsupported" means that another library may be tried. */
xm_status_t xm_collective_nccl_open(const xm_collective_job_t *job,
                                    xm_collective_library_t **library)
{
    nccl_t *nccl = calloc(1, sizeof(*nccl));
    place_t own = {0}, *places = calloc((size_t)job->ranks, sizeof(*places));
    xm_status_t status = nccl != NULL && places != NULL ? XM_OK : XM_NO_MEMORY("NCCL");

    if (status == XM_OK) {
        nccl->base.ops = &nccl_ops;
        nccl->job = job;
        status = open_library(nccl, &own);
    }
    status = xm_collective_agree(job, status);
    XM_THEN(status, job->allgather(job->context, &own, places, sizeof(own)));
    XM_THEN(status, xm_collective_agree(job, open_device(nccl, places)));
    free(places);
    if (status < 0) {
        if (nccl != NULL) {
            nccl_destroy(&nccl->base);
        }
        return status;
    }
    (void)snprintf(nccl->base.name, sizeof(nccl->base.name), "NCCL %d.%d.%d",
                   nccl->api.version / 10000, nccl->api.version / 100 % 100,
                   nccl->api.version % 100);
    *library = &nccl->base;
    return XM_OK;
}
