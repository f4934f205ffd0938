/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file transport.h
 * Moves tagged messages between ranks. One ops table, several implementations (UCX, RDMA verbs, a
 * simulated fabric).
 *
 * A message goes from one rank to one peer, matches a receive posted for that peer with the same
 * tag (below 2^48; a worker keeps those from ::XM_TRANSPORT_TAG_OWN for itself), and has exactly
 * the length of the receive (a shorter or longer one is an error of the receive). Messages between
 * two ranks may overtake each other; tags, not order, identify them. Large messages do not complete
 * at the sender before the receive is posted. What has completed at the sender arrives without
 * further progress there, but for what a full socket left of short messages (below
 * ::XM_TRANSPORT_EAGER) over TCP, and where rails stand in for each other for short messages and
 * for what a lost rail held.
 *
 * Operations are described by a caller-owned ::xm_op_t, so posting allocates nothing. Posting
 * returns
 *  - XM_OK: finished already, `done` is not called;
 *  - XM_IN_PROGRESS: `done` will be called exactly once, from xm_transport_progress() or from
 *    xm_transport_cancel() on this thread, and never from the posting call itself;
 *  - a negative status: not posted, `done` is not called.
 * The op and the buffer belong to the transport until then.
 *
 * Failure: when a peer dies, every operation to or from it ends exactly once with XM_ERR_PEER_DIED,
 * and so does every later post; operations with other peers go on. Nothing here has a deadline of
 * its own: callers wait with one (worker.h) and cancel what did not come.
 *
 * Threads: a transport is used by one thread at a time.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/transport/counters.h"
#include "comm/base.h"

/** Tags from here to 2^48 belong to the worker. */
#define XM_TRANSPORT_TAG_OWN (UINT64_C(0xff) << 40)

/** Messages between hosts that are shorter end when they have left where nothing fetches them (UCX
 * over TCP); longer ones when they have been matched. Where rails stand in for each other these are
 * announced first. */
enum { XM_TRANSPORT_EAGER = 20 * 1024 };

typedef struct xm_transport xm_transport_t;
typedef struct xm_memory xm_memory_t;
typedef struct xm_op xm_op_t;

/** One send or receive. Zero it once; it can be posted again after it has ended. */
struct xm_op {
    /** Called when the operation ends; may post further operations, may not destroy the transport.
     */
    void (*done)(xm_op_t *op, xm_status_t status);
    void *arg;
    /** Identifies a send's message in an order set on a simulated fabric
     * (comm/transport/sim.h); 0, and on other transports: none. */
    uint64_t order;

    /* Private to the transport while the operation is in flight. */
    struct {
        xm_list_t link; /* in one of its lists */
        void *handle;
        uint64_t tag;
        size_t length;
        size_t received;
        void *buffer;
        void *owner;
        int peer;
        int kind;
        int pending;
        unsigned flags;
        xm_status_t status;
    } priv;
};

/** For transports: the operation whose link this is. */
static inline xm_op_t *xm_op_of(xm_list_t *link)
{
    return xm_list_entry(link, xm_op_t, priv.link);
}

/** What an implementation provides. No entry is NULL. */
typedef struct xm_transport_ops {
    const char *name;
    xm_status_t (*memory_register)(xm_transport_t *transport, void *address, size_t length,
                                   xm_memory_t **memory);
    void (*memory_deregister)(xm_transport_t *transport, xm_memory_t *memory);
    xm_status_t (*send)(xm_transport_t *transport, int peer, uint64_t tag, const void *buffer,
                        size_t length, xm_memory_t *memory, xm_op_t *op);
    xm_status_t (*receive)(xm_transport_t *transport, int peer, uint64_t tag, void *buffer,
                           size_t length, xm_memory_t *memory, xm_op_t *op);
    void (*cancel)(xm_transport_t *transport, xm_op_t *op);
    int (*progress)(xm_transport_t *transport);
    xm_status_t (*arm)(xm_transport_t *transport);
    int (*event_fd)(const xm_transport_t *transport);
    void (*peer_failed)(xm_transport_t *transport, int peer);
    int64_t (*now)(const xm_transport_t *transport);
    bool (*waits)(const xm_transport_t *transport, int peer, uint64_t *moved);
    void (*fence)(xm_transport_t *transport);
    void (*path)(xm_transport_t *transport, int peer, char *buffer, size_t size);
    void (*destroy)(xm_transport_t *transport);
} xm_transport_ops_t;

/** Base object; implementations embed it as their first member. */
struct xm_transport {
    const xm_transport_ops_t *ops;
    int rank;
    int size;
    /** First peer whose failure the transport noticed by ending an operation with
     *  XM_ERR_PEER_DIED; -1 (implementations set it) while there is none. */
    int failed_peer;
    /** Channels (tag >> 40) that something failed on: messages of it may still come, so nobody else
     *  may use their tags on this transport any more. A group's next transport has all of them. */
    uint64_t spent_channels[4];
    /** Channels that reshards have (crossmesh/reshard.h); who uses others by number keeps clear of
     * them. */
    uint64_t taken_channels[4];
    /** Ranks of one host are processes of one machine, which may map each other's memory
     *  (shared_memory.h); false for a simulated fabric. Equal on all ranks. */
    bool real_hosts;
    /** Buffers of messages may be CUDA memory. */
    bool cuda;
    /** Sends end when their bytes have arrived, not when they have left: with some peers it takes
     *  twice as many in flight to fill a network. */
    bool acknowledges;
    /** A fenced transport that is about to be destroyed: all its ranks live, and do the same. */
    bool all_live;
    /** Where operations are counted; NULL: nowhere. */
    xm_counters_t *counters;
    /** By rank: the number of the peer there; NULL: its rank. */
    const int *job_rank;
};

static inline void xm_transport_spend_channel(xm_transport_t *transport, int channel)
{
    transport->spent_channels[channel / 64] |= UINT64_C(1) << (channel % 64);
}

static inline bool xm_transport_channel_is_spent(const xm_transport_t *transport, int channel)
{
    return (transport->spent_channels[channel / 64] >> (channel % 64) & 1) != 0;
}

/** Counts a posting call that gave @p status; xm_transport_send() and xm_transport_receive() do,
 * where the transport has counters. */
XM_API void xm_transport_count_post(const xm_transport_t *transport, int peer,
                                    xm_direction_t direction, uint64_t tag, size_t length,
                                    xm_status_t status);

/** Counts the end of an operation in flight; xm_transport_end() does. */
XM_API void xm_transport_count_end(const xm_transport_t *transport, int peer,
                                   xm_direction_t direction, uint64_t tag, size_t length,
                                   xm_status_t status);

/** Counts a chunk that was copied straight out of the memory of @p peer. Nothing where the
 * transport has no counters. */
XM_API void xm_transport_count_copy(const xm_transport_t *transport, int peer, size_t bytes);

/** Counts a piece that came here wrong, and is brought again. */
XM_API void xm_transport_count_resend(const xm_transport_t *transport);

/** How implementations call `done` of an operation that has ended: the one place where that is
 * counted. @p direction of the operation, whose peer, tag and length are in `priv`. */
static inline void xm_transport_end(const xm_transport_t *transport, xm_op_t *op,
                                    xm_direction_t direction, xm_status_t status)
{
    if (transport->counters != NULL) {
        xm_transport_count_end(transport, op->priv.peer, direction, op->priv.tag, op->priv.length,
                               status);
    }
    op->done(op, status);
}

static inline const char *xm_transport_name(const xm_transport_t *transport)
{
    return transport->ops->name;
}

/**
 * Prepares [address, address + length) for transfers that name the handle. Optional: operations
 * with a NULL handle work on any host memory. Deregister before freeing the memory and before
 * destroying the transport, with no operation on it in flight.
 */
static inline xm_status_t xm_transport_memory_register(xm_transport_t *transport, void *address,
                                                       size_t length, xm_memory_t **memory)
{
    return transport->ops->memory_register(transport, address, length, memory);
}

static inline void xm_transport_memory_deregister(xm_transport_t *transport, xm_memory_t *memory)
{
    transport->ops->memory_deregister(transport, memory);
}

/** Starts sending @p length bytes (at least 1) to @p peer (not this rank). */
static inline xm_status_t xm_transport_send(xm_transport_t *transport, int peer, uint64_t tag,
                                            const void *buffer, size_t length, xm_memory_t *memory,
                                            xm_op_t *op)
{
    xm_status_t status = transport->ops->send(transport, peer, tag, buffer, length, memory, op);

    if (transport->counters != NULL) {
        xm_transport_count_post(transport, peer, XM_SENT, tag, length, status);
    }
    return status;
}

/** Starts receiving exactly @p length bytes with @p tag from @p peer (not this rank). */
static inline xm_status_t xm_transport_receive(xm_transport_t *transport, int peer, uint64_t tag,
                                               void *buffer, size_t length, xm_memory_t *memory,
                                               xm_op_t *op)
{
    xm_status_t status = transport->ops->receive(transport, peer, tag, buffer, length, memory, op);

    if (transport->counters != NULL) {
        xm_transport_count_post(transport, peer, XM_RECEIVED, tag, length, status);
    }
    return status;
}

/** Ends an operation in flight with XM_ERR_CANCELED, or lets it finish if it is too late for that;
 *  for a send that may always be so. A no-op for an operation that is not in flight.
 *  `done` is called before this returns or from a later progress call, exactly once. */
static inline void xm_transport_cancel(xm_transport_t *transport, xm_op_t *op)
{
    transport->ops->cancel(transport, op);
}

/** Advances; returns the number of things that happened (0: idle). Calls `done` of what ended. */
static inline int xm_transport_progress(xm_transport_t *transport)
{
    return transport->ops->progress(transport);
}

/** Prepares to sleep on the event descriptor: XM_OK, or XM_IN_PROGRESS when progress must be called
 * first. */
static inline xm_status_t xm_transport_arm(xm_transport_t *transport)
{
    return transport->ops->arm(transport);
}

/** Descriptor (an epoll instance) that becomes readable when an armed transport needs progress; -1
 * if none. */
static inline int xm_transport_event_fd(const xm_transport_t *transport)
{
    return transport->ops->event_fd(transport);
}

/** Tells the transport that @p peer is dead (learnt elsewhere, e.g. from the bootstrap's fault
 * channel). */
static inline void xm_transport_peer_failed(xm_transport_t *transport, int peer)
{
    transport->ops->peer_failed(transport, peer);
}

/** Time in nanoseconds on the transport's clock (monotonic; virtual for the simulated fabric). */
static inline int64_t xm_transport_now(const xm_transport_t *transport)
{
    return transport->ops->now(transport);
}

/**
 * True while operations with @p peer are in flight, those with tags of ::XM_TRANSPORT_TAG_OWN left
 * out. @p moved gets a count that grows when one of them ends (and may grow with others, too), so
 * that a caller sees whether anything moves.
 */
static inline bool xm_transport_waits(const xm_transport_t *transport, int peer, uint64_t *moved)
{
    return transport->ops->waits(transport, peer, moved);
}

/**
 * Ends everything in flight with XM_ERR_CANCELED, calling `done` before this returns, and refuses
 * later posts with the same. From then on the transport touches no memory of its users any more,
 * whatever is still on the way to it. What is left to do is to destroy it.
 */
static inline void xm_transport_fence(xm_transport_t *transport)
{
    transport->ops->fence(transport);
}

/** What carries messages to @p peer, for people: "tcp/eth0"; empty when that is not known. */
static inline void xm_transport_path(xm_transport_t *transport, int peer, char *buffer, size_t size)
{
    transport->ops->path(transport, peer, buffer, size);
}

/** Ends what is in flight with XM_ERR_CANCELED and frees the object. NULL is accepted. */
static inline void xm_transport_destroy(xm_transport_t *transport)
{
    if (transport != NULL) {
        transport->ops->destroy(transport);
    }
}
