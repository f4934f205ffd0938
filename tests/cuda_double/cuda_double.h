/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file cuda_double.h
 * A stand-in for CUDA's driver (libcuda.so.1) on machines without a device, for tests only: they
 * put its folder into LD_LIBRARY_PATH.
 *
 * What it is strict about, so that mistakes show:
 *  - "Device memory" lies at addresses that the process may not touch (PROT_NONE); only this
 *    library knows where the bytes are. Every access is checked against the allocation.
 *  - Every stream has a thread of its own and takes its time before each step, so what is not
 *    ordered by streams, events or polling happens in the wrong order.
 *  - Calls that need a current context fail without one.
 *  - Kernels are the real ones' text, compiled as C; every access is checked.
 *  - Another process's memory can only be opened by its handle, and not by its owner.
 *
 * Besides what crossmesh itself uses there is what a stand-in for a library on top of CUDA needs
 * (tests/nccl_double): functions in streams, and the bytes behind addresses.
 *
 * The environment: CUDA_DOUBLE_DEVICES (2), CUDA_DOUBLE_DELAY_US before each step of a stream
 * (100), and CUDA_DOUBLE_FAIL, a list "cuLaunchKernel=701,cuMemAlloc_v2=2@3": these calls fail with
 * these results, from the third call on in the second example. "step=700@5" is no call: the fifth
 * step of all streams fails, and with it the device for good.
 */
#pragma once

#include <pthread.h>

#include "comm/base/api.h"
#include "comm/memory/cuda_driver.h"
#include "comm/memory/cuda_kernel.h"

#define DOUBLE_PROTOTYPE(name, parameters) XM_API int name parameters;
XM_CUDA_TABLE(DOUBLE_PROTOTYPE)
#undef DOUBLE_PROTOTYPE

/* Calls a function from the stream's thread, also on a lost device. */
XM_API int cuLaunchHostFunc(void *stream, void (*function)(void *arg), void *arg);

/* The device of a context. */
XM_API int cuda_double_device(const void *context);

/* The bytes behind a device's or host's [address, address + size); NULL: not allowed. */
XM_API char *cuda_double_bytes(const void *address, size_t size);

enum { DOUBLE_MAX_DEVICES = 8 };

/* Results that only the double gives. */
enum {
    DOUBLE_NOT_INITIALIZED = 3,
    DOUBLE_NO_DEVICE = 100,
    DOUBLE_INVALID_DEVICE = 101,
    DOUBLE_INVALID_IMAGE = 200,
    DOUBLE_INVALID_CONTEXT = 201,
    DOUBLE_INVALID_HANDLE = 400,
    DOUBLE_NOT_FOUND = 500,
    DOUBLE_ILLEGAL_ADDRESS = 700,
    DOUBLE_MISALIGNED = 716
};

typedef enum { DOUBLE_DEVICE, DOUBLE_PINNED, DOUBLE_OPENED } double_kind_t;

/* An allocation: where the caller sees it, and where its bytes are. */
typedef struct double_allocation {
    struct double_allocation *next;
    double_kind_t kind;
    uint64_t address;
    char *bytes;
    size_t size, mapped;
    int fd; /* device memory: the file that others open; else -1 */
    int device;
} double_allocation_t;

typedef struct double_event double_event_t;

typedef enum {
    DOUBLE_COPY,
    DOUBLE_KERNEL,
    DOUBLE_RECORD,
    DOUBLE_WAIT,
    DOUBLE_CALL
} double_step_kind_t;

/* A kernel, as one of its threads runs it, and how much its arguments are. */
typedef struct double_kernel {
    const char *name;
    void (*run)(const void *args);
    size_t size;
} double_kernel_t;

enum { DOUBLE_ARGS = 512 };

/* A step of a stream. */
typedef struct double_step {
    struct double_step *next;
    double_step_kind_t kind;
    xm_cu_memcpy2d_t copy;
    char args[DOUBLE_ARGS];
    const double_kernel_t *kernel;
    unsigned threads;
    double_event_t *event;
    uint64_t version; /* of the event: to wait for, or to set */
    void (*function)(void *arg);
    void *arg;
} double_step_t;

typedef struct double_stream {
    struct double_stream *next;
    pthread_t thread;
    double_step_t *first, *last; /* what is to be done */
    int busy;                    /* a step is being done */
    int stop;
} double_stream_t;

struct double_event {
    uint64_t recorded, done; /* versions */
};

/* What all calls share, under the lock. */
typedef struct double_state {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* anything: steps, events */
    double_allocation_t *allocations;
    double_stream_t *streams;
    double_stream_t *default_stream;
    int devices;
    int initialised;
    int lost; /* result of every call once a step has failed */
} double_state_t;

extern double_state_t double_state;

/* The device of the current context; -1: there is none. */
int double_current(void);

/* The injected result of the n-th call so far; 0: none. */
int double_fault(const char *name);

/* The bytes behind [address, address + size), checked; NULL: not allowed. With the lock. */
char *double_bytes(uint64_t address, size_t size);
double_allocation_t *double_find(uint64_t address);

/* Waits until no stream has anything to do. With the lock. */
void double_settle(void);

const double_kernel_t *double_kernel_find(const char *name); /* NULL: there is none */
/* Runs all threads of a launch; the driver's result. With the lock. */
int double_kernel_run(const double_kernel_t *kernel, const void *args, unsigned threads);

double_stream_t *double_stream_make(void);
/* Puts a step into a stream (NULL: the default stream); takes a copy of it. With the lock. */
int double_put(void *stream, const double_step_t *step);
