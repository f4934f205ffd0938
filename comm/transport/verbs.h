/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file verbs.h
 * The transport over RDMA verbs (libibverbs): InfiniBand and RoCE version 2.
 *
 * Every pair of ranks, also of one host, is joined by one reliable connection (RC queue pair) for
 * each *rail*. Rail i joins the i-th ports of both (comm/transport/verbs/device.h says which those
 * are); there are as many as the rank with fewer ports has, and messages go over them as rails.h
 * says. All connections are made when the transport is: a queue pair that is not ready at
 * its peer is lost, and the bootstrap, which tells their numbers, is not used afterwards. For 1000
 * ranks with one port each that is 1000 queue pairs a rank, 4 MB of exchanged numbers and at most
 * 64 MiB of receive slots; with more ranks the slots become fewer and smaller.
 *
 * Short messages (up to 8 KiB, 2 KiB in large jobs) are sent into slots that their receiver keeps
 * posted, and copied. For longer ones, and where too many wait for their receives, the sender only
 * sends an announcement. When that and the receive have met, the receiver grants access to its
 * buffer, and the sender writes into it by RDMA. Nothing is copied.
 *
 * Nobody sends more than there are slots: each is a credit, and comes back with the next frame.
 *
 * Memory: a registration that the caller made (xm_transport_memory_register()) pins it until the
 * caller undoes that. Messages without one that are not copied have their buffer registered from
 * the post to the end of the operation; operations in flight at the same time share. Nothing stays
 * registered behind the caller's back, so freeing memory is always safe.
 *
 * Failure: what a connection that fails had on its way goes by those of other rails, and it is
 * tried again from time to time; with the last one its peer fails. Packets that are not answered
 * are repeated for 1 s (up to 4 s on some devices). While operations wait and nothing comes, the
 * peer is asked whether it lives; so a cut cable or a dead host is noticed within 5 s. Before an
 * operation with a lost peer ends, its connections are closed: nothing is written into its buffer
 * afterwards.
 *
 * Limits: cancelling has no effect on a send, or on a receive that has been granted; these end when
 * their peer answers or fails, or the transport is destroyed. Host memory only.
 */
#pragma once

#include "comm/job.h"
#include "comm/transport.h"

typedef struct xm_transport_verbs_params {
    const char *nics; /**< this rank's ports, as in XM_NICS; NULL or empty: all that are usable;
                         "^mlx5_4,mlx5_5:2": all but these */
    bool spin;        /**< no descriptor to sleep on; xm_transport_arm() never allows to sleep */
    double timeout;   /**< seconds for each step of connecting */
    size_t longest_write;    /**< bytes of one RDMA WRITE; 0: what the ports allow, at most 1 GiB */
    xm_counters_t *counters; /**< where to count, outlives the transport; NULL: nowhere */
    const int *job_rank;     /**< by rank: the peer's number there; NULL: its rank; not copied */
} xm_transport_verbs_params_t;

#define XM_TRANSPORT_VERBS_PARAMS_INIT                                                             \
    {                                                                                              \
        .timeout = 30.0                                                                            \
    }

/**
 * Opens the ports and connects to every rank. Collective: every rank of the bootstrap calls it. The
 * bootstrap is not used afterwards.
 */
xm_status_t xm_transport_verbs_create(xm_bootstrap_t *bootstrap,
                                      const xm_transport_verbs_params_t *params,
                                      xm_transport_t **transport);

/**
 * Which ports carry messages to @p peer, e.g. "mlx5_0:1 > mlx5_2:1"; " + " stands between
 * rails. For reports and tests.
 */
xm_status_t xm_transport_verbs_lanes(xm_transport_t *transport, int peer, char *buffer,
                                     size_t size);
