/* SPDX-License-Identifier: Apache-2.0 */
/* The frames of the detectors: a head of fixed size, for some a fault or a table of ranks, and a
 * SipHash code over all of it. They come over sockets that anybody can send to, so the code is
 * checked before anything else is believed, and nothing is answered that fails it. Datagrams are
 * not protected against replay, and need not be: questions have numbers, and what a frame decides
 * belongs to a generation. Connections have keys of their own (courier.h). */
#include "comm/fault/frame.h"

#include <string.h>

#include "comm/base.h"

static const uint32_t magic = 0x31444d58; /* "XMD1" */
enum { VERSION = 1, FLAG_HEARS = 1 << 8, OPINION = 3 };

static size_t table_size(int ranks)
{
    return ((size_t)ranks + 1) / 2;
}

static size_t max_payload(int ranks)
{
    return table_size(ranks) > XM_BOOTSTRAP_FAULT_SIZE ? table_size(ranks)
                                                       : XM_BOOTSTRAP_FAULT_SIZE;
}

size_t xm_frame_max_size(int ranks)
{
    return XM_FRAME_HEAD_SIZE + max_payload(ranks) + XM_FRAME_CODE_SIZE;
}

static bool has_fault(xm_frame_type_t type)
{
    return type == XM_FRAME_FINDING || type == XM_FRAME_REFUSAL;
}

static bool has_table(xm_frame_type_t type)
{
    return type == XM_FRAME_HELLO || type == XM_FRAME_WELCOME;
}

static size_t put_table(const uint8_t *standing, int ranks, uint8_t *bytes)
{
    memset(bytes, 0, table_size(ranks));
    for (int rank = 0; rank < ranks; ++rank) {
        bytes[rank / 2] |= (uint8_t)((unsigned)standing[rank] << (rank % 2 * 4));
    }
    return table_size(ranks);
}

/* The half byte behind the last rank must be zero: each table has one encoding. */
static xm_status_t get_table(const uint8_t *bytes, size_t length, int ranks, uint8_t *standing)
{
    bool right = length == table_size(ranks) && (ranks % 2 == 0 || bytes[length - 1] >> 4 == 0);

    for (int rank = 0; rank < ranks && right; ++rank) {
        standing[rank] = bytes[rank / 2] >> (rank % 2 * 4) & 15;
        right = standing[rank] <= XM_STANDING_OUT;
    }
    return right ? XM_OK
                 : xm_error_set(XM_ERR_CORRUPT, "detector: %zu bytes are no table of %d ranks",
                                length, ranks);
}

size_t xm_frame_encode(const xm_frame_t *frame, int ranks, const uint8_t key[XM_SIPHASH_KEY_SIZE],
                       uint8_t *bytes)
{
    size_t length = XM_FRAME_HEAD_SIZE;

    xm_put_le(bytes, magic, 4);
    xm_put_le(bytes + 4, VERSION, 2);
    xm_put_le(bytes + 6, (uint64_t)frame->type, 2);
    xm_put_le(bytes + 8, (uint64_t)frame->sender, 4);
    xm_put_le(bytes + 12, (uint64_t)frame->receiver, 4);
    xm_put_le(bytes + 16, frame->question, 8);
    xm_put_le(bytes + 24, frame->activity, 8);
    xm_put_le(bytes + 32, frame->generation, 4);
    xm_put_le(bytes + 36, frame->probe, 4);
    xm_put_le(bytes + 40, (uint64_t)frame->about + 1, 4);
    xm_put_le(bytes + 44, (uint64_t)frame->opinion | (frame->hears ? FLAG_HEARS : 0), 4);
    if (has_fault(frame->type)) {
        length += xm_bootstrap_fault_encode(&frame->fault, bytes + length);
    } else if (has_table(frame->type)) {
        length += put_table(frame->standing, ranks, bytes + length);
    }
    xm_put_le(bytes + length, xm_siphash(key, bytes, length), XM_FRAME_CODE_SIZE);
    return length + XM_FRAME_CODE_SIZE;
}

static xm_status_t decode_payload(const uint8_t *bytes, size_t length, int ranks, xm_frame_t *frame)
{
    if (has_fault(frame->type)) {
        xm_status_t status = xm_bootstrap_fault_decode(bytes, length, &frame->fault);

        return status == XM_OK && frame->fault.rank >= ranks
                   ? xm_error_set(XM_ERR_CORRUPT, "detector: a fault of rank %d", frame->fault.rank)
                   : status;
    }
    if (has_table(frame->type)) {
        return get_table(bytes, length, ranks, frame->standing);
    }
    return length == 0 ? XM_OK
                       : xm_error_set(XM_ERR_CORRUPT, "detector: %zu bytes after type %d", length,
                                      (int)frame->type);
}

/* The length is compared with the smallest one first, since `body` would otherwise wrap around. */
xm_status_t xm_frame_decode(const uint8_t *bytes, size_t length, int ranks,
                            const uint8_t key[XM_SIPHASH_KEY_SIZE], xm_frame_t *frame)
{
    size_t body = length - XM_FRAME_CODE_SIZE;
    uint64_t type, sender, receiver, about, flags;

    if (length < XM_FRAME_HEAD_SIZE + XM_FRAME_CODE_SIZE || length > xm_frame_max_size(ranks) ||
        xm_get_le(bytes, 4) != magic || xm_get_le(bytes + 4, 2) != VERSION ||
        xm_get_le(bytes + body, XM_FRAME_CODE_SIZE) != xm_siphash(key, bytes, body)) {
        return xm_error_set(XM_ERR_CORRUPT, "detector: %zu bytes that are not of this job", length);
    }
    type = xm_get_le(bytes + 6, 2);
    sender = xm_get_le(bytes + 8, 4);
    receiver = xm_get_le(bytes + 12, 4);
    about = xm_get_le(bytes + 40, 4);
    flags = xm_get_le(bytes + 44, 4);
    if (type < XM_FRAME_ASK || type > XM_FRAME_REFUSAL || sender >= (uint64_t)ranks ||
        receiver >= (uint64_t)ranks || about > (uint64_t)ranks ||
        (flags & ~(uint64_t)FLAG_HEARS) >= OPINION) {
        return xm_error_set(XM_ERR_CORRUPT, "detector: type %u from rank %u to rank %u",
                            (unsigned)type, (unsigned)sender, (unsigned)receiver);
    }
    frame->type = (xm_frame_type_t)type;
    frame->sender = (int)sender;
    frame->receiver = (int)receiver;
    frame->question = xm_get_le(bytes + 16, 8);
    frame->activity = xm_get_le(bytes + 24, 8);
    frame->generation = (uint32_t)xm_get_le(bytes + 32, 4);
    frame->probe = (uint32_t)xm_get_le(bytes + 36, 4);
    frame->about = (int)about - 1;
    frame->opinion = (xm_opinion_t)(flags & OPINION);
    frame->hears = (flags & FLAG_HEARS) != 0;
    return decode_payload(bytes + XM_FRAME_HEAD_SIZE, body - XM_FRAME_HEAD_SIZE, ranks, frame);
}
