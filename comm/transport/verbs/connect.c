/* The verbs transport: agreeing with all ranks on the way to each, and connecting. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "comm/transport/verbs/transport_verbs_private.h"

/*
 * ACK_TIMEOUT: 4.096 us * 2^15 = 0.13 s until a packet is sent again, RETRIES times; devices may
 * take up to four times as long. Seven would mean for ever on some of them. RNR_TIMER: 0.64 ms
 * until a packet that found no receive is sent again; that cannot be, because of the credits.
 */
enum { ACK_TIMEOUT = 15, RETRIES = 6, RNR_TIMER = 12, HOP_LIMIT = 64 };

static const int number_size = 4; /* of a queue pair's number on the wire */

/* The best kind of address that both ends of a rail have. */
static xm_status_t agree_on_rail(const xm_verbs_transport_t *self, xm_verbs_peer_t *peer,
                                 const xm_verbs_offer_t *theirs, int rail)
{
    const xm_verbs_port_offer_t *here = &self->offer.port[rail], *there = &theirs->port[rail];
    unsigned common = here->gids & there->gids;

    if (here->infiniband != there->infiniband || (!here->infiniband && common == 0)) {
        return xm_error_set(XM_ERR_UNREACHABLE, "rank %d: %s cannot talk to %s of rank %d: %s",
                            self->base.rank, here->name, there->name, peer->rank,
                            here->infiniband != there->infiniband
                                ? "one is InfiniBand, the other is Ethernet"
                                : "they have no kind of RoCE address in common");
    }
    peer->gid_kind[rail] = XM_VERBS_GID_IPV4;
    while (!here->infiniband && (common & 1u << peer->gid_kind[rail]) == 0) {
        ++peer->gid_kind[rail];
    }
    return XM_OK;
}

/* Learns from a peer's offer how messages go there. */
static xm_status_t agree(xm_verbs_transport_t *self, xm_verbs_peer_t *peer,
                         const xm_verbs_offer_t *theirs)
{
    uint64_t our_rates[XM_NICS_MAX], their_rates[XM_NICS_MAX];
    int rails = theirs->ports < self->port_count ? theirs->ports : self->port_count;

    for (int rail = 0; rail < rails; ++rail) {
        our_rates[rail] = self->offer.port[rail].rate;
        their_rates[rail] = theirs->port[rail].rate;
    }
    xm_stripe_make(&peer->stripe, our_rates, their_rates, rails);
    peer->slots = theirs->slots;
    peer->slot_size = theirs->slot_size;
    for (int rail = 0; rail < rails && peer->rank != self->base.rank; ++rail) {
        xm_status_t status;

        memcpy(peer->there[rail], theirs->port[rail].name, sizeof(peer->there[rail]));
        status = agree_on_rail(self, peer, theirs, rail);

        if (status < 0) {
            return status;
        }
    }
    return XM_OK;
}

static xm_status_t exchange_offers(xm_verbs_transport_t *self, xm_bootstrap_t *bootstrap,
                                   double timeout, xm_verbs_offer_t *offers)
{
    uint8_t bytes[XM_VERBS_OFFER_SIZE];
    size_t length = xm_verbs_offer_encode(&self->offer, bytes), *offsets = NULL;
    void *gathered = NULL;
    xm_status_t status =
        xm_bootstrap_allgatherv(bootstrap, bytes, length, &gathered, &offsets, timeout);

    for (int rank = 0; status == XM_OK && rank < self->base.size; ++rank) {
        if (!xm_verbs_offer_decode((const uint8_t *)gathered + offsets[rank],
                                   offsets[rank + 1] - offsets[rank], &offers[rank])) {
            status = xm_error_set(XM_ERR_CORRUPT, "rank %d: rank %d sent no list of its RDMA ports",
                                  self->base.rank, rank);
        } else {
            status = agree(self, &self->peers[rank], &offers[rank]);
        }
    }
    free(gathered);
    free(offsets);
    return status;
}

/* Devices differ in how much they put into a request itself. */
static void make_queue_pair(xm_verbs_transport_t *self, xm_verbs_lane_t *lane)
{
    static const uint32_t wishes[] = {XM_VERBS_INLINE_MAX, 128, 64, 0};
    const xm_verbs_port_t *port = xm_verbs_port_of(lane);

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

/* Makes a lane's queue pair and posts its receives. */
static xm_status_t open_lane(xm_verbs_transport_t *self, xm_verbs_lane_t *lane)
{
    const xm_verbs_port_t *port = xm_verbs_port_of(lane);
    int place = lane->peer->rank - (lane->peer->rank > self->base.rank);
    struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT,
                               .port_num = port->number,
                               .qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE};
    int error;

    make_queue_pair(self, lane);
    if (lane->qp == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY,
                            "rank %d: %s cannot make a queue pair for rank %d: %s", self->base.rank,
                            port->offer.name, lane->peer->rank, strerror(errno));
    }
    lane->room = XM_VERBS_QUEUE;
    lane->credits = (int)lane->peer->slots;
    lane->slots = port->ring + (size_t)place * self->offer.slots * self->offer.slot_size;
    error = ibv_modify_qp(lane->qp, &init,
                          IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    if (error != 0) {
        return xm_error_set(XM_ERR_INTERNAL, "rank %d: %s: a new queue pair is refused: %s",
                            self->base.rank, port->offer.name, strerror(error));
    }
    return xm_verbs_lane_fill(lane);
}

/* Packet numbers begin somewhere else in every job, so that late packets of another are seen. */
static uint32_t first_packet(uint32_t seed, int from, int to, int rail)
{
    uint64_t mixed =
        ((uint64_t)seed << 24) ^ ((uint64_t)from << 28) ^ ((uint64_t)to << 8) ^ (uint64_t)rail;

    return (uint32_t)(xm_hash_spread(mixed) >> 40);
}

const char *xm_verbs_format_address(const xm_verbs_port_offer_t *port, xm_verbs_gid_kind_t kind,
                                    char *text, size_t size)
{
    if (port->infiniband) {
        (void)snprintf(text, size, "LID %u", port->lid);
    } else if (kind == XM_VERBS_GID_IPV4) {
        (void)inet_ntop(AF_INET, port->gid[kind] + 12, text, (socklen_t)size);
    } else {
        (void)inet_ntop(AF_INET6, port->gid[kind], text, (socklen_t)size);
    }
    return text;
}

static xm_status_t connect_lane(xm_verbs_transport_t *self, xm_verbs_lane_t *lane,
                                const xm_verbs_offer_t *theirs, uint32_t number)
{
    const xm_verbs_port_t *port = xm_verbs_port_of(lane);
    const xm_verbs_port_offer_t *there = &theirs->port[lane->rail];
    xm_verbs_gid_kind_t kind = lane->peer->gid_kind[lane->rail];
    int us = self->base.rank, them = lane->peer->rank;
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

    if (!port->offer.infiniband) {
        attr.ah_attr.is_global = 1;
        attr.ah_attr.grh.sgid_index = (uint8_t)port->gid_index[kind];
        attr.ah_attr.grh.hop_limit = HOP_LIMIT;
        memcpy(attr.ah_attr.grh.dgid.raw, there->gid[kind], XM_VERBS_GID_SIZE);
    }
    error = ibv_modify_qp(lane->qp, &attr,
                          IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                              IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    if (error == 0) {
        attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
                                    .sq_psn = first_packet(self->offer.seed, us, them, lane->rail),
                                    .timeout = ACK_TIMEOUT,
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

/* Tells every rank the number of the queue pair for it, rail by rail, and connects. */
static xm_status_t connect_lanes(xm_verbs_transport_t *self, xm_bootstrap_t *bootstrap,
                                 double timeout, const xm_verbs_offer_t *offers)
{
    int size = self->base.size, rank = self->base.rank;
    size_t length = (size_t)size * (size_t)self->port_count * (size_t)number_size, *offsets = NULL;
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

        if (offsets[peer + 1] - offsets[peer] !=
            (size_t)size * (size_t)offers[peer].ports * (size_t)number_size) {
            status = xm_error_set(XM_ERR_CORRUPT, "rank %d: rank %d sent no list of queue pairs",
                                  rank, peer);
        }
        for (int rail = 0; rail < self->port_count && status == XM_OK; ++rail) {
            xm_verbs_lane_t *lane = &self->peers[peer].lanes[rail];

            if (lane->qp != NULL) {
                status =
                    connect_lane(self, lane, &offers[peer],
                                 (uint32_t)xm_get_le(theirs + rail * number_size, number_size));
            }
        }
    }
    free(numbers);
    free(gathered);
    free(offsets);
    return status;
}

xm_status_t xm_verbs_connect(xm_verbs_transport_t *self, xm_bootstrap_t *bootstrap, double timeout)
{
    size_t send_size = 0;
    xm_verbs_offer_t *offers = calloc((size_t)self->base.size, sizeof(*offers));
    xm_status_t status;

    if (offers == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "rank %d: no memory for the ports of %d ranks",
                            self->base.rank, self->base.size);
    }
    status = exchange_offers(self, bootstrap, timeout, offers);
    for (int peer = 0; peer < self->base.size && status == XM_OK; ++peer) {
        send_size = offers[peer].slot_size > send_size ? offers[peer].slot_size : send_size;
    }
    for (int i = 0; i < self->port_count && status == XM_OK; ++i) {
        status = xm_verbs_equip_port(self, &self->ports[i], send_size);
    }
    for (int i = 0; i < self->base.size * XM_NICS_MAX && status == XM_OK; ++i) {
        xm_verbs_peer_t *peer = &self->peers[i / XM_NICS_MAX];
        int rail = i % XM_NICS_MAX;

        if (peer->rank != self->base.rank && rail < peer->stripe.rails &&
            xm_stripe_uses(&peer->stripe, rail)) {
            status = open_lane(self, &peer->lanes[rail]);
        }
    }
    if (status == XM_OK) {
        status = connect_lanes(self, bootstrap, timeout, offers);
    }
    free(offers);
    /* Nobody sends before everybody can receive. */
    return status == XM_OK ? xm_bootstrap_barrier(bootstrap, timeout) : status;
}
