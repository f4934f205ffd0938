/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The devices that NCCL sees: this host's NICs, one by one or merged, and virtual devices
 * that NCCL makes of several. They are found once in a process and shared by all
 * communicators; a lock guards the list, and entries never move or change once NCCL knows
 * them, so their strings can be handed out.
 */
#include "plugins/nccl/net.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/profile.h"
#include "comm/base.h"
#include <crossmesh/version.h>
#include "plugins/nccl/plugin_log.h"

/* The speed that NCCL assumes of a network when nobody tells it, in Mbit/s. */
enum { UNKNOWN_SPEED = 10000 };

static struct {
    pthread_mutex_t lock;
    bool ready;
    int count;
    net_device_t devices[NET_DEVICES_MAX];
    _Atomic(nccl_profiler_t) profiler; /* read without the lock */
} net = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The measured latency between hosts in microseconds, 0 where there is none. */
static float measured_latency(void)
{
    const char *path = xm_config_string(XM_CONFIG_PROFILE);
    xm_cluster_profile_t *profile;
    float latency;

    if (path[0] == '\0' || xm_cluster_profile_load(path, &profile) < 0) {
        return 0;
    }
    latency = (float)(xm_cluster_profile_latency(profile, XM_LINK_INTER_HOST) * 1e6);
    xm_cluster_profile_destroy(profile);
    return latency;
}

/* The count rises before anything can fail, so forget_devices() frees what there is. */
static xm_status_t add_nic(const xm_pipe_device_t *nic, float latency)
{
    net_device_t *device = &net.devices[net.count];

    *device = (net_device_t){.name = strdup(nic->name),
                             .pci_path = nic->pci_path[0] != '\0' ? strdup(nic->pci_path) : NULL,
                             .nics = strdup(nic->nics),
                             .guid = nic->guid,
                             .port = nic->port,
                             .latency = latency,
                             .count = 1,
                             .members = {net.count}};
    device->speed = nic->rate >= 1e6 ? (int)(nic->rate / 1e6) : UNKNOWN_SPEED;
    ++net.count; /* what it has is freed at the end, failed or not */
    return device->name != NULL && device->nics != NULL ? XM_OK : XM_NO_MEMORY("a network device");
}

/* Joins the members' names as "a+b", or their NICs as "a,b". */
static char *join(const int *members, int count, bool names)
{
    size_t size = 1;
    char *text;

    for (int i = 0; i < count; ++i) {
        const net_device_t *member = &net.devices[members[i]];

        size += strlen(names ? member->name : member->nics) + 1;
    }
    text = calloc(1, size);
    for (int i = 0; i < count && text != NULL; ++i) {
        const net_device_t *member = &net.devices[members[i]];

        (void)snprintf(text + strlen(text), size - strlen(text), "%s%s",
                       i == 0  ? ""
                       : names ? "+"
                               : ",",
                       names ? member->name : member->nics);
    }
    return text;
}

/* Adds a device of several NICs. NCCL places it where the first one is. */
static xm_status_t add_virtual(const int *members, int count)
{
    const net_device_t *first = &net.devices[members[0]];
    net_device_t *device = &net.devices[net.count];
    int64_t speed = 0;

    *device = *first;
    device->pci_path = first->pci_path != NULL ? strdup(first->pci_path) : NULL;
    device->name = join(members, count, true);
    device->nics = join(members, count, false);
    device->count = count;
    for (int i = 0; i < count; ++i) {
        speed += net.devices[members[i]].speed;
        device->members[i] = members[i];
    }
    device->speed = speed < INT32_MAX ? (int)speed : INT32_MAX;
    ++net.count;
    return device->name != NULL && device->nics != NULL ? XM_OK : XM_NO_MEMORY("a network device");
}

static void forget_devices(void)
{
    for (int i = 0; i < net.count; ++i) {
        free(net.devices[i].name);
        free(net.devices[i].pci_path);
        free(net.devices[i].nics);
    }
    net.count = 0;
}

/* Replaces all NICs by one device that takes the first place. */
static xm_status_t merge_all(void)
{
    int all[NCCL_MEMBERS_MAX_V12], count = 0;
    xm_status_t status;

    while (count < net.count && count < NCCL_MEMBERS_MAX_V12) {
        all[count] = count;
        ++count;
    }
    status = add_virtual(all, count);
    if (status == XM_OK) {
        net_device_t merged = net.devices[net.count - 1];

        --net.count;
        forget_devices();
        merged.count = 1;
        merged.members[0] = 0;
        net.devices[net.count++] = merged;
    }
    return status;
}

/* Called under the lock, once; on a failure the list is empty again and the next call
 * tries anew. */
static xm_status_t find_devices(void)
{
    static xm_pipe_device_t nics[XM_PIPE_DEVICES_MAX];
    float latency = measured_latency();
    int count = 0;
    xm_status_t status = xm_pipe_devices_list("/sys", nics, XM_PIPE_DEVICES_MAX, &count);

    for (int i = 0; i < count && status == XM_OK; ++i) {
        status = add_nic(&nics[i], latency);
    }
    if (status == XM_OK && count > 1 && xm_config_choice(XM_CONFIG_NCCL_DEVICES) == 1) {
        status = merge_all();
    }
    if (status < 0) {
        forget_devices();
    }
    return status;
}

/* Logs what is there and what was chosen in one line: the first question of anybody who
 * looks. */
static void announce(void)
{
    char list[512] = "";

    for (int i = 0; i < net.count; ++i) {
        xm_text_list_add(list, sizeof(list), "; ", "%d: %s, %d Mbit/s%s%s", i, net.devices[i].name,
                         net.devices[i].speed, net.devices[i].pci_path != NULL ? ", " : "",
                         net.devices[i].pci_path != NULL ? net.devices[i].pci_path : "");
    }
    plugin_info(NCCL_SUBJECT_INIT | NCCL_SUBJECT_NET,
                "NET/crossmesh %s: exports ncclNetPlugin_v6 to _v12 and ncclTunerPlugin_v5; "
                "devices %s",
                XM_VERSION_STRING, list);
}

/* NCCL calls it for every communicator; only the first call looks for devices. */
nccl_result_t net_init(nccl_log_t log, nccl_profiler_t profiler)
{
    xm_status_t status = XM_OK;

    plugin_log_set(log);
    (void)pthread_mutex_lock(&net.lock);
    if (profiler != NULL) {
        atomic_store(&net.profiler, profiler);
    }
    if (!net.ready) {
        status = xm_config_check();
        if (status == XM_ERR_NOT_FOUND) { /* a setting of another version, perhaps */
            plugin_info(NCCL_SUBJECT_INIT | NCCL_SUBJECT_NET, "NET/crossmesh: %s", xm_last_error());
            status = XM_OK;
        }
        XM_THEN(status, find_devices());
        net.ready = status == XM_OK;
        if (net.ready) {
            announce();
        }
    }
    (void)pthread_mutex_unlock(&net.lock);
    return status == XM_OK ? NCCL_OK : plugin_fail(status, "cannot start");
}

nccl_result_t net_devices(int *count)
{
    (void)pthread_mutex_lock(&net.lock);
    *count = net.count;
    (void)pthread_mutex_unlock(&net.lock);
    return *count > 0 ? NCCL_OK : NCCL_INTERNAL;
}

const net_device_t *net_device(int device)
{
    int count;

    (void)net_devices(&count);
    if (device < 0 || device >= count) {
        plugin_warn(NCCL_SUBJECT_NET, "NET/crossmesh: there is no device %d, only %d of them",
                    device, count);
        return NULL;
    }
    return &net.devices[device];
}

/* Collects the NICs of several devices; returns how many, or −1 when they are too many. */
static int collect(int count, const int *members, int *nics)
{
    int total = 0;

    for (int i = 0; i < count; ++i) {
        const net_device_t *device = &net.devices[members[i]];

        for (int k = 0; k < device->count; ++k) {
            if (total == NCCL_MEMBERS_MAX_V12) {
                return -1;
            }
            nics[total++] = device->members[k];
        }
    }
    return total;
}

/* A virtual device of one NIC is that NIC. Members that are virtual themselves are taken
 * apart. */
nccl_result_t net_make_virtual(int *device, int count, const int *members)
{
    int nics[NCCL_MEMBERS_MAX_V12], total;
    xm_status_t status = XM_OK;

    for (int i = 0; i < count; ++i) {
        if (net_device(members[i]) == NULL) {
            return NCCL_INVALID_ARGUMENT;
        }
    }
    (void)pthread_mutex_lock(&net.lock);
    total = collect(count, members, nics);
    if (total < 1 || net.count == NET_DEVICES_MAX) {
        status = XM_INVALID("a virtual device has 1 to %d NICs, and there are at most %d devices",
                            (int)NCCL_MEMBERS_MAX_V12, (int)NET_DEVICES_MAX);
    } else if (total == 1) {
        *device = nics[0];
    } else {
        *device = net.count;
        status = add_virtual(nics, total);
    }
    (void)pthread_mutex_unlock(&net.lock);
    return status == XM_OK ? NCCL_OK : plugin_fail(status, "cannot join devices");
}

nccl_profiler_t net_profiler(void)
{
    return atomic_load(&net.profiler);
}

/* Runs when the plug-in is unloaded: NCCL may load it again. */
__attribute__((destructor)) static void unload(void)
{
    net_forget_pending();
    forget_devices();
}
