/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The copy carrier: what a rank both holds and needs goes from its source tile to its destination
 * tile. Nobody else waits for that, so it takes what the other carriers leave of an advance.
 *
 * Between host tiles the host copies, slice by slice. Where a device has a side, its copy queue
 * does: several boxes inside the device at a time, each with a mark behind it. A box between host
 * and device goes through the bounce buffer in slices and has the queue to itself, because a second
 * one would need a second buffer and would share the way between the two memories.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "resharding/execute/carrier.h"
#include "resharding/execute/carrier/device.h"

enum { COPIES = 16 }; /* of whole boxes inside the device, in its queue at a time */

/* Copies in plan order, and how far this run has come with them. */
struct copies {
    copy_t *on_host;
    int64_t host_count;
    int64_t next, element; /* the one to go on with, and what of it has been copied */
    copy_t *on_device;
    int64_t device_count;
    int64_t begun, ended;
    int64_t bounced;     /* of the oldest one, if it is by way of the host: elements so far … */
    int64_t bounced_end; /* …, and with what is in the bounce buffer */
    xm_memory_mark_t *marks[COPIES];
};

/* ---- by the device -------------------------------------------------------------------------- */

static const tensor_t *tensor_of(const xm_executor_t *executor, const copy_t *copy)
{
    return &executor->tensors[executor->hops[copy->hop].tensor];
}

static bool by_way_of_host(const xm_executor_t *executor, const copy_t *copy)
{
    const tensor_t *tensor = tensor_of(executor, copy);

    return tensor->src_on_device != tensor->dst_on_device;
}

static xm_memory_mark_t *mark_of(const copies_t *copies, int64_t copy)
{
    return copies->marks[copy % COPIES];
}

/* Starts the next slice of a copy between host and device. */
static xm_status_t begin_slice(xm_executor_t *executor, int64_t index)
{
    copies_t *copies = executor->local;
    device_t *device = executor->device;
    const copy_t *one = &copies->on_device[index];
    const hop_t *hop = &executor->hops[one->hop];
    const tensor_t *tensor = tensor_of(executor, one);
    int64_t first = hop->first + copies->bounced;
    int64_t count = min_of(hop->end - first, device->bounce_bytes / tensor->element_size);
    xm_strided_copy_t copy;

    if (tensor->src_on_device) {
        xm_view_pack_copy(&one->from, xm_device_address(tensor->src), first, count,
                          xm_device_address(device->bounce), &copy);
    } else {
        xm_view_pack(&one->from, tensor->src, first, count, device->bounce);
        xm_view_unpack_copy(&hop->view, xm_device_address(tensor->dst), first, count,
                            xm_device_address(device->bounce), &copy);
    }
    copies->bounced_end = copies->bounced + count;
    return xm_device_enqueue(device, QUEUE_COPY, &copy, mark_of(copies, index));
}

static xm_status_t begin_copy(xm_executor_t *executor, int64_t index)
{
    copies_t *copies = executor->local;
    device_t *device = executor->device;
    const copy_t *one = &copies->on_device[index];
    hop_t *hop = &executor->hops[one->hop];
    const tensor_t *tensor = tensor_of(executor, one);
    xm_strided_copy_t copy;

    hop->span.start_ns = xm_transport_now(executor->transport);
    if (by_way_of_host(executor, one)) {
        copies->bounced = 0;
        return begin_slice(executor, index);
    }
    xm_view_tile_copy(&one->from, xm_device_address(tensor->src), &hop->view,
                      xm_device_address(tensor->dst), hop->first, hop->end - hop->first, &copy);
    return xm_device_enqueue(device, QUEUE_COPY, &copy, mark_of(copies, index));
}

/* A slice is in the bounce buffer, or has been taken out of it. False: more are to come. */
static bool end_slice(xm_executor_t *executor, int64_t index, xm_status_t *status)
{
    copies_t *copies = executor->local;
    device_t *device = executor->device;
    const copy_t *one = &copies->on_device[index];
    const hop_t *hop = &executor->hops[one->hop];
    const tensor_t *tensor = tensor_of(executor, one);

    if (tensor->src_on_device) {
        xm_view_unpack(&hop->view, tensor->dst, hop->first + copies->bounced,
                       copies->bounced_end - copies->bounced, device->bounce);
    }
    copies->bounced = copies->bounced_end;
    ++executor->steps;
    if (hop->first + copies->bounced == hop->end) {
        return true;
    }
    *status = begin_slice(executor, index);
    return false;
}

/* Ends what has been copied, oldest first. */
static xm_status_t end_copies(xm_executor_t *executor)
{
    copies_t *copies = executor->local;

    while (copies->ended < copies->begun) {
        int64_t index = copies->ended;
        xm_status_t status = xm_memory_mark_test(mark_of(copies, index));

        if (status != XM_OK) {
            return status == XM_IN_PROGRESS ? XM_OK : status;
        }
        if (executor->result == XM_OK && by_way_of_host(executor, &copies->on_device[index]) &&
            !end_slice(executor, index, &status)) {
            return status;
        }
        ++copies->ended;
        ++executor->steps;
        if (executor->result == XM_OK) {
            xm_executor_end_hop(executor, &executor->hops[copies->on_device[index].hop]);
        }
    }
    return XM_OK;
}

/* Copies by way of the host have the bounce buffer, and so the queue, to themselves. */
static bool may_begin(const xm_executor_t *executor)
{
    const copies_t *copies = executor->local;
    int64_t under_way = copies->begun - copies->ended;

    if (copies->begun == copies->device_count || under_way == COPIES) {
        return false;
    }
    return under_way == 0 || (!by_way_of_host(executor, &copies->on_device[copies->begun]) &&
                              !by_way_of_host(executor, &copies->on_device[copies->begun - 1]));
}

static xm_status_t begin_copies(xm_executor_t *executor)
{
    copies_t *copies = executor->local;
    xm_status_t status = XM_OK;

    while (status == XM_OK && executor->result == XM_OK && may_begin(executor)) {
        status = begin_copy(executor, copies->begun);
        copies->begun += status == XM_OK;
    }
    return status;
}

/* Ends and begins copies; a mark in the queue is polled, as nothing announces it. */
static void move_on_device(xm_executor_t *executor)
{
    copies_t *copies = executor->local;
    xm_status_t status = end_copies(executor);

    if (status < 0) {
        /* The device is lost: nothing of it will end. */
        xm_executor_fail(executor, xm_device_on_rank(executor, status));
        copies->begun = copies->ended;
        return;
    }
    status = begin_copies(executor);
    if (status < 0) {
        /* What is in the queue ends first; if the device is lost, its marks say so. */
        xm_executor_fail(executor, xm_device_on_rank(executor, status));
    }
}

/* ---- by the host ---------------------------------------------------------------------------- */

/* In plan order; a copy that the budget does not cover goes on with the next advance. */
static int64_t move_on_host(xm_executor_t *executor, int64_t budget)
{
    copies_t *copies = executor->local;

    while (budget > 0 && copies->next < copies->host_count && executor->result == XM_OK) {
        const copy_t *one = &copies->on_host[copies->next];
        hop_t *hop = &executor->hops[one->hop];
        const tensor_t *tensor = &executor->tensors[hop->tensor];
        int64_t first = hop->first + copies->element, left = hop->end - first;
        int64_t count = min_of(left, elements_for(budget, tensor->element_size));

        if (copies->element == 0) {
            hop->span.start_ns = xm_transport_now(executor->transport);
        }
        if (!executor->no_copy) {
            xm_executor_copy(executor, &one->from, tensor->src, &hop->view, tensor->dst, first,
                             count);
        }
        copies->element += count;
        ++executor->steps;
        budget -= count * tensor->element_size;
        if (count == left) {
            ++copies->next;
            copies->element = 0;
            xm_executor_end_hop(executor, hop);
        }
    }
    return budget;
}

/* ---- the carrier ---------------------------------------------------------------------------- */

static void copy_destroy(xm_executor_t *executor)
{
    copies_t *copies = executor->local;

    if (copies == NULL) {
        return;
    }
    for (int c = 0; c < COPIES; ++c) {
        xm_memory_mark_destroy(copies->marks[c]);
    }
    free(copies->on_device);
    free(copies);
}

/* Parts the executor's list into those of the host and those of the device. */
static void part_copies(xm_executor_t *executor)
{
    copies_t *copies = executor->local;

    copies->on_host = executor->copies;
    for (int64_t i = 0; i < executor->copy_count; ++i) {
        const copy_t one = executor->copies[i];
        const tensor_t *tensor = tensor_of(executor, &one);

        executor->own_bytes += hop_bytes(executor, &executor->hops[one.hop]);
        if (tensor->src_on_device || tensor->dst_on_device) {
            copies->on_device[copies->device_count++] = one;
        } else {
            copies->on_host[copies->host_count++] = one;
        }
    }
}

/* Marks for as many copies as are in the queue at a time, and a bounce buffer for the largest
 * element, if one is needed. */
static xm_status_t copy_create(xm_executor_t *executor, const xm_executor_params_t *params)
{
    copies_t *copies = calloc(1, sizeof(*copies));
    device_t *device = executor->device;
    xm_status_t status = XM_OK;

    (void)params;
    executor->local = copies; /* freed with the executor */
    if (copies != NULL) {
        copies->on_device = malloc(((size_t)executor->copy_count + 1) * sizeof(copy_t));
    }
    if (copies == NULL || copies->on_device == NULL) {
        return XM_NO_MEMORY("%" PRId64 " copies", executor->copy_count);
    }
    part_copies(executor);
    for (int64_t c = 0; c < copies->device_count && status == XM_OK; ++c) {
        const copy_t *one = &copies->on_device[c];

        if (c < COPIES) {
            status = xm_memory_mark_create(device->space, &copies->marks[c]);
        }
        if (status == XM_OK && by_way_of_host(executor, one)) {
            status = xm_device_need_bounce(device, tensor_of(executor, one)->element_size);
        }
    }
    return xm_device_on_rank(executor, status);
}

static void copy_offer(xm_executor_t *executor)
{
    copies_t *copies = executor->local;

    copies->next = copies->element = 0;
    copies->begun = copies->ended = 0;
    copies->bounced = copies->bounced_end = 0;
}

static int64_t copy_move(xm_executor_t *executor, int64_t budget)
{
    if (executor->local->device_count > 0) {
        move_on_device(executor);
    }
    return move_on_host(executor, budget);
}

/* After a failure only what the device's queue still has. */
static bool copy_busy(const xm_executor_t *executor)
{
    const copies_t *copies = executor->local;

    return copies->ended < copies->begun ||
           (executor->result == XM_OK &&
            (copies->ended < copies->device_count || copies->next < copies->host_count));
}

const carrier_t xm_carrier_copy = {.create = copy_create,
                                   .offer = copy_offer,
                                   .move = copy_move,
                                   .busy = copy_busy,
                                   .destroy = copy_destroy};
