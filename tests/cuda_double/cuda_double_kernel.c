/* SPDX-License-Identifier: Apache-2.0 */
/* The copy kernels, from the text that is compiled for devices: thread after thread, each access
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

#define XM_KERNEL_ENTRY static
#include "comm/memory/cuda_kernel.cu"

#define NAMED(bytes, shape, dims) {"xm_copy_u" #bytes "_" #shape, xm_copy_u##bytes##_##shape},
static const struct {
    const char *name;
    double_kernel_t *run;
} kernels[] = {XM_KERNELS(NAMED)};

double_kernel_t *double_kernel_find(const char *name)
{
    for (size_t k = 0; k < sizeof(kernels) / sizeof(kernels[0]); ++k) {
        if (strcmp(kernels[k].name, name) == 0) {
            return kernels[k].run;
        }
    }
    return NULL;
}

int double_kernel_run(double_kernel_t *kernel, const xm_kernel_args_t *args, unsigned threads)
{
    mistake = 0;
    threads_all = threads;
    for (thread_now = 0; thread_now < threads && mistake == 0; ++thread_now) {
        kernel(*args);
    }
    return mistake;
}
