/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies a serialised ONNX model without its weights, before the schema parses it. A parser
 * generated from the schema would copy every byte of data into memory of its own: gigabytes that no
 * rule looks at. Walking protobuf's wire format needs to know only which fields lead to tensors and
 * which fields of a tensor are data; everything else is copied as it is, unknown fields included.
 *
 * Lengths in the copy are not known until their message is copied, so each is written afterwards
 * into five bytes, which protobuf allows although fewer would do.
 */

#include "planner/frontend/onnx/wire.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 24, LENGTH_BYTES = 5 };

/* The messages on the way to tensors, and the fields that hold them, by their numbers in ONNX's
 * schema. */
typedef enum message {
    MODEL,
    GRAPH,
    NODE,
    ATTRIBUTE,
    TENSOR,
    SPARSE,
    FUNCTION,
    LEAF, /* anything else: copied as it is */
} message_t;

static const struct {
    message_t in;
    uint32_t field;
    message_t holds;
} ways[] = {{MODEL, 7, GRAPH},     {MODEL, 25, FUNCTION},  {GRAPH, 1, NODE},
            {GRAPH, 5, TENSOR},    {GRAPH, 15, SPARSE},    {FUNCTION, 7, NODE},
            {NODE, 5, ATTRIBUTE},  {ATTRIBUTE, 5, TENSOR}, {ATTRIBUTE, 10, TENSOR},
            {ATTRIBUTE, 6, GRAPH}, {ATTRIBUTE, 11, GRAPH}, {ATTRIBUTE, 22, SPARSE},
            {SPARSE, 1, TENSOR},   {SPARSE, 2, TENSOR}};

/* The fields of a tensor that hold data: float, int32, string, int64, raw, double and uint64. */
static const uint32_t data_fields[] = {4, 5, 6, 7, 9, 10, 11};

typedef struct copier {
    const char *name;
    const uint8_t *bytes;
    uint8_t *out;
    size_t length, room;
} copier_t;

static xm_status_t refuse(const copier_t *c, size_t at, const char *what)
{
    return XM_MALFORMED("%s: byte %zu: %s; this is no ONNX model", c->name, at, what);
}

static xm_status_t append(copier_t *c, const void *bytes, size_t size)
{
    XM_NEED_MEMORY(xm_array_reserve(&c->out, &c->room, c->length + size, 1), "the graph of %s",
                   c->name);
    if (size > 0) {
        memcpy(c->out + c->length, bytes, size);
    }
    c->length += size;
    return XM_OK;
}

/* At most ten bytes, so a run of continuation bits ends in an error. */
static bool read_varint(const copier_t *c, size_t *at, size_t end, uint64_t *value)
{
    *value = 0;
    for (unsigned shift = 0; shift < 64 && *at < end; shift += 7) {
        uint8_t byte = c->bytes[(*at)++];

        *value |= (uint64_t)(byte & 0x7f) << shift;
        if ((byte & 0x80) == 0) {
            return true;
        }
    }
    return false;
}

static message_t held_by(message_t in, uint32_t field)
{
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); ++i) {
        if (ways[i].in == in && ways[i].field == field) {
            return ways[i].holds;
        }
    }
    return LEAF;
}

static bool is_dropped(message_t in, uint32_t field, uint64_t size)
{
    for (size_t i = 0; in == TENSOR && i < sizeof(data_fields) / sizeof(data_fields[0]); ++i) {
        if (data_fields[i] == field) {
            return size > ONNX_KEPT_BYTES;
        }
    }
    return false;
}

/* Moves past a field that has no length of its own. Groups (types 3 and 4), which protobuf has
 * given up, are refused with other unknown types. */
static xm_status_t skip_plain(const copier_t *c, unsigned type, size_t *at, size_t end)
{
    uint64_t ignored;
    size_t size = type == 1 ? 8 : 4;

    if (type == 0) {
        return read_varint(c, at, end, &ignored) ? XM_OK : refuse(c, *at, "a number does not end");
    }
    if (type != 1 && type != 5) {
        return refuse(c, *at, "a field has an unknown type");
    }
    if (end - *at < size) {
        return refuse(c, *at, "a number does not end");
    }
    *at += size;
    return XM_OK;
}

/* Writes a length in five bytes, padded, so that its place can be kept free before it is known. 35
 * bits hold more than the 2 GiB that are allowed. */
static void write_length(uint8_t *at, size_t length)
{
    for (int i = 0; i < LENGTH_BYTES; ++i) {
        at[i] = (uint8_t)((length & 0x7f) | (i + 1 < LENGTH_BYTES ? 0x80 : 0));
        length >>= 7;
    }
}

/* Copies one message field by field. Every field consumes at least a byte, and none may reach
 * beyond the message that holds it. Subgraphs nest; their depth is limited.
 * NOLINTNEXTLINE(misc-no-recursion) */
static xm_status_t copy_message(copier_t *c, message_t kind, size_t at, size_t end, int depth)
{
    if (depth > MAX_DEPTH) {
        return refuse(c, at, "graphs are nested too deep");
    }
    while (at < end) {
        static const uint8_t no_length[LENGTH_BYTES] = {0};
        size_t start = at, tag_end, from;
        uint64_t tag, size;
        message_t held;
        xm_status_t status;

        if (!read_varint(c, &at, end, &tag) || tag >> 3 == 0 || tag >> 3 > (1U << 29)) {
            return refuse(c, start, "a field has no number");
        }
        tag_end = at;
        if ((tag & 7) != 2) {
            status = skip_plain(c, (unsigned)(tag & 7), &at, end);
            XM_THEN(status, append(c, c->bytes + start, at - start));
            XM_TRY(status);
            continue;
        }
        if (!read_varint(c, &at, end, &size) || size > end - at) {
            return refuse(c, start, "a field is longer than what holds it");
        }
        from = at;
        at += size;
        if (is_dropped(kind, (uint32_t)(tag >> 3), size)) {
            continue;
        }
        held = held_by(kind, (uint32_t)(tag >> 3));
        if (held == LEAF) {
            status = append(c, c->bytes + start, at - start);
        } else {
            size_t length_at;

            status = append(c, c->bytes + start, tag_end - start);
            length_at = c->length;
            XM_THEN(status, append(c, no_length, LENGTH_BYTES));
            XM_THEN(status, copy_message(c, held, from, at, depth + 1));
            if (status == XM_OK && (c->length - length_at) >> 31 != 0) {
                return refuse(c, from, "the graph without its weights takes more than 2 GiB");
            }
            if (status == XM_OK) {
                write_length(c->out + length_at, c->length - length_at - LENGTH_BYTES);
            }
        }
        XM_TRY(status);
    }
    return XM_OK;
}

xm_status_t onnx_wire_shrink(const void *bytes, size_t size, const char *name, uint8_t **shrunk,
                             size_t *length)
{
    copier_t c = {.name = name, .bytes = bytes};
    xm_status_t status = copy_message(&c, MODEL, 0, size, 0);

    if (status == XM_OK && c.out == NULL) {
        status = refuse(&c, 0, "nothing is there");
    }
    if (status != XM_OK) {
        free(c.out);
        return status;
    }
    *shrunk = c.out;
    *length = c.length;
    return XM_OK;
}
