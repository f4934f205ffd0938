/**
 * @file execute_private.h
 * The parts of an executor, for the files that make it and run it. Not installed.
 */
#ifndef XM_RESHARDING_EXECUTE_PRIVATE_H
#define XM_RESHARDING_EXECUTE_PRIVATE_H

#include "comm/memory.h"
#include "comm/shared_memory.h"
#include "resharding/execute.h"
#include "resharding/view.h"

typedef struct lane lane_t;
typedef struct direct direct_t;
typedef struct pact pact_t;
typedef struct direct_tile direct_tile_t;
typedef struct device device_t;
typedef struct share share_t;

/* Marks in the tags of messages that are not chunks, whose sequence numbers stay below them:
 * turns, and what is said about direct hops. The bit above belongs to checksums. */
#define XM_NOTE_BIT   UINT64_C(0x40000000)
#define XM_DIRECT_BIT UINT64_C(0x60000000)

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
typedef struct {
    int64_t number;     /* of the hop in the plan */
    int64_t transfer;   /* of the plan */
    int64_t message;    /* place of its first chunk in the order of all messages, from 0 */
    int64_t stride;     /* from one chunk's place to the next one's */
    int64_t first, end; /* elements of the task's box */
    int64_t chunk;      /* elements per chunk */
    int64_t chunks;
    int64_t feed;    /* hop that brings what this one passes on; −1: it lies in the source tile */
    int64_t arrived; /* incoming: elements of the box before this one are here */
    int64_t dependants; /* incoming: the first of the hops it feeds, in the list of those */
    int64_t dependant_count;
    int64_t awaits, await_count; /* notes of other ranks that it waits for (execute_turns.c) */
    int64_t tells, tell_count;   /* notes it gives when it is about to end */
    int64_t local_turns;         /* hops of this rank that it waits for */
    int64_t turns_left;          /* of both, in this run */
    bool asked;                  /* its notes are expected */
    int tensor;
    int lane;         /* −1: a copy */
    bool packs;       /* some chunk is not contiguous in the tile, or may not be moved from there */
    direct_t *direct; /* NULL: never goes out of the sender's host memory */
    bool on_device;   /* the tile of the view is */
    bool staged;      /* … and the transport cannot reach it: every chunk goes by a pack buffer */
    bool mapped;      /* in this run: the receiver copies it out of the sender's device tile */
    int tile;         /* with a share: the sender's tile in its list */
    const void *peer_tile; /* incoming, mapped: that tile … */
    xm_view_t peer_view;   /* … and where the box lies in it */
    xm_view_t view;        /* outgoing: where it is read; incoming or copy: where it is written */
    xm_span_t span;
} hop_t;

/* "Your turn", from one rank to another of its host; or, with this rank as the peer, from hop to
 * hop. */
typedef struct {
    xm_op_t op;
    xm_executor_t *executor;
    int64_t hop; /* of this rank, that has its turn */
    int peer;
    uint32_t sequence; /* among those of the pair of ranks */
    int64_t at;        /* given: after this chunk */
    bool awaited;      /* else given */
    bool busy;
    char byte; /* what is sent */
} note_t;

/* A chunk in flight. */
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
    xm_memory_mark_t *mark; /* on a device: behind its packing or unpacking */
    struct slot *pending;   /* in the list of those */
    xm_op_t ack;            /* of a mapped hop: what says that the chunk has been copied */
    bool op_busy, ack_busy;
    bool copying;        /* the mark is behind its copy out of the peer's tile */
    char byte, ack_byte; /* of a direct or mapped hop: what travels */
    bool busy;
    xm_status_t status;
    int64_t posted_ns;
} slot_t;

/*
 * A hop inside a host that may go directly: the receiver copies it out of the sender's memory. Its
 * chunks' messages then have one byte, "it is there", and one more message at the end says that all
 * has been copied.
 */
struct direct {
    xm_op_t op; /* of that last message */
    hop_t *hop;
    lane_t *lane;
    direct_t *next;   /* of the sender's that have been copied */
    uint32_t number;  /* in its lane */
    int64_t tile;     /* which tile of the sender's it reads: index in the lane's pact */
    bool agreed;      /* in this run */
    const char *from; /* incoming: that tile, mapped here … */
    xm_view_t view;   /* … and where the box lies in it */
    bool busy;
    char byte;
};

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
    int packed;     /* pack buffers held */
    pact_t *pact;   /* NULL: none of its hops may go directly */
    share_t *share; /* NULL: its hops never go out of a peer's device memory */
    bool copies;    /* in the list of lanes with chunks to copy */
    lane_t *next_copy;
    direct_t *copied; /* list: outgoing hops that have just been copied */
    bool ready;       /* in the heap of its kind */
    bool ended;       /* in the list of lanes with ended operations */
    lane_t *next;     /* in that list */
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
    int64_t start_ns; /* of the first wait for it */
    int64_t since_ns; /* nothing has moved since then */
    uint64_t steps;   /* executor->steps as it was then */
    bool told;        /* the watchdog has described this stall */
} watch_t;

struct xm_executor {
    const xm_plan_t *plan;
    xm_transport_t *transport;
    int window, channel;
    bool ordered, no_copy;
    void (*tensor_done)(void *arg, int tensor);
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
    int64_t *copies; /* hops that are copies, and their source views */
    xm_view_t *copy_views;
    int64_t copy_count, next_copy, next_copy_element;
    void (*copy)(const xm_view_t *from, const void *from_buffer, const xm_view_t *to,
                 void *to_buffer, int64_t first, int64_t count); /* how a slice is copied */
    lane_t *lanes;
    int lane_count;
    int64_t *items; /* of all lanes */
    slot_t *slots;  /* of all lanes */
    lane_t **ready; /* of all heaps */
    heap_t heaps[LANE_KINDS];
    staging_t staging;
    device_t *device; /* NULL: all tiles are in host memory */
    share_t *shares;
    int share_count;
    note_t *notes; /* NULL: no turns are kept */
    int64_t note_count;
    int64_t signals; /* messages in flight that are not chunks */
    direct_t *directs;
    int64_t direct_count;
    pact_t *pacts;
    int pact_count;
    direct_tile_t *direct_tiles; /* of all pacts */
    unsigned char *pact_bytes;   /* their messages */
    xm_shared_view_t *views;     /* their views of others' memory */
    xm_shared_memory_t *notice;  /* the last run this rank gave up, for those who copy from it */
    lane_t *copiers;             /* list: lanes with chunks to copy */
    lane_t *ended;               /* list */
    int crossing;                /* chunks of ours on the NIC */
    int64_t in_flight;
    int64_t left;   /* hops that have not ended */
    uint64_t steps; /* chunks, copies and turns so far: it grows as long as anything moves */
    bool idle_announced;
    bool gave_up; /* on a peer that may live: operations with it may still touch the buffers */
    bool canceled;
    bool running;
    xm_status_t result;
    char reason[1024]; /* the sentence of a result that is an error */
    watch_t watch;     /* of the run that xm_executor_wait() waits for */
};

/* Gives an executor that has not run yet another channel than it was created on. */
static inline void xm_executor_take_channel(xm_executor_t *executor, int channel)
{
    executor->channel = channel;
}

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

/* True when the hop goes directly in this run. */
static inline bool is_direct(const hop_t *hop)
{
    return hop->direct != NULL && hop->direct->agreed;
}

static inline int64_t min_of(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Lists this rank's hops and its lanes (execute_hops.c). Needs the tensors' element sizes. */
xm_status_t xm_executor_list_hops(xm_executor_t *executor);
xm_status_t xm_executor_make_lanes(xm_executor_t *executor);

/* Where the box of a transfer lies in the source tile, and in the destination tile of any of its
 * receivers. */
void xm_executor_source_view(const xm_executor_t *executor, const xm_transfer_t *transfer,
                             xm_view_t *view);
void xm_executor_destination_view(const xm_executor_t *executor, const xm_transfer_t *transfer,
                                  xm_view_t *view);

/* This rank's hop with that number in the plan; −1: it has no part in it. */
int64_t xm_executor_find_hop(const xm_executor_t *executor, int64_t number);

/*
 * Turns (execute_turns.c). A hop may not begin before xm_executor_has_turn(); when a chunk of a hop
 * has ended at this rank, xm_executor_pass_turn() tells those that wait for the hop, which calls
 * xm_executor_take_turn() for those of this rank.
 */
xm_status_t xm_executor_list_turns(xm_executor_t *executor, uint64_t ahead);
void xm_executor_reset_turns(xm_executor_t *executor);
bool xm_executor_has_turn(xm_executor_t *executor, hop_t *hop);
void xm_executor_pass_turn(xm_executor_t *executor, const hop_t *hop, int64_t chunk);
void xm_executor_take_turn(xm_executor_t *executor, hop_t *hop);
void xm_executor_note_done(xm_op_t *op, xm_status_t status);
void xm_executor_cancel_turns(xm_executor_t *executor);

/*
 * Direct hops (execute_direct.c). Ends of a lane agree anew in every run which hops go directly:
 * nothing of the lane is posted before that.
 */
xm_status_t xm_executor_list_directs(xm_executor_t *executor);
void xm_executor_make_pacts(xm_executor_t *executor);
bool xm_executor_has_pact(const lane_t *lane);
/* The last chunk of a direct hop has been sent, or has been copied. */
void xm_executor_finish_direct(xm_executor_t *executor, hop_t *hop);
/* XM_OK while what was copied out of the lane's peer is what it had when it said so. */
xm_status_t xm_executor_check_notice(const lane_t *lane);
/* This run has failed: whoever copies from this rank learns it. */
void xm_executor_give_notice(xm_executor_t *executor);
void xm_executor_cancel_directs(xm_executor_t *executor);
void xm_executor_give_up_directs(xm_executor_t *executor);
/* What a rank waits for, if it is something about direct hops. */
bool xm_executor_describe_directs(const xm_executor_t *executor, char *buffer, size_t size);
void xm_executor_free_directs(xm_executor_t *executor);

/* Copies a slice of what this rank moves itself: direct hops, and what it holds and needs
 * (execute_copy.c). */
void xm_executor_choose_copy(xm_executor_t *executor);
void xm_executor_copy_some(xm_executor_t *executor);
bool xm_executor_has_copies(const xm_executor_t *executor);
/* The lane's oldest chunk waits to be copied. */
void xm_executor_queue_copy(lane_t *lane);

/* Checks and registers the user's buffers; makes the pack buffers (execute_memory.c). */
xm_status_t xm_executor_check_buffers(const xm_executor_params_t *params,
                                      const xm_tensor_buffers_t *buffers);
void xm_executor_take_buffers(xm_executor_t *executor, const xm_tensor_buffers_t *buffers);
xm_status_t xm_executor_register_buffers(xm_executor_t *executor,
                                         const xm_tensor_buffers_t *buffers);
xm_status_t xm_executor_make_staging(xm_executor_t *executor, uint64_t memory_limit);
void xm_executor_release_memory(xm_executor_t *executor);

/*
 * Keeps memory (NULL is accepted) until the process ends, because a transport may still read or
 * write it: a peer that was given up although it lives may answer late.
 */
void xm_keep_for_ever(void *memory);

/* `done` of every slot's operation. */
void xm_executor_chunk_done(xm_op_t *op, xm_status_t status);

/* Hands the slot's chunk to the transport. */
void xm_executor_transmit(slot_t *slot);

/* Puts a lane among those that may post if its next chunk is there and has a slot
 * (execute_order.c).
 */
void xm_executor_consider(lane_t *lane);
/* What to post next, or NULL: receives first, because they cost nothing; then sends in plan order.
 */
lane_t *xm_executor_next_lane(const xm_executor_t *executor);
/* Takes that lane from among them. */
void xm_executor_take_lane(lane_t *lane);
char *xm_executor_take_pack_buffer(lane_t *lane);
void xm_executor_return_pack_buffer(lane_t *lane, char *buffer);

/* Keeps the first failure of a run and its sentence. */
void xm_executor_fail(xm_executor_t *executor, xm_status_t status);
/* Something of the lane has ended: the next advance looks at it. */
void xm_executor_list_ended(lane_t *lane);
void xm_executor_end_hop(xm_executor_t *executor, hop_t *hop);

/*
 * Tiles in the memory of a CUDA device (execute_device.c). xm_executor_find_device() recognises
 * them and takes the copies that concern them out of the executor's list. The others do nothing, or
 * say so, where all memory is the host's.
 */
xm_status_t xm_executor_find_device(xm_executor_t *executor);
/* Makes what packing needs, for pack buffers of that many bytes; NULL memory: the caller's task. */
xm_status_t xm_executor_device_staging(xm_executor_t *executor, size_t bytes, char **memory);
/* A run begins. Its work on the device follows what is in the stream now, if @p follows. */
xm_status_t xm_executor_post_device(xm_executor_t *executor, bool follows, void *stream);
/* False while the transport may not touch the tiles yet. */
bool xm_executor_device_ready(const xm_executor_t *executor);
/* Starts packing or unpacking the slot's chunk: XM_IN_PROGRESS, or a failure. */
xm_status_t xm_executor_pack_on_device(slot_t *slot);
xm_status_t xm_executor_unpack_on_device(slot_t *slot);
/* The same for copying it out of the peer's tile. */
xm_status_t xm_executor_copy_from_peer(slot_t *slot);
/* NULL: this rank has no device. */
xm_memory_space_t *xm_executor_space(const xm_executor_t *executor);
/* Looks at what has ended there and goes on with it; starts copies. */
void xm_executor_poll_device(xm_executor_t *executor);
bool xm_executor_device_is_busy(const xm_executor_t *executor);
/* Waits for a range of a tile there and lends its bytes: at most *count elements, which it says. */
xm_status_t xm_executor_read_device(xm_executor_t *executor, const xm_view_t *view,
                                    const void *tile, int64_t first, int64_t *count,
                                    const char **bytes);
/* @p keeps: pack buffers must stay, because others may still write to them. */
void xm_executor_free_device(xm_executor_t *executor, bool keeps);

/*
 * Device tiles that ranks of a host copy from each other (execute_share.c). The ends of a lane
 * agree in every run; nothing of the lane is posted before they have.
 */
xm_status_t xm_executor_make_shares(xm_executor_t *executor);
void xm_executor_start_shares(xm_executor_t *executor);
bool xm_executor_has_settled(const lane_t *lane);
/* Sends, or waits for, what says that the slot's chunk has been copied. */
void xm_executor_post_ack(slot_t *slot);
void xm_executor_ack_done(xm_op_t *op, xm_status_t status);
/* Called while a run comes to its end, whichever. */
void xm_executor_end_shares(xm_executor_t *executor);
void xm_executor_cancel_shares(xm_executor_t *executor);
void xm_executor_give_up_shares(xm_executor_t *executor);
bool xm_executor_describe_shares(const xm_executor_t *executor, char *buffer, size_t size);
void xm_executor_free_shares(xm_executor_t *executor);

/* Tag of the run's messages; a lane's sequence numbers stay below 2^31. */
uint64_t xm_executor_tag(const xm_executor_t *executor);

/*
 * Ends a run that cannot or shall not finish, so that nothing of it is in flight any more. A send
 * that its peer never takes can only be ended by giving up the connection to that peer.
 */
void xm_executor_abandon(xm_executor_t *executor);

/*
 * What a rank that is stuck waits for, e.g. "waits for chunk 3 of 8 of transfer 17 from rank 2";
 * for the sentence of a passed deadline.
 */
char *xm_executor_describe_wait(const xm_executor_t *executor, char *buffer, size_t size);

/*
 * An operation failed. When the reason is a dead rank, possibly far away (a neighbour that gave up
 * because of it takes back what it had offered), the fault channel names it: gives it a moment to
 * speak.
 */
xm_status_t xm_reshard_name_culprit(xm_worker_t *worker, xm_status_t status);

#endif
