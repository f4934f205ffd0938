/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels, from the text that is compiled for devices: thread after thread, each access
 * checked for its alignment and against the allocations. */
#include <string.h>

#include "tests/cuda_double/cuda_double.h"

typedef struct {
    char bytes[16];
} xm_unit_t;

/* The thread that runs, under the lock; and the first mistake of a launch. */
static unsigned thread_now, threads_all;
static int mistake;

static unsigned xm_kernel_thread(void)
{
    return thread_now;
}

static unsigned xm_kernel_threads(void)
{
    return threads_all;
}

static char *checked(unsigned long long address, int bytes)
{
    char *found = double_bytes(address, (size_t)bytes);

    if (mistake == 0 && (found == NULL || address % (unsigned)bytes != 0)) {
        mistake = found == NULL ? DOUBLE_ILLEGAL_ADDRESS : DOUBLE_MISALIGNED;
    }
    return mistake == 0 ? found : NULL;
}

static void xm_unit_load(xm_unit_t *unit, unsigned long long from, int bytes)
{
    const char *source = checked(from, bytes);

    if (source != NULL) {
        memcpy(unit->bytes, source, (size_t)bytes);
    }
}

static void xm_unit_store(const xm_unit_t *unit, unsigned long long to, int bytes)
{
    char *target = checked(to, bytes);

    if (target != NULL) {
        memcpy(target, unit->bytes, (size_t)bytes);
    }
}

#define DEFINE_ACCESS(type)                                                                        \
    static type kernel_load_##type(unsigned long long address)                                     \
    {                                                                                              \
        const char *source = checked(address, sizeof(type));                                       \
        type value = 0;                                                                            \
                                                                                                   \
        if (source != NULL) {                                                                      \
            memcpy(&value, source, sizeof(value));                                                 \
        }                                                                                          \
        return value;                                                                              \
    }                                                                                              \
    static void kernel_store_##type(unsigned long long address, type value)                        \
    {                                                                                              \
        char *target = checked(address, sizeof(type));                                             \
                                                                                                   \
        if (target != NULL) {                                                                      \
            memcpy(target, &value, sizeof(value));                                                 \
        }                                                                                          \
    }
DEFINE_ACCESS(uint8_t)
DEFINE_ACCESS(uint16_t)
DEFINE_ACCESS(uint32_t)
DEFINE_ACCESS(uint64_t)
#define XM_KERNEL_LOAD(type, address)         kernel_load_##type(address)
#define XM_KERNEL_STORE(type, address, value) kernel_store_##type(address, (type)(value))
#define XM_KERNEL_RAISE(address, value)                                                            \
    XM_KERNEL_STORE(                                                                               \
        uint32_t, address,                                                                         \
        XM_KERNEL_LOAD(uint32_t, address) > (value) ? XM_KERNEL_LOAD(uint32_t, address) : (value))

/* An entry takes its arguments by value; here it is called through a pointer to them. */
#define XM_KERNEL_ENTRY(name, type, body)                                                          \
    static void name(const void *given)                                                            \
    {                                                                                              \
        const type *args = given;                                                                  \
                                                                                                   \
        body;                                                                                      \
    }
#include "comm/memory/cuda_kernel.cu"
#include "resharding/convert/convert_kernel.cu"
#include "resharding/delta/mirror_kernel.cu"

#define COPY(bytes, shape, dims)                                                                   \
    {"xm_copy_u" #bytes "_" #shape, xm_copy_u##bytes##_##shape, sizeof(xm_kernel_args_t)},
#define CONVERT(step) {"xm_convert_" #step, xm_convert_##step, sizeof(xm_convert_args_t)},
#define CHANGES(what) {"xm_mirror_" #what, xm_mirror_##what, sizeof(xm_mirror_args_t)},
static const double_kernel_t kernels[] = {XM_KERNELS(COPY) XM_CONVERT_KERNELS(CONVERT) CHANGES(find)
                                              CHANGES(write)};

const double_kernel_t *double_kernel_find(const char *name)
{
    for (size_t k = 0; k < sizeof(kernels) / sizeof(kernels[0]); ++k) {
        if (strcmp(kernels[k].name, name) == 0) {
            return &kernels[k];
        }
    }
    return NULL;
}

int double_kernel_run(const double_kernel_t *kernel, const void *args, unsigned threads)
{
    mistake = 0;
    threads_all = threads;
    for (thread_now = 0; thread_now < threads && mistake == 0; ++thread_now) {
        kernel->run(args);
    }
    return mistake;
}
