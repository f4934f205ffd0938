/* SPDX-License-Identifier: Apache-2.0 */
/* The frames in which messages travel over rails: 56 bytes, little-endian, of fixed size. A fixed
 * form of little-endian numbers keeps encoding free of compilers' struct layouts, and decoding
 * checks every number that makes sense without the message, because a frame may come from any
 * process that reaches a port of UCX. */
#include "comm/transport/rails/frame.h"

#include <stdbool.h>
#include <string.h>

#include "comm/base.h"

static const uint16_t magic = 0x4658; /* "XF" */

/* Every field is always written, so frames of one message differ in nothing but their purpose,
 * and no uninitialised byte leaves this process. */
void xm_rails_frame_encode(const xm_rails_frame_t *frame, uint8_t bytes[XM_RAILS_FRAME_SIZE])
{
    xm_put_le(bytes, magic, 2);
    xm_put_le(bytes + 2, (uint64_t)frame->kind, 1);
    xm_put_le(bytes + 3, 0, 1);
    xm_put_le(bytes + 4, (uint64_t)frame->sender, 4);
    xm_put_le(bytes + 8, frame->message, 8);
    xm_put_le(bytes + 16, frame->tag, 8);
    xm_put_le(bytes + 24, frame->length, 8);
    xm_put_le(bytes + 32, frame->offset, 8);
    xm_put_le(bytes + 40, frame->chunk, 4);
    xm_put_le(bytes + 44, frame->credits, 4);
    memcpy(bytes + 48, frame->life, XM_RAILS_FRAME_RAILS);
}

/* True when the numbers make sense for the kind; the code that knows the message checks the
 * rest. */
static bool is_possible(const xm_rails_frame_t *frame)
{
    switch (frame->kind) {
    case XM_RAILS_FRAME_START:
        return frame->length > 0 && frame->chunk > 0 && frame->tag >> 48 == 0;
    case XM_RAILS_FRAME_EAGER:
        return frame->length > 0 && frame->tag >> 48 == 0;
    case XM_RAILS_FRAME_GRANT:
        return frame->offset != XM_RAILS_FRAME_ALL || frame->length > 0;
    case XM_RAILS_FRAME_CHUNK:
    case XM_RAILS_FRAME_PING:
    case XM_RAILS_FRAME_PONG:
    case XM_RAILS_FRAME_FIN:
    case XM_RAILS_FRAME_CREDIT:
        return true;
    case XM_RAILS_FRAME_BACK:
    case XM_RAILS_FRAME_HERE:
        return frame->offset < XM_RAILS_FRAME_RAILS && frame->message <= UINT32_MAX;
    }
    return false;
}

/* Decodes a header, or refuses it with XM_ERR_CORRUPT. The reserved bytes must be zero, so that
 * they can get a meaning later. */
xm_status_t xm_rails_frame_decode(const void *bytes, size_t length, xm_rails_frame_t *frame)
{
    const uint8_t *at = bytes;
    uint64_t sender;

    if (length != XM_RAILS_FRAME_SIZE || xm_get_le(at, 2) != magic || at[3] != 0 ||
        xm_get_le(at + 46, 2) != 0) {
        return xm_error_set(XM_ERR_CORRUPT, "%zu bytes are no frame of a message", length);
    }
    sender = xm_get_le(at + 4, 4);
    *frame = (xm_rails_frame_t){.kind = (xm_rails_frame_kind_t)xm_get_le(at + 2, 1),
                                .sender = (int)(sender & INT32_MAX),
                                .message = xm_get_le(at + 8, 8),
                                .tag = xm_get_le(at + 16, 8),
                                .length = xm_get_le(at + 24, 8),
                                .offset = xm_get_le(at + 32, 8),
                                .chunk = (uint32_t)xm_get_le(at + 40, 4),
                                .credits = (uint16_t)xm_get_le(at + 44, 2)};
    memcpy(frame->life, at + 48, XM_RAILS_FRAME_RAILS);
    if (sender > INT32_MAX || !is_possible(frame)) {
        return xm_error_set(XM_ERR_CORRUPT, "a frame of kind %d has impossible numbers",
                            (int)frame->kind);
    }
    return XM_OK;
}
