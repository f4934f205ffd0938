/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file nccl_double.h
 * A stand-in for NCCL (libnccl.so.2) on machines without a device, for tests only: they put its
 * folder, and that of the stand-in for CUDA's driver, into LD_LIBRARY_PATH.
 *
 * Ranks are processes of one machine; bytes go through a file in memory that the process with the
 * unique id made. What it is strict about, so that mistakes show:
 *  - Collectives run in their stream, on the stand-in's device memory; a stream that nobody looks
 *    after, or buffers that are too small, do not work.
 *  - A communicator that must not block says "in progress" at first, of its making and of every
 *    call, and refuses the next call until it has been asked.
 *  - A rank whose peers do not call waits until its communicator is aborted. Destroying one with
 *    work under way is refused; finalising comes first.
 *  - Calls without a current context fail, and so does a device that another rank of the
 *    communicator has.
 *
 * The environment: NCCL_DOUBLE_VERSION (22807); NCCL_DOUBLE_FAIL, a list
 * "ncclAllReduce=5,ncclGetUniqueId=2@3": these calls fail with these results, from the third call
 * on in the second example; NCCL_DOUBLE_HANG, "init" or the name of a call: it never ends;
 * NCCL_DOUBLE_WRONG, the name of a call: one byte of its result is wrong.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/base/api.h"
#include "comm/probe/nccl_library.h"

#define DOUBLE_PROTOTYPE(result, name, parameters) XM_API result name parameters;
XM_NCCL_TABLE(DOUBLE_PROTOTYPE)
#undef DOUBLE_PROTOTYPE

enum { NCCL_DOUBLE_RANKS = 8, NCCL_DOUBLE_SLOT = 1 << 14 };

/* What one rank has for another: a ring of bytes. */
typedef struct nccl_slot {
    atomic_ulong written, read;
    char bytes[NCCL_DOUBLE_SLOT];
} nccl_slot_t;

/* The file that the ranks share. */
typedef struct nccl_shared {
    atomic_int joined;
    atomic_int device[NCCL_DOUBLE_RANKS];                    /* number + 1; 0: not known yet */
    nccl_slot_t slots[NCCL_DOUBLE_RANKS][NCCL_DOUBLE_RANKS]; /* from, to */
} nccl_shared_t;

typedef struct nccl_comm {
    nccl_shared_t *shared;
    int rank, ranks;
    bool blocking;
    int questions;      /* since the last call: the first is answered "in progress" */
    atomic_int error;   /* of what runs in streams */
    atomic_int pending; /* pieces of work in streams */
    atomic_bool aborted;
    bool finalised;
    char last_error[128];
} nccl_comm_t;

/* One send or receive. */
typedef struct nccl_transfer {
    int peer;
    bool send;
    char *at;
    size_t left;
} nccl_transfer_t;

enum { NCCL_DOUBLE_TRANSFERS = 4 * NCCL_DOUBLE_RANKS };

/* Sends and receives that make progress together. */
typedef struct nccl_exchange {
    nccl_transfer_t transfers[NCCL_DOUBLE_TRANSFERS];
    int count;
} nccl_exchange_t;

void nccl_double_add(nccl_exchange_t *exchange, int peer, bool send, const void *at, size_t bytes);

/* Until all is done, or the communicator aborted: false. */
bool nccl_double_run(nccl_comm_t *comm, nccl_exchange_t *exchange);
