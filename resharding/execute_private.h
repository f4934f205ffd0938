/**
 * @file execute_private.h
 * The parts of an executor, for the files that make it and run it. Not installed.
 */
#ifndef XM_RESHARDING_EXECUTE_PRIVATE_H
#define XM_RESHARDING_EXECUTE_PRIVATE_H

#include "resharding/execute.h"
#include "resharding/view.h"

/* One transfer that this rank sends, receives or copies. */
typedef struct {
    int64_t transfer;
    int64_t task;
    int64_t parent;  /* index among this rank's transfers, or −1 */
    int64_t arrived; /* chunks before this one are here (incoming), absolute */
    int64_t first_chunk, end_chunk;
    xm_view_t view; /* outgoing: where it is read; incoming: where it is written */
    bool from_dst;  /* outgoing: read from the destination buffer (a relay) */
    bool crosses;
    xm_span_t span;
} local_t;

typedef struct lane lane_t;

/* A chunk in flight. */
typedef struct {
    xm_op_t op;
    local_t *local;
    int64_t chunk;
    char *ring; /* this slot's piece of the lane's ring */
    bool packed, busy, canceled;
    xm_status_t status;
} slot_t;

/* All traffic with one peer in one direction, in plan order. Both ends enumerate it alike. */
struct lane {
    xm_executor_t *executor;
    int peer;
    bool outgoing;
    int64_t *items; /* indices of locals, in plan order */
    int64_t item_count;
    int64_t next_item, next_chunk; /* what to post next */
    uint32_t sequence;             /* of the next chunk; part of its tag */
    slot_t *slots;
    int slot_count, oldest, in_flight;
    char *ring;
    xm_memory_t *ring_memory;
};

struct xm_executor {
    const xm_plan_t *plan;
    xm_transport_t *transport;
    const char *src;
    char *dst;
    xm_memory_t *src_memory, *dst_memory;
    int window, channel;
    uint8_t generation;
    local_t *locals;
    int64_t local_count;
    int64_t *copies; /* indices of locals that are local copies, and their source views */
    xm_view_t *copy_views;
    int64_t copy_count, next_copy, next_copy_element;
    lane_t *lanes;
    int lane_count;
    int crossing; /* chunks of ours on the NIC */
    bool running;
    xm_status_t result;
};

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

#endif
