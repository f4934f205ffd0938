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
#include "resharding/reshard/continue.h"
#include "resharding/reshard/object.h"
#include "resharding/execute.h"

struct xm_reshard {
    xm_worker_guest_t guest; /* first, so that the worker's guest is the reshard */
    xm_worker_t *worker;     /* NULL: the group that it was made in is no more */
    xm_plan_t *own_plan;     /* NULL: the caller has given one */
    const xm_plan_t *plan;
    xm_executor_t *executor;              /* NULL: it could not be made, or its group is no more */
    xm_agreement_t *agreement;            /* as long as the reshard is being made */
    int channel;                          /* 0: none yet */
    int64_t deadline;                     /* of the run */
    bool running;                         /* the caller has not heard of the run's end */
    bool ended;                           /* … but the worker has */
    const xm_executor_changes_t *changes; /* NULL: runs move everything */
    xm_reshard_params_t params; /* those that a continuation keeps; buffers and dtype are its own */
    int size;                   /* ranks of the group that it was made in */
    void *record; /* what this rank had received as the executor went; NULL: there is one */
    size_t record_length;
    bool is_rest;       /* of a run, so it has one run that ends well */
    bool is_over;       /* … and has had it */
    xm_status_t result; /* of the last run, or of the making */
    char reason[1024];  /* the sentence of a result that is a failure */
};

static xm_status_t check_tensors(const xm_reshard_params_t *params)
{
    if (params->tensors == NULL || params->tensor_count < 1) {
        return XM_INVALID("a reshard needs a plan or at least one tensor");
    }
    for (int t = 0; t < params->tensor_count; ++t) {
        if (params->tensors[t].src == NULL || params->tensors[t].dst == NULL) {
            return XM_INVALID("tensor %d has no %s layout", t,
                              params->tensors[t].src == NULL ? "source" : "destination");
        }
    }
    return XM_OK;
}

static xm_status_t make_plan(xm_reshard_t *self, const xm_reshard_params_t *params)
{
    xm_plan_params_t plan = XM_PLAN_PARAMS_INIT;
    xm_network_t *network = NULL;
    xm_status_t status;

    XM_TRY(check_tensors(params));
    if (params->network == NULL) {
        XM_TRY(xm_network_from_worker(self->worker, &network));
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

/* Keeps what a continuation needs; without buffers this rank has none of any tensor. */
static xm_status_t take_params(xm_reshard_t *self, const xm_reshard_params_t *params)
{
    size_t tensors = (size_t)xm_plan_tensors(self->plan);
    xm_tensor_buffers_t *buffers = calloc(tensors, sizeof(*buffers));
    char *dtype = params->dtype != NULL ? strdup(params->dtype) : NULL;

    self->params = *params;
    self->params.tensors = NULL; /* the plan has them, and they may go away */
    self->params.network = NULL;
    self->params.plan = NULL;
    self->params.buffers = buffers;
    self->params.dtype = dtype;
    if (buffers == NULL || (dtype == NULL && params->dtype != NULL)) {
        return XM_NO_MEMORY("a reshard");
    }
    if (params->buffers != NULL) {
        memcpy(buffers, params->buffers, tensors * sizeof(*buffers));
    }
    return XM_OK;
}

static xm_status_t make_executor(xm_reshard_t *self)
{
    const xm_reshard_params_t *params = &self->params;
    xm_executor_params_t executor = {0};
    xm_transport_t *transport = xm_worker_transport(self->worker);

    XM_TRY(xm_agreement_free_channel(transport, &executor.channel));
    executor.plan = self->plan;
    executor.transport = transport;
    executor.buffers = params->buffers;
    executor.window = params->window;
    executor.memory_limit = params->memory_limit;
    executor.turns = params->turns;
    executor.turn_ahead = params->turn_ahead;
    executor.device_peers = params->device_peers;
    executor.verify = params->verify;
    executor.changes = self->changes;
    executor.tensor_done = params->tensor_done;
    executor.arg = params->arg;
    return xm_executor_create(&executor, &self->executor);
}

/* Everything that this rank does alone. */
static xm_status_t prepare(xm_reshard_t *self, const xm_reshard_params_t *params)
{
    xm_status_t status = XM_OK;

    if (params->refusal != NULL) {
        return XM_INVALID("%s", params->refusal);
    }
    self->plan = self->own_plan != NULL ? self->own_plan : params->plan;
    if (self->plan == NULL) {
        status = make_plan(self, params);
    }
    XM_THEN(status, take_params(self, params));
    return status == XM_OK ? make_executor(self) : status;
}

/* Element types, for who has not named them nothing beyond what the plan says; and how runs prove
 * themselves, because a rank that does not would be waited for. */
static char *describe(const xm_reshard_params_t *params, bool changes)
{
    static const char *const proofs[] = {[XM_VERIFY_OFF] = "",
                                         [XM_VERIFY_RUN] = " verified by run",
                                         [XM_VERIFY_CHUNK] = " verified by chunk"};
    char *text = NULL;

    return asprintf(&text, "%s%s%s", params->dtype != NULL ? params->dtype : "unnamed",
                    proofs[xm_executor_proof(params->verify)],
                    changes ? " of what has changed" : "") < 0
               ? NULL
               : text;
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

/* What has been received outlives the executor. */
static void leave(xm_worker_guest_t *guest)
{
    xm_reshard_t *self = (xm_reshard_t *)guest;

    if (self->executor != NULL &&
        xm_executor_delivered(self->executor, &self->record, &self->record_length) < 0) {
        self->record = NULL;
    }
    (void)keep(self, xm_error_set(XM_ERR_CANCELED,
                                  "rank %d: the group that this reshard was made "
                                  "in is no more; it can only be continued or destroyed",
                                  xm_worker_rank(self->worker)));
    drop(self);
}

/* ---- Making --------------------------------------------------------------------------------- */

/* Makes the object and says to all how this rank's preparations went. A plan for the rest of a run
 * becomes the reshard's own; NULL: it is no rest. */
static xm_status_t begin(xm_worker_t *worker, const xm_reshard_params_t *params,
                         const xm_executor_changes_t *changes, xm_plan_t *plan,
                         xm_reshard_t **reshard)
{
    xm_reshard_t *self = calloc(1, sizeof(*self));
    xm_status_t status;
    char *intent;

    if (self == NULL) {
        xm_plan_destroy(plan);
        return XM_NO_MEMORY("a reshard");
    }
    self->worker = worker;
    self->changes = changes;
    self->own_plan = plan;
    self->is_rest = plan != NULL;
    self->size = xm_worker_size(worker);
    self->guest.advance = advance;
    self->guest.leave = leave;
    intent = describe(params, changes != NULL);
    status = changes != NULL ? changes->made : XM_OK;
    XM_THEN(status, intent != NULL ? prepare(self, params) : XM_NO_MEMORY("a reshard"));
    status = xm_agreement_post(worker, status, self->plan, intent != NULL ? intent : "",
                               &self->agreement);
    free(intent);
    if (status < 0) {
        xm_reshard_destroy(self);
        return status;
    }
    xm_worker_add_guest(worker, &self->guest);
    *reshard = self;
    return XM_OK;
}

static xm_status_t begin_own(xm_worker_t *worker, const xm_reshard_params_t *params,
                             const xm_executor_changes_t *changes, xm_reshard_t **reshard)
{
    xm_reshard_params_t own = XM_RESHARD_PARAMS_INIT;

    XM_NEED_ARGUMENTS(worker, reshard);
    XM_TRY(XM_PARAMS_COPY(xm_reshard_params_t, &own, params));
    return begin(worker, &own, changes, NULL, reshard);
}

xm_status_t xm_reshard_begin(xm_worker_t *worker, const xm_reshard_params_t *params,
                             xm_reshard_t **reshard)
{
    return begin_own(worker, params, NULL, reshard);
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

/* Waits until the making has ended, and hands the reshard out or frees it. */
static xm_status_t finish(xm_reshard_t *self, xm_reshard_t **reshard)
{
    xm_status_t status = xm_reshard_wait(self, INT64_MAX);

    if (status < 0) {
        char sentence[sizeof(self->reason)];

        memcpy(sentence, self->reason, sizeof(sentence));
        xm_reshard_destroy(self);
        return xm_error_set(status, "%s", sentence);
    }
    *reshard = self;
    return XM_OK;
}

xm_status_t xm_reshard_create_changes(xm_worker_t *worker, const xm_reshard_params_t *params,
                                      const xm_executor_changes_t *changes, xm_reshard_t **reshard)
{
    xm_reshard_t *self;
    XM_TRY(begin_own(worker, params, changes, &self));

    return finish(self, reshard);
}

xm_status_t xm_reshard_create(xm_worker_t *worker, const xm_reshard_params_t *params,
                              xm_reshard_t **reshard)
{
    return XM_IS_NULL(reshard) ? XM_ERR_INVALID_ARGUMENT
                               : xm_reshard_create_changes(worker, params, NULL, reshard);
}

xm_executor_t *xm_reshard_executor(const xm_reshard_t *reshard)
{
    return reshard->executor;
}

/* ---- Going on after a failure --------------------------------------------------------------- */

/* A record that was taken as the group ended, or one of the executor that there still is. */
xm_status_t xm_reshard_delivered(const xm_reshard_t *reshard, void **bytes, size_t *length)
{
    if (reshard->running || reshard->agreement != NULL) {
        return XM_INVALID("the reshard is %s: only what has ended can be continued",
                          reshard->running ? "running" : "being made");
    }
    if (reshard->executor != NULL) {
        return xm_executor_delivered(reshard->executor, bytes, length);
    }
    if (reshard->record == NULL) {
        return XM_INVALID("the reshard was never made: there is no run to continue");
    }
    *bytes = malloc(reshard->record_length);
    XM_NEED_MEMORY(*bytes, "a record of %zu bytes", reshard->record_length);
    memcpy(*bytes, reshard->record, reshard->record_length);
    *length = reshard->record_length;
    return XM_OK;
}

/* The plan is made from what all have received, before the new reshard is begun with it. */
xm_status_t xm_reshard_continue(xm_worker_t *worker, const xm_reshard_t *failed,
                                const xm_reshard_continue_params_t *params, xm_reshard_t **rest)
{
    xm_reshard_continue_params_t own = XM_RESHARD_CONTINUE_PARAMS_INIT;
    xm_delivered_t record = {NULL, 0};
    void *bytes = NULL;
    xm_plan_t *plan = NULL;
    xm_reshard_t *self = NULL;
    xm_status_t status = XM_OK;

    XM_NEED_ARGUMENTS(worker, failed, rest);
    if (params != NULL) {
        status = XM_PARAMS_COPY(xm_reshard_continue_params_t, &own, params);
    }
    XM_THEN(status, xm_reshard_delivered(failed, &bytes, &record.length));
    record.bytes = bytes;
    status = xm_continue_plan(worker, failed->plan, failed->size, &own, status, &record, &plan);
    free(bytes);
    XM_THEN(status, begin(worker, &failed->params, NULL, plan, &self));
    return status < 0 ? status : finish(self, rest);
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
    free(reshard->record);
    free((void *)(uintptr_t)reshard->params.dtype);
    free((void *)(uintptr_t)reshard->params.buffers);
    free(reshard);
}

/* ---- Running -------------------------------------------------------------------------------- */

/* Only what has been made, and is still there, can be used. */
static xm_status_t check_made(const xm_reshard_t *self)
{
    if (self->agreement != NULL) {
        return XM_INVALID("the reshard is still being made");
    }
    return self->executor == NULL ? kept(self) : XM_OK;
}

/* The rest of a run can be run until that ends well: what was there before it is of that run. */
static xm_status_t check_may_run(const xm_reshard_t *self)
{
    XM_TRY(check_made(self));

    if (self->is_over) {
        return XM_UNSUPPORTED("the reshard has brought the rest of a run, and nothing is left to "
                              "run: make a new one");
    }
    return XM_OK;
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
    XM_TRY(XM_IS_NULL(reshard) ? XM_ERR_INVALID_ARGUMENT : check_may_run(reshard));

    return posted(reshard, xm_executor_post(reshard->executor), deadline);
}

xm_status_t xm_reshard_post_after(xm_reshard_t *reshard, void *stream, int64_t deadline)
{
    XM_TRY(XM_IS_NULL(reshard) ? XM_ERR_INVALID_ARGUMENT : check_may_run(reshard));

    return posted(reshard, xm_executor_post_after(reshard->executor, stream), deadline);
}

xm_status_t xm_reshard_wait(xm_reshard_t *reshard, int64_t until)
{
    xm_status_t status;

    XM_NEED_ARGUMENTS(reshard);
    if (reshard->agreement != NULL) {
        return settle(reshard, until);
    }
    if (!reshard->running) {
        return kept(reshard);
    }
    status = xm_executor_wait(reshard->worker, reshard->executor, until, reshard->deadline);
    reshard->is_over = reshard->is_rest && status == XM_OK;
    return status == XM_IN_PROGRESS ? status : keep(reshard, status);
}

xm_status_t xm_reshard_test(xm_reshard_t *reshard)
{
    XM_NEED_ARGUMENTS(reshard);
    if (reshard->running && xm_executor_advance(reshard->executor) == XM_IN_PROGRESS &&
        xm_worker_now(reshard->worker) < reshard->deadline &&
        !xm_worker_has_failed(reshard->worker)) {
        return XM_IN_PROGRESS;
    }
    return xm_reshard_wait(reshard, 0); /* it has ended, or is given up */
}

xm_status_t xm_reshard_run(xm_reshard_t *reshard, int64_t deadline)
{
    XM_TRY(xm_reshard_post(reshard, deadline));

    return xm_reshard_wait(reshard, INT64_MAX);
}

void xm_reshard_cancel(xm_reshard_t *reshard)
{
    if (!XM_IS_NULL(reshard) && reshard->running) {
        xm_executor_cancel(reshard->executor);
    }
}

xm_status_t xm_reshard_verify(xm_reshard_t *reshard, int64_t deadline)
{
    xm_status_t status;

    XM_TRY(XM_IS_NULL(reshard) ? XM_ERR_INVALID_ARGUMENT : check_made(reshard));
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
