/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file graph.h
 * The operator graph as passes, prices and searches look at it: its tensors and operators. How one
 * is built, and what its kinds mean, is in the public header.
 */
#pragma once

#include <autopar/graph.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "comm/base.h"
#include "planner/graph/sharding_rule.h"

/** No real tensor has as many elements; sums of bytes and FLOPs over a whole graph fit 64 bits. */
#define AP_MOST_ELEMENTS (INT64_C(1) << 48)

/**
 * "float16", "bfloat16", "float32", "float64", "int32", "int8", "int16", "int64",
 * "complex128". */
const char *ap_dtype_name(ap_dtype_t dtype);
int ap_dtype_bytes(ap_dtype_t dtype);
/** Whether it can have a derivative: whole numbers and truth values have none. */
bool ap_dtype_is_smooth(ap_dtype_t dtype);

bool ap_shape_equal(const ap_shape_t *a, const ap_shape_t *b);

/** "einsum", "layer_norm", … */
const char *ap_op_kind_name(ap_op_kind_t kind);

/** How a dimension must be cut. */
typedef struct ap_cut {
    int parts;  /**< 0: any number */
    int stride; /**< from the device of the first part to that of the second, on meshes that can
                     have it so; 0: any, which is that of one part */
} ap_cut_t;

typedef struct ap_tensor {
    const char *name;
    ap_shape_t shape;
    ap_dtype_t dtype;
    ap_tensor_kind_t kind;
    int producer;              /**< operator, -1 for inputs and parameters */
    int layer;                 /**< of its producer; of its first user for inputs and parameters */
    int alias_of;              /**< tensor whose storage this one takes over (new_w of w), or -1 */
    int taken_by;              /**< tensor that takes over this one's storage, or -1 */
    int gradient_of;           /**< tensor this is the gradient of, or -1 */
    ap_cut_t cut[AP_MAX_RANK]; /**< of each dimension, as the model's author demands */
} ap_tensor_t;

/**
 * What a compiler makes of an operator's result: a buffer; or nothing, where all that read it can
 * take the operator in, each of them if it is cheap, the only one otherwise; or another view of the
 * operand's buffer. What runs operator by operator has a buffer for each.
 */
typedef enum ap_fusion {
    AP_FUSION_NEVER,
    AP_FUSION_ONCE,
    AP_FUSION_ANYWHERE,
    AP_FUSION_VIEW
} ap_fusion_t;

typedef struct ap_op {
    const char *name;
    const char *label; /**< where the model's author put it ("layers/3/attention"), or NULL */
    ap_op_kind_t kind;
    ap_phase_t phase;
    int layer;
    int operand_count, result_count;
    int *operands, *results;
    ap_sharding_rule_t rule;
    double flops;  /**< of all its runs */
    double repeat; /**< runs in one micro-batch; more than 1 in the body of a loop */
    bool linear;   /**< elementwise, custom: the derivative does not need the operands (add) */
    int forward;   /**< forward operator this one is the backward of, or -1 */
    /** backward: the operand of `forward` that each result is the gradient of */
    int *differentiates;
    /** per term of the rule: how much of it a run reads or writes, see ap_op_params_t */
    int *touched;
    ap_fusion_t fusion;
} ap_op_t;

const ap_tensor_t *ap_graph_tensor(const ap_graph_t *graph, int tensor);
const ap_op_t *ap_graph_op(const ap_graph_t *graph, int op);
/** Loss tensor or -1, and whether it is its own gradient seed. */
int ap_graph_loss(const ap_graph_t *graph, bool *is_gradient);
/**
 * How often in a micro-batch a tensor gets a new value: as often as its producer runs, or, of what
 * a loop carries, as often as the loop does.
 */
double ap_graph_tensor_turns(const ap_graph_t *graph, int tensor);
/** Type of the numbers that an operator computes in: the widest that it reads, whole numbers aside
 * where it reads others; of one that reads nothing, the widest that it writes. */
ap_dtype_t ap_graph_op_dtype(const ap_graph_t *graph, const ap_op_t *op);
/** The tensor of a term of an operator's rule: operands first, then results. */
static inline int ap_op_tensor(const ap_op_t *op, int term)
{
    return term < op->operand_count ? op->operands[term] : op->results[term - op->operand_count];
}

/** Adds an operator as ap_graph_add_op() does, by a rule as a value, which the graph takes over:
 * the params' text, letters and sizes are not looked at. Frees the rule where it fails. */
xm_status_t ap_graph_add_op_by_rule(ap_graph_t *graph, const ap_op_params_t *params,
                                    ap_sharding_rule_t *rule, int *results);
/** Operands and results of all operators together. */
size_t ap_graph_terms(const ap_graph_t *graph);

/* The term of an operator that makes a tensor; -1: none does. */
static inline int ap_op_result_term(const ap_op_t *op, int tensor)
{
    for (int r = 0; r < op->result_count; ++r) {
        if (op->results[r] == tensor) {
            return op->operand_count + r;
        }
    }
    return -1;
}

/** Whether an operator touches nothing: it gives another name to what is there. */
bool ap_op_passes_on(const ap_op_t *op);
/** Declares what a compiler makes of an operator, before the graph is finished. */
void ap_graph_set_fusion(ap_graph_t *graph, int op, ap_fusion_t fusion);
/** Bytes of a whole tensor. */
double ap_graph_tensor_bytes(const ap_graph_t *graph, int tensor);
/** Demands how each dimension of a tensor is cut, AP_MAX_RANK of them; see ap_tensor_t. */
void ap_graph_demand(ap_graph_t *graph, int tensor, const ap_cut_t *cuts);
/** What a demand on the only operand of an operator is for its result. */
void ap_graph_carry_demand(const ap_op_t *op, const ap_tensor_t *operand, ap_cut_t *cuts);
/** Whether anything is demanded of a tensor. */
bool ap_tensor_demands(const ap_tensor_t *tensor);
/** "1x8", with "?" for what is not demanded; of AP_SPEC_TEXT bytes. */
char *ap_tensor_parts(const ap_tensor_t *tensor, char *buffer, size_t size);
/** The activation that passes from @p layer to layer + 1, the boundary; -1 for the last layer.
 * Where several pass, that of them which the next layer needs of this one. */
int ap_graph_boundary(const ap_graph_t *graph, int layer);

/*
 * What else passes: an activation that a layer reads other than as the boundary before it rests
 * from its maker to there, in a copy that every stage cuts as ap_spec_resting() says, over the axes
 * that may cut the batch.
 */
/** The last layer that reads the resting copy of a tensor; -1: there is none. */
int ap_graph_rests_until(const ap_graph_t *graph, int tensor);
/** Whether an operand of this layer is a resting copy. */
bool ap_graph_reads_rest(const ap_graph_t *graph, int layer, int tensor);
/** Whether the boundary after a layer was its resting copy before; it is then cut as that. */
bool ap_graph_boundary_rests(const ap_graph_t *graph, int layer);
/** Lists the tensors, at most as many as the graph has, that layers from[0] … from[1] make and of
 * which layers to[0] … to[1] read the resting copy; returns how many. */
int ap_graph_resting(const ap_graph_t *graph, const int from[2], const int to[2], int *tensors);
/** Says that the parameters which the first @p layers of a finished graph read are not trained, by
 * no later layer either. */
xm_status_t ap_graph_freeze(ap_graph_t *graph, int layers);
/** Of how many layers, the first, they are not. */
int ap_graph_frozen(const ap_graph_t *graph);
/** Says of each tensor whether a parameter that is trained has a part in it: it has a gradient. */
void ap_graph_learning(const ap_graph_t *graph, bool *learns);
/** FLOPs of all operators of one layer, every phase. */
double ap_graph_layer_flops(const ap_graph_t *graph, int layer);

/**
 * Hash of a layer's structure: operator kinds, rules, shapes, dtypes and how they are wired, but no
 * names; two layers with one hash cost the same. Needs a finished graph.
 */
uint64_t ap_graph_layer_hash(const ap_graph_t *graph, int layer);
