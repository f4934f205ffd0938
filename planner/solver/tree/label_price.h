/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which times a pass with labels looks at. Private to the solver.
 */
#pragma once

#include "planner/solver/bound.h"

/*
 * Leaves in `when`, of so many `times` of the core, at most `most` with the highest prices, and
 * returns how many. `paid` becomes the costs of all values with prices on what they use at the
 * others. Scratch comes from `pool`, which says where that failed.
 */
int ap_label_price(const ap_cfn_dual_t *dual, int *when, int times, int most, double *paid,
                   xm_arena_t *pool);
