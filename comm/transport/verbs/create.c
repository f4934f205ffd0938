/* SPDX-License-Identifier: Apache-2.0 */
/* Opening ports and connecting to all ranks. Memory is locked for as long as the transport
 * lives, so the sizes are chosen first, from the number of ranks: slots are per peer, and with
 * a thousand peers the most generous choice would lock gigabytes. Everything that can fail is
 * behind one exit that destroys what was made, which works because destroy accepts a transport
 * in any state. */
#include <arpa/inet.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/random.h>

#include "comm/base.h"
#include "comm/transport/verbs/transport_verbs_private.h"

/* SLOTS and SLOT_SIZE: receives of a connection, if RING_BYTES allow; both become smaller in
 * large jobs, down to FEWEST and SMALLEST. Slots hold 8 KiB, or 2 KiB, and a header. */
enum { SLOTS = 32, FEWEST = 8, SLOT_SIZE = 8192 + 64, SMALLEST = 2048 + 64 };
static const size_t ring_bytes = (size_t)64 << 20;

/* How long a lane may be silent while others are not, in times that devices repeat packets. */
static const double silence_timeout = 1.5;

/* Chooses slots by what the weakest port can have, since all ports of a rank keep the same
 * number. The number shrinks before the size, because eight credits still hide the round trip,
 * while smaller slots turn more messages into rendezvous. */
static void choose_slots(xm_verbs_transport_t *self)
{
    size_t peers = (size_t)self->base.base.size - (self->base.base.size > 1);
    int room = self->ports[0].max_cqe;

    self->offer.slots = SLOTS;
    self->offer.slot_size = SLOT_SIZE;
    for (int i = 1; i < self->port_count; ++i) {
        room = self->ports[i].max_cqe < room ? self->ports[i].max_cqe : room;
    }
    /* Receives and send requests of all peers must fit into one completion queue. */
    while (self->offer.slots > FEWEST &&
           (peers * self->offer.slots * self->offer.slot_size > ring_bytes ||
            peers * (self->offer.slots + XM_VERBS_QUEUE) > (size_t)room)) {
        self->offer.slots /= 2;
    }
    if (peers * self->offer.slots * self->offer.slot_size > ring_bytes) {
        self->offer.slot_size = SMALLEST;
    }
}

/* Sets everything that destroy reads; -1 means a descriptor that is not open. */
static xm_verbs_transport_t *allocate(int rank, int size)
{
    xm_verbs_transport_t *self = calloc(1, sizeof(*self));

    if (self == NULL) {
        return NULL;
    }
    self->peers = calloc((size_t)size, sizeof(*self->peers));
    if (self->peers == NULL || !xm_rails_begin(&self->base, rank, size)) {
        free(self->peers);
        free(self);
        return NULL;
    }
    self->base.base.ops = &xm_verbs_ops;
    self->base.base.acknowledges = true;
    self->base.lanes = &xm_verbs_lanes;
    self->base.failover = xm_config_choice(XM_CONFIG_FAILOVER) == 0;
    self->base.rail_timeout =
        (int64_t)(silence_timeout * xm_config_seconds(XM_CONFIG_RDMA_TIMEOUT) * 1e9);
    self->epoll = -1;
    xm_list_init(&self->memory);
    xm_list_init(&self->temporary);
    for (int other = 0; other < size; ++other) {
        xm_verbs_peer_t *peer = &self->peers[other];

        self->base.peers[other] = &peer->base;
        peer->base.owner = &self->base;
        peer->base.rank = other;
        xm_list_init(&peer->base.in_flight);
        for (int rail = 0; rail < XM_NICS_MAX; ++rail) {
            peer->lanes[rail].peer = peer;
            peer->lanes[rail].rail = rail;
            peer->lanes[rail].last = &peer->lanes[rail].first;
            peer->lanes[rail].last_sent = &peer->lanes[rail].first_sent;
        }
    }
    return self;
}

/* Logs what was chosen, since port and address selection is what goes wrong most with RDMA. */
static void log_ports(const xm_verbs_transport_t *self)
{
    /* The address that is logged is of the best kind; which one is used depends on the peer. */
    for (int i = 0; i < self->port_count; ++i) {
        const xm_verbs_port_t *port = &self->ports[i];
        char address[INET6_ADDRSTRLEN];
        xm_verbs_gid_kind_t kind = XM_VERBS_GID_IPV4;

        while (!port->offer.infiniband && port->gid_index[kind] < 0) {
            ++kind;
        }
        xm_log_info("rank %d: verbs rail %d is %s, %s, MTU %d, %" PRIu64 " bit/s",
                    self->base.base.rank, i, port->offer.name,
                    xm_verbs_format_address(&port->offer, kind, address, sizeof(address)),
                    128 << port->offer.mtu, port->offer.rate);
    }
}

/* Collective over the bootstrap. A rank that fails leaves; the others then fail in the
 * allgather and not in their first message. */
xm_status_t xm_transport_verbs_create(xm_bootstrap_t *bootstrap,
                                      const xm_transport_verbs_params_t *params,
                                      xm_transport_t **transport)
{
    int rank = xm_bootstrap_rank(bootstrap), size = xm_bootstrap_size(bootstrap);
    xm_verbs_transport_t *self;
    xm_status_t status;

    if (size > XM_VERBS_MAX_RANKS) {
        return XM_INVALID("verbs transport: %d ranks", size);
    }
    self = allocate(rank, size);
    XM_NEED_MEMORY(self, "a transport of %d ranks", size);
    self->base.base.counters = params->counters;
    self->base.base.job_rank = params->job_rank;
    self->spin = params->spin;
    /* Tests make writes short on purpose, to see messages of several writes. */
    self->longest_write = params->longest_write > 0 ? params->longest_write : SIZE_MAX;
    status = xm_verbs_ports_open(params->nics, rank, self->ports, &self->port_count);
    if (status == XM_OK) {
        /* Slots are chosen before the offer is made, since the offer tells them to the peers. */
        log_ports(self);
        choose_slots(self);
        self->offer.ports = self->port_count;
        for (int i = 0; i < self->port_count; ++i) {
            self->offer.port[i] = self->ports[i].offer;
            self->ports[i].counters = xm_counters_open_nic(
                params->counters, self->ports[i].offer.name, self->ports[i].offer.rate);
            self->base.nics[i] = (xm_rails_nic_t){.name = self->ports[i].offer.name,
                                                  .counters = self->ports[i].counters};
        }
        /* Without randomness the seed stays 0, which only makes packet numbers predictable. */
        (void)!getrandom(&self->offer.seed, sizeof(self->offer.seed), 0);
        status = xm_verbs_events_open(self);
    }
    XM_THEN(status, xm_verbs_connect(self, bootstrap, params->timeout));
    if (status < 0) {
        xm_verbs_destroy(&self->base.base);
        return status;
    }
    *transport = &self->base.base;
    return XM_OK;
}
