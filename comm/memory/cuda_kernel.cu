/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Strided copies on the device. Threads take units in row-major order of the box, so neighbours
 * read and write neighbouring bytes as far as a row goes, on both sides, and several short rows
 * share a warp. A thread loads several units before it stores the first.
 */
#include "comm/memory/cuda_kernel.h"

template <typename unit_t, int DIMS>
static __device__ __forceinline__ void copy_units(const xm_kernel_args_t &args)
{
    const int dims = DIMS > 0 ? DIMS : args.dims;
    const unsigned step = gridDim.x * blockDim.x;
    unsigned at = blockIdx.x * blockDim.x + threadIdx.x;

    while (at < args.count) {
        unit_t values[XM_KERNEL_UNROLL];
        unsigned long long to[XM_KERNEL_UNROLL];

#pragma unroll
        for (int i = 0; i < XM_KERNEL_UNROLL; ++i) {
            unsigned unit = at + i * step;

            if (unit < args.count) {
                unsigned long long from = args.from;

                to[i] = args.to;
                xm_kernel_locate(&args, dims, args.first + unit, &from, &to[i]);
                values[i] = *reinterpret_cast<const unit_t *>(from);
            }
        }
#pragma unroll
        for (int i = 0; i < XM_KERNEL_UNROLL; ++i) {
            if (at + i * step < args.count) {
                *reinterpret_cast<unit_t *>(to[i]) = values[i];
            }
        }
        at += XM_KERNEL_UNROLL * step;
    }
}

#define KERNEL(bytes, unit_t, shape, dims)                                                         \
    extern "C" __global__ void __launch_bounds__(XM_KERNEL_THREADS)                                \
        xm_copy_u##bytes##_##shape(const __grid_constant__ xm_kernel_args_t args)                  \
    {                                                                                              \
        copy_units<unit_t, dims>(args);                                                            \
    }

#define KERNELS(bytes, unit_t)                                                                     \
    KERNEL(bytes, unit_t, d2, 2)                                                                   \
    KERNEL(bytes, unit_t, d3, 3)                                                                   \
    KERNEL(bytes, unit_t, dn, 0)

KERNELS(1, unsigned char)
KERNELS(2, unsigned short)
KERNELS(4, unsigned)
KERNELS(8, uint2)
KERNELS(16, uint4)
