/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file nic_choice.h
 * Which NICs of a host its local ranks use, and why.
 *
 * The choice is a function of a topology and of what is said in the parameters, of nothing else: so
 * every process that has the topology of a host knows what that host's ranks use, and both ends of
 * a pair of hosts agree without a word. docs/topology.md has the rules with examples; in short:
 *
 *  1. NICs without a driver, without link, that UCX cannot use, virtual functions beside their
 *     physical one, wireless ones beside others, and those slower than an eighth of the fastest
 *     (management; the less of cable and slot counts) are left out. Of InfiniBand, other RDMA and
 * plain IP one kind is kept: the one that carries most, IP only when it carries four times what
 * RDMA does. Where every GPU has a NIC behind its own switch, those apart from all GPUs (storage)
 * are left out too.
 *  2. What a NIC is worth to a device is the least of its cable, its slot and its share of the PCI
 *     links that its way to the device shares with other such NICs; half of that from another
 *     package. NICs worth less than half of the best one are no candidates. Of the candidates the
 *     nearest are *near*.
 *  3. Each local rank gets one near NIC, so that all are loaded in proportion to what they are
 *     worth. Near NICs that are left then go to the ranks with the fewest, as further rails.
 *
 * Threads: immutable after creation, so shared freely.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "comm/base.h"
#include "comm/topology/topology.h"

typedef struct xm_nic_choice xm_nic_choice_t;

/** Most NICs of one rank. */
enum { XM_NIC_CHOICE_MAX = 8, XM_NIC_DEVICE_SIZE = 64, XM_NIC_REASON_SIZE = 128 };

/** Kinds of network, the better first. NICs of one kind reach each other. */
typedef enum xm_fabric {
    XM_FABRIC_INFINIBAND,
    XM_FABRIC_RDMA, /**< over Ethernet (RoCE), or of a vendor's own kind (EFA) */
    XM_FABRIC_IP,   /**< TCP only */
    XM_FABRIC_COUNT
} xm_fabric_t;

/** "InfiniBand", "RDMA", "IP". */
const char *xm_fabric_name(xm_fabric_t fabric);

/** Where a local rank's data is. */
typedef struct xm_nic_slot {
    int gpu;  /**< GPU of the topology; -1: in the host's memory */
    int node; /**< without GPU: OS index of the NUMA node; -1: anywhere */
    int rank; /**< how the table names it; -1: after its GPU or NUMA node */
} xm_nic_slot_t;

typedef struct xm_nic_choice_params {
    const xm_topology_t *topology; /**< must outlive the choice */
    const xm_nic_slot_t *slots;    /**< of the local ranks, in their order; copied */
    int slot_count;
    const double *rates;  /**< measured bytes/s of each NIC of the topology, 0: not measured; NULL:
                               of none. What is not measured has the speed of cable and slot. */
    const char *usable;   /**< devices that UCX can use, with blanks between: "eth0 mlx5_0:1"; NULL:
                               all */
    const char *unwanted; /**< devices not to be used, with commas between: interfaces, RDMA devices
                               with or without port, or PCI ids; NULL: none */
    const char *apart;    /**< devices in networks that not every host has; likewise */
    unsigned fabrics;     /**< kinds of network that may be used, a sum of 1 << xm_fabric_t; 0: all
                           */
} xm_nic_choice_params_t;

/** What was decided of a NIC. */
typedef struct xm_nic_suitability {
    bool suitable;
    xm_fabric_t fabric;
    double rate; /**< bytes/s: measured, or the less of cable and slot; 0: nobody knows */
    bool told;   /**< measured, or the cable's speed is known; else `rate` is that of the slot */
    int load;    /**< ranks whose first NIC it is */
    char device[XM_NIC_DEVICE_SIZE]; /**< as UCX names it: "mlx5_0:1", "eth0" */
    char reason[XM_NIC_REASON_SIZE]; /**< why it is not suitable; "" when it is */
} xm_nic_suitability_t;

/** What limits a NIC's rate towards a device. */
typedef enum xm_nic_limit {
    XM_NIC_LIMIT_CABLE,
    XM_NIC_LIMIT_SLOT,
    XM_NIC_LIMIT_UPLINK /**< its share of `uplink` */
} xm_nic_limit_t;

/** A NIC as seen from a device. */
typedef struct xm_nic_way {
    int nic; /**< of the topology */
    xm_topology_path_t path;
    double bandwidth; /**< bytes/s, 0: nobody knows */
    xm_nic_limit_t limit;
    int uplink; /**< of the topology; -1 */
} xm_nic_way_t;

/** Fails when the parameters name a GPU or NUMA node that the topology does not have, or `unwanted`
 * a device. A host without a suitable NIC is no failure. */
xm_status_t xm_nic_choice_create(const xm_nic_choice_params_t *params, xm_nic_choice_t **choice);

/** Number of suitable NICs. */
int xm_nic_choice_suitable(const xm_nic_choice_t *choice);

/** What was decided of NIC @p nic of the topology. */
const xm_nic_suitability_t *xm_nic_choice_nic(const xm_nic_choice_t *choice, int nic);

/** Bytes/s of all suitable NICs together, 0 when that of one is not known. @p told: the speed of a
 * slot does not count as that of a NIC whose cable's is not known. */
double xm_nic_choice_rate(const xm_nic_choice_t *choice, bool told);

/** NICs of local rank @p slot (0 … slot_count - 1), its first one first; returns how many. Valid as
 * long as the choice. */
int xm_nic_choice_slot(const xm_nic_choice_t *choice, int slot, const xm_nic_way_t **ways);

/** All NICs that are near to a device, in PCI order, whoever uses them. @p ways has room for as
 * many as the topology has NICs. Returns how many. */
int xm_nic_choice_near(const xm_nic_choice_t *choice, const xm_nic_slot_t *slot,
                       xm_nic_way_t *ways);

/** Prints who uses which NIC, which are not used and why, and the PCI links that NICs share, as
 * docs/topology.md describes: slots first, and unless they are ranks what ranks in the memory of
 * each NUMA node would use. */
xm_status_t xm_nic_choice_print(const xm_nic_choice_t *choice, FILE *stream);

void xm_nic_choice_destroy(xm_nic_choice_t *choice);
