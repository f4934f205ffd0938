/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file comm/transport/rails/rails.h
 * Messages between two ranks that several rails join, so that they survive the loss of a rail; and
 * the operations of every transport that has such rails. Internal.
 *
 * A transport embeds an ::xm_rails_transport_t, and an ::xm_rails_peer_t for each rank. It says
 * what a rail is by a table of lane operations (::xm_rails_lanes_t): a lane is the rail to one
 * peer. The rest is here, once for all: sequence numbers, what is sent again, when a rail is given
 * up, and when it comes back.
 *
 * Messages travel in frames (frame.h). A lane carries a frame with a few bytes, whole or not at
 * all, and chunks of long messages in one of three ways:
 *  - It copies. The bytes come with the frame, and the receiver's handler writes them. A lane of
 * this kind never gets to know the user's memory at the receiver, and at the sender it asks for
 * bytes when it has room for them: both look first whether somebody still wants them.
 *  - It puts them, with RDMA writes, straight to where the receiver has granted them, and the frame
 *    that says so comes behind. Then a lane that is given up is closed at this rank before anything
 *    more is said to the peer, so no late byte lands; and chunks that a lost lane held are sent
 * again only when the peer has said, after it closed its end, that it lacks them. The memory of a
 * send is its owner's again when no lane has a packet of it.
 *  - It fetches. The frame announces the bytes, and the receiver has the lane bring those that it
 *    wants to their place. A lane that is given up is closed at once, which ends what it fetches; a
 *    receive ends only when nothing is fetched for it any more, so no late byte lands, and a send
 *    as where lanes put.
 *
 * Sender and receiver, for each direction of a pair:
 *  - Messages are numbered. EAGER carries a short one; START announces a longer one. The receiver
 *    takes them up in the order of their numbers, whatever rails they came by, so that messages of
 *    one tag keep their order.
 *  - The receive for a START says GRANT(0): CHUNKs may come. When all XM_RAILS_FRAME_CHUNKS chunks
 * of a segment have, GRANT(offset) asks for the next, and GRANT(ALL) ends the message. So a long
 *    message takes the two trips that a rendezvous takes, and a send ends when everything has
 *    arrived, which is the acknowledgement. An EAGER is answered by GRANT(ALL) as soon as it has
 *    come, taken or not (several together while nobody waits for them); its send ends at once,
 *    because a copy is kept (XM_RAILS_COPIES bytes of them for each peer, then at the answer).
 *  - What nobody receives is not stored without limit. With XM_RAILS_KEPT bytes of EAGERs that wait
 *    for their receives, further ones are answered when they are received; and a sender with
 *    XM_RAILS_UNHEARD bytes of unanswered ones announces short messages, too.
 *  - The sender alone decides which chunk goes by which rail: by that which, for its weight, has
 *    been given least and has room.
 *
 * Every frame can be repeated: the receiver knows by number, offset and a bit for each chunk what
 * it has, and drops what it has had; whatever it gets again it answers again. So the loss of a rail
 * needs no agreement. Whoever gives a rail up, no longer uses it and drops what still comes by it;
 * puts the chunks and announcements of unfinished messages that went by it back on the list of what
 * is to be sent; and announces all its unfinished messages again, in case an answer was lost. Every
 * frame tells how often its sender has given each rail up and taken it back, and the receiver
 * follows whoever is ahead: first of all a PING to the peer over each of the other rails. When the
 * last one goes, the peer is lost. A rank that leaves answers nothing any more, so it repeats its
 * answers before, over all rails, and says FIN; and short messages that nobody has answered, over
 * another rail: the last ones may have gone by a rail of which nobody knows yet that it is lost.
 *
 * A rail comes back when a PING over it has been answered by a PONG over it, while both ranks hold
 * it for given up: then both ways work. Whoever found the loss asks, twice the rail timeout after
 * it and then less and less often; each further loss doubles the time, so that a rail that comes
 * and goes is soon left alone (comm/transport/rails/comeback.c).
 *
 * A rail is given up when
 *  - its lane reports an error (a reset), and within 20 ms none of all others: a peer that dies
 * loses all its connections, and nothing should be sent to it any more;
 *  - this rank's NIC is down, or has lost its addresses, for a quarter of the rail timeout
 *    (nic_watch.h);
 *  - the peer has given it up;
 *  - it is silent: something unfinished is waiting, a PING on this rail has not been answered, and
 *    nothing else came or went by it for as long as the rail timeout since the peer was first heard
 *    on another rail, and heard there again and again (so it lives, and looks after its transport).
 *    PINGs go out over all rails when one has been quiet for a quarter of the rail timeout. Time in
 *    which this rank itself did not look does not count, beyond an eighth of the rail timeout a
 *    look.
 *
 * Life of an operation: idle → on its peer's list `in_flight` → on the list `ended` → idle, just
 * before `done` is called. `done` is called from progress, fence and destroy only, so posting and
 * what the lanes call back never run a caller's code.
 *
 * Threads: as transport.h.
 */
#pragma once

#include "comm/topology.h"
#include "comm/transport.h"
#include "comm/transport/rails/frame.h"

/* COPIES: bytes of short messages, with what is known of them, that are kept for a peer although
 * their sends have ended.
 * UNHEARD: the same of those that are sent as they are before the peer has answered them, whether
 * their sends have ended or not.
 * KEPT: the same of those from a peer that wait for their receives and were answered.
 * ROOM: bytes that a lane is given before it has sent them.
 * LATE: answers that are given together, where nobody waits for them.
 * LOOKS: at the rails within the rail timeout. */
enum {
    XM_RAILS_COPIES = 4 << 20,
    XM_RAILS_UNHEARD = 8 << 20,
    XM_RAILS_KEPT = 16 << 20,
    XM_RAILS_ROOM = 1 << 20,
    XM_RAILS_LATE = 16,
    XM_RAILS_LOOKS = 8,
    XM_RAILS_NO_LANE = 255,
    XM_RAILS_REASON_SIZE = 160
};

/* What xm_op_t's priv.kind says. */
enum { XM_RAILS_IDLE, XM_RAILS_SEND, XM_RAILS_RECEIVE };

/* What priv.flags says of a receive in frames: it has met its message, which is its `handle`. */
enum { XM_RAILS_MATCHED = 1 };

typedef struct xm_rails xm_rails_t;
typedef struct xm_rails_peer xm_rails_peer_t;
typedef struct xm_rails_transport xm_rails_transport_t;
typedef struct xm_rails_outgoing xm_rails_outgoing_t;
typedef struct xm_rails_incoming xm_rails_incoming_t;
typedef struct xm_rails_packet xm_rails_packet_t;
typedef struct xm_rails_fetch xm_rails_fetch_t;

/** What a lane can do. @p lane is the number of a rail. */
typedef struct xm_rails_lanes {
    /** Sends a packet; xm_rails_sent() is called once when the lane has let go of it, maybe before
     *  this returns. Packets that it has while it is given up are let go of when it can. */
    void (*post)(xm_rails_peer_t *peer, int lane, xm_rails_packet_t *packet);
    /** Joins what is not joined of the lanes in use; false: the peer cannot be reached at all. */
    bool (*connect)(xm_rails_peer_t *peer);
    /** A lane that was given up is to be tried: does what comes before a PING over it; false: not
     *  now. */
    bool (*attempt)(xm_rails_peer_t *peer, int lane);
    /** Whether a PING or PONG may go over a lane that is given up; joins it where that is possible.
     */
    bool (*ready)(xm_rails_peer_t *peer, int lane);
    /** Closes a lane that was given up, unless it can be tried as it is. Not inside of what the
     * lane calls back. */
    void (*retire)(xm_rails_peer_t *peer, int lane);
    /** The NICs whose links are down, as bits. */
    unsigned (*down)(xm_rails_transport_t *self);

    /* Of lanes that put; NULL for those that copy. */

    /** Makes memory of a message known to the NICs until release(). *memory is the caller's handle,
     *  or NULL. */
    xm_status_t (*hold)(xm_rails_transport_t *self, void *buffer, size_t length, bool written,
                        xm_memory_t **memory);
    void (*release)(xm_rails_transport_t *self, xm_memory_t *memory);
    /** A rail's key to such memory. */
    uint32_t (*key)(const xm_memory_t *memory, int rail);
    /** A frame came that is for the lanes themselves. */
    void (*told)(xm_rails_peer_t *peer, const xm_rails_frame_t *frame);

    /* Of lanes that fetch. */

    /** Brings the bytes that came announced (as `bytes` of xm_rails_hear()) to @p to, then calls
     * xm_rails_fetched() once, maybe before this returns. */
    void (*fetch)(xm_rails_peer_t *peer, int lane, const void *bytes, void *to,
                  xm_rails_fetch_t *fetch);
} xm_rails_lanes_t;

/* How the lanes of a peer carry chunks. */
typedef enum { XM_RAILS_COPY, XM_RAILS_PUT, XM_RAILS_FETCH } xm_rails_way_t;

/* The memory of a message whose lanes put. */
typedef struct xm_rails_memory {
    xm_memory_t *handle;
    bool held; /* to be released */
} xm_rails_memory_t;

/* A message that is not known to have arrived. */
struct xm_rails_outgoing {
    xm_list_t all;   /* in rails' `unfinished`, by number */
    xm_list_t start; /* in `starts` when it is to be announced */
    xm_list_t ready; /* in `ready` when chunks may be sent */
    xm_op_t *op;     /* NULL: has ended, there is a copy */
    uint64_t number, tag;
    const uint8_t *bytes;
    size_t length;
    size_t from;   /* the segment that was granted */
    uint64_t todo; /* its chunks that are to be sent, as bits */
    uint32_t chunk;
    int packets;      /* of it that lanes have */
    bool granted;     /* its bytes were asked for */
    bool elsewhere;   /* is announced again by another lane than before */
    bool over;        /* the peer has it all, but lanes still have packets of it */
    uint8_t start_by; /* lane of the announcement; XM_RAILS_NO_LANE: there was none */
    uint8_t by[XM_RAILS_FRAME_CHUNKS]; /* lanes of the segment's chunks */
    /* Where lanes put. */
    uint64_t lost;                  /* chunks by lanes that were given up since */
    uint8_t lost_life[XM_NICS_MAX]; /* what the peer must know of those lanes; 0: nothing */
    uint64_t address;               /* what was granted */
    uint32_t keys[XM_NICS_MAX];     /* of it, by rail */
    xm_rails_memory_t memory;
    uint8_t copy[];
};

/* A frame that a lane has, or that waits for it (answers only). */
struct xm_rails_packet {
    xm_list_t link;
    xm_rails_t *rails;
    xm_rails_outgoing_t *message; /* NULL: an answer, or its message has ended */
    xm_rails_frame_t frame;
    uint8_t head[XM_RAILS_FRAME_SIZE];
    uint8_t keys[4 * XM_NICS_MAX]; /* of a grant, which are its bytes */
    const uint8_t *bytes;          /* NULL: nobody wants them any more */
    size_t length;
    size_t put;              /* bytes of a chunk that are on their way */
    xm_rails_packet_t *next; /* the lane's */
    int slot;                /* the lane's */
    int lane;
    bool stays; /* tries a lane that was given up: no other one will do */
    bool stale; /* its lane was given up since */
};

/* A message that is coming, or waits for its receive. */
struct xm_rails_incoming {
    xm_list_t link;  /* in `unclaimed` while no receive was posted */
    xm_list_t aside; /* in rails' list of that name when it is behind `base` */
    xm_op_t *op;
    uint64_t number, tag;
    size_t length;
    size_t from;   /* the segment that was asked for */
    uint64_t have; /* its chunks that have come */
    uint32_t chunk;
    int lane;    /* by which the last frame came */
    int fetched; /* chunks that are being fetched */
    bool eager;  /* all of it is here … */
    bool owed;   /* … and it is answered only when it is received */
    xm_rails_memory_t memory;
    uint8_t bytes[]; /* of an eager one */
};

/* A chunk that a lane fetches. */
struct xm_rails_fetch {
    xm_rails_t *rails;
    xm_rails_incoming_t *message;
    size_t offset, length;
    int lane;
    uint8_t life; /* of the lane, when that began */
};

/* What is known of the messages from number `base` on. */
typedef struct xm_rails_slot {
    xm_rails_incoming_t *message; /* until it has been taken up (answered before), or is answered */
    bool done;                    /* is answered by ALL */
} xm_rails_slot_t;

/* The health of a lane. */
typedef struct xm_rails_health {
    xm_list_t posted; /* packets that the lane has */
    size_t given;     /* bytes of them */
    uint64_t load;    /* bytes that it was given so far, for its weight */
    int64_t heard_at; /* when a frame came last */
    int64_t moved_at; /* when that was, or bytes went */
    int64_t asked_at; /* when a PING was sent, and nothing has passed since; 0: no such */
    int64_t alone_at; /* when the peer was first heard on another lane after that */
    bool joined;      /* the lane can carry chunks: the transport says so */
    bool broken;      /* the lane reported an error; acted upon by the next progress */
    uint64_t moved;   /* fragments that were put back when it was given up … */
    char reason[XM_RAILS_REASON_SIZE]; /* … and why it was, or what is broken */
    bool learnt;                       /* … by the peer */
    int64_t back_at;                   /* when it was taken back last; 0: never */
    int64_t retry_at;                  /* when a lane that was given up is tried again */
    int64_t wait;                      /* until the next try after that one */
} xm_rails_health_t;

/* The rails to one peer. */
struct xm_rails {
    xm_rails_peer_t *peer;
    xm_rails_t *next_due;
    bool due;                  /* on the transport's list */
    xm_rails_way_t way;        /* of chunks */
    size_t eager;              /* shorter messages are not announced */
    uint8_t life[XM_NICS_MAX]; /* of each lane; odd: it was given up */
    unsigned retired;          /* those that are to be closed still */
    unsigned unsaid;           /* those without a warning still */
    int64_t broken_at; /* when the first error that was not acted upon was reported; 0: none */
    xm_rails_health_t lanes[XM_NICS_MAX];

    uint64_t next_number;
    size_t copies;  /* bytes, see above */
    size_t unheard; /* the same */
    xm_list_t unfinished, starts, ready, answers, over;

    bool left;                 /* the peer has said that it leaves */
    size_t kept;               /* bytes of short messages that wait for their receives */
    uint64_t base;             /* all messages before have arrived, or are aside */
    uint64_t started;          /* all before have been taken up */
    xm_list_t aside;           /* of those before `base` the unfinished ones, by number */
    xm_rails_slot_t *slots;    /* a ring, of the numbers from base on */
    size_t slot_count;         /* a power of two, or 0 */
    uint64_t late_first, late; /* answers that are still to be given: the first, and how many */
    int late_lane;
    xm_list_t unclaimed;
};

/* A rank, as every transport with rails sees it. */
struct xm_rails_peer {
    xm_rails_transport_t *owner;
    int rank;
    xm_stripe_t stripe;  /* how messages are spread over the lanes */
    xm_rails_t *rails;   /* messages travel in frames; NULL: the transport moves them itself */
    bool connected;      /* all its lanes can carry something */
    bool failed;         /* nothing can be posted any more */
    bool reported;       /* has failed, which progress must act upon */
    xm_list_t in_flight; /* operations */
    int users;           /* those that are not the worker's own */
    uint64_t moved;      /* those that have ended */
    char reason[XM_RAILS_REASON_SIZE]; /* why it failed; empty when the caller told us */
};

/* A NIC of this rank, by rail. */
typedef struct xm_rails_nic {
    const char *name;
    xm_nic_counters_t *counters; /* NULL: not counted */
    bool lost;                   /* some peer's traffic was moved to other rails */
    bool halted;                 /* nothing moves there any more */
    int64_t down_at;             /* when it was first seen down; 0: it is not */
} xm_rails_nic_t;

struct xm_rails_transport {
    xm_transport_t base;
    const xm_rails_lanes_t *lanes;
    xm_rails_peer_t **peers; /* by rank */
    bool closing, fenced;
    int reports;        /* peers with `reported` */
    xm_list_t ended;    /* operations whose `done` is due */
    xm_blocks_t blocks; /* what is in flight */
    char sentence[512]; /* why this rank could not take a message */

    /* What follows is used where some peer has rails. */
    int railed; /* peers that do */
    int nic_count;
    xm_rails_nic_t nics[XM_NICS_MAX];
    xm_rails_t *first_due; /* list of those that have something for their lanes */
    bool failover;         /* a lane that is lost is not the end of its peer */
    bool broken;           /* a lane failed, or was given up and is to be closed */
    bool armed;            /* the clock rings from time to time */
    int timer_fd;          /* for sleepers; -1: none */
    int64_t rail_timeout;  /* with a silent lane, in nanoseconds */
    int64_t clock;         /* when progress began */
    int64_t next_look;     /* at the lanes */
    int late;              /* rails with late answers */
};

static inline bool xm_rails_uses(const xm_rails_t *rails, int lane)
{
    return (rails->life[lane] & 1) == 0 && xm_stripe_uses(&rails->peer->stripe, lane);
}

static inline bool xm_rails_puts(const xm_rails_t *rails)
{
    return rails->way == XM_RAILS_PUT;
}

static inline xm_rails_nic_t *xm_rails_nic(const xm_rails_t *rails, int lane)
{
    return &rails->peer->owner->nics[lane];
}

/* In destroy, after its connections have been closed: nothing may connect it again. */
static inline bool xm_rails_is_closed(const xm_rails_peer_t *peer)
{
    return peer->owner->closing && !peer->connected;
}

/* comm/transport/rails/op.c: operations, with and without rails. */

/** Sets what is common of a transport and its peers; false: no memory. */
bool xm_rails_begin(xm_rails_transport_t *self, int rank, int size);

/** The checks of every post. A refusal leaves the operation idle and untouched. */
xm_status_t xm_rails_check(xm_rails_transport_t *self, int rank, uint64_t tag, const void *buffer,
                           size_t length, const xm_op_t *op);

/** Makes the operation in flight. */
void xm_rails_start(xm_rails_peer_t *peer, xm_op_t *op, uint64_t tag, const void *buffer,
                    size_t length, int kind);

/** The operation leaves its peer's list. */
void xm_rails_leave(xm_op_t *op);

/** Moves an operation from its peer's list to `ended`. A failure that it has already stays. */
void xm_rails_end_op(xm_op_t *op, xm_status_t status);

/** Calls `done` of everything that has ended; returns how many that were. */
int xm_rails_deliver(xm_rails_transport_t *self);

/** Remembers that a peer is lost, and why; the next progress acts upon it. The first reason stays.
 */
void xm_rails_report(xm_rails_peer_t *peer, const char *format, ...) XM_PRINTF(2, 3);

/** The sentence of a peer that has failed; the transport remembers the first. */
xm_status_t xm_rails_peer_error(const xm_rails_peer_t *peer);

/* For the table of operations. */
bool xm_rails_waits(const xm_transport_t *transport, int peer, uint64_t *moved);
int64_t xm_rails_now(const xm_transport_t *transport);

/* comm/transport/rails/rails.c: packets, what goes to lanes and comes from them. */

/** Messages with this peer travel in frames from now on. */
xm_status_t xm_rails_open(xm_rails_peer_t *peer, xm_rails_way_t way, size_t eager);

/** Makes the transport look after these rails in its next progress. */
void xm_rails_set_due(xm_rails_t *rails);

/** Gives lanes what they have room for, on all rails that are due. */
void xm_rails_progress(xm_rails_transport_t *self);

/** Something has passed over a lane. */
void xm_rails_moved(xm_rails_t *rails, int lane);

/** A lane lets go of a packet: it is sent, or never will be. */
void xm_rails_sent(xm_rails_packet_t *packet, bool sent);

/** An answer, a PING or a PONG, preferably by @p lane. NULL: no memory, the peer fails. */
xm_rails_packet_t *xm_rails_answer(xm_rails_t *rails, int lane, const xm_rails_frame_t *frame);

/** Nobody may read a message's bytes any more. */
void xm_rails_void(xm_rails_t *rails, const xm_rails_outgoing_t *message);

/** At the end: whether something waits to be given to lanes, or to be sent by them. */
bool xm_rails_has_packets(const xm_rails_t *rails);

/* comm/transport/rails/hear.c: frames that come, and what becomes of operations. */

/** A frame came by a lane. */
void xm_rails_hear(xm_rails_peer_t *peer, int lane, const xm_rails_frame_t *frame,
                   const uint8_t *bytes, size_t length);

/** Posts, with a peer that has rails, of operations that xm_rails_check() has found good. */
xm_status_t xm_rails_send(xm_rails_peer_t *peer, uint64_t tag, const void *buffer, size_t length,
                          xm_memory_t *memory, xm_op_t *op);
xm_status_t xm_rails_receive(xm_rails_peer_t *peer, uint64_t tag, void *buffer, size_t length,
                             xm_memory_t *memory, xm_op_t *op);

/** Before sleeping: whether there is something to do first. */
bool xm_rails_rings(xm_rails_transport_t *self);

/** Ends every operation with the peer, and forgets its messages. Lanes that put are closed before.
 */
void xm_rails_abandon(xm_rails_peer_t *peer, xm_status_t status);

/** Before the end: takes nothing more, says what has come, and waits until what was sent is out, at
 * most until @p deadline. */
void xm_rails_part(xm_rails_transport_t *self, int64_t deadline);

/* comm/transport/rails/tx_queue.c */

/** A post: one that returns XM_OK has not touched the operation. */
xm_status_t xm_rails_tx_send(xm_rails_t *rails, xm_op_t *op, uint64_t tag, const void *buffer,
                             size_t length, xm_memory_t *memory);
void xm_rails_tx_on_grant(xm_rails_t *rails, const xm_rails_frame_t *frame, const uint8_t *keys,
                          size_t length);
/** What was sent by a lane that has been given up is to be sent again; returns how many fragments.
 */
uint64_t xm_rails_tx_resend(xm_rails_t *rails, int lane);
/** This rank leaves: what has ended here and was not answered goes once more, by another lane. */
void xm_rails_tx_repeat(xm_rails_t *rails);
/** The peer has all of a message, and no lane has a packet of it. */
void xm_rails_tx_end(xm_rails_t *rails, xm_rails_outgoing_t *message);
void xm_rails_tx_clear(xm_rails_t *rails);

/* comm/transport/rails/rx_queue.c */

void xm_rails_rx_receive(xm_rails_t *rails, xm_op_t *op);
/** No effect on sends, which end when the peer has taken them, and on what lanes may be writing. */
void xm_rails_rx_cancel(xm_rails_t *rails, xm_op_t *op);
/** A chunk is where it belongs, or never will be, because of @p error (NULL: it is); its lane
 * writes nothing any more. */
void xm_rails_fetched(xm_rails_fetch_t *fetch, const char *error);
/** EAGER, START or CHUNK, with its bytes. */
void xm_rails_rx_on_frame(xm_rails_t *rails, int lane, const xm_rails_frame_t *frame,
                          const uint8_t *bytes, size_t length);
/** Gives the answers that are late. */
void xm_rails_rx_catch_up(xm_rails_t *rails);
/** This rank leaves. Says what has arrived by every lane that is in use: one of them may be dead
 * without anybody knowing, and its answers with it. */
void xm_rails_rx_fin(xm_rails_t *rails);
/** A receive ends although its message has not come whole. */
void xm_rails_rx_forsake(xm_rails_t *rails, const xm_op_t *op);

/* comm/transport/rails/failover.c */

/** An error of one lane. */
void xm_rails_broken(xm_rails_peer_t *peer, int lane, const char *format, ...) XM_PRINTF(3, 4);
/** A frame came by a lane that is in use, and told the lives of all. */
void xm_rails_failover_heard(xm_rails_t *rails, int lane, const uint8_t *life);
/** The peer has given lanes up, or taken them back. */
void xm_rails_failover_learn(xm_rails_t *rails, const uint8_t *life);
/** Asks on every lane in use that has no question open. */
void xm_rails_failover_ping(xm_rails_t *rails);
/** Acts on what was reported, on NICs that went down, and on silence; as often as progress is made,
 *  and when the transport's clock rings. */
void xm_rails_failover_look(xm_rails_transport_t *self);

/* comm/transport/rails/comeback.c */

/** A lane was given up: says when it is tried again. */
void xm_rails_comeback_plan(xm_rails_t *rails, int lane);
/** Tries the lanes whose time has come. */
void xm_rails_comeback_try(xm_rails_t *rails);
/** A frame came by a lane that was given up. */
void xm_rails_comeback_heard(xm_rails_t *rails, int lane, const xm_rails_frame_t *frame);
void xm_rails_comeback_take(xm_rails_t *rails, int lane);

/* comm/transport/rails/timer.c */

/** Makes the timer for those who sleep. */
xm_status_t xm_rails_timer_open(xm_rails_transport_t *self);
/** There is something to look after from time to time. */
void xm_rails_failover_arm(xm_rails_transport_t *self);
/** There is nothing any more. */
void xm_rails_failover_unwind(xm_rails_transport_t *self);
