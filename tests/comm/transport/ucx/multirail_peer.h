/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file multirail_peer.h
 * A rank of a UCX transport that has multirail with all others (comm/transport/rails.h),
 * and nothing of UCX: for tests that put frames in by hand, or stand in for UCX.
 */
#pragma once

#include "comm/transport/ucx/transport_ucx_private.h"

typedef struct multirail_peer {
    xm_ucx_transport_t transport;
    xm_ucx_peer_t *peers;
    xm_counters_t *counters;
} multirail_peer_t;

/* All lanes have equal rates; their NICs are called n0, n1 … and are counted in this order. */
multirail_peer_t *multirail_peer_open(int rank, int ranks, int lanes);

/* Ends what is in flight. */
void multirail_peer_close(multirail_peer_t *slot);
