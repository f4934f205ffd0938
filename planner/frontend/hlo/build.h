/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/frontend/hlo/build.h
 * From an HLO module to operators of a graph: values, and what makes them.
 */
#pragma once

#include "planner/frontend/common.h"
#include "planner/frontend/hlo/attribute.h"
#include "planner/rules.h"
#include "planner/frontend/hlo/source.h"

typedef enum hlo_value_kind {
    HLO_VALUE_FREE, /**< every device can make any part of it by itself */
    HLO_VALUE_TENSOR,
    HLO_VALUE_TUPLE
} hlo_value_kind_t;

typedef struct hlo_value hlo_value_t;

struct hlo_value {
    hlo_value_kind_t kind;
    const operand_type_t *type;
    int tensor;
    bool known; /**< a free integer whose value is `number` */
    int64_t number;
    int count;
    hlo_value_t **elements;
};

typedef struct hlo_build {
    hlo_module_t *module;
    ap_graph_t *graph;
    ap_frontend_notes_t *notes;
    hlo_source_t *source;             /**< which the notes keep */
    double repeat;                    /**< runs of what is being built */
    bool dry;                         /**< find out what needs data, build nothing */
    int depth;                        /**< of calls */
    int context;                      /**< that is being built, see planner/frontend/hlo/source.h */
    int noted_ops;                    /**< operators of the graph that belong to a instance */
    const hlo_instruction_t *calling; /**< NULL: the entry */
    int64_t work;                     /**< instructions looked at */
} hlo_build_t;

/** Evaluates a computation; @p at is the caller, for sentences. */
xm_status_t hlo_build_computation(hlo_build_t *b, int computation, hlo_value_t *const *arguments,
                                  int count, size_t at, hlo_value_t **result);

/** A loop and a conditional; @p operands are the instruction's, which stands in @p in. */
xm_status_t hlo_build_while(hlo_build_t *b, const hlo_computation_t *in,
                            const hlo_instruction_t *of, hlo_value_t *init, hlo_value_t **result);
xm_status_t hlo_build_conditional(hlo_build_t *b, const hlo_instruction_t *of,
                                  hlo_value_t *const *operands, hlo_value_t **result);

/** Demands of a tensor what the instruction's annotation says, if it has one. */
xm_status_t hlo_build_demand(hlo_build_t *b, const hlo_instruction_t *of, int tensor);

/** Counts an operator without a rule. */
xm_status_t hlo_build_note(hlo_build_t *b, const char *prefix, hlo_slice_t name);

/** A value of a type: free, or a tuple of free values. NULL without memory. */
hlo_value_t *hlo_value_free(hlo_build_t *b, const operand_type_t *type);
hlo_value_t *hlo_value_tensor(hlo_build_t *b, const operand_type_t *type, int tensor);
/** Array leaves of a value, in order; writes at most @p room of them and returns their number. */
int hlo_value_leaves(hlo_value_t *value, hlo_value_t **leaves, int room);

/** Adds the operator of an instruction by its rule; @p tensors per operand. Writes one tensor per
 * result. */
xm_status_t hlo_emit(hlo_build_t *b, const hlo_instruction_t *of, operator_rule_t *rule,
                     const int *tensors, int *results);
/** An operator that needs all of its operands everywhere; any number of operands and results. */
xm_status_t hlo_emit_opaque(hlo_build_t *b, const hlo_instruction_t *of,
                            const operand_type_t **types, const int *tensors, int operands,
                            const operand_type_t **made, int results, int *ids);
/** An elementwise operator over one or two tensors of one type: a copy, a choice; @p passes_on: it
 * moves nothing, as the state of a loop. */
xm_status_t hlo_emit_alike(hlo_build_t *b, const hlo_instruction_t *of, const operand_type_t *type,
                           const int *tensors, int operands, bool passes_on, int *result);

xm_status_t hlo_no_memory(void);
