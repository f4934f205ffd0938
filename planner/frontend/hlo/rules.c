/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sharding rule of each HLO operator. A rule says which dimensions may be cut without changing
 * what is computed, in one framework for all: open a factor, put it into each term that shares the
 * dimension, and leave out what must stay whole. planner/frontend/hlo/rules_large.c has the
 * operators with dimension numbers.
 *
 * A rule reads shapes from the text, and the text may be wrong; so each checks ranks and extents as
 * it goes, and a mismatch is an error with its place. Operators that are in no table are opaque.
 */

#include "planner/frontend/hlo/rules.h"

#include <inttypes.h>
#include <string.h>

/* None where one of them is no dimension: callers go on with the list, and look at extents by it.
 */
hlo_list_t hlo_rules_dims(operator_rule_t *rule, const char *key, int limit)
{
    hlo_list_t list = {0};

    XM_THEN(rule->status, hlo_attribute_dims(hlo_operator(rule)->module, hlo_operator(rule)->of,
                                             key, limit, &list));
    return rule->status == XM_OK ? list : (hlo_list_t){0};
}

int64_t hlo_rules_number(operator_rule_t *rule, const char *key, int64_t otherwise)
{
    int64_t number = otherwise;

    XM_THEN(rule->status, hlo_attribute_number(hlo_operator(rule)->module, hlo_operator(rule)->of,
                                               key, otherwise, &number));
    return number;
}

hlo_window_t hlo_rules_window(operator_rule_t *rule)
{
    hlo_window_t window = {0};

    if (rule->status == XM_OK) {
        rule->status =
            hlo_attribute_window(hlo_operator(rule)->module, hlo_operator(rule)->of, &window);
    }
    return window;
}

/* The opcode of the combiner's root stands for what the combiner does. That is exact for combiners
 * of one operation, which is what JAX writes for plain reductions. */
hlo_slice_t hlo_rules_combiner(operator_rule_t *rule)
{
    int computation = -1;

    XM_THEN(rule->status,
            hlo_attribute_computation(hlo_operator(rule)->module, hlo_operator(rule)->of,
                                      "to_apply", &computation));
    if (computation < 0) {
        return (hlo_slice_t){0};
    }
    return hlo_operator(rule)
        ->module->computations[computation]
        .instructions[hlo_operator(rule)->module->computations[computation].root]
        .opcode;
}

/* Bits as numbers of another width: one dimension more or less at the end, or all the same. The
 * extra dimension stays whole. */
static void bitcast_convert(operator_rule_t *rule)
{
    int shared = hlo_rank(rule, 0) < hlo_rank(rule, 1) ? hlo_rank(rule, 0) : hlo_rank(rule, 1);

    rule->kind = AP_OP_RESHAPE;
    for (int d = 0; d < shared; ++d) {
        operator_rule_put(rule, 1, d, operator_rule_open(rule, 0, d));
    }
}

/* Every term that is not a scalar has the same dimensions; a scalar goes with anything, as the
 * predicate of a select does. */
static void elementwise(operator_rule_t *rule)
{
    int out = rule->operands;

    rule->linear = hlo_slice_in(hlo_operator(rule)->of->opcode, "add subtract copy convert negate");
    rule->flops = operand_type_elements(rule->type[out]);
    for (int d = 0; d < hlo_rank(rule, out); ++d) {
        int factor = operator_rule_open(rule, out, d);

        for (int t = 0; t < rule->operands + rule->results; ++t) {
            if (t == out || (t < rule->operands && hlo_rank(rule, t) == 0 &&
                             !rule->type[t]->tuple && rule->operands > 1)) {
                continue;
            }
            if (operator_rule_rank(rule, t, hlo_rank(rule, out))) {
                operator_rule_put(rule, t, d, factor);
            }
        }
    }
    for (int t = 0; t < rule->operands && hlo_rank(rule, out) == 0; ++t) {
        (void)operator_rule_rank(rule, t, 0);
    }
}

/* Dimensions that the operand lacks are free to be cut: every device repeats its part. */
static void broadcast(operator_rule_t *rule)
{
    hlo_list_t dims = hlo_rules_dims(rule, "dimensions", hlo_rank(rule, 1));

    if (!operator_rule_rank(rule, 0, dims.count)) {
        return;
    }
    rule->flops = 0;
    for (int d = 0; d < dims.count; ++d) {
        operator_rule_put(rule, 1, (int)dims.values[d], operator_rule_open(rule, 0, d));
    }
    for (int d = 0; d < hlo_rank(rule, 1); ++d) {
        if (!hlo_list_has(&dims, d)) {
            (void)operator_rule_open(rule, 1, d);
        }
    }
}

static void transpose(operator_rule_t *rule)
{
    hlo_list_t dims = hlo_rules_dims(rule, "dimensions", hlo_rank(rule, 0));

    if (!operator_rule_rank(rule, 0, dims.count) || !operator_rule_rank(rule, 1, dims.count)) {
        return;
    }
    for (int d = 0; d < dims.count; ++d) {
        operator_rule_put(rule, 1, d, operator_rule_open(rule, 0, (int)dims.values[d]));
    }
}

/* A plain reduction can be done in any order and in parts, so a reduced dimension may be cut and
 * leaves partial results. Any other combiner may depend on the order and keeps it whole. Start
 * values are scalars beside the point. */
static void reduce(operator_rule_t *rule)
{
    hlo_slice_t combiner = hlo_rules_combiner(rule);
    int inputs = rule->operands / 2, out = rule->operands, kept = 0;
    hlo_list_t dims = hlo_rules_dims(rule, "dimensions", inputs > 0 ? hlo_rank(rule, 0) : 0);
    bool parts = hlo_slice_in(combiner, "add multiply maximum minimum and or");

    if (rule->status == XM_OK && (rule->operands % 2 != 0 || inputs != rule->results)) {
        operator_rule_fail(rule, "%d operands do not reduce to %d results", rule->operands,
                           rule->results);
        return;
    }
    rule->kind = AP_OP_REDUCE;
    rule->flops = operand_type_elements(rule->type[0]);
    for (int i = 0; i < inputs; ++i) {
        (void)operator_rule_rank(rule, inputs + i, 0);
        (void)operator_rule_rank(rule, i, hlo_rank(rule, 0));
        (void)operator_rule_rank(rule, out + i, hlo_rank(rule, 0) - dims.count);
        rule->ignored[inputs + i] = true;
    }
    for (int d = 0; d < hlo_rank(rule, 0) && rule->status == XM_OK; ++d) {
        bool reduced = hlo_list_has(&dims, d);
        int factor = reduced && !parts ? operator_rule_whole(rule, hlo_extent(rule, 0, d))
                                       : operator_rule_factor(rule, hlo_extent(rule, 0, d));

        for (int i = 0; i < inputs; ++i) {
            operator_rule_put(rule, i, d, factor);
            if (!reduced) {
                operator_rule_put(rule, out + i, kept, factor);
            }
        }
        kept += !reduced;
    }
}

/* Dimensions of `a` and `b` of one extent that are not touched are the same; all others stay whole.
 * An extent that happens to be equal where a window moved things must be marked as touched by the
 * caller. */
static void same_where_equal(operator_rule_t *rule, int a, int b, const bool *touched)
{
    if (!operator_rule_rank(rule, b, hlo_rank(rule, a))) {
        return;
    }
    for (int d = 0; d < hlo_rank(rule, a); ++d) {
        if (touched[d] || hlo_extent(rule, a, d) != hlo_extent(rule, b, d)) {
            continue;
        }
        if (rule->dim[a][d].count == 0) {
            (void)operator_rule_open(rule, a, d);
        }
        operator_rule_put(rule, b, d, rule->dim[a][d].factor[0]);
    }
}

/* A slice that keeps the extent of a dimension keeps all of it. Only as many bytes are read as the
 * result has. */
static void slice(operator_rule_t *rule)
{
    const bool none[AP_MAX_RANK] = {false};

    for (int d = 0; d < hlo_rank(rule, 0) && d < hlo_rank(rule, 1); ++d) {
        if (hlo_extent(rule, 1, d) > hlo_extent(rule, 0, d)) {
            operator_rule_fail(rule,
                               "dimension %d of the slice, %" PRId64 ", is larger than what it is "
                               "cut from, %" PRId64,
                               d, hlo_extent(rule, 1, d), hlo_extent(rule, 0, d));
        }
    }
    rule->kind = AP_OP_RESHAPE;
    rule->touched[0] = 1 + 1;
    same_where_equal(rule, 0, 1, none);
}

static void pad(operator_rule_t *rule)
{
    const bool none[AP_MAX_RANK] = {false};

    rule->kind = AP_OP_RESHAPE;
    (void)operator_rule_rank(rule, 1, 0);
    rule->ignored[1] = true;
    same_where_equal(rule, 0, 2, none);
}

/* A cut dimension that is reversed sends whole shards to the mirrored device, which is a
 * permutation. */
static void reverse(operator_rule_t *rule)
{
    hlo_list_t dims = hlo_rules_dims(rule, "dimensions", hlo_rank(rule, 0));

    elementwise(rule);
    rule->flops = 0;
    for (int i = 0; i < dims.count && rule->status == XM_OK && !rule->opaque; ++i) {
        rule->factor[rule->dim[0][dims.values[i]].factor[0]].permuted = true;
    }
}

/* The concatenated dimension stays whole, for its parts do not begin where devices do. */
static void concatenate(operator_rule_t *rule)
{
    int out = rule->operands;
    hlo_list_t dims = hlo_rules_dims(rule, "dimensions", hlo_rank(rule, out));
    bool whole[AP_MAX_RANK] = {false};
    int64_t sum = 0;

    if (rule->status == XM_OK && (dims.count != 1 || rule->operands == 0)) {
        operator_rule_fail(rule, "exactly one dimension and at least one operand are needed");
    }
    rule->kind = AP_OP_RESHAPE;
    for (int t = 0; t < rule->operands && operator_rule_rank(rule, t, hlo_rank(rule, out)); ++t) {
        sum += hlo_extent(rule, t, (int)dims.values[0]);
    }
    if (rule->status == XM_OK && sum != hlo_extent(rule, out, (int)dims.values[0])) {
        operator_rule_fail(rule, "dimension %d of the operands sums to %" PRId64 ", not %" PRId64,
                           (int)dims.values[0], sum, hlo_extent(rule, out, (int)dims.values[0]));
    }
    if (rule->status == XM_OK) {
        whole[dims.values[0]] = true;
        operator_rule_share(rule, out, whole);
    }
}

/* Scalar indices from an operand on. */
static void ignore_from(operator_rule_t *rule, int first)
{
    for (int t = first; t < rule->operands; ++t) {
        rule->ignored[t] = true;
    }
}

static void dynamic_slice(operator_rule_t *rule)
{
    int out = rule->operands;
    const bool none[AP_MAX_RANK] = {false};

    ignore_from(rule, 1);
    rule->kind = AP_OP_RESHAPE;
    rule->touched[0] = out + 1;
    same_where_equal(rule, 0, out, none);
}

/* The update is written in place where the operand is stored, so neither the operand nor the rest
 * of the result is touched. Dimensions that the update covers only in part stay whole. */
static void dynamic_update_slice(operator_rule_t *rule)
{
    int out = rule->operands;
    bool touched[AP_MAX_RANK] = {false};

    if (rule->operands < 2) {
        operator_rule_fail(rule, "at least two operands are needed");
        return;
    }
    ignore_from(rule, 2);
    rule->kind = AP_OP_RESHAPE;
    rule->in_place = true;
    rule->touched[0] = AP_TOUCHES_NONE;
    rule->touched[out] = 1 + 1;
    for (int d = 0; operator_rule_rank(rule, 1, hlo_rank(rule, 0)) && d < hlo_rank(rule, 0); ++d) {
        touched[d] = hlo_extent(rule, 0, d) != hlo_extent(rule, 1, d);
    }
    same_where_equal(rule, 0, 1, touched);
    same_where_equal(rule, 0, out, touched);
}

static void reduce_window(operator_rule_t *rule)
{
    int inputs = rule->operands / 2, out = rule->operands;
    bool touched[AP_MAX_RANK];
    hlo_window_t window = hlo_rules_window(rule);

    if (rule->status == XM_OK && (rule->operands % 2 != 0 || inputs != rule->results)) {
        operator_rule_fail(rule, "%d operands do not reduce to %d results", rule->operands,
                           rule->results);
    }
    rule->kind = AP_OP_REDUCE;
    rule->flops = operand_type_elements(rule->type[out]);
    for (int d = 0; d < AP_MAX_RANK; ++d) {
        touched[d] = d < window.rank && !window.trivial[d];
        rule->flops *= d < window.rank ? (double)window.size[d] : 1;
    }
    ignore_from(rule, inputs);
    for (int i = 0; i < inputs && rule->status == XM_OK; ++i) {
        if (i > 0) {
            same_where_equal(rule, 0, i, touched);
        }
        same_where_equal(rule, 0, out + i, touched);
    }
}

/* The gradient of pooling: operand, source and result share what the window leaves alone. */
static void select_and_scatter(operator_rule_t *rule)
{
    bool touched[AP_MAX_RANK];
    hlo_window_t window = hlo_rules_window(rule);

    for (int d = 0; d < AP_MAX_RANK; ++d) {
        touched[d] = d < window.rank && !window.trivial[d];
    }
    rule->flops = operand_type_elements(rule->type[0]);
    ignore_from(rule, 2);
    same_where_equal(rule, 0, 1, touched);
    same_where_equal(rule, 0, rule->operands, touched);
}

/* The dimensions from `first` to `last` are needed whole, the others pass through. */
static void whole_dims(operator_rule_t *rule, int first, int last)
{
    bool whole[AP_MAX_RANK] = {false};

    for (int d = first < 0 ? 0 : first; d <= last && d < hlo_rank(rule, 0); ++d) {
        whole[d] = true;
    }
    operator_rule_share(rule, 0, whole);
}

static void sort(operator_rule_t *rule)
{
    hlo_list_t dims = hlo_rules_dims(rule, "dimensions", hlo_rank(rule, 0));

    if (rule->status == XM_OK && dims.count != 1) {
        operator_rule_fail(rule, "exactly one dimension is needed");
    }
    rule->flops = operand_type_elements(rule->type[0]);
    whole_dims(rule, (int)dims.values[0], (int)dims.values[0]);
}

/* Top-k needs its last dimension whole, a decomposition of matrices the last two. */
static void whole_last(operator_rule_t *rule)
{
    bool top = hlo_slice_is(hlo_operator(rule)->of->opcode, "topk") ||
               hlo_slice_is(hlo_operator(rule)->of->opcode, "custom-call");

    rule->flops = operand_type_elements(rule->type[0]);
    whole_dims(rule, hlo_rank(rule, 0) - (top ? 1 : 2), hlo_rank(rule, 0) - 1);
}

static void fft(operator_rule_t *rule)
{
    hlo_list_t length = hlo_rules_dims(rule, "fft_length", -1);

    /* The usual count of 5 n log n without the logarithm, which depends on lengths that are often
     * small. */
    rule->flops = 5 * operand_type_elements(rule->type[0]);
    whole_dims(rule, hlo_rank(rule, 0) - length.count, hlo_rank(rule, 0) - 1);
}

/* A sharding annotation by the author: a copy, of which a sharding is demanded (build.c). */
static void sharding(operator_rule_t *rule)
{
    elementwise(rule);
    rule->flops = 0;
}

typedef struct hlo_op_rule {
    const char *opcode;
    void (*fill)(operator_rule_t *rule);
    int operands; /* exactly so many, or at least so many when negative */
} hlo_op_rule_t;

static const hlo_op_rule_t operators[] = {{"broadcast", broadcast, 1},
                                          {"bitcast-convert", bitcast_convert, 1},
                                          {"transpose", transpose, 1},
                                          {"reshape", operator_rule_reshape, 1},
                                          {"bitcast", operator_rule_reshape, 1},
                                          {"dot", hlo_rules_dot, 2},
                                          {"convolution", hlo_rules_convolution, 2},
                                          {"reduce", reduce, -2},
                                          {"slice", slice, 1},
                                          {"pad", pad, 2},
                                          {"reverse", reverse, 1},
                                          {"concatenate", concatenate, -1},
                                          {"dynamic-slice", dynamic_slice, -1},
                                          {"dynamic-update-slice", dynamic_update_slice, -2},
                                          {"gather", hlo_rules_gather, 2},
                                          {"scatter", hlo_rules_scatter, -3},
                                          {"reduce-window", reduce_window, -2},
                                          {"select-and-scatter", select_and_scatter, 3},
                                          {"sort", sort, -1},
                                          {"topk", whole_last, 1},
                                          {"cholesky", whole_last, 1},
                                          {"triangular-solve", whole_last, 2},
                                          {"fft", fft, 1}};

static const char elementwise_opcodes[] =
    "abs add and atan2 cbrt ceil clamp compare complex convert copy cosine "
    "count-leading-zeros divide erf exponential exponential-minus-one floor imag "
    "is-finite log log-plus-one logistic map maximum minimum multiply negate not or "
    "popcnt power real reduce-precision remainder round-nearest-afz round-nearest-even "
    "rsqrt select shift-left shift-right-arithmetic shift-right-logical sign sine sqrt "
    "stochastic-convert subtract tan tanh xor";

/* Custom calls are known by their target. Everything else is looked up in the tables; a linear
 * search is cheap beside writing the rule. */
static bool fill(operator_rule_t *rule)
{
    hlo_slice_t opcode = hlo_operator(rule)->of->opcode;

    if (hlo_slice_is(opcode, "custom-call")) {
        hlo_slice_t target = hlo_attribute(hlo_operator(rule)->of, "custom_call_target");

        if (hlo_slice_is(target, "Sharding") && rule->operands == 1 && rule->results == 1) {
            sharding(rule);
            return true;
        }
        if (hlo_slice_is(target, "TopK") && rule->operands == 1) {
            whole_last(rule);
            return true;
        }
        return false;
    }
    for (size_t i = 0; i < sizeof(operators) / sizeof(operators[0]); ++i) {
        if (!hlo_slice_is(opcode, operators[i].opcode)) {
            continue;
        }
        if (operators[i].operands < 0 ? rule->operands < -operators[i].operands
                                      : rule->operands != operators[i].operands) {
            operator_rule_fail(rule, "%d operands are too few or too many", rule->operands);
        } else {
            operators[i].fill(rule);
        }
        return true;
    }
    if (hlo_slice_in(opcode, elementwise_opcodes)) {
        if (rule->operands < 1) {
            operator_rule_fail(rule, "an operand is needed");
        } else {
            elementwise(rule);
        }
        return true;
    }
    return false;
}

/* A rule does not know its instruction; what it refuses gets the place here. */
static xm_status_t refused_at(const hlo_operator_t *made)
{
    hlo_slice_t opcode = made->of->opcode;

    return hlo_error(&made->module->text, made->of->at, "%.*s: %s",
                     (int)(opcode.length > 40 ? 40 : opcode.length), opcode.at, xm_last_error());
}

/* Operands are typed by the instructions that make them, not by what the text repeats. An operator
 * with tuples among its terms has no rule, even if its opcode has one. */
xm_status_t hlo_rules_make(const hlo_module_t *module, const hlo_computation_t *in,
                           const hlo_instruction_t *of, hlo_operator_t *made, bool *known)
{
    operator_rule_t *rule = &made->rule;
    bool flat = true;

    made->module = module;
    made->of = of;
    operator_rule_begin(rule, of->operand_count, of->type->tuple ? of->type->count : 1);
    *known = false;
    for (int t = 0; t < rule->operands + rule->results; ++t) {
        rule->type[t] = t < rule->operands ? in->instructions[of->operands[t]].type
                        : of->type->tuple  ? of->type->elements[t - rule->operands]
                                           : of->type;
        flat = flat && !rule->type[t]->tuple;
    }
    *known = rule->status == XM_OK && flat && rule->results > 0 && fill(rule);
    if (rule->status == XM_OK && (!*known || rule->opaque)) {
        operator_rule_make_opaque(rule);
    }
    if (rule->status == XM_OK) {
        operator_rule_close(rule);
    }
    return rule->refused ? refused_at(made) : rule->status;
}
