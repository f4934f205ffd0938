/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file convert_kernel.h
 * What the conversion kernels of devices are given, by convert.c: a tile as xm_convert_params_t has
 * it, cut into units. Plain C that is also CUDA. Private to the room.
 *
 * A unit is so many columns of one row of the tensor as all kinds of blocks are multiples of; of
 * scales it is a block. Units lie where those of the whole tensor do, so that each is within one
 * block. Without CUDA's headers there is no other name for numbers of 64 bits that both have.
 */
#pragma once

#include <stddef.h>

enum { XM_CONVERT_STRIP = 8 };

/* Kernels by step: "xm_convert_maxima" and so on. */
#define XM_CONVERT_KERNELS(kernel) kernel(maxima) kernel(scales) kernel(narrow) kernel(widen)

typedef struct xm_convert_args {
    unsigned long long wide, narrow, maxima, scales;
    long long columns, row, column; /* of the tile, and where it is in the tensor */
    long long wide_stride, narrow_stride, scale_stride;
    long long block_rows, block_columns;
    long long first, units, items; /* the first unit of a row, a row's, and all */
    int float32, scaled, byte_scale, int8;
} xm_convert_args_t;

/* The kernels as they are embedded; of size 0 where crossmesh was built without clang. */
#ifndef __CUDA__
extern const unsigned char xm_convert_device[];
extern const size_t xm_convert_device_size;
#endif
