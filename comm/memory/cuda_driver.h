/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file comm/memory/cuda_driver.h
 * The part of CUDA's driver interface that is used here, opened at run time. No header or library
 * of CUDA is needed to build; the declarations below follow its binary interface (versions 11 to
 * 13). Not installed.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/base.h"

/* Results that mean something to us. */
enum {
    XM_CU_SUCCESS = 0,
    XM_CU_INVALID_VALUE = 1,
    XM_CU_OUT_OF_MEMORY = 2,
    XM_CU_NOT_READY = 600,
    XM_CU_NOT_SUPPORTED = 801
};

/* Constants of the interface, under its own numbers. */
enum {
    XM_CU_EVENT_DISABLE_TIMING = 2,
    XM_CU_STREAM_NON_BLOCKING = 1,
    XM_CU_MEMHOSTALLOC_PORTABLE = 1,
    XM_CU_MEMORYTYPE_DEVICE = 2,
    XM_CU_MEMORYTYPE_UNIFIED = 4,
    XM_CU_POINTER_CONTEXT = 1,
    XM_CU_POINTER_MEMORY_TYPE = 2,
    XM_CU_POINTER_IS_MANAGED = 8,
    XM_CU_POINTER_DEVICE_ORDINAL = 9,
    XM_CU_DEVICE_MAX_PITCH = 11,
    XM_CU_DEVICE_MULTIPROCESSORS = 16,
    XM_CU_IPC_LAZY_PEER_ACCESS = 1,
    XM_CU_IPC_HANDLE_SIZE = 64
};

typedef struct xm_cu_ipc_handle {
    char reserved[XM_CU_IPC_HANDLE_SIZE];
} xm_cu_ipc_handle_t;

/* CUDA_MEMCPY2D. */
typedef struct xm_cu_memcpy2d {
    size_t src_x, src_y;
    int src_type;
    const void *src_host;
    uint64_t src_device;
    void *src_array;
    size_t src_pitch;
    size_t dst_x, dst_y;
    int dst_type;
    void *dst_host;
    uint64_t dst_device;
    void *dst_array;
    size_t dst_pitch;
    size_t width, height;
} xm_cu_memcpy2d_t;

/* Contexts, streams, events, modules and functions are pointers, device addresses are numbers. */
/* clang-format off */
#define XM_CUDA_TABLE(ENTRY) \
    ENTRY(cuInit, (unsigned flags)) \
    ENTRY(cuGetErrorName, (int result, const char **name)) \
    ENTRY(cuGetErrorString, (int result, const char **text)) \
    ENTRY(cuDeviceGetCount, (int *count)) \
    ENTRY(cuDeviceGet, (int *device, int ordinal)) \
    ENTRY(cuDeviceGetName, (char *name, int size, int device)) \
    ENTRY(cuDeviceGetAttribute, (int *value, int attribute, int device)) \
    ENTRY(cuDevicePrimaryCtxRetain, (void **context, int device)) \
    ENTRY(cuDevicePrimaryCtxRelease_v2, (int device)) \
    ENTRY(cuCtxPushCurrent_v2, (void *context)) \
    ENTRY(cuCtxPopCurrent_v2, (void **context)) \
    ENTRY(cuPointerGetAttributes, (unsigned count, int *attributes, void **data, uint64_t address)) \
    ENTRY(cuMemGetAddressRange_v2, (uint64_t *base, size_t *size, uint64_t address)) \
    ENTRY(cuMemAlloc_v2, (uint64_t *address, size_t bytes)) \
    ENTRY(cuMemFree_v2, (uint64_t address)) \
    ENTRY(cuMemHostAlloc, (void **address, size_t bytes, unsigned flags)) \
    ENTRY(cuMemFreeHost, (void *address)) \
    ENTRY(cuMemcpyAsync, (uint64_t to, uint64_t from, size_t bytes, void *stream)) \
    ENTRY(cuMemcpy2DAsync_v2, (const xm_cu_memcpy2d_t *copy, void *stream)) \
    ENTRY(cuStreamCreate, (void **stream, unsigned flags)) \
    ENTRY(cuStreamDestroy_v2, (void *stream)) \
    ENTRY(cuStreamSynchronize, (void *stream)) \
    ENTRY(cuStreamWaitEvent, (void *stream, void *event, unsigned flags)) \
    ENTRY(cuEventCreate, (void **event, unsigned flags)) \
    ENTRY(cuEventDestroy_v2, (void *event)) \
    ENTRY(cuEventRecord, (void *event, void *stream)) \
    ENTRY(cuEventQuery, (void *event)) \
    ENTRY(cuModuleLoadData, (void **module, const void *image)) \
    ENTRY(cuModuleUnload, (void *module)) \
    ENTRY(cuModuleGetFunction, (void **function, void *module, const char *name)) \
    ENTRY(cuLaunchKernel, (void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, \
                           unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared, \
                           void *stream, void **arguments, void **extra)) \
    ENTRY(cuIpcGetMemHandle, (xm_cu_ipc_handle_t *handle, uint64_t address)) \
    ENTRY(cuIpcOpenMemHandle_v2, (uint64_t *address, xm_cu_ipc_handle_t handle, unsigned flags)) \
    ENTRY(cuIpcCloseMemHandle, (uint64_t address))
/* clang-format on */

typedef struct xm_cuda_driver {
    void *library;
#define XM_CUDA_MEMBER(name, parameters)                                                           \
    int(*name) parameters; /* NOLINT(bugprone-macro-parentheses) */
    XM_CUDA_TABLE(XM_CUDA_MEMBER)
#undef XM_CUDA_MEMBER
} xm_cuda_driver_t;

/**
 * Opens the driver and initialises it. XM_ERR_UNSUPPORTED: there is none, or it does not work; the
 * sentence says which, and a debug line does too.
 */
xm_status_t xm_cuda_driver_open(xm_cuda_driver_t *driver);

/** Opens the driver if this process has it already, without initialising it; false: it has not. */
bool xm_cuda_driver_find(xm_cuda_driver_t *driver);

void xm_cuda_driver_close(xm_cuda_driver_t *driver);

/** The status of a result that is no success, with a sentence "CUDA device 0: WHAT: NAME (text)".
 * Device -1: none in particular. */
xm_status_t xm_cuda_error(const xm_cuda_driver_t *driver, int device, const char *what, int result);
