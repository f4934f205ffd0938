/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file relay_table.h
 * A caller's allgather for tests: every rank has a socket to one more process, the relay, which
 * collects a block from each and sends all of them back. Nothing of crossmesh is used.
 */
#pragma once

#include "comm/job/bootstrap.h"
#include "tests/comm/job/local_job.h"

typedef struct relay {
    int size;
    int ranks[LOCAL_JOB_MAX]; /* the ranks' ends */
    pid_t pid;
} relay_t;

/* Starts the relay of `size` ranks. The ranks are forked afterwards. */
void relay_start(relay_t *relay, int size);

/* Closes the test's copies of the sockets and waits for the relay, which ends with the ranks. */
void relay_end(relay_t *relay);

typedef struct relay_slot {
    int fd;
    int size;
    uint8_t *receive;
    size_t expected, have;
    int posts, frees;
} relay_slot_t;

/* In a rank: its table, over `slot`. */
xm_oob_t relay_table(const relay_t *relay, int rank, relay_slot_t *slot);
