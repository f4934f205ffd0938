/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file published_measured.h
 * How long the steps of Alpa's published plans took where its authors measured them (OSDI'22,
 * artifact: 8 hosts of 8 V100, 25 Gb/s), from the FLOP/s of a GPU that they report.
 *
 * They count the FLOPs of matrix products and convolutions, in the forward pass, in its second run
 * for the backward pass, and in the backward pass itself, twice those of the forward pass. All of
 * their runs recompute.
 */
#pragma once

/** Seconds of a step of @p model, @p batch samples on @p devices GPUs; 0: not measured. */
double published_measured_seconds(const char *model, int batch, int devices);
