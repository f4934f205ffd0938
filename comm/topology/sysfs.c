/* SPDX-License-Identifier: Apache-2.0 */
/* What sysfs knows of NICs and hwloc does not: speed, link state, link layer, virtual
 * functions. It is added to hwloc's objects as info attributes, so that it travels with
 * exported XML and a topology from a file knows as much as a live one. Nothing here fails: a
 * file that cannot be read leaves its fact unknown. */
#include "comm/topology/sysfs.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_SIZE = 512 };

/* Interfaces that are down tell -1; that is no speed. */
double xm_topology_sysfs_parse_net_speed(const char *text)
{
    char *end;
    double mbps = strtod(text, &end);

    return end != text && (*end == '\n' || *end == '\0') && mbps > 0 ? mbps : 0;
}

/* The kernel writes "200 Gb/sec (4X HDR)"; another unit is not guessed at. */
double xm_topology_sysfs_parse_rdma_rate(const char *text)
{
    char *end;
    double gbps = strtod(text, &end);

    return end != text && strncmp(end, " Gb/sec", strlen(" Gb/sec")) == 0 && gbps > 0 ? gbps * 1e3
                                                                                      : 0;
}

/* Reads the first line of a small file; false when there is none (reading fails for an
 * interface that is down). */
static bool read_line(const char *path, char *line, int size)
{
    FILE *file = fopen(path, "re");
    bool ok;

    if (file == NULL) {
        return false;
    }
    ok = fgets(line, size, file) != NULL;
    (void)fclose(file);
    return ok;
}

static void add_info(hwloc_obj_t object, const char *name, const char *value)
{
    (void)hwloc_obj_add_info(object, name, value);
}

static void add_speed(hwloc_obj_t object, double mbps)
{
    char text[64];

    if (mbps > 0) {
        (void)snprintf(text, sizeof(text), "%.0f", mbps);
        add_info(object, XM_TOPOLOGY_LINK_INFO, text);
    }
}

/* Finds the PCI function that a virtual one belongs to: where its link `physfn` leads. */
static void add_physical_function(hwloc_obj_t object, const char *directory)
{
    char path[PATH_SIZE + 32], target[PATH_SIZE];
    ssize_t length;

    (void)snprintf(path, sizeof(path), "%s/device/physfn", directory);
    length = readlink(path, target, sizeof(target) - 1);
    if (length > 0) {
        const char *slash;

        target[length] = '\0';
        slash = strrchr(target, '/');
        add_info(object, XM_TOPOLOGY_FUNCTION_INFO, slash != NULL ? slash + 1 : target);
    }
}

static void annotate_interface(hwloc_obj_t object, const char *directory)
{
    char path[PATH_SIZE + 32], text[64];

    (void)snprintf(path, sizeof(path), "%s/speed", directory);
    if (read_line(path, text, sizeof(text))) {
        add_speed(object, xm_topology_sysfs_parse_net_speed(text));
    }
    (void)snprintf(path, sizeof(path), "%s/operstate", directory);
    if (read_line(path, text, sizeof(text))) {
        text[strcspn(text, "\n")] = '\0';
        /* Drivers that do not tell leave it "unknown". */
        if (strcmp(text, "up") == 0) {
            add_info(object, XM_TOPOLOGY_STATE_INFO, "up");
        } else if (strcmp(text, "down") == 0 || strcmp(text, "lowerlayerdown") == 0 ||
                   strcmp(text, "notpresent") == 0) {
            add_info(object, XM_TOPOLOGY_STATE_INFO, "down");
        }
    }
    (void)snprintf(path, sizeof(path), "%s/wireless", directory);
    if (access(path, F_OK) == 0) {
        add_info(object, XM_TOPOLOGY_WIRELESS_INFO, "1");
    }
}

static void annotate_rdma(hwloc_obj_t object, const char *directory)
{
    char path[PATH_SIZE + 32], text[64];

    (void)snprintf(path, sizeof(path), "%s/ports/1/rate", directory);
    if (read_line(path, text, sizeof(text))) {
        add_speed(object, xm_topology_sysfs_parse_rdma_rate(text));
    }
    (void)snprintf(path, sizeof(path), "%s/ports/1/link_layer", directory);
    if (read_line(path, text, sizeof(text))) {
        text[strcspn(text, "\n")] = '\0';
        add_info(object, XM_TOPOLOGY_LAYER_INFO, text);
    }
}

void xm_topology_sysfs_annotate(hwloc_topology_t topology, const char *sysfs)
{
    for (hwloc_obj_t object = NULL; (object = hwloc_get_next_osdev(topology, object)) != NULL;) {
        bool rdma = object->attr->osdev.type == HWLOC_OBJ_OSDEV_OPENFABRICS;
        char directory[PATH_SIZE];

        if (!rdma && object->attr->osdev.type != HWLOC_OBJ_OSDEV_NETWORK) {
            continue;
        }
        (void)snprintf(directory, sizeof(directory), "%s/class/%s/%s", sysfs,
                       rdma ? "infiniband" : "net", object->name);
        if (rdma) {
            annotate_rdma(object, directory);
        } else {
            annotate_interface(object, directory);
        }
        add_physical_function(object, directory);
    }
}
