/* SPDX-License-Identifier: Apache-2.0 */
/* Making a UCX transport: opening the rails, then exchanging addresses. It is two steps, open
 * and join, with the exchange between them left to the caller, because pipes exchange addresses
 * without a bootstrap. Both ends of a pair compute the rails and the shares between them from
 * the same two blobs, so no further agreement is needed and no message is sent. Blobs come from
 * the network and are checked as such. Only rails that some peer needs are opened: each costs a
 * UCX context, descriptors and memory. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "comm/base.h"
#include "comm/transport/ucx/transport_ucx_private.h"

static int host_of(const xm_transport_ucx_params_t *params, int rank)
{
    return params->host != NULL ? params->host[rank] : 0;
}

/* Without a list of machines, hosts and machines are the same: only emulated clusters tell them
 * apart. */
static int machine_of(const xm_transport_ucx_params_t *params, int rank)
{
    return params->machine != NULL ? params->machine[rank] : host_of(params, rank);
}

/* Chooses the kind of rail between two ranks; both ends come to the same answer. For another
 * emulated host on the same machine only TCP is honest: shared memory would hide the network
 * that is emulated. */
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
    /* Rails to this host and to this machine have no NIC; they are counted under the name of
     * their kind. */
    const xm_nic_t *nic = rail < XM_UCX_RAIL_NIC ? NULL : &self->nics.nic[rail - XM_UCX_RAIL_NIC];

    self->rails[rail].counters = xm_counters_open_nic(
        self->base.base.counters,
        xm_ucx_rail_name((xm_ucx_rail_kind_t)(nic == NULL ? rail : XM_UCX_RAIL_NIC),
                         nic != NULL ? nic->device : ""),
        nic != NULL ? nic->rate : 0);
    if (nic != NULL) {
        self->base.nics[rail - XM_UCX_RAIL_NIC] =
            (xm_rails_nic_t){.name = nic->device, .counters = self->rails[rail].counters};
    }
}

/* A transport that spins has no epoll set, and a rail without wakeup no descriptor: neither is
 * an error. */
static xm_status_t watch_fd(const xm_ucx_transport_t *self, int fd)
{
    struct epoll_event event = {.events = EPOLLIN};

    return self->epoll < 0 || fd < 0 || epoll_ctl(self->epoll, EPOLL_CTL_ADD, fd, &event) == 0
               ? XM_OK
               : xm_error_set(XM_ERR_IO, "epoll_ctl: %s", strerror(errno));
}

/* Opens one rail with its own context, which sees no other device. Frames need UCX's active
 * messages, which are asked for only where there are several NICs. */
static xm_status_t open_rail(xm_ucx_transport_t *self, int rail, bool wakeup)
{
    int nic = rail - XM_UCX_RAIL_NIC;
    xm_ucx_rail_params_t params = {.kind = nic < 0 ? (xm_ucx_rail_kind_t)rail : XM_UCX_RAIL_NIC,
                                   .device = nic < 0 ? "" : self->nics.nic[nic].device,
                                   .rank = self->base.base.rank,
                                   .ranks = self->base.base.size,
                                   .ranks_here = self->ranks_here,
                                   .wakeup = wakeup,
                                   .frames = self->nics.count > 1 && nic >= 0};
    xm_status_t status = xm_ucx_rail_open(&self->rails[rail], &params);

    if (status == XM_OK) {
        /* A message may take any rail, so the transport handles device memory only if all rails
         * do. */
        self->base.base.cuda = self->base.base.cuda && self->rails[rail].cuda;
        count_rail(self, rail);
        status = watch_fd(self, self->rails[rail].event_fd);
    }
    if (status == XM_OK) {
        xm_ucx_gate_shut(self->gate, self->rails[rail].address, self->rails[rail].address_length);
    }
    return status;
}

/* A NIC that cannot be used is left out as long as there is another one: a job that has lost one
 * must be able to go on with its next transport. Its place in the list stays, for rails join NICs
 * of the same place. */
static xm_status_t open_nics(xm_ucx_transport_t *self, bool wakeup)
{
    char why[XM_NICS_MAX][512] = {""};
    /* Reasons are kept until it is known whether they become warnings or the failure. */
    xm_status_t failure = XM_OK;
    int open = 0;

    for (int nic = 0; nic < self->nics.count; ++nic) {
        xm_status_t status = open_rail(self, XM_UCX_RAIL_NIC + nic, wakeup);

        if (status < 0 && (status != XM_ERR_UNREACHABLE || self->nics.count == 1)) {
            return status;
        }
        if (status < 0) {
            failure = status;
            (void)snprintf(why[nic], sizeof(why[nic]), "%s", xm_last_error());
        }
        open += status == XM_OK;
    }
    /* Warnings come only when some NIC works: otherwise the failure itself says everything. */
    for (int nic = 0; nic < self->nics.count && open > 0; ++nic) {
        if (why[nic][0] != '\0') {
            xm_log_warn("%s; the other NICs carry on without it", why[nic]);
        }
    }
    return open > 0 ? XM_OK : failure;
}

/* Opens what any peer needs. The NIC rails come last and together, since one of several may be
 * missing. */
static xm_status_t open_rails(xm_ucx_transport_t *self, bool wakeup)
{
    bool needed[XM_UCX_RAIL_COUNT] = {false};
    xm_status_t status = XM_OK;

    self->base.base.cuda = true;
    for (int rank = 0; rank < self->base.base.size; ++rank) {
        needed[self->peers[rank].rail] |= rank != self->base.base.rank;
    }
    for (int rail = 0; rail < XM_UCX_RAIL_NIC && status == XM_OK; ++rail) {
        status = needed[rail] ? open_rail(self, rail, wakeup) : XM_OK;
    }
    return status == XM_OK && needed[XM_UCX_RAIL_NIC] ? open_nics(self, wakeup) : status;
}

/*
 * A rank's blob, little-endian: u32 number of NICs, u32 whether some of them do not carry TCP only,
 * u64 rate of each, then for each rail up to the last NIC's u32 length (0: closed) and the address.
 */
enum { COUNT_SIZE = 4, FETCHES_SIZE = 4, HEAD_SIZE = 8, RATE_SIZE = 8, LENGTH_SIZE = 4 };

/* True when chunks should be fetched. To copy them is free over TCP, where UCX copies anyway, and
 * safe from its assertions about peers that die; but it would cost RDMA devices their advantage. */
static bool has_more_than_tcp(const xm_ucx_transport_t *self)
{
    bool more = false;

    for (int nic = 0; nic < self->nics.count; ++nic) {
        const xm_ucx_rail_t *rail = &self->rails[XM_UCX_RAIL_NIC + nic];

        more = more || (rail->open && !rail->tcp_only);
    }
    return more;
}

/* Writes the blob that the peers read in read_peer(). Closed rails keep a place of length 0, so
 * that the position in the list identifies the rail. */
static xm_status_t pack_addresses(const xm_ucx_transport_t *self, uint8_t **blob, size_t *length)
{
    int rails = XM_UCX_RAIL_NIC + self->nics.count;
    size_t used = 0, total = HEAD_SIZE + (size_t)self->nics.count * RATE_SIZE;

    for (int rail = 0; rail < rails; ++rail) {
        total += LENGTH_SIZE + self->rails[rail].address_length;
    }
    *blob = malloc(total);
    XM_NEED_MEMORY(*blob, "%zu bytes of addresses", total);
    xm_put_le(*blob, (uint64_t)self->nics.count, COUNT_SIZE);
    xm_put_le(*blob + COUNT_SIZE, has_more_than_tcp(self), FETCHES_SIZE);
    used += HEAD_SIZE;
    /* Rates come from the list of NICs or the system; 0 tells the peer that they are unknown. */
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

/* The address of one rail in the part of a rank's blob that holds addresses, NULL when it is
 * not there. The blob comes from another process, so every length is checked against what is
 * left of it. */
static const void *find_address(const uint8_t *blob, size_t length, int wanted)
{
    /* Positions are counted up to the wanted one, so each length on the way has to be checked. */
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

/* Rails to a peer that cannot be used because either end could not open its NIC, as bits. */
static unsigned lost_rails(const xm_ucx_peer_t *peer, const uint8_t *addresses, size_t length,
                           int lanes)
{
    unsigned lost = 0;

    /* A NIC that one end has lost is lost for both, and each sees that from the other's blob. */
    for (int lane = 0; lane < lanes; ++lane) {
        if (!xm_ucx_rail_of(peer, lane)->open ||
            find_address(addresses, length, peer->rail + lane) == NULL) {
            lost |= 1u << lane;
        }
    }
    return lost;
}

/* Explains why there is no rail to a peer: either no NIC of one place is usable at both ends,
 * or the two sides count hosts differently, which is a mistake in the job's settings. */
static xm_status_t no_way(const xm_ucx_peer_t *peer, const uint8_t *addresses, size_t length)
{
    for (int nic = 0; nic < XM_NICS_MAX && peer->rail == XM_UCX_RAIL_NIC; ++nic) {
        if (find_address(addresses, length, peer->rail + nic) != NULL) {
            return xm_error_set(XM_ERR_UNREACHABLE,
                                "rank %d and rank %d have no NICs of the same place in XM_NICS "
                                "that both can use",
                                peer->base.owner->base.rank, peer->base.rank);
        }
    }
    return XM_MISMATCH("rank %d and rank %d disagree on whether they share a machine",
                       peer->base.owner->base.rank, peer->base.rank);
}

/* Several rails travel in frames. Both ends evaluate the same condition, each with the other's
 * flag, so either both fetch or neither does. Where UCX moves CUDA memory no message is sent
 * unannounced, since that needs a copy. */
static xm_status_t open_rails_to(xm_ucx_peer_t *peer, bool they_fetch)
{
    xm_ucx_transport_t *self = xm_ucx_owner(peer);
    bool fetches = they_fetch && has_more_than_tcp(self);

    self->base.base.cuda = self->base.base.cuda && fetches;
    return xm_rails_open(&peer->base, fetches ? XM_RAILS_FETCH : XM_RAILS_COPY,
                         self->base.base.cuda ? 0 : XM_UCX_EAGER);
}

/* Learns the way to a peer from its blob. Between two ranks there are as many rails as the one
 * with fewer NICs has. Rates are capped so that sums of them cannot overflow. Both ends know
 * both lists and both sets of open rails, so both arrive at the same stripe. */
static xm_status_t read_peer(xm_ucx_peer_t *peer, const uint8_t *blob, size_t length)
{
    const xm_nics_t *nics = &xm_ucx_owner(peer)->nics;
    /* The number of NICs is the peer's claim. It is compared with its limits and with the
     * blob's length before anything behind it is read. */
    uint64_t count = length >= HEAD_SIZE ? xm_get_le(blob, COUNT_SIZE) : 0;
    uint64_t ours[XM_NICS_MAX] = {0}, theirs[XM_NICS_MAX] = {0};
    size_t head = HEAD_SIZE + (size_t)count * RATE_SIZE;
    int lanes = count < (uint64_t)nics->count ? (int)count : nics->count;

    if (count < 1 || count > XM_NICS_MAX || head > length) {
        return xm_error_set(XM_ERR_CORRUPT, "rank %d: rank %d sent no list of its NICs",
                            peer->base.owner->base.rank, peer->base.rank);
    }
    lanes = peer->rail == XM_UCX_RAIL_NIC ? lanes : 1;
    for (int lane = 0; lane < lanes; ++lane) {
        ours[lane] = nics->nic[lane].rate;
        theirs[lane] = xm_get_le(blob + HEAD_SIZE + (size_t)lane * RATE_SIZE, RATE_SIZE);
        theirs[lane] = theirs[lane] < XM_NICS_MAX_RATE ? theirs[lane] : XM_NICS_MAX_RATE;
    }
    /* The stripe to itself tells a rank what its NICs would do; it has no lanes. */
    if (peer->base.rank == peer->base.owner->base.rank) {
        xm_stripe_make(&peer->base.stripe, ours, theirs, lanes);
        return XM_OK;
    }
    xm_stripe_make_without(&peer->base.stripe, ours, theirs, lanes,
                           lost_rails(peer, blob + head, length - head, lanes));
    if (peer->base.stripe.used == 0) {
        return no_way(peer, blob + head, length - head);
    }
    for (int lane = 0; lane < lanes; ++lane) {
        peer->lanes[lane].address =
            xm_stripe_uses(&peer->base.stripe, lane)
                ? find_address(blob + head, length - head, peer->rail + lane)
                : NULL;
        peer->lanes[lane].peer = peer;
        peer->lane = xm_stripe_uses(&peer->base.stripe, lane) ? lane : peer->lane;
    }
    return peer->base.stripe.used > 1
               ? open_rails_to(peer, xm_get_le(blob + COUNT_SIZE, FETCHES_SIZE) != 0)
               : XM_OK;
}

/* Opens what rails need besides: handlers for frames, the watch on NICs, and the timer.
 * `acknowledges` is told to the caller, which then keeps more chunks in flight, because a send
 * ends only with the peer's answer. A transport that spins needs no descriptors: it looks at
 * the clock in each progress. */
static xm_status_t open_failover(xm_ucx_transport_t *self)
{
    xm_status_t status = XM_OK;

    /* Every open NIC listens, also one that only some peers reach. */
    for (int nic = 0; nic < self->nics.count && status == XM_OK && self->base.railed > 0; ++nic) {
        if (self->rails[XM_UCX_RAIL_NIC + nic].open) {
            status = xm_ucx_listen(self, XM_UCX_RAIL_NIC + nic);
        }
    }
    if (status < 0 || self->base.railed == 0) {
        return status;
    }
    self->base.base.acknowledges = true;
    xm_nic_watch_open(&self->watch, &self->nics);
    if (self->epoll < 0) {
        return XM_OK;
    }
    XM_TRY(xm_rails_timer_open(&self->base));
    XM_TRY(watch_fd(self, self->base.timer_fd));
    return watch_fd(self, self->watch.fd);
}

/* Second half of creation. The transport owns `addresses` from here on, also on failure, since
 * the peers point into it. */
xm_status_t xm_transport_ucx_join(xm_transport_t *transport, void *addresses, const size_t *offsets)
{
    xm_ucx_transport_t *self = (xm_ucx_transport_t *)transport;
    xm_status_t status = XM_OK;

    self->addresses = addresses;
    for (int rank = 0; rank < self->base.base.size && status == XM_OK; ++rank) {
        status = read_peer(&self->peers[rank], (const uint8_t *)addresses + offsets[rank],
                           offsets[rank + 1] - offsets[rank]);
    }
    return status == XM_OK ? open_failover(self) : status;
}

/* Sets every field that destroy reads, so that destroy can be called from any later failure. */
static xm_ucx_transport_t *allocate(int rank, int size, const xm_transport_ucx_params_t *params)
{
    xm_ucx_transport_t *self = calloc(1, sizeof(*self));

    if (self == NULL) {
        return NULL;
    }
    self->peers = calloc((size_t)size, sizeof(*self->peers));
    if (self->peers == NULL || !xm_rails_begin(&self->base, rank, size)) {
        /* The peers are allocated with zeros: a peer without lanes is one that destroy passes
         * over. */
        free(self->peers);
        free(self);
        return NULL;
    }
    self->base.base.ops = &xm_ucx_ops;
    self->base.lanes = &xm_ucx_lanes;
    self->epoll = self->watch.fd = -1;
    xm_list_init(&self->memory);
    for (int other = 0; other < size; ++other) {
        xm_ucx_peer_t *peer = &self->peers[other];

        self->ranks_here += machine_of(params, other) == machine_of(params, rank);
        self->base.peers[other] = &peer->base;
        peer->base.owner = &self->base;
        peer->base.rank = other;
        peer->rail = rail_to(params, rank, other);
        xm_list_init(&peer->base.in_flight);
    }
    return self;
}

static xm_status_t read_nics(xm_ucx_transport_t *self, const char *text)
{
    xm_status_t status = xm_nics_parse(text, self->base.base.rank, "/sys", &self->nics);

    self->base.nic_count = status == XM_OK ? self->nics.count : 0;
    return status;
}

/* First half of creation: opens the rails and returns the blob for the peers. On failure
 * nothing is left; the blob belongs to the caller. */
xm_status_t xm_transport_ucx_open(int rank, int size, const xm_transport_ucx_params_t *params,
                                  xm_transport_t **transport, void **blob, size_t *length)
{
    xm_ucx_transport_t *self;
    uint8_t *packed = NULL;
    xm_status_t status;

    if (size > XM_UCX_MAX_RANKS) {
        return XM_INVALID("UCX transport: %d ranks", size);
    }
    self = allocate(rank, size, params);
    XM_NEED_MEMORY(self, "a transport of %d ranks", size);
    self->fault_channel = params->fault_channel;
    self->base.base.counters = params->counters;
    self->base.base.job_rank = params->job_rank;
    self->base.failover = params->failover;
    self->base.rail_timeout = (int64_t)(params->rail_timeout * 1e9);
    status = read_nics(self, params->nics);
    XM_THEN(status, xm_ucx_gate_create(params->callers, params->caller_count, &self->gate));
    /* Ranks that sleep wait on one descriptor; it holds those of all rails. */
    if (status == XM_OK && !params->spin) {
        self->epoll = epoll_create1(EPOLL_CLOEXEC);
        if (self->epoll < 0) {
            status = xm_error_set(XM_ERR_IO, "epoll_create1: %s", strerror(errno));
        }
    }
    XM_THEN(status, open_rails(self, !params->spin));
    XM_THEN(status, pack_addresses(self, &packed, length));
    if (status < 0) {
        xm_ucx_destroy(&self->base.base);
        return status;
    }
    *transport = &self->base.base;
    *blob = packed;
    return XM_OK;
}

/* Both halves with an allgather of the bootstrap between them; collective over all ranks. A
 * rank that fails in the first half does not take part in the allgather: the others see it
 * leave or run into the timeout. */
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
    XM_THEN(status, xm_transport_ucx_join(*transport, addresses, offsets));
    free(offsets);
    if (status < 0) {
        xm_ucx_destroy(*transport);
        *transport = NULL;
    }
    return status;
}
