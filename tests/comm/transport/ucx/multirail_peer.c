/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/comm/transport/ucx/multirail_peer.h"

#include <stdlib.h>
#include <string.h>

#include "xm_test.h"

static void open_multirail(xm_ucx_peer_t *peer, int lanes)
{
    static const uint64_t rates[XM_NICS_MAX] = {1, 1, 1, 1, 1, 1, 1, 1};

    peer->rail = XM_UCX_RAIL_NIC;
    xm_stripe_make(&peer->stripe, rates, rates, lanes);
    ck_assert_xm_ok(xm_ucx_multirail_open(peer));
    peer->connected = true;
    ++peer->owner->multirails;
}

multirail_peer_t *multirail_peer_open(int rank, int ranks, int lanes)
{
    multirail_peer_t *slot = calloc(1, sizeof(*slot));
    xm_ucx_transport_t *self = &slot->transport;

    ck_assert_ptr_nonnull(slot);
    slot->peers = calloc((size_t)ranks, sizeof(*slot->peers));
    ck_assert_ptr_nonnull(slot->peers);
    self->base.ops = &xm_ucx_ops;
    self->base.rank = rank;
    self->base.size = ranks;
    self->base.failed_peer = -1;
    self->peers = slot->peers;
    self->fault_channel = true;
    self->epoll = self->timer_fd = self->watch.fd = -1;
    self->nics.count = lanes;
    xm_list_init(&self->ended);
    ck_assert_xm_ok(xm_counters_create(ranks, &slot->counters));
    for (int lane = 0; lane < lanes; ++lane) {
        char name[] = {'n', (char)('0' + lane), '\0'};

        memcpy(self->nics.nic[lane].device, name, sizeof(name));
        self->rails[XM_UCX_RAIL_NIC + lane].counters =
            xm_counters_open_nic(slot->counters, name, 0);
    }
    for (int other = 0; other < ranks; ++other) {
        xm_ucx_peer_t *peer = &slot->peers[other];

        peer->owner = self;
        peer->rank = other;
        xm_list_init(&peer->in_flight);
        if (other != rank) {
            open_multirail(peer, lanes);
        }
    }
    return slot;
}

void multirail_peer_close(multirail_peer_t *slot)
{
    xm_ucx_transport_t *self = &slot->transport;

    for (int rank = 0; rank < self->base.size; ++rank) {
        if (slot->peers[rank].multirail != NULL) {
            xm_ucx_multirail_abandon(&slot->peers[rank], XM_ERR_CANCELED);
        }
    }
    (void)xm_ucx_deliver(self);
    xm_blocks_clear(&self->blocks);
    if (self->has_packet_type) {
        ucp_dt_destroy(self->packet_type);
    }
    xm_counters_destroy(slot->counters);
    free(slot->peers);
    free(slot);
}
