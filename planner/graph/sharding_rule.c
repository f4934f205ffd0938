/*
 * Sharding rules: the text form `bsh,hf->bsf` with its factors, read and checked against shapes.
 * The notion of factors and their kinds is that of Shardy, XLA's partitioner; a factor is a loop of
 * the operator, and everything about sharding follows from which terms carry it.
 *
 * The rule is text because that is the form in files and plans. It is parsed once per operator, and
 * strategies work on the parsed form.
 */

#include "planner/graph/sharding_rule.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

int ap_sharding_rule_factor(const ap_sharding_rule_t *rule, char letter)
{
    for (int f = 0; f < rule->factors; ++f) {
        if (rule->factor[f].letter == letter) {
            return f;
        }
    }
    return -1;
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

/* A buffer that is too small gets a shorter term, never an overrun. */
char *ap_sharding_rule_term(const ap_sharding_rule_t *rule, int term, char *buffer, size_t size)
{
    size_t length = 0;

    for (int d = 0; d < rule->rank[term]; ++d) {
        const ap_rule_dim_t *dim = &rule->dim[term][d];

        if (length + AP_MAX_DIM_FACTORS + 3 > size) {
            break;
        }
        if (dim->count > 1) {
            buffer[length++] = '(';
        }
        for (int k = 0; k < dim->count; ++k) {
            buffer[length++] = rule->factor[dim->factor[k]].letter;
        }
        if (dim->count > 1) {
            buffer[length++] = ')';
        }
    }
    buffer[length] = '\0';
    return buffer;
}

/* Puts the factor called `letter` into a dimension, making the factor if it is new. Its size is 0
 * until a shape or the list of sizes gives it one. */
static xm_status_t add_letter(ap_sharding_rule_t *rule, ap_rule_dim_t *dim, char letter)
{
    int f = ap_sharding_rule_factor(rule, letter);

    if (letter < 'a' || letter > 'z') {
        return xm_error_set(XM_ERR_PARSE, "rule '%s': '%c' is not a factor (a to z)", rule->text,
                            letter);
    }
    if (f < 0) {
        if (rule->factors == AP_MAX_FACTORS) {
            return xm_error_set(XM_ERR_INVALID_ARGUMENT, "rule '%s' has more than %d factors",
                                rule->text, AP_MAX_FACTORS);
        }
        f = rule->factors++;
        rule->factor[f] = (ap_factor_t){.letter = letter};
    }
    if (dim->count == AP_MAX_DIM_FACTORS) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "rule '%s' has more than %d factors in one dimension", rule->text,
                            AP_MAX_DIM_FACTORS);
    }
    dim->factor[dim->count++] = (uint8_t)f;
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
            return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                                "rule '%s' has a term of more than %d "
                                "dimensions",
                                rule->text, AP_MAX_RANK);
        }
        dim = &rule->dim[term][rule->rank[term]++];
        if (**cursor != '(') {
            status = add_letter(rule, dim, *(*cursor)++);
            continue;
        }
        ++*cursor;
        while (status == XM_OK && **cursor != ')' && **cursor != '\0') {
            status = add_letter(rule, dim, *(*cursor)++);
        }
        if (status == XM_OK && (*(*cursor)++ != ')' || dim->count == 0)) {
            return xm_error_set(XM_ERR_PARSE, "rule '%s' has an unmatched or empty '('",
                                rule->text);
        }
    }
    return status;
}

/* Splits a rule into terms. The number of terms is checked after each, so `rule->dim` is never
 * written beyond its end; the exact numbers of operands and results are checked afterwards. */
static xm_status_t parse_text(ap_sharding_rule_t *rule, const char *text)
{
    const char *cursor = text;
    int arrow = -1, term = 0;

    if (strlen(text) >= sizeof(rule->text)) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "a rule of %zu letters is too long",
                            strlen(text));
    }
    (void)strcpy(rule->text, text);
    for (;;) {
        xm_status_t status = parse_term(rule, term, &cursor);

        if (status != XM_OK) {
            return status;
        }
        ++term;
        if (*cursor == '\0') {
            break;
        }
        if (*cursor == '-') {
            if (cursor[1] != '>' || arrow >= 0) {
                return xm_error_set(XM_ERR_PARSE, "rule '%s' needs exactly one '->'", text);
            }
            arrow = term;
            ++cursor;
        }
        ++cursor;
        if (term == AP_MAX_TERMS) {
            return xm_error_set(XM_ERR_INVALID_ARGUMENT, "rule '%s' has too many terms", text);
        }
    }
    if (arrow < 0) {
        return xm_error_set(XM_ERR_PARSE, "rule '%s' needs exactly one '->'", text);
    }
    rule->operands = arrow;
    rule->results = term - arrow;
    if (rule->operands > AP_MAX_OPERANDS || rule->results > AP_MAX_RESULTS) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "rule '%s' has more than %d operands or %d results", text,
                            AP_MAX_OPERANDS, AP_MAX_RESULTS);
    }
    return XM_OK;
}

/* Reads sizes such as "n=32,d=64". They are needed where shapes alone do not tell: for two unknown
 * factors in one dimension, or a factor that only results have. */
static xm_status_t parse_sizes(ap_sharding_rule_t *rule, const char *sizes)
{
    const char *cursor = sizes;

    while (cursor != NULL && *cursor != '\0') {
        int f = ap_sharding_rule_factor(rule, *cursor);
        char *end;
        long long size;

        if (f < 0 || cursor[1] != '=') {
            return xm_error_set(XM_ERR_PARSE, "rule '%s': sizes '%s' name no factor at '%s'",
                                rule->text, sizes, cursor);
        }
        size = strtoll(cursor + 2, &end, 10);
        if (size <= 0 || (*end != ',' && *end != '\0')) {
            return xm_error_set(XM_ERR_PARSE, "rule '%s': sizes '%s' are not numbers", rule->text,
                                sizes);
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
            return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                                "rule '%s': the factors of operand %d dimension %d make more than "
                                "2^63",
                                rule->text, operand, d);
        }
    }
    if (unknowns == 1 && extent % known == 0) {
        rule->factor[unknown].size = extent / known;
        return XM_OK;
    }
    if (unknowns > 0 || known != extent) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "rule '%s': operand %d dimension %d is %" PRId64
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
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "rule '%s' is for %d operands, not %d",
                            rule->text, rule->operands, count);
    }
    for (int o = 0; o < count; ++o) {
        if (operands[o].rank != rule->rank[o]) {
            return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                                "rule '%s': operand %d has rank %d, the rule says %d", rule->text,
                                o, operands[o].rank, rule->rank[o]);
        }
        for (int d = 0; d < rule->rank[o]; ++d) {
            xm_status_t status = match_dim(rule, o, d, operands[o].dims[d]);

            if (status != XM_OK) {
                return status;
            }
        }
    }
    for (int f = 0; f < rule->factors; ++f) {
        if (rule->factor[f].size <= 0) {
            return xm_error_set(XM_ERR_INVALID_ARGUMENT, "rule '%s': factor %c has no size",
                                rule->text, rule->factor[f].letter);
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
                return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                                    "rule '%s': result %d dimension %d is larger than 2^63",
                                    rule->text, r, d);
            }
        }
    }
    return XM_OK;
}

/* What the caller declares comes first; otherwise a factor that some result lacks is summed
 * over. */
static ap_factor_kind_t kind_of(const ap_sharding_rule_t *rule, int f, const char *replicated,
                                const char *permuted)
{
    if (replicated != NULL && strchr(replicated, rule->factor[f].letter) != NULL) {
        return AP_FACTOR_NEED_REPLICATION;
    }
    if (permuted != NULL && strchr(permuted, rule->factor[f].letter) != NULL) {
        return AP_FACTOR_PERMUTATION;
    }
    for (int r = 0; r < rule->results; ++r) {
        if (!ap_sharding_rule_carries(rule, rule->operands + r, f)) {
            return AP_FACTOR_REDUCTION;
        }
    }
    return AP_FACTOR_PASS_THROUGH;
}

/* The rule is made in a local and copied at the end, so a failure leaves *rule as it was. */
xm_status_t ap_sharding_rule_create(const char *text, const char *replicated, const char *permuted,
                                    const char *sizes, const ap_shape_t *operands,
                                    int operand_count, ap_sharding_rule_t *rule)
{
    ap_sharding_rule_t made;
    xm_status_t status;

    memset(&made, 0, sizeof(made));
    status = parse_text(&made, text);
    if (status == XM_OK) {
        status = parse_sizes(&made, sizes);
    }
    if (status == XM_OK) {
        status = match_shapes(&made, operands, operand_count);
    }
    if (status == XM_OK) {
        status = check_results(&made);
    }
    if (status != XM_OK) {
        return status;
    }
    for (int f = 0; f < made.factors; ++f) {
        made.factor[f].kind = kind_of(&made, f, replicated, permuted);
    }
    *rule = made;
    return XM_OK;
}
