/**
 * @file shared_memory.h
 * Memory that other processes of this host can map: buffers in it move between two ranks of a host
 * with a single copy, made by the receiver straight from the sender's memory.
 *
 * Allocate tiles with it and give the executor plain pointers into it (resharding/execute.h): it
 * finds out by itself (xm_shared_memory_find()), and every hop inside a host whose sender's tile is
 * shared takes the short way. Nothing else changes; a tile elsewhere works too, only slower. Only
 * what is read by others need be shared: source tiles, and the destination tiles of ranks that
 * relay.
 *
 * @code
 *     xm_shared_memory_create(bytes, &memory);
 *     params.src = xm_shared_memory_address(memory);    // and src_bytes = bytes
 *     …
 *     xm_executor_destroy(executor);
 *     xm_shared_memory_destroy(memory);
 * @endcode
 *
 * How: an anonymous file (memfd) mapped by its owner. A *key* names it; who has the key opens
 * /proc/PID/fd/FD and maps the file read-only. That needs one process-id namespace, and the rights
 * to look at the owner (same user, not marked undumpable): when the kernel refuses, so does
 * xm_shared_memory_attach(), and callers do without. Numbers of processes and files are used again,
 * so a key also has the file's inode, its size and 128 random bits that stand behind the data; all
 * are compared before a view is given out. The file's size is sealed: a view never loses a page,
 * not even when its owner dies.
 *
 * The pages come with the first touch. They count as shared memory ("Shmem" in /proc/meminfo) and
 * against the limits of the owner's memory cgroup, and each allocation holds one file descriptor.
 * The page behind an allocation cannot be written: running over the end faults.
 *
 * A child made by fork() shares the memory and may use the object; exec() drops it.
 *
 * Threads: any function from any thread; an object belongs to one thread at a time.
 */
#ifndef XM_COMM_SHARED_MEMORY_H
#define XM_COMM_SHARED_MEMORY_H

#include <stdint.h>

#include "comm/status.h"

typedef struct xm_shared_memory xm_shared_memory_t;

/**
 * Names a shared memory for other processes of the host, as bytes, all integers little-endian:
 * @code
 *     offset 0  u32 process id         offset 16  u64 inode of the file
 *     offset 4  u32 file descriptor    offset 24  u64 inode of the process-id namespace
 *     offset 8  u64 length             offset 32  16 random bytes
 * @endcode
 */
enum { XM_SHARED_MEMORY_KEY_SIZE = 48 };

/** Allocates @p length bytes (at least 1), zeroed, at the start of a page. XM_ERR_UNSUPPORTED where
 * the kernel has no sealed memory files; XM_ERR_NO_MEMORY, or XM_ERR_IO (no file descriptor left).
 */
XM_API xm_status_t xm_shared_memory_create(uint64_t length, xm_shared_memory_t **memory);

XM_API void *xm_shared_memory_address(const xm_shared_memory_t *memory);

/** The key for other processes. */
XM_API void xm_shared_memory_key(const xm_shared_memory_t *memory,
                                 unsigned char key[XM_SHARED_MEMORY_KEY_SIZE]);

/**
 * True when [address, address + length) lies in one shared memory of this process; then with its
 * key, and the offset of the address in it.
 */
XM_API bool xm_shared_memory_find(const void *address, uint64_t length,
                                  unsigned char key[XM_SHARED_MEMORY_KEY_SIZE], uint64_t *offset);

/** Frees the memory for this process; views of others stay valid. No executor may use it any more.
 * NULL is accepted. */
XM_API void xm_shared_memory_destroy(xm_shared_memory_t *memory);

/** Another process's shared memory, mapped here to be read. */
typedef struct xm_shared_view {
    const void *address;
    uint64_t length; /**< as its owner asked for */
} xm_shared_view_t;

/**
 * Maps what @p key names. XM_ERR_UNREACHABLE: the owner is gone, in another process-id namespace,
 * or may not be looked at; XM_ERR_MISMATCH: something else has the owner's numbers now, or the file
 * could shrink; XM_ERR_CORRUPT: the bytes are no key. The owner itself may attach as well.
 */
XM_API xm_status_t xm_shared_memory_attach(const unsigned char key[XM_SHARED_MEMORY_KEY_SIZE],
                                           xm_shared_view_t *view);

/** Unmaps a view and zeroes it. A zeroed view is accepted. */
XM_API void xm_shared_memory_detach(xm_shared_view_t *view);

#endif
