#include "comm/topology_sysfs.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

double xm_topology_sysfs_parse_net_speed(const char *text)
{
    char *end;
    double mbps = strtod(text, &end);

    return end != text && (*end == '\n' || *end == '\0') && mbps > 0 ? mbps : 0;
}

double xm_topology_sysfs_parse_rdma_rate(const char *text)
{
    char *end;
    double gbps = strtod(text, &end);

    return end != text && strncmp(end, " Gb/sec", strlen(" Gb/sec")) == 0 && gbps > 0 ? gbps * 1e3
                                                                                      : 0;
}

/* First line of a small file; false when there is none (EINVAL of an interface that is down). */
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

void xm_topology_sysfs_annotate(hwloc_topology_t topology)
{
    for (hwloc_obj_t object = NULL; (object = hwloc_get_next_osdev(topology, object)) != NULL;) {
        char path[512], text[64];
        double mbps = 0;

        if (object->attr->osdev.type == HWLOC_OBJ_OSDEV_NETWORK) {
            (void)snprintf(path, sizeof(path), "/sys/class/net/%s/speed", object->name);
            if (read_line(path, text, sizeof(text))) {
                mbps = xm_topology_sysfs_parse_net_speed(text);
            }
        } else if (object->attr->osdev.type == HWLOC_OBJ_OSDEV_OPENFABRICS) {
            (void)snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/1/rate",
                           object->name);
            if (read_line(path, text, sizeof(text))) {
                mbps = xm_topology_sysfs_parse_rdma_rate(text);
            }
        }
        if (mbps > 0) {
            (void)snprintf(text, sizeof(text), "%.0f", mbps);
            (void)hwloc_obj_add_info(object, XM_TOPOLOGY_LINK_INFO, text);
        }
    }
}
