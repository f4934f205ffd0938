/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file shape_rule.h
 * Operators that are told by shapes and a few numbers: their result shapes and sharding rules.
 *
 * What the front ends share whose files name operators and not factors (ONNX, JSON by kind). One
 * value is one operator: shape_rule_begin() takes the operands' types, one of the functions after
 * it infers the results and fills in the rule, shape_rule_emit() adds the operator to a graph. The
 * first failure sticks in `rule.status`, with the place in front of its sentence.
 *
 * @code
 *     shape_rule_begin(&op, "node 'fc1' (MatMul)", types, 2);
 *     shape_rule_matmul(&op);
 *     status = shape_rule_emit(&op, graph, &emission, results);
 *     shape_rule_end(&op);
 * @endcode
 *
 * Internal. Threads: values.
 */
#pragma once

#include "planner/rules/operator_rule.h"

typedef struct shape_rule {
    operator_rule_t rule;
    operand_type_t *made; /**< types of the results */
    int made_room;
} shape_rule_t;

/** A window over spatial dimensions: of a convolution or a pooling. */
typedef struct shape_window {
    int rank;
    int64_t size[AP_MAX_RANK], stride[AP_MAX_RANK], dilation[AP_MAX_RANK];
    int64_t before[AP_MAX_RANK], after[AP_MAX_RANK]; /**< padding */
    int64_t more[AP_MAX_RANK];                       /**< pixels added to a transposed result */
    bool same;    /**< as much padding as keeps pixels / stride */
    bool ceiling; /**< a last window may hang over */
} shape_window_t;

/** @p place (kept, not copied) names the operator in sentences. @p op is zero, or an operator that
 * is begun anew; shape_rule_end() frees what it holds. */
void shape_rule_begin(shape_rule_t *op, const char *place, const operand_type_t *const *types,
                      int count);
void shape_rule_end(shape_rule_t *op);

/** Result @p index: its element type (else operand 0's) and shape. */
void shape_rule_result(shape_rule_t *op, int index, ap_dtype_t dtype, const ap_shape_t *shape);

/** Operands broadcast, dimensions aligned at the end; @p flops for each element of the result. */
void shape_rule_elementwise(shape_rule_t *op, double flops, bool linear);
/** Operand 0 broadcast to a shape; a dimension of 1 there keeps the operand's. */
void shape_rule_expand(shape_rule_t *op, const ap_shape_t *to);
/** numpy's matmul: batch dimensions broadcast, vectors allowed. */
void shape_rule_matmul(shape_rule_t *op);
/** A·B, each transposed when told. */
void shape_rule_gemm(shape_rule_t *op, bool transpose_a, bool transpose_b);
/** An equation such as "bij,bjk->bik" (letters of either case, blanks, "..."; "->" may be missing).
 */
void shape_rule_einsum(shape_rule_t *op, const char *equation);
/** @p reduced per dimension; @p keep leaves dimensions of 1; @p parts: partial results add up. */
void shape_rule_reduce(shape_rule_t *op, const bool *reduced, bool keep, bool parts);
/** Every operand and result is like operand 0; dimensions in @p whole are never cut. */
void shape_rule_along(shape_rule_t *op, int results, const bool *whole, double flops);
/** Softmax along one dimension. */
void shape_rule_softmax(shape_rule_t *op, int dim);
/** Normalises the dimensions from @p first on; scale and shift have those dimensions. */
void shape_rule_layer_norm(shape_rule_t *op, int first);
/** Normalises all but dimension 1 (channels), in @p groups of channels (0: over samples too). */
void shape_rule_channel_norm(shape_rule_t *op, int64_t groups);
void shape_rule_transpose(shape_rule_t *op, const int64_t *order, int count);
/** To a shape with as many elements. */
void shape_rule_reshape(shape_rule_t *op, const ap_shape_t *to);
/** A part of operand 0, or more around it: dimensions of equal extent pass. */
void shape_rule_window_of(shape_rule_t *op, const ap_shape_t *to);
/** Operands side by side along one dimension. */
void shape_rule_concat(shape_rule_t *op, int dim);
/** Cuts dimension @p dim into parts. */
void shape_rule_split(shape_rule_t *op, int dim, const int64_t *parts, int count);
/** Operand 1 looked up by operand 0 along dimension @p dim: indices stand in its place. */
void shape_rule_gather(shape_rule_t *op, int dim);
/** Operand 1, a vector, is added along dimension @p dim of operand 0. */
void shape_rule_bias(shape_rule_t *op, int dim);
/** Operands x[n,c,…] and w[o,c/groups,…]. */
void shape_rule_convolution(shape_rule_t *op, const shape_window_t *window, int64_t groups);
/** The transposed convolution: operands x[n,c,…] and w[c,o/groups,…]. */
void shape_rule_convolution_back(shape_rule_t *op, const shape_window_t *window, int64_t groups);
/** Pooling of x[n,c,…]. */
void shape_rule_pool(shape_rule_t *op, const shape_window_t *window);
/** Losses per position of logits[…,v] and labels[…]; the classes are dimension @p dim. */
void shape_rule_cross_entropy(shape_rule_t *op, int dim);
/** Everything whole; the results must have been given by shape_rule_result(). */
void shape_rule_opaque(shape_rule_t *op, int results);

/** How an operator is added. */
typedef struct shape_emission {
    const char *name;
    const char *label;  /**< NULL: none */
    const int *tensors; /**< per operand, or OPERATOR_NO_TENSOR */
    double repeat;      /**< 0 = 1 */
    ap_phase_t phase;
    bool opaque; /**< written: there is no such rule in a graph; everything is whole */
} shape_emission_t;

/** Adds the operator; writes a tensor per result. At least one operand must be a tensor. */
xm_status_t shape_rule_emit(shape_rule_t *op, ap_graph_t *graph, shape_emission_t *emission,
                            int *results);
