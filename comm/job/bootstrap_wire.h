/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file bootstrap_wire.h
 * The frames of the TCP bootstrap, as bytes. Internal.
 *
 * A frame is a header of 16 bytes and a payload of `length` bytes, all integers little-endian:
 * @code
 *     offset 0  u32 magic "XMB1"      offset 8   u32 sequence (number of the allgather, else 0)
 *     offset 4  u16 XM_WIRE_VERSION   offset 12  u32 length of the payload
 *     offset 6  u16 type
 * @endcode
 * Rank 0 speaks first, with a CHALLENGE; HELLO and WELCOME answer it with an identity and a proof
 * of knowing the job's secret (job_secret.h). REFUSAL, ABORT and FAULT carry a fault, GATHER one
 * rank's block and GATHERED the blocks of all ranks, GATHERV and GATHEREDV the same with blocks of
 * differing lengths; NOTE is a meeting's; GOODBYE and
 * ALIVE are empty. A card is no frame: it tells where rank
 * 0 listens, and travels through the allgather of a launcher or a caller. Decoders check everything
 * they read (magic, version, type, the length that the type allows, text without control
 * characters), because anybody can connect to an open port.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "comm/job/job_secret.h"
#include "comm/base.h"

/** Of all that the ranks of a job say to each other: frames, cards, proofs, the transports'
 * headers. Whoever changes a byte of it raises this; ranks with different ones do not understand
 * each other and say so at the start. */
enum { XM_WIRE_VERSION = 4 };

enum {
    XM_BOOTSTRAP_HEADER_SIZE = 16,
    XM_BOOTSTRAP_HOST_SIZE = 256,      /**< with the terminator */
    XM_BOOTSTRAP_SENTENCE_SIZE = 1024, /**< with the terminator */
    XM_BOOTSTRAP_IDENTITY_SIZE = 12 + 2 + XM_BOOTSTRAP_HOST_SIZE - 1,
    XM_BOOTSTRAP_CHALLENGE_SIZE = 4 + XM_JOB_NONCE_SIZE,
    XM_BOOTSTRAP_HELLO_SIZE = XM_JOB_NONCE_SIZE + XM_JOB_PROOF_SIZE + XM_BOOTSTRAP_IDENTITY_SIZE,
    XM_BOOTSTRAP_WELCOME_SIZE = XM_JOB_PROOF_SIZE + XM_BOOTSTRAP_IDENTITY_SIZE,
    XM_BOOTSTRAP_FAULT_SIZE = 8 + 2 + XM_BOOTSTRAP_SENTENCE_SIZE - 1,
    XM_BOOTSTRAP_MAX_RANKS = 1 << 20,
    XM_BOOTSTRAP_MAX_GATHER = 1 << 28, /**< bytes in one payload */
    XM_BOOTSTRAP_CARD_SECRET = 16,
    XM_BOOTSTRAP_CARD_ADDRESSES = 8,
    XM_BOOTSTRAP_CARD_SIZE = 4 + XM_BOOTSTRAP_CARD_SECRET + 16 * XM_BOOTSTRAP_CARD_ADDRESSES
};

typedef enum xm_bootstrap_type {
    XM_BOOTSTRAP_HELLO = 1, /**< rank → 0: who I am */
    XM_BOOTSTRAP_WELCOME,   /**< 0 → rank: everybody is here; who rank 0 is */
    XM_BOOTSTRAP_REFUSAL,   /**< 0 → rank: the rendezvous failed */
    XM_BOOTSTRAP_GATHER,    /**< rank → 0: my block */
    XM_BOOTSTRAP_GATHERED,  /**< 0 → rank: all blocks */
    XM_BOOTSTRAP_GOODBYE,   /**< both: leaving in order */
    XM_BOOTSTRAP_ABORT,     /**< rank → 0: I give up, or another one is gone */
    XM_BOOTSTRAP_FAULT,     /**< 0 → rank: a rank is gone */
    XM_BOOTSTRAP_CHALLENGE, /**< 0 → who has connected: prove that you belong here */
    XM_BOOTSTRAP_GATHERV,   /**< rank → 0: my block, of whatever length */
    XM_BOOTSTRAP_GATHEREDV, /**< 0 → rank: the lengths of all blocks, and all blocks */
    XM_BOOTSTRAP_NOTE,      /**< both, at a meeting (comm/meeting/note.h) */
    XM_BOOTSTRAP_ALIVE      /**< both, see xm_bootstrap_attend() */
} xm_bootstrap_type_t;

typedef struct xm_bootstrap_header {
    xm_bootstrap_type_t type;
    uint32_t sequence;
    uint32_t length;
} xm_bootstrap_header_t;

typedef struct xm_bootstrap_identity {
    int rank;
    int size; /**< number of ranks the sender was told */
    int pid;
    char host[XM_BOOTSTRAP_HOST_SIZE];
} xm_bootstrap_identity_t;

typedef struct xm_bootstrap_challenge {
    bool secret; /**< the job has one */
    uint8_t nonce[XM_JOB_NONCE_SIZE];
} xm_bootstrap_challenge_t;

typedef struct xm_bootstrap_hello {
    uint8_t nonce[XM_JOB_NONCE_SIZE];
    uint8_t proof[XM_JOB_PROOF_SIZE]; /**< over the identity's bytes */
    xm_bootstrap_identity_t identity;
} xm_bootstrap_hello_t;

typedef struct xm_bootstrap_welcome {
    uint8_t proof[XM_JOB_PROOF_SIZE];
    xm_bootstrap_identity_t identity;
} xm_bootstrap_welcome_t;

/** Where rank 0 listens, for the other ranks. */
typedef struct xm_bootstrap_card {
    int port; /**< 0: it cannot listen */
    uint8_t secret[XM_BOOTSTRAP_CARD_SECRET];
    int count;
    uint8_t addresses[XM_BOOTSTRAP_CARD_ADDRESSES][16]; /**< IPv6, or IPv4 mapped into it */
} xm_bootstrap_card_t;

typedef struct xm_bootstrap_fault {
    int rank;           /**< the rank that is gone, -1 when it is nobody in particular */
    xm_status_t status; /**< a failure */
    char sentence[XM_BOOTSTRAP_SENTENCE_SIZE];
} xm_bootstrap_fault_t;

void xm_bootstrap_header_encode(const xm_bootstrap_header_t *header,
                                uint8_t bytes[XM_BOOTSTRAP_HEADER_SIZE]);

/** XM_ERR_CORRUPT when the bytes are not a header, or its length is not one its type may have;
 * XM_ERR_UNSUPPORTED when they are one of another version. */
xm_status_t xm_bootstrap_header_decode(const uint8_t bytes[XM_BOOTSTRAP_HEADER_SIZE],
                                       xm_bootstrap_header_t *header);

/** Returns the number of bytes written. Control characters of the host become '?'. */
size_t xm_bootstrap_identity_encode(const xm_bootstrap_identity_t *identity,
                                    uint8_t bytes[XM_BOOTSTRAP_IDENTITY_SIZE]);
xm_status_t xm_bootstrap_identity_decode(const uint8_t *bytes, size_t length,
                                         xm_bootstrap_identity_t *identity);

void xm_bootstrap_challenge_encode(const xm_bootstrap_challenge_t *challenge,
                                   uint8_t bytes[XM_BOOTSTRAP_CHALLENGE_SIZE]);
xm_status_t xm_bootstrap_challenge_decode(const uint8_t *bytes, size_t length,
                                          xm_bootstrap_challenge_t *challenge);

/** Returns the number of bytes written. */
size_t xm_bootstrap_hello_encode(const xm_bootstrap_hello_t *hello,
                                 uint8_t bytes[XM_BOOTSTRAP_HELLO_SIZE]);
xm_status_t xm_bootstrap_hello_decode(const uint8_t *bytes, size_t length,
                                      xm_bootstrap_hello_t *hello);

/** Returns the number of bytes written. */
size_t xm_bootstrap_welcome_encode(const xm_bootstrap_welcome_t *welcome,
                                   uint8_t bytes[XM_BOOTSTRAP_WELCOME_SIZE]);
xm_status_t xm_bootstrap_welcome_decode(const uint8_t *bytes, size_t length,
                                        xm_bootstrap_welcome_t *welcome);

void xm_bootstrap_card_encode(const xm_bootstrap_card_t *card,
                              uint8_t bytes[XM_BOOTSTRAP_CARD_SIZE]);
xm_status_t xm_bootstrap_card_decode(const uint8_t bytes[XM_BOOTSTRAP_CARD_SIZE],
                                     xm_bootstrap_card_t *card);

/** The lengths at the beginning of a GATHEREDV: 4 bytes for each of @p size ranks. */
void xm_bootstrap_length_encode(uint32_t length, uint8_t bytes[4]);
/** Fills @p offsets (size + 1, from 0) from a payload of @p length bytes; the blocks must fill what
 * follows the lengths exactly. */
xm_status_t xm_bootstrap_lengths_decode(const uint8_t *bytes, size_t length, int size,
                                        size_t *offsets);

/** Returns the number of bytes written. Control characters of the sentence become '?'. */
size_t xm_bootstrap_fault_encode(const xm_bootstrap_fault_t *fault,
                                 uint8_t bytes[XM_BOOTSTRAP_FAULT_SIZE]);
xm_status_t xm_bootstrap_fault_decode(const uint8_t *bytes, size_t length,
                                      xm_bootstrap_fault_t *fault);
