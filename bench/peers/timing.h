/**
 * @file timing.h
 * One method on one case: warm-ups, timed runs, every byte checked.
 */
#ifndef RB_PEERS_TIMING_H
#define RB_PEERS_TIMING_H

#include "bench/options.h"
#include "bench/peers/method.h"
#include "bench/result.h"

/**
 * Collective. A run is timed on every rank from the end of a barrier to the end of the rank's own
 * part; its time is the slowest rank's. Making and checking data is outside. @p index is the case's
 * number, of which the data depend. Equal on all ranks: *result, whose `prepared` is NULL;
 * rb_result_clear() frees it.
 */
xm_status_t rb_peer_time(const rb_peer_seat_t *seat, const rb_peer_method_t *method,
                         const rb_options_t *options, int index, rb_result_t *result);

#endif
