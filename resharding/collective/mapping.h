/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file mapping.h
 * Axes of parallelism on the dimensions of a mesh (P²: Xie, MLSys'22): each axis takes a part of
 * each dimension, so that its parts multiply to its size and those of all axes to the dimension's
 * extent. A collective along one axis then goes over the factors that it has in the dimensions.
 */
#pragma once

#include "resharding/collective/build.h"

/** part[a][k]: of axis a in dimension k. In a dimension later axes vary faster. */
typedef struct xm_mapping {
    int axes, part[XM_INTERCONNECT_MOST][XM_INTERCONNECT_MOST];
} xm_mapping_t;

/** Lists all mappings of axes of these sizes, which multiply to the devices. The caller frees them.
 */
xm_status_t xm_mappings_list(const xm_interconnect_t *interconnect, const int *size, int axes,
                             xm_mapping_t **mappings, int *count);

/** The factors of an axis, that of the first dimension first, but those of 1; @p dimension says
 * which each is of. */
int xm_mapping_factors(const xm_interconnect_t *interconnect, const xm_mapping_t *mapping, int axis,
                       xm_factor_t *factors, int *dimension);
