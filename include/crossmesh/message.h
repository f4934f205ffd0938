/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file message.h
 * Messages between two ranks of a worker, besides reshards: small tables, tokens, ready signals.
 *
 * A message is matched by peer and tag: the receive that the peer's rank posts for this rank with
 * the same tag gets it, and has exactly its length (a message of another length fails the receive
 * with XM_ERR_CORRUPT). Messages with different tags may overtake each other; two of one tag
 * between the same two ranks may not be under way at once. Tags of messages and those of reshards
 * are different spaces. Large messages do not end at the sender before the receive is posted; with
 * XM_VERIFY=chunk none does before it has arrived right, if need be after it was sent again.
 *
 * Post any number, wait in xm_worker_wait(), and ask each whether it has ended.
 *
 * @code
 *     // Receives `length` bytes of tag 7 from rank 1.
 *     xm_status_t receive_one(xm_worker_t *worker, void *buffer, size_t length)
 *     {
 *         int64_t deadline = xm_worker_deadline(worker);
 *         xm_message_t *message = NULL;
 *         xm_status_t status = xm_message_receive(worker, 1, 7, buffer, length, &message);
 *
 *         if (status < 0) {
 *             return status;
 *         }
 *         while ((status = xm_message_test(message)) == XM_IN_PROGRESS) {
 *             if (xm_worker_wait(worker, deadline) == XM_ERR_TIMEOUT) {
 *                 status = XM_ERR_TIMEOUT;
 *                 break;
 *             }
 *         }
 *         xm_message_destroy(message);
 *         return status;
 *     }
 * @endcode
 *
 * Threads: as the worker's. Ownership: the buffer stays the caller's and untouched until the
 * message has ended or been destroyed. Messages are destroyed before their worker, and before
 * xm_group_shrink().
 */
#ifndef CROSSMESH_MESSAGE_H
#define CROSSMESH_MESSAGE_H

#include <crossmesh/worker.h>

#ifdef __cplusplus
extern "C" {
#endif

/** A message under way, or ended. */
typedef struct xm_message xm_message_t;

/** Largest tag. */
#define XM_MESSAGE_MAX_TAG ((UINT64_C(1) << 40) - 1)

/** Starts sending @p length bytes (at least 1) of host memory to @p peer, another rank. */
XM_API xm_status_t xm_message_send(xm_worker_t *worker, int peer, uint64_t tag, const void *buffer,
                                   size_t length, xm_message_t **message);

/** Starts receiving exactly @p length bytes from @p peer. */
XM_API xm_status_t xm_message_receive(xm_worker_t *worker, int peer, uint64_t tag, void *buffer,
                                      size_t length, xm_message_t **message);

/** XM_IN_PROGRESS, or how it ended. Makes no progress. */
XM_API xm_status_t xm_message_test(const xm_message_t *message);

/**
 * Frees the message. One in flight is cancelled first; where it cannot be, the connection to its
 * peer is given up, so that nothing touches the buffer any more. NULL is accepted.
 */
XM_API void xm_message_destroy(xm_message_t *message);

#ifdef __cplusplus
}
#endif

#endif
