/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file transport_verbs_private.h
 * The verbs transport's state, shared by its files. Internal.
 *
 * | file | subject |
 * |---|---|
 * | comm/transport/verbs/verbs.c | posting, cancelling, progress: the ops table |
 * | comm/transport/verbs/op.c | how operations end |
 * | comm/transport/verbs/complete.c | what completions mean |
 * | comm/transport/verbs/match.c | what comes from a peer: matching, storing, granting |
 * | comm/transport/verbs/comeback.c | a lost lane is used again |
 * | comm/transport/verbs/failover.c | what a lost lane carried goes by another one |
 * | comm/transport/verbs/lane.c | one connection: what it sends, credits |
 * | comm/transport/verbs/peer.c | that a lane is lost, or a peer has failed |
 * | comm/transport/verbs/close.c | closing lost lanes, those of failed peers, and all at the end |
 * | comm/transport/verbs/event.c | sleeping, asynchronous events, heartbeats |
 * | comm/transport/verbs/memory.c | registrations |
 * | comm/transport/verbs/pool.c | where wrs and rndvs come from |
 * | comm/transport/verbs/connect.c | the way to each rank, queue pairs |
 * | comm/transport/verbs/port.c | completion queues and slots |
 * | comm/transport/verbs/create.c | the beginning |
 *
 * Each calls only those below it: comm/transport/verbs/create.c calls all others,
 * comm/transport/verbs/verbs.c the closing and the events, those the completions, those the
 * matching, that the failover, that the lanes, and all may end an operation or find that a peer has
 * failed.
 *
 * Life of an operation: idle → on its peer's ring `receives` (a receive without a message) or
 * `busy` → on the ring `ended` → idle, just before `done` is called. `done` is called from progress
 * and destroy only.
 *
 * A *rndv* is a message that is not copied, at either end. Its number goes over the wire and has a
 * generation in its upper bits, so that a number of the past means nothing.
 *
 * An *wr* is something that a lane is to send and could not yet: it waits for a credit, room in
 * the send queue, or a send slot. A lane keeps the order of its work requests. What has been sent
 * and uses up a slot of the peer is remembered as a wr, too, until the peer's device has
 * acknowledged it: were the lane lost before, another one would have to send it again.
 */
#pragma once

#include "comm/transport.h"
#include "comm/transport/verbs.h"
#include "comm/transport/verbs/device.h"
#include "comm/transport/verbs/wire.h"

enum {
    XM_VERBS_SENDS = 64,       /* send slots of a port */
    XM_VERBS_QUEUE = 64,       /* requests in the send queue of a lane */
    XM_VERBS_INLINE_MAX = 256, /* bytes that a request may carry itself */
    XM_VERBS_UNMATCHED = 1024, /* short messages of a peer that may wait for receives */
    XM_VERBS_MAX_RANKS = 1 << 16,
    XM_VERBS_REASON_SIZE = 160
};

/* What xm_op_t's priv.kind says. */
enum { XM_VERBS_IDLE, XM_VERBS_SEND, XM_VERBS_RECEIVE };

typedef struct xm_verbs_transport xm_verbs_transport_t;
typedef struct xm_verbs_peer xm_verbs_peer_t;
typedef struct xm_verbs_lane xm_verbs_lane_t;
typedef struct xm_verbs_rndv xm_verbs_rndv_t;
typedef struct xm_verbs_wr xm_verbs_wr_t;
typedef struct xm_verbs_stored xm_verbs_stored_t;

/* A registration, in the caller's hands or of operations in flight. */
struct xm_memory {
    xm_list_t link;
    uintptr_t start;
    size_t length;
    int users;    /* operations in flight; of the caller's registrations none are counted */
    bool written; /* a peer may write there */
    struct ibv_mr *mr[XM_NICS_MAX];
};

struct xm_verbs_rndv {
    xm_verbs_rndv_t *next_free;
    uint32_t number;
    xm_op_t *op; /* NULL: not in use */
    xm_memory_t *memory;
    bool borrowed;  /* memory is the caller's */
    int pieces;     /* rails that have not ended yet */
    uint32_t other; /* the peer's number of the same message */
    xm_verbs_grant_t grant;
};

/* What a work request sends: a message of that kind, a piece of a rendezvous, or a message whose
 * bytes it holds, because a lane has sent it before. */
enum { XM_VERBS_PIECE = XM_VERBS_HERE + 1, XM_VERBS_AGAIN };

/*
 * A request's number: the lane in the upper half, then what it was, then for the last write of a
 * piece the rendezvous, for a receive its slot.
 */
enum {
    XM_VERBS_WORK_MESSAGE,
    XM_VERBS_WORK_LAST_WRITE,
    XM_VERBS_WORK_WRITE,
    XM_VERBS_WORK_CREDIT,
    XM_VERBS_WORK_BEAT,
    XM_VERBS_WORK_RECEIVE
};
enum { XM_VERBS_WORK_SHIFT = 32, XM_VERBS_LANE_SHIFT = 36, XM_VERBS_LANES = XM_NICS_MAX };

struct xm_verbs_wr {
    xm_verbs_wr_t *next;
    int kind;
    xm_op_t *op;           /* EAGER */
    xm_verbs_rndv_t *rndv; /* REQUEST, GRANT, PIECE */
    uint32_t number;       /* DISCARD; PIECE: the rendezvous'; LOST, BACK, HERE: the rail */
    uint32_t came;         /* LOST: what came over it; BACK, HERE: its queue pair */
    size_t start;          /* PIECE: where it begins */
    size_t begin, end;     /* PIECE: what is left of it */
    size_t size;           /* AGAIN */
    int rail, slot;        /* AGAIN: the send slot of that port that holds its bytes; -1: none */
    uint8_t bytes[];       /* XM_VERBS_INLINE_MAX of one from the pool */
};

/* A message that came before its receive. */
struct xm_verbs_stored {
    xm_verbs_stored_t *next;
    uint64_t tag;
    uint64_t length;
    uint32_t number; /* of the request */
    int rail;
    bool eager;
    uint8_t bytes[]; /* of an eager one */
};

struct xm_verbs_lane {
    xm_verbs_peer_t *peer;
    int rail;
    struct ibv_qp *qp;   /* NULL: the lane is not used, or closed */
    uint8_t *slots;      /* receive slots */
    uint32_t max_inline; /* bytes that need no send slot */
    int credits;         /* slots at the peer that are free */
    int owed;            /* our slots that the peer does not know to be free again */
    int room;            /* of the send queue */
    int unsent;          /* requests in the send queue that carry something for the peer's caller */
    int posted;          /* requests in both queues */
    bool beating;        /* a heartbeat is on its way */
    bool listed;         /* on the list of lanes to look at */
    xm_verbs_lane_t *next_listed;
    xm_verbs_wr_t *first, **last;           /* wrs */
    xm_verbs_wr_t *first_sent, **last_sent; /* those that are not known to have arrived */
    uint32_t sent, came;                    /* slots used up at the peer, and here; modulo 2^32 */
    bool lost;                              /* the other lanes carry on without it */
    bool closing;                           /* its queue pair gives back what it has */
    bool told;                              /* the peer has lost it, too, … */
    uint32_t there;                         /* … when so much had come there */
    xm_verbs_lane_t *instead;               /* the lane that has taken over */
    bool moved;                             /* what a lost lane carried goes by others */
    bool trying;                            /* lost, but its queue pair is new */
    int wait;                               /* ticks until a lost lane is tried the next time */
    int ticks;                              /* until then; of one that works: since it came back */
    char reason[XM_VERBS_REASON_SIZE];
};

struct xm_verbs_peer {
    xm_verbs_transport_t *owner;
    int rank;
    xm_stripe_t stripe;
    xm_verbs_gid_kind_t gid_kind[XM_NICS_MAX];  /* by rail */
    char there[XM_NICS_MAX][XM_NICS_NAME_SIZE]; /* its ports */
    uint32_t slots, slot_size;                  /* what it keeps posted */
    xm_verbs_lane_t lanes[XM_NICS_MAX];
    xm_list_t receives; /* receives without a message */
    xm_list_t busy;     /* the other operations in flight */
    xm_verbs_stored_t *stored, **stored_last;
    uint32_t eager_sent;  /* short messages sent to it */
    uint32_t eager_taken; /* of these no longer stored there */
    uint32_t taken;       /* its short messages that are not stored here any more */
    int silent;           /* ticks since something came from it */
    bool heard;           /* something came since the last tick */
    bool failed;          /* nothing can be posted any more */
    bool closed;          /* its lanes are, too */
    int users;            /* operations in flight of the transport's users */
    uint64_t moved;       /* operations that have ended */
    char reason[XM_VERBS_REASON_SIZE];
};

struct xm_verbs_transport {
    xm_transport_t base;
    xm_verbs_port_t ports[XM_NICS_MAX];
    int port_count;
    xm_verbs_offer_t offer; /* ours */
    size_t longest_write;
    xm_verbs_peer_t *peers;
    xm_verbs_offer_t *offers; /* of all ranks */
    int epoll;                /* holds channels, event descriptors and the timer */
    int timer;
    bool spin;
    bool failover; /* other lanes carry on when one is lost */
    bool ticking;  /* the timer runs */
    bool slept;    /* there may be something in the epoll instance */
    bool closing;
    bool fenced; /* nothing is done any more */
    unsigned calls;
    int in_flight;   /* operations */
    int failures;    /* since lanes were closed last: lost ones, and failed peers */
    xm_list_t ended; /* operations whose `done` is due */
    xm_verbs_lane_t *listed;
    xm_list_t memory;    /* the caller's registrations */
    xm_list_t temporary; /* those of operations */
    xm_blocks_t blocks;  /* wrs, and messages before their receives */
    xm_verbs_rndv_t *free_rndvs, **rndv_blocks;
    uint32_t rndv_count;
    char sentence[512]; /* why this rank could not take a message */
};

extern const xm_transport_ops_t xm_verbs_ops;

static inline xm_verbs_port_t *xm_verbs_port_of(const xm_verbs_lane_t *lane)
{
    return &lane->peer->owner->ports[lane->rail];
}

/* comm/transport/verbs/op.c */

/** Takes an operation off its list, lets go of its memory, and has `done` called later. */
void xm_verbs_end_op(xm_op_t *op, xm_status_t status);

/** A piece of the rendezvous with that number has reached the peer's memory. */
void xm_verbs_wrote(xm_verbs_lane_t *lane, uint32_t number);

/** Calls `done` of everything that has ended; returns how many that were. */
int xm_verbs_deliver(xm_verbs_transport_t *self);

/* comm/transport/verbs/complete.c */

/** Handles completions; returns how many there were. */
int xm_verbs_poll(xm_verbs_transport_t *self);

/* comm/transport/verbs/pool.c */

/** NULL, with the sentence set, when there is no memory. */
xm_verbs_wr_t *xm_verbs_take_wr(xm_verbs_transport_t *self);
void xm_verbs_give_wr(xm_verbs_transport_t *self, xm_verbs_wr_t *wr);
xm_verbs_rndv_t *xm_verbs_take_rndv(xm_verbs_transport_t *self, xm_op_t *op);

/** Gives the rendezvous and its memory back. */
void xm_verbs_give_rndv(xm_verbs_transport_t *self, xm_verbs_rndv_t *rndv);

/** The rndv in use with that number and peer, or NULL. */
xm_verbs_rndv_t *xm_verbs_find_rndv(const xm_verbs_transport_t *self, uint32_t number,
                                    const xm_verbs_peer_t *peer, int kind);
void xm_verbs_free_pools(xm_verbs_transport_t *self);

/* comm/transport/verbs/match.c */

/** A message has come on a lane. */
void xm_verbs_message(xm_verbs_lane_t *lane, const uint8_t *bytes, size_t size);

/** The last write of a piece has come. */
void xm_verbs_written(xm_verbs_lane_t *lane, uint32_t number);

/** Gives a receive the message that is stored for it, if there is one. */
void xm_verbs_match_stored(xm_verbs_peer_t *peer, xm_op_t *op);
void xm_verbs_forget_stored(xm_verbs_peer_t *peer);

/* comm/transport/verbs/failover.c */

/** This rank has closed a lane that was lost: tells the peer what had come over it. */
void xm_verbs_failover_closed(xm_verbs_lane_t *lane);

/** The peer has closed the lane of that rail, when so much had come there. */
void xm_verbs_failover_told(xm_verbs_peer_t *peer, uint32_t rail, uint32_t came);

/* comm/transport/verbs/lane.c */

/** Whether it can send and receive. */
static inline bool xm_verbs_lane_works(const xm_verbs_lane_t *lane)
{
    return lane->qp != NULL && !lane->lost && !lane->peer->failed;
}

/** The lane that carries the messages of this one's tags since it was lost, also when it is back:
 * messages of a tag keep their order. */
static inline xm_verbs_lane_t *xm_verbs_lane_now(xm_verbs_lane_t *lane)
{
    return lane->instead != NULL ? lane->instead : lane;
}

/** Sends now or later. An eager message that is sent now has ended with XM_OK. */
xm_status_t xm_verbs_lane_send(xm_verbs_lane_t *lane, const xm_verbs_wr_t *what);

/** Takes what is to be sent for an operation off the lane; false when there is nothing. */
bool xm_verbs_lane_unqueue(xm_verbs_lane_t *lane, const xm_op_t *op);

/** Forgets what is to be sent, and what was. */
void xm_verbs_lane_drop_wrs(xm_verbs_lane_t *lane);

/** Puts a work request at the end of what is to be sent. */
void xm_verbs_lane_append(xm_verbs_lane_t *lane, xm_verbs_wr_t *wr);

/** Takes the oldest work request off those that are not known to have arrived. */
xm_verbs_wr_t *xm_verbs_lane_take_sent(xm_verbs_lane_t *lane);

/** Gives a work request back, and its send slot. */
void xm_verbs_lane_forget(xm_verbs_lane_t *lane, xm_verbs_wr_t *wr);

/** Posts the receives of a lane whose queue pair has just been made. */
xm_status_t xm_verbs_lane_fill(xm_verbs_lane_t *lane);

/** Posts the receive of one slot; false when the connection has failed. */
bool xm_verbs_lane_post_receive(xm_verbs_lane_t *lane, uint32_t slot);

/** Has the lane looked at when progress is made. */
void xm_verbs_lane_list(xm_verbs_lane_t *lane);

/** Sends what listed lanes have to send. */
void xm_verbs_flush_lanes(xm_verbs_transport_t *self);

/** Asks whether the peer lives. */
void xm_verbs_lane_beat(xm_verbs_lane_t *lane);
void xm_verbs_lane_probe(xm_verbs_lane_t *lane);

/* comm/transport/verbs/comeback.c */

/** What the lane carried goes by others now: says when it is tried. */
void xm_verbs_comeback_plan(xm_verbs_lane_t *lane);

/** A tick has passed. */
void xm_verbs_comeback_tick(xm_verbs_lane_t *lane);

/** The peer has said BACK or HERE. */
void xm_verbs_comeback_told(xm_verbs_peer_t *peer, const xm_verbs_header_t *header);

/** Something passed over a lane that is tried. */
void xm_verbs_comeback_take(xm_verbs_lane_t *lane);

/** Whether the lane waits to be tried: nothing of its last life is left. */
static inline bool xm_verbs_lane_rests(const xm_verbs_lane_t *lane)
{
    return lane->moved && lane->qp == NULL && !lane->peer->failed;
}

/* comm/transport/verbs/peer.c */

/** Remembers why a lane is of no use any more; xm_verbs_close_failed() does the rest. With the last
 * one its peer fails. */
void xm_verbs_lose(xm_verbs_lane_t *lane, const char *format, ...) XM_PRINTF(2, 3);

/** Remembers why nothing is possible with a peer any more; xm_verbs_close_failed() does the rest.
 * The first reason stays. */
void xm_verbs_fail(xm_verbs_peer_t *peer, const char *format, ...) XM_PRINTF(2, 3);
xm_status_t xm_verbs_peer_error(const xm_verbs_peer_t *peer);

/* comm/transport/verbs/close.c */

/** Closes lost lanes, and the connections with failed peers, then ends the operations with those.
 */
void xm_verbs_close_failed(xm_verbs_transport_t *self);
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
 * holds it already. */
xm_status_t xm_verbs_memory_hold(xm_verbs_transport_t *self, void *address, size_t length,
                                 bool written, xm_memory_t **memory);
void xm_verbs_memory_release(xm_verbs_transport_t *self, xm_memory_t *memory);

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
