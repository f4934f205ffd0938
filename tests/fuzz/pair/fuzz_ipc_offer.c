/* SPDX-License-Identifier: Apache-2.0 */
/* What two ranks of a host say about their device tiles (resharding/execute/carrier/ipc.c), changed
 * on its way: processes, addresses, offsets and devices of what is offered, the answer,
 * announcements, acknowledgements and the end of a lane; and messages that nobody has sent. Handles
 * themselves are the driver's, which a stand-in plays (tests/cuda_double): it checks every access,
 * and one that is out of bounds costs the device. Runs end, and those of which nothing but the
 * offered place was changed bring the right bytes or fail. */
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "comm/memory/memory.h"
#include "resharding/execute/carrier.h"
#include "tests/fuzz/pair/offered_run.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { TENSORS = 2, BYTES = 4096, SHORT = 1024, OFFER = 0x3fffffff };

static struct {
    offered_run_t run;
    xm_memory_space_t *space;
    char *src, *dst[TENSORS];
    xm_memory_share_t other; /* the same bytes, in another process */
    bool elsewhere;          /* what is offered now is that */
} lab;

static xm_transport_ops_t replacing;
static const xm_transport_ops_t *plain;

static char byte_of(size_t i)
{
    return (char)(i % 251 + i / BYTES + 1);
}

static char *make_tiles(xm_memory_space_t *space)
{
    char bytes[TENSORS * BYTES];
    void *memory;

    for (size_t i = 0; i < sizeof(bytes); ++i) {
        bytes[i] = byte_of(i);
    }
    expect(xm_memory_allocate(space, sizeof(bytes), &memory) == XM_OK);
    expect(xm_memory_copy(space, memory, bytes, sizeof(bytes)) == XM_OK);
    return memory;
}

/* Another process lives as long as this one, and shares what it has. It begins before this one has
 * a device, which no child may inherit, and before the fuzzer has threads, whose locks it would. */
static void make_other(void)
{
    int there[2];

    expect(pipe(there) == 0);
    if (fork() == 0) {
        xm_memory_space_t *space;
        xm_memory_share_t share;

        expect(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
        expect(xm_memory_cuda_create(0, &space) == XM_OK);
        expect(xm_memory_share(space, make_tiles(space), &share) == XM_OK);
        expect(write(there[1], &share, sizeof(share)) == (ssize_t)sizeof(share));
        for (;;) {
            (void)pause();
        }
    }
    expect(read(there[0], &lab.other, sizeof(lab.other)) == (ssize_t)sizeof(lab.other));
    (void)close(there[0]);
    (void)close(there[1]);
}

/* In place of its own tiles, rank 0 offers those of the other process. */
static xm_status_t offer_elsewhere(xm_transport_t *transport, int peer, uint64_t tag,
                                   const void *buffer, size_t length, xm_memory_t *memory,
                                   xm_op_t *op)
{
    if (lab.elsewhere && (tag & UINT32_MAX) == (XM_IPC_BITS | OFFER) &&
        length == TENSORS * sizeof(lab.other)) {
        xm_memory_share_t *offer = (xm_memory_share_t *)(uintptr_t)buffer;

        for (int t = 0; t < TENSORS; ++t) {
            offer[t] = lab.other;
            offer[t].offset += (uint64_t)t * BYTES;
        }
    }
    return plain->send(transport, peer, tag, buffer, length, memory, op);
}

static void make_lab(void)
{
    void *memory;

    expect(xm_memory_cuda_create(0, &lab.space) == XM_OK);
    lab.src = make_tiles(lab.space);
    for (int t = 0; t < TENSORS; ++t) {
        expect(xm_memory_allocate(lab.space, BYTES, &memory) == XM_OK);
        lab.dst[t] = memory;
    }
    offered_run_plan(&lab.run, TENSORS, BYTES, BYTES / 4);
}

static xm_executor_t *create(int rank)
{
    xm_tensor_buffers_t buffers[TENSORS] = {{0}};
    xm_executor_params_t params = {.plan = lab.run.plan,
                                   .transport = &lab.run.pair.ends[rank].base,
                                   .buffers = buffers,
                                   .device_peers = true};
    xm_executor_t *executor;

    for (int t = 0; t < TENSORS; ++t) {
        if (rank == 0) {
            buffers[t].src = lab.src + (size_t)t * BYTES;
            buffers[t].src_bytes = BYTES;
        } else {
            buffers[t].dst = lab.dst[t];
            buffers[t].dst_bytes = BYTES;
        }
    }
    expect(xm_executor_create(&params, &executor) == XM_OK);
    expect(executor->share_count == 1);
    return executor;
}

/* Changes bytes of the next short message. Of an offer, all but the driver's handles. */
static touched_t spoil(tampered_pair_t *pair, input_t *input, unsigned choice)
{
    enum { OWN = offsetof(xm_memory_share_t, handle) };
    uint8_t bytes[64];
    size_t length = 1;
    uint64_t tag;
    bool offer = tampered_pair_next(pair, choice, &tag) && (tag & UINT32_MAX) == UINT32_MAX;
    input_t changed = {bytes, 0};

    bytes[0] = (uint8_t)input_take(input);
    for (unsigned changes = bytes[0] % 16u + 1; changes > 0; --changes) {
        size_t at = input_take(input) | (size_t)input_take(input) << 8;

        at = offer ? at % TENSORS * sizeof(xm_memory_share_t) + at / TENSORS % OWN : at;
        bytes[length++] = (uint8_t)at;
        bytes[length++] = (uint8_t)(at >> 8);
        bytes[length++] = (uint8_t)input_take(input);
    }
    changed.left = length;
    if (!tampered_pair_spoil(pair, choice, &changed, SHORT, &tag)) {
        return UNTOUCHED;
    }
    return offer ? OFFERED : MORE;
}

static touched_t inject(tampered_pair_t *pair, const xm_executor_t *executor, input_t *input)
{
    static const uint64_t marks[] = {XM_IPC_BITS | 0x3ffffffd, XM_IPC_BITS | 0x3ffffffe,
                                     XM_IPC_BITS, 0};
    unsigned what = input_take(input);
    uint64_t mark = marks[what >> 1 & 3];

    tampered_pair_inject(pair, (int)(what & 1),
                         xm_executor_tag(executor) |
                             ((mark & 0xffff) == 0 ? mark | (what >> 3 & 7) : mark),
                         (what & 64) != 0 ? TENSORS : 1, input);
    return MORE;
}

/* The device has seen no access that it would not have had to see, and has the right bytes. */
static void check(touched_t touched, const xm_status_t results[2])
{
    const xm_executor_t *receiver = lab.run.executors[1];
    char bytes[BYTES];

    expect(results[0] != XM_ERR_IO && results[1] != XM_ERR_IO);
    expect(touched != UNTOUCHED || receiver->hops[0].carrier == receiver->carriers[CARRIER_IPC]);
    for (int t = 0; t < TENSORS; ++t) {
        expect(xm_memory_copy(lab.space, bytes, lab.dst[t], BYTES) == XM_OK);
        for (size_t i = 0; touched < OFFERED && results[1] == XM_OK && i < BYTES; ++i) {
            expect(bytes[i] == byte_of((size_t)t * BYTES + i));
        }
    }
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    expect(setenv("CUDA_DOUBLE_DELAY_US", "0", 1) == 0);
    make_other();
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const offered_run_ops_t ops = {
        .create = create, .spoil = spoil, .inject = inject, .check = check};
    input_t input = {data, size};
    unsigned flags = input_take(&input);

    if (lab.run.plan == NULL) {
        make_lab();
    }
    lab.elsewhere = (flags & 4) != 0;
    offered_run_begin(&lab.run, &ops, flags);
    plain = lab.run.pair.ends[0].base.ops;
    replacing = *plain;
    replacing.send = offer_elsewhere;
    lab.run.pair.ends[0].base.ops = &replacing;
    offered_run_play(&lab.run, &input);
    return 0;
}
