/* SPDX-License-Identifier: Apache-2.0 */
/* Agreeing with all ranks on the way to each, and connecting. All connections are made at the
 * start, in two allgathers: offers (ports, addresses, slots), then the numbers of the queue
 * pairs. Connecting at the first message would need a second, unreliable channel, since a
 * packet to a queue pair that is not ready is lost; the price is one queue pair for each pair
 * of ranks and rail (docs/transport-verbs.md). Both ends compute rails, address kinds and
 * shares from the same offers, so nothing has to be negotiated. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "comm/transport/verbs/transport_verbs_private.h"

/* A retry count of seven means "for ever" to some devices, so RETRIES is six. RNR_TIMER: 0.64 ms
 * until a packet that found no receive is sent again, which credits make impossible. */
enum { RETRIES = 6, RNR_TIMER = 12, HOP_LIMIT = 64, ACK_TIMEOUT_MAX = 31 };

static const int number_size = 4; /* of a queue pair's number on the wire */

/* How long a packet waits until it is sent again, as queue pairs have it: 4.096 us * 2^result. The
 * last resending ends within the time of the setting; devices may take up to four times as long. */
static uint8_t ack_timeout(void)
{
    double limit = xm_config_seconds(XM_CONFIG_RDMA_TIMEOUT) / (RETRIES + 1);
    uint8_t exponent = 1;

    while (exponent < ACK_TIMEOUT_MAX && 4.096e-6 * (double)(UINT64_C(2) << exponent) <= limit) {
        ++exponent;
    }
    return exponent;
}

/* Chooses the best kind of address that both ends of a rail have, in the order of the enum. By
 * kind rather than by index: GID tables differ from host to host and change when addresses do. */
static xm_status_t agree_on_rail(const xm_verbs_transport_t *self, xm_verbs_peer_t *peer,
                                 const xm_verbs_offer_t *theirs, int rail)
{
    const xm_verbs_port_offer_t *here = &self->offer.port[rail], *there = &theirs->port[rail];
    unsigned common = here->gids & there->gids;

    if (here->infiniband != there->infiniband || (!here->infiniband && common == 0)) {
        return xm_error_set(XM_ERR_UNREACHABLE, "rank %d: %s cannot talk to %s of rank %d: %s",
                            self->base.base.rank, here->name, there->name, peer->base.rank,
                            here->infiniband != there->infiniband
                                ? "one is InfiniBand, the other is Ethernet"
                                : "they have no kind of RoCE address in common");
    }
    /* The address kind is the first one, in the order of preference, that both have. */
    peer->gid_kind[rail] = XM_VERBS_GID_IPV4;
    while (!here->infiniband && (common & 1u << peer->gid_kind[rail]) == 0) {
        ++peer->gid_kind[rail];
    }
    return XM_OK;
}

/* Learns from a peer's offer how messages go there: the rails, their shares, and what slots the
 * peer keeps. */
static xm_status_t agree(xm_verbs_transport_t *self, xm_verbs_peer_t *peer,
                         const xm_verbs_offer_t *theirs)
{
    uint64_t our_rates[XM_NICS_MAX], their_rates[XM_NICS_MAX];
    int rails = theirs->ports < self->port_count ? theirs->ports : self->port_count;

    for (int rail = 0; rail < rails; ++rail) {
        our_rates[rail] = self->offer.port[rail].rate;
        their_rates[rail] = theirs->port[rail].rate;
    }
    /* The same function with the same numbers at both ends: shares agree without being
     * exchanged. */
    xm_stripe_make(&peer->base.stripe, our_rates, their_rates, rails);
    peer->slots = theirs->slots;
    peer->slot_size = theirs->slot_size;
    for (int rail = 0; rail < rails && peer->base.rank != self->base.base.rank; ++rail) {
        memcpy(peer->there[rail], theirs->port[rail].name, sizeof(peer->there[rail]));
        XM_TRY(agree_on_rail(self, peer, theirs, rail));
    }
    return XM_OK;
}

/* First allgather. Every rank decodes all offers, so ranks that do not fit together find out at
 * the same time and with the same sentence. */
static xm_status_t exchange_offers(xm_verbs_transport_t *self, xm_bootstrap_t *bootstrap,
                                   double timeout)
{
    xm_verbs_offer_t *offers = self->offers;
    uint8_t bytes[XM_VERBS_OFFER_SIZE];
    size_t length = xm_verbs_offer_encode(&self->offer, bytes), *offsets = NULL;
    void *gathered = NULL;
    /* The offers of all ranks, this one's own among them; decoding one's own is a cheap check
     * of the encoder. */
    xm_status_t status =
        xm_bootstrap_allgatherv(bootstrap, bytes, length, &gathered, &offsets, timeout);

    for (int rank = 0; status == XM_OK && rank < self->base.base.size; ++rank) {
        if (!xm_verbs_offer_decode((const uint8_t *)gathered + offsets[rank],
                                   offsets[rank + 1] - offsets[rank], &offers[rank])) {
            status = xm_error_set(XM_ERR_CORRUPT, "rank %d: rank %d sent no list of its RDMA ports",
                                  self->base.base.rank, rank);
        } else {
            status = agree(self, &self->peers[rank], &offers[rank]);
        }
    }
    free(gathered);
    free(offsets);
    return status;
}

/* Makes the queue pair with as much inline data as the device grants: devices differ in that,
 * and refuse a request that asks for too much instead of granting less. */
static void make_queue_pair(xm_verbs_transport_t *self, xm_verbs_lane_t *lane)
{
    static const uint32_t wishes[] = {XM_VERBS_INLINE_MAX, 128, 64, 0};
    const xm_verbs_port_t *port = xm_verbs_port_of(lane);

    /* A device that refuses the larger wish may grant a smaller one; 0 is always granted, so
     * only a real failure leaves the loop without a queue pair. */
    for (size_t i = 0; i < sizeof(wishes) / sizeof(wishes[0]) && lane->qp == NULL; ++i) {
        struct ibv_qp_init_attr attr = {.qp_context = lane,
                                        .send_cq = port->cq,
                                        .recv_cq = port->cq,
                                        .cap = {.max_send_wr = XM_VERBS_QUEUE,
                                                .max_recv_wr = self->offer.slots,
                                                .max_send_sge = 1,
                                                .max_recv_sge = 1,
                                                .max_inline_data = wishes[i]},
                                        .qp_type = IBV_QPT_RC};

        lane->qp = ibv_create_qp(port->pd, &attr);
        lane->max_inline = attr.cap.max_inline_data < XM_VERBS_INLINE_MAX ? attr.cap.max_inline_data
                                                                          : XM_VERBS_INLINE_MAX;
    }
}

/* Makes a lane's queue pair and posts its receives. That is possible before the peer is known,
 * and it has to be: when the peer connects, it may send at once. */
xm_status_t xm_verbs_lane_open(xm_verbs_transport_t *self, xm_verbs_lane_t *lane)
{
    const xm_verbs_port_t *port = xm_verbs_port_of(lane);
    int place = lane->peer->base.rank - (lane->peer->base.rank > self->base.base.rank);
    struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT,
                               .port_num = port->number,
                               .qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE};
    int error;

    make_queue_pair(self, lane);
    if (lane->qp == NULL) {
        return xm_error_set(
            XM_ERR_NO_MEMORY, "rank %d: %s cannot make a queue pair for rank %d: %s",
            self->base.base.rank, port->offer.name, lane->peer->base.rank, strerror(errno));
    }
    /* The peer has posted all its slots when it tells its numbers, so all credits are there. */
    lane->room = XM_VERBS_QUEUE;
    lane->owed = lane->posted = 0;
    lane->beating = false;
    lane->credits = (int)lane->peer->slots;
    lane->slots = port->ring + (size_t)place * self->offer.slots * self->offer.slot_size;
    /* In this state the queue pair takes receives but no packets. */
    error = ibv_modify_qp(lane->qp, &init,
                          IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    if (error != 0) {
        return xm_error_set(XM_ERR_INTERNAL, "rank %d: %s: a new queue pair is refused: %s",
                            self->base.base.rank, port->offer.name, strerror(error));
    }
    return xm_verbs_lane_fill(lane);
}

/* The first packet number of a connection. It differs from job to job, so that late packets of
 * an earlier queue pair with the same number are not taken for new ones. Both ends compute it
 * from the sender's seed. */
static uint32_t first_packet(uint32_t seed, int from, int to, int rail)
{
    uint64_t mixed =
        ((uint64_t)seed << 24) ^ ((uint64_t)from << 28) ^ ((uint64_t)to << 8) ^ (uint64_t)rail;

    return (uint32_t)(xm_hash_spread(mixed) >> 40);
}

const char *xm_verbs_format_address(const xm_verbs_port_offer_t *port, xm_verbs_gid_kind_t kind,
                                    char *text, size_t size)
{
    /* InfiniBand has no address in the sense of IP; on Ethernet the GID holds one. */
    if (port->infiniband) {
        (void)snprintf(text, size, "LID %u", port->lid);
    } else if (kind == XM_VERBS_GID_IPV4) {
        (void)inet_ntop(AF_INET, port->gid[kind] + 12, text, (socklen_t)size);
    } else {
        (void)inet_ntop(AF_INET6, port->gid[kind], text, (socklen_t)size);
    }
    return text;
}

/* Moves the queue pair to "ready to receive" and "ready to send". Each transition needs exactly
 * its set of attributes; an address that does not work is usually found here, so the sentence
 * has it. */
xm_status_t xm_verbs_lane_connect(xm_verbs_transport_t *self, xm_verbs_lane_t *lane,
                                  uint32_t number)
{
    const xm_verbs_offer_t *theirs = &self->offers[lane->peer->base.rank];
    const xm_verbs_port_t *port = xm_verbs_port_of(lane);
    const xm_verbs_port_offer_t *there = &theirs->port[lane->rail];
    xm_verbs_gid_kind_t kind = lane->peer->gid_kind[lane->rail];
    int us = self->base.base.rank, them = lane->peer->base.rank;
    /* "Ready to receive": from here on the device takes packets of the peer's queue pair, with
     * this packet number first. */
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR,
                               .path_mtu =
                                   port->offer.mtu < there->mtu ? port->offer.mtu : there->mtu,
                               .dest_qp_num = number,
                               .rq_psn = first_packet(theirs->seed, them, us, lane->rail),
                               .max_dest_rd_atomic = 1,
                               .min_rnr_timer = RNR_TIMER,
                               .ah_attr = {.dlid = there->lid, .port_num = port->number}};
    char address[INET6_ADDRSTRLEN];
    int error;

    /* Ethernet has no LIDs: a packet needs a global header with addresses of both ends, the own
     * one by its index in this port's table. */
    if (!port->offer.infiniband) {
        attr.ah_attr.is_global = 1;
        attr.ah_attr.grh.sgid_index = (uint8_t)port->gid_index[kind];
        attr.ah_attr.grh.hop_limit = HOP_LIMIT;
        memcpy(attr.ah_attr.grh.dgid.raw, there->gid[kind], XM_VERBS_GID_SIZE);
    }
    error = ibv_modify_qp(lane->qp, &attr,
                          IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                              IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    /* "Ready to send" needs the own packet number and the times after which the connection
     * gives up. */
    if (error == 0) {
        attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
                                    .sq_psn = first_packet(self->offer.seed, us, them, lane->rail),
                                    .timeout = ack_timeout(),
                                    .retry_cnt = RETRIES,
                                    .rnr_retry = RETRIES,
                                    .max_rd_atomic = 1};
        error = ibv_modify_qp(lane->qp, &attr,
                              IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                  IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
    }
    return error == 0 ? XM_OK
                      : xm_error_set(XM_ERR_UNREACHABLE,
                                     "rank %d: %s cannot be connected to %s of rank %d (%s): %s",
                                     us, port->offer.name, there->name, them,
                                     xm_verbs_format_address(there, kind, address, sizeof(address)),
                                     strerror(error));
}

/* Second allgather: tells every rank the number of the queue pair for it, rail by rail, and
 * connects. A rank's list has an entry for each rank and port, also for lanes that do not
 * exist, so that a peer finds its own by position. */
static xm_status_t connect_lanes(xm_verbs_transport_t *self, xm_bootstrap_t *bootstrap,
                                 double timeout)
{
    const xm_verbs_offer_t *offers = self->offers;
    int size = self->base.base.size, rank = self->base.base.rank;
    size_t length = (size_t)size * (size_t)self->port_count * (size_t)number_size, *offsets = NULL;
    /* Zero stands for a lane that does not exist. */
    uint8_t *numbers = calloc(1, length);
    void *gathered = NULL;
    xm_status_t status = XM_OK;

    if (numbers == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "rank %d: no memory for %zu bytes of numbers", rank,
                            length);
    }
    for (int peer = 0; peer < size; ++peer) {
        for (int rail = 0; rail < self->port_count; ++rail) {
            const struct ibv_qp *qp = self->peers[peer].lanes[rail].qp;

            xm_put_le(numbers + (peer * self->port_count + rail) * number_size,
                      qp != NULL ? qp->qp_num : 0, number_size);
        }
    }
    status = xm_bootstrap_allgatherv(bootstrap, numbers, length, &gathered, &offsets, timeout);
    for (int peer = 0; status == XM_OK && peer < size; ++peer) {
        const uint8_t *theirs = (const uint8_t *)gathered + offsets[peer] +
                                (size_t)rank * (size_t)offers[peer].ports * (size_t)number_size;

        /* The list's length follows from the offer, so anything else is a rank of another build. */
        if (offsets[peer + 1] - offsets[peer] !=
            (size_t)size * (size_t)offers[peer].ports * (size_t)number_size) {
            status = xm_error_set(XM_ERR_CORRUPT, "rank %d: rank %d sent no list of queue pairs",
                                  rank, peer);
        }
        /* A lane exists at both ends or at neither, because both have computed the same stripe. */
        for (int rail = 0; rail < self->port_count && status == XM_OK; ++rail) {
            xm_verbs_lane_t *lane = &self->peers[peer].lanes[rail];

            if (lane->qp != NULL) {
                status = xm_verbs_lane_connect(
                    self, lane, (uint32_t)xm_get_le(theirs + rail * number_size, number_size));
            }
        }
    }
    free(numbers);
    free(gathered);
    free(offsets);
    return status;
}

/* All connections are there. A short message is one that fits into a slot of the peer. */
static xm_status_t make_rails(xm_verbs_peer_t *peer)
{
    xm_status_t status =
        xm_rails_open(&peer->base, XM_RAILS_PUT, peer->slot_size - XM_RAILS_FRAME_SIZE + 1);

    for (int rail = 0; rail < peer->base.stripe.rails && status == XM_OK; ++rail) {
        peer->base.rails->lanes[rail].joined = peer->lanes[rail].qp != NULL;
    }
    peer->base.connected = status == XM_OK;
    return status;
}

/* Collective. Each step is needed by the next: slots can be sized only when all offers are
 * known, queue pairs need the ports' completion queues, and connecting needs their numbers. */
xm_status_t xm_verbs_connect(xm_verbs_transport_t *self, xm_bootstrap_t *bootstrap, double timeout)
{
    size_t send_size = 0;
    xm_status_t status;

    self->offers = calloc((size_t)self->base.base.size, sizeof(*self->offers));
    if (self->offers == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "rank %d: no memory for the ports of %d ranks",
                            self->base.base.rank, self->base.base.size);
    }
    status = exchange_offers(self, bootstrap, timeout);
    /* Send slots have to hold what the peer with the largest slots takes. */
    for (int peer = 0; peer < self->base.base.size && status == XM_OK; ++peer) {
        if (self->offers[peer].slot_size > send_size) {
            send_size = self->offers[peer].slot_size;
        }
    }
    for (int i = 0; i < self->port_count && status == XM_OK; ++i) {
        status = xm_verbs_equip_port(self, &self->ports[i], send_size);
    }
    /* Lanes are made for the rails that carry something: a queue pair costs memory of the
     * device. */
    for (int i = 0; i < self->base.base.size * XM_NICS_MAX && status == XM_OK; ++i) {
        xm_verbs_peer_t *peer = &self->peers[i / XM_NICS_MAX];
        int rail = i % XM_NICS_MAX;

        if (peer->base.rank != self->base.base.rank && rail < peer->base.stripe.rails &&
            xm_stripe_uses(&peer->base.stripe, rail)) {
            status = xm_verbs_lane_open(self, &peer->lanes[rail]);
        }
    }
    XM_THEN(status, connect_lanes(self, bootstrap, timeout));
    for (int rank = 0; rank < self->base.base.size && status == XM_OK; ++rank) {
        status = rank != self->base.base.rank ? make_rails(&self->peers[rank]) : XM_OK;
    }
    /* No rank sends before every rank can receive: a queue pair that is not ready drops packets. */
    return status == XM_OK ? xm_bootstrap_barrier(bootstrap, timeout) : status;
}
