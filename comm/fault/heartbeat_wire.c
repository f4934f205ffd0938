/* SPDX-License-Identifier: Apache-2.0 */
/* The heartbeat's datagrams: a head of fixed size, for a fault status its encoding, and a
 * SipHash code over all of it with the job's key. Anybody can send datagrams to an open port,
 * so the code is checked before anything else is read, and nothing is answered that fails it.
 * There is no protection against replay, and none is needed: questions have numbers, and a
 * fault status belongs to a generation. */
#include "comm/fault/heartbeat_wire.h"

#include "comm/base.h"

static const uint32_t magic = 0x31484d58; /* "XMH1" */
enum { VERSION = 1 };

/* Encodes into the caller's buffer; the code covers every byte before it. */
size_t xm_heartbeat_encode(const xm_heartbeat_frame_t *frame,
                           const uint8_t key[XM_SIPHASH_KEY_SIZE],
                           uint8_t bytes[XM_HEARTBEAT_MAX_SIZE])
{
    size_t length = XM_HEARTBEAT_HEAD_SIZE;

    xm_put_le(bytes, magic, 4);
    xm_put_le(bytes + 4, VERSION, 2);
    xm_put_le(bytes + 6, (uint64_t)frame->type, 2);
    xm_put_le(bytes + 8, (uint64_t)frame->sender, 4);
    xm_put_le(bytes + 12, (uint64_t)frame->receiver, 4);
    xm_put_le(bytes + 16, frame->question, 8);
    xm_put_le(bytes + 24, frame->activity, 8);
    xm_put_le(bytes + 32, frame->generation, 4);
    xm_put_le(bytes + 36, frame->probe, 4);
    if (frame->type == XM_HEARTBEAT_FAULT_STATUS) {
        length += xm_bootstrap_fault_encode(&frame->fault, bytes + length);
    }
    xm_put_le(bytes + length, xm_siphash(key, bytes, length), XM_HEARTBEAT_CODE_SIZE);
    return length + XM_HEARTBEAT_CODE_SIZE;
}

/* Only a fault status has anything behind the head. */
static xm_status_t decode_fault(const uint8_t *bytes, size_t length, xm_heartbeat_frame_t *frame)
{
    if (frame->type == XM_HEARTBEAT_FAULT_STATUS) {
        return xm_bootstrap_fault_decode(bytes, length, &frame->fault);
    }
    return length == 0 ? XM_OK
                       : xm_error_set(XM_ERR_CORRUPT, "heartbeat: %zu bytes after type %d", length,
                                      (int)frame->type);
}

/* Decodes, or fails as corrupt. The length is compared with the smallest one first, since
 * `body` would otherwise wrap around. */
xm_status_t xm_heartbeat_decode(const uint8_t *bytes, size_t length,
                                const uint8_t key[XM_SIPHASH_KEY_SIZE], xm_heartbeat_frame_t *frame)
{
    xm_heartbeat_frame_t decoded = {0};
    size_t body = length - XM_HEARTBEAT_CODE_SIZE;
    uint64_t type, sender, receiver;
    xm_status_t status;

    if (length < XM_HEARTBEAT_HEAD_SIZE + XM_HEARTBEAT_CODE_SIZE ||
        length > XM_HEARTBEAT_MAX_SIZE || xm_get_le(bytes, 4) != magic ||
        xm_get_le(bytes + 4, 2) != VERSION ||
        xm_get_le(bytes + body, XM_HEARTBEAT_CODE_SIZE) != xm_siphash(key, bytes, body)) {
        return xm_error_set(XM_ERR_CORRUPT, "heartbeat: %zu bytes that are not of this job",
                            length);
    }
    type = xm_get_le(bytes + 6, 2);
    sender = xm_get_le(bytes + 8, 4);
    receiver = xm_get_le(bytes + 12, 4);
    if (type < XM_HEARTBEAT_PING || type > XM_HEARTBEAT_FAULT_STATUS ||
        sender >= XM_BOOTSTRAP_MAX_RANKS || receiver >= XM_BOOTSTRAP_MAX_RANKS) {
        return xm_error_set(XM_ERR_CORRUPT, "heartbeat: type %u from rank %u to rank %u",
                            (unsigned)type, (unsigned)sender, (unsigned)receiver);
    }
    decoded.type = (xm_heartbeat_type_t)type;
    decoded.sender = (int)sender;
    decoded.receiver = (int)receiver;
    decoded.question = xm_get_le(bytes + 16, 8);
    decoded.activity = xm_get_le(bytes + 24, 8);
    decoded.generation = (uint32_t)xm_get_le(bytes + 32, 4);
    decoded.probe = (uint32_t)xm_get_le(bytes + 36, 4);
    status = decode_fault(bytes + XM_HEARTBEAT_HEAD_SIZE, body - XM_HEARTBEAT_HEAD_SIZE, &decoded);
    if (status == XM_OK) {
        *frame = decoded;
    }
    return status;
}
