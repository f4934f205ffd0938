/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file sim.h
 * A simulated fabric: many ranks in one process, a virtual clock, real bytes.
 *
 * Every rank of the fabric has a transport that keeps the contract of transport.h. A message is
 * ready when both its send and its receive are posted, starts when what it needs is free, and its
 * bytes are copied when it ends. So a program that deadlocks on a real network without eager
 * buffers deadlocks here, and xm_sim_fabric_step() tells.
 *
 * What a message of b bytes from one host to another occupies, from its start: the egress of the
 * sender's rail for b / egress rate, the ingress of the receiver's rail for b / ingress rate (a
 * rail is the NICs of some of a host's ranks, of all where none are given), and, when the hosts'
 * racks differ and uplinks are limited, the uplinks of both racks for b / their rate. It has
 * arrived when the longest of these has passed, plus the latency, which occupies nothing. Inside a
 * host: the sending and the receiving rank's port for b / port rate, plus the latency. Times are
 * whole nanoseconds: each occupation is rounded up, latencies to the nearest.
 *
 * Who is served first: normally messages take what they need in the order in which they became
 * ready. With xm_sim_fabric_set_order(), every NIC direction, uplink and port serves exactly the
 * listed messages that use it, in list order, and waits for one that is not ready although others
 * are.
 *
 * Single-threaded: one loop drives all ranks. When no rank can make progress, xm_sim_fabric_step()
 * advances the clock to the next event.
 *
 * @code
 *     do {
 *         for (int r = 0; r < n; ++r) { xm_transport_progress(transport[r]); … }
 *     } while (!finished && xm_sim_fabric_step(fabric));
 * @endcode
 *
 * Faults: xm_sim_fabric_kill(), xm_sim_fabric_cut(), and ranks that the loop leaves out for a while
 * (stopped or slow ones). A rank that was fenced (xm_transport_fence()) can have a new transport
 * once the old one is destroyed; ranks exchange messages only with those that were fenced as often.
 */
#pragma once

#include <stdbool.h>

#include "comm/transport.h"

typedef struct xm_sim_fabric xm_sim_fabric_t;

typedef struct xm_sim_fabric_params {
    int ranks;
    const int *host_of_rank; /**< ranks entries, copied; NULL: every rank on a host of its own */
    double nic_bandwidth;  /**< bytes/s per rail and direction, shared by its ranks; 0 means 1e9 */
    double nic_latency;    /**< seconds */
    double host_bandwidth; /**< bytes/s of a rank's port inside its host, per direction; 0 means
                              1e10 */
    double host_latency;   /**< seconds */
    const double *egress;  /**< bytes/s by rail; NULL: nic_bandwidth everywhere; copied */
    const double *ingress; /**< bytes/s by rail; NULL: nic_bandwidth everywhere; copied */
    const int *rack_of_host; /**< by host, from 0, below the number of hosts; NULL: all in one;
                                copied */
    double uplink_bandwidth; /**< bytes/s of a rack's uplink, per direction; 0: never the limit */
    const int *rail_of_rank; /**< ranks entries, from 0, below the number of ranks, each of one
                                host; copied; NULL: rails are hosts */
    bool no_copy; /**< messages take their time and leave the buffers alone, which may then overlap:
                     for large simulations with one small buffer */
} xm_sim_fabric_params_t;

xm_status_t xm_sim_fabric_create(const xm_sim_fabric_params_t *params, xm_sim_fabric_t **fabric);

/** One message of an order. */
typedef struct xm_sim_slot {
    int sender, receiver; /**< ranks */
    uint64_t order;       /**< not 0, and of no other slot; the message's send has it in
                             xm_op_t::order */
} xm_sim_slot_t;

/**
 * Sets the order of messages whose send has an xm_op_t::order; @p count 0 ends it. After the last
 * slot that uses it, a resource starts again with the first, so persistent operations can run many
 * times. Slots of ranks that die are passed over. A message that has an order but no such slot, or
 * one whose slot another message still waits in, ends with XM_ERR_INVALID_ARGUMENT. Messages of
 * order 0 take what is free, as without an order. A message that waits for its turn can be
 * cancelled. Refused (XM_ERR_INVALID_ARGUMENT) while messages wait in the previous order. The slots
 * are copied.
 */
xm_status_t xm_sim_fabric_set_order(xm_sim_fabric_t *fabric, const xm_sim_slot_t *slots,
                                    size_t count);

/** The transport of a rank; one at a time per rank. Destroy it before the fabric. */
xm_status_t xm_transport_sim_create(xm_sim_fabric_t *fabric, int rank, xm_transport_t **transport);

/** Counts the transport's operations from now on in @p counters, which must outlive it; NULL:
 * nowhere. */
void xm_transport_sim_count(xm_transport_t *transport, xm_counters_t *counters);

/**
 * Advances the clock to the next event and makes its operations ready to be reported by progress.
 * False when nothing is in flight: whoever still waits (for its other half, or for its turn in the
 * order) will wait for ever.
 */
bool xm_sim_fabric_step(xm_sim_fabric_t *fabric);

/** Virtual time, ns. */
int64_t xm_sim_fabric_now(const xm_sim_fabric_t *fabric);

/** Kills a rank: its operations vanish, its peers' operations with it end with XM_ERR_PEER_DIED. */
void xm_sim_fabric_kill(xm_sim_fabric_t *fabric, int rank);

/**
 * Takes the link between two hosts down, or up again. While it is down, messages between them stand
 * still, those on the wire included; when it is up again they start anew. Nobody is told, as on a
 * real network: operations with the other host just do not end.
 */
xm_status_t xm_sim_fabric_cut(xm_sim_fabric_t *fabric, int host, int other, bool down);

void xm_sim_fabric_destroy(xm_sim_fabric_t *fabric);
