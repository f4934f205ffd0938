/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file bench/model/pack.h
 * Finds the packed parameters of a model while it is made; what model.h offers of them is here too.
 */
#pragma once

#include "bench/model.h"

/**
 * Groups the tensors whose entries name a packed parameter: those of the same module, with the same
 * last part of the name. Fails when two claim one place, when their element sizes differ, when they
 * lie on different ranks, or when a tile does not end on a whole byte.
 */
xm_status_t rb_model_pack(rb_model_t *model, const rb_shard_rule_t *const *rules);
