/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file counters.h
 * The object that a worker's counts (crossmesh/counters.h) live in.
 *
 * A worker has one such object from its creation to its end (xm_worker_counters()); so may users of
 * a transport without a worker. "sim" is the simulated fabric's one NIC.
 *
 * Threads: the functions that read may be called from any thread as long as the object lives.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <crossmesh/counters.h>

#include "comm/base.h"

typedef struct xm_counters xm_counters_t;

/** "send", "receive". */
const char *xm_direction_name(xm_direction_t direction);
/** "ok", "canceled", "peer_died", "corrupt", "failed". */
const char *xm_outcome_name(xm_outcome_t outcome);

/** Operations with the peer that have been posted and have not ended. */
uint64_t xm_peer_counts_in_flight(const xm_peer_counts_t *counts, xm_direction_t direction);

/** Most NICs that are told apart; what comes after them is counted as the last. */
enum { XM_COUNTERS_MAX_NICS = 32 };

/** Counters of a rank with @p peers peers, itself included. A worker makes its own; for users of a
 * transport without one. */
xm_status_t xm_counters_create(int peers, xm_counters_t **counters);

int xm_counters_peers(const xm_counters_t *counters);
/** Reads the counts of peer @p peer, 0 … peers - 1. */
void xm_counters_peer(const xm_counters_t *counters, int peer, xm_peer_counts_t *counts);
/** When the last message of a peer has been received, as xm_clock_ns() tells it, to some
 * milliseconds; 0: none has. */
int64_t xm_counters_received_at(const xm_counters_t *counters, int peer);

/** NICs that have been opened so far. */
int xm_counters_nics(const xm_counters_t *counters);
/** Reads the counts of NIC @p nic, 0 … nics - 1. */
void xm_counters_nic(const xm_counters_t *counters, int nic, xm_nic_counts_t *counts);

void xm_counters_rank(const xm_counters_t *counters, xm_rank_counts_t *counts);

/** NULL is accepted. */
void xm_counters_destroy(xm_counters_t *counters);
