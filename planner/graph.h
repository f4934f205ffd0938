/**
 * @file graph.h
 * The operator graph: what a model computes, tensor by tensor.
 *
 * A graph is built operator by operator in topological order, cut into *layers* by marks (for a
 * transformer: layer 0 the embedding, 1 … L the blocks, the last the head), and then finished,
 * which validates it and makes it immutable. A forward graph holds the forward pass of one
 * micro-batch; ap_training_expand() (training.h) adds the backward and update phases.
 *
 * Between layer k and k+1 exactly one activation may pass (the *boundary* tensor); inputs of the
 * data set and parameters are not boundaries.
 *
 * Ownership: names are copied. Threads: a finished graph is immutable and shared freely.
 *
 * Names may be any text; what is no UTF-8 in them becomes '?'.
 *
 * @code
 *     ap_graph_create("mlp", &graph);
 *     x = ap_graph_add_tensor(…); w = ap_graph_add_tensor(…);
 *     ap_op_params_t op = AP_OP_PARAMS_INIT;
 *     op.kind = AP_OP_EINSUM; op.name = "h1"; op.rule = "bk,kn->bn";
 *     op.operand_count = 2; op.operands[0] = x; op.operands[1] = w;
 *     op.result_dtype = AP_DTYPE_F32; op.flops_per_point = 2;
 *     status = ap_graph_add_op(graph, &op, results);
 *     status = ap_graph_finish(graph);
 * @endcode
 */
#ifndef AP_PLANNER_GRAPH_H
#define AP_PLANNER_GRAPH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "comm/status.h"
#include "planner/sharding_rule.h"

typedef struct ap_graph ap_graph_t;

typedef enum ap_dtype {
    AP_DTYPE_F16,
    AP_DTYPE_BF16,
    AP_DTYPE_F32,
    AP_DTYPE_F64,
    AP_DTYPE_I32,
    AP_DTYPE_I8, /**< also truth values and 8-bit floats */
    AP_DTYPE_I16,
    AP_DTYPE_I64,
    AP_DTYPE_C128,
    AP_DTYPE_COUNT
} ap_dtype_t;

/**
 * "float16", "bfloat16", "float32", "float64", "int32", "int8", "int16", "int64",
 * "complex128". */
XM_API const char *ap_dtype_name(ap_dtype_t dtype);
XM_API int ap_dtype_bytes(ap_dtype_t dtype);

typedef enum ap_tensor_kind {
    AP_TENSOR_INPUT,     /**< read from the data set every micro-batch */
    AP_TENSOR_PARAMETER, /**< kept from iteration to iteration, trained */
    AP_TENSOR_ACTIVATION /**< result of an operator */
} ap_tensor_kind_t;

typedef enum ap_op_kind {
    AP_OP_EINSUM,
    AP_OP_ELEMENTWISE,
    AP_OP_REDUCE,
    AP_OP_LAYER_NORM,
    AP_OP_SOFTMAX,
    AP_OP_EMBEDDING,
    AP_OP_CROSS_ENTROPY,
    AP_OP_SPLIT,
    AP_OP_RESHAPE,
    AP_OP_CUSTOM,   /**< anything else that has a derivative */
    AP_OP_GRADIENT, /**< backward of a kind that is not its own backward */
    AP_OP_UPDATE,
    AP_OP_KIND_COUNT
} ap_op_kind_t;

/** "einsum", "layer_norm", … */
XM_API const char *ap_op_kind_name(ap_op_kind_t kind);

typedef enum ap_phase { AP_PHASE_FORWARD, AP_PHASE_BACKWARD, AP_PHASE_UPDATE } ap_phase_t;

typedef struct ap_tensor {
    const char *name;
    ap_shape_t shape;
    ap_dtype_t dtype;
    ap_tensor_kind_t kind;
    int producer;    /**< operator, -1 for inputs and parameters */
    int layer;       /**< of its producer; of its first user for inputs and parameters */
    int alias_of;    /**< tensor whose storage this one takes over (new_w of w), or -1 */
    int taken_by;    /**< tensor that takes over this one's storage, or -1 */
    int gradient_of; /**< tensor this is the gradient of, or -1 */
} ap_tensor_t;

typedef struct ap_op {
    const char *name;
    const char *label; /**< where the model's author put it ("layers/3/attention"), or NULL */
    ap_op_kind_t kind;
    ap_phase_t phase;
    int layer;
    int operand_count, result_count;
    int operands[AP_MAX_OPERANDS];
    int results[AP_MAX_RESULTS];
    ap_sharding_rule_t rule;
    double flops;  /**< of all its runs */
    double repeat; /**< runs in one micro-batch; more than 1 in the body of a loop */
    bool linear;   /**< elementwise, custom: the derivative does not need the operands (add) */
    int forward;   /**< forward operator this one is the backward of, or -1 */
    /** backward: the operand of `forward` that each result is the gradient of */
    int differentiates[AP_MAX_RESULTS];
    /** per term of the rule: how much of it a run reads or writes, see ap_op_params_t */
    int8_t touched[AP_MAX_TERMS];
} ap_op_t;

/** How much of a term an operator touches; t + 1: no more bytes than term t has. */
enum { AP_TOUCHES_ALL = 0, AP_TOUCHES_NONE = -1 };

/** One operator to add. The result shapes follow from the rule. */
typedef struct ap_op_params {
    size_t struct_size;
    ap_op_kind_t kind;
    ap_phase_t phase;
    const char *name;  /**< results are called the same, with ".1", ".2" from the second on */
    const char *label; /**< see ap_op_t; may be NULL */
    const char *rule;  /**< see sharding_rule.h */
    const char *replicated, *permuted, *sizes; /**< see ap_sharding_rule_create(); may be NULL */
    int operand_count;
    int operands[AP_MAX_OPERANDS];
    ap_dtype_t result_dtype;
    double flops_per_point; /**< FLOPs per point of the iteration space; 2 for an einsum */
    double repeat;          /**< runs in one micro-batch; 0 = 1 */
    bool linear;
    int forward;
    int differentiates[AP_MAX_RESULTS]; /**< see ap_op_t */
    /**
     * Per term, operands first: AP_TOUCHES_ALL, AP_TOUCHES_NONE (the result takes its place), or
     * t + 1 for what is read or written in rows, as a table that is looked up. An embedding of two
     * operands that says nothing reads as much of the second as it returns.
     */
    int8_t touched[AP_MAX_TERMS];
} ap_op_params_t;

#define AP_OP_PARAMS_INIT                                                                          \
    {                                                                                              \
        .struct_size = sizeof(ap_op_params_t), .forward = -1                                       \
    }

XM_API xm_status_t ap_graph_create(const char *name, ap_graph_t **graph);

/** Adds an input or a parameter; writes its id. Dimensions must be positive. */
XM_API xm_status_t ap_graph_add_tensor(ap_graph_t *graph, const char *name, ap_tensor_kind_t kind,
                                       const ap_shape_t *shape, ap_dtype_t dtype, int *tensor);

/**
 * Adds an operator to the current layer and its result tensors; writes the results' ids (as many as
 * the rule has). Refused: an operand that does not exist yet, a rule that does not fit the shapes.
 */
XM_API xm_status_t ap_graph_add_op(ap_graph_t *graph, const ap_op_params_t *params, int *results);

/** Operators added from here on belong to @p layer (0 at first). */
XM_API xm_status_t ap_graph_set_layer(ap_graph_t *graph, int layer);

/** Declares that @p tensor takes over the storage of @p old; both must have one shape. */
XM_API xm_status_t ap_graph_set_alias(ap_graph_t *graph, int tensor, int old);

/** Declares @p tensor to be the gradient of @p of; both must have one shape. */
XM_API xm_status_t ap_graph_set_gradient(ap_graph_t *graph, int tensor, int of);

/**
 * Names the tensor training minimises. @p is_gradient: the tensor is its own gradient seed, as the
 * error h-y is of the squared error; otherwise it is a scalar with gradient 1.
 */
XM_API xm_status_t ap_graph_set_loss(ap_graph_t *graph, int tensor, bool is_gradient);

/**
 * Validates and freezes the graph. Refused, naming operator and layer: forward layers that do not
 * ascend from 0 without a gap, a cut that more or fewer than one activation crosses, a graph
 * without operators.
 */
XM_API xm_status_t ap_graph_finish(ap_graph_t *graph);

XM_API const char *ap_graph_name(const ap_graph_t *graph);
XM_API int ap_graph_tensors(const ap_graph_t *graph);
XM_API int ap_graph_ops(const ap_graph_t *graph);
XM_API int ap_graph_layers(const ap_graph_t *graph);
XM_API const ap_tensor_t *ap_graph_tensor(const ap_graph_t *graph, int tensor);
XM_API const ap_op_t *ap_graph_op(const ap_graph_t *graph, int op);
/** Loss tensor or -1, and whether it is its own gradient seed. */
XM_API int ap_graph_loss(const ap_graph_t *graph, bool *is_gradient);
/**
 * How often in a micro-batch a tensor gets a new value: as often as its producer runs, or, of what
 * a loop carries, as often as the loop does.
 */
XM_API double ap_graph_tensor_turns(const ap_graph_t *graph, int tensor);
/** Whether an operator touches nothing: it gives another name to what is there. */
XM_API bool ap_op_passes_on(const ap_op_t *op);
/** Bytes of a whole tensor. */
XM_API double ap_graph_tensor_bytes(const ap_graph_t *graph, int tensor);
/** The activation that passes from @p layer to layer + 1; -1 for the last layer. */
XM_API int ap_graph_boundary(const ap_graph_t *graph, int layer);
/** FLOPs of all operators of one layer, every phase. */
XM_API double ap_graph_layer_flops(const ap_graph_t *graph, int layer);
/** Number of trained parameters (elements). */
XM_API double ap_graph_parameters(const ap_graph_t *graph);

/**
 * Hash of a layer's structure: operator kinds, rules, shapes, dtypes and how they are wired, but no
 * names; two layers with one hash cost the same. Needs a finished graph.
 */
XM_API uint64_t ap_graph_layer_hash(const ap_graph_t *graph, int layer);

/** One line per operator: layer, phase, name, kind, rule, operand and result shapes, FLOPs. */
XM_API void ap_graph_print(const ap_graph_t *graph, FILE *stream);

XM_API void ap_graph_destroy(ap_graph_t *graph);

#endif
