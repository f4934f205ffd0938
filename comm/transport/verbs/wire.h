/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file comm/transport/verbs/wire.h
 * What ranks on verbs say to each other: fixed-width little-endian records. Internal.
 *
 * *Offer*: what a rank has, exchanged through the bootstrap before there is a connection: its
 * ports, and how many receives of which size it keeps posted on each connection.
 *
 * *Header*: the first 32 bytes of every message sent over a connection.
 *
 * | kind | after the header | meaning |
 * |---|---|---|
 * | EAGER | `length` bytes | a short message as a whole |
 * | REQUEST | | a message of `length` bytes waits at the sender, who calls it `sender` |
 * | GRANT | address, a key for each rail | the request `sender` may be written there; the immediate
 * data of the writes is `receiver` |
 * | DISCARD | | nobody wants the message of request `sender` |
 * | CREDIT | | nothing but what every header says |
 * | LOST | | the connection of rail `sender` is closed here, after `receiver` messages and
 * immediates had come over it |
 * | BACK | | rail `sender`, lost by both, has a new queue pair here, number `receiver` |
 * | HERE | | the answer: so it has there |
 *
 * Every header gives back `credits` receives of its connection, and tells how many EAGER messages
 * of the addressee have been taken from the store of unmatched ones (`taken`, a running number).
 *
 * Decoders take any bytes: what they accept encodes to the same bytes again.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/topology.h"

enum {
    XM_VERBS_HEADER_SIZE = 32,
    XM_VERBS_GRANT_SIZE = 8 + 4 * XM_NICS_MAX,
    XM_VERBS_OFFER_HEAD_SIZE = 20,
    XM_VERBS_OFFER_PORT_SIZE = 128,
    XM_VERBS_OFFER_SIZE = XM_VERBS_OFFER_HEAD_SIZE + XM_NICS_MAX * XM_VERBS_OFFER_PORT_SIZE,
    XM_VERBS_GID_SIZE = 16,
    XM_VERBS_MAX_SLOTS = 1024,
    XM_VERBS_MAX_SLOT_SIZE = 1 << 20
};

typedef enum xm_verbs_kind {
    XM_VERBS_EAGER = 1,
    XM_VERBS_REQUEST,
    XM_VERBS_GRANT,
    XM_VERBS_DISCARD,
    XM_VERBS_CREDIT,
    XM_VERBS_LOST,
    XM_VERBS_BACK,
    XM_VERBS_HERE
} xm_verbs_kind_t;

typedef struct xm_verbs_header {
    xm_verbs_kind_t kind;
    uint16_t credits;
    uint32_t taken;
    uint64_t tag;      /**< EAGER, REQUEST */
    uint64_t length;   /**< EAGER, REQUEST, GRANT; at least 1 */
    uint32_t sender;   /**< REQUEST, GRANT, DISCARD, LOST, BACK, HERE */
    uint32_t receiver; /**< GRANT, LOST, BACK, HERE */
} xm_verbs_header_t;

typedef struct xm_verbs_grant {
    uint64_t address;
    int rails; /**< keys that follow, at least 1 */
    uint32_t keys[XM_NICS_MAX];
} xm_verbs_grant_t;

/** Kinds of addresses of an Ethernet port, the better first. */
typedef enum xm_verbs_gid_kind {
    XM_VERBS_GID_IPV4,
    XM_VERBS_GID_IPV6,
    XM_VERBS_GID_LINK_LOCAL,
    XM_VERBS_GID_KINDS
} xm_verbs_gid_kind_t;

typedef struct xm_verbs_port_offer {
    char name[XM_NICS_NAME_SIZE]; /**< for sentences, e.g. "mlx5_0:1" */
    uint64_t rate;                /**< bit/s, 0: unknown */
    uint16_t lid;                 /**< InfiniBand */
    bool infiniband;
    uint8_t mtu;                                        /**< an enum ibv_mtu */
    unsigned gids;                                      /**< bit of each kind it has */
    uint8_t gid[XM_VERBS_GID_KINDS][XM_VERBS_GID_SIZE]; /**< zero where it has none */
} xm_verbs_port_offer_t;

typedef struct xm_verbs_offer {
    int ports;          /**< at least 1 */
    uint32_t slots;     /**< receives posted on each connection */
    uint32_t slot_size; /**< bytes of each */
    uint32_t seed;      /**< of packet sequence numbers */
    xm_verbs_port_offer_t port[XM_NICS_MAX];
} xm_verbs_offer_t;

/** Writes the header, and after it the grant when it is a GRANT; returns the bytes written. */
size_t xm_verbs_header_encode(const xm_verbs_header_t *header, const xm_verbs_grant_t *grant,
                              uint8_t *bytes);

/** Changes what every header says in one that was encoded before. */
void xm_verbs_header_update(uint8_t *bytes, uint16_t credits, uint32_t taken);

/** Whether the @p size bytes are a message; *grant is set when it is a GRANT. */
bool xm_verbs_header_decode(const uint8_t *bytes, size_t size, xm_verbs_header_t *header,
                            xm_verbs_grant_t *grant);

/** Returns the bytes written, at most XM_VERBS_OFFER_SIZE. */
size_t xm_verbs_offer_encode(const xm_verbs_offer_t *offer, uint8_t *bytes);
bool xm_verbs_offer_decode(const uint8_t *bytes, size_t size, xm_verbs_offer_t *offer);
