/* SPDX-License-Identifier: Apache-2.0 */
/* All-pairs resharding costs of the tensors on one cost mesh, each row computed once. Private. */
#pragma once

#include "planner/cost/cost.h"

/* 9^4 specs is what a tensor of 8 dimensions has on 4 axes. */
enum { AP_MAX_SPECS = 6561 };

/* Every spec that the mesh may cut a tensor by, replicated first. Returns their number. */
int ap_specs_enumerate(const ap_cost_mesh_t *mesh, const ap_shape_t *shape, ap_spec_t *specs);

typedef struct ap_reshard_memo ap_reshard_memo_t;

xm_status_t ap_reshard_memo_create(const ap_cost_mesh_t *mesh, ap_reshard_memo_t **memo);

/* Handle of a tensor shape and size in the memo. */
xm_status_t ap_reshard_memo_tensor(ap_reshard_memo_t *memo, const ap_shape_t *shape, double bytes,
                                   int *tensor);

/* Cost of turning `from` into `to`; both must be specs that divide. Infinite when out of memory. */
double ap_reshard_memo_cost(ap_reshard_memo_t *memo, int tensor, ap_spec_t from, ap_spec_t to);

/*
 * Cost of turning a tensor with spec `from`, of which every device holds only a partial sum over
 * the axes `partial`, into `to`: the cheapest way to reduce-scatter some of the axes, all-reduce
 * over the rest, and reshard.
 */
double ap_reshard_memo_reduce(ap_reshard_memo_t *memo, int tensor, ap_spec_t from, unsigned partial,
                              ap_spec_t to);

void ap_reshard_memo_destroy(ap_reshard_memo_t *memo);
