/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes, abandons and frees an executor. Everything that a run needs is made here, in the order in
 * which one thing needs another: hops from the plan, lanes from the hops, the turns between hops,
 * the device that tiles are on, what each carrier can do with that, and pack buffers for what is
 * left to messages. This is the only file that knows the carriers by name.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "comm/base.h"
#include "resharding/execute/carrier.h"
#include "resharding/execute/carrier/device.h"
#include "resharding/execute/turns.h"

enum {
    MAX_WINDOW = 64,
    MAX_CHANNEL = 254,              /* the tags of 255 are the worker's own (transport.h) */
    STREAM_LEAST = 16 * 1024 * 1024 /* when a run copies so much, its beginning has left a core's
                                       share of the caches by its end */
};

static const carrier_t *const carriers[CARRIERS] = {
    [CARRIER_MESSAGE] = &xm_carrier_message,
    [CARRIER_DIRECT] = &xm_carrier_direct,
    [CARRIER_IPC] = &xm_carrier_ipc,
    [CARRIER_COPY] = &xm_carrier_copy,
};

static const carrier_t *const changes_only[CARRIERS] = {
    [CARRIER_MESSAGE] = &xm_carrier_changes,
    [CARRIER_DIRECT] = &xm_carrier_none,
    [CARRIER_IPC] = &xm_carrier_none,
    [CARRIER_COPY] = &xm_carrier_changed_copies,
};

static xm_status_t check_params(const xm_executor_params_t *params)
{
    int tensors = xm_plan_tensors(params->plan), ranks = xm_plan_ranks(params->plan);

    if (params->window < 0 || params->window > MAX_WINDOW || params->channel < 0 ||
        params->channel > MAX_CHANNEL) {
        return XM_INVALID("window %d is outside 0 … %d, or channel %d outside 0 … %d",
                          params->window, MAX_WINDOW, params->channel, MAX_CHANNEL);
    }
    if (params->buffers == NULL && tensors != 1) {
        return XM_INVALID("rank %d: a batch of %d tensors needs a list of their buffers",
                          params->transport->rank, tensors);
    }
    if (ranks > params->transport->size) {
        return XM_INVALID("the plan names rank %d, the job has ranks 0 … %d", ranks - 1,
                          params->transport->size - 1);
    }
    if (xm_transport_channel_is_spent(params->transport, params->channel)) {
        return XM_INVALID("rank %d: a run failed on channel %d, and messages of it may still come: "
                          "use another channel, or shrink the group",
                          params->transport->rank, params->channel);
    }
    return XM_OK;
}

static xm_status_t make_tensors(xm_executor_t *executor)
{
    executor->tensor_count = xm_plan_tensors(executor->plan);
    executor->tensors = calloc((size_t)executor->tensor_count + 1, sizeof(*executor->tensors));
    XM_NEED_MEMORY(executor->tensors, "%d tensors", executor->tensor_count);
    for (int t = 0; t < executor->tensor_count; ++t) {
        executor->tensors[t].element_size = xm_plan_tensor_element_size(executor->plan, t);
    }
    return XM_OK;
}

/* Where sends wait for an answer, what is on its way back is in flight as well. */
int xm_executor_window(const xm_transport_t *transport)
{
    int window = xm_config_count(XM_CONFIG_WINDOW);

    return transport->acknowledges && !xm_config_is_set(XM_CONFIG_WINDOW) ? 2 * window : window;
}

xm_verify_t xm_executor_proof(xm_verify_t asked)
{
    return asked > XM_VERIFY_DEFAULT && asked <= XM_VERIFY_CHUNK
               ? asked
               : XM_VERIFY_OFF + (xm_verify_t)xm_config_choice(XM_CONFIG_VERIFY);
}

/* Where nothing is copied there is nothing to prove. */
static xm_verify_t verify_of(const xm_executor_params_t *params)
{
    xm_verify_t asked = params->no_copy ? XM_VERIFY_OFF : xm_executor_proof(params->verify);

    /* A run that only hands out has no tiles to compare; whoever writes them does. */
    return params->changes != NULL && asked == XM_VERIFY_RUN ? XM_VERIFY_OFF : asked;
}

/* Every slot may have a chunk that proves itself. */
static xm_status_t make_proven(xm_executor_t *executor)
{
    int64_t next = 0;

    for (int l = 0; l < executor->lane_count; ++l) {
        next += executor->lanes[l].slot_count;
    }
    executor->proven = calloc((size_t)next + 1, sizeof(*executor->proven));
    XM_NEED_MEMORY(executor->proven, "the hashes of %" PRId64 " chunks", next);
    for (int l = 0; l < executor->lane_count; ++l) {
        for (int s = 0; s < executor->lanes[l].slot_count; ++s) {
            executor->lanes[l].slots[s].proven = &executor->proven[--next];
        }
    }
    return XM_OK;
}

/* A fabric that keeps the order needs no window to protect it, and much in flight to be exact. */
static int window_of(const xm_executor_params_t *params)
{
    int window = xm_executor_window(params->transport);

    if (params->window > 0) {
        return params->window;
    }
    if (params->ordered) {
        return MAX_WINDOW;
    }
    /* A box alone has no order to keep, and turns keep it for others: what bridges the pauses of
     * those who pass it on is welcome, above all where a rank has a NIC of its own. */
    return (xm_plan_task_count(params->plan) == 1 || params->turns) &&
                   !xm_config_is_set(XM_CONFIG_WINDOW) &&
                   window == xm_config_count(XM_CONFIG_WINDOW)
               ? 2 * window
               : window;
}

/* Carriers hear of the device, and in what they make may decide what is left to pack buffers. */
static xm_status_t make_carriers(xm_executor_t *executor, const xm_executor_params_t *params)
{
    xm_status_t status = XM_OK;

    for (int c = 0; c < CARRIERS && status == XM_OK; ++c) {
        if (executor->carriers[c]->create != NULL) {
            status = executor->carriers[c]->create(executor, params);
        }
    }
    executor->copy = executor->own_bytes >= STREAM_LEAST ? xm_view_stream : xm_view_copy;
    return status;
}

xm_status_t xm_executor_create(const xm_executor_params_t *params, xm_executor_t **executor)
{
    const xm_tensor_buffers_t one = {params->src, params->src_bytes, params->dst,
                                     params->dst_bytes};
    const xm_tensor_buffers_t *buffers = params->buffers != NULL ? params->buffers : &one;
    xm_executor_t *created;
    xm_status_t status;

    XM_TRY(check_params(params));
    XM_TRY(xm_executor_check_buffers(params, buffers));
    created = calloc(1, sizeof(*created));
    XM_NEED_MEMORY(created, "an executor");
    created->plan = params->plan;
    created->transport = params->transport;
    created->changes = params->changes;
    created->carriers = params->changes != NULL ? changes_only : carriers;
    created->window = window_of(params);
    created->channel = params->channel;
    created->runs_left = -1;
    created->ordered = params->ordered;
    created->no_copy = params->no_copy;
    created->verify = verify_of(params);
    created->tensor_done = params->tensor_done;
    created->chunk_ran = params->chunk_ran;
    created->arg = params->arg;
    status = make_tensors(created);
    XM_THEN(status, xm_executor_list_hops(created));
    XM_THEN(status, xm_executor_make_lanes(created));
    if (status == XM_OK && created->verify == XM_VERIFY_CHUNK) {
        status = make_proven(created);
    }
    XM_THEN(status, xm_forwards_create(created, params->changes != NULL));
    if (status == XM_OK && params->turns) {
        status = xm_turns_create(created, params->turn_ahead, &created->turns);
    }
    if (status == XM_OK) {
        xm_executor_take_buffers(created, buffers);
        status = xm_device_find(created);
    }
    XM_THEN(status, xm_executor_register_buffers(created, buffers));
    XM_THEN(status, make_carriers(created, params));
    XM_THEN(status, xm_executor_make_staging(created, params->memory_limit));
    if (status < 0) {
        xm_executor_destroy(created);
        return status;
    }
    *executor = created;
    return XM_OK;
}

static bool drain(xm_executor_t *executor)
{
    double until = xm_clock_seconds() + XM_DRAIN_SECONDS;

    /* The device ends by itself or fails; only what others must end is given up. */
    do {
        if (xm_executor_advance(executor) != XM_IN_PROGRESS) {
            return true;
        }
        (void)xm_transport_progress(executor->transport);
    } while (xm_executor_is_busy(executor) || xm_clock_seconds() < until);
    return false;
}

void xm_executor_abandon(xm_executor_t *executor)
{
    xm_executor_cancel(executor);
    if (drain(executor)) {
        return;
    }
    executor->gave_up = true;
    for (int l = 0; l < executor->lane_count; ++l) {
        if (executor->lanes[l].in_flight > 0) {
            xm_transport_peer_failed(executor->transport, executor->lanes[l].peer);
        }
    }
    xm_signals_give_up(executor);
    (void)drain(executor);
}

void xm_executor_destroy(xm_executor_t *executor)
{
    if (executor == NULL) {
        return;
    }
    xm_executor_abandon(executor);
    for (int c = 0; c < CARRIERS; ++c) {
        if (executor->carriers[c]->destroy != NULL) {
            executor->carriers[c]->destroy(executor);
        }
    }
    xm_executor_release_staging(executor);
    xm_device_destroy(executor);
    xm_executor_deregister_buffers(executor);
    xm_turns_destroy(executor->turns);
    xm_forwards_destroy(executor);
    xm_executor_let_go(executor, executor->slots); /* each has the bytes of messages */
    xm_executor_let_go(executor, executor->proven);
    free(executor->ready);
    free(executor->items);
    free(executor->lanes);
    free(executor->dependants);
    free(executor->copies);
    free(executor->hops);
    free(executor->tensors);
    free(executor);
}

void xm_executor_take_channel(xm_executor_t *executor, int channel)
{
    executor->channel = channel;
}
