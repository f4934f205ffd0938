/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file net_pair.h
 * Two processes joined by a connection of the plugin: rank 0 sends, rank 1 receives.
 */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

#include "tests/comm/job/local_job.h"
#include "tests/plugins/nccl/net_table.h"

/* How the two are placed: on one host (shared memory), on two emulated ones (TCP), or, if this
 * machine lets them say so, on two machines, with two NICs each. */
typedef enum pair_placement { PAIR_HOST, PAIR_HOSTS, PAIR_MACHINES } pair_placement_t;

/* What the processes share. */
typedef struct pair_board {
    _Atomic int stage[2]; /* how far each rank is */
    uint8_t handles[8][NCCL_HANDLE_SIZE];
    _Atomic int value;
} pair_board_t;

typedef struct pair {
    net_table_t net;
    int rank, device;
    void *listener, *comm;
    pair_board_t *board;
} pair_t;

typedef void pair_case_t(pair_t *pair);

/* Runs a case in two processes, joined unless it is `apart`. A rank in `doomed` (bit mask) may die.
 */
void pair_run(int version, pair_placement_t placement, unsigned doomed, bool apart,
              pair_case_t *run);

/* False when processes may not have a machine name of their own here. */
bool pair_can_be_machines(void);

/* Opens the plugin in this process, as a rank. */
void pair_start(pair_t *pair, int version);

/* Joins the two once more by the listener's handle of that number. */
void *pair_join(pair_t *pair, void *listener, int number);

/* Waits until the other rank has come as far as this one. */
void pair_meet(pair_t *pair);

/* Fails when a call gives another result. */
#define pair_expect(call, expected)                                                                \
    do {                                                                                           \
        nccl_result_t pair_result_ = (call);                                                       \
        local_expect(pair_result_ == (expected), "%s: %d, expected %d (%s)", #call,                \
                     (int)pair_result_, (int)(expected), net_table_last_warning());                \
    } while (0)
#define pair_ok(call) pair_expect(call, NCCL_OK)

/* Starts a message, as often as it takes. */
void *pair_send(pair_t *pair, void *data, size_t size, int tag);
void *pair_receive(pair_t *pair, int count, void **data, const size_t *sizes, int *tags);

/* Waits for a request; its result. */
nccl_result_t pair_wait(pair_t *pair, void *request, int *sizes);

/* Bytes that depend on where they are. */
void pair_fill(uint8_t *bytes, size_t size, uint32_t seed);
void pair_check(const uint8_t *bytes, size_t size, uint32_t seed);
