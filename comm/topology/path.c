/* SPDX-License-Identifier: Apache-2.0 */
/* What lies between the devices of a topology, and which links they share on the way. Distance
 * is a question of the lowest common ancestor in hwloc's tree: a bridge, a NUMA node, a package
 * or the whole machine. Shared links matter as much, because two NICs behind one uplink do not
 * carry twice as much. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "comm/topology/topology_private.h"

static int depth_of(hwloc_obj_t object)
{
    int depth = 0;

    for (; object->parent != NULL; object = object->parent) {
        ++depth;
    }
    return depth;
}

/* The lowest common ancestor, found by lifting the deeper one first. */
static hwloc_obj_t common_ancestor(hwloc_obj_t a, hwloc_obj_t b)
{
    int depth_a = depth_of(a), depth_b = depth_of(b);

    for (; a != b; --depth_a) {
        for (; depth_b > depth_a; --depth_b) {
            b = b->parent;
        }
        if (a != b) {
            a = a->parent;
        }
    }
    return a;
}

static bool inside_package(const xm_topology_t *topology, hwloc_obj_t object)
{
    for (; object != NULL; object = object->parent) {
        if (object->type == HWLOC_OBJ_PACKAGE) {
            return true;
        }
    }
    return topology->packages <= 1;
}

/* Says what a way crosses whose highest point is this object. */
static xm_topology_path_t path_over(const xm_topology_t *topology, hwloc_obj_t top)
{
    if (top->type == HWLOC_OBJ_PCI_DEVICE || top->type == HWLOC_OBJ_OS_DEVICE) {
        return XM_PATH_DEVICE;
    }
    if (top->type == HWLOC_OBJ_BRIDGE) {
        return top->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_PCI ? XM_PATH_SWITCH
                                                                       : XM_PATH_HOST_BRIDGE;
    }
    if (top->nodeset != NULL && hwloc_bitmap_weight(top->nodeset) == 1) {
        return XM_PATH_NUMA;
    }
    return inside_package(topology, top) ? XM_PATH_PACKAGE : XM_PATH_MACHINE;
}

xm_topology_path_t xm_topology_path_between(const xm_topology_t *topology, xm_device_kind_t kind_a,
                                            int a, xm_device_kind_t kind_b, int b, int *depth)
{
    hwloc_obj_t top =
        common_ancestor(topology->devices[kind_a][a].object, topology->devices[kind_b][b].object);

    if (depth != NULL) {
        *depth = depth_of(top);
    }
    return path_over(topology, top);
}

xm_topology_path_t xm_topology_path(const xm_topology_t *topology, int nic, int gpu)
{
    return xm_topology_path_between(topology, XM_DEVICE_NIC, nic, XM_DEVICE_GPU, gpu, NULL);
}

/* The distance from a device to the memory of a node; without a node it is that to anywhere in
 * the machine. */
xm_topology_path_t xm_topology_path_to_node(const xm_topology_t *topology, xm_device_kind_t kind,
                                            int index, int node)
{
    hwloc_obj_t place =
        hwloc_get_non_io_ancestor_obj(topology->hwloc, topology->devices[kind][index].object);

    if (node < 0 && topology->node_count > 1) {
        return topology->packages <= 1 ? XM_PATH_PACKAGE : XM_PATH_MACHINE;
    }
    /* Climbs to the smallest part of the machine around the device that the node belongs to. */
    while (node >= 0 && place->parent != NULL &&
           (place->nodeset == NULL || !hwloc_bitmap_isset(place->nodeset, (unsigned)node))) {
        place = place->parent;
    }
    return path_over(topology, place);
}

/* The only NUMA node that this process may run on, or -1: a process that is not bound has none. */
int xm_topology_own_node(const xm_topology_t *topology)
{
    hwloc_bitmap_t own = hwloc_bitmap_alloc();
    hwloc_obj_t root = hwloc_get_root_obj(topology->hwloc);
    int found = 0, node = -1;
    cpu_set_t cpus;

    /* Machines with more processors than cpu_set_t has bits fail here, and count as not bound. */
    if (own == NULL || sched_getaffinity(0, sizeof(cpus), &cpus) != 0) {
        hwloc_bitmap_free(own);
        return -1;
    }
    /* hwloc numbers processors as the system does, so the sets can be compared. */
    for (size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
        if (CPU_ISSET(cpu, &cpus)) {
            (void)hwloc_bitmap_set(own, (unsigned)cpu);
        }
    }
    for (int i = 0; i < topology->node_count && hwloc_bitmap_isincluded(own, root->cpuset); ++i) {
        hwloc_obj_t candidate =
            hwloc_get_obj_by_type(topology->hwloc, HWLOC_OBJ_NUMANODE, (unsigned)i);

        if (hwloc_bitmap_intersects(candidate->cpuset, own)) {
            node = (int)candidate->os_index;
            ++found;
        }
    }
    hwloc_bitmap_free(own);
    /* A process on several nodes has no nearest one. */
    return found == 1 ? node : -1;
}

int xm_topology_uplink_count(const xm_topology_t *topology)
{
    return topology->uplink_count;
}

const xm_topology_uplink_t *xm_topology_uplink(const xm_topology_t *topology, int uplink)
{
    return &topology->uplinks[uplink].shown;
}

static bool is_on_card(hwloc_obj_t object, uint64_t slot)
{
    return object->type == HWLOC_OBJ_PCI_DEVICE && xm_topology_pci_rank(object) >> 8 == slot;
}

/* A card without a bridge of its own in the tree is recognised by its slot. */
static bool holds(const xm_topology_link_t *link, hwloc_obj_t object)
{
    if (link->bridge == NULL) {
        return is_on_card(object, link->slot);
    }
    /* Climbing from the device is shorter than searching below the bridge. */
    while (object != NULL && object != link->bridge) {
        object = object->parent;
    }
    return object != NULL;
}

bool xm_topology_uplink_holds(const xm_topology_t *topology, int uplink, xm_device_kind_t kind,
                              int index)
{
    return holds(&topology->uplinks[uplink], topology->devices[kind][index].object);
}

static bool holds_anything(const xm_topology_t *topology, const xm_topology_link_t *link)
{
    for (int kind = 0; kind < XM_DEVICE_KIND_COUNT; ++kind) {
        for (int i = 0; i < topology->device_count[kind]; ++i) {
            if (holds(link, topology->devices[kind][i].object)) {
                return true;
            }
        }
    }
    return false;
}

/* Adds the uplinks of bridges that hold something and tell their speed. */
static void add_bridges(xm_topology_t *topology)
{
    for (hwloc_obj_t bridge = NULL;
         (bridge = hwloc_get_next_bridge(topology->hwloc, bridge)) != NULL;) {
        const struct hwloc_bridge_attr_s *attr = &bridge->attr->bridge;
        xm_topology_link_t *link = &topology->uplinks[topology->uplink_count];

        if (attr->upstream_type != HWLOC_OBJ_BRIDGE_PCI || attr->upstream.pci.linkspeed <= 0) {
            continue;
        }
        *link = (xm_topology_link_t){.bridge = bridge,
                                     .shown.bandwidth = (double)attr->upstream.pci.linkspeed * 1e9};
        (void)snprintf(link->name, sizeof(link->name), "%04x:%02x:%02x.%01x",
                       attr->upstream.pci.domain, attr->upstream.pci.bus, attr->upstream.pci.dev,
                       attr->upstream.pci.func);
        topology->uplink_count += holds_anything(topology, link);
    }
}

/* Adds cards with several ports, which share the link of their slot. NICs are in PCI order, so
 * the ports of a card follow each other. */
static void add_cards(xm_topology_t *topology)
{
    const xm_topology_entry_t *nics = topology->devices[XM_DEVICE_NIC];

    for (int i = 0; i < topology->device_count[XM_DEVICE_NIC]; ++i) {
        xm_topology_link_t *link = &topology->uplinks[topology->uplink_count];
        int ports = 1;

        if (nics[i].shown.pci_bandwidth <= 0) {
            continue;
        }
        *link = (xm_topology_link_t){.slot = xm_topology_pci_rank(nics[i].object) >> 8,
                                     .shown.bandwidth = nics[i].shown.pci_bandwidth,
                                     .shown.card = true};
        while (i + 1 < topology->device_count[XM_DEVICE_NIC] &&
               is_on_card(nics[i + 1].object, link->slot)) {
            ++ports;
            ++i;
        }
        if (ports > 1) {
            (void)snprintf(link->name, sizeof(link->name), "%.*s", (int)strcspn(nics[i].pci, "."),
                           nics[i].pci);
            ++topology->uplink_count;
        }
    }
}

/* Ordered from the root downwards, then by name: tables are the same on every run. */
static int compare_links(const void *a, const void *b)
{
    const xm_topology_link_t *first = a, *second = b;
    int depth_a = first->bridge != NULL ? depth_of(first->bridge) : INT32_MAX;
    int depth_b = second->bridge != NULL ? depth_of(second->bridge) : INT32_MAX;

    return depth_a != depth_b ? (depth_a > depth_b) - (depth_a < depth_b)
                              : strcmp(first->name, second->name);
}

/* Names point into the entries, so they are set after sorting. */
xm_status_t xm_topology_collect_uplinks(xm_topology_t *topology)
{
    int bridges = hwloc_get_nbobjs_by_type(topology->hwloc, HWLOC_OBJ_BRIDGE);
    size_t room =
        (size_t)(bridges > 0 ? bridges : 0) + (size_t)topology->device_count[XM_DEVICE_NIC] + 1;

    topology->uplinks = calloc(room, sizeof(*topology->uplinks));
    if (topology->uplinks == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "topology: no memory for %zu PCI links", room);
    }
    add_bridges(topology);
    add_cards(topology);
    qsort(topology->uplinks, (size_t)topology->uplink_count, sizeof(*topology->uplinks),
          compare_links);
    for (int i = 0; i < topology->uplink_count; ++i) {
        topology->uplinks[i].shown.name = topology->uplinks[i].name;
    }
    return XM_OK;
}
