/**
 * @file topology_sysfs.h
 * Link speeds that hwloc does not collect, read from the live machine's /sys. Internal.
 */
#ifndef XM_COMM_TOPOLOGY_SYSFS_H
#define XM_COMM_TOPOLOGY_SYSFS_H

#include <hwloc.h>

/** Info attribute of a network or RDMA device: speed of its link in Mbit/s, a decimal number. */
#define XM_TOPOLOGY_LINK_INFO "CrossmeshLinkMbps"

/**
 * Adds XM_TOPOLOGY_LINK_INFO to every network interface and RDMA device of a topology of the live
 * machine whose driver tells a speed (virtual ones often do not). Exported XML keeps it.
 */
void xm_topology_sysfs_annotate(hwloc_topology_t topology);

/**
 * Speed in Mbit/s from the text of /sys/class/net/NAME/speed ("100000", -1 for unknown) or of
 * /sys/class/infiniband/NAME/ports/1/rate ("100 Gb/sec (4X EDR)"); 0 when it tells none.
 */
double xm_topology_sysfs_parse_net_speed(const char *text);
double xm_topology_sysfs_parse_rdma_rate(const char *text);

#endif
