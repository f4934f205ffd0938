/* SPDX-License-Identifier: Apache-2.0 */
/* Reading XM_NICS. A device must exist, and its rate is taken from the text or from sysfs; a
 * mistake is answered with the list of devices that there are. RDMA ports and interfaces are
 * told apart by the colon, as UCX names them. The root of sysfs is a parameter, so that tests
 * run on made-up machines. */
#include "comm/topology/nics.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "comm/base.h"
#include "comm/topology/sysfs.h"

enum { PATH_SIZE = 512, LIST_SIZE = 512 };

/* Splits DEVICE:PORT of an RDMA device; false for a network interface, and for names that are
 * neither: a port is a number, so "mlx5_0:." does not name the folder of all ports. */
static bool split_port(const char *device, char name[XM_NICS_NAME_SIZE], const char **port)
{
    const char *colon = strchr(device, ':');

    if (colon == NULL || colon == device || colon[1] == '\0' ||
        strspn(colon + 1, "0123456789") != strlen(colon + 1)) {
        return false;
    }
    (void)snprintf(name, XM_NICS_NAME_SIZE, "%.*s", (int)(colon - device), device);
    *port = colon + 1;
    return true;
}

/* Finds where the kernel describes a device, and the file there that tells its speed. */
static void locate(const char *sysfs, const char *device, char path[PATH_SIZE], const char **file)
{
    char name[XM_NICS_NAME_SIZE];
    const char *port;

    if (split_port(device, name, &port)) {
        (void)snprintf(path, PATH_SIZE, "%s/class/infiniband/%s/ports/%s", sysfs, name, port);
        *file = "rate";
    } else {
        (void)snprintf(path, PATH_SIZE, "%s/class/net/%s", sysfs, device);
        *file = "speed";
    }
}

/* The name of an RDMA device without a port means its first one, so that names can be compared
 * as wholes. */
static void add_port(const char *sysfs, char device[XM_NICS_NAME_SIZE])
{
    char path[PATH_SIZE];
    size_t length = strlen(device);

    (void)snprintf(path, sizeof(path), "%s/class/infiniband/%s/ports/1", sysfs, device);
    if (device[0] != '.' && strchr(device, ':') == NULL && length + 3 <= XM_NICS_NAME_SIZE &&
        access(path, F_OK) == 0) {
        (void)snprintf(device + length, XM_NICS_NAME_SIZE - length, ":1");
    }
}

/* Reads a speed in bit/s; 0 when nothing sensible is told. */
static uint64_t speed_of(const char *path, const char *file)
{
    char name[PATH_SIZE + 8], text[64] = "";
    FILE *stream;
    double mbps;

    (void)snprintf(name, sizeof(name), "%s/%s", path, file);
    stream = fopen(name, "re");
    if (stream == NULL) {
        return 0;
    }
    /* An interface that is down, and most virtual ones, refuse to be read. */
    if (fgets(text, sizeof(text), stream) == NULL) {
        text[0] = '\0';
    }
    (void)fclose(stream);
    mbps = strcmp(file, "rate") == 0 ? xm_topology_sysfs_parse_rdma_rate(text)
                                     : xm_topology_sysfs_parse_net_speed(text);
    return mbps * 1e6 < (double)XM_NICS_MAX_RATE ? (uint64_t)(mbps * 1e6)
                                                 : (uint64_t)XM_NICS_MAX_RATE;
}

/* Lists every entry of a directory that is not hidden; with `ports`, each with its ports. */
static void list_devices(const char *directory, bool ports, char list[LIST_SIZE])
{
    DIR *devices = opendir(directory);

    for (struct dirent *entry; devices != NULL && (entry = readdir(devices)) != NULL;) {
        char path[PATH_SIZE + 300];
        DIR *below;

        if (entry->d_name[0] == '.') {
            continue;
        }
        if (!ports) {
            xm_text_list_add(list, LIST_SIZE, ", ", "%s", entry->d_name);
            continue;
        }
        (void)snprintf(path, sizeof(path), "%s/%s/ports", directory, entry->d_name);
        below = opendir(path);
        for (struct dirent *port; below != NULL && (port = readdir(below)) != NULL;) {
            if (port->d_name[0] != '.') {
                xm_text_list_add(list, LIST_SIZE, ", ", "%s:%s", entry->d_name, port->d_name);
            }
        }
        if (below != NULL) {
            (void)closedir(below);
        }
    }
    if (devices != NULL) {
        (void)closedir(devices);
    }
}

static xm_status_t unknown_device(int rank, const char *sysfs, const char *device)
{
    char path[PATH_SIZE], list[LIST_SIZE] = "";

    (void)snprintf(path, sizeof(path), "%s/class/net", sysfs);
    list_devices(path, false, list);
    (void)snprintf(path, sizeof(path), "%s/class/infiniband", sysfs);
    list_devices(path, true, list);
    return XM_NOT_FOUND("rank %d: XM_NICS: no network device '%s'; this machine has %s", rank,
                        device, list[0] != '\0' ? list : "none");
}

/* Reads one entry of the list, [at, at + length). A name must not contain a slash, for it
 * becomes part of a path. */
static xm_status_t parse_entry(const char *at, size_t length, int rank, const char *sysfs,
                               xm_nic_t *nic)
{
    const char *equals = memchr(at, '=', length), *file;
    size_t name_length = equals != NULL ? (size_t)(equals - at) : length;
    char path[PATH_SIZE];

    if (name_length == 0 || name_length >= sizeof(nic->device) ||
        memchr(at, '/', name_length) != NULL || memchr(at, ' ', name_length) != NULL) {
        return XM_MALFORMED("rank %d: XM_NICS: '%.*s' is not DEVICE or DEVICE=RATE in bit/s", rank,
                            (int)length, at);
    }
    memcpy(nic->device, at, name_length);
    nic->device[name_length] = '\0';
    add_port(sysfs, nic->device);
    locate(sysfs, nic->device, path, &file);
    if (nic->device[0] == '.' || access(path, F_OK) != 0) {
        return unknown_device(rank, sysfs, nic->device);
    }
    if (equals == NULL) {
        nic->rate = speed_of(path, file);
    } else {
        char what[64], text[32];
        int64_t rate = 0;

        (void)snprintf(what, sizeof(what), "rank %d: XM_NICS: rate of %.16s", rank, nic->device);
        (void)snprintf(text, sizeof(text), "%.*s", (int)(length - name_length - 1), equals + 1);
        XM_TRY(xm_text_parse_int(what, text, 1, XM_NICS_MAX_RATE, &rate));
        nic->rate = (uint64_t)rate;
    }
    return XM_OK;
}

/* An empty text is one nameless NIC: whatever UCX chooses. */
xm_status_t xm_nics_parse(const char *text, int rank, const char *sysfs, xm_nics_t *nics)
{
    *nics = (xm_nics_t){.count = 1};
    if (text == NULL || text[0] == '\0') {
        return XM_OK;
    }
    nics->count = 0;
    for (const char *at = text;; ++at) {
        size_t length = strcspn(at, ",");

        if (nics->count == XM_NICS_MAX) {
            return XM_MALFORMED("rank %d: XM_NICS: '%s' names more than %d devices", rank, text,
                                XM_NICS_MAX);
        }
        XM_TRY(parse_entry(at, length, rank, sysfs, &nics->nic[nics->count]));
        ++nics->count;
        at += length;
        if (*at == '\0') {
            return XM_OK;
        }
    }
}
