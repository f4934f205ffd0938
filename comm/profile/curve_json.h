/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file curve_json.h
 * The JSON form of curves and of measured collectives, as docs/cluster-profile.md has them.
 * Internal.
 */
#pragma once

#include <jansson.h>

#include "comm/profile/collective_curve.h"

/**
 * Reads an array of points [bytes, seconds] or [bytes, seconds, spread]. *points and *spread (NULL
 * when no point has one) lie in @p memory. @p path names the array in sentences.
 */
xm_status_t xm_curve_from_json(const json_t *array, const char *path, xm_arena_t *memory,
                               const xm_curve_point_t **points, const double **spread,
                               size_t *count);

/** The array of a curve; @p spread may be NULL. */
json_t *xm_curve_to_json(const xm_curve_point_t *points, const double *spread, size_t count);

/**
 * Reads an array of collectives. What is in *curves is freed with xm_collective_curves_free(); NULL
 * @p array gives none.
 */
xm_status_t xm_collectives_from_json(const json_t *array, xm_collective_curve_t **curves,
                                     size_t *count);

json_t *xm_collective_to_json(const xm_collective_curve_t *curve);
