#include "tests/comm/transport/ucx/mail_seat.h"

#include <stdlib.h>
#include <string.h>

#include "xm_test.h"

static void open_mail(xm_ucx_peer_t *peer, int lanes)
{
    static const uint64_t rates[XM_NICS_MAX] = {1, 1, 1, 1, 1, 1, 1, 1};

    peer->rail = XM_UCX_RAIL_NIC;
    xm_stripe_make(&peer->stripe, rates, rates, lanes);
    ck_assert_xm_ok(xm_ucx_mail_open(peer));
    peer->connected = true;
    ++peer->owner->mails;
}

mail_seat_t *mail_seat_open(int rank, int ranks, int lanes)
{
    mail_seat_t *seat = calloc(1, sizeof(*seat));
    xm_ucx_transport_t *self = &seat->transport;

    ck_assert_ptr_nonnull(seat);
    seat->peers = calloc((size_t)ranks, sizeof(*seat->peers));
    ck_assert_ptr_nonnull(seat->peers);
    self->base.ops = &xm_ucx_ops;
    self->base.rank = rank;
    self->base.size = ranks;
    self->base.failed_peer = -1;
    self->peers = seat->peers;
    self->fault_channel = true;
    self->epoll = self->timer_fd = self->watch.fd = -1;
    self->nics.count = lanes;
    xm_list_init(&self->ended);
    xm_list_init(&self->free_parcels);
    ck_assert_xm_ok(xm_counters_create(ranks, &seat->counters));
    for (int lane = 0; lane < lanes; ++lane) {
        char name[] = {'n', (char)('0' + lane), '\0'};

        memcpy(self->nics.nic[lane].device, name, sizeof(name));
        self->rails[XM_UCX_RAIL_NIC + lane].counters =
            xm_counters_open_nic(seat->counters, name, 0);
    }
    for (int other = 0; other < ranks; ++other) {
        xm_ucx_peer_t *peer = &seat->peers[other];

        peer->owner = self;
        peer->rank = other;
        xm_list_init(&peer->in_flight);
        if (other != rank) {
            open_mail(peer, lanes);
        }
    }
    return seat;
}

void mail_seat_close(mail_seat_t *seat)
{
    xm_ucx_transport_t *self = &seat->transport;

    for (int rank = 0; rank < self->base.size; ++rank) {
        if (seat->peers[rank].mail != NULL) {
            xm_ucx_mail_abandon(&seat->peers[rank], XM_ERR_CANCELED);
            xm_ucx_mail_close(&seat->peers[rank]);
        }
    }
    (void)xm_ucx_deliver(self);
    xm_ucx_mail_free_parcels(&self->free_parcels);
    if (self->has_parcel_type) {
        ucp_dt_destroy(self->parcel_type);
    }
    xm_counters_destroy(seat->counters);
    free(seat->peers);
    free(seat);
}
