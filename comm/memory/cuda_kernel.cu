/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Strided copies on the device. Threads take units in row-major order of the box, so neighbours
 * read and write neighbouring bytes as far as a row goes, on both sides, and several short rows
 * share a warp. A thread loads several units before it stores the first.
 *
 * The stand-in for CUDA's driver in the tests compiles the same text as C (cuda_kernel.h); it then
 * says how a unit is loaded and stored, too.
 */
#include "comm/memory/cuda_kernel.h"

#ifdef __CUDA__
/* As many bytes as the largest unit has: a smaller unit is in the first of them. */
typedef unsigned long long xm_unit_t __attribute__((vector_size(16)));

XM_KERNEL_INLINE void xm_unit_load(xm_unit_t *unit, unsigned long long from, int bytes)
{
    switch (bytes) {
    case 1:
        (*unit)[0] = GLOBAL(const unsigned char, from);
        break;
    case 2:
        (*unit)[0] = GLOBAL(const unsigned short, from);
        break;
    case 4:
        (*unit)[0] = GLOBAL(const unsigned, from);
        break;
    case 8:
        (*unit)[0] = GLOBAL(const unsigned long long, from);
        break;
    default:
        *unit = GLOBAL(const xm_unit_t, from);
    }
}

XM_KERNEL_INLINE void xm_unit_store(const xm_unit_t *unit, unsigned long long to, int bytes)
{
    switch (bytes) {
    case 1:
        GLOBAL(unsigned char, to) = (unsigned char)(*unit)[0];
        break;
    case 2:
        GLOBAL(unsigned short, to) = (unsigned short)(*unit)[0];
        break;
    case 4:
        GLOBAL(unsigned, to) = (unsigned)(*unit)[0];
        break;
    case 8:
        GLOBAL(unsigned long long, to) = (*unit)[0];
        break;
    default:
        GLOBAL(xm_unit_t, to) = *unit;
    }
}
#endif

/* `dims` is 0 where the kernel serves any number of dimensions. It and `bytes` are constants in
 * each kernel, so that loops are unrolled and switches vanish. */
XM_KERNEL_INLINE void copy_units(const xm_kernel_args_t *args, int dims, int bytes)
{
    const unsigned threads = xm_kernel_threads();

    if (dims == 0) {
        dims = args->dims;
    }
    for (unsigned at = xm_kernel_thread(); at < args->count; at += XM_KERNEL_UNROLL * threads) {
        xm_unit_t values[XM_KERNEL_UNROLL];
        unsigned long long to[XM_KERNEL_UNROLL];

#ifdef __CUDA__
#pragma unroll
#endif
        for (unsigned i = 0; i < XM_KERNEL_UNROLL; ++i) {
            unsigned unit = at + i * threads;
            unsigned long long from = args->from;

            to[i] = args->to;
            if (unit < args->count) {
                xm_kernel_locate(args, dims, args->first + unit, &from, &to[i]);
                xm_unit_load(&values[i], from, bytes);
            }
        }
#ifdef __CUDA__
#pragma unroll
#endif
        for (unsigned i = 0; i < XM_KERNEL_UNROLL; ++i) {
            if (at + i * threads < args->count) {
                xm_unit_store(&values[i], to[i], bytes);
            }
        }
    }
}

#define XM_KERNEL(bytes, shape, dims)                                                              \
    XM_KERNEL_ENTRY(xm_copy_u##bytes##_##shape, xm_kernel_args_t, copy_units(args, dims, bytes))

#define XM_KERNELS(kernel)                                                                         \
    kernel(1, d2, 2) kernel(1, d3, 3) kernel(1, dn, 0) kernel(2, d2, 2) kernel(2, d3, 3)           \
        kernel(2, dn, 0) kernel(4, d2, 2) kernel(4, d3, 3) kernel(4, dn, 0) kernel(8, d2, 2)       \
            kernel(8, d3, 3) kernel(8, dn, 0) kernel(16, d2, 2) kernel(16, d3, 3)                  \
                kernel(16, dn, 0)

XM_KERNELS(XM_KERNEL)
