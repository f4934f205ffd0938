/**
 * @file transport_ucx_private.h
 * The UCX transport's state, shared by its operations (transport_ucx.c) and its creation and end
 * (transport_ucx_create.c). Internal.
 *
 * Life of an operation: idle → on its peer's ring, while UCX has it → on the ring `ended`, when UCX
 * has let go of it → idle, just before `done` is called. `done` is called from progress (and
 * destroy) only, so posting and UCX's callbacks never run a caller's code.
 */
#ifndef XM_COMM_TRANSPORT_UCX_PRIVATE_H
#define XM_COMM_TRANSPORT_UCX_PRIVATE_H

#include "comm/transport_ucx.h"
#include "comm/transport_ucx_rail.h"

/* The upper bits of UCX's tag are the sender's rank. */
enum { XM_UCX_TAG_BITS = 48, XM_UCX_MAX_RANKS = 1 << 16 };

/* What xm_op_t's priv.kind says. */
enum { XM_UCX_IDLE, XM_UCX_SEND, XM_UCX_RECEIVE };

typedef struct xm_ucx_transport xm_ucx_transport_t;

typedef struct xm_ucx_peer {
    xm_ucx_transport_t *owner;
    int rank;
    int rail;
    const void *address;
    ucp_ep_h ep;         /**< NULL until the first message, and again after a failure */
    void *closing;       /**< request of the endpoint's close */
    bool failed;         /**< nothing can be posted any more */
    bool reported;       /**< UCX has reported a failure that progress must act upon */
    ucs_status_t reason; /**< what UCX reported; UCS_OK when the caller told us */
    xm_op_t in_flight;   /**< head of a ring of operations */
} xm_ucx_peer_t;

struct xm_memory {
    xm_memory_t *next, *previous;
    ucp_mem_h handle[XM_UCX_RAIL_COUNT]; /**< NULL for closed rails */
};

struct xm_ucx_transport {
    xm_transport_t base;
    xm_ucx_rail_t rails[XM_UCX_RAIL_COUNT];
    xm_ucx_peer_t *peers;
    void *addresses; /**< what the peers sent; peers point into it */
    int epoll;       /**< holds the rails' descriptors; -1 when spinning */
    int reports;     /**< peers with `reported` */
    bool closing;
    bool fault_channel; /**< the caller reports deaths */
    xm_op_t ended;      /**< head of the ring of operations whose `done` is due */
    xm_memory_t memory; /**< head of the ring of registrations */
};

extern const xm_transport_ops_t xm_ucx_ops;

/** Whether UCX itself watches a peer, see transport_ucx_rail.h. */
static inline bool xm_ucx_watches(const xm_ucx_peer_t *peer)
{
    return peer->rail == XM_UCX_RAIL_DEFAULT && !peer->owner->fault_channel;
}

static inline bool xm_ucx_ring_is_empty(const xm_op_t *head)
{
    return head->priv.next == head;
}

/** Calls `done` of everything that has ended; returns how many that were. */
int xm_ucx_deliver(xm_ucx_transport_t *self);

/** Moves an operation from its peer's ring to `ended`. */
void xm_ucx_end_op(xm_op_t *op, xm_status_t status);

xm_status_t xm_ucx_connect(xm_ucx_transport_t *self, xm_ucx_peer_t *peer);
void xm_ucx_close_endpoint(xm_ucx_peer_t *peer, bool force);
void xm_ucx_cancel_receives(xm_ucx_transport_t *self, xm_ucx_peer_t *peer);

/** Ends what is in flight with a peer of a rail without error handling, and forgets its endpoint.
 */
void xm_ucx_abandon(xm_ucx_transport_t *self, xm_ucx_peer_t *peer);

xm_status_t xm_ucx_memory_register(xm_transport_t *transport, void *address, size_t length,
                                   xm_memory_t **memory);
void xm_ucx_memory_deregister(xm_transport_t *transport, xm_memory_t *memory);
void xm_ucx_destroy(xm_transport_t *transport);

#endif
