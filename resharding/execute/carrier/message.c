/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The message carrier: a chunk is a message of the transport. It is sent from, or received into,
 * the tile itself where it is contiguous there and the transport can reach it, and otherwise a pack
 * buffer. Every hop can go this way, so it needs nobody's word, and hops whose ends find nothing
 * better go like this.
 *
 * What a chunk waits for, by turns: sent from a device, its packing, then the transport; received
 * into one, the transport, then its unpacking. The host packs and unpacks at once, within `post`
 * and `ended`: the first as late as possible, the second in the lane's order.
 */
#include "resharding/execute/carrier.h"
#include "resharding/execute/carrier/device.h"

/* Copies between the device's tile and the pack buffer. */
static xm_status_t pack_on_device(slot_t *slot)
{
    const hop_t *hop = slot->hop;
    const tensor_t *tensor = &slot->lane->executor->tensors[hop->tensor];
    int64_t first, count;
    xm_strided_copy_t copy;

    chunk_range(hop, slot->chunk, &first, &count);
    if (lane_sends(slot->lane)) {
        xm_view_pack_copy(&hop->view, xm_device_address(hop->in_dst ? tensor->dst : tensor->src),
                          first, count, xm_device_address(slot->packed), &copy);
        return xm_device_begin(slot, QUEUE_OUT, &copy);
    }
    xm_view_unpack_copy(&hop->view, xm_device_address(tensor->dst), first, count,
                        xm_device_address(slot->packed), &copy);
    return xm_device_begin(slot, QUEUE_IN, &copy);
}

/* Sent, or received: then it may have to be unpacked. Not after a failure, when the contents of the
 * destination are undefined anyway. */
static void message_done(xm_op_t *op, xm_status_t status)
{
    slot_t *slot = op->arg;

    slot->op_busy = false;
    if (status == XM_OK && slot->lane->executor->result == XM_OK && !lane_sends(slot->lane) &&
        slot->hop->on_device && slot->packed != NULL) {
        status = pack_on_device(slot);
    }
    if (status != XM_IN_PROGRESS) {
        xm_executor_chunk_ended(slot, status);
    }
}

/* Finds the memory that the slot's chunk is sent from or received into; packs it first if the host
 * does that. */
static void find_memory(slot_t *slot)
{
    const hop_t *hop = slot->hop;
    const xm_executor_t *executor = slot->lane->executor;
    const tensor_t *tensor = &executor->tensors[hop->tensor];
    bool sends = lane_sends(slot->lane);
    char *base = hop->in_dst ? tensor->dst : (char *)(uintptr_t)tensor->src;
    int64_t first, count, offset;

    chunk_range(hop, slot->chunk, &first, &count);
    slot->length = (size_t)(count * tensor->element_size);
    if (sends && hop->forward != NULL) {
        slot->buffer = xm_forward_buffer(hop, slot->chunk, &slot->length);
        slot->memory = executor->staging.registration;
        return;
    }
    if (!hop->staged && xm_view_contiguous(&hop->view, first, count, &offset)) {
        slot->memory = hop->in_dst ? tensor->dst_memory : tensor->src_memory;
        slot->buffer = base + offset;
        return;
    }
    slot->packed = slot->buffer = xm_executor_take_pack_buffer(slot->lane);
    slot->memory = executor->staging.registration;
    if (sends && !executor->no_copy && !hop->on_device) {
        xm_view_pack(&hop->view, base, first, count, slot->packed);
    }
}

void xm_message_announce(slot_t *slot)
{
    if (slot->proven != NULL) {
        xm_prover_add(&slot->lane->prover, slot->proven, &slot->op);
    }
}

void xm_message_transmit(slot_t *slot, void (*done)(xm_op_t *op, xm_status_t status))
{
    if (slot->proven == NULL) {
        xm_executor_transmit(slot, done);
        return;
    }
    slot->op.done = done;
    xm_proven_post(slot->proven, slot->tag, slot->buffer, slot->length, slot->memory);
}

/* A chunk that the device packs is sent when that is done; the slots behind it go on meanwhile, so
 * while one is sent the next is being fetched. */
static void message_post(slot_t *slot)
{
    xm_status_t status;

    xm_message_announce(slot);
    find_memory(slot);
    if (!lane_sends(slot->lane) || !slot->hop->on_device || slot->packed == NULL) {
        xm_message_transmit(slot, message_done);
        return;
    }
    status = pack_on_device(slot);
    if (status < 0) {
        xm_executor_chunk_ended(slot, status);
    }
}

/* The chunk is packed or unpacked. After a failure it goes no further. */
static void message_moved(slot_t *slot, xm_status_t status)
{
    xm_executor_t *executor = slot->lane->executor;

    if (status < 0) {
        xm_executor_fail(executor, xm_device_on_rank(executor, status));
    }
    if (executor->result == XM_OK && lane_sends(slot->lane)) {
        xm_message_transmit(slot, message_done);
    } else {
        xm_executor_chunk_ended(slot, executor->result);
    }
}

/* Unpacks what the host has to, and gives the pack buffer back, unless the chunk is passed on from
 * there; never takes long. */
static bool message_ended(slot_t *slot)
{
    lane_t *lane = slot->lane;
    const hop_t *hop = slot->hop;
    int64_t first, count;

    if (hop->forward != NULL && lane_sends(lane)) {
        xm_forward_passed(lane->executor, hop, slot->chunk);
    }
    if (slot->packed == NULL) {
        return true;
    }
    if (hop->forward != NULL) {
        xm_forward_keep(hop, slot->chunk, slot->packed, slot->length);
        return true;
    }
    if (slot->status == XM_OK && !lane_sends(lane) && !hop->on_device && !lane->executor->no_copy) {
        chunk_range(hop, slot->chunk, &first, &count);
        xm_view_unpack(&hop->view, lane->executor->tensors[hop->tensor].dst, first, count,
                       slot->packed);
    }
    xm_executor_return_pack_buffer(lane, slot->packed);
    return true;
}

const carrier_t xm_carrier_message = {
    .packs = true, .post = message_post, .moved = message_moved, .ended = message_ended};
