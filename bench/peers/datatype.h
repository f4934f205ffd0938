/**
 * @file datatype.h
 * MPI datatypes of boxes: what lets MPI take a box out of a tile and put it into another.
 */
#ifndef RB_PEERS_DATATYPE_H
#define RB_PEERS_DATATYPE_H

#include <mpi.h>

#include "bench/peers/moves.h"
#include "bench/peers/seat.h"

/** The committed type of non-empty @p box inside the seat's source tile: count 1 at its start. */
MPI_Datatype rb_peer_datatype_src(const rb_peer_seat_t *seat, const xm_box_t *box);

/** The same inside the seat's destination tile. */
MPI_Datatype rb_peer_datatype_dst(const rb_peer_seat_t *seat, const xm_box_t *box);

#endif
