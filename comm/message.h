/**
 * @file message.h
 * Messages between two ranks of a worker, as objects that the library keeps: for bindings, whose
 * language cannot keep an xm_op_t (transport.h) at one address and be called back from C.
 *
 * A message is matched by peer and tag, as transport.h says; a tag is a channel and a number in it.
 * Executors (resharding) have channels of their own, and nobody else may use theirs as long as they
 * live. Post any number, wait in xm_worker_wait(), and ask each whether it has ended.
 *
 * @code
 *     xm_message_receive(worker, 1, 0, 7, buffer, length, &message);
 *     while ((status = xm_message_test(message)) == XM_IN_PROGRESS) {
 *         (void)xm_worker_wait(worker, xm_worker_deadline(worker));
 *     }
 *     xm_message_destroy(message);
 * @endcode
 *
 * Threads: as the worker's. Ownership: the buffer stays the caller's and untouched until the
 * message has ended or been destroyed. Messages are destroyed before their worker, and before
 * xm_group_shrink().
 */
#ifndef XM_COMM_MESSAGE_H
#define XM_COMM_MESSAGE_H

#include "comm/worker.h"

typedef struct xm_message xm_message_t;

/** Largest number of a message in its channel (0 … 254). */
#define XM_MESSAGE_MAX_NUMBER ((UINT64_C(1) << 40) - 1)

/** Starts sending @p length bytes (at least 1) to @p peer, another rank. */
XM_API xm_status_t xm_message_send(xm_worker_t *worker, int peer, int channel, uint64_t number,
                                   const void *buffer, size_t length, xm_message_t **message);

/** Starts receiving exactly @p length bytes from @p peer. */
XM_API xm_status_t xm_message_receive(xm_worker_t *worker, int peer, int channel, uint64_t number,
                                      void *buffer, size_t length, xm_message_t **message);

/** XM_IN_PROGRESS, or how it ended. Makes no progress. */
XM_API xm_status_t xm_message_test(const xm_message_t *message);

/**
 * Frees the message. One in flight is cancelled first; where it cannot be, the connection to its
 * peer is given up, so that nothing touches the buffer any more. NULL is accepted.
 */
XM_API void xm_message_destroy(xm_message_t *message);

#endif
