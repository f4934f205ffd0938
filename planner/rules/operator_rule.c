/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Builds the rule of one operator dimension by dimension, then makes the rule of a graph's operator
 * of it. Front ends fill in rules over all operands; which of them hold data is known at the end.
 * What a graph's rule cannot say becomes opaque: correct for any operator, but never cut.
 */

#include "planner/rules/operator_rule.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The first failure is kept, because later ones usually follow from it. */
void operator_rule_fail(operator_rule_t *rule, const char *format, ...)
{
    va_list arguments;

    if (rule->status != XM_OK) {
        return;
    }
    va_start(arguments, format);
    rule->status = xm_error_set_list(XM_ERR_PARSE, format, arguments);
    va_end(arguments);
    rule->refused = true;
    if (rule->place != NULL) {
        rule->status = xm_error_prefix(XM_ERR_PARSE, "%s", rule->place);
    }
}

static void note_no_memory(operator_rule_t *rule)
{
    XM_THEN(rule->status, XM_NO_MEMORY("the rule of an operator"));
}

/* Grows one list; what is new is zero. */
static bool grow(void **list, int from, int to, size_t size)
{
    char *grown = realloc(*list, (size_t)to * size);

    if (grown == NULL) {
        return false;
    }
    memset(grown + (size_t)from * size, 0, (size_t)(to - from) * size);
    *list = grown;
    return true;
}

bool operator_rule_room(operator_rule_t *rule, int terms)
{
    int from = rule->term_room;

    if (terms <= from) {
        return true;
    }
    if (!grow((void **)&rule->type, from, terms, sizeof(*rule->type)) ||
        !grow((void **)&rule->dim, from, terms, sizeof(*rule->dim)) ||
        !grow((void **)&rule->ignored, from, terms, sizeof(*rule->ignored)) ||
        !grow((void **)&rule->touched, from, terms, sizeof(*rule->touched))) {
        note_no_memory(rule);
        return false;
    }
    rule->term_room = terms;
    return true;
}

/* There is always room for a first factor, so that a failed rule can be filled in to the end. */
void operator_rule_begin(operator_rule_t *rule, int operands, int results)
{
    enum { FACTORS = 16 };

    *rule = (operator_rule_t){.kind = AP_OP_ELEMENTWISE};
    if (operator_rule_room(rule, operands + results + 1) &&
        grow((void **)&rule->factor, 0, FACTORS, sizeof(*rule->factor))) {
        rule->factor_room = FACTORS;
        rule->operands = operands;
        rule->results = results;
    } else {
        note_no_memory(rule);
    }
}

void operator_rule_end(operator_rule_t *rule)
{
    free(rule->type);
    free(rule->dim);
    free(rule->ignored);
    free(rule->touched);
    free(rule->factor);
    *rule = (operator_rule_t){.status = rule->status};
}

int operator_rule_factor(operator_rule_t *rule, int64_t size)
{
    if (rule->factors == rule->factor_room) {
        if (!grow((void **)&rule->factor, rule->factors, 2 * rule->factors,
                  sizeof(*rule->factor))) {
            note_no_memory(rule);
            return 0;
        }
        rule->factor_room = 2 * rule->factors;
    }
    rule->factor[rule->factors] = (operator_factor_t){.size = size};
    return rule->factors++;
}

int operator_rule_whole(operator_rule_t *rule, int64_t size)
{
    int factor = operator_rule_factor(rule, size);

    rule->factor[factor].whole = true;
    return factor;
}

static void term_name(const operator_rule_t *rule, int term, char *name, size_t size)
{
    if (term < rule->operands) {
        (void)snprintf(name, size, "operand %d", term);
    } else {
        (void)snprintf(name, size, rule->results == 1 ? "the result" : "result %d",
                       term - rule->operands);
    }
}

bool operator_rule_rank(operator_rule_t *rule, int term, int rank)
{
    char name[32];

    if (rule->status != XM_OK) {
        return false;
    }
    term_name(rule, term, name, sizeof(name));
    if (rule->type[term]->tuple) {
        operator_rule_fail(rule, "%s is a tuple", name);
        return false;
    }
    if (rule->type[term]->shape.rank != rank) {
        operator_rule_fail(rule, "%s has %d dimensions, %d are expected", name,
                           rule->type[term]->shape.rank, rank);
        return false;
    }
    return true;
}

/* Unlike operator_rule_put() this does not compare sizes: the parts of a compound dimension fill it
 * together. */
void operator_rule_append(operator_rule_t *rule, int term, int dim, int factor)
{
    operator_rule_dim_t *at = &rule->dim[term][dim];

    if (at->count == AP_MAX_RANK) {
        rule->opaque = true;
        return;
    }
    at->factor[at->count++] = factor;
}

void operator_rule_put(operator_rule_t *rule, int term, int dim, int factor)
{
    int64_t extent, size = rule->factor[factor].size;
    char name[32];

    if (rule->status != XM_OK || rule->opaque) {
        return;
    }
    term_name(rule, term, name, sizeof(name));
    if (rule->type[term]->tuple || dim < 0 || dim >= rule->type[term]->shape.rank) {
        operator_rule_fail(rule, "%s has no dimension %d", name, dim);
        return;
    }
    extent = rule->type[term]->shape.dims[dim];
    if (extent != size) {
        operator_rule_fail(rule, "dimension %d of %s is %" PRId64 ", %" PRId64 " is expected", dim,
                           name, extent, size);
        return;
    }
    rule->dim[term][dim].count = 1;
    rule->dim[term][dim].factor[0] = factor;
}

int operator_rule_open(operator_rule_t *rule, int term, int dim)
{
    int64_t size = 1;
    int factor;

    if (!rule->type[term]->tuple && dim >= 0 && dim < rule->type[term]->shape.rank) {
        size = rule->type[term]->shape.dims[dim];
    }
    factor = operator_rule_factor(rule, size);
    operator_rule_put(rule, term, dim, factor);
    return factor;
}

void operator_rule_share(operator_rule_t *rule, int term, const bool *whole)
{
    int rank = rule->type[term]->shape.rank;

    for (int d = 0; d < rank; ++d) {
        int factor = whole[d] ? -1 : operator_rule_open(rule, term, d);

        for (int t = 0; t < rule->operands + rule->results && factor >= 0; ++t) {
            if (t != term && operator_rule_rank(rule, t, rank)) {
                operator_rule_put(rule, t, d, factor);
            }
        }
    }
}

/* Whatever no rule has claimed must not be cut. */
void operator_rule_close(operator_rule_t *rule)
{
    for (int t = 0; t < rule->operands + rule->results; ++t) {
        for (int d = 0; d < rule->type[t]->shape.rank && !rule->ignored[t]; ++d) {
            if (rule->dim[t][d].count == 0) {
                int64_t extent = rule->type[t]->shape.dims[d];

                operator_rule_put(rule, t, d, operator_rule_whole(rule, extent));
            }
        }
    }
}

static int rank_of(const operator_rule_t *rule, int term)
{
    return rule->type[term]->shape.rank;
}

static int64_t extent_of(const operator_rule_t *rule, int term, int dim)
{
    return rule->type[term]->shape.dims[dim];
}

/* Cuts dimensions from[0] … of the operand and from[1] … of the result, whose products are equal,
 * into common pieces at every place where either has a border: [6,4] and [2,12] meet at 2, 3 and 4.
 * Where a border does not divide, the pieces so far are undone and false is returned; these
 * dimensions then stay whole. */
static bool refine(operator_rule_t *rule, const int *from, const int *to)
{
    int dim[2] = {from[0], from[1]};
    int64_t left[2] = {1, 1};
    int first_factor = rule->factors;

    for (int side = 0; side < 2; ++side) {
        left[side] = dim[side] < to[side] ? extent_of(rule, side, dim[side]) : 1;
    }
    while (dim[0] < to[0] && dim[1] < to[1]) {
        int64_t piece = left[0] < left[1] ? left[0] : left[1];
        int factor;

        if (left[0] % piece != 0 || left[1] % piece != 0) {
            break;
        }
        factor = operator_rule_factor(rule, piece);
        for (int side = 0; side < 2; ++side) {
            operator_rule_append(rule, side, dim[side], factor);
            left[side] /= piece;
            /* A used-up dimension is left behind together with dimensions of 1 after it, which get
             * a factor of their own. */
            while (left[side] == 1 && dim[side] < to[side]) {
                ++dim[side];
                left[side] = dim[side] < to[side] ? extent_of(rule, side, dim[side]) : 1;
                if (left[side] == 1 && dim[side] < to[side]) {
                    operator_rule_append(rule, side, dim[side], operator_rule_factor(rule, 1));
                }
            }
        }
    }
    if (dim[0] < to[0] || dim[1] < to[1]) {
        rule->factors = first_factor;
        for (int side = 0; side < 2; ++side) {
            for (int d = from[side]; d < to[side]; ++d) {
                rule->dim[side][d].count = 0;
            }
        }
        return false;
    }
    return true;
}

/* A reshape keeps dimensions apart that can be told apart: it is divided into the smallest runs
 * with equal products, and each run is refined by itself. Only the major piece of a merged or split
 * dimension can be cut later (strategy.h), because the elements of minor ones lie scattered. */
void operator_rule_reshape(operator_rule_t *rule)
{
    int from[2] = {0, 0}, to[2];

    rule->kind = AP_OP_RESHAPE;
    if (rule->operands != 1) {
        return;
    }
    if (operand_type_elements(rule->type[0]) != operand_type_elements(rule->type[1])) {
        operator_rule_fail(rule, "%.0f elements do not make %.0f",
                           operand_type_elements(rule->type[0]),
                           operand_type_elements(rule->type[1]));
        return;
    }
    if (rule->type[0]->empty || rule->type[1]->empty) {
        return;
    }
    /* Smallest runs of dimensions with equal products; a dimension of 1 stands alone. */
    while (rule->status == XM_OK && !rule->opaque) {
        int64_t product[2] = {1, 1};

        for (int side = 0; side < 2; ++side) {
            while (from[side] < rank_of(rule, side) && extent_of(rule, side, from[side]) == 1) {
                (void)operator_rule_open(rule, side, from[side]++);
            }
            to[side] = from[side];
        }
        /* What is left on one side only are dimensions of 1, which closing the rule makes whole. */
        if (from[0] == rank_of(rule, 0) || from[1] == rank_of(rule, 1)) {
            break;
        }
        for (int side = 0; side < 2; ++side) {
            product[side] = extent_of(rule, side, to[side]);
            ++to[side];
        }
        while (product[0] != product[1]) {
            int side = product[0] < product[1] ? 0 : 1;

            if (to[side] == rank_of(rule, side)) {
                operator_rule_fail(rule, "the shapes do not have as many elements");
                return;
            }
            product[side] *= extent_of(rule, side, to[side]++);
        }
        (void)refine(rule, from, to);
        from[0] = to[0];
        from[1] = to[1];
    }
}

void operator_rule_make_opaque(operator_rule_t *rule)
{
    const size_t terms = (size_t)rule->operands + (size_t)rule->results;

    memset(rule->dim, 0, terms * sizeof(*rule->dim));
    memset(rule->touched, 0, terms * sizeof(*rule->touched));
    memset(rule->ignored, 0, terms * sizeof(*rule->ignored));
    rule->factors = 0;
    rule->opaque = false;
    rule->linear = false;
    operator_rule_close(rule);
}

bool operator_rule_fits(const operator_rule_t *rule)
{
    for (int t = 0; t < rule->operands + rule->results; ++t) {
        for (int d = 0; d < rank_of(rule, t); ++d) {
            if (rule->dim[t][d].count > AP_MAX_DIM_FACTORS) {
                return false;
            }
        }
    }
    return !rule->opaque;
}

/* A rule on its way into a graph. */
typedef struct writer {
    const operator_rule_t *rule;
    ap_sharding_rule_t made;
    int *number;   /* per factor of the rule: in the made one, -1 = none yet */
    int *at;       /* per term: in the made rule, -1 = left out */
    int *operands; /* per operand of the made rule: its tensor */
    int *touched;  /* per term of the made rule */
} writer_t;

/* Factors are numbered in the order of their appearance. Whole factors of one size are one: nothing
 * is ever decided about them. A factor of size 1 counts as whole, for there is nothing to cut. */
static int number_of(writer_t *w, int factor)
{
    const operator_factor_t *of = &w->rule->factor[factor];
    const bool whole = of->whole || of->size == 1;
    ap_sharding_rule_t *made = &w->made;

    if (w->number[factor] >= 0) {
        return w->number[factor];
    }
    for (int f = 0; f < made->factors && whole; ++f) {
        if (made->factor[f].kind == AP_FACTOR_NEED_REPLICATION &&
            made->factor[f].size == of->size) {
            return w->number[factor] = f;
        }
    }
    made->factor[made->factors] = (ap_factor_t){.kind = whole          ? AP_FACTOR_NEED_REPLICATION
                                                        : of->permuted ? AP_FACTOR_PERMUTATION
                                                                       : AP_FACTOR_PASS_THROUGH,
                                                .size = of->size};
    return w->number[factor] = made->factors++;
}

static void write_term(writer_t *w, int term)
{
    const int to = w->at[term];

    w->made.rank[to] = rank_of(w->rule, term);
    for (int d = 0; d < w->made.rank[to]; ++d) {
        const operator_rule_dim_t *dim = &w->rule->dim[term][d];

        w->made.dim[to][d].count = dim->count;
        for (int k = 0; k < dim->count; ++k) {
            w->made.dim[to][d].factor[k] = (uint16_t)number_of(w, dim->factor[k]);
        }
    }
}

static bool same_term(const operator_rule_t *rule, int a, int b)
{
    return rule->type[a]->shape.rank == rule->type[b]->shape.rank &&
           memcmp(rule->dim[a], rule->dim[b], sizeof(rule->dim[a])) == 0;
}

/* Whether an operand reads a tensor in the very same way as one before it (x * x). Such an operand
 * is left out: it moves no more bytes and constrains nothing. */
static bool is_repeated(const operator_rule_t *rule, const int *tensors, int operand)
{
    for (int o = 0; o < operand; ++o) {
        if (tensors[o] == tensors[operand] && !rule->ignored[o] && same_term(rule, o, operand)) {
            return true;
        }
    }
    return false;
}

/* Numbers the terms of the made rule; returns how many operands it has. */
static int list_terms(writer_t *w, const int *tensors)
{
    const operator_rule_t *rule = w->rule;
    int count = 0;

    for (int o = 0; o < rule->operands; ++o) {
        bool read =
            tensors[o] != OPERATOR_NO_TENSOR && !rule->ignored[o] && !is_repeated(rule, tensors, o);

        w->at[o] = read ? count : -1;
        w->operands[count] = tensors[o];
        count += read;
    }
    for (int r = 0; r < rule->results; ++r) {
        w->at[rule->operands + r] = count + r;
    }
    return count;
}

/* Translates what is touched to the numbers of the made terms. A term that touches no more than a
 * left-out one is taken to be touched as a whole. */
static void write_touched(writer_t *w)
{
    const operator_rule_t *rule = w->rule;

    for (int t = 0; t < rule->operands + rule->results; ++t) {
        int touched = rule->touched[t];

        if (w->at[t] < 0 || touched == AP_TOUCHES_ALL) {
            continue;
        }
        if (t >= rule->operands && rule->in_place && w->at[0] < 0) {
            continue; /* there was nothing: all of the result is written */
        }
        if (touched > 0) {
            touched = w->at[touched - 1] < 0 ? AP_TOUCHES_ALL : w->at[touched - 1] + 1;
        }
        w->touched[w->at[t]] = touched;
    }
}

static xm_status_t write_rule(writer_t *w, int operands)
{
    const operator_rule_t *rule = w->rule;

    XM_TRY(ap_sharding_rule_open(operands, rule->results, rule->factors, &w->made));
    w->made.factors = 0;
    for (int f = 0; f < rule->factors; ++f) {
        w->number[f] = -1;
    }
    for (int t = 0; t < rule->operands + rule->results; ++t) {
        if (w->at[t] >= 0) {
            write_term(w, t);
        }
    }
    write_touched(w);
    return ap_sharding_rule_close(&w->made);
}

/* FLOPs are given for the whole operator and stored per point of the made rule, whose points can be
 * fewer than the original's: factors of left-out operands are gone. */
xm_status_t operator_rule_add(const operator_rule_t *rule, const int *tensors,
                              ap_op_params_t *params, ap_graph_t *graph, int *results)
{
    const size_t terms = (size_t)rule->operands + (size_t)rule->results;
    int *lists = calloc(3 * terms + (size_t)rule->factors + 1, sizeof(*lists));
    writer_t w = {.rule = rule,
                  .at = lists,
                  .operands = lists + terms,
                  .touched = lists + 2 * terms,
                  .number = lists + 3 * terms};
    xm_status_t status = lists == NULL ? XM_NO_MEMORY("the rule of an operator") : XM_OK;

    if (status == XM_OK) {
        params->operand_count = list_terms(&w, tensors);
        status = write_rule(&w, params->operand_count);
    }
    if (status == XM_OK) {
        params->kind = rule->kind;
        params->operands = w.operands;
        params->touched = w.touched;
        params->flops_per_point = rule->flops / ap_sharding_rule_points(&w.made);
        params->linear = rule->linear;
        status = ap_graph_add_op_by_rule(graph, params, &w.made, results);
    }
    free(lists);
    return status;
}
