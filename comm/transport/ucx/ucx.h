/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file comm/transport/ucx/ucx.h
 * The transport over UCX's tag-matching interface (UCP), the default one.
 *
 * Peers are reached over *rails*. A rail is a UCX context, a worker and its address; only those
 * that some peer needs are opened:
 *  - default: for peers on other machines; UCX chooses, verbs or TCP. With a list of NICs there is
 *    one such rail for each of them instead, and it uses no other network device;
 *  - host: for peers on this host; UCX chooses, shared memory with copies by the kernel (cma) where
 * allowed;
 *  - tcp: for peers that count as another host although they run on this machine (XM_HOST).
 *
 * Several NICs: between two ranks there are as many rails as the one with fewer NICs has; rail i
 * joins the i-th NIC of both, and its rate is the smaller of theirs. Messages are spread over the
 * rails in proportion to their rates. A rail that would carry less than a sixteenth carries
 * nothing. A NIC without a rate has the one its driver tells; where a rail has none at all, all are
 * equal. A NIC that cannot be used when the transport is made is left out with a warning, if
 * another rail is left. (UCX's own multi-rail does not help over TCP: both connections may end up
 * on one NIC.)
 *
 * They stand in for each other: a rail that is lost in the middle of transfers (link down, address
 * removed, connection reset, nothing passes for `rail_timeout` seconds) is given up by both ranks,
 * what was not delivered is sent again over the others, operations end well, and one warning says
 * so. The last rail's loss is that of the peer; without `failover` any rail's is. Messages then
 * travel in frames of their own (comm/transport/rails.h): those below 20 KiB end at the sender at
 * once, longer ones when all of it has arrived. Chunks of these are copied where a NIC is used by
 * TCP only, and otherwise fetched by UCX's rendezvous.
 *
 * User tags must be below 2^48 and there are at most 65536 ranks: the upper 16 bits of UCX's tag
 * hold the sender's rank.
 *
 * UCX's error handling is on towards other machines when the caller has no fault channel, so that
 * dead peers are noticed at all, and where chunks are fetched, so that a lost rail lets go of them.
 * What it needs is set unless the environment says otherwise:
 * UCX_KEEPALIVE_INTERVAL=1s, UCX_TCP_KEEPIDLE=1s, UCX_TCP_KEEPINTVL=1s, UCX_TCP_KEEPCNT=3, and
 * UCX_MM_ERROR_HANDLING=y. Otherwise, and always inside a machine, it is off (it forbids
 * cma, and UCX 1.13 may abort a survivor over TCP): death is then learnt from
 * xm_transport_peer_failed(), which a worker calls when its bootstrap says so. A link that goes
 * down between living hosts ends in the caller's deadline.
 *
 * Limits: a receive that is cancelled while chunks of its message have come loses that message.
 * Cancelling a send that waits for its receiver has no effect in UCX; it ends when the
 * receiver takes it, the peer fails, or the transport is destroyed.
 */
#pragma once

#include "comm/job.h"
#include "comm/transport.h"

/** Bytes of /dev/shm that a rank may need there, four MiB for each of UCX's workers. */
enum { XM_UCX_SHM_PER_RANK = 8 << 20 };

typedef struct xm_transport_ucx_params {
    const int *host;    /**< by rank: equal numbers are the same host; NULL: all on one host */
    const int *machine; /**< by rank: equal numbers are the same machine; NULL: as host */
    bool
        fault_channel; /**< the caller learns of deaths and says so by xm_transport_peer_failed() */
    bool spin;         /**< no descriptor to sleep on, a little faster; xm_transport_arm() then
                            never allows to sleep */
    double timeout;    /**< seconds for the exchange of addresses */
    const char *nics;  /**< this rank's NICs towards other machines, as in XM_NICS; NULL or empty:
                            UCX chooses. Ranks may differ. */
    xm_counters_t *counters; /**< where to count, outlives the transport; NULL: nowhere */
    const int *job_rank;     /**< by rank: the peer's number there; NULL: its rank; not copied */
    bool failover;           /**< several NICs stand in for each other; ranks may differ */
    /** Where connections may come from (xm_address_write()); the kernel drops others. NULL, 0: they
     *  may come from everywhere. Not copied. */
    const uint8_t (*callers)[XM_ADDRESS_BYTES];
    int caller_count;
    double rail_timeout; /**< seconds after which a NIC over which nothing passes is given up, if
                          others still reach the peer */
} xm_transport_ucx_params_t;

#define XM_TRANSPORT_UCX_PARAMS_INIT                                                               \
    {                                                                                              \
        .timeout = 30.0, .failover = true, .rail_timeout = 1.5                                     \
    }

/**
 * Opens the rails and exchanges addresses. Collective: every rank of the bootstrap calls it. The
 * bootstrap is not used afterwards. Connections are made at the first message.
 */
xm_status_t xm_transport_ucx_create(xm_bootstrap_t *bootstrap,
                                    const xm_transport_ucx_params_t *params,
                                    xm_transport_t **transport);

/**
 * The same in two steps, for ranks that exchange addresses in their own way: opens the rails, and
 * gives what the other ranks have to know (freed with free()). Until it has joined, a transport can
 * only be destroyed. Internal.
 */
xm_status_t xm_transport_ucx_open(int rank, int size, const xm_transport_ucx_params_t *params,
                                  xm_transport_t **transport, void **blob, size_t *length);

/**
 * Takes over the blobs of all ranks, in one allocation: rank r's is [offsets[r], offsets[r + 1]).
 * After a failure the caller destroys the transport. Internal.
 */
xm_status_t xm_transport_ucx_join(xm_transport_t *transport, void *addresses,
                                  const size_t *offsets);

/**
 * How many of @p length bytes each rail to @p peer is given (room for 8) in the long run, as long
 * as all rails work. Returns the number of rails. Internal.
 */
int xm_transport_ucx_shares(const xm_transport_t *transport, int peer, size_t length,
                            size_t *shares);

/**
 * Which UCX transports and devices carry messages to @p peer, e.g. "sysv/memory" or "tcp/eth0
 * tcp/lo", as far as UCX has chosen yet; " + " stands between rails. Connects if there is no
 * connection. For reports and tests.
 */
xm_status_t xm_transport_ucx_lanes(xm_transport_t *transport, int peer, char *buffer, size_t size);
