/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file transport_verbs_private.h
 * The verbs transport's state, shared by its files. Internal.
 *
 * | file | subject |
 * |---|---|
 * | comm/transport/verbs/verbs.c | posting, cancelling, progress: the ops table |
 * | comm/transport/verbs/complete.c | what completions mean |
 * | comm/transport/verbs/comeback.c | a lane that was given up gets a new queue pair |
 * | comm/transport/verbs/lane.c | one connection: what it sends, credits |
 * | comm/transport/verbs/close.c | closing lanes, failed peers, and all at the end |
 * | comm/transport/verbs/event.c | sleeping, and asynchronous events |
 * | comm/transport/verbs/memory.c | registrations |
 * | comm/transport/verbs/connect.c | the way to each rank, queue pairs |
 * | comm/transport/verbs/port.c | completion queues and slots |
 * | comm/transport/verbs/create.c | the beginning |
 *
 * Messages, and what becomes of them when a lane is lost, are comm/transport/rails.h's. A lane is
 * one queue pair, which puts: a chunk is RDMA writes and the frame that comes behind them.
 *
 * A lane keeps the order of its packets. One waits for a credit, room in the send queue, or a send
 * slot, and the lane has it until its frame has been acknowledged by the peer's device, or the
 * queue pair is destroyed.
 */
#pragma once

#include "comm/transport.h"
#include "comm/transport/rails.h"
#include "comm/transport/verbs.h"
#include "comm/transport/verbs/device.h"
#include "comm/transport/verbs/wire.h"

enum {
    XM_VERBS_SENDS = 64,       /* send slots of a port */
    XM_VERBS_QUEUE = 64,       /* requests in the send queue of a lane */
    XM_VERBS_INLINE_MAX = 256, /* bytes that a request may carry itself */
    XM_VERBS_MAX_RANKS = 1 << 16
};

typedef struct xm_verbs_transport xm_verbs_transport_t;
typedef struct xm_verbs_peer xm_verbs_peer_t;
typedef struct xm_verbs_lane xm_verbs_lane_t;

/* A registration, in the caller's hands or of operations in flight. */
struct xm_memory {
    xm_list_t link;
    uintptr_t start;
    size_t length;
    int users;    /* operations in flight; of the caller's registrations none are counted */
    bool written; /* a peer may write there */
    struct ibv_mr *mr[XM_NICS_MAX];
};

/*
 * A request's number: the lane in the upper half, then what it was, then of a receive its slot, and
 * of a header that gives credits its send slot and 1.
 */
enum {
    XM_VERBS_WORK_FRAME,
    XM_VERBS_WORK_WRITE,
    XM_VERBS_WORK_CREDIT,
    XM_VERBS_WORK_BEAT,
    XM_VERBS_WORK_RECEIVE
};
enum { XM_VERBS_WORK_SHIFT = 32, XM_VERBS_LANE_SHIFT = 36, XM_VERBS_LANES = XM_NICS_MAX };

struct xm_verbs_lane {
    xm_verbs_peer_t *peer;
    int rail;
    struct ibv_qp *qp;   /* NULL: the lane is not used, or closed */
    uint8_t *slots;      /* receive slots */
    uint32_t max_inline; /* bytes that need no send slot */
    int credits;         /* slots at the peer that are free */
    int owed;            /* our slots that the peer does not know to be free again */
    int room;            /* of the send queue */
    int posted;          /* requests in both queues */
    bool beating;        /* a heartbeat is on its way */
    bool closing;        /* its queue pair gives back what it has */
    bool listed;         /* on the list of lanes to look at */
    xm_verbs_lane_t *next_listed;
    xm_rails_packet_t *first, **last;           /* packets that wait */
    xm_rails_packet_t *first_sent, **last_sent; /* those whose frame is on its way */
};

struct xm_verbs_peer {
    xm_rails_peer_t base;
    xm_verbs_gid_kind_t gid_kind[XM_NICS_MAX];  /* by rail */
    char there[XM_NICS_MAX][XM_NICS_NAME_SIZE]; /* its ports */
    uint32_t slots, slot_size;                  /* what it keeps posted */
    xm_verbs_lane_t lanes[XM_NICS_MAX];
};

struct xm_verbs_transport {
    xm_rails_transport_t base;
    xm_verbs_port_t ports[XM_NICS_MAX];
    int port_count;
    xm_verbs_offer_t offer; /* ours */
    size_t longest_write;
    xm_verbs_peer_t *peers;
    xm_verbs_offer_t *offers; /* of all ranks */
    int epoll;                /* holds channels, event descriptors and the timer */
    bool spin;
    bool slept; /* there may be something in the epoll instance */
    unsigned calls;
    xm_verbs_lane_t *listed;
    xm_list_t memory;    /* the caller's registrations */
    xm_list_t temporary; /* those of operations */
};

extern const xm_transport_ops_t xm_verbs_ops;
extern const xm_rails_lanes_t xm_verbs_lanes;

static inline xm_verbs_transport_t *xm_verbs_owner(const xm_verbs_peer_t *peer)
{
    return (xm_verbs_transport_t *)peer->base.owner;
}

static inline xm_verbs_port_t *xm_verbs_port_of(const xm_verbs_lane_t *lane)
{
    return &xm_verbs_owner(lane->peer)->ports[lane->rail];
}

/** Whether a lane that was given up waits to be closed. */
static inline bool xm_verbs_lane_retires(const xm_verbs_lane_t *lane)
{
    return (lane->peer->base.rails->retired >> lane->rail & 1) != 0;
}

/* comm/transport/verbs/complete.c */

/** Handles completions; returns how many there were. */
int xm_verbs_poll(xm_verbs_transport_t *self);

/* comm/transport/verbs/lane.c */

/** Sends a packet now or later. */
void xm_verbs_lane_post(xm_rails_peer_t *peer, int rail, xm_rails_packet_t *packet);

/** The oldest frame has arrived. */
void xm_verbs_lane_arrived(xm_verbs_lane_t *lane);

/** Lets go of all packets of a lane that is closed. */
void xm_verbs_lane_drop(xm_verbs_lane_t *lane);

/** Gives a send slot of the lane's port back; -1: there is none. */
void xm_verbs_lane_give_slot(const xm_verbs_lane_t *lane, int slot);

/** Posts the receives of a lane whose queue pair has just been made. */
xm_status_t xm_verbs_lane_fill(xm_verbs_lane_t *lane);

/** Posts the receive of one slot; false when the connection has failed. */
bool xm_verbs_lane_post_receive(xm_verbs_lane_t *lane, uint32_t slot);

/** Has the lane looked at when progress is made. */
void xm_verbs_lane_list(xm_verbs_lane_t *lane);

/** Sends what listed lanes have to send. */
void xm_verbs_flush_lanes(xm_verbs_transport_t *self);

/* comm/transport/verbs/comeback.c */
bool xm_verbs_attempt(xm_rails_peer_t *peer, int rail);
void xm_verbs_told(xm_rails_peer_t *peer, const xm_rails_frame_t *frame);

/* comm/transport/verbs/close.c */
void xm_verbs_retire(xm_rails_peer_t *peer, int rail);

/** Closes the connections with failed peers, then ends the operations with those. */
void xm_verbs_act_on_reports(xm_verbs_transport_t *self);
void xm_verbs_peer_failed(xm_transport_t *transport, int peer);

/** Closes all connections and ends what is in flight; from then on no peer can be reached. */
void xm_verbs_sever(xm_verbs_transport_t *self);
void xm_verbs_destroy(xm_transport_t *transport);

/* comm/transport/verbs/event.c */
xm_status_t xm_verbs_events_open(xm_verbs_transport_t *self);
void xm_verbs_events_close(xm_verbs_transport_t *self);

/** Reads what woke the caller. */
void xm_verbs_events_read(xm_verbs_transport_t *self);
xm_status_t xm_verbs_arm(xm_transport_t *transport);

/* comm/transport/verbs/memory.c */
xm_status_t xm_verbs_memory_register(xm_transport_t *transport, void *address, size_t length,
                                     xm_memory_t **memory);
void xm_verbs_memory_deregister(xm_transport_t *transport, xm_memory_t *memory);

/** Registers the buffer of an operation until xm_verbs_memory_release(), or joins another one that
 * holds it already; a registration of the caller's is as good. */
xm_status_t xm_verbs_memory_hold(xm_rails_transport_t *transport, void *address, size_t length,
                                 bool written, xm_memory_t **memory);
void xm_verbs_memory_release(xm_rails_transport_t *transport, xm_memory_t *memory);

/** One registration with one port, or NULL with the sentence set. */
struct ibv_mr *xm_verbs_pin(const xm_verbs_transport_t *self, const xm_verbs_port_t *port,
                            void *address, size_t length, unsigned access);
void xm_verbs_memory_forget(xm_verbs_transport_t *self);

/* comm/transport/verbs/connect.c */

/** Exchanges offers and numbers and connects to every rank; all can receive then. */
xm_status_t xm_verbs_connect(xm_verbs_transport_t *self, xm_bootstrap_t *bootstrap, double timeout);

/** Gives a lane a queue pair that can receive, and joins it with the peer's of that number. */
xm_status_t xm_verbs_lane_open(xm_verbs_transport_t *self, xm_verbs_lane_t *lane);
xm_status_t xm_verbs_lane_connect(xm_verbs_transport_t *self, xm_verbs_lane_t *lane,
                                  uint32_t number);
const char *xm_verbs_format_address(const xm_verbs_port_offer_t *port, xm_verbs_gid_kind_t kind,
                                    char *text, size_t size);

/* comm/transport/verbs/port.c */

/** Gives a port its completion queue and slots; those to send from hold @p send_size bytes. */
xm_status_t xm_verbs_equip_port(xm_verbs_transport_t *self, xm_verbs_port_t *port,
                                size_t send_size);

/** Takes the slots from a port; the completion queue goes with the port. */
void xm_verbs_strip_port(xm_verbs_port_t *port);
