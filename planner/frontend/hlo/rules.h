/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/frontend/hlo/rules.h
 * The sharding rule of each HLO operator.
 *
 * | operators | dimensions that can be cut |
 * |--|--|
 * | elementwise, broadcast, transpose, iota, select | all |
 * | reshape | those kept, and the major part of those merged or split |
 * | dot, convolution | batch, features, contracted ones (partial sums); never spatial ones |
 * | reduce | all; reduced ones leave partial results, unless the reduction is not a plain one |
 * | slice, pad, concatenate, dynamic slices, reduce-window, sort, fft | those left untouched |
 * | gather, scatter | indices, window dimensions taken whole, and the indexed ones (masked) |
 */
#pragma once

#include "planner/frontend/hlo/attribute.h"
#include "planner/rules.h"

/** A rule being filled in, and the instruction whose it is. */
typedef struct hlo_operator {
    operator_rule_t rule; /**< first: see hlo_operator() */
    const hlo_module_t *module;
    const hlo_instruction_t *of;
} hlo_operator_t;

/** The operator that a rule of hlo_rules_make() is part of. */
static inline const hlo_operator_t *hlo_operator(const operator_rule_t *rule)
{
    return (const hlo_operator_t *)rule;
}

/** Dimensions of a term of a rule, and the size of one. */
static inline int hlo_rank(const operator_rule_t *rule, int term)
{
    return rule->type[term]->shape.rank;
}

static inline int64_t hlo_extent(const operator_rule_t *rule, int term, int dim)
{
    return rule->type[term]->shape.dims[dim];
}

/**
 * Fills in the rule of an operator that computes. @p known is false when there is no rule for it
 * (then the rule is the opaque one). Refused: shapes that do not go together. The caller ends the
 * rule in any case.
 */
xm_status_t hlo_rules_make(const hlo_module_t *module, const hlo_computation_t *in,
                           const hlo_instruction_t *of, hlo_operator_t *made, bool *known);

/** What XLA makes of an operator's result (planner/frontend/hlo/fusion.c). */
ap_fusion_t hlo_fusion(hlo_slice_t opcode);

/** Operators with a rule of more than a few lines, for planner/frontend/hlo/rules.c. */
void hlo_rules_dot(operator_rule_t *rule);
void hlo_rules_convolution(operator_rule_t *rule);
void hlo_rules_gather(operator_rule_t *rule);
void hlo_rules_scatter(operator_rule_t *rule);
/** Opcode of the root of the computation that to_apply names, e.g. "add". */
hlo_slice_t hlo_rules_combiner(operator_rule_t *rule);
/** A number, and a window, of an attribute; a failure is noted in the rule. */
int64_t hlo_rules_number(operator_rule_t *rule, const char *key, int64_t otherwise);
hlo_window_t hlo_rules_window(operator_rule_t *rule);
/** A list of dimensions, each once and below @p limit; below 0: of any numbers. */
hlo_list_t hlo_rules_dims(operator_rule_t *rule, const char *key, int limit);
