/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Changes of a tile on a device, which the host has a mirror of. To find them a thread compares
 * eight elements with their shadow; those that differ go to the shadow and over the bus to the
 * mirror, and a byte says which. To write them the bytes say which elements of the mirror the tile
 * lacks. So the bus carries a bit an element and what has changed. See comm/memory/cuda_kernel.h
 * for the language.
 */
#include "comm/memory.h"
#include "resharding/delta/mirror_kernel.h"

/* Words of one of the widths that memory is accessed by, which is a constant in each loop. */
#define XM_MIRROR_AT(place, type, at) (args->place + (at) * sizeof(type))
#define XM_MIRROR_COPY(to, from, type, at)                                                         \
    XM_KERNEL_STORE(type, XM_MIRROR_AT(to, type, at),                                              \
                    XM_KERNEL_LOAD(type, XM_MIRROR_AT(from, type, at)))

#define XM_MIRROR_FIND(type, group)                                                                \
    {                                                                                              \
        const unsigned words = (unsigned)args->size / sizeof(type);                                \
        unsigned differ = 0;                                                                       \
                                                                                                   \
        for (unsigned i = 0; i < XM_MIRROR_GROUP; ++i) {                                           \
            const unsigned long long element = group * XM_MIRROR_GROUP + i;                        \
            const unsigned long long end = (element + 1) * words;                                  \
            unsigned long long at = element * words;                                               \
                                                                                                   \
            if (element >= (unsigned long long)args->elements) {                                   \
                break;                                                                             \
            }                                                                                      \
            while (at < end && XM_KERNEL_LOAD(type, XM_MIRROR_AT(tile, type, at)) ==               \
                                   XM_KERNEL_LOAD(type, XM_MIRROR_AT(shadow, type, at))) {         \
                ++at;                                                                              \
            }                                                                                      \
            differ |= (unsigned)(at < end) << i;                                                   \
            for (; at < end; ++at) {                                                               \
                XM_MIRROR_COPY(shadow, tile, type, at);                                            \
                XM_MIRROR_COPY(mirror, tile, type, at);                                            \
            }                                                                                      \
        }                                                                                          \
        XM_KERNEL_STORE(uint8_t, args->bits + group, differ);                                      \
    }

#define XM_MIRROR_WRITE(type, group)                                                               \
    {                                                                                              \
        const unsigned words = (unsigned)args->size / sizeof(type);                                \
        const unsigned differ = XM_KERNEL_LOAD(uint8_t, args->bits + group);                       \
                                                                                                   \
        for (unsigned i = 0; differ >> i != 0; ++i) {                                              \
            const unsigned long long element = group * XM_MIRROR_GROUP + i;                        \
                                                                                                   \
            for (unsigned w = 0; w < words && (differ >> i & 1) != 0; ++w) {                       \
                XM_MIRROR_COPY(tile, mirror, type, element *words + w);                            \
            }                                                                                      \
        }                                                                                          \
    }

#define XM_MIRROR_KERNEL(body)                                                                     \
    for (unsigned long long group = xm_kernel_thread(); group < (unsigned long long)args->groups;  \
         group += xm_kernel_threads()) {                                                           \
        if (args->size % 8 == 0) {                                                                 \
            body(uint64_t, group)                                                                  \
        } else if (args->size % 4 == 0) {                                                          \
            body(uint32_t, group)                                                                  \
        } else if (args->size % 2 == 0) {                                                          \
            body(uint16_t, group)                                                                  \
        } else {                                                                                   \
            body(uint8_t, group)                                                                   \
        }                                                                                          \
    }

XM_KERNEL_ENTRY(xm_mirror_find, xm_mirror_args_t, XM_MIRROR_KERNEL(XM_MIRROR_FIND))
XM_KERNEL_ENTRY(xm_mirror_write, xm_mirror_args_t, XM_MIRROR_KERNEL(XM_MIRROR_WRITE))
