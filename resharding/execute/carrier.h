/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file resharding/execute/carrier.h
 * Carriers: the ways in which a hop's chunks get from the sender's tile into the receiver's. The
 * core (execute.c) knows this table only; who adds a way adds a table. Not installed.
 *
 *     message   messages of the transport, packed where a chunk is not contiguous
 *     direct    inside a host: the receiver copies out of the sender's shared memory
 *     ipc       inside a host: the receiver copies out of the sender's device tile (CUDA IPC)
 *     copy      inside a rank, from its source tile to its destination tile
 *
 * A run, as the core and the carriers see it:
 *
 *  1. offer. Every hop of a lane begins as the message carrier's. A carrier that can do better
 * needs the peer's word in every run, because a run may have failed at one end alone: it adds
 * itself to `lane->unsettled`, exchanges signals with the peer, sets `hop->carrier` for the hops
 * that both ends agree on, and calls xm_executor_settled(). The core posts nothing of a lane
 * before. Both ends come to the same end, so a chunk's two ends always have the same carrier.
 *  2. post. The core gives a chunk to its carrier, in plan order, in a slot that is busy from then
 *     on. The carrier calls xm_executor_chunk_ended(), once, when nothing of the chunk is under way
 *     any more. It may do so at once, from a callback of the transport, or from `moved`.
 *  3. ended. The core looks at the chunks of a lane in order, and asks the carrier to take in what
 *     has come. If that takes time, the carrier says no and calls xm_executor_revisit() later.
 *  4. finish, for the last chunk of a hop: the end of a hop may need more than that of its chunks.
 *
 * A failed run takes the same way: what is under way is cancelled and ends with a failure, nothing
 * new is posted, and `ended` is asked for each chunk once more, so that everything is given back.
 */
#pragma once

#include "resharding/execute/execute_private.h"

/* NULL entries: nothing to do, and for `finish` true, for `busy` and `describe` false. `post`,
 * `moved` and `ended` are called for chunks of lanes only: copies inside a rank have none. */
struct carrier {
    /* Chunks that are not contiguous take a pack buffer. */
    bool packs;

    /* An executor is made, whose hops, lanes and device are known. */
    xm_status_t (*create)(xm_executor_t *executor, const xm_executor_params_t *params);
    /* A run begins. */
    void (*offer)(xm_executor_t *executor);

    /* A chunk begins. */
    void (*post)(slot_t *slot);
    /* The device has reached the mark behind what was put into its queue for the chunk. */
    void (*moved)(slot_t *slot, xm_status_t status);
    /* All before the chunk, and itself, have ended; false: not yet. */
    bool (*ended)(slot_t *slot);
    /* The last chunk of a hop has ended. False: xm_executor_hop_finished() will say that the hop
     * has. */
    bool (*finish)(hop_t *hop);

    /* Moves what this rank has to move itself, about @p budget bytes; returns what it leaves of
     * that. Called in every advance, after a failure too. */
    int64_t (*move)(xm_executor_t *executor, int64_t budget);
    /* There is, or will be, something to move that no event of the transport announces. */
    bool (*busy)(const xm_executor_t *executor);

    /* The run has failed: called once. Operations of chunks, and signals, are cancelled by the
     * core; what else the carrier holds back of a lane it has revisited. */
    void (*cancel)(xm_executor_t *executor);
    /* An advance ends; after a failure, or with the last hop, so may the run. */
    void (*close)(xm_executor_t *executor);

    /* Says what the rank waits for, if it is something of this carrier beside chunks. */
    bool (*describe)(const xm_executor_t *executor, char *buffer, size_t size);
    void (*destroy)(xm_executor_t *executor);
};

/* In the order in which they are asked: others wait for the end of direct hops, nobody for that of
 * copies. */
enum { CARRIER_MESSAGE, CARRIER_DIRECT, CARRIER_IPC, CARRIER_COPY, CARRIERS };

extern const carrier_t xm_carrier_message, xm_carrier_direct, xm_carrier_ipc, xm_carrier_copy;
/* In their places where only changes are moved: all hops are messages. */
extern const carrier_t xm_carrier_changes, xm_carrier_changed_copies, xm_carrier_none;

/* ---- what carriers tell the core (resharding/execute/run.c; more in execute_private.h)
 * --------------------
 */

/* The carrier and the peer have agreed about the lane. */
void xm_executor_settled(lane_t *lane);

/* Hands the slot's buffer to the transport, as the lane's message with the slot's tag. `done` gets
 * the slot as its op's arg, and has been called when this returns, or will be. */
void xm_executor_transmit(slot_t *slot, void (*done)(xm_op_t *op, xm_status_t status));

/* The same for a chunk that is a message, which proves itself where chunks do. Its carrier has
 * announced it when it was posted: the proofs of a lane keep the order of its chunks. */
void xm_message_announce(slot_t *slot);
void xm_message_transmit(slot_t *slot, void (*done)(xm_op_t *op, xm_status_t status));

/* Nothing of the slot's chunk is under way any more. */
void xm_executor_chunk_ended(slot_t *slot, xm_status_t status);

/* A hop is over whose `finish` did not say so. */
void xm_executor_hop_finished(xm_executor_t *executor, hop_t *hop);
