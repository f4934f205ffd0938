/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sharding rules: the text form `bsh,hf->bsf` with its factors, read and checked against shapes.
 * The notion of factors and their kinds is that of Shardy, XLA's partitioner; a factor is a loop of
 * the operator, and everything about sharding follows from which terms carry it.
 *
 * Text is the form in files and plans; it is parsed where it enters. Passes and front ends make
 * rules as values, and their text is written from them.
 */

#include "planner/graph/sharding_rule.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int ap_sharding_rule_factor(const ap_sharding_rule_t *rule, char letter, int number)
{
    for (int f = 0; f < rule->factors; ++f) {
        if (rule->factor[f].letter == letter && rule->factor[f].number == number) {
            return f;
        }
    }
    return -1;
}

char *ap_factor_name(const ap_factor_t *factor, char *buffer, size_t size)
{
    (void)snprintf(buffer, size, factor->number > 0 ? "%c%d" : "%c", factor->letter,
                   factor->number);
    return buffer;
}

xm_status_t ap_sharding_rule_open(int operands, int results, int factors, ap_sharding_rule_t *rule)
{
    const size_t terms = (size_t)operands + (size_t)results;

    *rule = (ap_sharding_rule_t){.factors = factors, .operands = operands, .results = results};
    rule->factor = calloc((size_t)factors + 1, sizeof(*rule->factor));
    rule->rank = calloc(terms + 1, sizeof(*rule->rank));
    rule->dim = calloc(terms + 1, sizeof(*rule->dim));
    if (rule->factor == NULL || rule->rank == NULL || rule->dim == NULL) {
        ap_sharding_rule_destroy(rule);
        return XM_NO_MEMORY("a sharding rule");
    }
    return XM_OK;
}

void ap_sharding_rule_destroy(ap_sharding_rule_t *rule)
{
    free(rule->text);
    free(rule->factor);
    free(rule->rank);
    free(rule->dim);
    *rule = (ap_sharding_rule_t){0};
}

xm_status_t ap_sharding_rule_copy(const ap_sharding_rule_t *from, ap_sharding_rule_t *rule)
{
    const size_t terms = (size_t)from->operands + (size_t)from->results;

    XM_TRY(ap_sharding_rule_open(from->operands, from->results, from->factors, rule));
    memcpy(rule->factor, from->factor, (size_t)from->factors * sizeof(*rule->factor));
    memcpy(rule->rank, from->rank, terms * sizeof(*rule->rank));
    memcpy(rule->dim, from->dim, terms * sizeof(*rule->dim));
    rule->text = strdup(from->text);
    if (rule->text == NULL) {
        ap_sharding_rule_destroy(rule);
        return XM_NO_MEMORY("a sharding rule");
    }
    return XM_OK;
}

bool ap_sharding_rule_carries(const ap_sharding_rule_t *rule, int term, int factor)
{
    for (int d = 0; d < rule->rank[term]; ++d) {
        for (int k = 0; k < rule->dim[term][d].count; ++k) {
            if (rule->dim[term][d].factor[k] == factor) {
                return true;
            }
        }
    }
    return false;
}

/* The shape that a term must have. Products cannot overflow here: creation has checked them. */
ap_shape_t ap_sharding_rule_shape(const ap_sharding_rule_t *rule, int term)
{
    ap_shape_t shape = {.rank = rule->rank[term]};

    for (int d = 0; d < shape.rank; ++d) {
        shape.dims[d] = 1;
        for (int k = 0; k < rule->dim[term][d].count; ++k) {
            shape.dims[d] *= rule->factor[rule->dim[term][d].factor[k]].size;
        }
    }
    return shape;
}

double ap_sharding_rule_points(const ap_sharding_rule_t *rule)
{
    double points = 1;

    for (int f = 0; f < rule->factors; ++f) {
        points *= (double)rule->factor[f].size;
    }
    return points;
}

/* Reads a name at *cursor, which moves behind it: a letter, and digits where there are more factors
 * than letters. */
static xm_status_t read_name(const ap_sharding_rule_t *rule, const char **cursor, ap_factor_t *name)
{
    *name = (ap_factor_t){.letter = *(*cursor)++};
    if (name->letter < 'a' || name->letter > 'z') {
        return XM_MALFORMED("rule '%s': '%c' is not a factor (a to z)", rule->text, name->letter);
    }
    while (**cursor >= '0' && **cursor <= '9' && name->number < 1000) {
        name->number = 10 * name->number + *(*cursor)++ - '0';
    }
    return XM_OK;
}

/* Puts the factor whose name is at *cursor into a dimension, making the factor if it is new. Its
 * size is 0 until a shape or the list of sizes gives it one. */
static xm_status_t add_letter(ap_sharding_rule_t *rule, ap_rule_dim_t *dim, const char **cursor)
{
    ap_factor_t name;
    xm_status_t status = read_name(rule, cursor, &name);
    int f = ap_sharding_rule_factor(rule, name.letter, name.number);

    XM_TRY(status);
    if (dim->count == AP_MAX_DIM_FACTORS) {
        return XM_INVALID("rule '%s' has more than %d factors in one dimension", rule->text,
                          AP_MAX_DIM_FACTORS);
    }
    if (f < 0) {
        f = rule->factors++;
        rule->factor[f] = name;
    }
    dim->factor[dim->count++] = (uint16_t)f;
    return XM_OK;
}

/* One term, up to a comma, an arrow or the end; *cursor moves there. Every round of the loops
 * consumes a letter, so malformed text ends in an error and not in a loop. */
static xm_status_t parse_term(ap_sharding_rule_t *rule, int term, const char **cursor)
{
    xm_status_t status = XM_OK;

    while (status == XM_OK && **cursor != '\0' && **cursor != ',' && **cursor != '-') {
        ap_rule_dim_t *dim;

        if (rule->rank[term] == AP_MAX_RANK) {
            return XM_INVALID("rule '%s' has a term of more than %d dimensions", rule->text,
                              AP_MAX_RANK);
        }
        dim = &rule->dim[term][rule->rank[term]++];
        if (**cursor != '(') {
            status = add_letter(rule, dim, cursor);
            continue;
        }
        ++*cursor;
        while (status == XM_OK && **cursor != ')' && **cursor != '\0') {
            status = add_letter(rule, dim, cursor);
        }
        if (status == XM_OK && (*(*cursor)++ != ')' || dim->count == 0)) {
            return XM_MALFORMED("rule '%s' has an unmatched or empty '('", rule->text);
        }
    }
    return status;
}

/* Splits a rule into terms. There are no more terms than separators and one, and no more factors
 * than letters, so there is room for all that the text can say. */
static xm_status_t parse_text(ap_sharding_rule_t *rule, const char *text)
{
    const size_t length = strlen(text);
    const char *cursor = text;
    int arrow = -1, term = 0, terms = 1;

    if (length > UINT16_MAX) {
        return XM_INVALID("a rule of %zu letters is too long", length);
    }
    for (const char *c = text; *c != '\0'; ++c) {
        terms += *c == ',' || *c == '-';
    }
    XM_TRY(ap_sharding_rule_open(terms, 0, (int)length, rule));
    rule->factors = 0;
    rule->text = strdup(text);
    XM_NEED_MEMORY(rule->text, "a sharding rule");
    for (;;) {
        XM_TRY(parse_term(rule, term, &cursor));
        ++term;
        if (*cursor == '\0') {
            break;
        }
        if (*cursor == '-') {
            if (cursor[1] != '>' || arrow >= 0) {
                return XM_MALFORMED("rule '%s' needs exactly one '->'", text);
            }
            arrow = term;
            ++cursor;
        }
        ++cursor;
    }
    if (arrow < 0) {
        return XM_MALFORMED("rule '%s' needs exactly one '->'", text);
    }
    rule->operands = arrow;
    rule->results = term - arrow;
    return XM_OK;
}

/* Reads sizes such as "n=32,d=64". They are needed where shapes alone do not tell: for two unknown
 * factors in one dimension, or a factor that only results have. */
static xm_status_t parse_sizes(ap_sharding_rule_t *rule, const char *sizes)
{
    const char *cursor = sizes;

    while (cursor != NULL && *cursor != '\0') {
        const char *at = cursor;
        ap_factor_t name;
        int f = read_name(rule, &cursor, &name) == XM_OK
                    ? ap_sharding_rule_factor(rule, name.letter, name.number)
                    : -1;
        char *end;
        long long size;

        if (f < 0 || *cursor != '=') {
            return XM_MALFORMED("rule '%s': sizes '%s' name no factor at '%s'", rule->text, sizes,
                                at);
        }
        size = strtoll(cursor + 1, &end, 10);
        if (size <= 0 || (*end != ',' && *end != '\0')) {
            return XM_MALFORMED("rule '%s': sizes '%s' are not numbers", rule->text, sizes);
        }
        rule->factor[f].size = size;
        cursor = *end == ',' ? end + 1 : end;
    }
    return XM_OK;
}

/* Takes a factor's size from a dimension when it is the only unknown one there, and checks the
 * rest. */
static xm_status_t match_dim(ap_sharding_rule_t *rule, int operand, int d, int64_t extent)
{
    const ap_rule_dim_t *dim = &rule->dim[operand][d];
    int64_t known = 1;
    int unknown = -1, unknowns = 0;

    for (int k = 0; k < dim->count; ++k) {
        ap_factor_t *factor = &rule->factor[dim->factor[k]];

        if (factor->size == 0) {
            unknown = dim->factor[k];
            ++unknowns;
        } else if (__builtin_mul_overflow(known, factor->size, &known)) {
            return XM_INVALID(
                "rule '%s': the factors of operand %d dimension %d make more than 2^63", rule->text,
                operand, d);
        }
    }
    if (unknowns == 1 && extent % known == 0) {
        rule->factor[unknown].size = extent / known;
        return XM_OK;
    }
    if (unknowns > 0 || known != extent) {
        return XM_INVALID("rule '%s': operand %d dimension %d is %" PRId64
                          ", its factors make %" PRId64 "%s",
                          rule->text, operand, d, extent, known,
                          unknowns > 0 ? " with others of unknown size" : "");
    }
    return XM_OK;
}

/* Shapes are matched from operand 0 on, so a compound dimension may rely on factors that an earlier
 * operand has settled. A factor that no operand settles and that has no given size is an error. */
static xm_status_t match_shapes(ap_sharding_rule_t *rule, const ap_shape_t *operands, int count)
{
    if (count != rule->operands) {
        return XM_INVALID("rule '%s' is for %d operands, not %d", rule->text, rule->operands,
                          count);
    }
    for (int o = 0; o < count; ++o) {
        if (operands[o].rank != rule->rank[o]) {
            return XM_INVALID("rule '%s': operand %d has rank %d, the rule says %d", rule->text, o,
                              operands[o].rank, rule->rank[o]);
        }
        for (int d = 0; d < rule->rank[o]; ++d) {
            XM_TRY(match_dim(rule, o, d, operands[o].dims[d]));
        }
    }
    for (int f = 0; f < rule->factors; ++f) {
        if (rule->factor[f].size <= 0) {
            char name[AP_FACTOR_TEXT];

            return XM_INVALID("rule '%s': factor %s has no size", rule->text,
                              ap_factor_name(&rule->factor[f], name, sizeof(name)));
        }
    }
    return XM_OK;
}

/* The product of a dimension's factors; false when it is no 64-bit number. */
static bool extent_of(const ap_sharding_rule_t *rule, const ap_rule_dim_t *dim, int64_t *extent)
{
    *extent = 1;
    for (int k = 0; k < dim->count; ++k) {
        if (__builtin_mul_overflow(*extent, rule->factor[dim->factor[k]].size, extent)) {
            return false;
        }
    }
    return true;
}

/* Results are computed as products of factors, and those need not be bounded by the operands'
 * shapes: an outer product of large dimensions overflows. */
static xm_status_t check_results(const ap_sharding_rule_t *rule)
{
    for (int r = 0; r < rule->results; ++r) {
        for (int d = 0; d < rule->rank[rule->operands + r]; ++d) {
            int64_t extent;

            if (!extent_of(rule, &rule->dim[rule->operands + r][d], &extent)) {
                return XM_INVALID("rule '%s': result %d dimension %d is larger than 2^63",
                                  rule->text, r, d);
            }
        }
    }
    return XM_OK;
}

/* Notes the kind of the factors that are listed; names that the rule does not have say nothing. */
static xm_status_t declare(ap_sharding_rule_t *rule, const char *names, ap_factor_kind_t kind)
{
    while (names != NULL && *names != '\0') {
        ap_factor_t name;
        xm_status_t status = read_name(rule, &names, &name);
        int f = status == XM_OK ? ap_sharding_rule_factor(rule, name.letter, name.number) : -1;

        XM_TRY(status);
        if (f >= 0) {
            rule->factor[f].kind = kind;
        }
    }
    return XM_OK;
}

/* What was declared comes first; otherwise a factor that some result lacks is summed over. */
static void find_kinds(ap_sharding_rule_t *rule)
{
    for (int f = 0; f < rule->factors; ++f) {
        ap_factor_kind_t *kind = &rule->factor[f].kind;

        if (*kind == AP_FACTOR_NEED_REPLICATION || *kind == AP_FACTOR_PERMUTATION) {
            continue;
        }
        *kind = AP_FACTOR_PASS_THROUGH;
        for (int r = 0; r < rule->results; ++r) {
            if (!ap_sharding_rule_carries(rule, rule->operands + r, f)) {
                *kind = AP_FACTOR_REDUCTION;
            }
        }
    }
}

/* The rule is made in a local and handed out at the end, so a failure leaves *rule as it was. */
xm_status_t ap_sharding_rule_create(const char *text, const char *replicated, const char *permuted,
                                    const char *sizes, const ap_shape_t *operands,
                                    int operand_count, ap_sharding_rule_t *rule)
{
    ap_sharding_rule_t made = {0};
    xm_status_t status = parse_text(&made, text);

    XM_THEN(status, parse_sizes(&made, sizes));
    XM_THEN(status, match_shapes(&made, operands, operand_count));
    XM_THEN(status, check_results(&made));
    XM_THEN(status, declare(&made, permuted, AP_FACTOR_PERMUTATION));
    XM_THEN(status, declare(&made, replicated, AP_FACTOR_NEED_REPLICATION));
    if (status != XM_OK) {
        ap_sharding_rule_destroy(&made);
        return status;
    }
    find_kinds(&made);
    *rule = made;
    return XM_OK;
}

static void write_term(FILE *stream, const ap_sharding_rule_t *rule, int term)
{
    for (int d = 0; d < rule->rank[term]; ++d) {
        const ap_rule_dim_t *dim = &rule->dim[term][d];
        char name[AP_FACTOR_TEXT];

        (void)fputs(dim->count > 1 ? "(" : "", stream);
        for (int k = 0; k < dim->count; ++k) {
            (void)fputs(ap_factor_name(&rule->factor[dim->factor[k]], name, sizeof(name)), stream);
        }
        (void)fputs(dim->count > 1 ? ")" : "", stream);
    }
}

static xm_status_t write_text(ap_sharding_rule_t *rule)
{
    size_t length = 0;
    FILE *stream = open_memstream(&rule->text, &length);
    bool written;

    XM_NEED_MEMORY(stream, "a sharding rule");
    for (int t = 0; t < rule->operands + rule->results; ++t) {
        (void)fputs(t == rule->operands ? "->" : t > 0 ? "," : "", stream);
        write_term(stream, rule, t);
    }
    written = ferror(stream) == 0;
    return fclose(stream) == 0 && written ? XM_OK : XM_NO_MEMORY("a sharding rule");
}

xm_status_t ap_sharding_rule_close(ap_sharding_rule_t *rule)
{
    xm_status_t status = check_results(rule);

    for (int f = 0; f < rule->factors; ++f) {
        if (rule->factor[f].letter == '\0') {
            rule->factor[f].letter = (char)('a' + f % 26);
            rule->factor[f].number = f / 26;
        }
    }
    find_kinds(rule);
    XM_THEN(status, write_text(rule));
    if (status != XM_OK) {
        ap_sharding_rule_destroy(rule);
    }
    return status;
}

/* Factors are numbered in the order in which the terms bring them. */
xm_status_t ap_sharding_rule_pick(const ap_sharding_rule_t *from, const int *terms, int operands,
                                  int results, ap_sharding_rule_t *rule)
{
    int *number = malloc(((size_t)from->factors + 1) * sizeof(*number));
    xm_status_t status = number == NULL
                             ? XM_NO_MEMORY("a sharding rule")
                             : ap_sharding_rule_open(operands, results, from->factors, rule);

    if (status != XM_OK) {
        free(number);
        return status;
    }
    rule->factors = 0;
    for (int f = 0; f < from->factors; ++f) {
        number[f] = -1;
    }
    for (int t = 0; t < operands + results; ++t) {
        rule->rank[t] = from->rank[terms[t]];
        for (int d = 0; d < rule->rank[t]; ++d) {
            rule->dim[t][d] = from->dim[terms[t]][d];
            for (int k = 0; k < rule->dim[t][d].count; ++k) {
                int of = rule->dim[t][d].factor[k];

                if (number[of] < 0) {
                    number[of] = rule->factors++;
                    rule->factor[number[of]] = from->factor[of];
                }
                rule->dim[t][d].factor[k] = (uint16_t)number[of];
            }
        }
    }
    free(number);
    return ap_sharding_rule_close(rule);
}
