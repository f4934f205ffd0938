/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file onnx.h
 * Operator graphs from ONNX models, as torch.onnx.export and others write them.
 *
 * Shapes are inferred; what computes shapes is folded away; symbolic dimensions are bound by name.
 * Floating-point initialisers of more than one element are parameters of the model; all other
 * constants need no data. The weights themselves are skipped, in the file or beside it: a model of
 * many GB takes the memory of its graph. A scalar output is the loss, else the first floating-point
 * output stands for its own gradient; training.h makes the step of it. Operators without a rule
 * need all of everything on every device; they are listed. docs/onnx.md has the whole story.
 *
 * Ownership: the bytes are not kept. Threads: no shared state.
 */
#pragma once

#include <autopar/frontend.h>

#include "planner/frontend/common.h"
#include "planner/graph.h"

/** As ap_onnx_from_bytes(); the file is mapped. */
xm_status_t ap_onnx_from_file(const char *path, const ap_onnx_params_t *params, ap_graph_t **graph,
                              ap_frontend_notes_t **notes);
