/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file plugins/nccl/pipe/wire.h
 * What the two ends of a pipe (pipe.h) write to each other, byte for byte. Internal.
 *
 * Over the socket, in this order:
 *  - the listener's challenge: its nonce;
 *  - the sender's hello: its nonce, who it is, and the proof that it has the handle;
 *  - the receiver's hello, likewise;
 *  - from both ends a length (u32) and the transport's blob;
 *  - at most one byte more: an ::xm_pipe_word_t. An end without one is a death.
 *
 * Over the transport, each message is announced by a header of fixed size, which carries short ones
 * whole. The receiver says from time to time how many it has (an acknowledgement). Tags: the kind
 * in bits 40 and 41, below it the number of the message, or of the acknowledgement.
 *
 * Integers are little-endian.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/job.h"
#include "plugins/nccl/pipe/pipe.h"

enum {
    XM_PIPE_VERSION = 1,
    XM_PIPE_NAME_SIZE = 64,
    XM_PIPE_ADDRESSES_MAX = 5,
    XM_PIPE_CHALLENGE_SIZE = 8 + XM_JOB_NONCE_SIZE,
    XM_PIPE_HELLO_SIZE = 8 + XM_JOB_NONCE_SIZE + 16 + 4 + XM_PIPE_NAME_SIZE + XM_JOB_PROOF_SIZE,
    XM_PIPE_BLOB_MAX = 1 << 20,
    XM_PIPE_HEADER_SIZE = 256,
    XM_PIPE_INLINE_MAX = XM_PIPE_HEADER_SIZE - 16, /**< bytes that fit into a header */
    XM_PIPE_ACK_SIZE = 8
};

/** What an end says last. */
typedef enum xm_pipe_word {
    XM_PIPE_FIN = 'B',   /**< closes, and owes nothing */
    XM_PIPE_STOP = 'S',  /**< closes with messages in flight */
    XM_PIPE_REFUSE = 'R' /**< gives up: a message was longer than its receive */
} xm_pipe_word_t;

#define XM_PIPE_TAG_HEADER (UINT64_C(1) << 40)
#define XM_PIPE_TAG_DATA   (UINT64_C(2) << 40)
#define XM_PIPE_TAG_ACK    (UINT64_C(3) << 40)

/** What a listener hands out. */
typedef struct xm_pipe_handle {
    uint8_t nonce[XM_JOB_NONCE_SIZE]; /**< who knows it may connect */
    xm_addresses_t addresses;         /**< at most XM_PIPE_ADDRESSES_MAX */
} xm_pipe_handle_t;

/** Writes a handle; the bytes from XM_PIPE_HANDLE_USED on are zero. */
void xm_pipe_pack_handle(const xm_pipe_handle_t *handle, uint8_t bytes[XM_PIPE_HANDLE_SIZE]);

/** XM_ERR_CORRUPT for what is no handle, XM_ERR_MISMATCH for one of another version. */
xm_status_t xm_pipe_read_handle(const uint8_t bytes[XM_PIPE_HANDLE_SIZE], xm_pipe_handle_t *handle);

void xm_pipe_pack_challenge(const uint8_t nonce[XM_JOB_NONCE_SIZE],
                            uint8_t bytes[XM_PIPE_CHALLENGE_SIZE]);
xm_status_t xm_pipe_read_challenge(const uint8_t bytes[XM_PIPE_CHALLENGE_SIZE],
                                   uint8_t nonce[XM_JOB_NONCE_SIZE]);

/** Who is at an end. */
typedef struct xm_pipe_hello {
    uint8_t nonce[XM_JOB_NONCE_SIZE];
    uint64_t host, machine; /**< hashes of their identities (worker.h) */
    uint32_t pid;
    char name[XM_PIPE_NAME_SIZE]; /**< of the host, for people */
} xm_pipe_hello_t;

/** Writes a hello with its proof; @p role is "sender" or "receiver", @p other the other's nonce. */
void xm_pipe_pack_hello(const xm_pipe_hello_t *hello, const xm_job_secret_t *secret,
                        const char *role, const uint8_t other[XM_JOB_NONCE_SIZE],
                        uint8_t bytes[XM_PIPE_HELLO_SIZE]);

/** Reads a hello and checks its proof. */
xm_status_t xm_pipe_read_hello(const uint8_t bytes[XM_PIPE_HELLO_SIZE],
                               const xm_job_secret_t *secret, const char *role,
                               const uint8_t own[XM_JOB_NONCE_SIZE], xm_pipe_hello_t *hello);

/** A message's announcement. */
typedef struct xm_pipe_header {
    uint64_t length;
    int32_t tag;
    uint32_t number;
} xm_pipe_header_t;

/** Writes a header, and behind it @p data if the message is that short. */
void xm_pipe_pack_header(const xm_pipe_header_t *header, const void *data,
                         uint8_t bytes[XM_PIPE_HEADER_SIZE]);

/** Reads one; @p data points at the bytes of a short message behind it, else is NULL. */
void xm_pipe_read_header(const uint8_t bytes[XM_PIPE_HEADER_SIZE], xm_pipe_header_t *header,
                         const uint8_t **data);
