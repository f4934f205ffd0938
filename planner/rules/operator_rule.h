/**
 * @file planner/rules/operator_rule.h
 * Building the sharding rule of one operator, dimension by dimension, for all front ends.
 *
 * A rule is filled in over all operands and results; what does not fit into the graph's rules
 * (more than 4 operands, 8 factors) is found out at the end, when those operands that need no data
 * (constants, iotas) have been left out.
 */
#ifndef AP_PLANNER_RULES_OPERATOR_RULE_H
#define AP_PLANNER_RULES_OPERATOR_RULE_H

#include "planner/rules/operand_type.h"

enum {
    HLO_MAX_OPERANDS = 16, /**< that carry a rule; more are opaque */
    HLO_MAX_TERMS = 2 * HLO_MAX_OPERANDS,
    HLO_MAX_FACTORS = 64,
    HLO_FREE_OPERAND = -1 /**< in the list of tensors: needs no data */
};

typedef struct hlo_factor {
    int64_t size;
    bool whole;    /**< must not be cut */
    bool permuted; /**< cutting exchanges shards */
} hlo_factor_t;

typedef struct hlo_rule_dim {
    int count;
    int factor[AP_MAX_RANK];
} hlo_rule_dim_t;

typedef struct hlo_rule {
    const char *place; /**< in front of sentences; NULL: the front end puts it there */
    ap_op_kind_t kind;
    bool linear;
    double flops;
    int operands, results;
    const operand_type_t *type[HLO_MAX_TERMS]; /**< operands, then results */
    hlo_rule_dim_t dim[HLO_MAX_TERMS][AP_MAX_RANK];
    bool ignored[HLO_MAX_TERMS];   /**< operands that are scalars beside the point */
    int8_t touched[HLO_MAX_TERMS]; /**< as ap_op_params_t has it */
    bool in_place; /**< the result is written where operand 0 is, if that has data */
    int factors;
    hlo_factor_t factor[HLO_MAX_FACTORS];
    bool opaque;        /**< too large to write down: everything whole */
    bool refused;       /**< hlo_rule_fail() made `status`; without a place its text lacks one */
    xm_status_t status; /**< first failure */
} hlo_rule_t;

/** The text form that ap_graph_add_op() takes. */
typedef struct hlo_rule_text {
    char text[AP_RULE_TEXT], replicated[AP_MAX_FACTORS + 1], permuted[AP_MAX_FACTORS + 1];
    char sizes[AP_MAX_FACTORS * 24];
    int operands[AP_MAX_OPERANDS]; /**< tensors */
    int operand_count;
    int8_t touched[AP_MAX_TERMS]; /**< per written term */
} hlo_rule_text_t;

/** A new factor. */
int hlo_rule_factor(hlo_rule_t *rule, int64_t size);
int hlo_rule_whole(hlo_rule_t *rule, int64_t size);

/** Puts a factor into a dimension that it fills; a dimension of another size is an error. */
void hlo_rule_put(hlo_rule_t *rule, int term, int dim, int factor);
/** Adds a factor to a compound dimension, major first. */
void hlo_rule_append(hlo_rule_t *rule, int term, int dim, int factor);
/** A new factor in dimension @p dim of @p term; returns it. */
int hlo_rule_open(hlo_rule_t *rule, int term, int dim);
/** Gives every dimension that has no factor yet a whole one. */
void hlo_rule_close(hlo_rule_t *rule);
/** The whole rule of a reshape: the dimensions that are kept, and the major part of those that are
 * merged or split. */
void hlo_rule_reshape(hlo_rule_t *rule);
/** Requires that a term has @p rank dimensions. */
bool hlo_rule_rank(hlo_rule_t *rule, int term, int rank);
/** Notes a failure, the rule's place in front of its sentence. */
void hlo_rule_fail(hlo_rule_t *rule, const char *format, ...) XM_PRINTF(2, 3);

/**
 * Writes the rule for the operands that have data (@p tensors, HLO_FREE_OPERAND for the others).
 * False when it does not fit.
 */
bool hlo_rule_write(const hlo_rule_t *rule, const int *tensors, hlo_rule_text_t *text);

/**
 * The written rule as parameters of a graph's operator, all but its name, label, phase and repeat;
 * the strings are those of @p text.
 */
ap_op_params_t hlo_rule_params(const hlo_rule_t *rule, const hlo_rule_text_t *text);

/** The rule of an operator that needs all of everything: a factor per dimension, all whole. */
void hlo_rule_make_opaque(hlo_rule_t *rule);

#endif
