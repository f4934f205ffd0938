/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file pipe_private.h
 * A pipe's state, shared by its functions (pipe.c), its messages (plugins/nccl/pipe/message.c) and
 * the making of it (plugins/nccl/pipe/connect.c). Internal.
 *
 * The sender is rank 0 of the transport, the receiver rank 1. What callbacks of the transport find
 * wrong is only noted (xm_pipe_mark_failed()); the transport is fenced outside of them.
 */
#pragma once

#include <pthread.h>

#include "plugins/nccl/pipe/pipe.h"
#include "plugins/nccl/pipe/wire.h"

enum {
    XM_PIPE_WINDOW = 256,   /**< messages that the receiver has not acknowledged */
    XM_PIPE_ACK_EVERY = 64, /**< messages, while receives are posted */
    XM_PIPE_HEADERS = 64,   /**< receives for headers that are posted */
    XM_PIPE_SENTENCE = 512
};

/* How far the handshake is: what is waited for. */
typedef enum xm_pipe_stage {
    XM_PIPE_STAGE_CONNECT, /**< the socket */
    XM_PIPE_STAGE_CHALLENGE,
    XM_PIPE_STAGE_HELLO,
    XM_PIPE_STAGE_LENGTH, /**< of the blob */
    XM_PIPE_STAGE_BLOB,
    XM_PIPE_STAGE_OPEN
} xm_pipe_stage_t;

typedef struct xm_pipe_slot {
    xm_op_t op;
    xm_pipe_request_t *request;
    void *buffer;
    size_t size;   /**< room */
    size_t length; /**< of the message */
    xm_memory_t *memory;
    int tag;
    bool taken; /**< a message has been found for it */
} xm_pipe_slot_t;

struct xm_pipe_request {
    xm_pipe_request_t *next; /**< free ones; or posted receives, the oldest first */
    xm_pipe_t *pipe;
    void *user;
    uint64_t number;
    int count;                               /**< slots */
    int open;                                /**< operations or slots that are unfinished */
    int untaken;                             /**< slots */
    bool failed;                             /**< something of it has */
    xm_pipe_slot_t slots[XM_PIPE_GROUP_MAX]; /**< a send has its data in the first one */
    xm_op_t header_op;                       /**< of a send */
    uint8_t header[XM_PIPE_HEADER_SIZE];
};

/* A receive for the headers of messages i, i + XM_PIPE_HEADERS, … */
typedef struct xm_pipe_header_slot {
    xm_op_t op;
    bool here;
    uint8_t bytes[XM_PIPE_HEADER_SIZE];
} xm_pipe_header_slot_t;

/* A message that has been announced and has no receive. */
typedef struct xm_pipe_waiting {
    struct xm_pipe_waiting *next;
    xm_pipe_header_t header;
    uint8_t data[XM_PIPE_INLINE_MAX];
} xm_pipe_waiting_t;

/* What only one of the ends has. */
typedef struct xm_pipe_receiver {
    xm_pipe_header_slot_t headers[XM_PIPE_HEADERS];
    xm_pipe_waiting_t waiting[XM_PIPE_WINDOW];
    xm_pipe_waiting_t *free_waiting, *first, **last;
    uint64_t announced; /**< messages whose headers have been read */
} xm_pipe_receiver_t;

struct xm_pipe {
    pthread_mutex_t lock;
    bool sender;
    xm_pipe_stage_t stage;
    char *nics;
    double timeout;
    int fd; /**< -1: closed */

    /* The handshake. */
    double deadline, attempt_deadline;
    xm_pipe_handle_t handle; /**< of the sender: with the addresses to try */
    int address;             /**< tried now */
    xm_job_secret_t secret;
    xm_pipe_hello_t own, other;
    uint8_t *out, *in;
    size_t out_at, out_length, in_have, in_want;
    void *blob; /**< our own */
    size_t blob_length;

    xm_transport_t *transport;
    xm_counters_t *counters;
    xm_status_t fault_status; /**< XM_OK: the pipe works */
    char sentence[XM_PIPE_SENTENCE];
    bool fenced;
    bool stopping;       /**< the sender has closed with messages on their way */
    int64_t next_look;   /**< at the socket */
    int64_t timeout_end; /**< when `stopping` */

    xm_pipe_request_t *requests, *free_requests;
    xm_pipe_request_t *posted, **last_posted; /**< receives with slots that are not taken */
    int unfinished;                           /**< requests with something open */
    uint64_t sent;                            /**< messages */
    uint64_t landed; /**< messages that have arrived as a whole, as far as this end knows */
    uint64_t acked;  /**< of these, said by the receiver */
    uint64_t acks;   /**< acknowledgements sent, or waited for */
    bool ack_flies;
    xm_op_t ack_op;
    uint8_t ack[XM_PIPE_ACK_SIZE];
    xm_pipe_receiver_t *receiver;
    bool kept; /**< in the care of the progress thread (plugins/nccl/pipe/progress_thread.h), whose
                  list is next */
    xm_pipe_t *kept_next;
};

static inline int xm_pipe_other_rank(const xm_pipe_t *pipe)
{
    return pipe->sender ? 1 : 0;
}

/* The tag of a message on the transport. */
static inline uint64_t xm_pipe_tag(uint64_t kind, uint64_t number)
{
    return kind | (number & UINT32_MAX);
}

/* plugins/nccl/pipe/connect.c */

/** Goes on with the handshake; the caller has the lock. */
xm_status_t xm_pipe_shake_hands(xm_pipe_t *pipe);

/* plugins/nccl/pipe/life.c */

/** Makes the pipe of one end, before its handshake. */
xm_status_t xm_pipe_create(bool sender, const char *nics, double timeout, xm_pipe_t **pipe);

/* plugins/nccl/pipe/progress.c */

/** Moves whatever can be moved; the caller has the lock of an open pipe. */
void xm_pipe_progress(xm_pipe_t *pipe);

/** Makes a failure that was noted one of the transport: nothing is in flight afterwards. */
void xm_pipe_settle(xm_pipe_t *pipe);

/** Says this end's last word over the connection. */
void xm_pipe_say_word(const xm_pipe_t *pipe, xm_pipe_word_t word);

/* plugins/nccl/pipe/fault_status.c */

/** Notes that the pipe has failed; the sentence is the thread's last. The first one stays. */
void xm_pipe_mark_failed(xm_pipe_t *pipe, xm_status_t status);

/** The failure that was noted, with its sentence. */
xm_status_t xm_pipe_fault_status(const xm_pipe_t *pipe);

/* plugins/nccl/pipe/message.c */

/** Called when the transport is there: posts the receives that the pipe itself needs. */
xm_status_t xm_pipe_start(xm_pipe_t *pipe);

/** Hands a message and its header to the transport. */
xm_status_t xm_pipe_start_send(xm_pipe_request_t *request, const void *buffer, size_t length,
                               int tag, xm_memory_t *memory);

/** Gives messages that are there to the receives that are. XM_ERR_CORRUPT: one does not fit. */
xm_status_t xm_pipe_take_messages(xm_pipe_t *pipe);

/** Says what has arrived: after so many messages, when nothing is expected, and when it is @p due.
 */
xm_status_t xm_pipe_acknowledge(xm_pipe_t *pipe, bool due);

/** Takes a receive off the list of those that wait for messages. */
void xm_pipe_remove_posted(xm_pipe_t *pipe, const xm_pipe_request_t *request);
