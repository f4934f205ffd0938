/* SPDX-License-Identifier: Apache-2.0 */
/* What two ranks of a host say about the memory they share (resharding/execute/carrier/direct.h),
 * changed on its way: key, place and number of what is offered, the answer, what says that a chunk
 * is there or has been copied; and messages that nobody has sent. Nothing outside of the peer's
 * shared memory is read, runs end, and those of which nothing but keys was changed bring the right
 * bytes or fail. */
#include <stdlib.h>
#include <string.h>

#include "resharding/execute/carrier/direct.h"
#include "tests/fuzz/pair/tampered_pair.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* As little as goes directly: a lane of 1 MiB. Half of it is in each of two tensors. */
enum { TENSORS = 2, BYTES = 512 * 1024, SIDES = 2, RUNS = 3, ROUNDS = 64, SHORT = 256 };

/* What a change may lead to. */
typedef enum { UNTOUCHED, KEYS, MORE } touched_t;

static struct {
    xm_plan_t *plan;
    xm_shared_memory_t *memory[2]; /* both with the bytes of both tensors */
    char *dst[TENSORS];
} lab;

static void expect(bool condition)
{
    if (!condition) {
        abort();
    }
}

static xm_layout_t *on_rank(int rank)
{
    const int64_t shape[] = {BYTES};
    xm_layout_t *layout;
    xm_mesh_t *mesh;
    xm_spec_t spec;

    expect(xm_mesh_parse("1", NULL, rank, &mesh) == XM_OK && xm_spec_parse("R", &spec) == XM_OK);
    expect(xm_layout_create(mesh, &spec, XM_PARTITION_EVEN, shape, &layout) == XM_OK);
    xm_mesh_destroy(mesh);
    return layout;
}

/* From rank 0 to rank 1, on one host. */
static void make_lab(void)
{
    static const int hosts[2] = {0};
    xm_network_params_t network_params = XM_NETWORK_PARAMS_INIT;
    xm_plan_params_t params = XM_PLAN_PARAMS_INIT;
    xm_layout_t *src = on_rank(0), *dst = on_rank(1);
    xm_tensor_t tensors[TENSORS] = {{.src = src, .dst = dst, .element_bits = 8},
                                    {.src = src, .dst = dst, .element_bits = 8}};
    xm_network_t *network;

    network_params.ranks = 2;
    network_params.host_of_rank = hosts;
    network_params.nic_bandwidth = network_params.host_bandwidth = 1e9;
    expect(xm_network_create(&network_params, &network) == XM_OK);
    params.tensors = tensors;
    params.tensor_count = TENSORS;
    params.network = network;
    params.chunk_bytes = BYTES / 2;
    expect(xm_plan_create(&params, &lab.plan) == XM_OK);
    xm_network_destroy(network);
    xm_layout_destroy(src);
    xm_layout_destroy(dst);
    for (int m = 0; m < 2; ++m) {
        unsigned char *bytes;

        expect(xm_shared_memory_create(TENSORS * BYTES, &lab.memory[m]) == XM_OK);
        bytes = xm_shared_memory_address(lab.memory[m]);
        for (size_t i = 0; i < (size_t)TENSORS * BYTES; ++i) {
            bytes[i] = (unsigned char)(i % 251 + i / BYTES + 1);
        }
    }
    for (int t = 0; t < TENSORS; ++t) {
        lab.dst[t] = malloc(BYTES);
        expect(lab.dst[t] != NULL);
    }
}

static const char *source(int tensor, bool apart)
{
    return (const char *)xm_shared_memory_address(lab.memory[tensor > 0 && apart]) +
           (size_t)tensor * BYTES;
}

static xm_executor_t *create(tampered_pair_t *pair, int rank, unsigned flags)
{
    xm_tensor_buffers_t buffers[TENSORS] = {{0}};
    xm_executor_params_t params = {.plan = lab.plan,
                                   .transport = &pair->ends[rank].base,
                                   .buffers = buffers,
                                   .verify = (flags & 4) != 0 ? XM_VERIFY_CHUNK : XM_VERIFY_OFF};
    xm_executor_t *executor;

    for (int t = 0; t < TENSORS; ++t) {
        if (rank == 0) {
            buffers[t].src = source(t, (flags & 8) != 0);
            buffers[t].src_bytes = BYTES;
        } else {
            buffers[t].dst = lab.dst[t];
            buffers[t].dst_bytes = BYTES;
        }
    }
    expect(xm_executor_create(&params, &executor) == XM_OK);
    expect(executor->directs != NULL && executor->directs->pact_count == 1);
    return executor;
}

/* All that will be copied from lies in what has been mapped. */
static void check_views(const xm_executor_t *executor)
{
    const pact_t *pact = &executor->directs->pacts[0];

    expect(pact->view_count >= 0 && pact->view_count <= 1 + pact->tile_count);
    for (int64_t i = 0; i < pact->direct_count; ++i) {
        const hop_t *hop = pact->directs[i].hop;
        bool found = hop->carrier != executor->carriers[CARRIER_DIRECT];

        for (int64_t v = 1; v < pact->view_count && !found; ++v) {
            uintptr_t start = (uintptr_t)pact->views[v].address, at = (uintptr_t)hop->peer_tile;

            found = at >= start && pact->views[v].length >= BYTES &&
                    at - start <= pact->views[v].length - BYTES;
        }
        expect(found);
    }
}

/* Where the keys of an offer are. */
static bool in_keys(size_t at)
{
    return at >= OFFER_HEADER && (at - OFFER_HEADER) % OFFER_TILE >= 8;
}

/* Changes bytes of the next offer, or of another short message. */
static touched_t spoil(tampered_pair_t *pair, input_t *input, unsigned choice)
{
    const input_t then = *input;
    size_t changes;
    uint64_t tag;
    bool keys;

    if (!tampered_pair_spoil(pair, choice, input, SHORT, &tag)) {
        return UNTOUCHED;
    }
    *input = then;
    changes = input_take(input) % 16u + 1;
    keys = (tag & UINT32_MAX) == (XM_DIRECT_BIT | NUMBER_OFFER);
    for (; changes > 0; --changes) {
        size_t at = input_take(input) | (size_t)input_take(input) << 8;

        keys = in_keys(at % (OFFER_HEADER + TENSORS * OFFER_TILE)) && keys;
        (void)input_take(input);
    }
    return keys ? KEYS : MORE;
}

static touched_t inject(tampered_pair_t *pair, const xm_executor_t *executor, input_t *input)
{
    static const uint64_t kinds[] = {XM_DIRECT_BIT, 0, XM_HASH_BITS, XM_ANSWER_BITS};
    static const size_t lengths[] = {OFFER_HEADER + TENSORS * OFFER_TILE, TENSORS, 1, 8};
    unsigned what = input_take(input);

    tampered_pair_inject(pair, (int)(what & 1),
                         xm_executor_tag(executor) | kinds[what >> 1 & 3] | (what >> 3 & 3),
                         lengths[what >> 5 & 3], input);
    return MORE;
}

static touched_t happen(tampered_pair_t *pair, xm_executor_t *const executors[SIDES],
                        input_t *input)
{
    unsigned what = input_take(input), choice = what >> 4;

    switch (what & 7) {
    case 0:
        return inject(pair, executors[choice & 1], input);
    case 1:
        if (choice < SIDES) {
            xm_executor_cancel(executors[choice]);
            return MORE;
        }
        return UNTOUCHED;
    case 2:
    case 3:
        return spoil(pair, input, choice);
    case 4:
        (void)xm_executor_advance(executors[choice & 1]);
        return UNTOUCHED;
    default:
        (void)tampered_pair_deliver(pair, choice);
        return UNTOUCHED;
    }
}

/* Until nothing moves any more; true when both have ended. */
static bool settle(tampered_pair_t *pair, xm_executor_t *const executors[SIDES],
                   xm_status_t results[SIDES])
{
    for (int idle = 0; idle < 3; ++idle) {
        for (int rank = 0; rank < SIDES; ++rank) {
            results[rank] = xm_executor_advance(executors[rank]);
            idle = xm_executor_may_sleep(executors[rank]) ? idle : 0;
        }
        check_views(executors[1]);
        while (tampered_pair_deliver(pair, 0)) {
            idle = 0;
        }
    }
    return results[0] != XM_IN_PROGRESS && results[1] != XM_IN_PROGRESS;
}

static void check_bytes(void)
{
    for (int t = 0; t < TENSORS; ++t) {
        expect(memcmp(lab.dst[t], source(t, false), BYTES) == 0);
    }
}

/* A run of both ranks; false: no other can follow it. */
static bool run(tampered_pair_t *pair, xm_executor_t *const executors[SIDES], input_t *input,
                touched_t *touched)
{
    unsigned steps = input_take(input) % ROUNDS;
    xm_status_t results[SIDES];

    for (int t = 0; t < TENSORS; ++t) {
        memset(lab.dst[t], 0, BYTES);
    }
    for (int rank = 0; rank < SIDES; ++rank) {
        expect(xm_executor_post(executors[rank]) == XM_OK);
    }
    for (; steps > 0 && input->left > 0; --steps) {
        touched_t now = happen(pair, executors, input);

        *touched = now > *touched ? now : *touched;
        check_views(executors[1]);
    }
    if (!settle(pair, executors, results)) {
        expect(*touched != UNTOUCHED);
        for (int rank = 0; rank < SIDES; ++rank) {
            xm_executor_cancel(executors[rank]);
        }
        if (!settle(pair, executors, results)) {
            return false; /* their end gives the peers up */
        }
    }
    if (*touched <= KEYS && results[1] == XM_OK) {
        check_bytes();
    }
    expect(*touched != UNTOUCHED || (results[0] == XM_OK && results[1] == XM_OK));
    return results[0] == XM_OK && results[1] == XM_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input_t input = {data, size};
    unsigned flags = input_take(&input);
    touched_t touched = UNTOUCHED;
    xm_executor_t *executors[SIDES];
    tampered_pair_t pair;

    if (lab.plan == NULL) {
        make_lab();
    }
    tampered_pair_begin(&pair, flags);
    for (int rank = 0; rank < SIDES; ++rank) {
        executors[rank] = create(&pair, rank, flags);
    }
    for (int i = 0; i < RUNS && (i == 0 || input.left > 0); ++i) {
        if (!run(&pair, executors, &input, &touched)) {
            break;
        }
    }
    for (int rank = 0; rank < SIDES; ++rank) {
        xm_transport_peer_failed(&pair.ends[rank].base, 1 - rank);
    }
    for (int rank = 0; rank < SIDES; ++rank) {
        xm_executor_destroy(executors[rank]);
    }
    tampered_pair_end(&pair);
    return 0;
}
