/* SPDX-License-Identifier: Apache-2.0 */
/* A machine's topology, read by hwloc from the live machine or from XML, reduced to what
 * choosing NICs needs: NUMA nodes, NICs, GPUs and the PCI links above them. Devices are in PCI
 * order, which is the same on every run, so numbers can be used in settings and tables. Every
 * text is somebody else's (a file, another rank), and hwloc ends the process over some
 * malformed ones, so it is checked before hwloc sees it (comm/topology/xml.c). */
#include "comm/topology/topology.h"

#include <errno.h>
#include <hwloc.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "comm/topology/topology_private.h"
#include "comm/topology/sysfs.h"
#include "comm/topology/xml.h"

enum { CLASS_NETWORK = 0x02, CLASS_DISPLAY = 0x03, CLASS_ACCELERATOR = 0x12 };

/* Vendors whose display controllers compute. Those of others are consoles of servers and
 * hypervisors. */
enum { VENDOR_NVIDIA = 0x10de, VENDOR_AMD = 0x1002, VENDOR_INTEL = 0x8086 };

static int count(const xm_topology_t *topology, hwloc_obj_type_t type)
{
    int number = hwloc_get_nbobjs_by_type(topology->hwloc, type);

    return number > 0 ? number : 0;
}

/* The only NUMA node near the object, or -1: several equally near ones are none. */
static int nearest_node(const xm_topology_t *topology, hwloc_obj_t object)
{
    hwloc_obj_t place = hwloc_get_non_io_ancestor_obj(topology->hwloc, object);

    if (place == NULL || place->nodeset == NULL || hwloc_bitmap_weight(place->nodeset) != 1) {
        return -1;
    }
    return hwloc_bitmap_first(place->nodeset);
}

void xm_topology_pci_id(hwloc_obj_t pci, char id[XM_TOPOLOGY_PCI_ID_SIZE])
{
    const struct hwloc_pcidev_attr_s *attr = &pci->attr->pcidev;

    (void)snprintf(id, XM_TOPOLOGY_PCI_ID_SIZE, "%04x:%02x:%02x.%01x", attr->domain, attr->bus,
                   attr->dev, attr->func);
}

/* Appends a device below @p object; @p pci is its PCI function or NULL. The array has room for
 * all. */
static xm_topology_device_t *append(xm_topology_t *topology, xm_device_kind_t kind,
                                    hwloc_obj_t object, hwloc_obj_t pci)
{
    xm_topology_entry_t *device = &topology->devices[kind][topology->device_count[kind]++];

    device->object = object;
    device->shown = (xm_topology_device_t){.kind = kind,
                                           .name = device->pci,
                                           .rdma_name = "",
                                           .pci = device->pci,
                                           .model = "",
                                           .interface = "",
                                           .physical_function = "",
                                           .numa_node = nearest_node(topology, object)};
    if (pci != NULL) {
        xm_topology_pci_id(pci, device->pci);
        device->shown.model = xm_topology_info(pci, "PCIDevice");
        device->shown.pci_bandwidth = (double)pci->attr->pcidev.linkspeed * 1e9;
    }
    return &device->shown;
}

/* Children of a function are in hwloc's order, which pairs interfaces with RDMA devices by their
 * position. */
static hwloc_obj_t child_of_type(hwloc_obj_t pci, hwloc_obj_osdev_type_t type, int index)
{
    for (hwloc_obj_t child = pci->io_first_child; child != NULL; child = child->next_sibling) {
        if (child->type == HWLOC_OBJ_OS_DEVICE && child->attr->osdev.type == type && index-- == 0) {
            return child;
        }
    }
    return NULL;
}

/* Adds the NICs of a PCI function. It has an interface for each port, but sometimes one RDMA
 * device for all of them, whose ports are then counted. */
static void add_nics(xm_topology_t *topology, hwloc_obj_t pci)
{
    hwloc_obj_t interface, rdma = NULL;
    int ports = 0, rdma_port = 0;

    while ((interface = child_of_type(pci, HWLOC_OBJ_OSDEV_NETWORK, ports)) != NULL) {
        hwloc_obj_t next = child_of_type(pci, HWLOC_OBJ_OSDEV_OPENFABRICS, ports);

        rdma_port = next != NULL ? 1 : rdma_port + 1;
        rdma = next != NULL ? next : rdma;
        xm_topology_describe_nic(append(topology, XM_DEVICE_NIC, pci, pci), pci, interface, rdma,
                                 rdma_port);
        ++ports;
    }
    /* Further RDMA devices have no interface, as those of InfiniBand without IP. */
    while ((rdma = child_of_type(pci, HWLOC_OBJ_OSDEV_OPENFABRICS, ports)) != NULL) {
        xm_topology_describe_nic(append(topology, XM_DEVICE_NIC, pci, pci), pci, NULL, rdma, 1);
        ++ports;
    }
    /* A card without a driver is listed too, so that the table can say why it is not used. */
    if (ports == 0 && pci->attr->pcidev.class_id >> 8 == CLASS_NETWORK) {
        xm_topology_describe_nic(append(topology, XM_DEVICE_NIC, pci, pci), pci, NULL, NULL, 0);
    }
}

static bool is_opencl(hwloc_obj_t os_device)
{
    return (os_device->subtype != NULL && strcmp(os_device->subtype, "OpenCL") == 0) ||
           strncmp(os_device->name, "opencl", strlen("opencl")) == 0;
}

/* OpenCL devices duplicate those of the vendor's own interface. */
static hwloc_obj_t compute_child(hwloc_obj_t pci)
{
    hwloc_obj_t child;

    for (int i = 0; (child = child_of_type(pci, HWLOC_OBJ_OSDEV_COPROC, i)) != NULL; ++i) {
        if (!is_opencl(child)) {
            return child;
        }
    }
    return child_of_type(pci, HWLOC_OBJ_OSDEV_GPU, 0);
}

/* A GPU is an accelerator by class, a display controller of a vendor whose ones compute, or
 * anything with a compute device. */
static void add_gpu(xm_topology_t *topology, hwloc_obj_t pci)
{
    const struct hwloc_pcidev_attr_s *attr = &pci->attr->pcidev;
    int class = attr->class_id >> 8;
    bool known_vendor = attr->vendor_id == VENDOR_NVIDIA || attr->vendor_id == VENDOR_AMD ||
                        attr->vendor_id == VENDOR_INTEL;
    hwloc_obj_t compute = compute_child(pci);

    if (class == CLASS_ACCELERATOR || (class == CLASS_DISPLAY && known_vendor) ||
        (compute != NULL && compute->attr->osdev.type == HWLOC_OBJ_OSDEV_COPROC)) {
        xm_topology_device_t *gpu = append(topology, XM_DEVICE_GPU, pci, pci);

        if (compute != NULL) {
            gpu->name = compute->name;
            gpu->model = gpu->model[0] != '\0' ? gpu->model : xm_topology_info(compute, "GPUModel");
        }
    }
}

/* Adds devices that hwloc could not tie to a PCI function. Virtual interfaces count only if
 * asked for: bridges and tunnels are no NICs. */
static void add_loose_device(xm_topology_t *topology, hwloc_obj_t object)
{
    hwloc_obj_osdev_type_t type = object->attr->osdev.type;

    if (type == HWLOC_OBJ_OSDEV_OPENFABRICS ||
        (type == HWLOC_OBJ_OSDEV_NETWORK && (topology->flags & XM_TOPOLOGY_VIRTUAL_NICS) != 0 &&
         strcmp(object->name, "lo") != 0)) {
        xm_topology_describe_nic(append(topology, XM_DEVICE_NIC, object, NULL), NULL,
                                 type == HWLOC_OBJ_OSDEV_NETWORK ? object : NULL,
                                 type == HWLOC_OBJ_OSDEV_OPENFABRICS ? object : NULL, 1);
    } else if (type == HWLOC_OBJ_OSDEV_COPROC && !is_opencl(object)) {
        xm_topology_device_t *gpu = append(topology, XM_DEVICE_GPU, object, NULL);

        gpu->name = object->name;
        gpu->model = xm_topology_info(object, "GPUModel");
    }
}

/* A number that orders functions as their names do: domain, bus, device, function. */
uint64_t xm_topology_pci_rank(hwloc_obj_t pci)
{
    const struct hwloc_pcidev_attr_s *attr = &pci->attr->pcidev;

    return (uint64_t)attr->domain << 24 | (uint64_t)attr->bus << 16 | (uint64_t)attr->dev << 8 |
           attr->func;
}

static int compare_pci(const void *a, const void *b)
{
    uint64_t rank_a = xm_topology_pci_rank(*(const hwloc_obj_t *)a);
    uint64_t rank_b = xm_topology_pci_rank(*(const hwloc_obj_t *)b);

    return (rank_a > rank_b) - (rank_a < rank_b);
}

/* Collects all devices. Functions are sorted, because hwloc lists them in the order of
 * discovery; the arrays are as large as all devices together, so appending cannot fail. */
static xm_status_t collect_devices(xm_topology_t *topology)
{
    size_t pci_count = (size_t)count(topology, HWLOC_OBJ_PCI_DEVICE);
    size_t room = pci_count + (size_t)count(topology, HWLOC_OBJ_OS_DEVICE) + 1;
    hwloc_obj_t *functions = calloc(pci_count + 1, sizeof(hwloc_obj_t));
    hwloc_obj_t object = NULL;

    for (int kind = 0; kind < XM_DEVICE_KIND_COUNT; ++kind) {
        topology->devices[kind] = calloc(room, sizeof(xm_topology_entry_t));
    }
    if (functions == NULL || topology->devices[XM_DEVICE_NIC] == NULL ||
        topology->devices[XM_DEVICE_GPU] == NULL) {
        free(functions);
        return xm_error_set(XM_ERR_NO_MEMORY, "topology: no memory for %zu devices", room);
    }
    for (size_t i = 0; i < pci_count; ++i) {
        functions[i] = object = hwloc_get_next_pcidev(topology->hwloc, object);
    }
    qsort(functions, pci_count, sizeof(hwloc_obj_t), compare_pci);
    for (size_t i = 0; i < pci_count; ++i) {
        add_nics(topology, functions[i]);
        add_gpu(topology, functions[i]);
    }
    free(functions);
    for (object = NULL; (object = hwloc_get_next_osdev(topology->hwloc, object)) != NULL;) {
        /* The others were added with their function. */
        if (object->parent->type != HWLOC_OBJ_PCI_DEVICE) {
            add_loose_device(topology, object);
        }
    }
    xm_topology_tie_functions(topology);
    return xm_topology_collect_uplinks(topology);
}

static int compare_nodes(const void *a, const void *b)
{
    return ((const xm_topology_node_t *)a)->os_index - ((const xm_topology_node_t *)b)->os_index;
}

/* Counts come from the root's set where objects are left out. */
static xm_status_t collect_counts(xm_topology_t *topology)
{
    hwloc_obj_t root = hwloc_get_root_obj(topology->hwloc);

    topology->packages = count(topology, HWLOC_OBJ_PACKAGE);
    topology->cores = count(topology, HWLOC_OBJ_CORE);
    topology->pus = hwloc_bitmap_weight(root->cpuset); /* known even where PUs are left out */
    topology->node_count = count(topology, HWLOC_OBJ_NUMANODE);
    topology->nodes = calloc((size_t)topology->node_count + 1, sizeof(xm_topology_node_t));
    if (topology->nodes == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "topology: no memory for %d NUMA nodes",
                            topology->node_count);
    }
    for (int i = 0; i < topology->node_count; ++i) {
        hwloc_obj_t node = hwloc_get_obj_by_type(topology->hwloc, HWLOC_OBJ_NUMANODE, (unsigned)i);

        topology->nodes[i] = (xm_topology_node_t){.os_index = (int)node->os_index,
                                                  .memory_bytes = node->attr->numanode.local_memory,
                                                  .pus = hwloc_bitmap_weight(node->cpuset)};
    }
    qsort(topology->nodes, (size_t)topology->node_count, sizeof(xm_topology_node_t), compare_nodes);
    return XM_OK;
}

/* Takes comments out, with the blanks that follow: hwloc's own parser (all that Debian installs
 * by default) stops at comments before the root element. "<" cannot occur in attributes. */
static void remove_comments(char *xml)
{
    char *out = xml;

    while (*xml != '\0') {
        char *end;

        if (strncmp(xml, "<!--", 4) == 0 && (end = strstr(xml + 4, "-->")) != NULL) {
            xml = end + 3;
            xml += strspn(xml, " \t\r\n");
        } else {
            *out++ = *xml++;
        }
    }
    *out = '\0';
}

/* Leaves out plugins of hwloc. It reads the PCI bus from sysfs itself; where its plugins are
 * installed, the pci one does so a second time through libpciaccess (whose name tables leak),
 * and opencl and gl load every OpenCL driver of the machine and talk to its X server, all for
 * names of the same devices. */
static void leave_out_plugins(hwloc_topology_t hwloc)
{
    static const char *const plugins[] = {"pci", "opencl", "gl"};

    for (size_t i = 0; i < sizeof plugins / sizeof *plugins; i++) {
        (void)hwloc_topology_set_components(hwloc, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST,
                                            plugins[i]);
    }
}

/* Creates a topology; @p xml NULL: of the live machine. @p source names the text in sentences.
 * What hwloc does not tell (speeds, link states) is added from sysfs for a live machine, and is
 * then part of the XML that it exports. */
static xm_status_t create(const char *xml, const char *source, unsigned flags,
                          xm_topology_t **created)
{
    xm_topology_t *topology = calloc(1, sizeof(*topology));
    char *clean = NULL;
    xm_status_t status = XM_ERR_NO_MEMORY;

    if (topology == NULL || hwloc_topology_init(&topology->hwloc) != 0) {
        free(topology);
        return xm_error_set(XM_ERR_NO_MEMORY, "topology: out of memory");
    }
    topology->flags = flags;
    (void)hwloc_topology_set_io_types_filter(topology->hwloc, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    leave_out_plugins(topology->hwloc);
    if (xml != NULL) {
        clean = strdup(xml);
        if (clean == NULL) {
            status = xm_error_set(XM_ERR_NO_MEMORY, "topology: out of memory");
            goto destroy_topology;
        }
        remove_comments(clean);
        status = xm_topology_check_xml(source, clean);
        if (status < 0) {
            goto free_clean;
        }
        if (hwloc_topology_set_xmlbuffer(topology->hwloc, clean, (int)strlen(clean) + 1) != 0) {
            status = XM_MALFORMED("%s: not an hwloc topology (%s)", source, strerror(errno));
            goto free_clean;
        }
    }
    if (hwloc_topology_load(topology->hwloc) != 0) {
        status = xm_error_set(xml != NULL ? XM_ERR_PARSE : XM_ERR_IO,
                              "%s: not an hwloc topology (%s)", source, strerror(errno));
        goto free_clean;
    }
    if (xml == NULL) {
        xm_topology_sysfs_annotate(topology->hwloc, "/sys");
    }
    status = collect_counts(topology);
    XM_THEN(status, collect_devices(topology));

free_clean:
    free(clean);
destroy_topology:
    if (status < 0) {
        xm_topology_destroy(topology);
        return status;
    }
    *created = topology;
    return XM_OK;
}

/* XM_TOPOLOGY replaces the live machine, for emulation and for reports of other machines'
 * faults. */
xm_status_t xm_topology_create(const char *path, unsigned flags, xm_topology_t **topology)
{
    char *xml = NULL;
    size_t length;
    xm_status_t status;

    if (path == NULL) {
        path = xm_config_string(XM_CONFIG_TOPOLOGY);
        if (*path == '\0') {
            return create(NULL, "this machine", flags, topology);
        }
    }
    status = xm_text_load(path, &xml, &length);
    if (status == XM_OK) {
        status = create(xml, path, flags, topology);
        free(xml);
    }
    return status;
}

xm_status_t xm_topology_create_from_text(const char *xml, unsigned flags, xm_topology_t **topology)
{
    return create(xml, "topology text", flags, topology);
}

/* The text is copied, so that callers can free it like any other. */
xm_status_t xm_topology_export_xml(const xm_topology_t *topology, char **text)
{
    char *buffer, *copy;
    int length;

    if (hwloc_topology_export_xmlbuffer(topology->hwloc, &buffer, &length, 0) != 0) {
        return xm_error_set(XM_ERR_INTERNAL, "topology: hwloc cannot write XML (%s)",
                            strerror(errno));
    }
    copy = strdup(buffer);
    hwloc_free_xmlbuffer(topology->hwloc, buffer);
    if (copy == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "topology: no memory for %d bytes of XML", length);
    }
    *text = copy;
    return XM_OK;
}

int xm_topology_packages(const xm_topology_t *topology)
{
    return topology->packages;
}

int xm_topology_cores(const xm_topology_t *topology)
{
    return topology->cores;
}

int xm_topology_pus(const xm_topology_t *topology)
{
    return topology->pus;
}

int xm_topology_node_count(const xm_topology_t *topology)
{
    return topology->node_count;
}

const xm_topology_node_t *xm_topology_node(const xm_topology_t *topology, int index)
{
    return &topology->nodes[index];
}

int xm_topology_device_count(const xm_topology_t *topology, xm_device_kind_t kind)
{
    return topology->device_count[kind];
}

const xm_topology_device_t *xm_topology_device(const xm_topology_t *topology, xm_device_kind_t kind,
                                               int index)
{
    return &topology->devices[kind][index].shown;
}

void xm_topology_destroy(xm_topology_t *topology)
{
    if (topology == NULL) {
        return;
    }
    for (int kind = 0; kind < XM_DEVICE_KIND_COUNT; ++kind) {
        free(topology->devices[kind]);
    }
    free(topology->uplinks);
    free(topology->nodes);
    hwloc_topology_destroy(topology->hwloc);
    free(topology);
}
