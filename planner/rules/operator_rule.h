/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/rules/operator_rule.h
 * Building the sharding rule of one operator, dimension by dimension, for all front ends.
 *
 * A rule is filled in over all operands and results, of any number; operands that need no data
 * (constants, iotas) are left out at the end, when it is added to a graph.
 */
#pragma once

#include "planner/rules/operand_type.h"

enum { OPERATOR_NO_TENSOR = -1 /**< in the list of tensors: needs no data */ };

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
    const operand_type_t **type; /**< operands, then results; so are the three lists after it */
    operator_rule_dim_t (*dim)[AP_MAX_RANK];
    bool *ignored; /**< operands that are scalars beside the point */
    int *touched;  /**< as ap_op_params_t has it */
    int term_room;
    bool in_place; /**< the result is written where operand 0 is, if that has data */
    int factors, factor_room;
    operator_factor_t *factor;
    bool opaque;  /**< a dimension of too many factors: everything whole */
    bool refused; /**< operator_rule_fail() made `status`; without a place its text lacks one */
    xm_status_t status; /**< first failure */
} operator_rule_t;

/** Makes room for an empty rule of so many terms, which may grow; operator_rule_end() frees it.
 * Without memory the rule has failed and has no terms. */
void operator_rule_begin(operator_rule_t *rule, int operands, int results);
/** Room for more terms; false, and the rule has failed, without memory. */
bool operator_rule_room(operator_rule_t *rule, int terms);
void operator_rule_end(operator_rule_t *rule);

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

/** Whether a graph's rule can say it: no dimension has too many factors. */
bool operator_rule_fits(const operator_rule_t *rule);

/**
 * Adds the operator to a graph, by a rule over the operands that have data (@p tensors,
 * OPERATOR_NO_TENSOR for the others), one at least. @p params has name, label, phase and repeat;
 * kind, FLOPs and all about operands are the rule's. Writes a tensor per result.
 */
xm_status_t operator_rule_add(const operator_rule_t *rule, const int *tensors,
                              ap_op_params_t *params, ap_graph_t *graph, int *results);

/** The rule of an operator that needs all of everything: a factor per dimension, all whole. */
void operator_rule_make_opaque(operator_rule_t *rule);
