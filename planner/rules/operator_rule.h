/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/rules/operator_rule.h
 * Building the sharding rule of one operator, dimension by dimension, for all front ends.
 *
 * A rule is filled in over all operands and results; what does not fit into the graph's rules
 * (more than 4 operands, 8 factors) is found out at the end, when those operands that need no data
 * (constants, iotas) have been left out.
 */
#pragma once

#include "planner/rules/operand_type.h"

enum {
    OPERATOR_MAX_OPERANDS = 16, /**< that carry a rule; more are opaque */
    OPERATOR_MAX_TERMS = 2 * OPERATOR_MAX_OPERANDS,
    OPERATOR_MAX_FACTORS = 64,
    OPERATOR_NO_TENSOR = -1 /**< in the list of tensors: needs no data */
};

typedef struct operator_factor {
    int64_t size;
    bool whole;    /**< must not be cut */
    bool permuted; /**< cutting exchanges shards */
} operator_factor_t;

typedef struct operator_rule_dim {
    int count;
    int factor[AP_MAX_RANK];
} operator_rule_dim_t;

typedef struct operator_rule {
    const char *place; /**< in front of sentences; NULL: the front end puts it there */
    ap_op_kind_t kind;
    bool linear;
    double flops;
    int operands, results;
    const operand_type_t *type[OPERATOR_MAX_TERMS]; /**< operands, then results */
    operator_rule_dim_t dim[OPERATOR_MAX_TERMS][AP_MAX_RANK];
    bool ignored[OPERATOR_MAX_TERMS];   /**< operands that are scalars beside the point */
    int8_t touched[OPERATOR_MAX_TERMS]; /**< as ap_op_params_t has it */
    bool in_place; /**< the result is written where operand 0 is, if that has data */
    int factors;
    operator_factor_t factor[OPERATOR_MAX_FACTORS];
    bool opaque;  /**< too large to write down: everything whole */
    bool refused; /**< operator_rule_fail() made `status`; without a place its text lacks one */
    xm_status_t status; /**< first failure */
} operator_rule_t;

/** The text form that ap_graph_add_op() takes. */
typedef struct operator_rule_text {
    char text[AP_RULE_TEXT], replicated[AP_MAX_FACTORS + 1], permuted[AP_MAX_FACTORS + 1];
    char sizes[AP_MAX_FACTORS * 24];
    int operands[AP_MAX_OPERANDS]; /**< tensors */
    int operand_count;
    int8_t touched[AP_MAX_TERMS]; /**< per written term */
} operator_rule_text_t;

/** A new factor. */
int operator_rule_factor(operator_rule_t *rule, int64_t size);
int operator_rule_whole(operator_rule_t *rule, int64_t size);

/** Puts a factor into a dimension that it fills; a dimension of another size is an error. */
void operator_rule_put(operator_rule_t *rule, int term, int dim, int factor);
/** Adds a factor to a compound dimension, major first. */
void operator_rule_append(operator_rule_t *rule, int term, int dim, int factor);
/** A new factor in dimension @p dim of @p term; returns it. */
int operator_rule_open(operator_rule_t *rule, int term, int dim);
/** Opens a factor for each dimension of @p term that is not @p whole, and puts it into all other
 * terms, which must have as many dimensions. */
void operator_rule_share(operator_rule_t *rule, int term, const bool *whole);
/** Gives every dimension that has no factor yet a whole one. */
void operator_rule_close(operator_rule_t *rule);
/** The whole rule of a reshape: the dimensions that are kept, and the major part of those that are
 * merged or split. */
void operator_rule_reshape(operator_rule_t *rule);
/** Requires that a term has @p rank dimensions. */
bool operator_rule_rank(operator_rule_t *rule, int term, int rank);
/** Notes a failure, the rule's place in front of its sentence. */
void operator_rule_fail(operator_rule_t *rule, const char *format, ...) XM_PRINTF(2, 3);

/**
 * Writes the rule for the operands that have data (@p tensors, OPERATOR_NO_TENSOR for the others).
 * False when it does not fit.
 */
bool operator_rule_write(const operator_rule_t *rule, const int *tensors,
                         operator_rule_text_t *text);

/**
 * The written rule as parameters of a graph's operator, all but its name, label, phase and repeat;
 * the strings are those of @p text.
 */
ap_op_params_t operator_rule_params(const operator_rule_t *rule, const operator_rule_text_t *text);

/** The rule of an operator that needs all of everything: a factor per dimension, all whole. */
void operator_rule_make_opaque(operator_rule_t *rule);
