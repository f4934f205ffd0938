/* The verbs transport: opening ports, connecting to all ranks, and the end. */
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>

#include "comm/log.h"
#include "comm/params.h"
#include "comm/transport_verbs_private.h"

/*
 * SLOTS and SLOT_SIZE: receives of a connection, if RING_BYTES allow; both become smaller in large
 * jobs, down to the FEWEST and SMALLEST. Slots hold 8 KiB, or 2 KiB, and a header.
 */
enum { SLOTS = 32, FEWEST = 8, SLOT_SIZE = 8192 + 64, SMALLEST = 2048 + 64 };
static const size_t ring_bytes = (size_t)64 << 20;

/* How long destroy waits for what was sent to be acknowledged. */
static const int64_t settle_ns = 1000000000;

static void choose_slots(xm_verbs_transport_t *self)
{
    size_t peers = (size_t)self->base.size - (self->base.size > 1);
    int room = self->ports[0].max_cqe;

    self->offer.slots = SLOTS;
    self->offer.slot_size = SLOT_SIZE;
    for (int i = 1; i < self->port_count; ++i) {
        room = self->ports[i].max_cqe < room ? self->ports[i].max_cqe : room;
    }
    while (self->offer.slots > FEWEST &&
           (peers * self->offer.slots * self->offer.slot_size > ring_bytes ||
            peers * (self->offer.slots + XM_VERBS_QUEUE) > (size_t)room)) {
        self->offer.slots /= 2;
    }
    if (peers * self->offer.slots * self->offer.slot_size > ring_bytes) {
        self->offer.slot_size = SMALLEST;
    }
}

static uint8_t *pages(size_t size)
{
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    return memory != MAP_FAILED ? memory : NULL;
}

/* The completion queue and the slots of a port, when it is known what the others take. */
xm_status_t xm_verbs_equip_port(xm_verbs_transport_t *self, xm_verbs_port_t *port, size_t send_size)
{
    size_t peers = (size_t)self->base.size - (self->base.size > 1);
    size_t entries = peers * (self->offer.slots + XM_VERBS_QUEUE);

    if (entries > (size_t)port->max_cqe) {
        return xm_error_set(XM_ERR_UNSUPPORTED,
                            "rank %d: %s has completion queues of at most %d entries, %d ranks "
                            "need %zu",
                            self->base.rank, port->offer.name, port->max_cqe, self->base.size,
                            entries);
    }
    port->cq = ibv_create_cq(port->context, (int)entries, NULL, port->channel, 0);
    if (port->cq == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY,
                            "rank %d: %s cannot have a completion queue of %zu entries: %s",
                            self->base.rank, port->offer.name, entries, strerror(errno));
    }
    port->send_size = send_size;
    port->ring_size = peers * self->offer.slots * self->offer.slot_size;
    port->ring = pages(port->ring_size);
    port->sends = pages(XM_VERBS_SENDS * send_size);
    port->free_sends = calloc(XM_VERBS_SENDS, sizeof(*port->free_sends));
    if (port->ring == NULL || port->sends == NULL || port->free_sends == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "rank %d: no memory for %zu bytes of slots",
                            self->base.rank, port->ring_size + XM_VERBS_SENDS * send_size);
    }
    while (port->free_send_count < XM_VERBS_SENDS) {
        port->free_sends[port->free_send_count] = port->free_send_count;
        ++port->free_send_count;
    }
    port->ring_mr = xm_verbs_pin(self, port, port->ring, port->ring_size, IBV_ACCESS_LOCAL_WRITE);
    if (port->ring_mr != NULL) {
        port->sends_mr = xm_verbs_pin(self, port, port->sends, XM_VERBS_SENDS * send_size, 0);
    }
    return port->sends_mr != NULL ? XM_OK : XM_ERR_NO_MEMORY;
}

static void strip_port(xm_verbs_port_t *port)
{
    if (port->sends_mr != NULL) {
        (void)ibv_dereg_mr(port->sends_mr);
    }
    if (port->ring_mr != NULL) {
        (void)ibv_dereg_mr(port->ring_mr);
    }
    if (port->sends != NULL) {
        (void)munmap(port->sends, XM_VERBS_SENDS * port->send_size);
    }
    if (port->ring != NULL) {
        (void)munmap(port->ring, port->ring_size);
    }
    free(port->free_sends);
}

static xm_verbs_transport_t *allocate(int rank, int size)
{
    xm_verbs_transport_t *self = calloc(1, sizeof(*self));

    if (self == NULL) {
        return NULL;
    }
    self->peers = calloc((size_t)size, sizeof(*self->peers));
    if (self->peers == NULL) {
        free(self);
        return NULL;
    }
    self->base = (xm_transport_t){
        .ops = &xm_verbs_ops, .rank = rank, .size = size, .failed_peer = -1, .real_hosts = true};
    self->epoll = self->timer = -1;
    self->ended.priv.next = self->ended.priv.previous = &self->ended;
    self->memory.next = self->memory.previous = &self->memory;
    self->temporary.next = self->temporary.previous = &self->temporary;
    for (int other = 0; other < size; ++other) {
        xm_verbs_peer_t *peer = &self->peers[other];

        peer->owner = self;
        peer->rank = other;
        peer->stored_last = &peer->stored;
        peer->receives.priv.next = peer->receives.priv.previous = &peer->receives;
        peer->busy.priv.next = peer->busy.priv.previous = &peer->busy;
        for (int rail = 0; rail < XM_NICS_MAX; ++rail) {
            peer->lanes[rail].peer = peer;
            peer->lanes[rail].rail = rail;
            peer->lanes[rail].last = &peer->lanes[rail].first;
        }
    }
    return self;
}

/* One positive line of what was chosen. */
static void log_ports(const xm_verbs_transport_t *self)
{
    for (int i = 0; i < self->port_count; ++i) {
        const xm_verbs_port_t *port = &self->ports[i];
        char address[INET6_ADDRSTRLEN];
        xm_verbs_gid_kind_t kind = XM_VERBS_GID_IPV4;

        while (!port->offer.infiniband && port->gid_index[kind] < 0) {
            ++kind;
        }
        xm_log_info("rank %d: verbs rail %d is %s, %s, MTU %d, %" PRIu64 " bit/s", self->base.rank,
                    i, port->offer.name,
                    xm_verbs_format_address(&port->offer, kind, address, sizeof(address)),
                    128 << port->offer.mtu, port->offer.rate);
    }
}

xm_status_t xm_transport_verbs_create(xm_bootstrap_t *bootstrap,
                                      const xm_transport_verbs_params_t *given,
                                      xm_transport_t **transport)
{
    xm_transport_verbs_params_t own = XM_TRANSPORT_VERBS_PARAMS_INIT;
    const xm_transport_verbs_params_t *params = &own;
    int rank = xm_bootstrap_rank(bootstrap), size = xm_bootstrap_size(bootstrap);
    xm_verbs_transport_t *self;
    xm_status_t status = XM_PARAMS_COPY(xm_transport_verbs_params_t, &own, given);

    if (status < 0) {
        return status;
    }
    if (size > XM_VERBS_MAX_RANKS) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "verbs transport: %d ranks", size);
    }
    self = allocate(rank, size);
    if (self == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for a transport of %d ranks", size);
    }
    self->base.counters = params->counters;
    self->base.job_rank = params->job_rank;
    self->spin = params->spin;
    self->longest_write = params->longest_write > 0 ? params->longest_write : SIZE_MAX;
    status = xm_verbs_ports_open(params->nics, rank, self->ports, &self->port_count);
    if (status == XM_OK) {
        log_ports(self);
        choose_slots(self);
        self->offer.ports = self->port_count;
        for (int i = 0; i < self->port_count; ++i) {
            self->offer.port[i] = self->ports[i].offer;
            self->ports[i].counters = xm_counters_open_nic(
                params->counters, self->ports[i].offer.name, self->ports[i].offer.rate);
        }
        (void)!getrandom(&self->offer.seed, sizeof(self->offer.seed), 0);
        status = xm_verbs_events_open(self);
    }
    if (status == XM_OK) {
        status = xm_verbs_connect(self, bootstrap, params->timeout);
    }
    if (status < 0) {
        xm_verbs_destroy(&self->base);
        return status;
    }
    *transport = &self->base;
    return XM_OK;
}

xm_status_t xm_transport_verbs_lanes(xm_transport_t *transport, int rank, char *buffer, size_t size)
{
    const xm_verbs_transport_t *self = (const xm_verbs_transport_t *)transport;
    const xm_verbs_peer_t *peer;

    if (transport->ops != &xm_verbs_ops || rank < 0 || rank >= transport->size ||
        rank == transport->rank || size == 0) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "lanes: no verbs peer %d", rank);
    }
    peer = &self->peers[rank];
    buffer[0] = '\0';
    for (int rail = 0; rail < peer->stripe.rails; ++rail) {
        size_t used = strlen(buffer);

        if (xm_stripe_uses(&peer->stripe, rail)) {
            (void)snprintf(buffer + used, size - used, "%s%s > %s", used > 0 ? " + " : "",
                           self->offer.port[rail].name, peer->there[rail]);
        }
    }
    return XM_OK;
}

void xm_verbs_path(xm_transport_t *transport, int rank, char *buffer, size_t size)
{
    if (xm_transport_verbs_lanes(transport, rank, buffer, size) < 0 && size > 0) {
        buffer[0] = '\0';
    }
}

static bool all_sent(const xm_verbs_transport_t *self)
{
    for (int i = 0; i < self->base.size * XM_NICS_MAX; ++i) {
        const xm_verbs_lane_t *lane = &self->peers[i / XM_NICS_MAX].lanes[i % XM_NICS_MAX];

        if (lane->qp != NULL && !lane->peer->failed && lane->unsent > 0) {
            return false;
        }
    }
    return true;
}

static void end_ring(const xm_op_t *head)
{
    while (!xm_verbs_ring_is_empty(head)) {
        xm_verbs_end_op(head->priv.next, XM_ERR_CANCELED);
    }
}

void xm_verbs_sever(xm_verbs_transport_t *self)
{
    /* From here on nothing that comes is looked at. */
    for (int rank = 0; rank < self->base.size; ++rank) {
        self->peers[rank].failed = self->peers[rank].closed = true;
    }
    self->failures = 0;
    xm_verbs_close_lanes(self, self->peers, self->base.size);
    for (int rank = 0; rank < self->base.size; ++rank) {
        end_ring(&self->peers[rank].receives);
        end_ring(&self->peers[rank].busy);
        xm_verbs_forget_stored(&self->peers[rank]);
    }
}

void xm_verbs_destroy(xm_transport_t *transport)
{
    xm_verbs_transport_t *self = (xm_verbs_transport_t *)transport;
    int64_t deadline = xm_transport_now(transport) + settle_ns;

    self->closing = true;
    while (!self->fenced && !all_sent(self) && xm_transport_now(transport) < deadline) {
        (void)transport->ops->progress(transport);
    }
    xm_verbs_sever(self);
    (void)xm_verbs_deliver(self);
    xm_verbs_memory_forget(self);
    for (int i = 0; i < self->port_count; ++i) {
        strip_port(&self->ports[i]);
    }
    xm_verbs_events_close(self);
    xm_verbs_ports_close(self->ports, self->port_count);
    xm_verbs_free_pools(self);
    free(self->peers);
    free(self);
}
