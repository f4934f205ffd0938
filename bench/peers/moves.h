/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file moves.h
 * What has to pass between ranks when every destination rank fetches every box it lacks from one
 * rank that holds it: the plan that a user of MPI or of torch.distributed writes by hand; and boxes
 * as MPI datatypes, which let MPI take one out of a tile and put it into another. Subarrays are
 * what users of MPI describe them with, and leave it to the library how to pack them.
 */
#pragma once

#include <mpi.h>
#include <stddef.h>

#include "bench/peers/slot.h"
#include "resharding/layout.h"

typedef struct rb_peer_move {
    int from, to; /**< ranks; equal when the receiver holds the box itself */
    xm_box_t box;
} rb_peer_move_t;

/**
 * Who sends a slice to the receiver at mesh position @p position: the receiver itself when it holds
 * the slice, else the holder whose index is @p position modulo their number, so that neighbouring
 * receivers ask different holders.
 */
int rb_peer_sender(const xm_layout_t *src, const xm_layout_t *dst, const xm_unit_task_t *task,
                   int position);

/**
 * Lists the moves of which @p rank is an end, in an order that is the same on all ranks: so the
 * moves of a pair come in one order on both ends. The caller frees *moves.
 */
xm_status_t rb_peer_moves_create(const xm_layout_t *src, const xm_layout_t *dst, int rank,
                                 rb_peer_move_t **moves, size_t *count);

/** The committed type of non-empty @p box inside the rank's source tile: count 1 at its start. */
MPI_Datatype rb_peer_datatype_src(const rb_peer_slot_t *slot, const xm_box_t *box);

/** The same inside the rank's destination tile. */
MPI_Datatype rb_peer_datatype_dst(const rb_peer_slot_t *slot, const xm_box_t *box);
