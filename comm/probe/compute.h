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

/**
 * Runs single-precision multiply-adds on registers for about @p seconds of wall-clock time and
 * returns FLOP/s (a multiply-add counts 2). Uses the widest vectors of the CPU.
 */
double xm_probe_flops(double seconds);

/** Calls per second of @p run, repeated for about @p seconds. The first call is not timed: it
 * brings the core to its working frequency. */
double xm_probe_calls(float (*run)(void), double seconds);

/**
 * FLOP/s in numbers of 16 bits, XM_NUMBER_BFLOAT16 or XM_NUMBER_FLOAT16: products of the type
 * where the CPU has them, of numbers widened to 32 bits where it has not. 0: neither is known for
 * this kind of CPU.
 */
double xm_probe_half_flops(xm_number_t number, double seconds);

/** What the first loop above is made of on this CPU, e.g. "AVX2 multiply-add". */
const char *xm_probe_flops_kind(void);

/** Copies @p bytes from @p from to @p to for about @p seconds; returns bytes read plus written per
 * second. */
double xm_probe_copy_bandwidth(void *to, const void *from, size_t bytes, double seconds);

/** Seconds of one copy of @p bytes: median of @p repetitions, each long enough for the clock, and
 * how well they tell it (xm_curve_spread()). */
double xm_probe_copy_seconds(void *to, const void *from, size_t bytes, int repetitions,
                             double *spread);
