/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reshard object: a plan, this rank's executor, and the agreement that made them.
 *
 * Every rank prepares all it can alone first, on any channel that it has free, and says afterwards
 * in one allgather how that went. The channel all agree on is given to the executor last.
 */
#include <crossmesh/reshard.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "comm/worker.h"
#include "resharding/reshard/agreement.h"
#include "resharding/execute.h"

struct xm_reshard {
    xm_worker_guest_t guest; /* first, so that the worker's guest is the reshard */
    xm_worker_t *worker;     /* NULL: the group that it was made in is no more */
    xm_plan_t *own_plan;     /* NULL: the caller has given one */
    const xm_plan_t *plan;
    xm_executor_t *executor;   /* NULL: it could not be made, or its group is no more */
    xm_agreement_t *agreement; /* as long as the reshard is being made */
    int channel;               /* 0: none yet */
    int64_t deadline;          /* of the run */
    bool running;              /* the caller has not heard of the run's end */
    bool ended;                /* … but the worker has */
    xm_status_t result;        /* of the last run, or of the making */
    char reason[1024];         /* the sentence of a result that is a failure */
};

static xm_status_t check_tensors(const xm_reshard_params_t *params)
{
    if (params->tensors == NULL || params->tensor_count < 1) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "a reshard needs a plan or at least one tensor");
    }
    for (int t = 0; t < params->tensor_count; ++t) {
        if (params->tensors[t].src == NULL || params->tensors[t].dst == NULL) {
            return xm_error_set(XM_ERR_INVALID_ARGUMENT, "tensor %d has no %s layout", t,
                                params->tensors[t].src == NULL ? "source" : "destination");
        }
    }
    return XM_OK;
}

static xm_status_t make_plan(xm_reshard_t *self, const xm_reshard_params_t *params)
{
    xm_plan_params_t plan = XM_PLAN_PARAMS_INIT;
    xm_network_t *network = NULL;
    xm_status_t status = check_tensors(params);

    if (status == XM_OK && params->network == NULL) {
        status = xm_network_from_worker(self->worker, &network);
    }
    if (status < 0) {
        return status;
    }
    plan.tensors = params->tensors;
    plan.tensor_count = params->tensor_count;
    plan.strategy = params->strategy;
    plan.scheduler = params->scheduler;
    plan.network = params->network != NULL ? params->network : network;
    status = xm_plan_create(&plan, &self->own_plan);
    self->plan = self->own_plan;
    xm_network_destroy(network);
    return status;
}

static xm_status_t make_executor(xm_reshard_t *self, const xm_reshard_params_t *params)
{
    xm_executor_params_t executor = {0};
    xm_transport_t *transport = xm_worker_transport(self->worker);
    xm_tensor_buffers_t *none = NULL;
    xm_status_t status = xm_agreement_free_channel(transport, &executor.channel);

    if (status == XM_OK && params->buffers == NULL) {
        none = calloc((size_t)xm_plan_tensors(self->plan), sizeof(*none));
        status = none != NULL ? XM_OK : xm_error_set(XM_ERR_NO_MEMORY, "no memory for a reshard");
    }
    if (status < 0) {
        return status;
    }
    executor.plan = self->plan;
    executor.transport = transport;
    executor.buffers = params->buffers != NULL ? params->buffers : none;
    executor.window = params->window;
    executor.memory_limit = params->memory_limit;
    executor.turns = params->turns;
    executor.turn_ahead = params->turn_ahead;
    executor.device_peers = params->device_peers;
    executor.tensor_done = params->tensor_done;
    executor.arg = params->arg;
    status = xm_executor_create(&executor, &self->executor);
    free(none);
    return status;
}

/* Everything that this rank does alone. */
static xm_status_t prepare(xm_reshard_t *self, const xm_reshard_params_t *params)
{
    xm_status_t status = XM_OK;

    if (params->refusal != NULL) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "%s", params->refusal);
    }
    self->plan = params->plan;
    if (self->plan == NULL) {
        status = make_plan(self, params);
    }
    return status == XM_OK ? make_executor(self, params) : status;
}

/* Element types, for who has not named them: nothing beyond what the plan says. */
static const char *dtype_of(const xm_reshard_params_t *params)
{
    return params->dtype != NULL ? params->dtype : "unnamed";
}

/* Keeps how something has ended, for whoever asks again. */
static xm_status_t keep(xm_reshard_t *self, xm_status_t status)
{
    self->running = false;
    self->result = status;
    if (status < 0) {
        (void)snprintf(self->reason, sizeof(self->reason), "%s", xm_last_error());
    }
    return status;
}

static xm_status_t kept(const xm_reshard_t *self)
{
    return self->result < 0 ? xm_error_set(self->result, "%s", self->reason) : XM_OK;
}

/* ---- As a guest of the worker --------------------------------------------------------------- */

static bool advance(xm_worker_guest_t *guest)
{
    xm_reshard_t *self = (xm_reshard_t *)guest;

    if (!self->running || self->ended) {
        return false;
    }
    if (xm_executor_advance(self->executor) == XM_IN_PROGRESS) {
        return !xm_executor_may_sleep(self->executor);
    }
    self->ended = true; /* said once: whoever waits looks at all that it waits for */
    return true;
}

/* Lets go of everything that belongs to the group. */
static void drop(xm_reshard_t *self)
{
    xm_agreement_destroy(self->agreement);
    xm_executor_destroy(self->executor);
    if (self->channel > 0) {
        xm_worker_transport(self->worker)->taken_channels[self->channel / 64] &=
            ~(UINT64_C(1) << (self->channel % 64));
    }
    self->agreement = NULL;
    self->executor = NULL;
    self->channel = 0;
    self->worker = NULL;
}

static void leave(xm_worker_guest_t *guest)
{
    xm_reshard_t *self = (xm_reshard_t *)guest;

    (void)keep(self, xm_error_set(XM_ERR_CANCELED,
                                  "rank %d: the group that this reshard was made "
                                  "in is no more; it can only be destroyed",
                                  xm_worker_rank(self->worker)));
    drop(self);
}

/* ---- Making --------------------------------------------------------------------------------- */

xm_status_t xm_reshard_begin(xm_worker_t *worker, const xm_reshard_params_t *params,
                             xm_reshard_t **reshard)
{
    xm_reshard_params_t own = XM_RESHARD_PARAMS_INIT;
    xm_reshard_t *self;
    xm_status_t status;

    if (XM_IS_NULL(worker) || XM_IS_NULL(reshard)) {
        return XM_ERR_INVALID_ARGUMENT;
    }
    status = XM_PARAMS_COPY(xm_reshard_params_t, &own, params);
    if (status < 0) {
        return status;
    }
    self = calloc(1, sizeof(*self));
    if (self == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for a reshard");
    }
    self->worker = worker;
    self->guest.advance = advance;
    self->guest.leave = leave;
    status = prepare(self, &own);
    status = xm_agreement_post(worker, status, self->plan, dtype_of(&own), &self->agreement);
    if (status < 0) {
        xm_reshard_destroy(self);
        return status;
    }
    xm_worker_add_guest(worker, &self->guest);
    *reshard = self;
    return XM_OK;
}

/* Waits for the agreement. When it has ended well, the reshard can run. */
static xm_status_t settle(xm_reshard_t *self, int64_t until)
{
    int channel;
    xm_status_t status = xm_agreement_wait(self->agreement, until, &channel);

    if (status == XM_IN_PROGRESS) {
        return status;
    }
    (void)keep(self, status);
    xm_agreement_destroy(self->agreement);
    self->agreement = NULL;
    if (status == XM_OK) {
        self->channel = channel;
        xm_executor_take_channel(self->executor, channel);
        xm_worker_transport(self->worker)->taken_channels[channel / 64] |= UINT64_C(1)
                                                                           << (channel % 64);
    } else {
        xm_executor_destroy(self->executor);
        self->executor = NULL;
    }
    return kept(self);
}

xm_status_t xm_reshard_create(xm_worker_t *worker, const xm_reshard_params_t *params,
                              xm_reshard_t **reshard)
{
    xm_reshard_t *self;
    xm_status_t status;

    if (XM_IS_NULL(reshard)) {
        return XM_ERR_INVALID_ARGUMENT;
    }
    status = xm_reshard_begin(worker, params, &self);
    if (status < 0) {
        return status;
    }
    status = xm_reshard_wait(self, INT64_MAX);
    if (status < 0) {
        char sentence[sizeof(self->reason)];

        memcpy(sentence, self->reason, sizeof(sentence));
        xm_reshard_destroy(self);
        return xm_error_set(status, "%s", sentence);
    }
    *reshard = self;
    return XM_OK;
}

void xm_reshard_destroy(xm_reshard_t *reshard)
{
    if (reshard == NULL) {
        return;
    }
    xm_worker_remove_guest(&reshard->guest);
    if (reshard->worker != NULL) {
        drop(reshard);
    }
    xm_plan_destroy(reshard->own_plan);
    free(reshard);
}

/* ---- Running -------------------------------------------------------------------------------- */

/* Only what has been made, and is still there, can be used. */
static xm_status_t check_made(const xm_reshard_t *self)
{
    if (self->agreement != NULL) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "the reshard is still being made");
    }
    return self->executor == NULL ? kept(self) : XM_OK;
}

static int64_t or_default(const xm_reshard_t *self, int64_t deadline)
{
    return deadline != 0 ? deadline : xm_worker_deadline(self->worker);
}

static xm_status_t posted(xm_reshard_t *self, xm_status_t status, int64_t deadline)
{
    if (status == XM_OK) {
        self->running = true;
        self->ended = false;
        self->deadline = or_default(self, deadline);
    }
    return status;
}

xm_status_t xm_reshard_post(xm_reshard_t *reshard, int64_t deadline)
{
    xm_status_t status = XM_IS_NULL(reshard) ? XM_ERR_INVALID_ARGUMENT : check_made(reshard);

    return status < 0 ? status : posted(reshard, xm_executor_post(reshard->executor), deadline);
}

xm_status_t xm_reshard_post_after(xm_reshard_t *reshard, void *stream, int64_t deadline)
{
    xm_status_t status = XM_IS_NULL(reshard) ? XM_ERR_INVALID_ARGUMENT : check_made(reshard);

    return status < 0
               ? status
               : posted(reshard, xm_executor_post_after(reshard->executor, stream), deadline);
}

xm_status_t xm_reshard_wait(xm_reshard_t *reshard, int64_t until)
{
    xm_status_t status;

    if (XM_IS_NULL(reshard)) {
        return XM_ERR_INVALID_ARGUMENT;
    }
    if (reshard->agreement != NULL) {
        return settle(reshard, until);
    }
    if (!reshard->running) {
        return kept(reshard);
    }
    status = xm_executor_wait(reshard->worker, reshard->executor, until, reshard->deadline);
    return status == XM_IN_PROGRESS ? status : keep(reshard, status);
}

xm_status_t xm_reshard_test(xm_reshard_t *reshard)
{
    if (XM_IS_NULL(reshard)) {
        return XM_ERR_INVALID_ARGUMENT;
    }
    if (reshard->running && xm_executor_advance(reshard->executor) == XM_IN_PROGRESS &&
        xm_worker_now(reshard->worker) < reshard->deadline &&
        !xm_worker_has_failed(reshard->worker)) {
        return XM_IN_PROGRESS;
    }
    return xm_reshard_wait(reshard, 0); /* it has ended, or is given up */
}

xm_status_t xm_reshard_run(xm_reshard_t *reshard, int64_t deadline)
{
    xm_status_t status = xm_reshard_post(reshard, deadline);

    return status < 0 ? status : xm_reshard_wait(reshard, INT64_MAX);
}

void xm_reshard_cancel(xm_reshard_t *reshard)
{
    if (!XM_IS_NULL(reshard) && reshard->running) {
        xm_executor_cancel(reshard->executor);
    }
}

xm_status_t xm_reshard_verify(xm_reshard_t *reshard, int64_t deadline)
{
    xm_status_t status = XM_IS_NULL(reshard) ? XM_ERR_INVALID_ARGUMENT : check_made(reshard);

    if (status < 0) {
        return status;
    }
    status = xm_executor_verify(reshard->worker, reshard->executor, or_default(reshard, deadline));
    if (status < 0 && status != XM_ERR_CORRUPT) {
        /* Hashes may still come. */
        xm_transport_spend_channel(xm_worker_transport(reshard->worker), reshard->channel);
    }
    return status;
}

/* ---- What it is ----------------------------------------------------------------------------- */

const xm_plan_t *xm_reshard_plan(const xm_reshard_t *reshard)
{
    return XM_IS_NULL(reshard) ? NULL : reshard->plan;
}

uint64_t xm_reshard_staging_bytes(const xm_reshard_t *reshard)
{
    return !XM_IS_NULL(reshard) && reshard->executor != NULL
               ? xm_executor_staging_bytes(reshard->executor)
               : 0;
}

const char *xm_reshard_device_path(const xm_reshard_t *reshard)
{
    return !XM_IS_NULL(reshard) && reshard->executor != NULL
               ? xm_executor_device_path(reshard->executor)
               : "";
}
