/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file fake_ucx.h
 * What takes UCX's place between two ranks whose rails are under test: frames are packed and arrive
 * when chance says so, in order on each lane. What is fetched is written until the fetch has ended.
 * The linker sends the library's calls of UCX here (tests/comm/CMakeLists.txt), and those of the
 * allocator, which are counted.
 */
#pragma once

#include <ucp/api/ucp.h>

#include "comm/transport/rails.h"

enum { FAKE_RANKS = 2, FAKE_LANES = 3 };

typedef struct fake_packet fake_packet_t;
struct fake_packet {
    fake_packet_t *next;
    uint8_t head[XM_RAILS_FRAME_SIZE];
    const xm_rails_packet_t *packet; /* until it is packed */
    ucp_send_nbx_callback_t sent;
    uint8_t *bytes;
    size_t length;
    /* Of what is fetched. */
    const uint8_t *announced; /* the sender's memory; the packet is in its way's `asked` until its
                                 request has ended */
    fake_packet_t *source;    /* of the announcement on the wire; NULL: has ended */
    fake_packet_t *announcement; /* on the wire, or being fetched; NULL: dropped */
    uint8_t *to;
    xm_rails_fetch_t *fetch;
    ucp_am_recv_data_nbx_callback_t came;
};

typedef struct {
    fake_packet_t *first, *last;
} fake_queue_t;

/* One way of a lane. */
typedef struct {
    fake_queue_t given, wire;       /* to UCX, and packed */
    fake_queue_t asked, fetches;    /* what the sender holds until it is fetched; being fetched */
    bool dead, lossy;               /* nothing passes; and what was on the wire is lost */
    ucp_am_recv_callback_t handler; /* of who hears it */
    void *arg;
} fake_way_t;

typedef struct {
    fake_way_t ways[FAKE_RANKS][FAKE_LANES]; /* by who sends */
    uint64_t chance;
    bool strict, counting; /* whether memory that is taken is counted; now */
    int allocations;
} fake_ucx_t;

extern fake_ucx_t fake;

uint64_t fake_any(uint64_t below);

/** Something happens on one way of a lane. */
void fake_move(fake_way_t *way);

/** What is on the wire is lost. */
void fake_lose(fake_way_t *way);

/** Forgets all that is on a way. */
void fake_drop(fake_way_t *way);
