/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file nic_network.h
 * Which network a NIC of this machine is in, as a number that hosts compare. Internal.
 *
 * A network is the IP subnet of an interface, the subnet of an InfiniBand port (the upper half of
 * its identifier), or, for RDMA devices without an interface of their own, one for all. NICs of one
 * network are taken to reach each other.
 */
#pragma once

#include <stdint.h>
#include <sys/socket.h>

#include "comm/topology/nic_choice.h"

typedef struct xm_nic_networks xm_nic_networks_t;

/** Reads the addresses of this machine, whose /sys is @p sysfs (kept, not copied). */
xm_status_t xm_nic_networks_create(const char *sysfs, xm_nic_networks_t **networks);

/** The network that a NIC used as @p fabric is in; 0: none, an interface has no address. */
uint64_t xm_nic_network_key(const xm_nic_networks_t *networks, const xm_topology_device_t *nic,
                            xm_fabric_t fabric);

/** The subnet of an address as text, "ip 10.1.0.0/255.255.0.0"; false when it has none that other
 * hosts could be in (link-local addresses; other families than IP). @p mask: the netmask. */
bool xm_nic_network_subnet(const struct sockaddr *address, const struct sockaddr *mask, char *text,
                           size_t size);

void xm_nic_networks_destroy(xm_nic_networks_t *networks);
