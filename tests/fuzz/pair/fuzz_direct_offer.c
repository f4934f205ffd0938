/* SPDX-License-Identifier: Apache-2.0 */
/* What two ranks of a host say about the memory they share (resharding/execute/carrier/direct.h),
 * changed on its way: key, place and number of what is offered, the answer, what says that a chunk
 * is there or has been copied; and messages that nobody has sent. Nothing outside of the peer's
 * shared memory is read, runs end, and those of which nothing but keys was changed bring the right
 * bytes or fail. */
#include <stdlib.h>
#include <string.h>

#include "resharding/execute/carrier/direct.h"
#include "tests/fuzz/pair/offered_run.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* As little as goes directly: a lane of 1 MiB. Half of it is in each of two tensors. */
enum { TENSORS = 2, BYTES = 512 * 1024, SHORT = 256 };

static struct {
    offered_run_t run;
    unsigned flags;
    xm_shared_memory_t *memory[2]; /* both with the bytes of both tensors */
    char *dst[TENSORS];
} lab;

static void make_lab(void)
{
    offered_run_plan(&lab.run, TENSORS, BYTES, BYTES / 2);
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

static xm_executor_t *create(int rank)
{
    xm_tensor_buffers_t buffers[TENSORS] = {{0}};
    xm_executor_params_t params = {.plan = lab.run.plan,
                                   .transport = &lab.run.pair.ends[rank].base,
                                   .buffers = buffers,
                                   .verify =
                                       (lab.flags & 4) != 0 ? XM_VERIFY_CHUNK : XM_VERIFY_OFF};
    xm_executor_t *executor;

    for (int t = 0; t < TENSORS; ++t) {
        if (rank == 0) {
            buffers[t].src = source(t, (lab.flags & 8) != 0);
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
    return keys ? OFFERED : MORE;
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

static void begin(void)
{
    for (int t = 0; t < TENSORS; ++t) {
        memset(lab.dst[t], 0, BYTES);
    }
}

static void check(touched_t touched, const xm_status_t results[2])
{
    for (int t = 0; t < TENSORS && touched <= OFFERED && results[1] == XM_OK; ++t) {
        expect(memcmp(lab.dst[t], source(t, false), BYTES) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const offered_run_ops_t ops = {.create = create,
                                          .spoil = spoil,
                                          .inject = inject,
                                          .begin = begin,
                                          .look = check_views,
                                          .check = check};
    input_t input = {data, size};

    lab.flags = input_take(&input);
    if (lab.run.plan == NULL) {
        make_lab();
    }
    offered_run_begin(&lab.run, &ops, lab.flags);
    offered_run_play(&lab.run, &input);
    return 0;
}
