/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file device.h
 * What one device of a cluster can do: arithmetic by type of number, memory, memory bandwidth.
 *
 * A device has one rate that counts for every type, and may have one of its own for some: those of
 * a GPU differ by 8 between 32 and 16 bits. Threads: values, no shared state.
 */
#pragma once

#include <stdbool.h>

#include "comm/base.h"

/** Types of numbers that devices have rates of their own for. */
typedef enum xm_number {
    XM_NUMBER_ANY, /**< any other */
    XM_NUMBER_FLOAT16,
    XM_NUMBER_BFLOAT16,
    XM_NUMBER_FLOAT32,
    XM_NUMBER_FLOAT64,
    XM_NUMBER_INT8, /**< also 8-bit floats */
    XM_NUMBER_COUNT
} xm_number_t;

/** "float16", "bfloat16", "float32", "float64", "int8", as files have it; "any". */
const char *xm_number_name(xm_number_t number);

/** The type of that name; false: there is none. "any" is no name. */
bool xm_number_find(const char *name, xm_number_t *number);

/** What one device can do. */
typedef struct xm_cluster_device {
    double flops;                         /**< attainable FLOP/s */
    double memory_bytes;                  /**< memory it may use */
    double memory_bandwidth;              /**< bytes/s it reads plus writes */
    double number_flops[XM_NUMBER_COUNT]; /**< FLOP/s of a type; 0: as `flops` */
    /** How well these rates are known (curve.h), XM_NUMBER_ANY for `flops`; 0: unknown. */
    double number_spread[XM_NUMBER_COUNT];
    double memory_spread; /**< of memory_bandwidth */
    double price;         /**< of an hour, in any currency; 0: unknown */
} xm_cluster_device_t;

/** FLOP/s of a type. */
double xm_cluster_device_flops(const xm_cluster_device_t *device, xm_number_t number);

/** Seconds of an operator at best, the longer of computing and moving: its roofline. */
double xm_cluster_device_roofline(const xm_cluster_device_t *device, xm_number_t number,
                                  double flops, double bytes);

/** A device that has the less of each. */
xm_cluster_device_t xm_cluster_device_least(const xm_cluster_device_t *a,
                                            const xm_cluster_device_t *b);

/** Whether all numbers are equal. */
bool xm_cluster_device_same(const xm_cluster_device_t *a, const xm_cluster_device_t *b);

/** Refuses numbers that are not positive; @p path is that of the object in the document. */
xm_status_t xm_cluster_device_check(const char *path, const xm_cluster_device_t *device);

/** The numbers as a file holds them. */
xm_cluster_device_t xm_cluster_device_rounded(const xm_cluster_device_t *device);
