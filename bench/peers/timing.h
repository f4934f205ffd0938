/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file timing.h
 * One method on one case: warm-ups, timed runs, every byte checked.
 */
#pragma once

#include "bench/cases.h"
#include "bench/peers/method.h"

typedef struct rb_peer_result {
    int runs;        /**< timed ones */
    double *seconds; /**< of each of them, the slowest rank's */
    double cpu_s;    /**< user and system time of all ranks in a timed run, on average */
    bool validated;
    uint64_t wrong; /**< bytes that differ from what they should be, all ranks and runs */
} rb_peer_result_t;

/**
 * Collective. A run is timed on every rank from the end of a barrier to the end of the rank's own
 * part; its time is the slowest rank's. Making and checking data is outside. @p index is the case's
 * number, of which the data depend. *result is equal on all ranks.
 */
xm_status_t rb_peer_time(const rb_peer_slot_t *slot, const rb_peer_method_t *method,
                         const rb_options_t *options, int index, rb_peer_result_t *result);

void rb_peer_result_clear(rb_peer_result_t *result);
