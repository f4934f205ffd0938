/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/comm/transport/ucx/multirail_peer.h"

#include <stdlib.h>
#include <string.h>

#include "xm_test.h"

static void open_multirail(xm_ucx_peer_t *peer, int lanes)
{
    static const uint64_t rates[XM_NICS_MAX] = {1, 1, 1, 1, 1, 1, 1, 1};

    peer->rail = XM_UCX_RAIL_NIC;
    xm_stripe_make(&peer->base.stripe, rates, rates, lanes);
    ck_assert_xm_ok(xm_rails_open(&peer->base, XM_RAILS_COPY, XM_UCX_EAGER));
    peer->base.connected = true;
}

multirail_peer_t *multirail_peer_open(int rank, int ranks, int lanes)
{
    multirail_peer_t *slot = calloc(1, sizeof(*slot));
    xm_ucx_transport_t *self = &slot->transport;

    ck_assert_ptr_nonnull(slot);
    slot->peers = calloc((size_t)ranks, sizeof(*slot->peers));
    ck_assert_ptr_nonnull(slot->peers);
    ck_assert(xm_rails_begin(&self->base, rank, ranks));
    self->base.base.ops = &xm_ucx_ops;
    self->base.lanes = &xm_ucx_lanes;
    self->base.failover = true;
    self->peers = slot->peers;
    self->fault_channel = true;
    self->epoll = self->watch.fd = -1;
    self->nics.count = self->base.nic_count = lanes;
    ck_assert_xm_ok(xm_counters_create(ranks, &slot->counters));
    for (int lane = 0; lane < lanes; ++lane) {
        char name[] = {'n', (char)('0' + lane), '\0'};

        memcpy(self->nics.nic[lane].device, name, sizeof(name));
        self->base.nics[lane].name = self->nics.nic[lane].device;
        self->base.nics[lane].counters = xm_counters_open_nic(slot->counters, name, 0);
    }
    for (int other = 0; other < ranks; ++other) {
        xm_ucx_peer_t *peer = &slot->peers[other];

        peer->base.owner = &self->base;
        self->base.peers[other] = &peer->base;
        peer->base.rank = other;
        xm_list_init(&peer->base.in_flight);
        if (other != rank) {
            open_multirail(peer, lanes);
        }
    }
    return slot;
}

void multirail_peer_close(multirail_peer_t *slot)
{
    xm_ucx_transport_t *self = &slot->transport;

    for (int rank = 0; rank < self->base.base.size; ++rank) {
        if (slot->peers[rank].base.rails != NULL) {
            xm_rails_abandon(&slot->peers[rank].base, XM_ERR_CANCELED);
        }
    }
    (void)xm_rails_deliver(&self->base);
    xm_blocks_clear(&self->base.blocks);
    if (self->has_packet_type) {
        ucp_dt_destroy(self->packet_type);
    }
    xm_counters_destroy(slot->counters);
    free((void *)self->base.peers);
    free(slot->peers);
    free(slot);
}
