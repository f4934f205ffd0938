/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file execute_private.h
 * The parts of an executor, for the files that make it and run it. Not installed.
 *
 * The files, from the bottom up; each calls only those before it (and, upwards, what it finds in a
 * table of functions):
 *
 *     execute_run, _memory, _hops       what a run has come to; the user's buffers; the plan's hops
 *     execute_device_create, _device    tiles on a CUDA device, and its queues
 *     execute_staging, _turns, _order   pack buffers; the gate of turns; which chunk goes next
 *     execute_carrier_*, _direct_offer  how a chunk gets from one tile to another
 * (resharding/execute/carrier.h) execute                           the core: posts chunks, retires
 * them, ends runs execute_state, _create            describes an executor; makes, abandons and
 * frees one
 */
#pragma once

#include "comm/memory.h"
#include "resharding/execute/execute.h"
#include "resharding/layout.h"

typedef struct carrier carrier_t;
typedef struct device device_t;
typedef struct hop hop_t;
typedef struct lane lane_t;
typedef struct signal signal_t;
typedef struct turns turns_t;
typedef struct forward forward_t;
/* What the carriers keep, each for itself. */
typedef struct direct direct_t;
typedef struct directs directs_t;
typedef struct share share_t;
typedef struct copies copies_t;

/*
 * The lower half of a tag (xm_executor_tag() has the upper one) tells apart what two ranks say to
 * each other in a run. Chunks have their number in their lane there, which stays below all marks:
 *
 *     0x00000000 + n   chunk n of the lane
 *     0x20000000 + n   its length, where chunks are encoded
 *     0x40000000 + n   the n-th turn that one rank passes to the other
 *     0x60000000 + n   direct hops: offer, answer, "copied"
 *     0x80000000 + n   checksums (checksum.c)
 *     0xa0000000       hashes of chunks, where these prove themselves …
 *     0xc0000000       … and the answer to them
 *     0xc0000000 + n   else device tiles: acknowledgement of chunk n; offer, answer, close
 */
#define XM_LENGTH_BIT  UINT64_C(0x20000000)
#define XM_TURN_BIT    UINT64_C(0x40000000)
#define XM_DIRECT_BIT  UINT64_C(0x60000000)
#define XM_HASH_BITS   UINT64_C(0xa0000000)
#define XM_ANSWER_BITS UINT64_C(0xc0000000)
#define XM_IPC_BITS    UINT64_C(0xc0000000)

/* How long what was cancelled may take to end before its peers are given up: short, since who ends
 * a run knows already that it has failed. */
#define XM_DRAIN_SECONDS 0.2

/* Choices of XM_CUDA. */
enum { XM_CUDA_AUTO, XM_CUDA_STAGING, XM_CUDA_OFF };

/* One tensor of the batch on this rank. */
typedef struct {
    const char *src;
    char *dst;
    xm_memory_t *src_memory, *dst_memory; /* registrations that cover them; NULL: none needed */
    bool src_on_device, dst_on_device;
    int64_t element_size;
    int64_t hops; /* of this rank */
    int64_t left; /* of them in this run */
} tensor_t;

/* One hop that this rank sends or receives, or a copy. In plan order. */
struct hop {
    int64_t number;     /* of the hop in the plan */
    int64_t transfer;   /* of the plan */
    int64_t message;    /* place of its first chunk in the order of all messages, from 0 */
    int64_t stride;     /* from one chunk's place to the next one's */
    int64_t first, end; /* elements of the task's box */
    int64_t chunk;      /* elements per chunk */
    int64_t chunks;
    int64_t feed;    /* hop that brings what this one passes on; −1: it is there from the start */
    int64_t arrived; /* incoming or copy: elements of the box before this one are here */
    int64_t dependants; /* incoming: the first of the hops it feeds, in the list of those */
    int64_t dependant_count;
    int tensor;
    int lane;                 /* −1: a copy inside this rank */
    const carrier_t *carrier; /* of its chunks in this run; settled before the first is posted */
    direct_t *direct;         /* NULL: it never goes out of the sender's host memory */
    forward_t *forward; /* incoming: this rank has no tile for it and only passes it on; outgoing:
                           what it is passed on from; NULL: it lies in a tile */
    bool in_tiles;      /* both ends have it in a tile */
    bool in_dst;    /* this rank's end of it lies in the destination tile, not in the source's */
    bool packs;     /* some chunk is not contiguous in the tile, or may not be moved from there */
    bool on_device; /* the tile of the view is */
    bool staged;    /* … and the transport cannot reach it: every chunk goes by a pack buffer */
    const void *peer_tile; /* incoming, if it is copied out of the sender's tile: that one, … */
    xm_view_t peer_view;   /* … and where the box lies in it */
    xm_view_t view;        /* outgoing: where it is read; incoming or copy: where it is written */
    xm_span_t span;
    hop_t *next_finished; /* in its lane's list */
};

/* A copy inside this rank, and where its box lies in the source tile. */
typedef struct {
    int64_t hop;
    xm_view_t from;
} copy_t;

/*
 * A message of this executor that is not a chunk: a turn, an offer, "I have copied it". The
 * executor lists those in flight, because a run does not end before them, and a failed one cancels
 * them. Its owner embeds it, zeroed, and keeps it and its bytes until it has ended.
 */
struct signal {
    xm_op_t op;
    xm_executor_t *executor;
    void (*ended)(signal_t *signal); /* it has come or left well; NULL: nobody has to know */
    void *owner;
    int peer;
    bool sends;
    bool lasts; /* survives the cancelling of a failed run, and its failure is none of the run's:
                   its owner ends it */
    bool busy;
    signal_t *previous, *next; /* of those in flight */
};

/*
 * A chunk in flight. It is `busy` from its post until its carrier says that it has ended
 * (resharding/execute/carrier.h), and stays in its slot until all before it in the lane have ended
 * too: what arrives is passed on in order.
 */
typedef struct slot {
    xm_op_t op;
    lane_t *lane;
    hop_t *hop;
    int64_t chunk;
    char *packed;   /* its pack buffer, or NULL */
    int64_t copied; /* of a direct hop: elements that the receiver has copied so far */
    uint64_t tag;
    char *buffer; /* what is sent from or received into */
    size_t length;
    xm_memory_t *memory;
    xm_memory_mark_t *mark; /* on a device: behind its packing, unpacking or copying */
    struct slot *pending;   /* in the list of those whose mark has not been reached */
    xm_op_t ack;            /* by device IPC: what says that the chunk has been copied */
    xm_proven_t *proven;    /* chunks prove themselves by this; NULL: they do not */
    bool op_busy, ack_busy;
    bool moved;          /* it has left or come, and waits for its proof only */
    char byte, ack_byte; /* where the chunk itself is not a message: what travels */
    bool busy;
    xm_status_t status;
    int64_t posted_ns;
} slot_t;

/* What may hold a lane back, beside its window. */
typedef enum { LANE_INCOMING, LANE_OUTGOING, LANE_CROSSING, LANE_KINDS } lane_kind_t;

/* All traffic with one peer in one direction, in plan order. Both ends enumerate it alike. */
struct lane {
    xm_executor_t *executor;
    int peer;
    lane_kind_t kind;
    int64_t *items; /* hops, in plan order */
    int64_t item_count;
    int64_t chunk_count;           /* of all items */
    int64_t next_item, next_chunk; /* what to post next */
    uint32_t sequence;             /* of the next chunk; part of its tag */
    slot_t *slots;
    int slot_count, oldest, in_flight;
    int moved;          /* of those in flight: chunks that wait for their proof only */
    xm_prover_t prover; /* of its chunks, where they prove themselves */
    int packed;         /* pack buffers held */
    int unsettled;   /* carriers that have yet to agree with the peer; nothing is posted before */
    bool ready;      /* in the heap of its kind */
    bool revisited;  /* in the list of lanes to look at again */
    lane_t *next;    /* in that list */
    hop_t *finished; /* list: hops whose carrier has said that they are over */
};

/* Lanes whose next chunk could go, but for the limits they share; the earliest in plan order on
 * top. */
typedef struct {
    lane_t **lanes;
    int count;
} heap_t;

/*
 * Pack buffers of equal size. `reserve` holds one for each direction that only its earliest
 * unfinished chunk may take (execute.h says why); the others are for whoever comes first.
 */
typedef struct {
    char *memory;
    xm_memory_t *registration;
    uint64_t bytes; /* of all */
    int64_t size;   /* of one */
    int per_lane;   /* most a lane may hold */
    char **free;    /* stack */
    int free_count;
    char *reserve[2]; /* by direction, outgoing second; NULL: none needed */
    bool reserve_taken[2];
} staging_t;

/* Since when a run has been waited for, and whether it moves. */
typedef struct {
    uint64_t run;     /* which one: executor->runs */
    int64_t since_ns; /* nothing has moved since then */
    uint64_t steps;   /* executor->steps as it was then */
    bool reported;    /* the watchdog has described this stall */
} watch_t;

struct xm_executor {
    const xm_plan_t *plan;
    xm_transport_t *transport;
    const carrier_t *const *carriers; /* the table of resharding/execute/carrier.h */
    int window, channel;
    bool ordered, no_copy;
    struct xm_checksum *check; /* of a run that ends with one; NULL: it is not so far */
    xm_verify_t verify;        /* not XM_VERIFY_DEFAULT */
    xm_proven_t *proven;       /* of all slots */
    void (*tensor_done)(void *arg, int tensor);
    void (*chunk_ran)(void *arg, int64_t transfer, int hop, int64_t chunk, xm_span_t span);
    void *arg;
    uint8_t generation; /* of a run, in its tags */
    int runs_left;      /* until the tags of a run that failed come again; -1: none has */
    uint64_t runs;      /* posted so far */
    bool posted;        /* at least once */
    uint32_t checksums; /* of the last run, so far */
    tensor_t *tensors;
    int tensor_count;
    xm_memory_t **registrations;
    int registration_count;
    hop_t *hops;
    int64_t hop_count;
    int64_t *dependants;
    copy_t *copies; /* hops that are copies */
    int64_t copy_count;
    int64_t own_bytes; /* that the host of this rank may have to copy in a run … */
    void (*copy)(const xm_view_t *from, const void *from_buffer, const xm_view_t *to,
                 void *to_buffer, int64_t first, int64_t count); /* … and how it does */
    lane_t *lanes;
    int lane_count;
    int64_t *items; /* of all lanes */
    slot_t *slots;  /* of all lanes */
    lane_t **ready; /* of all heaps */
    heap_t heaps[LANE_KINDS];
    staging_t staging;
    device_t *device; /* NULL: all tiles are in host memory */
    turns_t *turns;   /* NULL: no turns are kept */
    forward_t *forwards;
    int64_t forward_count;
    directs_t *directs; /* NULL: no hop may go directly */
    share_t *shares;    /* of lanes whose hops may go by device IPC */
    int share_count;
    copies_t *local;                      /* of the copies inside this rank */
    const xm_executor_changes_t *changes; /* NULL: everything is moved, changed or not */
    struct changing *changing;
    signal_t *signals; /* list: in flight */
    lane_t *revisits;  /* list */
    int crossing;      /* chunks of ours on the NIC */
    int64_t in_flight;
    int64_t left;   /* hops that have not ended */
    uint64_t steps; /* chunks, copies and signals so far: it grows as long as anything moves */
    bool idle_announced;
    bool gave_up; /* on a peer that may live: operations with it may still touch the buffers */
    bool canceled;
    bool running;
    xm_status_t result;
    char reason[1024]; /* the sentence of a result that is an error */
    int64_t began_ns;  /* when the run was posted */
    watch_t watch;     /* of the run that xm_executor_wait() waits for */
};

static inline bool lane_sends(const lane_t *lane)
{
    return lane->kind != LANE_INCOMING;
}

/* Place of a chunk in flight in the order of all messages. */
static inline int64_t slot_message(const slot_t *slot)
{
    return slot->hop->message + slot->chunk * slot->hop->stride;
}

static inline void chunk_range(const hop_t *hop, int64_t chunk, int64_t *first, int64_t *count)
{
    *first = hop->first + chunk * hop->chunk;
    *count = hop->chunk < hop->end - *first ? hop->chunk : hop->end - *first;
}

static inline int64_t min_of(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Elements of that size that the budget is good for: at least one. */
static inline int64_t elements_for(int64_t budget, int64_t element_size)
{
    return (budget + element_size - 1) / element_size;
}

static inline int64_t hop_bytes(const xm_executor_t *executor, const hop_t *hop)
{
    return (hop->end - hop->first) * executor->tensors[hop->tensor].element_size;
}

/* ---- resharding/execute/run.c: what a run has come to. What carriers call is in
 * resharding/execute/carrier.h ---------
 */

/* Tag of the run's messages; a lane's sequence numbers stay below 2^31. */
uint64_t xm_executor_tag(const xm_executor_t *executor);

/* This rank's hop with that number in the plan; −1: it has no part in it. */
int64_t xm_executor_find_hop(const xm_executor_t *executor, int64_t number);

/* Keeps the first failure of a run and its sentence. */
void xm_executor_fail(xm_executor_t *executor, xm_status_t status);

/* Something has changed for the lane: the next advance retires what has ended and posts what may
 * go. */
void xm_executor_revisit(lane_t *lane);

/* Calls the user's tensor_done, so only from within an advance. */
void xm_executor_end_hop(xm_executor_t *executor, hop_t *hop);
void xm_executor_tell_tensor_done(xm_executor_t *executor, int tensor);

/* Starts sending or receiving the signal. `ended` may have been called when this returns. */
void xm_signal_post(xm_executor_t *executor, signal_t *signal, uint64_t tag, void *bytes,
                    size_t length);
/* Cancels all that do not last. */
void xm_signals_cancel(xm_executor_t *executor);
/* Gives up the peers of all that are in flight: they never take or send theirs. */
void xm_signals_give_up(xm_executor_t *executor);

/* ---- resharding/execute/prove.c: what is copied and not sent
 * ---------------------------------------------
 */

/* Copies a range of a box by the host. Where chunks prove themselves it compares both ends, and
 * copies again what differs; a range that cannot be copied fails the run. */
void xm_executor_copy(xm_executor_t *executor, const xm_view_t *from, const void *from_buffer,
                      const xm_view_t *to, void *to_buffer, int64_t first, int64_t count);

/* ---- resharding/execute/hops.c
 * ----------------------------------------------------------------------------
 */

/* Lists this rank's hops and its lanes. Needs the tensors' element sizes. */
xm_status_t xm_executor_list_hops(xm_executor_t *executor);
xm_status_t xm_executor_make_lanes(xm_executor_t *executor);

/* Sets where the hop's box lies in the tile that its sender reads. True: that is its destination
 * tile, as others bring it the data; false: its source tile. */
bool xm_executor_view_peer(const xm_executor_t *executor, hop_t *hop);

/* Bytes of a tile of the lane's sender. */
uint64_t xm_executor_tile_bytes(const lane_t *lane, int tensor, bool is_dst);

/* True when the lane stays inside a host. */
bool xm_executor_lane_is_inside(const lane_t *lane);

/* ---- resharding/execute/memory.c: the user's buffers
 * ------------------------------------------------------
 */

xm_status_t xm_executor_check_buffers(const xm_executor_params_t *params,
                                      const xm_tensor_buffers_t *buffers);
void xm_executor_take_buffers(xm_executor_t *executor, const xm_tensor_buffers_t *buffers);
xm_status_t xm_executor_register_buffers(xm_executor_t *executor,
                                         const xm_tensor_buffers_t *buffers);
void xm_executor_deregister_buffers(xm_executor_t *executor);

/*
 * Keeps memory (NULL is accepted) until the process ends, because a transport may still read or
 * write it: a peer that was given up although it lives may answer late.
 */
void xm_keep_for_ever(void *memory);
/* Frees what peers may write to or read, or keeps it, if the executor has given one of them up. */
void xm_executor_let_go(const xm_executor_t *executor, void *memory);

/* ---- resharding/execute/staging.c: pack buffers
 * -----------------------------------------------------------
 */

xm_status_t xm_executor_make_staging(xm_executor_t *executor, uint64_t memory_limit);
void xm_executor_release_staging(xm_executor_t *executor);
/* Of those that the order lets the lane have. */
char *xm_executor_take_pack_buffer(lane_t *lane);
void xm_executor_return_pack_buffer(lane_t *lane, char *buffer);

/* ---- resharding/execute/forward.c: what this rank passes on and does not need
 * -----------------------------------------------
 */

/* Marks the hops that such ranks receive or send. Needs the lanes. */
xm_status_t xm_forwards_create(xm_executor_t *executor, bool encoded);
void xm_forwards_destroy(xm_executor_t *executor);
/* A run begins: pack buffers that a failed one has left are given back. */
void xm_forwards_start(xm_executor_t *executor);

/* Chunks that a lane brings and this rank passes on that may be here at once. */
int64_t xm_forward_depth(const lane_t *lane);
/* Whether one more chunk of the incoming hop may come. */
bool xm_forward_has_room(const hop_t *hop, int64_t chunk);
/* The incoming hop's chunk is in its pack buffer, which stays taken until it has been passed on. */
void xm_forward_keep(const hop_t *hop, int64_t chunk, char *packed, size_t length);
/* Where it is, and its length. */
char *xm_forward_buffer(const hop_t *hop, int64_t chunk, size_t *length);
/* Whether this rank has a tile for what an incoming hop brings. */
bool xm_forward_takes(const xm_executor_t *executor, const hop_t *hop);
/* One of the outgoing hops is done with it. */
void xm_forward_passed(xm_executor_t *executor, const hop_t *hop, int64_t chunk);

/* ---- resharding/execute/order.c
 * ---------------------------------------------------------------------------
 */

/* Puts a lane among those that may post if its next chunk is there and has a slot. */
void xm_executor_consider(lane_t *lane);
/* Whether the window of the lane lets one more chunk go: those that wait for their proof only do
 * not count. */
bool xm_executor_has_window(const lane_t *lane);
/* What to post next, or NULL: receives first, because they cost nothing; then sends in plan order.
 */
lane_t *xm_executor_next_lane(const xm_executor_t *executor);
/* Takes that lane from among them. */
void xm_executor_take_lane(lane_t *lane);

/* ---- execute.c ---------------------------------------------------------------------------------
 */

/* True while something is left to do here that no event of the transport will announce. */
bool xm_executor_is_busy(const xm_executor_t *executor);

/* ---- resharding/execute/state.c
 * ---------------------------------------------------------------------------
 */

/*
 * What a rank that is stuck waits for, e.g. "waits for chunk 3 of 8 of transfer 17 from rank 2";
 * for the sentence of a passed deadline.
 */
char *xm_executor_describe_wait(const xm_executor_t *executor, char *buffer, size_t size);

/* ---- resharding/execute/create.c
 * --------------------------------------------------------------------------
 */

/*
 * Ends a run that cannot or shall not finish, so that nothing of it is in flight any more. A send
 * that its peer never takes can only be ended by giving up the connection to that peer.
 */
void xm_executor_abandon(xm_executor_t *executor);

/* ---- reshard.c ---------------------------------------------------------------------------------
 */

/*
 * An operation failed. When the reason is a dead rank, possibly far away (a neighbour that gave up
 * because of it takes back what it had offered), the fault channel names it: gives it a moment to
 * speak.
 */
xm_status_t xm_reshard_name_culprit(xm_worker_t *worker, xm_status_t status);
