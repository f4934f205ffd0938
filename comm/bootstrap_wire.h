/**
 * @file bootstrap_wire.h
 * The frames of the TCP bootstrap, as bytes. Internal.
 *
 * A frame is a header of 16 bytes and a payload of `length` bytes, all integers little-endian:
 * @code
 *     offset 0  u32 magic "XMB1"      offset 8   u32 sequence (number of the allgather, else 0)
 *     offset 4  u16 version (1)       offset 12  u32 length of the payload
 *     offset 6  u16 type
 * @endcode
 * HELLO and WELCOME carry an identity, REFUSAL, ABORT and FAULT a fault, GATHER one rank's block
 * and GATHERED the blocks of all ranks; GOODBYE is empty. Decoders check everything they read
 * (magic, version, type, the length that the type allows, text without control characters), because
 * anybody can connect to an open port.
 */
#ifndef XM_COMM_BOOTSTRAP_WIRE_H
#define XM_COMM_BOOTSTRAP_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include "comm/status.h"

enum {
    XM_BOOTSTRAP_HEADER_SIZE = 16,
    XM_BOOTSTRAP_HOST_SIZE = 256,      /**< with the terminator */
    XM_BOOTSTRAP_SENTENCE_SIZE = 1024, /**< with the terminator */
    XM_BOOTSTRAP_IDENTITY_SIZE = 12 + 2 + XM_BOOTSTRAP_HOST_SIZE - 1,
    XM_BOOTSTRAP_FAULT_SIZE = 8 + 2 + XM_BOOTSTRAP_SENTENCE_SIZE - 1,
    XM_BOOTSTRAP_MAX_RANKS = 1 << 20,
    XM_BOOTSTRAP_MAX_GATHER = 1 << 28 /**< bytes in one payload */
};

typedef enum xm_bootstrap_type {
    XM_BOOTSTRAP_HELLO = 1, /**< rank → 0: who I am */
    XM_BOOTSTRAP_WELCOME,   /**< 0 → rank: everybody is here; who rank 0 is */
    XM_BOOTSTRAP_REFUSAL,   /**< 0 → rank: the rendezvous failed */
    XM_BOOTSTRAP_GATHER,    /**< rank → 0: my block */
    XM_BOOTSTRAP_GATHERED,  /**< 0 → rank: all blocks */
    XM_BOOTSTRAP_GOODBYE,   /**< both: leaving in order */
    XM_BOOTSTRAP_ABORT,     /**< rank → 0: I give up, or another one is gone */
    XM_BOOTSTRAP_FAULT      /**< 0 → rank: a rank is gone */
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

typedef struct xm_bootstrap_fault {
    int rank;           /**< the rank that is gone, -1 when it is nobody in particular */
    xm_status_t status; /**< a failure */
    char sentence[XM_BOOTSTRAP_SENTENCE_SIZE];
} xm_bootstrap_fault_t;

void xm_bootstrap_header_encode(const xm_bootstrap_header_t *header,
                                uint8_t bytes[XM_BOOTSTRAP_HEADER_SIZE]);

/** XM_ERR_CORRUPT when the bytes are not a header, or its length is not one its type may have;
 *  XM_ERR_MISMATCH when they are one of another version. */
xm_status_t xm_bootstrap_header_decode(const uint8_t bytes[XM_BOOTSTRAP_HEADER_SIZE],
                                       xm_bootstrap_header_t *header);

/** Returns the number of bytes written. Control characters of the host become '?'. */
size_t xm_bootstrap_identity_encode(const xm_bootstrap_identity_t *identity,
                                    uint8_t bytes[XM_BOOTSTRAP_IDENTITY_SIZE]);
xm_status_t xm_bootstrap_identity_decode(const uint8_t *bytes, size_t length,
                                         xm_bootstrap_identity_t *identity);

/** Returns the number of bytes written. Control characters of the sentence become '?'. */
size_t xm_bootstrap_fault_encode(const xm_bootstrap_fault_t *fault,
                                 uint8_t bytes[XM_BOOTSTRAP_FAULT_SIZE]);
xm_status_t xm_bootstrap_fault_decode(const uint8_t *bytes, size_t length,
                                      xm_bootstrap_fault_t *fault);

#endif
