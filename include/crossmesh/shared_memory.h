/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file shared_memory.h
 * Memory that other processes of this host can map: buffers in it move between two ranks of a host
 * with a single copy, made by the receiver straight from the sender's memory.
 *
 * Allocate tiles with it and give plain pointers into it to a reshard (reshard.h), which finds out
 * by itself: every hop inside a host whose sender's tile is shared takes the short way. Nothing
 * else changes; a tile elsewhere works too, only slower. Only what is read by others need be
 * shared: source tiles, and the destination tiles of ranks that relay.
 *
 * @code
 *     // A tile of `bytes` bytes that other ranks of this host can read.
 *     float *make_tile(uint64_t bytes, xm_shared_memory_t **memory)
 *     {
 *         if (xm_shared_memory_create(bytes, memory) < 0) {
 *             return NULL;
 *         }
 *         return (float *)xm_shared_memory_address(*memory);
 *     }
 * @endcode
 *
 * How: an anonymous file (memfd) mapped by its owner, whose size is sealed: a view never loses a
 * page, not even when its owner dies. Other ranks open it through /proc, which needs one process-id
 * namespace, and the rights to look at the owner (same user, not marked undumpable); where the
 * kernel refuses, messages carry the data.
 *
 * The pages come with the first touch. They count as shared memory ("Shmem" in /proc/meminfo) and
 * against the limits of the owner's memory cgroup, and each allocation holds one file descriptor.
 * The page behind an allocation cannot be written: running over the end faults. A child made by
 * fork() shares the memory and may use the object; exec() drops it.
 *
 * Threads: any function from any thread; an object belongs to one thread at a time. Units: bytes.
 */
#ifndef CROSSMESH_SHARED_MEMORY_H
#define CROSSMESH_SHARED_MEMORY_H

#include <stdint.h>

#include <crossmesh/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/** One allocation. */
typedef struct xm_shared_memory xm_shared_memory_t;

/** Allocates @p length bytes (at least 1), zeroed, at the start of a page. XM_ERR_UNSUPPORTED where
 * the kernel has no sealed memory files; XM_ERR_NO_MEMORY, or XM_ERR_IO (no file descriptor left).
 */
XM_API xm_status_t xm_shared_memory_create(uint64_t length, xm_shared_memory_t **memory);

/** Where it lies in this process. */
XM_API void *xm_shared_memory_address(const xm_shared_memory_t *memory);

/** Frees the memory for this process; views of others stay valid. No reshard may use it any more.
 * NULL is accepted. */
XM_API void xm_shared_memory_destroy(xm_shared_memory_t *memory);

#ifdef __cplusplus
}
#endif

#endif
