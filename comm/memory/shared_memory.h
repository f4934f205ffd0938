/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file shared_memory.h
 * Memory that other processes of this host can map: buffers in it move between two ranks of a host
 * with a single copy, made by the receiver straight from the sender's memory.
 *
 * crossmesh/shared_memory.h says how tiles are allocated; this is how ranks find them.
 *
 * How: an anonymous file (memfd) mapped by its owner. A *key* names it; who has the key opens
 * /proc/PID/fd/FD and maps the file read-only. That needs one process-id namespace, and the rights
 * to look at the owner (same user, not marked undumpable): when the kernel refuses, so does
 * xm_shared_memory_attach(), and callers do without. Numbers of processes and files are used again,
 * so a key also has the file's inode, its size and 128 random bits that stand behind the data; all
 * are compared before a view is given out. The file's size is sealed: a view never loses a page,
 * not even when its owner dies.
 *
 * Threads: any function from any thread; an object belongs to one thread at a time.
 */
#pragma once

#include <stdint.h>

#include <crossmesh/shared_memory.h>

#include "comm/base.h"

/**
 * Names a shared memory for other processes of the host, as bytes, all integers little-endian:
 * @code
 *     offset 0  u32 process id         offset 16  u64 inode of the file
 *     offset 4  u32 file descriptor    offset 24  u64 inode of the process-id namespace
 *     offset 8  u64 length             offset 32  16 random bytes
 * @endcode
 */
enum { XM_SHARED_MEMORY_KEY_SIZE = 48 };

/** The key for other processes. */
void xm_shared_memory_key(const xm_shared_memory_t *memory,
                          unsigned char key[XM_SHARED_MEMORY_KEY_SIZE]);

/**
 * True when [address, address + length) lies in one shared memory of this process; then with its
 * key, and the offset of the address in it.
 */
bool xm_shared_memory_find(const void *address, uint64_t length,
                           unsigned char key[XM_SHARED_MEMORY_KEY_SIZE], uint64_t *offset);

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
xm_status_t xm_shared_memory_attach(const unsigned char key[XM_SHARED_MEMORY_KEY_SIZE],
                                    xm_shared_view_t *view);

/** Unmaps a view and zeroes it. A zeroed view is accepted. */
void xm_shared_memory_detach(xm_shared_view_t *view);
