/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file sharding_rule.h
 * How the dimensions of an operator's operands and results hang together.
 *
 * A rule names *factors* by letters, as in einsum: "bsh,hf->bsf" says that dimension 2 of the first
 * operand and dimension 0 of the second are one factor h; beyond z there are a1, b1, …. Cutting a
 * factor over a mesh axis cuts every dimension that carries it. Terms are numbered operands first,
 * then results. The kinds of factors are those of Shardy's sharding rules:
 *
 *  - pass-through: in every result; cutting it needs no communication;
 *  - reduction: missing from a result that sums over it; cutting it leaves partial sums;
 *  - need-replication: cannot be cut (the dimension a softmax normalises);
 *  - permutation: can be cut at the price of exchanging whole shards with a neighbour (a reversal).
 *
 * A dimension made of several factors is written in parentheses, major first: "bs(nd)->bsnd" is the
 * reshape that opens the heads. Only the major factor of such a dimension can be cut there.
 *
 * One rule type serves every operator, of any number of operands and results: strategies
 * (strategy.h), collectives and the backward operators (training.h) all come from it. Threads:
 * values, no shared state.
 */
#pragma once

#include <autopar/graph.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/base.h"
#include "planner/graph/spec.h"

enum {
    AP_MAX_DIM_FACTORS = 3, /**< factors in one dimension */
    AP_FACTOR_TEXT = 16     /**< bytes that the name of any factor fits in */
};

typedef enum ap_factor_kind {
    AP_FACTOR_PASS_THROUGH,
    AP_FACTOR_REDUCTION,
    AP_FACTOR_NEED_REPLICATION,
    AP_FACTOR_PERMUTATION
} ap_factor_kind_t;

typedef struct ap_factor {
    char letter;
    int number; /**< behind the letter; 0: none */
    ap_factor_kind_t kind;
    int64_t size;
} ap_factor_t;

/** A term's dimension: its factors, major first, as indices into the rule's factors. */
typedef struct ap_rule_dim {
    int count;
    uint16_t factor[AP_MAX_DIM_FACTORS];
} ap_rule_dim_t;

/** Owns what it points at; ap_sharding_rule_destroy() frees it. */
typedef struct ap_sharding_rule {
    char *text;
    int factors, operands, results;
    ap_factor_t *factor;
    int *rank;                         /**< operands, then results */
    ap_rule_dim_t (*dim)[AP_MAX_RANK]; /**< likewise */
} ap_sharding_rule_t;

/**
 * Reads @p text and takes the factor sizes from the operands' shapes; factors that no operand
 * dimension of their own tells come from @p sizes, e.g. "n=32,d=64" (may be NULL). Letters in
 * @p replicated are need-replication factors, those in @p permuted permutation factors (either may
 * be NULL). Refused with the operand and dimension in the sentence: text that does not parse,
 * ranks or sizes that disagree, a factor without a size.
 */
xm_status_t ap_sharding_rule_create(const char *text, const char *replicated, const char *permuted,
                                    const char *sizes, const ap_shape_t *operands,
                                    int operand_count, ap_sharding_rule_t *rule);

/** Room for a rule of so many terms and factors, to be filled in; ap_sharding_rule_close() then
 * gives factors without a letter theirs, finds the kinds of those that pass or reduce, and writes
 * the text. It frees the rule where it fails. */
xm_status_t ap_sharding_rule_open(int operands, int results, int factors, ap_sharding_rule_t *rule);
xm_status_t ap_sharding_rule_close(ap_sharding_rule_t *rule);

/** The rule over some terms of another, in this order, operands first; its factors keep their names
 * and sizes, and whether they can be cut. How rules of backward operators are made. */
xm_status_t ap_sharding_rule_pick(const ap_sharding_rule_t *from, const int *terms, int operands,
                                  int results, ap_sharding_rule_t *rule);

xm_status_t ap_sharding_rule_copy(const ap_sharding_rule_t *from, ap_sharding_rule_t *rule);
void ap_sharding_rule_destroy(ap_sharding_rule_t *rule);

/** Index of the factor called @p letter, with this number behind it, or -1. */
int ap_sharding_rule_factor(const ap_sharding_rule_t *rule, char letter, int number);
/** Its name, of at most AP_FACTOR_TEXT bytes. */
char *ap_factor_name(const ap_factor_t *factor, char *buffer, size_t size);

/** Shape of a term (operands first). */
ap_shape_t ap_sharding_rule_shape(const ap_sharding_rule_t *rule, int term);

/** True when @p term carries @p factor in one of its dimensions. */
bool ap_sharding_rule_carries(const ap_sharding_rule_t *rule, int term, int factor);

/** Product of all factor sizes: the points of the operator's iteration space. */
double ap_sharding_rule_points(const ap_sharding_rule_t *rule);
