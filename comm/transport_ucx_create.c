/* The UCX transport: opening rails, exchanging addresses, registering memory, closing. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "comm/little_endian.h"
#include "comm/transport_ucx_mail.h"

/* How long destroy waits for peers that are slow to take what was sent. */
enum { CLOSE_MS = 1000 };

static int host_of(const xm_transport_ucx_params_t *params, int rank)
{
    return params->host != NULL ? params->host[rank] : 0;
}

static int machine_of(const xm_transport_ucx_params_t *params, int rank)
{
    return params->machine != NULL ? params->machine[rank] : host_of(params, rank);
}

/* Both ends come to the same answer. Another host on the same machine: only TCP is honest there. */
static int rail_to(const xm_transport_ucx_params_t *params, int rank, int peer)
{
    if (machine_of(params, rank) != machine_of(params, peer)) {
        return XM_UCX_RAIL_NIC;
    }
    return host_of(params, rank) == host_of(params, peer) ? XM_UCX_RAIL_HOST : XM_UCX_RAIL_TCP;
}

/* Several rails over one NIC are counted together. */
static void count_rail(xm_ucx_transport_t *self, int rail)
{
    const xm_nic_t *nic = rail < XM_UCX_RAIL_NIC ? NULL : &self->nics.nic[rail - XM_UCX_RAIL_NIC];

    self->rails[rail].counters = xm_counters_open_nic(
        self->base.counters,
        xm_ucx_rail_name((xm_ucx_rail_kind_t)(nic == NULL ? rail : XM_UCX_RAIL_NIC),
                         nic != NULL ? nic->device : ""),
        nic != NULL ? nic->rate : 0);
}

static xm_status_t watch_fd(const xm_ucx_transport_t *self, int fd)
{
    struct epoll_event event = {.events = EPOLLIN};

    return self->epoll < 0 || fd < 0 || epoll_ctl(self->epoll, EPOLL_CTL_ADD, fd, &event) == 0
               ? XM_OK
               : xm_error_set(XM_ERR_IO, "epoll_ctl: %s", strerror(errno));
}

static xm_status_t open_rails(xm_ucx_transport_t *self, bool wakeup)
{
    bool frames = self->failover && self->nics.count > 1;
    bool needed[XM_UCX_RAIL_COUNT] = {false};
    xm_status_t status = XM_OK;

    self->base.cuda = true;
    for (int rank = 0; rank < self->base.size; ++rank) {
        needed[self->peers[rank].rail] |= rank != self->base.rank;
    }
    for (int nic = 1; nic < self->nics.count; ++nic) {
        needed[XM_UCX_RAIL_NIC + nic] = needed[XM_UCX_RAIL_NIC];
    }
    for (int rail = 0; rail < XM_UCX_RAIL_COUNT && status == XM_OK; ++rail) {
        int nic = rail - XM_UCX_RAIL_NIC;

        if (!needed[rail]) {
            continue;
        }
        status = xm_ucx_rail_open(&self->rails[rail],
                                  nic < 0 ? (xm_ucx_rail_kind_t)rail : XM_UCX_RAIL_NIC,
                                  nic < 0 ? "" : self->nics.nic[nic].device, self->base.rank,
                                  self->base.size, wakeup, frames && nic >= 0);
        if (status == XM_OK) {
            status = watch_fd(self, self->rails[rail].event_fd);
        }
        self->base.cuda = self->base.cuda && self->rails[rail].cuda;
        count_rail(self, rail);
    }
    return status;
}

/*
 * A rank's blob, little-endian: u32 number of NICs, u32 whether it can send frames over them, u64
 * rate of each, then for each rail up to the last NIC's u32 length (0: closed) and the address.
 */
enum { COUNT_SIZE = 4, FRAMES_SIZE = 4, HEAD_SIZE = 8, RATE_SIZE = 8, LENGTH_SIZE = 4 };

/* Several NICs, all with TCP only. */
static bool can_frame(const xm_ucx_transport_t *self)
{
    bool can = self->failover && self->nics.count > 1;

    for (int nic = 0; nic < self->nics.count; ++nic) {
        can = can && self->rails[XM_UCX_RAIL_NIC + nic].tcp_only;
    }
    return can;
}

static xm_status_t pack_addresses(const xm_ucx_transport_t *self, uint8_t **blob, size_t *length)
{
    int rails = XM_UCX_RAIL_NIC + self->nics.count;
    size_t total = HEAD_SIZE + (size_t)self->nics.count * RATE_SIZE, used = 0;

    for (int rail = 0; rail < rails; ++rail) {
        total += LENGTH_SIZE + self->rails[rail].address_length;
    }
    *blob = malloc(total);
    if (*blob == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for %zu bytes of addresses", total);
    }
    xm_put_le(*blob, (uint64_t)self->nics.count, COUNT_SIZE);
    xm_put_le(*blob + COUNT_SIZE, can_frame(self), FRAMES_SIZE);
    used += HEAD_SIZE;
    for (int nic = 0; nic < self->nics.count; ++nic) {
        xm_put_le(*blob + used, self->nics.nic[nic].rate, RATE_SIZE);
        used += RATE_SIZE;
    }
    for (int rail = 0; rail < rails; ++rail) {
        const xm_ucx_rail_t *from = &self->rails[rail];

        xm_put_le(*blob + used, from->address_length, LENGTH_SIZE);
        used += LENGTH_SIZE;
        if (from->address_length > 0) {
            memcpy(*blob + used, from->address, from->address_length);
        }
        used += from->address_length;
    }
    *length = total;
    return XM_OK;
}

/* The address of one rail in the part of a rank's blob that holds addresses, NULL when it is not
 * there. */
static const void *find_address(const uint8_t *blob, size_t length, int wanted)
{
    size_t at = 0;

    for (int rail = 0; length - at >= LENGTH_SIZE; ++rail) {
        size_t address_length = (size_t)xm_get_le(blob + at, LENGTH_SIZE);

        at += LENGTH_SIZE;
        if (address_length > length - at) {
            return NULL;
        }
        if (rail == wanted) {
            return address_length > 0 ? blob + at : NULL;
        }
        at += address_length;
    }
    return NULL;
}

/* Learns the way to a peer from its blob. Between two ranks there are as many rails as the one with
 * fewer NICs has. */
static xm_status_t read_peer(xm_ucx_peer_t *peer, const uint8_t *blob, size_t length)
{
    const xm_nics_t *nics = &peer->owner->nics;
    uint64_t count = length >= HEAD_SIZE ? xm_get_le(blob, COUNT_SIZE) : 0;
    uint64_t ours[XM_NICS_MAX] = {0}, theirs[XM_NICS_MAX] = {0};
    size_t head = HEAD_SIZE + (size_t)count * RATE_SIZE;
    int lanes = count < (uint64_t)nics->count ? (int)count : nics->count;

    if (count < 1 || count > XM_NICS_MAX || head > length) {
        return xm_error_set(XM_ERR_CORRUPT, "rank %d: rank %d sent no list of its NICs",
                            peer->owner->base.rank, peer->rank);
    }
    lanes = peer->rail == XM_UCX_RAIL_NIC ? lanes : 1;
    for (int lane = 0; lane < lanes; ++lane) {
        ours[lane] = nics->nic[lane].rate;
        theirs[lane] = xm_get_le(blob + HEAD_SIZE + (size_t)lane * RATE_SIZE, RATE_SIZE);
        theirs[lane] = theirs[lane] < XM_NICS_MAX_RATE ? theirs[lane] : XM_NICS_MAX_RATE;
    }
    xm_stripe_make(&peer->stripe, ours, theirs, lanes);
    for (int lane = 0; lane < lanes && peer->rank != peer->owner->base.rank; ++lane) {
        const void *address = find_address(blob + head, length - head, peer->rail + lane);

        if (address == NULL) {
            return xm_error_set(XM_ERR_MISMATCH,
                                "rank %d and rank %d disagree on whether they share a machine",
                                peer->owner->base.rank, peer->rank);
        }
        peer->lanes[lane].address = xm_stripe_uses(&peer->stripe, lane) ? address : NULL;
        peer->lanes[lane].peer = peer;
    }
    if (peer->stripe.used > 1 && peer->rank != peer->owner->base.rank && can_frame(peer->owner) &&
        xm_get_le(blob + COUNT_SIZE, FRAMES_SIZE) != 0) {
        ++peer->owner->mails;
        return xm_ucx_mail_open(peer);
    }
    return XM_OK;
}

/* What mails need besides. */
static xm_status_t open_mails(xm_ucx_transport_t *self)
{
    xm_status_t status = XM_OK;

    for (int nic = 0; nic < self->nics.count && status == XM_OK && self->mails > 0; ++nic) {
        status = xm_ucx_mail_listen(self, XM_UCX_RAIL_NIC + nic);
    }
    if (status < 0 || self->mails == 0) {
        return status;
    }
    self->base.cuda = false; /* bytes are read and written by this process itself */
    xm_nic_watch_open(&self->watch, &self->nics);
    if (self->epoll < 0) {
        return XM_OK;
    }
    self->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (self->timer_fd < 0) {
        return xm_error_set(XM_ERR_IO, "timerfd_create: %s", strerror(errno));
    }
    status = watch_fd(self, self->timer_fd);
    return status == XM_OK ? watch_fd(self, self->watch.fd) : status;
}

xm_status_t xm_transport_ucx_join(xm_transport_t *transport, void *addresses, const size_t *offsets)
{
    xm_ucx_transport_t *self = (xm_ucx_transport_t *)transport;
    xm_status_t status = XM_OK;

    self->addresses = addresses;
    for (int rank = 0; rank < self->base.size && status == XM_OK; ++rank) {
        status = read_peer(&self->peers[rank], (const uint8_t *)addresses + offsets[rank],
                           offsets[rank + 1] - offsets[rank]);
    }
    return status == XM_OK ? open_mails(self) : status;
}

static xm_ucx_transport_t *allocate(int rank, int size, const xm_transport_ucx_params_t *params)
{
    xm_ucx_transport_t *self = calloc(1, sizeof(*self));

    if (self == NULL) {
        return NULL;
    }
    self->peers = calloc((size_t)size, sizeof(*self->peers));
    if (self->peers == NULL) {
        free(self);
        return NULL;
    }
    self->base.ops = &xm_ucx_ops;
    self->base.rank = rank;
    self->base.size = size;
    self->base.failed_peer = -1;
    self->base.real_hosts = true;
    self->epoll = self->timer_fd = self->watch.fd = -1;
    self->ended.priv.next = self->ended.priv.previous = &self->ended;
    self->memory.next = self->memory.previous = &self->memory;
    for (int other = 0; other < size; ++other) {
        xm_ucx_peer_t *peer = &self->peers[other];

        peer->owner = self;
        peer->rank = other;
        peer->rail = rail_to(params, rank, other);
        peer->in_flight.priv.next = peer->in_flight.priv.previous = &peer->in_flight;
    }
    return self;
}

static xm_status_t read_nics(xm_ucx_transport_t *self, const char *text)
{
    xm_status_t status = xm_nics_parse(text, self->base.rank, "/sys", &self->nics);

    if (status == XM_OK && self->nics.count > 1 && self->base.size > XM_UCX_MAX_RANKS_SPLIT) {
        return xm_error_set(XM_ERR_UNSUPPORTED,
                            "rank %d: XM_NICS: a job of %d ranks is too large for several NICs "
                            "(at most %d)",
                            self->base.rank, self->base.size, XM_UCX_MAX_RANKS_SPLIT);
    }
    return status;
}

xm_status_t xm_transport_ucx_open(int rank, int size, const xm_transport_ucx_params_t *params,
                                  xm_transport_t **transport, void **blob, size_t *length)
{
    xm_ucx_transport_t *self;
    uint8_t *packed = NULL;
    xm_status_t status = XM_OK;

    if (params->struct_size < sizeof(*params) || size > XM_UCX_MAX_RANKS) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "UCX transport: struct_size %zu, %d ranks",
                            params->struct_size, size);
    }
    self = allocate(rank, size, params);
    if (self == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for a transport of %d ranks", size);
    }
    self->fault_channel = params->fault_channel;
    self->base.counters = params->counters;
    self->base.job_rank = params->job_rank;
    self->failover = params->failover;
    self->patience = (int64_t)(params->patience * 1e9);
    status = read_nics(self, params->nics);
    if (status == XM_OK) {
        status = xm_ucx_add_pieces(self);
    }
    if (status == XM_OK && !params->spin) {
        self->epoll = epoll_create1(EPOLL_CLOEXEC);
        if (self->epoll < 0) {
            status = xm_error_set(XM_ERR_IO, "epoll_create1: %s", strerror(errno));
        }
    }
    if (status == XM_OK) {
        status = open_rails(self, !params->spin);
    }
    if (status == XM_OK) {
        status = pack_addresses(self, &packed, length);
    }
    if (status < 0) {
        xm_ucx_destroy(&self->base);
        return status;
    }
    *transport = &self->base;
    *blob = packed;
    return XM_OK;
}

xm_status_t xm_transport_ucx_create(xm_bootstrap_t *bootstrap,
                                    const xm_transport_ucx_params_t *params,
                                    xm_transport_t **transport)
{
    void *blob = NULL, *addresses = NULL;
    size_t length = 0, *offsets = NULL;
    xm_status_t status =
        xm_transport_ucx_open(xm_bootstrap_rank(bootstrap), xm_bootstrap_size(bootstrap), params,
                              transport, &blob, &length);

    if (status < 0) {
        return status;
    }
    status =
        xm_bootstrap_allgatherv(bootstrap, blob, length, &addresses, &offsets, params->timeout);
    free(blob);
    if (status == XM_OK) {
        status = xm_transport_ucx_join(*transport, addresses, offsets);
    }
    free(offsets);
    if (status < 0) {
        xm_ucx_destroy(*transport);
        *transport = NULL;
    }
    return status;
}

int xm_transport_ucx_shares(const xm_transport_t *transport, int rank, uint64_t tag, size_t length,
                            size_t *shares)
{
    const xm_stripe_t *stripe = &((const xm_ucx_transport_t *)transport)->peers[rank].stripe;
    bool split = xm_stripe_splits(stripe, length);
    int whole = split ? -1 : xm_stripe_rail(stripe, tag);

    for (int rail = 0; rail < stripe->rails; ++rail) {
        size_t begin = split && rail > 0 ? xm_stripe_end(stripe, length, rail - 1) : 0;

        shares[rail] = split           ? xm_stripe_end(stripe, length, rail) - begin
                       : rail == whole ? length
                                       : 0;
    }
    return stripe->rails;
}

xm_status_t xm_transport_ucx_lanes(xm_transport_t *transport, int rank, char *buffer, size_t size)
{
    xm_ucx_transport_t *self = (xm_ucx_transport_t *)transport;
    xm_ucx_peer_t *peer;
    xm_status_t status = XM_OK;

    if (transport->ops != &xm_ucx_ops || rank < 0 || rank >= transport->size ||
        rank == transport->rank || size == 0) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "lanes: no UCX peer %d", rank);
    }
    peer = &self->peers[rank];
    if (peer->failed || peer->reported) {
        return xm_error_set(XM_ERR_PEER_DIED, "lanes: rank %d is gone", rank);
    }
    if (!peer->connected) {
        status = xm_ucx_connect(peer);
    }
    buffer[0] = '\0';
    for (int lane = 0; lane < peer->stripe.rails && status == XM_OK; ++lane) {
        size_t used = strlen(buffer);

        if (peer->lanes[lane].ep == NULL) {
            continue;
        }
        (void)snprintf(buffer + used, size - used, "%s", used > 0 ? " + " : "");
        status = xm_ucx_rail_lanes(peer->lanes[lane].ep, buffer, size);
    }
    return status;
}

static void unmap(xm_ucx_transport_t *self, xm_memory_t *memory)
{
    for (int rail = 0; rail < XM_UCX_RAIL_COUNT; ++rail) {
        if (memory->handle[rail] != NULL) {
            (void)ucp_mem_unmap(self->rails[rail].context, memory->handle[rail]);
            memory->handle[rail] = NULL;
        }
    }
}

xm_status_t xm_ucx_memory_register(xm_transport_t *transport, void *address, size_t length,
                                   xm_memory_t **memory)
{
    xm_ucx_transport_t *self = (xm_ucx_transport_t *)transport;
    ucp_mem_map_params_t params = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS |
                                                 UCP_MEM_MAP_PARAM_FIELD_LENGTH,
                                   .address = address,
                                   .length = length};
    xm_memory_t *made;

    if (address == NULL || length == 0) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "rank %d: register %zu bytes at %p",
                            self->base.rank, length, address);
    }
    made = calloc(1, sizeof(*made));
    if (made == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for a registration");
    }
    for (int rail = 0; rail < XM_UCX_RAIL_COUNT; ++rail) {
        ucs_status_t status = UCS_OK;

        if (self->rails[rail].open) {
            status = ucp_mem_map(self->rails[rail].context, &params, &made->handle[rail]);
        }
        if (status != UCS_OK) {
            made->handle[rail] = NULL;
            unmap(self, made);
            free(made);
            return xm_error_set(XM_ERR_NO_MEMORY, "rank %d: UCX cannot register %zu bytes: %s",
                                self->base.rank, length, ucs_status_string(status));
        }
    }
    made->next = &self->memory;
    made->previous = self->memory.previous;
    self->memory.previous->next = made;
    self->memory.previous = made;
    *memory = made;
    return XM_OK;
}

void xm_ucx_memory_deregister(xm_transport_t *transport, xm_memory_t *memory)
{
    if (memory != NULL) {
        unmap((xm_ucx_transport_t *)transport, memory);
        memory->previous->next = memory->next;
        memory->next->previous = memory->previous;
        free(memory);
    }
}

/* Frees the requests of closes that have ended; true when none is left. */
static bool closes_ended(xm_ucx_transport_t *self)
{
    bool all = true;

    for (int rank = 0; rank < self->base.size; ++rank) {
        xm_ucx_peer_t *peer = &self->peers[rank];

        for (int i = 0; i < peer->stripe.rails; ++i) {
            void **closing = &peer->lanes[i].closing;

            if (*closing != NULL && ucp_request_check_status(*closing) != UCS_INPROGRESS) {
                ucp_request_free(*closing);
                *closing = NULL;
            }
            /* A rail with abandoned operations makes no more progress. */
            all = all && (*closing == NULL || xm_ucx_rail_of(peer, i)->abandoned > 0);
        }
        all = all && xm_ucx_ring_is_empty(&peer->in_flight) && peer->strays == NULL;
    }
    return all;
}

/* Peers that left without a word never answer a close; UCX aborts when such a request still has an
 * owner. */
static void forget_closes(xm_ucx_transport_t *self)
{
    for (int rank = 0; rank < self->base.size; ++rank) {
        xm_ucx_peer_t *peer = &self->peers[rank];

        for (int i = 0; i < peer->stripe.rails; ++i) {
            if (peer->lanes[i].closing != NULL) {
                ucp_request_free(peer->lanes[i].closing);
                peer->lanes[i].closing = NULL;
                ++xm_ucx_rail_of(peer, i)->abandoned;
            }
        }
    }
}

/* Receives that nothing will come for do not keep what was sent from going out. */
static void cancel_mail_receives(xm_ucx_peer_t *peer)
{
    xm_op_t *op = peer->in_flight.priv.next;

    while (op != &peer->in_flight) {
        xm_op_t *next = op->priv.next;

        if (op->priv.kind == XM_UCX_RECEIVE) {
            xm_ucx_inbox_cancel(peer->mail, op);
        }
        op = next;
    }
}

/* Ends what is in flight, and lets UCX send what has ended here; true when it cannot. */
static bool close_mail(xm_ucx_peer_t *peer, int64_t deadline)
{
    xm_ucx_transport_t *self = peer->owner;
    bool well = !peer->failed && !self->fenced, busy;

    if (well) {
        cancel_mail_receives(peer);
    }
    busy = !xm_ucx_ring_is_empty(&peer->in_flight);
    if (well && !busy) {
        while (xm_ucx_mail_has_parcels(peer->mail) && !peer->reported &&
               xm_transport_now(&self->base) < deadline) {
            if (xm_transport_progress(&self->base) == 0) {
                (void)poll(NULL, 0, 1);
            }
        }
    }
    xm_ucx_abandon_ops(peer);
    return busy || xm_ucx_mail_has_parcels(peer->mail);
}

/* Lets what was sent reach the peers (an endpoint with nothing in flight closes in order), and
 * makes UCX end what is still in flight. */
static void close_all(xm_ucx_transport_t *self)
{
    int64_t deadline = xm_transport_now(&self->base) + (int64_t)CLOSE_MS * 1000000;

    for (int rank = 0; rank < self->base.size; ++rank) {
        xm_ucx_peer_t *peer = &self->peers[rank];
        bool busy;

        xm_ucx_cancel_receives(peer);
        busy = peer->mail != NULL ? close_mail(peer, deadline)
                                  : !xm_ucx_ring_is_empty(&peer->in_flight) || peer->strays != NULL;
        if (!xm_ucx_watches(peer) && busy) {
            xm_ucx_abandon(peer);
        } else if (!peer->failed) {
            xm_ucx_close_endpoints(peer, busy);
        }
    }
    while (!closes_ended(self) && xm_transport_now(&self->base) < deadline) {
        if (xm_transport_progress(&self->base) == 0) {
            (void)poll(NULL, 0, 1);
        }
    }
    forget_closes(self);
    (void)xm_ucx_deliver(self);
}

static void ignore_message(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info,
                           void *user_data)
{
    (void)status;
    (void)info;
    (void)user_data;
    ucp_request_free(request);
}

/* Throws away messages that nobody received: after a failure that is normal, but UCX would warn
 * about each. Their senders see a closed connection. */
static void discard_messages(xm_ucx_rail_t *rail)
{
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK,
                                 .cb.recv = ignore_message};
    ucp_tag_recv_info_t info;
    ucp_tag_message_h message;
    char nothing;

    while ((message = ucp_tag_probe_nb(rail->worker, 0, 0, 1, &info)) != NULL) {
        (void)ucp_tag_msg_recv_nbx(rail->worker, &nothing, 0, message, &param);
    }
}

/* Parcels that UCX has not sent over a rail. */
static int parcels_stuck(const xm_ucx_transport_t *self, int rail)
{
    int stuck = 0;

    for (int rank = 0; rank < self->base.size; ++rank) {
        const xm_ucx_peer_t *peer = &self->peers[rank];
        int lane = rail - peer->rail;

        if (peer->mail != NULL && lane >= 0 && lane < XM_NICS_MAX) {
            const xm_ucx_link_t *posted = &peer->mail->lanes[lane].posted;

            stuck += posted->next != posted;
        }
    }
    return stuck;
}

/* What mails had, now that UCX is done with. */
static void close_mails(xm_ucx_transport_t *self)
{
    for (int rank = 0; rank < self->base.size; ++rank) {
        xm_ucx_mail_close(&self->peers[rank]);
    }
    while (self->free_parcels != NULL) {
        xm_ucx_parcel_t *parcel = self->free_parcels->of;

        self->free_parcels = self->free_parcels->next;
        free(parcel);
    }
    if (self->has_parcel_type) {
        ucp_dt_destroy(self->parcel_type);
    }
    xm_nic_watch_close(&self->watch);
    if (self->timer_fd >= 0) {
        (void)close(self->timer_fd);
    }
}

void xm_ucx_destroy(xm_transport_t *transport)
{
    xm_ucx_transport_t *self = (xm_ucx_transport_t *)transport;

    self->closing = true;
    close_all(self);
    /* The caller forgot these; UCX would abort the process over them. */
    for (xm_memory_t *memory = self->memory.next; memory != &self->memory;) {
        xm_memory_t *next = memory->next;

        unmap(self, memory);
        free(memory);
        memory = next;
    }
    for (int rail = 0; rail < XM_UCX_RAIL_COUNT; ++rail) {
        if (self->rails[rail].open) {
            discard_messages(&self->rails[rail]);
        }
        self->rails[rail].stuck += parcels_stuck(self, rail);
        xm_ucx_rail_close(&self->rails[rail]);
    }
    /* UCX has let go of everything now: whatever it did not end, ends here. */
    for (int rank = 0; rank < self->base.size; ++rank) {
        while (!xm_ucx_ring_is_empty(&self->peers[rank].in_flight)) {
            xm_ucx_end_op(self->peers[rank].in_flight.priv.next, XM_ERR_CANCELED);
        }
    }
    (void)xm_ucx_deliver(self);
    close_mails(self);
    if (self->epoll >= 0) {
        (void)close(self->epoll);
    }
    xm_ucx_free_pieces(self);
    free(self->addresses);
    free(self->peers);
    free(self);
}
