/**
 * @file network.h
 * What schedulers, bounds and simulations know of the network: which rank is on which host, and the
 * rates.
 *
 * The model of the paper: every host has one full-duplex NIC (all its NICs together) that all its
 * devices share; inside a host transfers cost no NIC. Rates are bytes per second, latencies
 * seconds, times integer nanoseconds. Immutable after creation.
 */
#ifndef XM_RESHARDING_NETWORK_H
#define XM_RESHARDING_NETWORK_H

#include "comm/cluster_profile.h"
#include "comm/status.h"

typedef struct xm_network xm_network_t;

typedef struct xm_network_params {
    size_t struct_size;
    int ranks;
    const int *host_of_rank; /**< ranks entries, hosts numbered from 0 without gaps; copied */
    double nic_bandwidth;    /**< bytes/s of one host, per direction */
    double nic_latency;      /**< seconds */
    double host_bandwidth;   /**< bytes/s between two ranks of a host */
    double host_latency;     /**< seconds */
} xm_network_params_t;

#define XM_NETWORK_PARAMS_INIT                                                                     \
    {                                                                                              \
        .struct_size = sizeof(xm_network_params_t)                                                 \
    }

XM_API xm_status_t xm_network_create(const xm_network_params_t *params, xm_network_t **network);

/** Rates and latencies from a measured profile; the ranks' hosts from @p host_of_rank. */
XM_API xm_status_t xm_network_from_profile(const xm_cluster_profile_t *profile, int ranks,
                                           const int *host_of_rank, xm_network_t **network);

XM_API void xm_network_destroy(xm_network_t *network);

XM_API int xm_network_ranks(const xm_network_t *network);
XM_API int xm_network_hosts(const xm_network_t *network);
XM_API int xm_network_host_of(const xm_network_t *network, int rank);
XM_API double xm_network_nic_bandwidth(const xm_network_t *network);
XM_API double xm_network_host_bandwidth(const xm_network_t *network);
XM_API double xm_network_nic_latency(const xm_network_t *network);
XM_API double xm_network_host_latency(const xm_network_t *network);

/** Nanoseconds that @p bytes occupy a NIC (no latency), rounded up. */
XM_API int64_t xm_network_nic_ns(const xm_network_t *network, uint64_t bytes);

#endif
