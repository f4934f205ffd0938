/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file graph.h
 * The operator graph: what a model computes, tensor by tensor.
 *
 * A graph is built operator by operator in topological order, cut into *layers* by marks (for a
 * transformer: layer 0 the embedding, 1 … L the blocks, the last the head), and then finished,
 * which validates it and makes it immutable. A forward graph holds the forward pass of one
 * micro-batch; ap_frontend_train() (frontend.h) adds the backward and update phases.
 *
 * Between layer k and k+1 at least one activation passes: the *boundary* tensor, and others that
 * skip layers, as in a U-Net, or an encoder's output for every block of the decoder; inputs of the
 * data set and parameters are not boundaries.
 *
 * What an operator does is told by a *rule*, as in einsum: "bsh,hf->bsf" says that dimension 2 of
 * the first operand and dimension 0 of the second are one factor h. Cutting a factor over a mesh
 * axis cuts every dimension that carries it; cutting one that no result has leaves partial sums. A
 * dimension made of several factors is in parentheses, major first: "bs(nd)->bsnd" opens the heads.
 *
 * Ownership: names are copied. Threads: a finished graph is immutable.
 *
 * Names may be any text; what is no UTF-8 in them becomes '?'.
 *
 * @code
 *     // The product of a batch of data with a matrix, as a graph to train.
 *     xm_status_t build(ap_graph_t *graph)
 *     {
 *         const ap_shape_t data = {2, {1024, 512}}, weights = {2, {512, 512}};
 *         ap_op_params_t op = AP_OP_PARAMS_INIT;
 *         int *x = &op.operands[0], *w = &op.operands[1], h;
 *         xm_status_t status =
 *             ap_graph_add_tensor(graph, "x", AP_TENSOR_INPUT, &data, AP_DTYPE_F32, x);
 *
 *         if (status == XM_OK) {
 *             status = ap_graph_add_tensor(graph, "w", AP_TENSOR_PARAMETER, &weights,
 *                                          AP_DTYPE_F32, w);
 *         }
 *         op.kind = AP_OP_EINSUM;
 *         op.name = "h";
 *         op.rule = "bk,kn->bn";
 *         op.operand_count = 2;
 *         op.result_dtype = AP_DTYPE_F32;
 *         op.flops_per_point = 2;
 *         if (status == XM_OK) {
 *             status = ap_graph_add_op(graph, &op, &h);
 *         }
 *         if (status == XM_OK) {
 *             status = ap_graph_set_loss(graph, h, true);
 *         }
 *         return status == XM_OK ? ap_graph_finish(graph) : status;
 *     }
 * @endcode
 */
#ifndef AUTOPAR_GRAPH_H
#define AUTOPAR_GRAPH_H

#include <autopar/api.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    AP_MAX_RANK = 8,      /**< dimensions of a tensor */
    AP_MAX_MESH_RANK = 4, /**< axes of a logical mesh */
    AP_SPEC_TEXT = 48,    /**< bytes that the text of any sharding spec fits in */
    AP_MAX_OPERANDS = 4,
    AP_MAX_RESULTS = 3,
    AP_MAX_TERMS = AP_MAX_OPERANDS + AP_MAX_RESULTS
};

typedef struct ap_graph ap_graph_t;

/** Extents of a tensor, in elements. */
typedef struct ap_shape {
    int rank;
    int64_t dims[AP_MAX_RANK];
} ap_shape_t;

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

typedef enum ap_phase { AP_PHASE_FORWARD, AP_PHASE_BACKWARD, AP_PHASE_UPDATE } ap_phase_t;

/** How much of a term an operator touches; t + 1: no more bytes than term t has. */
enum { AP_TOUCHES_ALL = 0, AP_TOUCHES_NONE = -1 };

/** One operator to add. The result shapes follow from the rule. */
typedef struct ap_op_params {
    size_t struct_size;
    ap_op_kind_t kind;
    ap_phase_t phase;
    const char *name;  /**< results are called the same, with ".1", ".2" from the second on */
    const char *label; /**< where the model's author put it ("layers/3/attention"), or NULL */
    const char *rule;  /**< see above */
    /** Letters of factors that cannot be cut (what a softmax normalises), and of those that can at
     * the price of an exchange with a neighbour (a reversal); either may be NULL. */
    const char *replicated, *permuted;
    /** Sizes of factors that no operand's dimension tells: "n=32,d=64"; may be NULL. */
    const char *sizes;
    int operand_count;
    int operands[AP_MAX_OPERANDS]; /**< ids of tensors */
    ap_dtype_t result_dtype;
    double flops_per_point; /**< FLOPs per point of the iteration space; 2 for an einsum */
    double repeat;          /**< runs in one micro-batch; 0 = 1 */
    bool linear; /**< elementwise, custom: the derivative does not need the operands (add) */
    int forward; /**< forward operator this one is the backward of, or -1 */
    /** backward: the operand of `forward` that each result is the gradient of */
    int differentiates[AP_MAX_RESULTS];
    /**
     * Per term, operands first: AP_TOUCHES_ALL, AP_TOUCHES_NONE (the result takes its place), or
     * t + 1 for what is read or written in rows, as a table that is looked up. An embedding of two
     * operands that says nothing reads as much of the second as it returns.
     */
    int8_t touched[AP_MAX_TERMS];
} ap_op_params_t;

#define AP_OP_PARAMS_INIT                                                                          \
    {                                                                                              \
        sizeof(ap_op_params_t), AP_OP_EINSUM, AP_PHASE_FORWARD, NULL, NULL, NULL, NULL, NULL,      \
            NULL, 0, {0, 0, 0, 0}, AP_DTYPE_F16, 0, 0, false, -1, {0, 0, 0},                       \
        {                                                                                          \
            0, 0, 0, 0, 0, 0, 0                                                                    \
        }                                                                                          \
    }

/** An empty graph; ap_graph_destroy() ends it. */
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
 * ascend from 0 without a gap, a cut that no activation crosses, a graph
 * without operators.
 */
XM_API xm_status_t ap_graph_finish(ap_graph_t *graph);

XM_API const char *ap_graph_name(const ap_graph_t *graph);
XM_API int ap_graph_tensors(const ap_graph_t *graph);
XM_API int ap_graph_ops(const ap_graph_t *graph);
XM_API int ap_graph_layers(const ap_graph_t *graph);
/** Number of trained parameters (elements). */
XM_API double ap_graph_parameters(const ap_graph_t *graph);

/** NULL is accepted. */
XM_API void ap_graph_destroy(ap_graph_t *graph);

enum { AP_LAYERING_AUTOMATIC = -1 };

/**
 * How a forward graph gets its layers, which pipeline stages are made of. Layers begin where one
 * tensor passes, and where that leaves more than half of the work in one part, also where several
 * do. Where of these they begin is told (marks, a pattern, anywhere that tensors pass), or found: a
 * number of layers of nearly equal FLOPs, or automatically, so that repeated blocks become layers.
 */
typedef struct ap_layering {
    size_t struct_size;
    int layers; /**< wanted; AP_LAYERING_AUTOMATIC, or 0: the same unless a file has its own */
    /** POSIX extended regular expression, or NULL: a layer begins with the first operator whose
     *  label (or name) matches with a new text in the first group (or as a whole), as
     *  "layers[./_]([0-9]+)". */
    const char *pattern;
    /** Names or labels of operators that layers begin with; NULL: none are given. */
    const char *const *marks;
    size_t mark_count;
    bool one_tensor; /**< only where one tensor passes, for those who move no more */
} ap_layering_t;

#define AP_LAYERING_INIT                                                                           \
    {                                                                                              \
        sizeof(ap_layering_t), 0, NULL, NULL, 0, false                                             \
    }

/**
 * Makes a finished graph with layers of a finished forward graph that names its loss; layers that
 * it has are forgotten. XM_ERR_NO_SOLUTION: the model has fewer places to cut, or a mark stands
 * where no tensor passes, or not one if that is asked for; XM_ERR_INVALID_ARGUMENT: a pattern that
 * is none, a mark of no operator.
 */
XM_API xm_status_t ap_graph_make_layers(const ap_graph_t *forward, const ap_layering_t *how,
                                        ap_graph_t **layered);

#ifdef __cplusplus
}
#endif

#endif
