/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file topology_private.h
 * A topology's state, shared by its creation (topology.c), what tells NICs apart
 * (comm/topology/nic.c) and its paths and uplinks (comm/topology/path.c). Internal.
 */
#pragma once

#include <hwloc.h>
#include <stdbool.h>

#include "comm/topology/topology.h"

enum { XM_TOPOLOGY_PCI_ID_SIZE = 24 };

typedef struct xm_topology_entry {
    xm_topology_device_t shown;
    char pci[XM_TOPOLOGY_PCI_ID_SIZE];
    hwloc_obj_t object; /* where it hangs in the tree, for paths */
} xm_topology_entry_t;

typedef struct xm_topology_link {
    xm_topology_uplink_t shown;
    char name[XM_TOPOLOGY_PCI_ID_SIZE];
    hwloc_obj_t bridge; /* NULL: the slot of a card, see `pci` */
    uint64_t slot;      /* of a card: its place on the PCI bus without the function */
} xm_topology_link_t;

struct xm_topology {
    hwloc_topology_t hwloc;
    unsigned flags;
    int packages, cores, pus;
    xm_topology_node_t *nodes;
    int node_count;
    xm_topology_entry_t *devices[XM_DEVICE_KIND_COUNT];
    int device_count[XM_DEVICE_KIND_COUNT];
    xm_topology_link_t *uplinks;
    int uplink_count;
};

/** Value of an info attribute, "" when there is none. */
static inline const char *xm_topology_info(hwloc_obj_t object, const char *name)
{
    const char *value = object != NULL ? hwloc_obj_get_info_by_name(object, name) : NULL;

    return value != NULL ? value : "";
}

/** Writes the PCI id of a function; "0000:10:1b.0". */
void xm_topology_pci_id(hwloc_obj_t pci, char id[XM_TOPOLOGY_PCI_ID_SIZE]);

/** Place of a function on the PCI bus as a number, in the order of its id. */
uint64_t xm_topology_pci_rank(hwloc_obj_t pci);

/* comm/topology/nic.c */

/**
 * Fills in what the network interface and the RDMA device of a NIC (either may be NULL) and its PCI
 * function (NULL: none) tell: names, port, speed, state, kind of network.
 */
void xm_topology_describe_nic(xm_topology_device_t *nic, hwloc_obj_t pci, hwloc_obj_t interface,
                              hwloc_obj_t rdma, int port);

/** Finds the physical functions of the virtual ones. All devices have been collected. */
void xm_topology_tie_functions(xm_topology_t *topology);

/* comm/topology/path.c */

/** Collects the uplinks. All devices have been collected. */
xm_status_t xm_topology_collect_uplinks(xm_topology_t *topology);
