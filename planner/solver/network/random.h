/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The searches' generator: xorshift64* (Vigna, "An experimental exploration of Marsaglia's
 * xorshift generators", 2016). Not installed.
 */
#pragma once

#include <stdint.h>

#include "comm/base.h"

/* `state` must not be 0. */
static inline uint64_t ap_cfn_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(2685821657736338717);
}

/* In [0, 1). */
static inline double ap_cfn_random_unit(uint64_t *state)
{
    return xm_random_unit(ap_cfn_random(state));
}
