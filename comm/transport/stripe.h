/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file stripe.h
 * How messages between two ranks are spread over the rails between them. Internal.
 *
 * Rail i joins the i-th NICs of both; its weight is the smaller of their rates. Both ends compute
 * the same shares from what they exchanged.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/topology.h"

typedef struct xm_stripe {
    int rails;                 /**< rails between the two, in use or not */
    int used;                  /**< rails that carry anything */
    uint32_t end[XM_NICS_MAX]; /**< shares of rails 0 … i together, of 65536 */
} xm_stripe_t;

/**
 * Computes the shares of @p count rails from the rates of their two ends (0: unknown). A rate that
 * only one end knows counts; a rail of which nobody knows one makes all shares equal. A rail that
 * would carry less than a sixteenth is not used: its pieces would be all latency.
 */
void xm_stripe_make(xm_stripe_t *stripe, const uint64_t *ours, const uint64_t *theirs, int count);

/** The same without the rails whose bits are set in @p lost: they carry nothing. Without any rail
 * left `used` is 0, and nothing else may be asked. */
void xm_stripe_make_without(xm_stripe_t *stripe, const uint64_t *ours, const uint64_t *theirs,
                            int count, unsigned lost);

/** Whether rail @p rail carries anything. */
static inline bool xm_stripe_uses(const xm_stripe_t *stripe, int rail)
{
    return stripe->end[rail] > (rail > 0 ? stripe->end[rail - 1] : 0);
}

/** How many of so many bytes rails 0 … @p rail carry together. */
size_t xm_stripe_end(const xm_stripe_t *stripe, size_t length, int rail);
