/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/frontend/hlo/sharding.h
 * What a `sharding={…}` of the text demands: into how many parts each dimension is cut.
 *
 * Read are `{replicated}`, `{devices=[2,4]0,1,…}` and `{devices=[2,1,4]<=[8]
 * last_tile_dim_replicate}`, and how far apart the devices of the first two parts are, which tells
 * axes of one size apart; the mesh is the command's.
 * Dimensions that the author leaves open (`unspecified_dims`, or `{?}` of a Shardy annotation)
 * demand nothing, nor do manual, maximal and unknown shardings, and those of tuples.
 */
#pragma once

#include "planner/frontend/hlo/attribute.h"

typedef struct hlo_sharding {
    bool demands; /**< anything at all */
    ap_cut_t cut[AP_MAX_RANK];
} hlo_sharding_t;

/** Refused: what is no sharding, or cannot be one of this shape. */
xm_status_t hlo_sharding_read(const hlo_module_t *module, const hlo_instruction_t *of,
                              const ap_shape_t *shape, hlo_sharding_t *sharding);
