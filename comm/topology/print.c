/* SPDX-License-Identifier: Apache-2.0 */
/* Printing a topology for people. What is unknown is a dash and never a zero, because a speed of 0
 * would be read as a fact. A GPU's row names the NICs that are nearest to it, since this is what
 * people look up when a NIC choice surprises them. */
#include "comm/topology/topology.h"

/* In the order of xm_topology_path_t, from the nearest to the farthest. */
static const char *const path_names[] = {"device", "switch",  "host bridge",
                                         "numa",   "package", "machine"};

const char *xm_topology_path_name(xm_topology_path_t path)
{
    return path_names[path];
}

/* Room for one number; each row has a buffer for each cell. */
enum { CELL_SIZE = 32 };

/* value / unit as text, "-" when it is not known. */
static const char *cell(double value, double unit, char *buffer)
{
    if (value <= 0) {
        return "-";
    }
    (void)snprintf(buffer, CELL_SIZE, "%.1f", value / unit);
    return buffer;
}

/* A machine that does not tell a device's NUMA node gives -1. */
static const char *node_cell(int node, char *buffer)
{
    if (node < 0) {
        return "-";
    }
    (void)snprintf(buffer, CELL_SIZE, "%d", node);
    return buffer;
}

static const char *dash(const char *text)
{
    return text[0] != '\0' ? text : "-";
}

/* Rates of links are printed in Gbit/s, as NICs are sold, and those of PCI in GB/s, as memory
 * is. */
static void print_nics(const xm_topology_t *topology, FILE *stream)
{
    (void)fprintf(stream, "%4s  %-12s  %-12s  %-12s  %4s  %8s  %11s  %s\n", "NIC", "name", "rdma",
                  "pci", "node", "pci GB/s", "link Gbit/s", "model");
    for (int i = 0; i < xm_topology_device_count(topology, XM_DEVICE_NIC); ++i) {
        const xm_topology_device_t *nic = xm_topology_device(topology, XM_DEVICE_NIC, i);
        char node[CELL_SIZE], pci[CELL_SIZE], link[CELL_SIZE];

        (void)fprintf(stream, "%4d  %-12s  %-12s  %-12s  %4s  %8s  %11s  %s\n", i, nic->name,
                      dash(nic->rdma_name), dash(nic->pci), node_cell(nic->numa_node, node),
                      cell(nic->pci_bandwidth, 1e9, pci), cell(nic->link_bandwidth, 1e9 / 8, link),
                      dash(nic->model));
    }
}

/* Writes "0,1 (host bridge)": the NICs with the shortest path. */
static void print_nearest(const xm_topology_t *topology, int gpu, FILE *stream)
{
    int nics = xm_topology_device_count(topology, XM_DEVICE_NIC);
    xm_topology_path_t nearest = XM_PATH_MACHINE;
    const char *separator = "";

    for (int nic = 0; nic < nics; ++nic) {
        xm_topology_path_t path = xm_topology_path(topology, nic, gpu);

        nearest = path < nearest ? path : nearest;
    }
    for (int nic = 0; nic < nics; ++nic) {
        if (xm_topology_path(topology, nic, gpu) == nearest) {
            (void)fprintf(stream, "%s%d", separator, nic);
            separator = ",";
        }
    }
    /* A machine without NICs has no nearest one, although `nearest` has a value. */
    if (nics > 0) {
        (void)fprintf(stream, " (%s)\n", xm_topology_path_name(nearest));
    } else {
        (void)fputs("-\n", stream);
    }
}

static void print_gpus(const xm_topology_t *topology, FILE *stream)
{
    (void)fprintf(stream, "%4s  %-12s  %-12s  %4s  %8s  %-36s  %s\n", "GPU", "name", "pci", "node",
                  "pci GB/s", "model", "nearest NICs");
    for (int i = 0; i < xm_topology_device_count(topology, XM_DEVICE_GPU); ++i) {
        const xm_topology_device_t *gpu = xm_topology_device(topology, XM_DEVICE_GPU, i);
        char node[CELL_SIZE], pci[CELL_SIZE];

        (void)fprintf(stream, "%4d  %-12s  %-12s  %4s  %8s  %-36s  ", i, gpu->name, dash(gpu->pci),
                      node_cell(gpu->numa_node, node), cell(gpu->pci_bandwidth, 1e9, pci),
                      dash(gpu->model));
        print_nearest(topology, i, stream);
    }
}

void xm_topology_print(const xm_topology_t *topology, FILE *stream)
{
    (void)fprintf(stream, "packages %d, NUMA nodes %d, cores ", xm_topology_packages(topology),
                  xm_topology_node_count(topology));
    /* Some descriptions list PUs without cores. */
    if (xm_topology_cores(topology) > 0) {
        (void)fprintf(stream, "%d", xm_topology_cores(topology));
    } else {
        (void)fputs("not listed", stream);
    }
    (void)fprintf(stream, ", PUs %d, NICs %d, GPUs %d\n", xm_topology_pus(topology),
                  xm_topology_device_count(topology, XM_DEVICE_NIC),
                  xm_topology_device_count(topology, XM_DEVICE_GPU));
    (void)fprintf(stream, "%4s  %10s  %4s\n", "node", "memory GiB", "PUs");
    for (int i = 0; i < xm_topology_node_count(topology); ++i) {
        const xm_topology_node_t *node = xm_topology_node(topology, i);
        char memory[CELL_SIZE];

        (void)fprintf(stream, "%4d  %10s  %4d\n", node->os_index,
                      cell((double)node->memory_bytes, 1 << 30, memory), node->pus);
    }
    /* Tables without rows are left out with their heads. */
    if (xm_topology_device_count(topology, XM_DEVICE_NIC) > 0) {
        print_nics(topology, stream);
    }
    if (xm_topology_device_count(topology, XM_DEVICE_GPU) > 0) {
        print_gpus(topology, stream);
    }
}
