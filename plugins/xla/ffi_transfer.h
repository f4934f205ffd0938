/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file ffi_transfer.h
 * Reshards inside of compiled XLA programs: a custom call (FFI handler) that sends the shard it is
 * given, or receives one, while the program goes on with what does not depend on it.
 *
 * A *slot* is one device's rank: its worker, and a thread that runs its transfers. The handler
 * never waits: it gives the run to the thread and returns a future, so ranks that share a process,
 * and XLA's few threads, cannot wait for each other. All runs of a slot go on at once, in whatever
 * order both ends have started them; two runs of one transfer come one after the other.
 *
 * @code
 *     xm_xla_set_functions(create, available, error);     // where jaxlib's header has them
 *     xm_xla_slot_open(worker, &slot);
 *     xm_xla_lock(slot);                                  // the worker is the caller's ...
 *     … create the reshard with staging buffers …
 *     xm_xla_add(slot, &transfer);
 *     xm_xla_unlock(slot);                                // … until here
 *     … programs with xm_xla_transfer run …
 *     xm_xla_lock(slot); xm_xla_remove(slot, id); xm_xla_unlock(slot);
 *     xm_xla_slot_close(slot);
 * @endcode
 *
 * The custom call `xm_xla_transfer` has an int64 attribute `id`, and as first operand the number of
 * the device among those that execute the program (int32 scalar), by which the slot is found. To
 * send, the last operand is the shard and the only result an int32 scalar, the number of the run;
 * to receive, the shard and that number are the results. Other operands only order calls.
 *
 * Threads: the handler, and xm_xla_lock(), may be called by any thread.
 */
#pragma once

#include <crossmesh/reshard.h>
#include <stdbool.h>

typedef struct xm_xla_slot xm_xla_slot_t;

/** One rank's part in one reshard. The buffer holds its shard on its way: what is sent is copied
 * into it, what was received out of it. */
typedef struct xm_xla_part {
    size_t struct_size;
    int64_t id;       /**< of the transfer: equal on all ranks, never used twice in a process */
    int32_t position; /**< of the device in its program's mesh */
    bool sends;       /**< else it receives */
    xm_reshard_t *reshard;
    void *buffer;
    uint64_t bytes;
    double timeout; /**< seconds a run may take; 0: the worker's */
} xm_xla_part_t;

/**
 * Numbers of Future_Create, Future_SetAvailable and Future_SetError among the functions of
 * XLA_FFI_Api, in this jaxlib's header. Without this every call fails.
 */
XM_API void xm_xla_set_functions(int create, int set_available, int set_error);

/** Takes the worker over until xm_xla_slot_close(): it may be used between lock and unlock only. */
XM_API xm_status_t xm_xla_slot_open(xm_worker_t *worker, xm_xla_slot_t **slot);

/** The worker for the calling thread alone; runs of the slot rest meanwhile. */
XM_API void xm_xla_lock(xm_xla_slot_t *slot);
XM_API void xm_xla_unlock(xm_xla_slot_t *slot);

/** With the lock. Reshard and buffer are borrowed until xm_xla_remove(). */
XM_API xm_status_t xm_xla_add(xm_xla_slot_t *slot, const xm_xla_part_t *part);

/** With the lock. Runs that have not ended fail with @p reason. Unknown numbers are accepted. */
XM_API void xm_xla_remove(xm_xla_slot_t *slot, int64_t id, const char *reason);

/** Removes all parts and ends the thread. The worker is the caller's again. NULL is accepted. */
XM_API void xm_xla_slot_close(xm_xla_slot_t *slot);

/** The handler: XLA_FFI_Handler of the custom call. */
struct xla_call_frame;
XM_API struct xla_error *xm_xla_transfer(struct xla_call_frame *frame);
