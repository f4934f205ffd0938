/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file transport_sim_private.h
 * The simulated fabric's parts: comm/transport/sim/sim.c has the transports and the matching of
 * sends and receives, comm/transport/sim/fabric.c the resources and the clock,
 * comm/transport/sim/order.c the order in which resources serve. Not installed.
 */
#pragma once

#include "comm/transport.h"
#include "comm/transport/sim.h"

/* An operation's `priv.kind`. Its `priv.pending` is the xm_direction_t, which stays. */
enum {
    XM_SIM_IDLE = 0,
    XM_SIM_SEND,    /* waits for its other half, or with it (`priv.owner`) for its turn */
    XM_SIM_RECEIVE, /* the same */
    XM_SIM_ON_WIRE,
    XM_SIM_ENDED, /* `done` is due, with `priv.status` */
};

typedef struct xm_sim_transport {
    xm_transport_t base;
    xm_sim_fabric_t *fabric;
    xm_list_t finished; /* operations whose `done` is due */
    uint64_t ended;     /* operations so far */
    int generation;     /* fences of this rank before: only equal ones exchange messages */
    bool fenced;
    xm_nic_counters_t *counters; /* NULL: not counted */
} xm_sim_transport_t;

/* A NIC direction, uplink direction or port direction. */
typedef struct xm_sim_resource {
    double rate;
    int64_t free_at;
} xm_sim_resource_t;

/* What a message uses. */
typedef struct xm_sim_route {
    int resource[4];
    int count;
    int64_t latency;
} xm_sim_route_t;

/* A message on the wire. */
typedef struct xm_sim_message {
    int64_t end_ns;
    int64_t sequence; /* ties end in the order in which they were started */
    xm_op_t *send, *receive;
} xm_sim_message_t;

typedef struct xm_sim_order xm_sim_order_t;

struct xm_sim_fabric {
    int ranks, hosts, racks, rails;
    int *host_of_rank, *rack_of_host, *rail_of_rank;
    int64_t nic_latency, host_latency;
    bool no_copy, uplinks;
    int64_t now, sequence;
    xm_sim_transport_t **transport; /* by rank; NULL while there is none */
    bool *dead;                     /* by rank */
    int *fences;                    /* by rank: so far */
    xm_sim_resource_t *resource;    /* egress, ingress by rail; up, down by rack; ports out, in */
    int resources;
    xm_sim_message_t *heap; /* by end time */
    size_t heap_count, heap_capacity;
    xm_list_t *bucket; /* 2^bucket_bits: posted operations that wait for their other half */
    int bucket_bits;
    size_t waiting;            /* operations in the buckets */
    bool *cut;                 /* by host * hosts + host; NULL: no link was ever down */
    xm_sim_message_t *stalled; /* messages over links that are down */
    size_t stalled_count, stalled_capacity;
    xm_sim_order_t *order; /* NULL: none */
    char refusal[200];     /* why a message with an order was refused last */
};

/* While an operation is in flight, `handle` is its transport. */
static inline xm_sim_transport_t *xm_sim_owner(const xm_op_t *op)
{
    return op->priv.handle;
}

static inline int xm_sim_rank(const xm_op_t *op)
{
    return xm_sim_owner(op)->base.rank;
}

/* Makes `done` due. */
void xm_sim_finish(xm_op_t *op, xm_status_t status);

/* Ends an operation of a rank that leaves: a killed process gets no callbacks (`own` is XM_OK), one
 * that leaves in order does. */
void xm_sim_end_own(xm_op_t *op, int rank, xm_status_t own);

void xm_sim_route(const xm_sim_fabric_t *fabric, int sender, int receiver, xm_sim_route_t *route);

/* Puts a matched message on the wire: it starts when all that it needs is free. */
void xm_sim_start(xm_sim_fabric_t *fabric, xm_op_t *send, xm_op_t *receive);

/* Takes what a dead or leaving rank has on the wire and in the order away. */
void xm_sim_drop_messages(xm_sim_fabric_t *fabric, int rank, xm_status_t own);

/* Takes what a rank has on the wire and in the order away: its own operations end, the others wait
 * for their other half again. */
void xm_sim_recall_messages(xm_sim_fabric_t *fabric, int rank);

/* 2^bits empty buckets; NULL: there is no memory. */
xm_list_t *xm_sim_make_buckets(int bits);

/* An operation waits for its other half (again). */
void xm_sim_wait_for_match(xm_sim_fabric_t *fabric, xm_op_t *op);

/* Ends what waits for its other half. */
void xm_sim_end_waiting(xm_sim_fabric_t *fabric, int rank, xm_status_t own);

/* Lets a matched message with an order wait for its turn, and starts all whose turn it then is. */
xm_status_t xm_sim_order_enter(xm_sim_fabric_t *fabric, xm_op_t *send, xm_op_t *receive);

/* Takes a message that waits for its turn away. */
void xm_sim_order_leave(xm_sim_fabric_t *fabric, const xm_op_t *send);

/* The same for all messages of a rank, whose operations are ended. */
void xm_sim_order_drop(xm_sim_fabric_t *fabric, int rank, xm_status_t own);

/* Takes all messages of a rank away: its operations end, the other halves wait again. */
void xm_sim_order_recall(xm_sim_fabric_t *fabric, int rank);

/* After a death: nobody waits for the slots of the dead any more. */
void xm_sim_order_pass_dead(xm_sim_fabric_t *fabric);

void xm_sim_order_destroy(xm_sim_order_t *order);
