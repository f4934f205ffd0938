/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file method.h
 * The ways a user of MPI would reshard a tensor, each a row of functions.
 *
 * An error inside MPI ends the job with MPI's own message (MPI_ERRORS_ARE_FATAL); what can go wrong
 * before is a status.
 */
#pragma once

#include "bench/peers/slot.h"

typedef struct rb_peer_method {
    const char *name;
    /** Local: makes *state for the slot, which outlives it. */
    xm_status_t (*create)(const rb_peer_slot_t *slot, void **state);
    /** Collective, before the first run: communicators. NULL: none are needed. */
    void (*connect)(void *state);
    /** One resharding: what is timed. */
    void (*run)(void *state);
    /** Collective when connect() is. NULL is accepted. */
    void (*destroy)(void *state);
} rb_peer_method_t;

extern const rb_peer_method_t rb_peer_alltoallw; /**< one MPI_Alltoallw of subarrays */
extern const rb_peer_method_t rb_peer_isend;     /**< MPI_Isend and MPI_Irecv of each box */
extern const rb_peer_method_t rb_peer_bcast;     /**< one MPI_Bcast a slice */
