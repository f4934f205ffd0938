/* SPDX-License-Identifier: Apache-2.0 */
/* Two ranks' multirail over three lanes without UCX, whose place this test takes: frames are packed
 * and arrive when chance says so, in order on each lane; lanes die, one way or both, and come back
 * too late. Whatever happens, every message arrives once, whole, and in the order of its tag. Where
 * lanes fetch, a fetch writes until it has ended, from memory that the sender's owner may use again
 * as soon as it has ended. */
#include <stdlib.h>
#include <string.h>
#include <ucp/api/ucp.h>

#include "tests/comm/transport/ucx/multirail_peer.h"
#include "xm_test.h"

#include "comm/base/random.h"

enum { RANKS = 2, LANES = 3, MESSAGES = 120, TAGS = 5, LONGEST = 300000, SEEDS = 16, RING = 4096 };
enum { MOST_STEPS = 400000, STEP_NS = 1000000 };

/* The linker sends calls of the library to functions of this file, which call these. */
void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *memory, size_t size);

typedef struct packet packet_t;
struct packet {
    packet_t *next;
    uint8_t head[XM_RAILS_FRAME_SIZE];
    const xm_rails_packet_t *packet; /* until it is packed */
    ucp_send_nbx_callback_t sent;
    uint8_t *bytes;
    size_t length;
    /* Of what is fetched. */
    const uint8_t *announced; /* the sender's memory; the packet is in its way's `asked` until its
                                 request has ended */
    packet_t *source;         /* of the announcement on the wire; NULL: has ended */
    packet_t *announcement;   /* on the wire, or being fetched; NULL: dropped */
    uint8_t *to;
    xm_rails_fetch_t *fetch;
    ucp_am_recv_data_nbx_callback_t came;
};

typedef struct {
    packet_t *first, *last;
} queue_t;

/* One way of a lane. */
typedef struct {
    queue_t given, wire;            /* to UCX, and packed */
    queue_t asked, fetches;         /* what the sender holds until it is fetched; being fetched */
    bool dead, lossy;               /* nothing passes; and what was on the wire is lost */
    ucp_am_recv_callback_t handler; /* of who hears it */
    void *arg;
} way_t;

static way_t ways[RANKS][LANES]; /* by who sends */
static bool fetching;            /* the lanes fetch */
static uint64_t state;
static int64_t clock_ns;

static uint64_t any(uint64_t below)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (state >> 33) % below;
}

static void append(queue_t *queue, packet_t *packet)
{
    packet->next = NULL;
    if (queue->first == NULL) {
        queue->first = packet;
    } else {
        queue->last->next = packet;
    }
    queue->last = packet;
}

static packet_t *pop(queue_t *queue)
{
    packet_t *packet = queue->first;

    queue->first = packet->next;
    return packet;
}

/* Neither end of what is fetched keeps a pointer to the other. */
static void free_packet(packet_t *packet)
{
    if (packet->source != NULL) {
        packet->source->announcement = NULL;
    }
    if (packet->announcement != NULL) {
        packet->announcement->source = NULL;
    }
    free(packet->bytes);
    free(packet);
}

static void drop(queue_t *queue)
{
    while (queue->first != NULL) {
        free_packet(pop(queue));
    }
}

static void drop_way(way_t *way)
{
    drop(&way->given);
    drop(&way->wire);
    drop(&way->asked);
    drop(&way->fetches);
}

static void take_out(queue_t *queue, const packet_t *packet)
{
    queue_t rest = {0};

    while (queue->first != NULL) {
        packet_t *first = pop(queue);

        if (first != packet) {
            append(&rest, first);
        }
    }
    *queue = rest;
}

/* As the datatype of packets does. */
static void pack(packet_t *packet)
{
    if (packet->length > 0) {
        packet->bytes = __real_calloc(1, packet->length);
        ck_assert_ptr_nonnull(packet->bytes);
    }
    if (packet->length > 0 && packet->packet->bytes != NULL) {
        memcpy(packet->bytes, packet->packet->bytes, packet->length - 1);
        packet->bytes[packet->length - 1] = 1;
    }
}

/* ---- in the allocator's place: whether posting, progress or frames that come need memory of it
 * ---
 */

static bool strict, counting;
static int allocations;

void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *memory, size_t size);

void *__wrap_malloc(size_t size)
{
    allocations += counting;
    return __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    allocations += counting;
    return __real_calloc(count, size);
}

void *__wrap_realloc(void *memory, size_t size)
{
    allocations += counting;
    return __real_realloc(memory, size);
}

/* ---- in UCX's place: the linker sends the multirail's calls here
 * -------------------------------------
 */

ucs_status_ptr_t __wrap_ucp_am_send_nbx(ucp_ep_h ep, unsigned id, const void *header,
                                        size_t header_length, const void *buffer, size_t count,
                                        const ucp_request_param_t *param);
ucs_status_t __wrap_ucp_worker_set_am_recv_handler(ucp_worker_h worker,
                                                   const ucp_am_handler_param_t *param);
ucs_status_ptr_t __wrap_ucp_am_recv_data_nbx(ucp_worker_h worker, void *desc, void *buffer,
                                             size_t count, const ucp_request_param_t *param);
ucs_status_t __wrap_ucp_ep_create(ucp_worker_h worker, const ucp_ep_params_t *params, ucp_ep_h *ep);
ucs_status_ptr_t __wrap_ucp_ep_close_nbx(ucp_ep_h ep, const ucp_request_param_t *param);
void __wrap_ucp_request_free(void *request);

ucs_status_ptr_t __wrap_ucp_am_send_nbx(ucp_ep_h ep, unsigned id, const void *header,
                                        size_t header_length, const void *buffer, size_t count,
                                        const ucp_request_param_t *param)
{
    way_t *way = (way_t *)(void *)ep;
    packet_t *packet = __real_calloc(1, sizeof(*packet));

    counting = false; /* what follows is not the library's */
    (void)id;
    ck_assert_ptr_nonnull(packet);
    ck_assert_uint_eq(header_length, sizeof(packet->head));
    memcpy(packet->head, header, sizeof(packet->head));
    packet->packet = param->user_data;
    if (param->flags == UCP_AM_SEND_FLAG_RNDV) {
        packet->announced = buffer;
    }
    packet->length = count;
    packet->sent = param->cb.send;
    if (packet->announced == NULL && way->given.first == NULL && !way->dead && any(2) == 0) {
        pack(packet);
        append(&way->wire, packet);
        counting = strict;
        return NULL;
    }
    append(&way->given, packet);
    counting = strict;
    return packet;
}

ucs_status_t __wrap_ucp_worker_set_am_recv_handler(ucp_worker_h worker,
                                                   const ucp_am_handler_param_t *param)
{
    way_t *way = (way_t *)(void *)worker;

    way->handler = param->cb;
    way->arg = param->arg;
    return UCS_OK;
}

void __wrap_ucp_request_free(void *request)
{
    (void)request;
}

ucs_status_ptr_t __wrap_ucp_am_recv_data_nbx(ucp_worker_h worker, void *desc, void *buffer,
                                             size_t count, const ucp_request_param_t *param)
{
    way_t *way = (way_t *)(void *)worker;
    packet_t *packet = desc;

    counting = false;
    ck_assert_uint_eq(packet->length, count);
    counting = strict;
    packet->to = buffer;
    packet->fetch = param->user_data;
    packet->came = param->cb.recv_am;
    append(&way->fetches, packet);
    return packet;
}

/* Endpoints are known by their workers; a new connection is the old one, that works or does not. */
ucs_status_t __wrap_ucp_ep_create(ucp_worker_h worker, const ucp_ep_params_t *params, ucp_ep_h *ep)
{
    way_t *heard = (way_t *)(void *)worker;
    int index = (int)(heard - &ways[0][0]);

    (void)params;
    *ep = (ucp_ep_h)(void *)&ways[1 - index / LANES][index % LANES];
    return UCS_OK;
}

/* A request of the sender has ended: what is still written is not what was sent. */
static void end_asked(way_t *way, packet_t *packet, ucs_status_t status)
{
    take_out(&way->asked, packet);
    packet->sent(packet, status, (void *)(uintptr_t)packet->packet);
    free_packet(packet);
}

/* A fetch writes as long as it has not ended. */
static void end_fetch(packet_t *packet, ucs_status_t status)
{
    if (packet->source != NULL && status == UCS_OK) {
        memcpy(packet->to, packet->source->announced, packet->length);
    } else {
        memset(packet->to, 0xdd, packet->length);
        status = status == UCS_OK ? UCS_ERR_CANCELED : status;
    }
    packet->came(packet, status, packet->length, packet->fetch);
    free_packet(packet);
}

/* By force: all requests of this end are ended. */
ucs_status_ptr_t __wrap_ucp_ep_close_nbx(ucp_ep_h ep, const ucp_request_param_t *param)
{
    way_t *out = (way_t *)(void *)ep;
    int index = (int)(out - &ways[0][0]);
    way_t *in = &ways[1 - index / LANES][index % LANES];

    (void)param;
    while (out->asked.first != NULL) {
        end_asked(out, out->asked.first, UCS_ERR_CANCELED);
    }
    while (in->fetches.first != NULL) {
        end_fetch(pop(&in->fetches), UCS_ERR_CANCELED);
    }
    while (out->given.first != NULL) {
        packet_t *packet = pop(&out->given);

        packet->sent(packet, UCS_ERR_CANCELED, (void *)(uintptr_t)packet->packet);
        free_packet(packet);
    }
    return NULL;
}

/* ---- the ranks ----------------------------------------------------------------------------------
 */

static int64_t virtual_now(const xm_transport_t *transport)
{
    (void)transport;
    return clock_ns;
}

static multirail_peer_t *sit(int rank)
{
    static xm_transport_ops_t ops;
    multirail_peer_t *slot = multirail_peer_open(rank, RANKS, LANES);
    xm_ucx_transport_t *self = &slot->transport;

    ops = xm_ucx_ops;
    ops.now = virtual_now;
    self->base.base.ops = &ops;
    self->base.rail_timeout = INT64_C(1600000000);
    slot->peers[1 - rank].base.rails->way = fetching ? XM_RAILS_FETCH : XM_RAILS_COPY;
    slot->peers[1 - rank].base.connected = !fetching;
    for (int lane = 0; lane < LANES; ++lane) {
        if (!fetching) {
            slot->peers[1 - rank].lanes[lane].ep = (ucp_ep_h)(void *)&ways[rank][lane];
        }
        slot->peers[1 - rank].lanes[lane].address = &ways[rank][lane];
        slot->peers[1 - rank].lanes[lane].peer = &slot->peers[1 - rank];
        self->rails[XM_UCX_RAIL_NIC + lane].worker = (ucp_worker_h)(void *)&ways[1 - rank][lane];
        ck_assert_xm_ok(xm_ucx_listen(self, XM_UCX_RAIL_NIC + lane));
    }
    return slot;
}

static void progress(multirail_peer_t *slot)
{
    xm_ucx_transport_t *self = &slot->transport;

    self->base.clock = clock_ns;
    counting = strict;
    xm_rails_failover_look(&self->base);
    xm_rails_progress(&self->base);
    (void)xm_rails_deliver(&self->base);
    counting = false;
}

/* Something happens on one way of a lane. */
static void move(way_t *way)
{
    packet_t *packet;

    if (way->dead) {
        return;
    }
    if (way->fetches.first != NULL && any(2) == 0) {
        packet_t *source;

        packet = pop(&way->fetches);
        source = packet->source;
        counting = strict;
        end_fetch(packet, UCS_OK);
        if (source != NULL) {
            end_asked(way, source, UCS_OK);
        }
        counting = false;
    }
    if (way->given.first != NULL && way->given.first->announced != NULL && any(2) == 0) {
        packet_t *announcement = __real_calloc(1, sizeof(*announcement));

        ck_assert_ptr_nonnull(announcement);
        packet = pop(&way->given);
        *announcement = *packet;
        announcement->source = packet;
        packet->announcement = announcement;
        append(&way->wire, announcement);
        append(&way->asked, packet);
    } else if (way->given.first != NULL && way->given.first->announced == NULL && any(2) == 0) {
        packet = pop(&way->given);
        pack(packet);
        append(&way->wire, packet);
        /* Nothing of the packet is needed any more: it may be gone afterwards. */
        counting = strict;
        packet->sent(packet, UCS_OK, (void *)(uintptr_t)packet->packet);
        counting = false;
    }
    if (way->wire.first != NULL && any(2) == 0) {
        bool announced;
        ucp_am_recv_param_t param = {0};

        packet = pop(&way->wire);
        announced = packet->announced != NULL;
        param.recv_attr = announced ? (uint64_t)UCP_AM_RECV_ATTR_FLAG_RNDV : 0;
        counting = strict;
        (void)way->handler(way->arg, packet->head, sizeof(packet->head),
                           announced ? (void *)packet : packet->bytes, packet->length, &param);
        counting = false;
        /* Nobody wants it: its sender is told that it has come. */
        if (announced && packet->fetch == NULL && packet->source != NULL) {
            end_asked(way, packet->source, UCS_OK);
        }
        if (packet->fetch == NULL) {
            free_packet(packet);
        }
    }
}

typedef struct {
    xm_op_t op;
    uint8_t *bytes;
    size_t sent; /* bytes of a send */
    int ends;
    xm_status_t status;
} request_t;

typedef struct {
    size_t length[MESSAGES];
    request_t sends[MESSAGES], receives[MESSAGES];
    int sent, received; /* posted */
} traffic_t;

static void on_done(xm_op_t *op, xm_status_t status)
{
    request_t *request = op->arg;

    ++request->ends;
    request->status = status;
    /* Who has ended a send may write to its memory. */
    if (request->sent > 0) {
        memset(request->bytes, 0, request->sent);
    }
}

static uint8_t pattern(int rank, int message, size_t i)
{
    return (uint8_t)((xm_hash_spread(i + 1) + (uint64_t)(RANKS * message + rank) * 0xbf58476d) >>
                     56);
}

/* The next message from `rank`, or its receive. */
static void post(multirail_peer_t *const *slots, traffic_t *traffic, int rank, bool send)
{
    int i = send ? traffic->sent++ : traffic->received++, at = send ? rank : 1 - rank;
    request_t *request = send ? &traffic->sends[i] : &traffic->receives[i];
    xm_transport_t *transport = &slots[at]->transport.base.base;
    size_t length = traffic->length[i];
    xm_status_t status;

    request->op.done = on_done;
    request->op.arg = request;
    request->sent = send ? length : 0;
    request->bytes = calloc(1, length);
    ck_assert_ptr_nonnull(request->bytes);
    for (size_t byte = 0; byte < length && send; ++byte) {
        request->bytes[byte] = pattern(rank, i, byte);
    }
    counting = strict;
    status = send ? xm_ucx_send(transport, 1 - at, (uint64_t)i % TAGS, request->bytes, length, NULL,
                                &request->op)
                  : xm_ucx_receive(transport, 1 - at, (uint64_t)i % TAGS, request->bytes, length,
                                   NULL, &request->op);
    counting = false;
    if (status != XM_IN_PROGRESS) {
        on_done(&request->op, status);
    }
}

static bool all_ended(const traffic_t *traffic)
{
    bool all = true;

    for (int i = 0; i < MESSAGES && all; ++i) {
        all = traffic->sends[i].ends > 0 && traffic->receives[i].ends > 0;
    }
    return all;
}

static void check(const traffic_t *traffic, int rank)
{
    for (int i = 0; i < MESSAGES; ++i) {
        const request_t *receive = &traffic->receives[i];
        size_t wrong = 0;

        ck_assert_int_eq(traffic->sends[i].ends, 1);
        ck_assert_int_eq(traffic->sends[i].status, XM_OK);
        ck_assert_int_eq(receive->ends, 1);
        ck_assert_int_eq(receive->status, XM_OK);
        for (size_t byte = 0; byte < traffic->length[i]; ++byte) {
            wrong += receive->bytes[byte] != pattern(rank, i, byte);
        }
        ck_assert_msg(wrong == 0, "message %d of rank %d: %zu bytes are wrong", i, rank, wrong);
    }
}

static void release(traffic_t *traffic)
{
    for (int i = 0; i < MESSAGES; ++i) {
        free(traffic->sends[i].bytes);
        free(traffic->receives[i].bytes);
    }
}

/* One of the lanes dies, on one way or on both; what was on the wire is lost, or comes late. */
static void kill(int lane)
{
    uint64_t which = any(3);

    for (int rank = 0; rank < RANKS; ++rank) {
        way_t *way = &ways[rank][lane];

        way->dead = which == 2 || (uint64_t)rank == which;
        way->lossy = way->dead && any(2) == 0;
        if (way->lossy) {
            drop(&way->wire);
        }
    }
}

/* What a connection has lost it does not carry on without. */
static void revive(int lane)
{
    for (int rank = 0; rank < RANKS; ++rank) {
        ways[rank][lane].dead = ways[rank][lane].lossy;
    }
}

/* Receives are posted before or after their messages come, or much later. */
static void maybe_post(multirail_peer_t *const *slots, traffic_t *traffic, int rank,
                       uint64_t laziness)
{
    if (traffic->sent < MESSAGES && any(8) == 0) {
        post(slots, traffic, rank, true);
    }
    if (traffic->received < MESSAGES && any(laziness) == 0) {
        post(slots, traffic, rank, false);
    }
}

START_TEST(messages_survive_lanes)
{
    static traffic_t traffic[RANKS];
    multirail_peer_t *slots[RANKS];
    uint64_t laziness;
    int step = 0, deaths[LANES - 1], dying;

    state = (uint64_t)_i * 977 + 1;
    fetching = _i % 2 == 1;
    clock_ns = 1;
    memset(ways, 0, sizeof(ways));
    memset(traffic, 0, sizeof(traffic));
    laziness = (uint64_t[]){4, 12, 400}[any(3)];
    dying = (int)any(LANES);
    for (int i = 0; i < LANES - 1; ++i) {
        deaths[i] = (int)any(2000);
    }
    for (int rank = 0; rank < RANKS; ++rank) {
        slots[rank] = sit(rank);
        for (int i = 0; i < MESSAGES; ++i) {
            traffic[rank].length[i] =
                1 + any((uint64_t[]){100, XM_UCX_EAGER, 2 * XM_UCX_EAGER, LONGEST}[any(4)]);
        }
    }
    while (!(all_ended(&traffic[0]) && all_ended(&traffic[1]))) {
        ck_assert_msg(++step < MOST_STEPS, "seed %d: nothing moves any more", _i);
        clock_ns += STEP_NS;
        for (int i = 0; i < LANES - 1; ++i) {
            if (step == deaths[i]) {
                kill((dying + i) % LANES);
            } else if (step == deaths[i] + 6000) { /* given up since long */
                revive((dying + i) % LANES);
            }
        }
        for (int rank = 0; rank < RANKS; ++rank) {
            maybe_post(slots, &traffic[rank], rank, laziness);
            for (int i = 0; i < 8; ++i) {
                move(&ways[any(RANKS)][any(LANES)]);
            }
            if (any(3) > 0) {
                progress(slots[rank]);
            }
        }
    }
    for (int rank = 0; rank < RANKS; ++rank) {
        const xm_rails_t *multirail = slots[rank]->peers[1 - rank].base.rails;

        check(&traffic[rank], rank);
        ck_assert_uint_eq(multirail->kept, 0);
        ck_assert_uint_le(multirail->slot_count, RING);
        ck_assert_ptr_eq(multirail->unclaimed.next, &multirail->unclaimed);
    }
    for (int rank = 0; rank < RANKS; ++rank) {
        for (int lane = 0; lane < LANES; ++lane) {
            drop_way(&ways[rank][lane]);
        }
        multirail_peer_close(slots[rank]);
        release(&traffic[rank]);
    }
}
END_TEST

/* Whether both ranks use a lane, and agree on how often it was lost. */
static bool is_used(multirail_peer_t *const *slots, int lane)
{
    const xm_rails_t *both[RANKS];

    for (int rank = 0; rank < RANKS; ++rank) {
        both[rank] = slots[rank]->peers[1 - rank].base.rails;
    }
    return both[0]->life[lane] % 2 == 0 && both[0]->life[lane] == both[1]->life[lane];
}

/* Posts all messages, the receives before or after the sends, and sees them end. */
static void play_round(multirail_peer_t *const *slots, traffic_t *traffic, bool late)
{
    int step = 0;

    for (int rank = 0; rank < RANKS; ++rank) {
        memset(&traffic[rank], 0, sizeof(traffic[rank]));
        for (int i = 0; i < MESSAGES; ++i) {
            traffic[rank].length[i] = (size_t[]){8, 700, 19000, 70001, LONGEST}[i % 5];
        }
    }
    for (int i = 0; i < 2 * RANKS * MESSAGES; ++i) {
        post(slots, &traffic[i % RANKS], i % RANKS, (i < RANKS * MESSAGES) == late);
    }
    while (!(all_ended(&traffic[0]) && all_ended(&traffic[1]))) {
        ck_assert_msg(++step < MOST_STEPS, "nothing moves any more");
        clock_ns += STEP_NS;
        for (int i = 0; i < 8; ++i) {
            move(&ways[any(RANKS)][any(LANES)]);
        }
        progress(slots[step % RANKS]);
    }
    for (int rank = 0; rank < RANKS; ++rank) {
        check(&traffic[rank], rank);
        release(&traffic[rank]);
    }
}

/* Once as much was in flight as will be. */
START_TEST(posting_allocates_nothing)
{
    enum { WARM = 4, ROUNDS = 10 };
    static traffic_t traffic[RANKS];
    multirail_peer_t *slots[RANKS];

    state = 4711;
    fetching = _i == 1;
    clock_ns = 1;
    memset(ways, 0, sizeof(ways));
    for (int rank = 0; rank < RANKS; ++rank) {
        slots[rank] = sit(rank);
    }
    allocations = 0;
    for (int round = 0; round < ROUNDS; ++round) {
        strict = round >= WARM;
        play_round(slots, traffic, round % 2 == 0);
    }
    strict = false;
    ck_assert_int_eq(allocations, 0);
    for (int rank = 0; rank < RANKS; ++rank) {
        for (int lane = 0; lane < LANES; ++lane) {
            drop_way(&ways[rank][lane]);
        }
        multirail_peer_close(slots[rank]);
    }
}
END_TEST

/* Until both ranks use the lane again; returns how long that took. */
static int64_t wait_for_lane(multirail_peer_t *const *slots, int lane)
{
    int64_t started = clock_ns;

    while (!is_used(slots, lane)) {
        ck_assert_int_lt(clock_ns - started, INT64_C(1000000000000));
        clock_ns += STEP_NS;
        for (int i = 0; i < 8; ++i) {
            move(&ways[any(RANKS)][any(LANES)]);
        }
        progress(slots[any(RANKS)]);
    }
    return clock_ns - started;
}

static uint64_t carried(multirail_peer_t *const *slots, int lane)
{
    xm_nic_counts_t counts;

    xm_counters_nic(slots[0]->counters, lane, &counts);
    return counts.bytes[XM_SENT];
}

/* A lane that passes again is used again, as much as before and not more; what it held is no news.
 * Each further loss keeps it away for longer. */
START_TEST(a_lane_comes_back)
{
    enum { LANE = 1, LOSSES = 4 };
    static traffic_t traffic[RANKS];
    multirail_peer_t *slots[RANKS];
    int64_t away[LOSSES];
    uint64_t before[LANES], all = 0, most = 0;

    state = (uint64_t)_i * 31 + 5;
    fetching = _i > RANKS;
    clock_ns = 1;
    memset(ways, 0, sizeof(ways));
    for (int rank = 0; rank < RANKS; ++rank) {
        slots[rank] = sit(rank);
    }
    for (int loss = 0; loss < LOSSES; ++loss) {
        for (int rank = 0; rank < RANKS; ++rank) {
            ways[rank][LANE].dead = _i % (RANKS + 1) == RANKS || rank == _i % (RANKS + 1);
        }
        while (is_used(slots, LANE)) {
            play_round(slots, traffic, false);
        }
        for (int rank = 0; rank < RANKS; ++rank) {
            ways[rank][LANE].dead = false;
        }
        away[loss] = wait_for_lane(slots, LANE);
        /* Where lanes fetch it is the rank that found the loss who asks, and each waits longer after
         * its own. */
        ck_assert(loss < 1 + fetching || away[loss] > away[loss - 1 - fetching] * 5 / 4);
    }
    for (int lane = 0; lane < LANES; ++lane) {
        before[lane] = carried(slots, lane);
    }
    play_round(slots, traffic, true);
    for (int lane = 0; lane < LANES; ++lane) {
        uint64_t now = carried(slots, lane) - before[lane];

        all += now;
        most = now > most ? now : most;
    }
    ck_assert_uint_le(most, all * 2 / LANES);
    ck_assert_uint_ge(carried(slots, LANE) - before[LANE], all / LANES / 2);
    for (int rank = 0; rank < RANKS; ++rank) {
        for (int lane = 0; lane < LANES; ++lane) {
            drop_way(&ways[rank][lane]);
        }
        multirail_peer_close(slots[rank]);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("transport_ucx_pair");
    TCase *tcase = tcase_create("chance");

    /* Lanes are lost all the time here, and that is said. */
    if (setenv("XM_LOG", "error", 1) != 0) {
        return EXIT_FAILURE;
    }
    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, messages_survive_lanes, 0, SEEDS);
    tcase_add_loop_test(tcase, a_lane_comes_back, 0, 2 * (RANKS + 1));
    tcase_add_loop_test(tcase, posting_allocates_nothing, 0, 2);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
