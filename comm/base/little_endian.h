/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file little_endian.h
 * Integers as they travel: the lowest byte first, 1 to 8 bytes, at any address. Internal.
 */
#pragma once

#include <stdint.h>

static inline void xm_put_le(uint8_t *bytes, uint64_t value, int size)
{
    for (int i = 0; i < size; ++i) {
        bytes[i] = (uint8_t)(value >> (8 * i));
    }
}

static inline uint64_t xm_get_le(const uint8_t *bytes, int size)
{
    uint64_t value = 0;

    for (int i = 0; i < size; ++i) {
        value |= (uint64_t)bytes[i] << (8 * i);
    }
    return value;
}
