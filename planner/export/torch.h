/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/export/torch.h
 * A solution as DTensor placements: JSON that a PyTorch program applies by name.
 *
 * One placement per axis of the mesh, as `torch.distributed.tensor` writes them: `Shard(0)`,
 * `Replicate()`, and `Partial()` for what an operator makes before its collectives. DTensor cuts a
 * dimension that several axes share from the first axis to the last, as specs do.
 *
 * @code{.json}
 *     {"format": "crossmesh-dtensor", "version": 1, "model": "mlp2",
 *      "mesh": {"shape": [2, 4], "mesh_dim_names": ["x", "y"]},
 *      "tensors": [{"name": "w1", "kind": "parameter", "shape": [128, 128], "dtype": "float32",
 *                   "placements": ["Replicate()", "Shard(1)"]}],
 *      "operators": [{"name": "h1", "rule": "bk,kn->bn",
 *                     "operands": [{"tensor": "x", "placements": ["Shard(0)", "Replicate()"]}],
 *                     "results": [{"tensor": "h1", "computed": ["Shard(0)", "Partial()"],
 *                                  "placements": ["Shard(0)", "Replicate()"]}]}]}
 * @endcode
 */
#pragma once

#include <stdio.h>

#include "planner/intra_op.h"

xm_status_t ap_export_torch(const ap_shard_solution_t *solution, FILE *stream);
