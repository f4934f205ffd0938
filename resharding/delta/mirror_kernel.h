/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file mirror_kernel.h
 * What the kernels that find and write changes are given, by mirror.c. Plain C that is also
 * CUDA. Private to the room.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Elements that a thread compares at once: a byte of bits. */
enum { XM_MIRROR_GROUP = 8 };

typedef struct xm_mirror_args {
    unsigned long long tile, shadow, mirror, bits; /* addresses */
    long long elements, groups;
    int size; /* of an element */
} xm_mirror_args_t;

/* The kernels as they are embedded; of size 0 where crossmesh was built without clang. */
#ifndef __CUDA__
extern const unsigned char xm_mirror_device[];
extern const size_t xm_mirror_device_size;
#endif
