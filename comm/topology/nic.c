/* SPDX-License-Identifier: Apache-2.0 */
/* What a topology tells of its NICs: names, speed, state, kind of network, virtual functions.
 * Interface and RDMA device of one NIC describe the same hardware and contradict each other now
 * and then, so for each question one of them is believed first: the RDMA port about its state,
 * the interface about its speed. */
#include <stdio.h>
#include <string.h>

#include "comm/base.h"
#include "comm/topology/topology_private.h"
#include "comm/topology/sysfs.h"

/* A PCI class of NICs: InfiniBand controllers. */
enum { CLASS_INFINIBAND = 0x0207 };

/* The state of an RDMA port that carries messages, as the kernel numbers it and hwloc copies it. */
static const char port_active[] = "4";

static double link_bandwidth(hwloc_obj_t os_device)
{
    double mbps;

    if (xm_text_parse_double("link speed", xm_topology_info(os_device, XM_TOPOLOGY_LINK_INFO), 0,
                             1e12, &mbps) < 0) {
        return 0;
    }
    return mbps * 1e6 / 8;
}

/* An RDMA port knows better than the interface over it, which may just have no address. */
static bool is_down(hwloc_obj_t interface, hwloc_obj_t rdma, int port)
{
    const char *state;
    char name[32];

    (void)snprintf(name, sizeof(name), "Port%dState", port);
    state = xm_topology_info(rdma, name);
    if (state[0] != '\0') {
        return strcmp(state, port_active) != 0;
    }
    return strcmp(xm_topology_info(interface, XM_TOPOLOGY_STATE_INFO), "down") == 0;
}

/* Without a link layer in the text (old kernels, foreign files) the PCI class decides. */
static bool is_infiniband(hwloc_obj_t pci, hwloc_obj_t rdma)
{
    const char *layer = xm_topology_info(rdma, XM_TOPOLOGY_LAYER_INFO);

    if (layer[0] != '\0') {
        return strcmp(layer, "InfiniBand") == 0;
    }
    return pci != NULL && pci->attr->pcidev.class_id == CLASS_INFINIBAND;
}

/* Describes a NIC. One without a name keeps its PCI address as the name, and its driver is
 * missing. */
void xm_topology_describe_nic(xm_topology_device_t *nic, hwloc_obj_t pci, hwloc_obj_t interface,
                              hwloc_obj_t rdma, int port)
{
    hwloc_obj_t named = interface != NULL ? interface : rdma;

    if (named == NULL) {
        return;
    }
    nic->name = named->name;
    nic->interface = interface != NULL ? interface->name : "";
    nic->rdma_name = rdma != NULL ? rdma->name : "";
    nic->rdma_port = rdma != NULL ? port : 0;
    nic->link_bandwidth = link_bandwidth(interface);
    if (nic->link_bandwidth <= 0) {
        nic->link_bandwidth = link_bandwidth(rdma);
    }
    nic->infiniband = is_infiniband(pci, rdma);
    nic->wireless = xm_topology_info(interface, XM_TOPOLOGY_WIRELESS_INFO)[0] != '\0' ||
                    strncmp(nic->interface, "wl", 2) == 0;
    nic->down = is_down(interface, rdma, port);
    nic->physical_function = xm_topology_info(named, XM_TOPOLOGY_FUNCTION_INFO);
}

static bool is_virtual(const xm_topology_device_t *nic)
{
    return nic->physical_function[0] != '\0' || strstr(nic->model, "Virtual Function") != NULL;
}

/* True when the second can be the physical function of the first. Where nothing says which one
 * is, a function of the same vendor on the same bus counts. */
static bool is_physical_of(const xm_topology_entry_t *nic, const xm_topology_entry_t *other)
{
    if (other->pci[0] == '\0' || is_virtual(&other->shown)) {
        return false;
    }
    if (nic->shown.physical_function[0] != '\0') {
        return strcmp(nic->shown.physical_function, other->pci) == 0;
    }
    return nic->object->parent == other->object->parent &&
           nic->object->attr->pcidev.vendor_id == other->object->attr->pcidev.vendor_id;
}

/* Ties virtual functions to their physical one, if that is visible here: both use one wire, so
 * only the physical one may count as a rail. */
void xm_topology_tie_functions(xm_topology_t *topology)
{
    xm_topology_entry_t *nics = topology->devices[XM_DEVICE_NIC];
    int count = topology->device_count[XM_DEVICE_NIC];

    for (int i = 0; i < count; ++i) {
        const char *physical = "";

        if (nics[i].pci[0] == '\0' || !is_virtual(&nics[i].shown)) {
            continue;
        }
        for (int other = 0; other < count && physical[0] == '\0'; ++other) {
            if (is_physical_of(&nics[i], &nics[other])) {
                physical = nics[other].pci;
            }
        }
        /* In a guest there is none: the function is all that it has of the NIC. */
        nics[i].shown.physical_function = physical;
    }
}
