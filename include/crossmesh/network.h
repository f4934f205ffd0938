/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file network.h
 * What schedulers, bounds and simulations know of the network: which rank is on which host, and the
 * rates.
 *
 * The model has three levels. Every device has a full-duplex port to the fabric of its *host*,
 * which is all that one NVLink domain (or shared memory) connects: a machine, or several trays. A
 * host has full-duplex *rails*: a rail is the NIC, or the NICs that transports stripe messages
 * over, of some of its ranks, and carries all that these ranks exchange with other hosts and
 * nothing else. Without rails or a number of NICs given, all NICs of a host are one rail that all
 * its ranks use. Hosts and rails may differ. Hosts may be grouped in racks whose uplinks (one per
 * rack and direction) everything between racks shares.
 *
 * What a message of b bytes from one host to another occupies, from its start: the egress of the
 * sending rank's rail for b / its rate, the ingress of the receiving rank's rail for b / its rate,
 * and, when the racks differ, the uplinks for b / their rate. It has arrived when the longest of
 * these has passed, plus the latency, which occupies nothing. Inside a host: the sending and the
 * receiving device's port for b / port rate, plus the latency.
 *
 * Where processors move the bytes (TCP, shared memory), each end of a message also needs b times
 * some seconds of a processor of its host; a copy inside a rank has both its ends there. A rank has
 * one processor at most, and the ranks of a host have its cores between them. In which order they
 * get them is not modelled: a plan takes at least what its busiest rank or host needs, and where
 * the rest would be quicker, all of it slows down alike. Bounds leave processors out.
 *
 * @code
 *     // 16 ranks on two hosts of 8, 200 Gbit/s between the hosts, 50 GB/s inside.
 *     xm_status_t two_hosts(xm_network_t **network)
 *     {
 *         int host_of_rank[16];
 *         xm_network_params_t params = XM_NETWORK_PARAMS_INIT;
 *
 *         for (int rank = 0; rank < 16; ++rank) {
 *             host_of_rank[rank] = rank / 8;
 *         }
 *         params.ranks = 16;
 *         params.host_of_rank = host_of_rank;
 *         params.nic_bandwidth = 25e9;
 *         params.nic_latency = 3e-6;
 *         params.host_bandwidth = 50e9;
 *         params.host_latency = 1e-6;
 *         return xm_network_create(&params, network);
 *     }
 * @endcode
 *
 * Units: rates are bytes per second, latencies seconds, all finite; times in the model are integer
 * nanoseconds (rounded up, latencies to the nearest). Ownership: a network is freed by
 * xm_network_destroy(); plans made for it keep what they need. Threads: immutable after creation,
 * so shared freely. Errors: status.h; the sentence names the host or rank. Source: MLSys'23,
 * section 3.2 (the model of hosts and their NICs), extended by unequal hosts, rails, racks
 * and ports.
 */
#ifndef CROSSMESH_NETWORK_H
#define CROSSMESH_NETWORK_H

#include <crossmesh/profile.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Hosts of ranks, and rates. */
typedef struct xm_network xm_network_t;

/** A network described by hand. Start from ::XM_NETWORK_PARAMS_INIT; arrays are copied. */
typedef struct xm_network_params {
    size_t struct_size;        /**< sizeof(xm_network_params_t) */
    int ranks;                 /**< at least 1 */
    const int *host_of_rank;   /**< ranks entries, hosts numbered from 0 without gaps */
    double nic_bandwidth;      /**< bytes/s of one host, per direction */
    double nic_latency;        /**< seconds */
    double host_bandwidth;     /**< bytes/s of one device's port inside its host, per direction */
    double host_latency;       /**< seconds */
    const double *egress;      /**< bytes/s by host; NULL: nic_bandwidth everywhere */
    const double *ingress;     /**< bytes/s by host; NULL: nic_bandwidth everywhere */
    const int *rack_of_host;   /**< racks numbered from 0 without gaps; NULL: all in one */
    double uplink_bandwidth;   /**< bytes/s of a rack's uplink, per direction; 0: never the limit */
    const int *rail_of_rank;   /**< rails numbered from 0 without gaps, each of ranks of one host;
                                    NULL: those of `nics_per_host` */
    const double *rail_egress; /**< bytes/s by rail, in place of `egress`; NULL: every rail has an
                                    equal share of its host's rate */
    const double *rail_ingress; /**< likewise, in place of `ingress` */
    int nics_per_host; /**< NICs of every host, dealt to its ranks in turn: rank i of a host has NIC
                            i modulo their number; where ranks are fewer, rank i has the NICs i,
                            i + ranks, … together. 0: all NICs of a host are one rail. */
    const double *nic_weights; /**< the parts that a host's NICs have of its rate, by NIC, as
                                    multiples of their sum; NULL: they are alike */
    double cores_per_host;     /**< processors of one host; 0: they are never the limit */
    double nic_cpu;            /**< seconds of a processor at each end, of a byte between hosts */
    double host_cpu;           /**< the same of a byte inside a host */
} xm_network_params_t;

/** Initialiser of an ::xm_network_params_t. */
#define XM_NETWORK_PARAMS_INIT                                                                     \
    {                                                                                              \
        sizeof(xm_network_params_t), 0, NULL, 0.0, 0.0, 0.0, 0.0, NULL, NULL, NULL, 0.0, NULL,     \
            NULL, NULL, 0, NULL, 0.0, 0.0, 0.0                                                     \
    }

/** Makes a network from rates given by hand. */
XM_API xm_status_t xm_network_create(const xm_network_params_t *params, xm_network_t **network);

/** Rates and latencies from a measured profile; the hosts of @p ranks ranks from @p host_of_rank,
 * numbered without gaps. Hosts beyond the profile's repeat its hosts in order. */
XM_API xm_status_t xm_network_from_profile(const xm_cluster_profile_t *profile, int ranks,
                                           const int *host_of_rank, xm_network_t **network);

/** Frees the network. NULL is accepted. */
XM_API void xm_network_destroy(xm_network_t *network);

/** Number of ranks. */
XM_API int xm_network_ranks(const xm_network_t *network);
/** Number of hosts. */
XM_API int xm_network_hosts(const xm_network_t *network);
/** Host of a rank; −1 for one that does not exist. */
XM_API int xm_network_host_of(const xm_network_t *network, int rank);

#ifdef __cplusplus
}
#endif

#endif
