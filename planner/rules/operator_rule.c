/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Builds the rule of one operator dimension by dimension, then writes it as the text that graphs
 * take. Front ends fill in rules over all operands, with up to 64 factors; only when it is known
 * which operands hold data does it turn out whether the rule fits the graph's 4 operands and 8
 * factors. What does not fit becomes opaque: correct for any operator, but never cut.
 */

#include "planner/rules/operator_rule.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* The first failure is kept, because later ones usually follow from it. */
void operator_rule_fail(operator_rule_t *rule, const char *format, ...)
{
    char sentence[400];
    va_list arguments;

    if (rule->status != XM_OK) {
        return;
    }
    va_start(arguments, format);
    (void)vsnprintf(sentence, sizeof(sentence), format, arguments);
    va_end(arguments);
    rule->refused = true;
    rule->status = rule->place != NULL ? xm_error_set(XM_ERR_PARSE, "%s: %s", rule->place, sentence)
                                       : xm_error_set(XM_ERR_PARSE, "%s", sentence);
}

/* Running out of factors is no failure: the rule becomes opaque and is filled in to the end without
 * effect. */
int operator_rule_factor(operator_rule_t *rule, int64_t size)
{
    if (rule->factors == OPERATOR_MAX_FACTORS) {
        rule->opaque = true;
        return 0;
    }
    rule->factor[rule->factors] = (operator_factor_t){.size = size};
    return rule->factors++;
}

int operator_rule_whole(operator_rule_t *rule, int64_t size)
{
    int factor = operator_rule_factor(rule, size);

    if (!rule->opaque) {
        rule->factor[factor].whole = true;
    }
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
    memset(rule->dim, 0, sizeof(rule->dim));
    memset(rule->touched, 0, sizeof(rule->touched));
    rule->factors = 0;
    rule->opaque = false;
    rule->linear = false;
    operator_rule_close(rule);
}

/* Gives factors letters in the order of their appearance. Whole factors of one size share one:
 * nothing is ever decided about them, and a graph's rule has room for 8. */
typedef struct writer {
    const operator_rule_t *rule;
    operator_rule_text_t *text;
    int letter[OPERATOR_MAX_FACTORS]; /* -1 = none yet */
    int count;
    int64_t size[AP_MAX_FACTORS];
    bool whole[AP_MAX_FACTORS];
    size_t length;
    bool fits;
} writer_t;

/* A factor of size 1 counts as whole, for there is nothing to cut. With too many letters the rule
 * does not fit; any letter will do from then on. */
static int letter_of(writer_t *w, int factor)
{
    const operator_factor_t *of = &w->rule->factor[factor];
    bool whole = of->whole || of->size == 1;

    if (w->letter[factor] >= 0) {
        return w->letter[factor];
    }
    for (int l = 0; l < w->count && whole; ++l) {
        if (w->whole[l] && w->size[l] == of->size) {
            return w->letter[factor] = l;
        }
    }
    if (w->count == AP_MAX_FACTORS) {
        w->fits = false;
        return 0;
    }
    w->size[w->count] = of->size;
    w->whole[w->count] = whole;
    if (whole) {
        w->text->replicated[strlen(w->text->replicated)] = (char)('a' + w->count);
    } else if (of->permuted) {
        w->text->permuted[strlen(w->text->permuted)] = (char)('a' + w->count);
    }
    return w->letter[factor] = w->count++;
}

static void put(writer_t *w, char c)
{
    if (w->length + 1 >= sizeof(w->text->text)) {
        w->fits = false;
        return;
    }
    w->text->text[w->length++] = c;
    w->text->text[w->length] = '\0';
}

static void write_term(writer_t *w, int term)
{
    for (int d = 0; d < w->rule->type[term]->shape.rank && w->fits; ++d) {
        const operator_rule_dim_t *dim = &w->rule->dim[term][d];

        w->fits = dim->count <= AP_MAX_DIM_FACTORS;
        if (dim->count > 1) {
            put(w, '(');
        }
        for (int k = 0; k < dim->count && w->fits; ++k) {
            put(w, (char)('a' + letter_of(w, dim->factor[k])));
        }
        if (dim->count > 1) {
            put(w, ')');
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

static double points_of(const operator_rule_text_t *text)
{
    double points = 1;

    for (const char *size = text->sizes; size != NULL && *size != '\0';) {
        double value = 1;

        (void)sscanf(size, "%*c=%lf", &value); /* our own text. NOLINT(cert-err34-c) */
        points *= value;
        size = strchr(size, ',');
        size = size != NULL ? size + 1 : NULL;
    }
    return points;
}

/* FLOPs are given for the whole operator and stored per point of the written rule, whose points can
 * be fewer than the original's: factors of left-out operands are gone. */
ap_op_params_t operator_rule_params(const operator_rule_t *rule, const operator_rule_text_t *text)
{
    ap_op_params_t params = AP_OP_PARAMS_INIT;

    params.kind = rule->kind;
    params.rule = text->text;
    params.replicated = text->replicated;
    params.permuted = text->permuted;
    params.sizes = text->sizes[0] != '\0' ? text->sizes : NULL;
    params.operand_count = text->operand_count;
    memcpy(params.operands, text->operands, sizeof(params.operands));
    memcpy(params.touched, text->touched, sizeof(params.touched));
    params.result_dtype = rule->type[rule->operands]->dtype;
    params.flops_per_point = rule->flops / points_of(text);
    params.linear = rule->linear;
    return params;
}

/* Translates what is touched to the numbers of the written terms; at[] has them, -1 for a term that
 * was left out. A term that touches no more than a left-out one is taken to be touched as a
 * whole. */
static void write_touched(const operator_rule_t *rule, const int *at, operator_rule_text_t *text)
{
    for (int t = 0; t < rule->operands + rule->results; ++t) {
        int touched = (int)rule->touched[t];

        if (at[t] < 0 || touched == AP_TOUCHES_ALL) {
            continue;
        }
        if (t >= rule->operands && rule->in_place && at[0] < 0) {
            continue; /* there was nothing: all of the result is written */
        }
        if (touched > 0) {
            touched = at[touched - 1] < 0 ? AP_TOUCHES_ALL : at[touched - 1] + 1;
        }
        text->touched[at[t]] = (int8_t)touched;
    }
}

/* Writes only what holds data. A rule that does not fit returns false, and the text is then of no
 * use. */
bool operator_rule_write(const operator_rule_t *rule, const int *tensors,
                         operator_rule_text_t *text)
{
    writer_t w = {.rule = rule, .text = text, .fits = !rule->opaque};
    int at[OPERATOR_MAX_TERMS];
    size_t length = 0;

    memset(text, 0, sizeof(*text));
    for (int f = 0; f < OPERATOR_MAX_FACTORS; ++f) {
        w.letter[f] = -1;
    }
    for (int t = 0; t < OPERATOR_MAX_TERMS; ++t) {
        at[t] = -1;
    }
    w.fits = w.fits && rule->results <= AP_MAX_RESULTS;
    for (int o = 0; o < rule->operands && w.fits; ++o) {
        if (tensors[o] == OPERATOR_NO_TENSOR || rule->ignored[o] || is_repeated(rule, tensors, o)) {
            continue;
        }
        if (text->operand_count == AP_MAX_OPERANDS) {
            return false;
        }
        if (text->operand_count > 0) {
            put(&w, ',');
        }
        at[o] = text->operand_count;
        text->operands[text->operand_count++] = tensors[o];
        write_term(&w, o);
    }
    put(&w, '-');
    put(&w, '>');
    for (int r = 0; r < rule->results && w.fits; ++r) {
        if (r > 0) {
            put(&w, ',');
        }
        at[rule->operands + r] = text->operand_count + r;
        write_term(&w, rule->operands + r);
    }
    if (w.fits) {
        write_touched(rule, at, text);
    }
    for (int l = 0; l < w.count && w.fits; ++l) {
        length += (size_t)snprintf(text->sizes + length, sizeof(text->sizes) - length,
                                   "%s%c=%" PRId64, l > 0 ? "," : "", 'a' + l, w.size[l]);
    }
    return w.fits;
}
