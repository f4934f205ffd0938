/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's calls: devices, contexts, memory, kernels. */
#include "tests/cuda_double/cuda_double.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

double_state_t double_state = {.lock = PTHREAD_MUTEX_INITIALIZER,
                               .changed = PTHREAD_COND_INITIALIZER};

static char contexts[DOUBLE_MAX_DEVICES]; /* their addresses are the contexts */

enum { STACK = 16 };
static _Thread_local void *stack[STACK];
static _Thread_local int depth;

int cuda_double_device(const void *context)
{
    return (int)((const char *)context - contexts);
}

int double_current(void)
{
    return depth > 0 ? cuda_double_device(stack[depth - 1]) : -1;
}

/* ---- faults -----------------------------------------------------------------------------------
 */

static struct {
    char name[48];
    int calls;
} counters[64];

static int count_call(const char *name)
{
    for (size_t i = 0; i < sizeof(counters) / sizeof(counters[0]); ++i) {
        if (counters[i].name[0] == '\0') {
            (void)snprintf(counters[i].name, sizeof(counters[i].name), "%s", name);
        }
        if (strcmp(counters[i].name, name) == 0) {
            return ++counters[i].calls;
        }
    }
    return 0;
}

int double_fault(const char *name)
{
    const char *list = getenv("CUDA_DOUBLE_FAIL");
    int calls = count_call(name);

    for (const char *at = list; at != NULL && *at != '\0';) {
        char call[48] = "";
        int result = 0, from = 1;

        if (sscanf(at, "%47[^=,]=%d@%d", call, &result, &from) >= 2 && strcmp(call, name) == 0 &&
            calls >= from) {
            return result;
        }
        at = strchr(at, ',');
        if (at != NULL) {
            ++at;
        }
    }
    return 0;
}

/* Every call begins so. */
#define BEGIN(name)                                                                                \
    int result;                                                                                    \
    (void)pthread_mutex_lock(&double_state.lock);                                                  \
    result = begin(name, 1)
#define BEGIN_WITHOUT_CONTEXT(name)                                                                \
    int result;                                                                                    \
    (void)pthread_mutex_lock(&double_state.lock);                                                  \
    result = begin(name, 0)

static int begin(const char *name, int needs_context)
{
    int fault = double_fault(name);

    if (fault != 0) {
        return fault;
    }
    if (!double_state.initialised) {
        return DOUBLE_NOT_INITIALIZED;
    }
    if (double_state.lost != 0) {
        return double_state.lost;
    }
    return needs_context && double_current() < 0 ? DOUBLE_INVALID_CONTEXT : XM_CU_SUCCESS;
}

static int end(int result)
{
    (void)pthread_mutex_unlock(&double_state.lock);
    return result;
}

/* ---- devices and contexts ---------------------------------------------------------------------
 */

int cuInit(unsigned flags)
{
    const char *devices = getenv("CUDA_DOUBLE_DEVICES");
    int fault;

    (void)flags;
    (void)pthread_mutex_lock(&double_state.lock);
    fault = double_fault("cuInit");
    if (fault == 0) {
        double_state.devices = devices != NULL ? atoi(devices) : 2;
        double_state.initialised = 1;
    }
    return end(fault);
}

int cuGetErrorName(int result, const char **name)
{
    switch (result) {
    case XM_CU_SUCCESS:
        *name = "CUDA_SUCCESS";
        return XM_CU_SUCCESS;
    case XM_CU_OUT_OF_MEMORY:
        *name = "CUDA_ERROR_OUT_OF_MEMORY";
        return XM_CU_SUCCESS;
    case DOUBLE_ILLEGAL_ADDRESS:
        *name = "CUDA_ERROR_ILLEGAL_ADDRESS";
        return XM_CU_SUCCESS;
    case DOUBLE_MISALIGNED:
        *name = "CUDA_ERROR_MISALIGNED_ADDRESS";
        return XM_CU_SUCCESS;
    default:
        *name = NULL;
        return XM_CU_INVALID_VALUE;
    }
}

int cuGetErrorString(int result, const char **text)
{
    *text = result == XM_CU_OUT_OF_MEMORY ? "out of memory" : NULL;
    return *text != NULL ? XM_CU_SUCCESS : XM_CU_INVALID_VALUE;
}

int cuDeviceGetCount(int *count)
{
    BEGIN_WITHOUT_CONTEXT("cuDeviceGetCount");
    *count = double_state.devices;
    return end(result);
}

int cuDeviceGet(int *device, int ordinal)
{
    BEGIN_WITHOUT_CONTEXT("cuDeviceGet");
    *device = ordinal;
    if (result == XM_CU_SUCCESS && (ordinal < 0 || ordinal >= double_state.devices)) {
        result = DOUBLE_INVALID_DEVICE;
    }
    return end(result);
}

int cuDeviceGetName(char *name, int size, int device)
{
    BEGIN_WITHOUT_CONTEXT("cuDeviceGetName");
    (void)snprintf(name, (size_t)size, "test double %d", device);
    return end(result);
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    BEGIN_WITHOUT_CONTEXT("cuDeviceGetAttribute");
    (void)device;
    *value = attribute == XM_CU_DEVICE_MAX_PITCH ? 0x7fffffff : 4;
    return end(result);
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
    BEGIN_WITHOUT_CONTEXT("cuDevicePrimaryCtxRetain");
    *context = &contexts[device];
    return end(result);
}

int cuDevicePrimaryCtxRelease_v2(int device)
{
    BEGIN_WITHOUT_CONTEXT("cuDevicePrimaryCtxRelease_v2");
    (void)device;
    return end(result);
}

int cuCtxPushCurrent_v2(void *context)
{
    BEGIN_WITHOUT_CONTEXT("cuCtxPushCurrent_v2");
    if (double_state.lost != 0 && result == double_state.lost) {
        result = XM_CU_SUCCESS; /* contexts of lost devices can be entered */
    }
    if (result == XM_CU_SUCCESS && depth == STACK) {
        result = DOUBLE_INVALID_CONTEXT;
    }
    if (result == XM_CU_SUCCESS) {
        stack[depth++] = context;
    }
    return end(result);
}

int cuCtxPopCurrent_v2(void **context)
{
    if (depth == 0) {
        return DOUBLE_INVALID_CONTEXT;
    }
    *context = stack[--depth];
    return XM_CU_SUCCESS;
}

/* ---- memory -----------------------------------------------------------------------------------
 */

double_allocation_t *double_find(uint64_t address)
{
    double_allocation_t *at = double_state.allocations;

    while (at != NULL && (address < at->address || address - at->address >= at->mapped)) {
        at = at->next;
    }
    return at;
}

char *double_bytes(uint64_t address, size_t size)
{
    const double_allocation_t *found = double_find(address);

    if (found == NULL) {
        return (char *)(uintptr_t)address; /* the host's */
    }
    if (address - found->address + size > found->size) {
        return NULL;
    }
    return found->bytes + (address - found->address);
}

static size_t pages(size_t bytes)
{
    return (bytes + 4095) / 4096 * 4096;
}

/* Maps a file of bytes, and addresses for it that nobody may touch. */
static int map(int fd, size_t size, double_kind_t kind, int device, double_allocation_t **made)
{
    size_t mapped = pages(size);
    double_allocation_t *one = calloc(1, sizeof(*one));
    void *bytes = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    void *address = mmap(NULL, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (one == NULL || bytes == MAP_FAILED || address == MAP_FAILED) {
        free(one);
        return XM_CU_OUT_OF_MEMORY;
    }
    *one = (double_allocation_t){.next = double_state.allocations,
                                 .kind = kind,
                                 .address = (uint64_t)(uintptr_t)address,
                                 .bytes = bytes,
                                 .size = size,
                                 .mapped = mapped,
                                 .fd = fd,
                                 .device = device};
    double_state.allocations = one;
    *made = one;
    return XM_CU_SUCCESS;
}

static int unmap(uint64_t address, double_kind_t kind)
{
    double_allocation_t **link = &double_state.allocations, *found;

    while (*link != NULL && (*link)->address != address) {
        link = &(*link)->next;
    }
    found = *link;
    if (found == NULL || found->kind != kind) {
        return XM_CU_INVALID_VALUE;
    }
    double_settle(); /* as the driver does */
    *link = found->next;
    (void)munmap(found->bytes, found->mapped);
    if (kind != DOUBLE_PINNED) {
        (void)munmap((void *)(uintptr_t)found->address, found->mapped);
        (void)close(found->fd);
    }
    free(found);
    return XM_CU_SUCCESS;
}

int cuMemAlloc_v2(uint64_t *address, size_t bytes)
{
    BEGIN("cuMemAlloc_v2");
    if (result == XM_CU_SUCCESS) {
        int fd = memfd_create("cuda_double", MFD_CLOEXEC);
        double_allocation_t *made = NULL;

        result = fd >= 0 && bytes > 0 && ftruncate(fd, (off_t)pages(bytes)) == 0
                     ? map(fd, bytes, DOUBLE_DEVICE, double_current(), &made)
                     : XM_CU_OUT_OF_MEMORY;
        if (result == XM_CU_SUCCESS) {
            memset(made->bytes, 0xdd, made->mapped);
            *address = made->address;
        } else if (fd >= 0) {
            (void)close(fd);
        }
    }
    return end(result);
}

int cuMemFree_v2(uint64_t address)
{
    BEGIN("cuMemFree_v2");
    return end(result == XM_CU_SUCCESS ? unmap(address, DOUBLE_DEVICE) : result);
}

int cuMemHostAlloc(void **address, size_t bytes, unsigned flags)
{
    BEGIN("cuMemHostAlloc");
    (void)flags;
    if (result == XM_CU_SUCCESS) {
        double_allocation_t *one = calloc(1, sizeof(*one));
        void *made =
            mmap(NULL, pages(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

        if (one == NULL || made == MAP_FAILED) {
            free(one);
            return end(XM_CU_OUT_OF_MEMORY);
        }
        *one = (double_allocation_t){.next = double_state.allocations,
                                     .kind = DOUBLE_PINNED,
                                     .address = (uint64_t)(uintptr_t)made,
                                     .bytes = made,
                                     .size = bytes,
                                     .mapped = pages(bytes),
                                     .fd = -1,
                                     .device = double_current()};
        double_state.allocations = one;
        *address = made;
    }
    return end(result);
}

int cuMemFreeHost(void *address)
{
    BEGIN("cuMemFreeHost");
    return end(result == XM_CU_SUCCESS ? unmap((uint64_t)(uintptr_t)address, DOUBLE_PINNED)
                                       : result);
}

int cuMemGetAddressRange_v2(uint64_t *base, size_t *size, uint64_t address)
{
    const double_allocation_t *found;

    BEGIN("cuMemGetAddressRange_v2");
    found = double_find(address);
    if (result == XM_CU_SUCCESS && (found == NULL || found->kind == DOUBLE_PINNED)) {
        result = DOUBLE_NOT_FOUND;
    }
    if (result == XM_CU_SUCCESS) {
        *base = found->address;
        *size = found->size;
    }
    return end(result);
}

int cuPointerGetAttributes(unsigned count, int *attributes, void **data, uint64_t address)
{
    const double_allocation_t *found;

    BEGIN_WITHOUT_CONTEXT("cuPointerGetAttributes");
    found = double_find(address);
    for (unsigned i = 0; result == XM_CU_SUCCESS && i < count; ++i) {
        switch (attributes[i]) {
        case XM_CU_POINTER_CONTEXT:
            *(void **)data[i] = found != NULL ? &contexts[found->device] : NULL;
            break;
        case XM_CU_POINTER_MEMORY_TYPE:
            *(unsigned *)data[i] = found == NULL                  ? 0
                                   : found->kind == DOUBLE_PINNED ? 1
                                                                  : XM_CU_MEMORYTYPE_DEVICE;
            break;
        case XM_CU_POINTER_IS_MANAGED:
            *(unsigned *)data[i] = 0;
            break;
        case XM_CU_POINTER_DEVICE_ORDINAL:
            *(int *)data[i] = found != NULL ? found->device : -2;
            break;
        default:
            result = XM_CU_INVALID_VALUE;
        }
    }
    return end(result);
}

/* ---- other processes' memory ------------------------------------------------------------------
 */

typedef struct {
    int pid, fd, device;
    size_t size;
} handle_t;
_Static_assert(sizeof(handle_t) <= sizeof(xm_cu_ipc_handle_t), "a handle is too large");

int cuIpcGetMemHandle(xm_cu_ipc_handle_t *handle, uint64_t address)
{
    const double_allocation_t *found;

    BEGIN("cuIpcGetMemHandle");
    found = double_find(address);
    if (result == XM_CU_SUCCESS && (found == NULL || found->kind != DOUBLE_DEVICE)) {
        result = XM_CU_INVALID_VALUE;
    }
    if (result == XM_CU_SUCCESS) {
        handle_t own;

        memset(&own, 0, sizeof(own)); /* its padding travels, too */
        own.pid = getpid();
        own.fd = found->fd;
        own.device = found->device;
        own.size = found->size;
        memset(handle, 0, sizeof(*handle));
        memcpy(handle, &own, sizeof(own));
    }
    return end(result);
}

int cuIpcOpenMemHandle_v2(uint64_t *address, xm_cu_ipc_handle_t handle, unsigned flags)
{
    handle_t other;
    char path[64];
    int fd;
    double_allocation_t *made;

    BEGIN("cuIpcOpenMemHandle_v2");
    memcpy(&other, &handle, sizeof(other));
    if (result == XM_CU_SUCCESS && (other.pid == getpid() || flags != XM_CU_IPC_LAZY_PEER_ACCESS)) {
        result = DOUBLE_INVALID_CONTEXT;
    }
    if (result != XM_CU_SUCCESS) {
        return end(result);
    }
    (void)snprintf(path, sizeof(path), "/proc/%d/fd/%d", other.pid, other.fd);
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) {
        return end(DOUBLE_INVALID_HANDLE);
    }
    result = map(fd, other.size, DOUBLE_OPENED, other.device, &made);
    if (result == XM_CU_SUCCESS) {
        *address = made->address;
    } else {
        (void)close(fd);
    }
    return end(result);
}

int cuIpcCloseMemHandle(uint64_t address)
{
    BEGIN("cuIpcCloseMemHandle");
    return end(result == XM_CU_SUCCESS ? unmap(address, DOUBLE_OPENED) : result);
}

/* ---- copies and kernels -----------------------------------------------------------------------
 */

int cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, void *stream)
{
    double_step_t step = {
        .kind = DOUBLE_COPY,
        .copy = {.src_device = from, .dst_device = to, .width = bytes, .height = 1}};

    BEGIN("cuMemcpyAsync");
    return end(result == XM_CU_SUCCESS ? double_put(stream, &step) : result);
}

int cuMemcpy2DAsync_v2(const xm_cu_memcpy2d_t *copy, void *stream)
{
    double_step_t step = {.kind = DOUBLE_COPY, .copy = *copy};

    BEGIN("cuMemcpy2DAsync_v2");
    if (result == XM_CU_SUCCESS &&
        (copy->src_type != XM_CU_MEMORYTYPE_UNIFIED || copy->dst_type != XM_CU_MEMORYTYPE_UNIFIED ||
         copy->src_pitch < copy->width || copy->dst_pitch < copy->width)) {
        result = XM_CU_INVALID_VALUE;
    }
    return end(result == XM_CU_SUCCESS ? double_put(stream, &step) : result);
}

int cuModuleLoadData(void **module, const void *image)
{
    BEGIN("cuModuleLoadData");
    /* PTX is a string, which the driver reads to its end. */
    if (result == XM_CU_SUCCESS && strstr(image, "\n.target sm_") == NULL) {
        result = DOUBLE_INVALID_IMAGE;
    }
    *module = &double_state;
    return end(result);
}

int cuModuleUnload(void *module)
{
    BEGIN("cuModuleUnload");
    (void)module;
    return end(result);
}

int cuModuleGetFunction(void **function, void *module, const char *name)
{
    BEGIN("cuModuleGetFunction");
    (void)module;
    if (result == XM_CU_SUCCESS) {
        const double_kernel_t *found = double_kernel_find(name);

        memcpy(function, &found, sizeof(found));
        result = found != NULL ? XM_CU_SUCCESS : DOUBLE_NOT_FOUND;
    }
    return end(result);
}

int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                   void *stream, void **arguments, void **extra)
{
    double_step_t step = {.kind = DOUBLE_KERNEL};

    BEGIN("cuLaunchKernel");
    if (result == XM_CU_SUCCESS &&
        (grid_x == 0 || grid_y != 1 || grid_z != 1 || block_x != XM_KERNEL_THREADS ||
         block_y != 1 || block_z != 1 || shared != 0 || extra != NULL)) {
        result = XM_CU_INVALID_VALUE;
    }
    if (result == XM_CU_SUCCESS) {
        step.kernel = function;
        memcpy(step.args, arguments[0], step.kernel->size);
        step.threads = grid_x * block_x;
        result = double_put(stream, &step);
    }
    return end(result);
}
