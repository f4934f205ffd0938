/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/comm/transport/conformance.h"

#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "tests/comm/job/local_job.h"

#include "comm/base/random.h"

enum { MIB = 1 << 20, BIG = 8 * MIB };

static const size_t sizes[] = {1,      2,      7,      64,    93,      94,    1000,
                               4095,   8192,   8257,   65535, 65536,   65537, 69699,
                               131071, 262144, 262145, MIB,   3000000, BIG};
enum { SIZES = sizeof(sizes) / sizeof(sizes[0]) };

/* An operation and what became of it. */
typedef struct {
    xm_op_t op;
    int posted, ended;
    xm_status_t status;
} request_t;

static void on_done(xm_op_t *op, xm_status_t status)
{
    request_t *request = op->arg;

    ++request->ended;
    request->status = status;
    local_expect(request->ended == request->posted, "an operation ended %d times, posted %d times",
                 request->ended, request->posted);
}

static void prepare(request_t *request)
{
    request->op.done = on_done;
    request->op.arg = request;
    ++request->posted;
}

static void settle(request_t *request, xm_status_t status)
{
    if (status != XM_IN_PROGRESS) {
        request->status = status;
        ++request->ended;
    }
}

static void send(conformance_slot_t *slot, int peer, uint64_t tag, const void *buffer,
                 size_t length, xm_memory_t *memory, request_t *request)
{
    prepare(request);
    settle(request,
           xm_transport_send(slot->transport, peer, tag, buffer, length, memory, &request->op));
}

static void receive(conformance_slot_t *slot, int peer, uint64_t tag, void *buffer, size_t length,
                    xm_memory_t *memory, request_t *request)
{
    prepare(request);
    settle(request,
           xm_transport_receive(slot->transport, peer, tag, buffer, length, memory, &request->op));
}

/* Progress, then sleep until an event or 10 ms have passed. */
static void step(conformance_slot_t *slot)
{
    struct pollfd entry = {.fd = xm_transport_event_fd(slot->transport), .events = POLLIN};

    if (xm_transport_progress(slot->transport) > 0) {
        return;
    }
    if (entry.fd >= 0 && xm_transport_arm(slot->transport) == XM_OK) {
        (void)poll(&entry, 1, 10);
    }
}

static void wait_for(conformance_slot_t *slot, const request_t *requests, int count)
{
    double deadline = local_now() + slot->limit;

    for (int i = 0; i < count; ++i) {
        while (requests[i].ended < requests[i].posted) {
            local_expect(local_now() < deadline, "rank %d: operation %d of %d did not end",
                         slot->transport->rank, i, count);
            step(slot);
        }
    }
}

static void expect_status(const request_t *requests, int count, xm_status_t expected)
{
    for (int i = 0; i < count; ++i) {
        local_expect(requests[i].status == expected, "operation %d of %d: %s, expected %s (%s)", i,
                     count, xm_status_string(requests[i].status), xm_status_string(expected),
                     xm_last_error());
    }
}

static void finish(conformance_slot_t *slot, const request_t *requests, int count)
{
    wait_for(slot, requests, count);
    expect_status(requests, count, XM_OK);
}

/* Progress goes on for a while although nothing is waited for. */
static void linger(conformance_slot_t *slot, double seconds)
{
    double end = local_now() + seconds;

    while (local_now() < end) {
        step(slot);
    }
}

static uint8_t pattern(size_t i, uint64_t seed)
{
    uint64_t x = xm_hash_spread(i + 1) + seed * UINT64_C(0xbf58476d1ce4e5b9);

    return (uint8_t)(x >> 56);
}

static void fill(uint8_t *bytes, size_t length, uint64_t seed)
{
    for (size_t i = 0; i < length; ++i) {
        bytes[i] = pattern(i, seed);
    }
}

static void check(const uint8_t *bytes, size_t length, uint64_t seed)
{
    for (size_t i = 0; i < length; ++i) {
        local_expect(bytes[i] == pattern(i, seed),
                     "byte %zu of %zu of message %" PRIu64 " is wrong", i, length, seed);
    }
}

static uint8_t *allocate(size_t length)
{
    uint8_t *bytes = calloc(1, length);

    local_expect(bytes != NULL, "no memory for %zu bytes", length);
    return bytes;
}

/* Both directions at once, one message of each size. */
static void exchange_sizes(conformance_slot_t *slot, bool registered)
{
    int rank = slot->transport->rank, peer = 1 - rank;
    uint8_t *out = allocate(BIG), *in = allocate(BIG);
    xm_memory_t *out_memory = NULL, *in_memory = NULL;

    if (registered) {
        local_expect_ok(xm_transport_memory_register(slot->transport, out, BIG, &out_memory));
        local_expect_ok(xm_transport_memory_register(slot->transport, in, BIG, &in_memory));
    }
    for (int i = 0; i < SIZES; ++i) {
        request_t requests[2] = {0};

        fill(out, sizes[i], (uint64_t)(100 * rank + i));
        memset(in, 0, sizes[i]);
        receive(slot, peer, (uint64_t)i, in, sizes[i], in_memory, &requests[0]);
        send(slot, peer, (uint64_t)i, out, sizes[i], out_memory, &requests[1]);
        finish(slot, requests, 2);
        check(in, sizes[i], (uint64_t)(100 * peer + i));
    }
    xm_transport_memory_deregister(slot->transport, out_memory);
    xm_transport_memory_deregister(slot->transport, in_memory);
    free(out);
    free(in);
}

static void case_sizes(conformance_slot_t *slot)
{
    exchange_sizes(slot, false);
}

static void case_sizes_registered(conformance_slot_t *slot)
{
    exchange_sizes(slot, true);
}

/* Parts of one registration, at odd offsets. */
static void case_registered_parts(conformance_slot_t *slot)
{
    enum { PARTS = 16, PART = 65536 + 1 };
    int rank = slot->transport->rank;
    size_t length = (size_t)PARTS * PART;
    uint8_t *bytes = allocate(length);
    request_t requests[PARTS] = {0};
    xm_memory_t *memory;

    local_expect_ok(xm_transport_memory_register(slot->transport, bytes, length, &memory));
    if (rank == 0) {
        fill(bytes, length, 5);
    }
    for (int i = 0; i < PARTS; ++i) {
        if (rank == 0) {
            send(slot, 1, (uint64_t)i, bytes + (size_t)i * PART, PART, memory, &requests[i]);
        } else {
            receive(slot, 0, (uint64_t)i, bytes + (size_t)i * PART, PART, memory, &requests[i]);
        }
    }
    finish(slot, requests, PARTS);
    if (rank == 1) {
        check(bytes, length, 5);
    }
    xm_transport_memory_deregister(slot->transport, memory);
    free(bytes);
}

/* Hundreds of messages of mixed sizes in flight in both directions; receives in reverse order. */
static void flood(conformance_slot_t *slot, bool receive_first)
{
    enum { COUNT = 400, LARGEST = 70000 };
    int rank = slot->transport->rank, peer = 1 - rank;
    request_t *sends = calloc(COUNT, sizeof(*sends)), *receives = calloc(COUNT, sizeof(*receives));
    uint8_t *out = allocate((size_t)COUNT * LARGEST), *in = allocate((size_t)COUNT * LARGEST);

    for (int half = 0; half < 2; ++half) {
        if ((half == 0) == receive_first) {
            for (int i = COUNT - 1; i >= 0; --i) {
                receive(slot, peer, (uint64_t)i << 20, in + (size_t)i * LARGEST, sizes[i % 10],
                        NULL, &receives[i]);
            }
        } else {
            for (int i = 0; i < COUNT; ++i) {
                fill(out + (size_t)i * LARGEST, sizes[i % 10], (uint64_t)(1000 * rank + i));
                send(slot, peer, (uint64_t)i << 20, out + (size_t)i * LARGEST, sizes[i % 10], NULL,
                     &sends[i]);
            }
        }
        if (half == 0) {
            slot->barrier(slot);
            linger(slot, receive_first ? 0.0 : 0.1);
        }
    }
    finish(slot, receives, COUNT);
    finish(slot, sends, COUNT);
    for (int i = 0; i < COUNT; ++i) {
        check(in + (size_t)i * LARGEST, sizes[i % 10], (uint64_t)(1000 * peer + i));
    }
    free(sends);
    free(receives);
    free(out);
    free(in);
}

static void case_many_in_flight(conformance_slot_t *slot)
{
    flood(slot, true);
}

static void case_unexpected(conformance_slot_t *slot)
{
    flood(slot, false);
}

/* Dozens of messages that a transport may split, of odd lengths, some posted before their receives
 * and some after, in both directions. */
static void case_large_in_flight(conformance_slot_t *slot)
{
    enum { COUNT = 36, FIRST = 65533, STEP = 9973, LARGEST = FIRST + COUNT * STEP };
    int rank = slot->transport->rank, peer = 1 - rank;
    request_t sends[COUNT] = {0}, receives[COUNT] = {0};
    uint8_t *out = allocate((size_t)COUNT * LARGEST), *in = allocate((size_t)COUNT * LARGEST);

    for (int round = 0; round < 2; ++round) {
        memset(in, 0, (size_t)COUNT * LARGEST);
        for (int i = COUNT - 1; i >= COUNT / 2; --i) {
            receive(slot, peer, (uint64_t)i, in + (size_t)i * LARGEST,
                    (size_t)FIRST + (size_t)i * STEP, NULL, &receives[i]);
        }
        slot->barrier(slot);
        for (int i = 0; i < COUNT; ++i) {
            size_t length = (size_t)FIRST + (size_t)i * STEP;

            fill(out + (size_t)i * LARGEST, length, (uint64_t)(1000 * rank + 100 * round + i));
            send(slot, peer, (uint64_t)i, out + (size_t)i * LARGEST, length, NULL, &sends[i]);
        }
        linger(slot, 0.02);
        for (int i = 0; i < COUNT / 2; ++i) {
            receive(slot, peer, (uint64_t)i, in + (size_t)i * LARGEST,
                    (size_t)FIRST + (size_t)i * STEP, NULL, &receives[i]);
        }
        finish(slot, receives, COUNT);
        finish(slot, sends, COUNT);
        for (int i = 0; i < COUNT; ++i) {
            check(in + (size_t)i * LARGEST, (size_t)FIRST + (size_t)i * STEP,
                  (uint64_t)(1000 * peer + 100 * round + i));
        }
    }
    free(out);
    free(in);
}

/* What is large waits at the sender for its receive: memory of the receiver is never flooded, and a
 * receive that is held back holds the sender back. */
static void case_large_wait(conformance_slot_t *slot)
{
    static const size_t lengths[] = {64 * 1024, 512 * 1024, 1000 * 1000, 4 * 1024 * 1024};
    enum { COUNT = sizeof(lengths) / sizeof(lengths[0]), LARGEST = 4 * 1024 * 1024 };
    request_t sends[COUNT] = {0}, receive_one = {0};
    uint8_t *bytes = allocate(LARGEST);

    if (slot->transport->rank == 0) {
        fill(bytes, LARGEST, 1);
        for (int i = 0; i < COUNT; ++i) {
            send(slot, 1, (uint64_t)i, bytes, lengths[i], NULL, &sends[i]);
        }
        linger(slot, 0.1);
        for (int i = 0; i < COUNT; ++i) {
            local_expect(sends[i].ended == 0,
                         "a message of %zu bytes was sent before there was a receive", lengths[i]);
        }
        slot->barrier(slot);
        finish(slot, sends, COUNT);
    } else {
        linger(slot, 0.1);
        slot->barrier(slot);
        for (int i = 0; i < COUNT; ++i) {
            memset(bytes, 0, LARGEST);
            receive(slot, 0, (uint64_t)i, bytes, lengths[i], NULL, &receive_one);
            finish(slot, &receive_one, 1);
            check(bytes, lengths[i], 1);
        }
    }
    free(bytes);
}

/* Everybody sends to everybody with the same tag: the sender tells messages apart. */
static void case_same_tag_from_all(conformance_slot_t *slot)
{
    enum { RANKS = 4, LENGTH = 20000 };
    int rank = slot->transport->rank;
    const uint64_t tag = (UINT64_C(1) << 48) - 1;
    uint8_t *out = allocate((size_t)RANKS * LENGTH), *in = allocate((size_t)RANKS * LENGTH);
    request_t sends[RANKS] = {0}, receives[RANKS] = {0};

    for (int peer = RANKS - 1; peer >= 0; --peer) {
        if (peer != rank) {
            receive(slot, peer, tag, in + (size_t)peer * LENGTH, LENGTH, NULL, &receives[peer]);
        }
    }
    for (int peer = 0; peer < RANKS; ++peer) {
        if (peer != rank) {
            fill(out + (size_t)peer * LENGTH, LENGTH, (uint64_t)(10 * rank + peer));
            send(slot, peer, tag, out + (size_t)peer * LENGTH, LENGTH, NULL, &sends[peer]);
        }
    }
    finish(slot, sends, RANKS);
    finish(slot, receives, RANKS);
    for (int peer = 0; peer < RANKS; ++peer) {
        if (peer != rank) {
            check(in + (size_t)peer * LENGTH, LENGTH, (uint64_t)(10 * peer + rank));
        }
    }
    free(out);
    free(in);
}

/* A receive that is too long or too short fails; the transport goes on working. */
static void case_length_mismatch(conformance_slot_t *slot)
{
    static const struct {
        size_t sent, expected;
    } pairs[] = {{50, 100},       {100, 50},      {MIB, 2 * MIB},  {2 * MIB, MIB},
                 {8, MIB},        {MIB, 8},       {65535, 131070}, {131070, 65535},
                 {65536, 100000}, {MIB, MIB + 1}, {MIB + 1, MIB}};
    enum { PAIRS = sizeof(pairs) / sizeof(pairs[0]) };
    uint8_t *bytes = allocate(2 * MIB);

    for (int i = 0; i < 2 * PAIRS; ++i) {
        request_t request = {0};
        bool unexpected = i >= PAIRS;

        if (slot->transport->rank == 0) {
            send(slot, 1, (uint64_t)i, bytes, pairs[i % PAIRS].sent, NULL, &request);
            if (unexpected) {
                linger(slot, 0.02);
            }
            slot->barrier(slot);
            finish(slot, &request, 1);
        } else {
            if (unexpected) {
                slot->barrier(slot);
                linger(slot, 0.02);
            }
            receive(slot, 0, (uint64_t)i, bytes, pairs[i % PAIRS].expected, NULL, &request);
            if (!unexpected) {
                slot->barrier(slot);
            }
            wait_for(slot, &request, 1);
            expect_status(&request, 1, XM_ERR_CORRUPT);
            local_expect(strstr(xm_last_error(), "expects") != NULL, "sentence '%s'",
                         xm_last_error());
        }
    }
    free(bytes);
    exchange_sizes(slot, false);
}

/* A cancelled receive ends once, takes no later message, and can be posted again. */
static void case_cancel(conformance_slot_t *slot)
{
    enum { COUNT = 32 };
    static const size_t lengths[] = {100, MIB};

    for (int round = 0; round < 2; ++round) {
        size_t length = lengths[round];
        uint8_t *bytes = allocate(length), *other = allocate(length);
        request_t requests[COUNT] = {0}, message = {0};

        if (slot->transport->rank == 0) {
            xm_transport_cancel(slot->transport, &requests[0].op);
            for (int i = 0; i < COUNT; ++i) {
                receive(slot, 1, (uint64_t)i, other, length, NULL, &requests[i]);
            }
            for (int i = 0; i < COUNT; ++i) {
                xm_transport_cancel(slot->transport, &requests[i].op);
                xm_transport_cancel(slot->transport, &requests[i].op);
            }
            wait_for(slot, requests, COUNT);
            expect_status(requests, COUNT, XM_ERR_CANCELED);
            slot->barrier(slot);
            receive(slot, 1, 3, bytes, length, NULL, &requests[3]);
            finish(slot, &requests[3], 1);
            check(bytes, length, 9);
            local_expect(other[0] == 0 && other[length - 1] == 0, "a cancelled buffer was written");
        } else {
            slot->barrier(slot);
            fill(bytes, length, 9);
            send(slot, 0, 3, bytes, length, NULL, &message);
            finish(slot, &message, 1);
        }
        slot->barrier(slot);
        free(bytes);
        free(other);
    }
}

/* Receives that are cancelled while their messages come: each ends once, as cancelled or whole, and
 * no sender waits for ever. Then the same tags work again. */
static void case_cancel_while_coming(conformance_slot_t *slot)
{
    enum { COUNT = 24, LENGTH = 300001 };
    uint8_t *bytes = allocate((size_t)COUNT * LENGTH);
    request_t requests[COUNT] = {0}, again[COUNT] = {0}, retries[COUNT] = {0};
    bool first = slot->transport->rank == 0;

    for (int i = 0; i < COUNT; ++i) {
        if (first) {
            receive(slot, 1, (uint64_t)i, bytes + (size_t)i * LENGTH, LENGTH, NULL, &requests[i]);
        } else {
            fill(bytes + (size_t)i * LENGTH, LENGTH, (uint64_t)i);
        }
    }
    slot->barrier(slot);
    for (int i = 0; i < COUNT; ++i) {
        if (!first) {
            send(slot, 0, (uint64_t)i, bytes + (size_t)i * LENGTH, LENGTH, NULL, &requests[i]);
            (void)xm_transport_progress(slot->transport);
        } else {
            linger(slot, i % 4 == 0 ? 0.001 : 0.0);
            xm_transport_cancel(slot->transport, &requests[COUNT - 1 - i].op);
        }
    }
    if (first) {
        wait_for(slot, requests, COUNT);
        for (int i = 0; i < COUNT; ++i) {
            if (requests[i].status == XM_OK) {
                check(bytes + (size_t)i * LENGTH, LENGTH, (uint64_t)i);
                continue;
            }
            expect_status(&requests[i], 1, XM_ERR_CANCELED);
            receive(slot, 1, (uint64_t)i, bytes + (size_t)i * LENGTH, LENGTH, NULL, &retries[i]);
        }
    }
    /* The sends end: taken by the first receive, by the second, or thrown away. */
    if (!first) {
        finish(slot, requests, COUNT);
    }
    slot->barrier(slot);
    linger(slot, 0.02);
    for (int i = 0; i < COUNT && first; ++i) {
        if (retries[i].posted > 0 && retries[i].ended > 0) {
            expect_status(&retries[i], 1, XM_OK);
            check(bytes + (size_t)i * LENGTH, LENGTH, (uint64_t)i);
        }
        xm_transport_cancel(slot->transport, &retries[i].op);
    }
    if (first) {
        wait_for(slot, retries, COUNT);
    }
    slot->barrier(slot);
    memset(bytes, 0, (size_t)COUNT * LENGTH);
    for (int i = 0; i < COUNT; ++i) {
        uint64_t seed = (uint64_t)(100 + i);

        if (first) {
            receive(slot, 1, (uint64_t)i, bytes + (size_t)i * LENGTH, LENGTH, NULL, &again[i]);
        } else {
            fill(bytes + (size_t)i * LENGTH, LENGTH, seed);
            send(slot, 0, (uint64_t)i, bytes + (size_t)i * LENGTH, LENGTH, NULL, &again[i]);
        }
    }
    finish(slot, again, COUNT);
    for (int i = 0; i < COUNT && first; ++i) {
        check(bytes + (size_t)i * LENGTH, LENGTH, (uint64_t)(100 + i));
    }
    free(bytes);
}

/* A chain in which `done` posts the next operation. */
typedef struct {
    conformance_slot_t *slot;
    xm_op_t op;
    uint8_t byte[8];
    int left;
    int depth;
} chain_t;

static void chain_post(chain_t *chain)
{
    int rank = chain->slot->transport->rank;
    xm_status_t status = XM_OK;

    while (chain->left > 0 && status == XM_OK) {
        bool sends = (chain->left % 2 == 0) == (rank == 0);

        --chain->left;
        status = sends ? xm_transport_send(chain->slot->transport, 1 - rank, 77, chain->byte,
                                           sizeof(chain->byte), NULL, &chain->op)
                       : xm_transport_receive(chain->slot->transport, 1 - rank, 77, chain->byte,
                                              sizeof(chain->byte), NULL, &chain->op);
    }
    local_expect(status >= 0, "%s", xm_last_error());
}

static void chain_done(xm_op_t *op, xm_status_t status)
{
    chain_t *chain = op->arg;

    local_expect(status == XM_OK, "%s", xm_last_error());
    local_expect(chain->depth == 0, "done was called from inside a post");
    ++chain->depth;
    chain_post(chain);
    --chain->depth;
    if (chain->left == 0) {
        ++chain->byte[7];
    }
}

static void case_post_from_done(conformance_slot_t *slot)
{
    chain_t chain = {.slot = slot, .left = 2000};
    double deadline = local_now() + slot->limit;

    chain.op = (xm_op_t){.done = chain_done, .arg = &chain};
    ++chain.depth;
    chain_post(&chain);
    --chain.depth;
    while (chain.left > 0) {
        local_expect(local_now() < deadline, "rank %d: %d posts left", slot->transport->rank,
                     chain.left);
        step(slot);
    }
    linger(slot, 0.05);
    slot->barrier(slot);
}

static void case_refusals(conformance_slot_t *slot)
{
    xm_transport_t *transport = slot->transport;
    int rank = transport->rank, peer = 1 - rank;
    uint8_t byte = 1;
    request_t request = {0};
    xm_memory_t *memory = NULL;

    request.op.done = on_done;
    local_expect_fails(xm_transport_send(transport, rank, 0, &byte, 1, NULL, &request.op),
                       XM_ERR_INVALID_ARGUMENT, "no peer");
    local_expect_fails(xm_transport_receive(transport, 2, 0, &byte, 1, NULL, &request.op),
                       XM_ERR_INVALID_ARGUMENT, "no peer 2 among 2");
    local_expect_fails(xm_transport_send(transport, -1, 0, &byte, 1, NULL, &request.op),
                       XM_ERR_INVALID_ARGUMENT, "no peer -1");
    local_expect_fails(xm_transport_send(transport, peer, 0, &byte, 0, NULL, &request.op),
                       XM_ERR_INVALID_ARGUMENT, "0 bytes");
    local_expect_fails(
        xm_transport_send(transport, peer, UINT64_C(1) << 48, &byte, 1, NULL, &request.op),
        XM_ERR_INVALID_ARGUMENT, "below 2^48");
    local_expect_fails(xm_transport_memory_register(transport, NULL, 10, &memory),
                       XM_ERR_INVALID_ARGUMENT, "register");
    receive(slot, peer, 4, &byte, 1, NULL, &request);
    local_expect_fails(xm_transport_receive(transport, peer, 5, &byte, 1, NULL, &request.op),
                       XM_ERR_INVALID_ARGUMENT, "while in flight");
    xm_transport_cancel(transport, &request.op);
    wait_for(slot, &request, 1);
    expect_status(&request, 1, XM_ERR_CANCELED);
    xm_transport_memory_deregister(transport, NULL);
    slot->barrier(slot);
}

/* Idle ranks sleep, and an arriving message wakes them. */
static void case_sleep(conformance_slot_t *slot)
{
    const double pause = 0.4;
    struct pollfd entry = {.fd = xm_transport_event_fd(slot->transport), .events = POLLIN};
    int rank = slot->transport->rank, wakes = 0;
    uint8_t byte[64] = {0};
    request_t request = {0};
    double used, started;

    if (entry.fd < 0) {
        return;
    }
    /* Connections first, so that their making is not measured. */
    exchange_sizes(slot, false);
    slot->barrier(slot);
    linger(slot, 0.1);
    if (rank == 1) {
        local_sleep(pause);
        send(slot, 0, 1, byte, sizeof(byte), NULL, &request);
        finish(slot, &request, 1);
        slot->barrier(slot);
        return;
    }
    receive(slot, 1, 1, byte, sizeof(byte), NULL, &request);
    used = local_cpu();
    started = local_now();
    while (request.ended == 0) {
        local_expect(local_now() < started + slot->limit, "no wake-up");
        if (xm_transport_progress(slot->transport) == 0 &&
            xm_transport_arm(slot->transport) == XM_OK) {
            ++wakes;
            local_expect(poll(&entry, 1, (int)(1000.0 * slot->limit)) == 1, "slept through it");
        }
    }
    expect_status(&request, 1, XM_OK);
    used = local_cpu() - used;
    local_expect(local_now() - started < pause + slot->limit / 2.0, "woke after %g s",
                 local_now() - started);
    /* Polling would use all of it; a virtual processor is charged for what its host takes. */
    local_expect(used < 0.5 * pause, "idle for %g s, yet %g s of CPU were used", pause, used);
    local_expect(wakes < 100, "%d wake-ups", wakes);
    slot->barrier(slot);
}

/* What is in flight when a transport is destroyed ends there, once. Rank 0's own teardown is the
 * test: the runner destroys the transport after the case, so this posts and leaves. */
static request_t left_behind[4];
static uint8_t left_buffer[BIG];

static void check_left_behind(void)
{
    for (int i = 0; i < 4; ++i) {
        local_expect(left_behind[i].ended == left_behind[i].posted, "operation %d ended %d times",
                     i, left_behind[i].ended);
    }
}

static void case_destroy_in_flight(conformance_slot_t *slot)
{
    local_expect(atexit(check_left_behind) == 0, "atexit");
    /* Connections first: one that is half made when both leave is another matter. */
    exchange_sizes(slot, false);
    slot->barrier(slot);
    if (slot->transport->rank == 0) {
        send(slot, 1, 1, left_buffer, BIG, NULL, &left_behind[0]);
        receive(slot, 1, 2, left_buffer, 100, NULL, &left_behind[1]);
        receive(slot, 1, 3, left_buffer, MIB, NULL, &left_behind[2]);
        send(slot, 1, 4, left_buffer, 10, NULL, &left_behind[3]);
    }
    linger(slot, 0.05);
    slot->barrier(slot);
}

/* The state a peer is in when it dies. */
typedef struct {
    bool told;      /* the survivor learns it from elsewhere, else the transport must notice */
    bool sending;   /* the survivor sends to it */
    bool receiving; /* the survivor receives from it */
    bool streaming; /* bytes are on their way when it dies */
} death_t;

/* Rank 1 streams large messages until it dies; rank 0 receives them. */
static void stream_and_die(conformance_slot_t *slot)
{
    uint8_t *bytes = allocate(BIG);
    double end = local_now() + 0.05;
    request_t requests[2] = {0};

    for (int i = 0; local_now() < end; ++i) {
        request_t *request = &requests[i % 2];

        wait_for(slot, request, 1);
        send(slot, 0, 50, bytes, BIG, NULL, request);
    }
    slot->die(slot);
}

static void survive(conformance_slot_t *slot, const death_t *death)
{
    enum { COUNT = 5 };
    uint8_t *bytes = allocate(COUNT * (size_t)BIG), small = 0;
    request_t requests[COUNT] = {0}, other = {0}, late = {0};
    double started, died_at, noticed;

    if (death->sending) {
        send(slot, 1, 1, bytes, BIG, NULL, &requests[0]);
        send(slot, 1, 2, bytes, 100, NULL, &requests[1]);
    }
    if (death->receiving) {
        receive(slot, 1, 60, bytes, 100, NULL, &requests[2]);
        receive(slot, 1, 61, bytes + BIG, MIB, NULL, &requests[3]);
    }
    if (!death->streaming) {
        slot->barrier(slot);
    }
    started = local_now();
    while (death->streaming && (!death->told || local_now() < started + 0.1)) {
        request_t *request = &requests[4];

        if (request->ended == request->posted) {
            if (request->posted > 0 && request->status != XM_OK) {
                break;
            }
            receive(slot, 1, 50, bytes + 2 * (size_t)BIG, BIG, NULL, request);
        }
        local_expect(local_now() < started + slot->limit, "the stream does not end");
        step(slot);
    }
    died_at = local_now();
    if (death->told) {
        linger(slot, 0.3);
        xm_transport_peer_failed(slot->transport, 1);
        xm_transport_peer_failed(slot->transport, 1);
    }
    wait_for(slot, requests, COUNT);
    noticed = local_now() - died_at;
    local_expect(noticed < slot->limit / 2.0, "the transport noticed only after %g s", noticed);
    for (int i = 0; i < COUNT; ++i) {
        /* What needed no answer of the peer may have ended well before; so may the latest message
         * of a stream, when the time to tell came before the next was asked for. */
        bool may_be_ok = i == 1 || (i == 4 && death->told);

        local_expect(requests[i].posted == 0 || requests[i].status == XM_ERR_PEER_DIED ||
                         (may_be_ok && requests[i].status == XM_OK),
                     "operation %d: %s (%s)", i, xm_status_string(requests[i].status),
                     xm_last_error());
    }
    linger(slot, 0.1);
    send(slot, 1, 9, &small, 1, NULL, &late);
    wait_for(slot, &late, 1);
    expect_status(&late, 1, XM_ERR_PEER_DIED);
    local_expect(strstr(xm_last_error(), "rank 1") != NULL, "sentence '%s'", xm_last_error());
    receive(slot, 1, 9, &small, 1, NULL, &late);
    wait_for(slot, &late, 1);
    expect_status(&late, 1, XM_ERR_PEER_DIED);
    /* Others go on. */
    send(slot, 2, 5, &small, 1, NULL, &other);
    finish(slot, &other, 1);
    receive(slot, 2, 5, bytes, BIG, NULL, &other);
    finish(slot, &other, 1);
    check(bytes, BIG, 3);
    free(bytes);
}

static void death_case(conformance_slot_t *slot, const death_t *death)
{
    uint8_t *bytes;
    request_t request = {0};

    switch (slot->transport->rank) {
    case 0:
        survive(slot, death);
        break;
    case 1:
        if (death->streaming) {
            stream_and_die(slot);
        }
        linger(slot, 0.05);
        slot->barrier(slot);
        linger(slot, 0.2); /* the connections are made meanwhile */
        slot->die(slot);
        break;
    default:
        if (!death->streaming) {
            slot->barrier(slot);
        }
        bytes = allocate(BIG);
        receive(slot, 0, 5, bytes, 1, NULL, &request);
        finish(slot, &request, 1);
        fill(bytes, BIG, 3);
        send(slot, 0, 5, bytes, BIG, NULL, &request);
        finish(slot, &request, 1);
        free(bytes);
    }
}

static void case_death_told_sending(conformance_slot_t *slot)
{
    death_case(slot, &(death_t){.told = true, .sending = true});
}

static void case_death_told_receiving(conformance_slot_t *slot)
{
    death_case(slot, &(death_t){.told = true, .receiving = true});
}

static void case_death_told_streaming(conformance_slot_t *slot)
{
    death_case(slot, &(death_t){.told = true, .streaming = true});
}

static void case_death_told_idle(conformance_slot_t *slot)
{
    death_case(slot, &(death_t){.told = true});
}

static void case_death_noticed_sending(conformance_slot_t *slot)
{
    death_case(slot, &(death_t){.sending = true});
}

static void case_death_noticed_receiving(conformance_slot_t *slot)
{
    death_case(slot, &(death_t){.receiving = true});
}

static void case_death_noticed_streaming(conformance_slot_t *slot)
{
    death_case(slot, &(death_t){.streaming = true});
}

void conformance_check_counters(const xm_counters_t *counters, bool nics)
{
    for (int d = 0; d < XM_DIRECTION_COUNT; ++d) {
        uint64_t bytes = 0, carried = 0;

        for (int peer = 0; peer < xm_counters_peers(counters); ++peer) {
            xm_peer_counts_t counts;

            xm_counters_peer(counters, peer, &counts);
            bytes += counts.bytes[d];
            local_expect(xm_peer_counts_in_flight(&counts, (xm_direction_t)d) == 0,
                         "%" PRIu64
                         " operations (%s) with rank %d were not counted when they ended",
                         xm_peer_counts_in_flight(&counts, (xm_direction_t)d),
                         xm_direction_name((xm_direction_t)d), peer);
        }
        for (int nic = 0; nic < xm_counters_nics(counters); ++nic) {
            xm_nic_counts_t counts;

            xm_counters_nic(counters, nic, &counts);
            carried += counts.bytes[d];
        }
        local_expect(!nics || carried >= bytes, "%s: NICs carried %" PRIu64 " bytes of %" PRIu64,
                     xm_direction_name((xm_direction_t)d), carried, bytes);
    }
}

const conformance_case_t conformance_cases[] = {
    {"sizes", 2, 0, case_sizes, false},
    {"sizes registered", 2, 0, case_sizes_registered, false},
    {"registered parts", 2, 0, case_registered_parts, false},
    {"many in flight", 2, 0, case_many_in_flight, false},
    {"unexpected", 2, 0, case_unexpected, false},
    {"large in flight", 2, 0, case_large_in_flight, false},
    {"large wait", 2, 0, case_large_wait, false},
    {"same tag from all", 4, 0, case_same_tag_from_all, false},
    {"length mismatch", 2, 0, case_length_mismatch, false},
    {"cancel", 2, 0, case_cancel, false},
    {"cancel while coming", 2, 0, case_cancel_while_coming, false},
    {"post from done", 2, 0, case_post_from_done, false},
    {"refusals", 2, 0, case_refusals, false},
    {"sleep", 2, 0, case_sleep, false},
    {"destroy in flight", 2, 0, case_destroy_in_flight, false},
    {"death told, sending", 3, 1u << 1, case_death_told_sending, false},
    {"death told, receiving", 3, 1u << 1, case_death_told_receiving, false},
    {"death told, streaming", 3, 1u << 1, case_death_told_streaming, false},
    {"death told, idle", 3, 1u << 1, case_death_told_idle, false},
    {"death noticed, sending", 3, 1u << 1, case_death_noticed_sending, true},
    {"death noticed, receiving", 3, 1u << 1, case_death_noticed_receiving, true},
    {"death noticed, streaming", 3, 1u << 1, case_death_noticed_streaming, true},
};

const int conformance_case_count = sizeof(conformance_cases) / sizeof(conformance_cases[0]);
