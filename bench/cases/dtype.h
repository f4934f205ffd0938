/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file dtype.h
 * Element types by name. Only their size matters to a resharding: bytes are moved, never
 * interpreted.
 */
#pragma once

#include <stdint.h>

#include "comm/base.h"

/** Longest name, with the terminator. */
enum { RB_DTYPE_TEXT = 16 };

/** Bytes of an element of that type; unknown names fail with the nearest match. */
xm_status_t rb_dtype_parse(const char *name, int64_t *bytes);
