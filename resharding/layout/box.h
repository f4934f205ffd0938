/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file box.h
 * What is done with boxes of tensor elements (crossmesh/layout.h).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <crossmesh/layout.h>

/** Number of elements. The caller has made sure that it fits (layouts check their tensor's size).
 */
int64_t xm_box_volume(const xm_box_t *box);

/** Writes the common part of two boxes of equal dimensions; returns false when it is empty. */
bool xm_box_intersect(const xm_box_t *a, const xm_box_t *b, xm_box_t *common);

/** Text such as "[0:4,8:16]" ("[]" for a scalar); cut at @p size. Returns @p buffer. */
char *xm_box_format(const xm_box_t *box, char *buffer, size_t size);
