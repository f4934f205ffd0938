/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file network.h
 * What else the rooms ask a network (crossmesh/network.h, which has the model). simulate.h and the
 * simulated transport (comm/transport/sim.h) both follow it to the nanosecond.
 */
#pragma once

#include <crossmesh/network.h>

#include "comm/profile.h"
#include "comm/base.h"

/** One more handle on the same network, to be destroyed like the first. */
xm_status_t xm_network_clone(const xm_network_t *network, xm_network_t **clone);

/** The same network with the ranks numbered anew: rank r becomes number[r]. */
xm_status_t xm_network_renumber(const xm_network_t *network, const int *number,
                                xm_network_t **renumbered);

/** Bytes/s that leave or enter a host: over all its rails. */
double xm_network_egress(const xm_network_t *network, int host);
double xm_network_ingress(const xm_network_t *network, int host);
/** The network as its rails see it: every rail is a host of its own. What schedulers work on. */
xm_status_t xm_network_of_rails(const xm_network_t *network, xm_network_t **rails);

/** Number of rails of all hosts, and the rail of a rank. */
int xm_network_rails(const xm_network_t *network);
int xm_network_rail_of(const xm_network_t *network, int rank);
/** The rails of a host, ascending; *count of them. */
const int *xm_network_host_rails(const xm_network_t *network, int host, int *count);
int xm_network_host_of_rail(const xm_network_t *network, int rail);
/** Bytes/s that leave or enter through a rail. */
double xm_network_rail_egress(const xm_network_t *network, int rail);
double xm_network_rail_ingress(const xm_network_t *network, int rail);
/** Slowest direction of all hosts, bytes/s. */
double xm_network_nic_bandwidth(const xm_network_t *network);
/** True when all hosts have the same rate in both directions (their rails may differ). */
bool xm_network_uniform(const xm_network_t *network);
double xm_network_host_bandwidth(const xm_network_t *network);
double xm_network_nic_latency(const xm_network_t *network);
double xm_network_host_latency(const xm_network_t *network);
int xm_network_racks(const xm_network_t *network);
int xm_network_rack_of(const xm_network_t *network, int host);
/** Bytes/s of a rack's uplink, per direction; 0: never the limit. */
double xm_network_uplink_bandwidth(const xm_network_t *network);
/** Processors of a host; 0: never the limit. */
double xm_network_cores_per_host(const xm_network_t *network);
/** Seconds of a processor that a byte from one rank to another needs at each end. */
double xm_network_cpu(const xm_network_t *network, int sender, int receiver);

/** Nanoseconds that @p bytes occupy a host's egress, its ingress (no latency). */
int64_t xm_network_egress_ns(const xm_network_t *network, int host, uint64_t bytes);
int64_t xm_network_ingress_ns(const xm_network_t *network, int host, uint64_t bytes);
