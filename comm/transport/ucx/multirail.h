/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file comm/transport/ucx/multirail.h
 * Messages between two ranks that several TCP rails join, so that they survive the loss of a rail.
 * Internal.
 *
 * UCX's tagged messages cannot: what it sent may be lost although the send is complete; a receive
 * whose bytes are on their way cannot be cancelled, and they may still come when the rail does; and
 * a send that is stuck goes on naming its buffer. So between two such ranks messages travel in
 * frames of this file's own, which are UCX's active messages, always eager. UCX never gets to know
 * the user's memory: bytes are read by pack() when UCX has room for them, and written by the
 * handler of a frame, whole or not at all. Both look first whether somebody still wants them. (On
 * TCP that is no copy more than before: UCX copies to and from its segments anyway. RDMA devices
 * would pay for it, so rails over them keep UCX's own messages; who loses such a rail loses the
 * peer.)
 *
 * Sender and receiver, for each direction of a pair:
 *  - Messages are numbered. EAGER carries a short one; START announces a longer one. The receiver
 *    takes them up in the order of their numbers, whatever rails they came by, so that messages of
 *    one tag keep their order.
 *  - The receive for a START says GRANT(0): CHUNKs may come. When all XM_UCX_FRAME_CHUNKS chunks of
 *    a segment have, GRANT(offset) asks for the next, and GRANT(ALL) ends the message. So a long
 *    message takes the two trips that a rendezvous takes, and a send ends when everything has
 *    arrived, which is the acknowledgement. An EAGER is answered by GRANT(ALL) as soon as it has
 *    come, taken or not; its send ends at once, because a copy is kept (XM_UCX_MULTIRAIL_COPIES
 * bytes of them for each peer, then at the answer).
 *  - What nobody receives is not stored without limit. With XM_UCX_MULTIRAIL_KEPT bytes of EAGERs
 * that wait for their receives, further ones are answered when they are received; and a sender with
 *    XM_UCX_MULTIRAIL_UNHEARD bytes of unanswered ones announces short messages, too.
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
 * and goes is soon left alone (comm/transport/ucx/comeback.c).
 *
 * A rail is given up when
 *  - UCX reports an error of its connection (a reset), and within 20 ms none of all others: a peer
 *    that dies loses all its connections, and nothing should be sent to it any more;
 *  - this rank's NIC is down, or has lost its addresses, for a quarter of the rail timeout
 *    (nic_watch.h);
 *  - the peer has given it up;
 *  - it is silent: something unfinished is waiting, a PING on this rail has not been answered, and
 *    nothing else came or went by it for as long as the rail timeout since the peer was first heard
 * on another rail, and heard there again and again (so it lives, and looks after its transport).
 *    PINGs go out over all rails when one has been quiet for a quarter of the rail timeout. Time in
 *    which this rank itself did not look does not count, beyond an eighth of the rail timeout a
 * look.
 *
 * Threads: as transport.h.
 */
#pragma once

#include "comm/transport/ucx/frame.h"
#include "comm/transport/ucx/transport_ucx_private.h"

/* COPIES: bytes of short messages, with what is known of them, that are kept for a peer although
 * their sends have ended.
 * UNHEARD: the same of those that are sent as they are before the peer has answered them, whether
 * their sends have ended or not.
 * KEPT: the same of those from a peer that wait for their receives and were answered.
 * ROOM: bytes that UCX is given for a rail before it has sent them.
 * LOOKS: at the rails within the rail timeout. FRAMES: which of the active messages are frames. */
enum {
    XM_UCX_MULTIRAIL_EAGER = 20 * 1024,
    XM_UCX_MULTIRAIL_COPIES = 4 << 20,
    XM_UCX_MULTIRAIL_UNHEARD = 8 << 20,
    XM_UCX_MULTIRAIL_KEPT = 16 << 20,
    XM_UCX_MULTIRAIL_ROOM = 1 << 20,
    XM_UCX_MULTIRAIL_LOOKS = 8,
    XM_UCX_MULTIRAIL_FRAMES = 1,
    XM_UCX_MULTIRAIL_NO_LANE = 255
};

typedef struct xm_ucx_multirail xm_ucx_multirail_t;
typedef struct xm_ucx_outgoing xm_ucx_outgoing_t;
typedef struct xm_ucx_incoming xm_ucx_incoming_t;
typedef struct xm_ucx_packet xm_ucx_packet_t;

/* A message that is not known to have arrived. */
struct xm_ucx_outgoing {
    xm_list_t all;   /* in multirail's `unfinished`, by number */
    xm_list_t start; /* in `starts` when it is to be announced */
    xm_list_t ready; /* in `ready` when chunks may be sent */
    xm_op_t *op;     /* NULL: has ended, there is a copy */
    uint64_t number, tag;
    const uint8_t *bytes;
    size_t length;
    size_t from;   /* the segment that was granted */
    uint64_t todo; /* its chunks that are to be sent, as bits */
    uint32_t chunk;
    int packets;      /* of it that UCX has */
    bool granted;     /* its bytes were asked for */
    bool elsewhere;   /* is announced again by another lane than before */
    uint8_t start_by; /* lane of the announcement; XM_UCX_MULTIRAIL_NO_LANE: there was none */
    uint8_t by[XM_UCX_FRAME_CHUNKS]; /* lanes of the segment's chunks */
    uint8_t copy[];
};

/* A frame that UCX has, or that waits for it (answers only). */
struct xm_ucx_packet {
    xm_list_t link;
    xm_ucx_multirail_t *multirail;
    xm_ucx_outgoing_t *message; /* NULL: an answer, or its message has ended */
    xm_ucx_frame_t frame;
    uint8_t head[XM_UCX_FRAME_SIZE];
    const uint8_t *bytes; /* NULL: nobody wants them any more */
    size_t length;
    int lane;
    bool stays; /* tries a lane that was given up: no other one will do */
    bool stale; /* its lane was given up since */
};

/* A message that is coming, or waits for its receive. */
struct xm_ucx_incoming {
    xm_list_t link;  /* in `unclaimed` while no receive was posted */
    xm_list_t aside; /* in multirail's list of that name when it is behind `base` */
    xm_op_t *op;
    uint64_t number, tag;
    size_t length;
    size_t from;   /* the segment that was asked for */
    uint64_t have; /* its chunks that have come */
    uint32_t chunk;
    int lane;        /* by which the last frame came */
    bool eager;      /* all of it is here … */
    bool owed;       /* … and it is answered only when it is received */
    uint8_t bytes[]; /* of an eager one */
};

/* What is known of the messages from number `base` on. */
typedef struct xm_ucx_slot {
    xm_ucx_incoming_t *message; /* until it has been taken up (answered before), or is answered */
    bool done;                  /* is answered by ALL */
} xm_ucx_slot_t;

/* The health of a lane. */
typedef struct xm_ucx_health {
    xm_list_t posted;   /* packets that UCX has */
    size_t given;       /* bytes of them */
    uint64_t load;      /* bytes that it was given so far, for its weight */
    int64_t heard_at;   /* when a frame came last */
    int64_t moved_at;   /* when that was, or bytes went */
    int64_t asked_at;   /* when a PING was sent, and nothing has passed since; 0: no such */
    int64_t alone_at;   /* when the peer was first heard on another lane after that */
    ucs_status_t error; /* what UCX reported; acted upon by the next progress */
    uint64_t moved;     /* fragments that were put back when it was given up … */
    char reason[80];    /* … and why it was */
    bool learnt;        /* … by the peer */
    int64_t back_at;    /* when it was taken back last; 0: never */
    int64_t retry_at;   /* when a lane that was given up is tried again */
    int64_t wait;       /* until the next try after that one */
} xm_ucx_health_t;

struct xm_ucx_multirail {
    xm_ucx_peer_t *peer;
    xm_ucx_multirail_t *next_due;
    bool due;                  /* on the transport's list */
    uint8_t life[XM_NICS_MAX]; /* of each lane; odd: it was given up */
    unsigned retired;          /* those with an endpoint still */
    unsigned unsaid;           /* those without a warning still */
    int64_t broken_at; /* when UCX reported the first error that was not acted upon; 0: none */
    xm_ucx_health_t lanes[XM_NICS_MAX];

    uint64_t next_number;
    size_t copies;  /* bytes, see above */
    size_t unheard; /* the same */
    xm_list_t unfinished, starts, ready, answers;

    bool left;            /* the peer has said that it leaves */
    size_t kept;          /* bytes of short messages that wait for their receives */
    uint64_t base;        /* all messages before have arrived, or are aside */
    uint64_t started;     /* all before have been taken up */
    xm_list_t aside;      /* of those before `base` the unfinished ones, by number */
    xm_ucx_slot_t *slots; /* a ring, of the numbers from base on */
    size_t slot_count;    /* a power of two, or 0 */
    xm_list_t unclaimed;
};

static inline bool xm_ucx_multirail_uses(const xm_ucx_multirail_t *multirail, int lane)
{
    return (multirail->life[lane] & 1) == 0 && xm_stripe_uses(&multirail->peer->stripe, lane);
}

/* In destroy, after its endpoints have been closed: nothing may connect it again. */
static inline bool xm_ucx_multirail_is_closed(const xm_ucx_peer_t *peer)
{
    return peer->owner->closing && !peer->connected;
}

/* comm/transport/ucx/multirail.c: packets, what goes to UCX and comes from it. */

/** Messages with this peer travel in frames from now on. */
xm_status_t xm_ucx_multirail_open(xm_ucx_peer_t *peer);

/** Makes the datatype of what travels in frames, once. */
ucs_status_t xm_ucx_multirail_make_type(xm_ucx_transport_t *self);

/** Makes the transport look after this multirail in its next progress. */
void xm_ucx_multirail_set_due(xm_ucx_multirail_t *multirail);

/** Gives UCX what it has room for, on all multirails that are due. */
void xm_ucx_multirail_progress(xm_ucx_transport_t *self);

/** An answer, a PING or a PONG, preferably by @p lane. No memory: the peer fails. */
void xm_ucx_multirail_answer(xm_ucx_multirail_t *multirail, int lane, const xm_ucx_frame_t *frame);

/** Nobody may read a message's bytes any more. */
void xm_ucx_multirail_void(xm_ucx_multirail_t *multirail, const xm_ucx_outgoing_t *message);

/** At the end: whether something waits to be given to UCX, or to be sent by it. */
bool xm_ucx_multirail_has_packets(const xm_ucx_multirail_t *multirail);

/* comm/transport/ucx/listen.c: what comes from UCX, and the end. */

/** Receives frames of a rail. */
xm_status_t xm_ucx_multirail_listen(xm_ucx_transport_t *self, int rail);

/** Ends every operation with the peer, and forgets its messages. */
void xm_ucx_multirail_abandon(xm_ucx_peer_t *peer, xm_status_t status);

/* comm/transport/ucx/tx_queue.c */

/** Whether a message of this length would be copied now: its send ends at once. */
bool xm_ucx_tx_queue_copies(const xm_ucx_multirail_t *multirail, size_t length);
/** @p op is NULL for one that is copied. Results as those of a post. */
xm_status_t xm_ucx_tx_queue_send(xm_ucx_multirail_t *multirail, xm_op_t *op, uint64_t tag,
                                 const void *buffer, size_t length);
void xm_ucx_tx_queue_on_grant(xm_ucx_multirail_t *multirail, const xm_ucx_frame_t *frame);
/** What was sent by a lane that has been given up is to be sent again; returns how many fragments.
 */
uint64_t xm_ucx_tx_queue_resend(xm_ucx_multirail_t *multirail, int lane);
/** This rank leaves: what has ended here and was not answered goes once more, by another lane. */
void xm_ucx_tx_queue_repeat(xm_ucx_multirail_t *multirail);
void xm_ucx_tx_queue_clear(xm_ucx_multirail_t *multirail);

/* comm/transport/ucx/rx_queue.c */

void xm_ucx_rx_queue_receive(xm_ucx_multirail_t *multirail, xm_op_t *op);
/** No effect on sends: they end when the peer has taken them. */
void xm_ucx_rx_queue_cancel(xm_ucx_multirail_t *multirail, xm_op_t *op);
/** EAGER, START or CHUNK; @p bytes without the last, which says whether they are what they should
 * be. */
void xm_ucx_rx_queue_on_frame(xm_ucx_multirail_t *multirail, int lane, const xm_ucx_frame_t *frame,
                              const uint8_t *bytes, size_t length);
/** This rank leaves. Says what has arrived by every lane that is in use: one of them may be dead
 * without anybody knowing, and its answers with it. */
void xm_ucx_rx_queue_fin(xm_ucx_multirail_t *multirail);

/* comm/transport/ucx/failover.c */

/** A frame came by a lane that is in use, and told the lives of all. */
void xm_ucx_failover_heard(xm_ucx_multirail_t *multirail, int lane, const uint8_t *life);
/** The peer has given lanes up, or taken them back. */
void xm_ucx_failover_learn(xm_ucx_multirail_t *multirail, const uint8_t *life);
/** Asks on every lane in use that has no question open. */
void xm_ucx_failover_ping(xm_ucx_multirail_t *multirail);
/** Acts on what was reported, on NICs that went down, and on silence; as often as progress is made,
 *  and when the transport's clock rings. */
void xm_ucx_failover_look(xm_ucx_transport_t *self);

/* comm/transport/ucx/comeback.c */

/** A lane was given up: says when it is tried again. */
void xm_ucx_comeback_plan(xm_ucx_multirail_t *multirail, int lane);
/** Tries the lanes whose time has come. */
void xm_ucx_comeback_try(xm_ucx_multirail_t *multirail);
/** A frame came by a lane that was given up. */
void xm_ucx_comeback_heard(xm_ucx_multirail_t *multirail, int lane, const xm_ucx_frame_t *frame);
void xm_ucx_comeback_take(xm_ucx_multirail_t *multirail, int lane);

/* comm/transport/ucx/timer.c */

/** There is something to look after from time to time. */
void xm_ucx_failover_arm(xm_ucx_transport_t *self);
/** There is nothing any more. */
void xm_ucx_failover_unwind(xm_ucx_transport_t *self);
/** Before sleeping: true when the timer has fired, or a NIC has changed. */
bool xm_ucx_failover_rings(xm_ucx_transport_t *self);
