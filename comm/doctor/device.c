/* SPDX-License-Identifier: Apache-2.0 */
/* The doctor's look at GPUs and the NICs that serve them: can NICs read the memory of GPUs
 * themselves, and has each GPU a NIC that is not behind the link between processors. Both
 * decide whether tiles on GPUs travel at the NIC's rate or at that of a detour. */
#include <stdlib.h>
#include <string.h>

#include "comm/doctor/doctor_private.h"
#include "comm/base.h"

/* A module's name must be the first word of a line, since other lines name it as a user. */
static bool starts_line(const char *text, const char *word)
{
    size_t length = strlen(word);

    for (const char *at = strstr(text, word); at != NULL; at = strstr(at + 1, word)) {
        if ((at == text || at[-1] == '\n') && at[length] == ' ') {
            return true;
        }
    }
    return false;
}

/* Linux 5.12 lets RDMA devices use memory of other devices (DMA-BUF); the version is all that
 * tells. */
static bool knows_dma_buf(const xm_doctor_t *doctor)
{
    char release[64], *end;
    long major, minor = 0;

    if (!xm_doctor_read(doctor, release, sizeof(release), "/proc/sys/kernel/osrelease")) {
        return false;
    }
    major = strtol(release, &end, 10);
    if (*end == '.') {
        minor = strtol(end + 1, NULL, 10);
    }
    return major > 5 || (major == 5 && minor >= 12);
}

static int count_gpus(const xm_doctor_t *doctor)
{
    const xm_topology_t *topology = doctor->params->topology;

    return topology != NULL ? xm_topology_device_count(topology, XM_DEVICE_GPU) : 0;
}

/* Checks that NICs can read and write the memory of GPUs. */
static void check_peer_memory(xm_doctor_t *doctor)
{
    static const char *const modules[] = {"nvidia_peermem", "nv_peer_mem", "amdgpu"};
    static const char subject[] = "GPU peer memory";
    char text[1 << 15];
    int gpus = count_gpus(doctor);

    if (gpus == 0 || !doctor->rdma) {
        xm_doctor_note(doctor, XM_SEVERITY_ABSENT, subject, "",
                       gpus == 0 ? "no GPU" : "no RDMA device");
        return;
    }
    /* A file that cannot be read gives an empty text, and so the warning below. */
    (void)xm_doctor_read(doctor, text, sizeof(text), "/proc/modules");
    for (size_t i = 0; i < sizeof(modules) / sizeof(modules[0]); ++i) {
        if (starts_line(text, modules[i])) {
            xm_doctor_note(doctor, XM_SEVERITY_OK, subject, "", "module %s is loaded", modules[i]);
            return;
        }
    }
    xm_doctor_note(doctor, XM_SEVERITY_WARN, subject,
                   "modprobe nvidia_peermem, or use the open GPU driver with DMA-BUF; until then "
                   "tiles on GPUs travel through host memory.",
                   "no peer-memory module is loaded; the kernel %s DMA-BUF",
                   knows_dma_buf(doctor) ? "could use" : "is too old for");
}

/* The nearest NIC of a GPU that is up; -1: there is none. */
static int nearest_nic(const xm_topology_t *topology, int gpu, xm_topology_path_t *path)
{
    int nearest = -1;

    *path = XM_PATH_MACHINE;
    for (int nic = 0; nic < xm_topology_device_count(topology, XM_DEVICE_NIC); ++nic) {
        const xm_topology_device_t *device = xm_topology_device(topology, XM_DEVICE_NIC, nic);
        xm_topology_path_t way = xm_topology_path(topology, nic, gpu);

        if (!device->down && !device->wireless && (nearest < 0 || way < *path)) {
            nearest = nic;
            *path = way;
        }
    }
    return nearest;
}

/* A distance counts as far only across packages; anything nearer differs by little. */
static void check_distance(xm_doctor_t *doctor)
{
    static const char subject[] = "NIC distance";
    const xm_topology_t *topology = doctor->params->topology;
    int gpus = count_gpus(doctor), apart = 0, nics = 0;
    xm_topology_path_t farthest = XM_PATH_DEVICE;
    char far[128] = "";

    for (int gpu = 0; gpu < gpus; ++gpu) {
        xm_topology_path_t path;

        if (nearest_nic(topology, gpu, &path) < 0) {
            continue;
        }
        ++nics;
        farthest = path > farthest ? path : farthest;
        if (path == XM_PATH_MACHINE) {
            ++apart;
            xm_text_list_add(far, sizeof(far), ", ", "%s",
                             xm_topology_device(topology, XM_DEVICE_GPU, gpu)->name);
        }
    }
    if (gpus == 0 || nics == 0) {
        xm_doctor_note(doctor, XM_SEVERITY_ABSENT, subject, "", gpus == 0 ? "no GPU" : "no NIC");
    } else if (apart > 0) {
        xm_doctor_note(doctor, XM_SEVERITY_WARN, subject,
                       "Move a NIC to a slot of that processor, or use the GPUs near NICs for what "
                       "crosses hosts; reshard-bench --show-topology has the table.",
                       "%s: every NIC is behind the link between processors", far);
    } else {
        xm_doctor_note(doctor, XM_SEVERITY_OK, subject, "",
                       "%d GPU%s, each with a NIC no farther than: %s", gpus, gpus == 1 ? "" : "s",
                       xm_topology_path_name(farthest));
    }
}

void xm_doctor_check_devices(xm_doctor_t *doctor)
{
    check_peer_memory(doctor);
    check_distance(doctor);
}
