/* SPDX-License-Identifier: Apache-2.0 */
/* The frames of a regrouping: hello, welcome (each with a set of ranks as bits) and refusal,
 * with a SipHash code. They come over sockets that anybody can connect to, and through
 * connections that afterwards carry something else, so the decoder also says how many bytes to
 * read next: never more than belong to the frame. */
#include "comm/fault/regroup_wire.h"

#include <string.h>

#include "comm/base.h"

static const uint32_t magic = 0x31474d58; /* "XMG1" */
enum { VERSION = 1 };

static size_t set_size(int ranks)
{
    return ((size_t)ranks + 7) / 8;
}

static size_t max_payload(int ranks)
{
    return set_size(ranks) > XM_BOOTSTRAP_FAULT_SIZE ? set_size(ranks) : XM_BOOTSTRAP_FAULT_SIZE;
}

size_t xm_regroup_max_size(int ranks)
{
    return XM_REGROUP_HEAD_SIZE + max_payload(ranks) + XM_REGROUP_CODE_SIZE;
}

/* The frame's set has a bit for each rank of the job as it began, whatever the group is now. */
size_t xm_regroup_encode(const xm_regroup_frame_t *frame, int ranks,
                         const uint8_t key[XM_SIPHASH_KEY_SIZE], uint8_t *bytes)
{
    uint8_t *payload = bytes + XM_REGROUP_HEAD_SIZE;
    size_t length;

    if (frame->type == XM_REGROUP_REFUSAL) {
        length = xm_bootstrap_fault_encode(&frame->fault, payload);
    } else {
        length = set_size(ranks);
        memset(payload, 0, length);
        for (int rank = 0; rank < ranks; ++rank) {
            payload[rank / 8] |= (uint8_t)((unsigned)frame->set[rank] << (rank % 8));
        }
    }
    xm_put_le(bytes, magic, 4);
    xm_put_le(bytes + 4, VERSION, 2);
    xm_put_le(bytes + 6, (uint64_t)frame->type, 2);
    xm_put_le(bytes + 8, (uint64_t)frame->sender, 4);
    xm_put_le(bytes + 12, frame->generation, 4);
    xm_put_le(bytes + 16, length, 4);
    length += XM_REGROUP_HEAD_SIZE;
    xm_put_le(bytes + length, xm_siphash(key, bytes, length), XM_REGROUP_CODE_SIZE);
    return length + XM_REGROUP_CODE_SIZE;
}

/* Bits beyond the last rank must be zero: each set has one encoding. */
static xm_status_t decode_set(const uint8_t *payload, size_t length, int ranks, bool *set)
{
    if (length != set_size(ranks) || (ranks % 8 != 0 && payload[length - 1] >> (ranks % 8) != 0)) {
        return xm_error_set(XM_ERR_CORRUPT, "regrouping: %zu bytes are no set of %d ranks", length,
                            ranks);
    }
    for (int rank = 0; rank < ranks; ++rank) {
        set[rank] = (payload[rank / 8] >> (rank % 8) & 1) != 0;
    }
    return XM_OK;
}

/* Bytes to read next. For a length that cannot be it asks for one byte more, upon which
 * decoding fails. */
size_t xm_regroup_wants(const uint8_t *bytes, size_t length, int ranks)
{
    size_t payload, end;

    if (length < XM_REGROUP_HEAD_SIZE) {
        return XM_REGROUP_HEAD_SIZE - length;
    }
    payload = (size_t)xm_get_le(bytes + 16, 4);
    end = XM_REGROUP_HEAD_SIZE + payload + XM_REGROUP_CODE_SIZE;
    return payload <= max_payload(ranks) && end > length ? end - length : 1;
}

/* Decodes a frame; XM_IN_PROGRESS when it is not complete. The length is checked before more is
 * waited for, the code before anything is believed. */
xm_status_t xm_regroup_decode(const uint8_t *bytes, size_t length, int ranks,
                              const uint8_t key[XM_SIPHASH_KEY_SIZE], xm_regroup_frame_t *frame,
                              size_t *used)
{
    size_t payload, end;
    uint64_t type, sender;

    if (length < XM_REGROUP_HEAD_SIZE) {
        return XM_IN_PROGRESS;
    }
    type = xm_get_le(bytes + 6, 2);
    sender = xm_get_le(bytes + 8, 4);
    payload = (size_t)xm_get_le(bytes + 16, 4);
    end = XM_REGROUP_HEAD_SIZE + payload;
    if (xm_get_le(bytes, 4) != magic || xm_get_le(bytes + 4, 2) != VERSION ||
        payload > max_payload(ranks) || sender >= (uint64_t)ranks) {
        return xm_error_set(XM_ERR_CORRUPT, "regrouping: a frame that is not of this job");
    }
    if (length < end + XM_REGROUP_CODE_SIZE) {
        return XM_IN_PROGRESS;
    }
    if (xm_get_le(bytes + end, XM_REGROUP_CODE_SIZE) != xm_siphash(key, bytes, end)) {
        return xm_error_set(XM_ERR_CORRUPT, "regrouping: a frame that is not of this job");
    }
    frame->type = (xm_regroup_type_t)type;
    frame->sender = (int)sender;
    frame->generation = (uint32_t)xm_get_le(bytes + 12, 4);
    *used = end + XM_REGROUP_CODE_SIZE;
    switch (type) {
    case XM_REGROUP_HELLO:
    case XM_REGROUP_WELCOME:
        return decode_set(bytes + XM_REGROUP_HEAD_SIZE, payload, ranks, frame->set);
    case XM_REGROUP_REFUSAL:
        return xm_bootstrap_fault_decode(bytes + XM_REGROUP_HEAD_SIZE, payload, &frame->fault);
    default:
        return xm_error_set(XM_ERR_CORRUPT, "regrouping: a frame of type %u", (unsigned)type);
    }
}
