/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file topology.h
 * What is in a host: packages, NUMA nodes, cores, network adapters and GPUs, and how near they are.
 *
 * A topology comes from hwloc, of the live machine or of an hwloc XML file (`lstopo file.xml`), so
 * that choices for a large machine can be tested on a small one. Ranks exchange topologies as XML
 * text.
 *
 * Devices. A NIC is a network interface or an RDMA device of hwloc (an interface and an RDMA device
 * of one PCI function are one NIC with two names), or a PCI network controller that has neither,
 * for want of a driver. Interfaces that have no PCI function (lo, bridges, veth) are left out
 * unless ::XM_TOPOLOGY_VIRTUAL_NICS asks for them. A GPU is a PCI
 * display controller of a vendor that makes compute GPUs, a PCI processing accelerator, or a CUDA,
 * ROCm or Level Zero device of hwloc. OpenCL devices do not count: where the driver does not tell
 * their PCI function hwloc has to guess the place.
 *
 * NUMA nodes are named by their operating-system index. Devices are in PCI order, so two hosts of
 * the same make number them alike.
 *
 * Uplinks. Everything below a PCI bridge shares the link above it, and all ports of a card its
 * slot. What hangs below a host bridge shares nothing that hwloc could tell of.
 *
 * Threads: immutable after creation, so shared freely. Strings belong to the topology.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "comm/base.h"

typedef struct xm_topology xm_topology_t;

enum {
    /** Keep network interfaces without a PCI function, except loopback. The live machine shows them
     * only with HWLOC_VIRTUAL_LINUX_OSDEV=1 in the environment. */
    XM_TOPOLOGY_VIRTUAL_NICS = 1
};

typedef enum xm_device_kind { XM_DEVICE_NIC, XM_DEVICE_GPU, XM_DEVICE_KIND_COUNT } xm_device_kind_t;

/** One NIC or GPU. */
typedef struct xm_topology_device {
    xm_device_kind_t kind;
    const char *name;      /**< "eth0", "mlx5_0", "cuda0"; the PCI id when it has no other name */
    const char *rdma_name; /**< RDMA device of a NIC, e.g. "mlx5_0"; "" when it has none */
    const char *pci;       /**< PCI id, e.g. "0000:10:1b.0"; "" when it has none */
    const char *model;     /**< marketing name; "" when the description has none */
    int numa_node;         /**< OS index of the nearest NUMA node; -1: no single one is nearest */
    double pci_bandwidth;  /**< bytes/s of the PCI link per direction; 0: not told */
    double link_bandwidth; /**< bytes/s of the cable of a NIC per direction; 0: not told */
    /* Of NICs only. */
    const char *interface; /**< network interface, e.g. "eth0"; "" when it has none */
    int rdma_port;         /**< port of the RDMA device, from 1; 0 without one */
    bool infiniband;       /**< InfiniBand and not Ethernet */
    bool wireless;
    bool down;                     /**< known to have no link */
    const char *physical_function; /**< of a virtual function (SR-IOV) the PCI id of the physical
                                        one where that is a NIC here too; else "" */
} xm_topology_device_t;

/** A PCI link that several devices may share. */
typedef struct xm_topology_uplink {
    const char
        *name; /**< PCI id of the bridge below it, or, without a function, of a card's slot */
    double bandwidth; /**< bytes/s per direction, more than 0 */
    bool card;        /**< a slot whose card has several ports or functions */
} xm_topology_uplink_t;

/** One NUMA node. */
typedef struct xm_topology_node {
    int os_index;
    uint64_t memory_bytes; /**< 0: not told */
    int pus;               /**< hardware threads near it */
} xm_topology_node_t;

/** What a path between two devices has to cross, nearest first. */
typedef enum xm_topology_path {
    XM_PATH_DEVICE,      /**< nothing: one PCI function */
    XM_PATH_SWITCH,      /**< PCI bridges below one root */
    XM_PATH_HOST_BRIDGE, /**< the PCI host bridge that both hang from */
    XM_PATH_NUMA,        /**< host bridges of one NUMA node */
    XM_PATH_PACKAGE,     /**< NUMA nodes of one package */
    XM_PATH_MACHINE      /**< the link between packages */
} xm_topology_path_t;

/** "device", "switch", "host bridge", "numa", "package", "machine". */
const char *xm_topology_path_name(xm_topology_path_t path);

/**
 * The topology of the XML file @p path; when that is NULL, of the file that XM_TOPOLOGY names; when
 * that is empty too, of the live machine. A missing file is XM_ERR_NOT_FOUND, one that hwloc does
 * not understand XM_ERR_PARSE: the live machine never stands in for it. @p flags:
 * XM_TOPOLOGY_VIRTUAL_NICS or 0.
 */
xm_status_t xm_topology_create(const char *path, unsigned flags, xm_topology_t **topology);

/** The same from XML text (NUL-terminated) such as xm_topology_export_xml() gives. */
xm_status_t xm_topology_create_from_text(const char *xml, unsigned flags, xm_topology_t **topology);

/**
 * The topology as hwloc XML. Link speeds that were read from the live machine's /sys are part of
 * it. The text is freed with free().
 */
xm_status_t xm_topology_export_xml(const xm_topology_t *topology, char **text);

int xm_topology_packages(const xm_topology_t *topology);
/** Number of cores; 0 when the description leaves them out. */
int xm_topology_cores(const xm_topology_t *topology);
/** Number of hardware threads. */
int xm_topology_pus(const xm_topology_t *topology);

int xm_topology_node_count(const xm_topology_t *topology);
/** NUMA node @p index, 0 … count - 1 in the order of their OS index. */
const xm_topology_node_t *xm_topology_node(const xm_topology_t *topology, int index);

int xm_topology_device_count(const xm_topology_t *topology, xm_device_kind_t kind);
/** Device @p index of a kind, 0 … count - 1. */
const xm_topology_device_t *xm_topology_device(const xm_topology_t *topology, xm_device_kind_t kind,
                                               int index);

/** What lies between NIC @p nic and GPU @p gpu (indices of xm_topology_device()). */
xm_topology_path_t xm_topology_path(const xm_topology_t *topology, int nic, int gpu);

/**
 * What lies between any two devices. @p depth, unless NULL, tells how deep in the tree the place is
 * where their ways meet: of two devices behind switches the one with the greater depth is nearer.
 */
xm_topology_path_t xm_topology_path_between(const xm_topology_t *topology, xm_device_kind_t kind_a,
                                            int a, xm_device_kind_t kind_b, int b, int *depth);

/** What lies between a device and the memory of the NUMA node of OS index @p node, -1: of any. */
xm_topology_path_t xm_topology_path_to_node(const xm_topology_t *topology, xm_device_kind_t kind,
                                            int index, int node);

/** The NUMA node that all hardware threads of this process belong to, by OS index; -1: several, or
 * the topology is of another machine. */
int xm_topology_own_node(const xm_topology_t *topology);

/** Uplinks of known speed that hold a NIC or GPU; one that holds another comes before it. */
int xm_topology_uplink_count(const xm_topology_t *topology);
const xm_topology_uplink_t *xm_topology_uplink(const xm_topology_t *topology, int uplink);
/** Whether a device's way to the rest of the machine leads over an uplink. */
bool xm_topology_uplink_holds(const xm_topology_t *topology, int uplink, xm_device_kind_t kind,
                              int index);

/** Prints the table that docs/topology.md shows: counts, NUMA nodes, NICs, GPUs with their nearest
 * NICs. */
void xm_topology_print(const xm_topology_t *topology, FILE *stream);

void xm_topology_destroy(xm_topology_t *topology);
