/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file comm/topology/sysfs.h
 * What hwloc does not collect of NICs, read from the live machine's /sys. Internal.
 */
#pragma once

#include <hwloc.h>

/** Info attribute of a network or RDMA device: speed of its link in Mbit/s, a decimal number. */
#define XM_TOPOLOGY_LINK_INFO "CrossmeshLinkMbps"

/** Of a network interface: "up" or "down" (no cable, or not configured up). Of an RDMA device hwloc
 * itself has the states of the ports. */
#define XM_TOPOLOGY_STATE_INFO "CrossmeshLinkState"
/** Of an RDMA device: "InfiniBand" or "Ethernet". */
#define XM_TOPOLOGY_LAYER_INFO "CrossmeshLinkLayer"
/** Of a network interface: "1" when it is wireless. */
#define XM_TOPOLOGY_WIRELESS_INFO "CrossmeshWireless"
/** Of a device of a virtual function: the PCI id of the physical one. */
#define XM_TOPOLOGY_FUNCTION_INFO "CrossmeshPhysicalFunction"

/**
 * Adds these attributes to the network interfaces and RDMA devices of a topology of the live
 * machine, whose /sys is @p sysfs, as far as the drivers tell (virtual ones often tell no speed).
 * Exported XML keeps them.
 */
void xm_topology_sysfs_annotate(hwloc_topology_t topology, const char *sysfs);

/**
 * Speed in Mbit/s from the text of /sys/class/net/NAME/speed ("100000", -1 for unknown) or of
 * /sys/class/infiniband/NAME/ports/1/rate ("100 Gb/sec (4X EDR)"); 0 when it tells none.
 */
double xm_topology_sysfs_parse_net_speed(const char *text);
double xm_topology_sysfs_parse_rdma_rate(const char *text);
