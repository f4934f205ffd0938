/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file sharding_rule.h
 * How the dimensions of an operator's operands and results hang together.
 *
 * A rule names *factors* by letters, as in einsum: "bsh,hf->bsf" says that dimension 2 of the first
 * operand and dimension 0 of the second are one factor h. Cutting a factor over a mesh axis cuts
 * every dimension that carries it. Terms are numbered operands first, then results. The kinds of
 * factors are those of Shardy's sharding rules:
 *
 *  - pass-through: in every result; cutting it needs no communication;
 *  - reduction: missing from a result that sums over it; cutting it leaves partial sums;
 *  - need-replication: cannot be cut (the dimension a softmax normalises);
 *  - permutation: can be cut at the price of exchanging whole shards with a neighbour (a reversal).
 *
 * A dimension made of several factors is written in parentheses, major first: "bs(nd)->bsnd" is the
 * reshape that opens the heads. Only the major factor of such a dimension can be cut there.
 *
 * One rule type serves every operator: strategies (strategy.h), collectives and the backward
 * operators (training.h) all come from it. Threads: values, no shared state.
 */
#pragma once

#include <autopar/graph.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/base.h"
#include "planner/graph/spec.h"

enum {
    AP_MAX_FACTORS = 8,
    AP_MAX_DIM_FACTORS = 3, /**< factors in one dimension */
    AP_RULE_TEXT = 96       /**< bytes that the text of any rule fits in */
};

typedef enum ap_factor_kind {
    AP_FACTOR_PASS_THROUGH,
    AP_FACTOR_REDUCTION,
    AP_FACTOR_NEED_REPLICATION,
    AP_FACTOR_PERMUTATION
} ap_factor_kind_t;

typedef struct ap_factor {
    char letter;
    ap_factor_kind_t kind;
    int64_t size;
} ap_factor_t;

/** A term's dimension: its factors, major first, as indices into the rule's factors. */
typedef struct ap_rule_dim {
    int count;
    uint8_t factor[AP_MAX_DIM_FACTORS];
} ap_rule_dim_t;

typedef struct ap_sharding_rule {
    char text[AP_RULE_TEXT];
    int factors;
    ap_factor_t factor[AP_MAX_FACTORS];
    int operands, results;
    int rank[AP_MAX_TERMS]; /**< operands, then results */
    ap_rule_dim_t dim[AP_MAX_TERMS][AP_MAX_RANK];
} ap_sharding_rule_t;

/**
 * Reads @p text and takes the factor sizes from the operands' shapes; factors that no operand
 * dimension of their own tells come from @p sizes, e.g. "n=32,d=64" (may be NULL). Letters in
 * @p replicated are need-replication factors, those in @p permuted permutation factors (either may
 * be NULL). Refused with the operand and dimension in the sentence: text that does not parse, too
 * many terms or factors, ranks or sizes that disagree, a factor without a size.
 */
xm_status_t ap_sharding_rule_create(const char *text, const char *replicated, const char *permuted,
                                    const char *sizes, const ap_shape_t *operands,
                                    int operand_count, ap_sharding_rule_t *rule);

/** Index of the factor called @p letter, or -1. */
int ap_sharding_rule_factor(const ap_sharding_rule_t *rule, char letter);

/** Shape of a term (operands first). */
ap_shape_t ap_sharding_rule_shape(const ap_sharding_rule_t *rule, int term);

/** True when @p term carries @p factor in one of its dimensions. */
bool ap_sharding_rule_carries(const ap_sharding_rule_t *rule, int term, int factor);

/** Product of all factor sizes: the points of the operator's iteration space. */
double ap_sharding_rule_points(const ap_sharding_rule_t *rule);

/**
 * Letters of a term as they stand in the text, e.g. "bsh" or "bs(nd)"; for deriving the rule of a
 * backward operator. @p buffer of AP_RULE_TEXT bytes; returned.
 */
char *ap_sharding_rule_term(const ap_sharding_rule_t *rule, int term, char *buffer, size_t size);
