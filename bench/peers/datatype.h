/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file datatype.h
 * MPI datatypes of boxes: what lets MPI take a box out of a tile and put it into another.
 */
#pragma once

#include <mpi.h>

#include "bench/peers/moves.h"
#include "bench/peers/slot.h"

/** The committed type of non-empty @p box inside the rank's source tile: count 1 at its start. */
MPI_Datatype rb_peer_datatype_src(const rb_peer_slot_t *slot, const xm_box_t *box);

/** The same inside the rank's destination tile. */
MPI_Datatype rb_peer_datatype_dst(const rb_peer_slot_t *slot, const xm_box_t *box);
