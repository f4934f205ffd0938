/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file comm/probe/compute.h
 * What one CPU core does: multiply-adds and copies per second; and which machine it is in. Internal
 * to the probe.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "comm/profile.h"

/** Digest of this machine's boot id: equal for all processes of a machine. */
uint64_t xm_probe_machine(void);

/** Processors that this process may run on. */
int xm_probe_cores(void);

/** A number that was measured, and how well its samples tell it (xm_curve_spread()). */
typedef struct xm_probe_figure {
    double value; /**< 0: not known for this kind of CPU */
    double spread;
    double jitter; /**< samples lie up to this share from the median, were they to lie evenly */
} xm_probe_figure_t;

/**
 * Runs multiply-adds of a type on registers for about @p seconds of wall-clock time; FLOP/s (a
 * multiply-add counts 2). XM_NUMBER_FLOAT32 and _FLOAT64 use the widest vectors of the CPU; _INT8,
 * _BFLOAT16 and _FLOAT16 are products of the type where it has them, 16-bit floats else of numbers
 * that are widened to 32 bits.
 */
xm_probe_figure_t xm_probe_flops(xm_number_t number, double seconds);

/** A loop of multiply-adds. */
typedef struct xm_probe_kernel {
    float (*run)(void); /**< NULL: this processor has nothing for the type */
    int lanes;          /**< products of an operation */
} xm_probe_kernel_t;

/** The loop for a type of 16 or 8 bits. */
xm_probe_kernel_t xm_probe_narrow_kernel(xm_number_t number);

/** What the loop of 32 bits is made of on this CPU, e.g. "AVX2 multiply-add". */
const char *xm_probe_flops_kind(void);

/** Bytes of a buffer, a power of two and at least @p least, so that @p buffers which are used at
 * the same time are in no cache. */
size_t xm_probe_cold_bytes(int buffers, size_t least);

/** Memory whose pages are there, freed with free(); NULL with a sentence when there is none. */
void *xm_probe_memory(size_t bytes);

/** Where copy or message @p index of @p bytes lies in a pool of a power of two: each place has its
 * turn, in no foreseeable order. A pool of one place holds data in the cache. */
size_t xm_probe_place(size_t pool, size_t bytes, uint64_t index);

/** Copies @p bytes from @p from to @p to, again and again for about @p seconds; bytes read plus
 * written per second. */
xm_probe_figure_t xm_probe_copy_bandwidth(void *to, const void *from, size_t bytes, double seconds);

/** Seconds of one copy of @p bytes between places of two pools: median of @p repetitions, each long
 * enough for the clock, and how well they tell it (xm_curve_spread()). */
double xm_probe_copy_seconds(unsigned char *to, const unsigned char *from, size_t pool,
                             size_t bytes, int repetitions, double *spread);
