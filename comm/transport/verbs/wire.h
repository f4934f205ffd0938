/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file comm/transport/verbs/wire.h
 * What ranks on verbs say to each other: fixed-width little-endian records. Internal.
 *
 * *Offer*: what a rank has, exchanged through the bootstrap before there is a connection: its
 * ports, and how many receives of which size it keeps posted on each connection.
 *
 * Decoders take any bytes: what they accept encodes to the same bytes again.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/topology.h"

enum {
    XM_VERBS_OFFER_HEAD_SIZE = 20,
    XM_VERBS_OFFER_PORT_SIZE = 128,
    XM_VERBS_OFFER_SIZE = XM_VERBS_OFFER_HEAD_SIZE + XM_NICS_MAX * XM_VERBS_OFFER_PORT_SIZE,
    XM_VERBS_GID_SIZE = 16,
    XM_VERBS_MAX_SLOTS = 1024,
    XM_VERBS_MAX_SLOT_SIZE = 1 << 20
};

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

/** Returns the bytes written, at most XM_VERBS_OFFER_SIZE. */
size_t xm_verbs_offer_encode(const xm_verbs_offer_t *offer, uint8_t *bytes);
bool xm_verbs_offer_decode(const uint8_t *bytes, size_t size, xm_verbs_offer_t *offer);
