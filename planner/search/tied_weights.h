/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file tied_weights.h
 * What weights cost that several stages use, as a table of tokens that is the head's too. Not
 * installed.
 */
#pragma once

#include "planner/search/plan_build.h"

/**
 * Adds to the gradient synchronisation of each stage what it takes, once a step, to exchange the
 * gradients of the weights that it has in common with others: each of them has a copy, and every
 * two send each other theirs, both ways at the same time.
 */
xm_status_t ap_tied_weights_add(const ap_plan_recipe_t *recipe, ap_plan_stage_t *stages);
