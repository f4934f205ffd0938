/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file pipe.h
 * A pipe: messages one way, from one process to another, without a job around them.
 *
 * For runtimes that have no ranks to offer but pairs that want to be joined, as NCCL does with its
 * network plugins. One process listens and gives its *handle* (128 bytes) to the other by whatever
 * way the runtime has; the other connects; what comes out is a pipe at each end, the connecting one
 * sending. Nothing here blocks: what is not finished says XM_IN_PROGRESS and is called again.
 *
 * @code
 *     xm_pipe_listen(&params, handle, &listener);           // receiver; the handle travels …
 *     xm_pipe_connect(&params, handle, &pipe);              // … to the sender
 *     while ((status = xm_pipe_advance(pipe)) == XM_IN_PROGRESS) …          // sender
 *     while ((status = xm_pipe_accept(listener, &pipe)) == XM_IN_PROGRESS) … // receiver
 * @endcode
 *
 * Under each pipe is a UCX transport of two ranks (comm/transport/ucx/ucx.h) with all that it has:
 * shared memory inside a host, several NICs used together and standing in for each other. So a pipe
 * has UCX workers of its own, and a pipe that fails takes nothing else with it; it costs some file
 * descriptors and some megabytes, which suits tens or hundreds of pipes, not tens of thousands.
 *
 * Messages. Each has a length from 0 on and a tag. It goes to the oldest posted receive that has a
 * free slot with its tag; a receive has up to ::XM_PIPE_GROUP_MAX slots and is finished when all of
 * them are filled. A message may be shorter than its slot; one that is longer breaks the pipe. At
 * most 256 messages wait for a receive: then sends say XM_IN_PROGRESS until the receiver has taken
 * some.
 *
 * Failure. The two ends keep a TCP connection besides. When the other process dies, or its machine
 * falls silent for 4 seconds, every pending and later request ends with XM_ERR_PEER_DIED; when it
 * closes, requests that can not be served any more end with XM_ERR_CANCELED. A pipe that has failed
 * stays so, and what UCX holds for it stays until the process ends. After xm_pipe_destroy() no
 * memory of the caller is touched, whatever was in flight.
 *
 * Strangers. Who connects must prove that it has the handle, and the listener proves that it made
 * it; whoever cannot is turned away and logged, and the listener goes on.
 *
 * A send that has ended may still have bytes in buffers of this process. A thread of the library's
 * own sends them off when nobody uses the pipe any more (plugins/nccl/pipe/progress_thread.h); it
 * exists while there are open sending ends.
 *
 * Threads: a pipe may be used by several threads at once; each call takes its lock. A listener is
 * used by one thread at a time. Requests belong to the pipe.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/transport.h"
#include "comm/base.h"

typedef struct xm_pipe_listener xm_pipe_listener_t;
typedef struct xm_pipe xm_pipe_t;
typedef struct xm_pipe_request xm_pipe_request_t;

enum {
    XM_PIPE_HANDLE_SIZE = 128,
    XM_PIPE_HANDLE_USED = 120, /**< the bytes after these are zero, and the caller's to use */
    XM_PIPE_GROUP_MAX = 8,     /**< slots of a receive */
    XM_PIPE_REQUESTS_MAX = 256 /**< unfinished requests of a pipe */
};

typedef struct xm_pipe_params {
    const char *nics; /**< as XM_NICS names them; NULL or empty: UCX chooses */
    double timeout;   /**< seconds for the connection to be made; 0: XM_TIMEOUT */
} xm_pipe_params_t;

/** Listens at XM_BIND if that is set, else at all addresses of this machine. Any number of pipes
 * may be accepted. */
xm_status_t xm_pipe_listen(const xm_pipe_params_t *params, uint8_t handle[XM_PIPE_HANDLE_SIZE],
                           xm_pipe_listener_t **listener);

/** XM_IN_PROGRESS: nobody has come yet. A peer that fails on its way is logged and forgotten. */
xm_status_t xm_pipe_accept(xm_pipe_listener_t *listener, xm_pipe_t **pipe);

/** Stops listening; pipes that were accepted stay. NULL is accepted. */
void xm_pipe_listener_destroy(xm_pipe_listener_t *listener);

/** Starts to connect. Fails at once for what is no handle. */
xm_status_t xm_pipe_connect(const xm_pipe_params_t *params,
                            const uint8_t handle[XM_PIPE_HANDLE_SIZE], xm_pipe_t **pipe);

/** Goes on connecting: XM_IN_PROGRESS until the pipe can be used (XM_OK) or never will. */
xm_status_t xm_pipe_advance(xm_pipe_t *pipe);

/** Prepares memory for messages that name the handle, see xm_transport_memory_register(). */
xm_status_t xm_pipe_register(xm_pipe_t *pipe, void *address, size_t length, xm_memory_t **memory);
void xm_pipe_deregister(xm_pipe_t *pipe, xm_memory_t *memory);

/** Starts to send. XM_OK: @p request is to be tested until it has ended. XM_IN_PROGRESS: there is
 * no room now, try again. */
xm_status_t xm_pipe_send(xm_pipe_t *pipe, const void *buffer, size_t length, int tag,
                         xm_memory_t *memory, xm_pipe_request_t **request);

/** Starts to receive @p count messages (1 to ::XM_PIPE_GROUP_MAX) into as many slots; likewise.
 * @p memories may be NULL, and so may each of them. */
xm_status_t xm_pipe_receive(xm_pipe_t *pipe, int count, void *const *buffers, const size_t *sizes,
                            const int *tags, xm_memory_t *const *memories,
                            xm_pipe_request_t **request);

/**
 * Makes progress. XM_OK: the request has ended well, its messages had @p lengths (may be NULL, else
 * one for each slot), and is gone. XM_IN_PROGRESS: not yet. A failure: it has ended so, and is
 * gone.
 */
xm_status_t xm_pipe_test(xm_pipe_request_t *request, size_t *lengths);

/** The caller's own value at a request, NULL at first. */
void xm_pipe_request_set_user(xm_pipe_request_t *request, void *user);
void *xm_pipe_request_user(const xm_pipe_request_t *request);

/** Slots of a request; 1 for a send. */
int xm_pipe_request_count(const xm_pipe_request_t *request);

/** The pipe of a request. */
xm_pipe_t *xm_pipe_request_pipe(const xm_pipe_request_t *request);

/** Number of messages that were sent or received before this one: of a send, or of the first slot
 * of a receive. */
uint64_t xm_pipe_request_number(const xm_pipe_request_t *request);

/** How many of @p length bytes go over each NIC in the long run, as long as all of them work.
 * Returns the number of NICs, 0 where both ends are on one machine; @p shares has room for 8. */
int xm_pipe_shares(const xm_pipe_t *pipe, size_t length, size_t *shares);

/** What carries the messages, for people: "tcp/eth0 + tcp/eth1", and who is at the other end:
 * "node7 pid 4711". Returns @p buffer. */
char *xm_pipe_path(xm_pipe_t *pipe, char *buffer, size_t size);
char *xm_pipe_peer(const xm_pipe_t *pipe, char *buffer, size_t size);

/**
 * Closes, in whatever state: requests in flight are gone, their memory is not touched any more, and
 * the other end learns it. What was sent and has ended well is delivered first, if the other end
 * takes it within 2 seconds. NULL is accepted.
 */
void xm_pipe_destroy(xm_pipe_t *pipe);
