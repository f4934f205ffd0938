/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/search/model.h
 * A model file as the planner takes it: the forward pass of one micro-batch, in layers.
 *
 * Any file that a front end reads (frontend.h), whether it holds a forward pass with a loss or a
 * whole training step; forward_pass.h tells the first from the second, layering.h makes the layers.
 * A file that has layers keeps them unless others are asked for, and is taken operator by operator;
 * where layers are made, element-wise operators are fused within them (elementwise_fusion.h), as a
 * compiler would. Threads: no shared state.
 */
#pragma once

#include "planner/graph.h"
#include "planner/passes.h"

typedef struct ap_planner_model {
    ap_graph_t *graph;           /**< finished, with its loss named */
    int file_ops;                /**< operators that the file holds */
    int forward_ops;             /**< of these, the forward pass */
    ap_forward_info_t step;      /**< what else the file is seen to do */
    bool own_layers;             /**< as the file has them */
    ap_layering_info_t layering; /**< of `graph` */
    char fixed[256];             /**< why its micro-batch has one size only; "": it has any */
} ap_planner_model_t;

/** Reads a file; @p dims as in ap_frontend_params_t. */
xm_status_t ap_planner_model_read(const char *path, const char *const *dims, size_t dim_count,
                                  const ap_layering_t *how, ap_planner_model_t *model);

/** Samples of the micro-batch that a forward graph holds: the first dimension that most of its
 * inputs have; 1 without inputs. */
int64_t ap_planner_model_samples(const ap_graph_t *forward);

/** Whether the file's own step keeps little more of a layer than its input: it computes more than
 * half of its forward products again. */
bool ap_planner_model_recomputes(const ap_planner_model_t *model);

/** Whether anything is said about layers. */
bool ap_planner_model_is_given(const ap_layering_t *how);

/** NULL and an all-zero model are accepted. */
void ap_planner_model_clear(ap_planner_model_t *model);
