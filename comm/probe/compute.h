/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file comm/probe/compute.h
 * What one CPU core does: multiply-adds and copies per second; and which machine it is in. Internal
 * to the probe.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/** Digest of this machine's boot id: equal for all processes of a machine. */
uint64_t xm_probe_machine(void);

/**
 * Runs single-precision multiply-adds on registers for about @p seconds of wall-clock time and
 * returns FLOP/s (a multiply-add counts 2). Uses the widest vectors of the CPU.
 */
double xm_probe_flops(double seconds);

/** What the loop above is made of on this CPU, e.g. "AVX2 multiply-add". */
const char *xm_probe_flops_kind(void);

/** Copies @p bytes from @p from to @p to for about @p seconds; returns bytes read plus written per
 * second. */
double xm_probe_copy_bandwidth(void *to, const void *from, size_t bytes, double seconds);

/** Seconds of one copy of @p bytes: median of @p repetitions, each long enough for the clock, and
 * how well they tell it (xm_curve_spread()). */
double xm_probe_copy_seconds(void *to, const void *from, size_t bytes, int repetitions,
                             double *spread);
