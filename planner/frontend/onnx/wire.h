/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An ONNX model without its weights: what is parsed by the schema must not hold gigabytes that
 * nobody looks at.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "comm/base.h"

enum { ONNX_KEPT_BYTES = 16 << 10 /* data of a tensor up to this size stays */ };

/*
 * Copies a serialized ModelProto, leaving out the data of large tensors; *shrunk is freed with
 * free(). Refused with the offset: bytes that are not in protobuf's format, or nest too deep.
 */
xm_status_t onnx_wire_shrink(const void *bytes, size_t size, const char *name, uint8_t **shrunk,
                             size_t *length);
