/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file comm/transport/verbs/device.h
 * The ports of RDMA devices that a rank uses: which, with which addresses, and opening them.
 * Internal.
 *
 * With a list (XM_NICS) the ports it names, in its order; each must be usable. Without one every
 * usable port, ordered by name, at most XM_NICS_MAX. Usable is a port that is active and has an
 * address: on InfiniBand a LID, on Ethernet a GID of RoCE version 2. GIDs are taken by what they
 * are, never by a fixed index: for each kind the first one, but an IPv4 address that no router or
 * switch forwards (127.x.x.x, 169.254.x.x) only when there is no other. Two ranks then use the best
 * kind that both have.
 */
#pragma once

#include <infiniband/verbs.h>

#include "comm/transport.h"
#include "comm/transport/verbs/wire.h"

typedef struct xm_verbs_port {
    xm_verbs_port_offer_t offer;       /**< what others are told of it */
    int gid_index[XM_VERBS_GID_KINDS]; /**< -1: none */
    uint8_t number;                    /**< of the port on its device */
    uint32_t max_message;              /**< bytes of one RDMA WRITE */
    int max_cqe;                       /**< entries of a completion queue */
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    bool armed;                  /**< the next completion makes the channel readable, or has */
    bool down;                   /**< an event said so */
    xm_nic_counters_t *counters; /**< NULL: not counted */

    uint8_t *ring; /**< receive slots of all connections */
    size_t ring_size;
    struct ibv_mr *ring_mr;
    uint8_t *sends; /**< send slots, shared by all connections */
    size_t send_size;
    struct ibv_mr *sends_mr;
    int *free_sends; /**< stack of the numbers of slots that are not in use */
    int free_send_count;
} xm_verbs_port_t;

/** Chooses from a port's GID table: index of the entry for each kind, -1 where there is none. */
void xm_verbs_choose_gids(const struct ibv_gid_entry *entries, int count,
                          int chosen[XM_VERBS_GID_KINDS]);

/**
 * Whether port @p number of a device is in a list of NICs.
 */
bool xm_verbs_names_port(const xm_nics_t *list, const char *device, int number);

/**
 * Opens the ports that @p nics (as in XM_NICS; NULL or empty: all; ^…: all but these) means. Fails
 * with a sentence about @p rank that says what there is instead. What was opened stays open, see
 * xm_verbs_ports_close().
 */
xm_status_t xm_verbs_ports_open(const char *nics, int rank, xm_verbs_port_t ports[XM_NICS_MAX],
                                int *count);

void xm_verbs_ports_close(xm_verbs_port_t *ports, int count);
