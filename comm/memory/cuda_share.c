/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA memory of other processes on this machine, by the driver's IPC handles. A handle covers
 * a whole allocation, so an address travels as handle and offset. Opening is expensive, and a
 * handle may be opened once only for each process and device, so opened ones are kept until the
 * space ends. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/memory/cuda_private.h"

/* Tells processes of a machine apart, also those in different PID namespaces, where equal
 * numbers mean nothing. */
static void own_process(uint64_t process[2])
{
    struct stat namespace_of_pids = {0};

    (void)stat("/proc/self/ns/pid", &namespace_of_pids);
    process[0] = (uint64_t)getpid();
    process[1] = (uint64_t)namespace_of_pids.st_ino;
}

/* Writes what another process needs to open the memory. It fails for memory that the driver
 * cannot share, such as that of pools. */
xm_status_t xm_cuda_share(xm_memory_space_t *base, const void *address, xm_memory_share_t *share)
{
    xm_cuda_space_t *space = xm_cuda_space_of(base);
    xm_status_t status = xm_cuda_enter(space);
    xm_cu_ipc_handle_t handle;
    uint64_t start;
    size_t size;

    XM_TRY(status);
    memset(share, 0, sizeof(*share));
    own_process(share->process);
    share->address = (uint64_t)(uintptr_t)address;
    share->device = base->device;
    status = xm_cuda_check(space, "cuMemGetAddressRange",
                           space->driver.cuMemGetAddressRange_v2(&start, &size, share->address));
    if (status == XM_OK) {
        share->offset = share->address - start;
        status = xm_cuda_check(space, "cuIpcGetMemHandle",
                               space->driver.cuIpcGetMemHandle(&handle, start));
    }
    if (status == XM_OK) {
        memcpy(share->handle, handle.reserved, sizeof(share->handle));
    }
    xm_cuda_leave(space);
    return status;
}

/* The handle alone is not enough: another process may have an allocation with equal bytes in it. */
static xm_cuda_opened_t *find(const xm_cuda_space_t *space, const xm_memory_share_t *share)
{
    xm_cuda_opened_t *at = space->opened;

    while (at != NULL && (memcmp(at->share.handle, share->handle, sizeof(share->handle)) != 0 ||
                          memcmp(at->share.process, share->process, sizeof(share->process)) != 0)) {
        at = at->next;
    }
    return at;
}

/* By its handle, or finds it opened. The mapping stays until xm_cuda_close_all(). */
static xm_status_t open_other(xm_cuda_space_t *space, const xm_memory_share_t *share,
                              uint64_t *address)
{
    xm_cuda_opened_t *opened = find(space, share);
    xm_cu_ipc_handle_t handle;
    xm_status_t status;

    if (opened == NULL) {
        opened = malloc(sizeof(*opened));
        XM_NEED_MEMORY(opened, "opening another process's memory");
        opened->share = *share;
        memcpy(handle.reserved, share->handle, sizeof(handle.reserved));
        status = xm_cuda_check(
            space, "cuIpcOpenMemHandle",
            space->driver.cuIpcOpenMemHandle_v2(&opened->base, handle, XM_CU_IPC_LAZY_PEER_ACCESS));
        if (status < 0) {
            free(opened);
            return status;
        }
        opened->next = space->opened;
        space->opened = opened;
    }
    *address = opened->base + share->offset;
    return XM_OK;
}

/* What the other says of its offset and its addresses is not believed: copies may read no other
 * memory of this device. */
static xm_status_t check_range(const xm_cuda_space_t *space, uint64_t address, uint64_t bytes)
{
    uint64_t start;
    size_t size;
    xm_status_t status =
        xm_cuda_check(space, "cuMemGetAddressRange",
                      space->driver.cuMemGetAddressRange_v2(&start, &size, address));

    if (status == XM_OK &&
        (address < start || address - start > size || bytes > size - (address - start))) {
        return XM_INVALID("%" PRIu64 " bytes are said to be shared where there are %zu", bytes,
                          size);
    }
    return status;
}

/* A process may not open a handle of its own; nor does it need to, on the same device. */
xm_status_t xm_cuda_open(xm_memory_space_t *base, const xm_memory_share_t *share, uint64_t bytes,
                         void **address)
{
    xm_cuda_space_t *space = xm_cuda_space_of(base);
    uint64_t own[2], found = share->address;
    xm_status_t status;
    bool is_own;

    own_process(own);
    is_own = memcmp(own, share->process, sizeof(own)) == 0;
    if (is_own && share->device != base->device) {
        return XM_UNSUPPORTED(
            "devices %d and %d are both this process's: their memory is not opened", base->device,
            (int)share->device);
    }
    XM_TRY(xm_cuda_enter(space));
    status = is_own ? XM_OK : open_other(space, share, &found);
    XM_THEN(status, check_range(space, found, bytes));
    xm_cuda_leave(space);
    *address = (void *)(uintptr_t)found;
    return status;
}

void xm_cuda_close_all(xm_cuda_space_t *space)
{
    while (space->opened != NULL) {
        xm_cuda_opened_t *opened = space->opened;

        space->opened = opened->next;
        (void)space->driver.cuIpcCloseMemHandle(opened->base);
        free(opened);
    }
}
