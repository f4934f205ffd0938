/**
 * @file network.h
 * What schedulers, bounds and simulations know of the network: which rank is on which host, and the
 * rates.
 *
 * The model. Every host has full-duplex NICs, which its devices share; all NICs of a host together
 * are one pipe of the sum of their rates per direction, because transports stripe messages over
 * them. Hosts may differ. Hosts may be grouped in racks whose uplinks (one per rack and direction)
 * everything between racks shares. Inside a host transfers cost no NIC; every device has a
 * full-duplex port to the host's fabric (NVLink, shared memory).
 *
 * What a message of b bytes from one host to another occupies, from its start: the sender's egress
 * for b / egress rate, the receiver's ingress for b / ingress rate, and, when the racks differ, the
 * uplinks for b / their rate. It has arrived when the longest of these has passed, plus the
 * latency, which occupies nothing. Inside a host: the sending and the receiving device's port for b
 * / port rate, plus the latency. simulate.h and the simulated transport (transport_sim.h) both
 * follow this rule to the nanosecond.
 *
 * Rates are bytes per second, latencies seconds, all finite; times integer nanoseconds (rounded up,
 * latencies to the nearest). Immutable after creation.
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
    double host_bandwidth;   /**< bytes/s of one device's port inside its host, per direction */
    double host_latency;     /**< seconds */
    const double *egress;    /**< bytes/s by host; NULL: nic_bandwidth everywhere; copied */
    const double *ingress;   /**< bytes/s by host; NULL: nic_bandwidth everywhere; copied */
    const int *rack_of_host; /**< racks numbered from 0 without gaps; NULL: all in one; copied */
    double uplink_bandwidth; /**< bytes/s of a rack's uplink, per direction; 0: never the limit */
} xm_network_params_t;

#define XM_NETWORK_PARAMS_INIT                                                                     \
    {                                                                                              \
        .struct_size = sizeof(xm_network_params_t)                                                 \
    }

XM_API xm_status_t xm_network_create(const xm_network_params_t *params, xm_network_t **network);

/** Rates and latencies from a measured profile; the ranks' hosts from @p host_of_rank. */
XM_API xm_status_t xm_network_from_profile(const xm_cluster_profile_t *profile, int ranks,
                                           const int *host_of_rank, xm_network_t **network);

XM_API xm_status_t xm_network_clone(const xm_network_t *network, xm_network_t **clone);
XM_API void xm_network_destroy(xm_network_t *network);

XM_API int xm_network_ranks(const xm_network_t *network);
XM_API int xm_network_hosts(const xm_network_t *network);
XM_API int xm_network_host_of(const xm_network_t *network, int rank);
/** Bytes/s that leave or enter a host. */
XM_API double xm_network_egress(const xm_network_t *network, int host);
XM_API double xm_network_ingress(const xm_network_t *network, int host);
/** Slowest NIC direction of all hosts, bytes/s. */
XM_API double xm_network_nic_bandwidth(const xm_network_t *network);
/** True when all hosts have the same rate in both directions. */
XM_API bool xm_network_uniform(const xm_network_t *network);
XM_API double xm_network_host_bandwidth(const xm_network_t *network);
XM_API double xm_network_nic_latency(const xm_network_t *network);
XM_API double xm_network_host_latency(const xm_network_t *network);
XM_API int xm_network_racks(const xm_network_t *network);
XM_API int xm_network_rack_of(const xm_network_t *network, int host);
/** Bytes/s of a rack's uplink, per direction; 0: never the limit. */
XM_API double xm_network_uplink_bandwidth(const xm_network_t *network);

/** Nanoseconds that @p bytes occupy a host's egress, its ingress, an uplink, a device's port (no
 * latency). */
XM_API int64_t xm_network_egress_ns(const xm_network_t *network, int host, uint64_t bytes);
XM_API int64_t xm_network_ingress_ns(const xm_network_t *network, int host, uint64_t bytes);
XM_API int64_t xm_network_uplink_ns(const xm_network_t *network, uint64_t bytes);
XM_API int64_t xm_network_port_ns(const xm_network_t *network, uint64_t bytes);

#endif
