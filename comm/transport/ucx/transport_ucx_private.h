/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file transport_ucx_private.h
 * The UCX transport's state, shared by its files. Internal.
 *
 * | file | subject |
 * |---|---|
 * | comm/transport/ucx/ucx.c | progress, sleeping, failed peers: the ops table |
 * | comm/transport/ucx/post.c | operations: posting, cancelling, and how they end |
 * | comm/transport/ucx/frames.c | what a lane is to rails: frames as active messages |
 * | comm/transport/ucx/peer.c | the endpoints of a peer, and what UCX reports of them |
 * | comm/transport/ucx/rail.c | one rail: context and worker |
 * | comm/transport/ucx/memory.c | registrations |
 * | comm/transport/ucx/gate.c | who may connect to UCX's ports |
 * | comm/transport/ucx/create.c, comm/transport/ucx/close.c | the beginning and the end |
 *
 * Each calls only those below it: creation the ops table, that the end, the end the posts, and
 * those the peers. Messages with a peer that several rails reach are comm/transport/rails.h's; of
 * them UCX gets to know frames only. With another peer an operation is one request of UCX, its
 * `handle`.
 */
#pragma once

#include "comm/transport.h"
#include "comm/topology.h"
#include "comm/transport/rails.h"
#include "comm/transport/ucx/gate.h"
#include "comm/transport/ucx/ucx.h"
#include "comm/transport/ucx/rail.h"

/* The upper bits of UCX's tag are the sender's rank. */
enum { XM_UCX_TAG_BITS = 48, XM_UCX_MAX_RANKS = 1 << 16 };

/* Messages in frames that are shorter are sent without being announced. */
enum { XM_UCX_EAGER = XM_TRANSPORT_EAGER };

/* What priv.flags says of a send: UCX has its bytes, but the socket may not. */
enum { XM_UCX_LEAVING = 1 };

typedef struct xm_ucx_transport xm_ucx_transport_t;
typedef struct xm_ucx_peer xm_ucx_peer_t;

/* The connection to a peer over one rail. */
typedef struct xm_ucx_lane {
    const void *address; /**< NULL: nothing goes this way */
    ucp_ep_h ep;         /**< NULL until the first message, and again after a failure */
    void *closing;       /**< request of the endpoint's close */
    int held;            /**< requests that name memory of users, of frames */
    xm_ucx_peer_t *peer;
} xm_ucx_lane_t;

struct xm_ucx_peer {
    xm_rails_peer_t base;
    int rail;        /**< of lane 0; the next lane's is the next */
    int lane;        /**< of what does not travel in frames … */
    int unsent;      /**< … how many sends of it UCX has not let go of, … */
    size_t unpushed; /**< … the bytes of those that nothing empty followed … */
    bool full;       /**< … and whether the socket did not take the last empty one at once */
    xm_ucx_lane_t lanes[XM_NICS_MAX];
};

/* Who hears the frames of a rail. */
typedef struct xm_ucx_listener {
    xm_ucx_transport_t *transport;
    int rail;
} xm_ucx_listener_t;

struct xm_memory {
    xm_list_t link;
    ucp_mem_h handle[XM_UCX_RAIL_COUNT]; /**< NULL for closed rails */
};

struct xm_ucx_transport {
    xm_rails_transport_t base;
    xm_ucx_rail_t rails[XM_UCX_RAIL_COUNT];
    xm_ucx_peer_t *peers;
    void *addresses; /**< what the peers sent; peers point into it */
    xm_ucx_gate_t *gate;
    int epoll;          /**< holds the rails' descriptors; -1 when spinning */
    bool fault_channel; /**< the caller reports deaths */
    int ranks_here;     /**< on this machine, this one among them */
    xm_nics_t nics;
    xm_list_t memory; /**< registrations */

    /* What follows is used with rails that stand in for each other only. */
    xm_ucx_listener_t listeners[XM_UCX_RAIL_COUNT];
    ucp_datatype_t packet_type;
    bool has_packet_type;
    xm_nic_watch_t watch;
};

extern const xm_transport_ops_t xm_ucx_ops;

static inline xm_ucx_transport_t *xm_ucx_owner(const xm_ucx_peer_t *peer)
{
    return (xm_ucx_transport_t *)peer->base.owner;
}

/** Whether lanes bring chunks to where they belong by UCX's rendezvous: they need not be copied. */
static inline bool xm_ucx_fetches(const xm_ucx_peer_t *peer)
{
    return peer->base.rails != NULL && peer->base.rails->way == XM_RAILS_FETCH;
}

/** Whether UCX itself watches a peer, see comm/transport/ucx/rail.h. */
static inline bool xm_ucx_watches(const xm_ucx_peer_t *peer)
{
    return peer->rail == XM_UCX_RAIL_NIC &&
           (!xm_ucx_owner(peer)->fault_channel || xm_ucx_fetches(peer));
}

static inline xm_ucx_rail_t *xm_ucx_rail_of(const xm_ucx_peer_t *peer, int lane)
{
    return &xm_ucx_owner(peer)->rails[peer->rail + lane];
}

/* comm/transport/ucx/post.c */
xm_status_t xm_ucx_send(xm_transport_t *transport, int peer, uint64_t tag, const void *buffer,
                        size_t length, xm_memory_t *memory, xm_op_t *op);
xm_status_t xm_ucx_receive(xm_transport_t *transport, int peer, uint64_t tag, void *buffer,
                           size_t length, xm_memory_t *memory, xm_op_t *op);
void xm_ucx_cancel(xm_transport_t *transport, xm_op_t *op);

/** Cancels all receives from a peer that UCX has. */
void xm_ucx_cancel_receives(xm_ucx_peer_t *peer);

/** Ends what is in flight with a peer: cancels receives, and abandons what UCX cannot cancel. */
void xm_ucx_abandon_ops(xm_ucx_peer_t *peer);

/* comm/transport/ucx/frames.c */

extern const xm_rails_lanes_t xm_ucx_lanes;

/** Makes the datatype of what travels in frames, once, and receives those of a rail. */
xm_status_t xm_ucx_listen(xm_ucx_transport_t *self, int rail);

/* comm/transport/ucx/peer.c */
xm_status_t xm_ucx_connect(xm_ucx_peer_t *peer);
ucs_status_t xm_ucx_connect_lane(xm_ucx_peer_t *peer, int lane);

/** Lets go of the endpoint of one lane that is lost. */
void xm_ucx_retire_lane(xm_ucx_peer_t *peer, int lane);
void xm_ucx_close_endpoints(xm_ucx_peer_t *peer, bool force);

/* comm/transport/ucx/memory.c */
xm_status_t xm_ucx_memory_register(xm_transport_t *transport, void *address, size_t length,
                                   xm_memory_t **memory);
void xm_ucx_memory_deregister(xm_transport_t *transport, xm_memory_t *memory);

/* comm/transport/ucx/close.c */

/** Ends what is in flight with a peer that UCX does not watch, and forgets its endpoints. */
void xm_ucx_abandon(xm_ucx_peer_t *peer);
void xm_ucx_destroy(xm_transport_t *transport);
