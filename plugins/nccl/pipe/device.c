/* SPDX-License-Identifier: Apache-2.0 */
/* The devices that NCCL's plug-in offers: the NICs of XM_NICS, or those that are suitable, or
 * one called "auto" where UCX chooses. NCCL compares PCI paths to find NICs near a GPU, and
 * GUIDs to find ports of one card, so both are read from sysfs, or invented where a device has
 * none: unique on the machine and the same in each of its processes. */
#include "plugins/nccl/pipe/device.h"

#include <ctype.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "comm/base.h"
#include "comm/topology.h"
#include "comm/transport/ucx.h"

_Static_assert((int)XM_PIPE_DEVICE_NAME_SIZE >= (int)XM_NICS_NAME_SIZE &&
                   (int)XM_PIPE_DEVICE_NAME_SIZE >= (int)XM_NIC_DEVICE_SIZE,
               "names of NICs fit");

/* True for a word like "0000:3b:00.0". */
static bool is_pci_function(const char *word, size_t length)
{
    static const char form[] = "xxxx:xx:xx.x";

    if (length != sizeof(form) - 1) {
        return false;
    }
    for (size_t i = 0; i < length; ++i) {
        if (form[i] == 'x' ? !isxdigit((unsigned char)word[i]) : word[i] != form[i]) {
            return false;
        }
    }
    return true;
}

/* Cuts a path of sysfs after its last PCI function, which is where the kernel's device ends and
 * the NIC's own begins. False when it has none (virtual devices). */
bool xm_pipe_device_pci_path(char *path)
{
    size_t end = 0;

    for (size_t at = 0; path[at] != '\0';) {
        size_t length = strcspn(path + at, "/");

        end = is_pci_function(path + at, length) ? at + length : end;
        at += length + (path[at + length] == '/');
    }
    path[end] = '\0';
    return end > 0;
}

/* Reads the number in a file like "b8ce:f603:0012:3456"; 0: there is none. */
static uint64_t read_guid(const char *path)
{
    char text[64] = "", digits[17] = "";
    FILE *stream = fopen(path, "re");
    size_t used = 0;

    if (stream == NULL) {
        return 0;
    }
    if (fgets(text, sizeof(text), stream) == NULL) {
        text[0] = '\0';
    }
    (void)fclose(stream);
    for (const char *at = text; *at != '\0' && used < sizeof(digits) - 1; ++at) {
        if (isxdigit((unsigned char)*at)) {
            digits[used++] = *at;
        }
    }
    return strtoull(digits, NULL, 16);
}

/* Makes a number that no other device has, from the machine and the name. */
static uint64_t invented_guid(const char *name)
{
    xm_host_identity_t identity;
    uint64_t seed;

    xm_host_identity_read(NULL, &identity);
    seed = XXH64(identity.machine, strlen(identity.machine), 0);
    return XXH64(name, strlen(name), seed);
}

/* Fills in what /sys says of a device whose name and rate are known. */
static void describe(const char *sysfs, xm_pipe_device_t *device)
{
    const char *colon = strchr(device->name, ':');
    int length = (int)strcspn(device->name, ":");
    char path[XM_PIPE_DEVICE_PATH_SIZE + 128], real[PATH_MAX] = "";

    (void)snprintf(path, sizeof(path), "%s/class/%s/%.*s/device", sysfs,
                   colon != NULL ? "infiniband" : "net", length, device->name);
    if (realpath(path, real) != NULL && strlen(real) < sizeof(device->pci_path) &&
        xm_pipe_device_pci_path(real)) {
        (void)snprintf(device->pci_path, sizeof(device->pci_path), "%s", real);
    }
    if (colon != NULL) {
        (void)snprintf(path, sizeof(path), "%s/class/infiniband/%.*s/sys_image_guid", sysfs, length,
                       device->name);
        device->guid = read_guid(path);
        device->port = (int)strtol(colon + 1, NULL, 10);
    }
    device->port = device->port > 0 ? device->port : 1;
    device->guid = device->guid != 0 ? device->guid : invented_guid(device->name);
}

static void add(const char *sysfs, const char *name, double rate, xm_pipe_device_t *device)
{
    *device = (xm_pipe_device_t){.rate = rate};
    (void)snprintf(device->name, sizeof(device->name), "%s", name);
    if (rate >= 1) {
        (void)snprintf(device->nics, sizeof(device->nics), "%s=%" PRIu64, name, (uint64_t)rate);
    } else {
        (void)snprintf(device->nics, sizeof(device->nics), "%s", name);
    }
    describe(sysfs, device);
}

static xm_status_t list_named(const char *text, const char *sysfs, xm_pipe_device_t *devices,
                              int max, int *count)
{
    xm_nics_t nics;
    XM_TRY(xm_nics_parse(text, 0, sysfs, &nics));

    for (int i = 0; i < nics.count && i < max; ++i) {
        add(sysfs, nics.nic[i].device, (double)nics.nic[i].rate, &devices[(*count)++]);
    }
    return XM_OK;
}

/* Lists the suitable NICs of a topology, as for a rank whose place is not known: NCCL itself
 * chooses the nearest. */
static xm_status_t list_suitable(const xm_topology_t *topology, const char *unwanted,
                                 const char *sysfs, xm_pipe_device_t *devices, int max, int *count)
{
    const xm_nic_slot_t slot = {.gpu = -1, .node = -1, .rank = -1};
    xm_nic_choice_params_t params = {0};
    xm_nic_choice_t *choice = NULL;
    char *usable = NULL;
    xm_status_t status = xm_ucx_rail_devices(&usable);

    params.topology = topology;
    params.slots = &slot;
    params.slot_count = 1;
    params.usable = usable;
    params.unwanted = unwanted;
    XM_THEN(status, xm_nic_choice_create(&params, &choice));
    free(usable);
    if (status < 0) {
        return status;
    }
    for (int nic = 0; nic < xm_topology_device_count(topology, XM_DEVICE_NIC) && *count < max;
         ++nic) {
        const xm_nic_suitability_t *fault_status = xm_nic_choice_nic(choice, nic);

        if (fault_status->suitable) {
            add(sysfs, fault_status->device, fault_status->rate * 8, &devices[(*count)++]);
        }
    }
    xm_nic_choice_destroy(choice);
    return XM_OK;
}

/* Lists the devices; there is always at least one, because NCCL takes none for a failure of the
 * plug-in. */
xm_status_t xm_pipe_devices_list(const char *sysfs, xm_pipe_device_t *devices, int max, int *count)
{
    const char *text = xm_config_string(XM_CONFIG_NICS);
    xm_topology_t *topology = NULL;
    xm_status_t status = XM_OK;

    *count = 0;
    if (text[0] != '\0' && text[0] != '^') {
        return list_named(text, sysfs, devices, max, count);
    }
    if (getenv("UCX_NET_DEVICES") == NULL) {
        status = xm_topology_create(NULL, 0, &topology);
        XM_THEN(status, list_suitable(topology, text[0] == '^' ? text + 1 : NULL, sysfs, devices,
                                      max, count));
        xm_topology_destroy(topology);
    }
    if (status == XM_OK && *count == 0) {
        devices[0] = (xm_pipe_device_t){.name = "auto", .port = 1, .guid = invented_guid("auto")};
        *count = 1;
    }
    return status;
}
