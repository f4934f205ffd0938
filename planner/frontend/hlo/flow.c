/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loops and conditionals of HLO. A loop with a known trip count is its body, with every operator
 * counted that many times; the state that it carries must have one sharding from round to round,
 * which aliases between what goes in and what comes out express. A conditional is all of its
 * branches, because it is not known which one runs; that overestimates time and keeps every branch
 * possible.
 *
 * What is known of a trip count is found in the form that JAX's scan and fori_loop have: a counter
 * in the state with a constant step, compared with a bound. Anything else counts as one round, with
 * a note.
 */

#include <stdio.h>
#include <string.h>

#include "planner/frontend/hlo/build.h"

static const hlo_instruction_t *root_of(const hlo_computation_t *in)
{
    return &in->instructions[in->root];
}

static const hlo_instruction_t *operand_of(const hlo_computation_t *in, const hlo_instruction_t *of,
                                           int operand)
{
    return &in->instructions[of->operands[operand]];
}

/* The element of the loop's state that an instruction reads, or -1. */
static int state_element(const hlo_build_t *b, const hlo_computation_t *in,
                         const hlo_instruction_t *of)
{
    int64_t index;

    if (!hlo_slice_is(of->opcode, "get-tuple-element") || of->operand_count != 1 ||
        !hlo_slice_is(operand_of(in, of, 0)->opcode, "parameter") ||
        hlo_attribute_number(b->module, of, "index", -1, &index) != XM_OK) {
        return -1;
    }
    return (int)index;
}

static bool literal_of(const hlo_build_t *b, const hlo_instruction_t *of, int64_t *number)
{
    hlo_cursor_t cursor = hlo_cursor_of(&b->module->text, of->literal);

    if (!hlo_slice_is(of->opcode, "constant") || of->literal.length >= 24) {
        return false;
    }
    *number = hlo_integer(&cursor);
    return cursor.status == XM_OK;
}

/* The value of an instruction of the condition: a constant, or an element of the state that the
 * body passes on as it is and whose initial value is known. */
static bool number_of(const hlo_build_t *b, const hlo_computation_t *condition,
                      const hlo_computation_t *body, const hlo_instruction_t *of,
                      const hlo_value_t *init, int64_t *number)
{
    const hlo_instruction_t *out = root_of(body);
    int element = state_element(b, condition, of);

    if (literal_of(b, of, number)) {
        return true;
    }
    if (element < 0 || element >= init->count || !hlo_slice_is(out->opcode, "tuple") ||
        element >= out->operand_count ||
        state_element(b, body, operand_of(body, out, element)) != element ||
        !init->elements[element]->known) {
        return false;
    }
    *number = init->elements[element]->number;
    return true;
}

/* How much the body adds to an element of the state; 0 when it is not seen to add a constant. */
static int64_t step_of(const hlo_build_t *b, const hlo_computation_t *body, int element)
{
    const hlo_instruction_t *out = root_of(body), *add;
    int64_t step;

    if (!hlo_slice_is(out->opcode, "tuple") || element < 0 || element >= out->operand_count) {
        return 0;
    }
    add = operand_of(body, out, element);
    if (!hlo_slice_is(add->opcode, "add") || add->operand_count != 2) {
        return 0;
    }
    for (int side = 0; side < 2; ++side) {
        if (state_element(b, body, operand_of(body, add, side)) == element &&
            literal_of(b, operand_of(body, add, 1 - side), &step)) {
            return step;
        }
    }
    return 0;
}

/* The number of times that a loop runs when it counts up to a known bound: i from its initial
 * value, while i < bound. False when the text does not tell. Doubles, because bounds near the ends
 * of 64 bits must not overflow; counts of real loops are exact in them. */
static bool trip_count(const hlo_build_t *b, const hlo_computation_t *condition,
                       const hlo_computation_t *body, const hlo_value_t *init, double *trips)
{
    const hlo_instruction_t *compare = root_of(condition);
    hlo_slice_t direction = hlo_attribute(compare, "direction");
    bool less = hlo_slice_is(direction, "LT"), at_most = hlo_slice_is(direction, "LE");
    int counter, bound_side;
    int64_t bound, first, step;

    if (!hlo_slice_is(compare->opcode, "compare") || compare->operand_count != 2 ||
        init->kind != HLO_VALUE_TUPLE) {
        return false;
    }
    if (hlo_slice_is(direction, "GT") || hlo_slice_is(direction, "GE")) { /* bound > i */
        less = hlo_slice_is(direction, "GT");
        at_most = !less;
        bound_side = 0;
    } else {
        bound_side = 1;
    }
    counter = state_element(b, condition, operand_of(condition, compare, 1 - bound_side));
    if ((!less && !at_most) || counter < 0 || counter >= init->count ||
        !init->elements[counter]->known ||
        !number_of(b, condition, body, operand_of(condition, compare, bound_side), init, &bound)) {
        return false;
    }
    first = init->elements[counter]->number;
    step = step_of(b, body, counter);
    if (step <= 0) {
        return false;
    }
    *trips = (double)bound - (double)first + (at_most ? 1 : 0);
    *trips = *trips <= 0 ? 0 : (double)(int64_t)((*trips + (double)step - 1) / (double)step);
    return true;
}

/* A copy of a value. Numbers are forgotten, because the body changes them. */
static hlo_value_t *copy_state(hlo_build_t *b, const hlo_value_t *value)
{
    hlo_value_t *made = hlo_value_free(b, value->type);

    if (made == NULL) {
        return NULL;
    }
    made->kind = value->kind;
    made->tensor = value->tensor;
    for (int i = 0; i < value->count; ++i) {
        made->elements[i] = copy_state(b, value->elements[i]);
        if (made->elements[i] == NULL) {
            return NULL;
        }
    }
    return made;
}

/* The leaves of a loop's state, going in and coming out of the body. */
typedef struct loop {
    const hlo_instruction_t *of;
    const hlo_computation_t *stands_in;
    int body, condition, count; /* computations, leaves */
    hlo_value_t *state, **in, **out;
} loop_t;

static xm_status_t run_body(hlo_build_t *b, loop_t *loop, hlo_value_t **result)
{
    XM_TRY(hlo_build_computation(b, loop->body, &loop->state, 1, loop->of->at, result));

    if (!operand_type_same((*result)->type, loop->state->type)) {
        return hlo_error(&b->module->text, loop->of->at,
                         "while: the body returns another type than it takes");
    }
    (void)hlo_value_leaves(*result, loop->out, loop->count);
    return XM_OK;
}

/* Finds the state that starts from constants but holds data after the first round, as a sum that
 * starts at zero does: it becomes a tensor. One round can let data into another element, so dry
 * runs repeat until nothing changes; every round but the last turns at least one leaf into a
 * tensor, so there are at most as many as leaves. */
static xm_status_t find_data(hlo_build_t *b, loop_t *loop, bool *becomes)
{
    const bool dry = b->dry;
    bool changed = true;
    hlo_value_t *result;
    xm_status_t status = XM_OK;

    b->dry = true;
    while (changed && status == XM_OK) {
        changed = false;
        status = run_body(b, loop, &result);
        for (int i = 0; i < loop->count && status == XM_OK; ++i) {
            if (loop->in[i]->kind == HLO_VALUE_FREE && loop->out[i]->kind == HLO_VALUE_TENSOR) {
                loop->in[i]->kind = HLO_VALUE_TENSOR;
                loop->in[i]->tensor = 0;
                becomes[i] = changed = true;
            }
        }
    }
    b->dry = dry;
    return status;
}

/* The state as the loop keeps it. What starts from constants becomes an input of the graph, which
 * needs no transfer; what the body replaces gets a tensor of its own, so that the loop may carry it
 * in another sharding than it arrives in. */
static xm_status_t enter(hlo_build_t *b, loop_t *loop, const bool *becomes)
{
    for (int i = 0; i < loop->count; ++i) {
        hlo_value_t *in = loop->in[i];
        xm_status_t status = XM_OK;
        char name[200];

        if (b->dry || in->kind != HLO_VALUE_TENSOR) {
            continue;
        }
        if (becomes[i]) {
            (void)snprintf(name, sizeof(name), "%.*s.init%d", (int)loop->of->name.length,
                           loop->of->name.at, i);
            status = ap_graph_add_tensor(b->graph, name, AP_TENSOR_INPUT, &in->type->shape,
                                         in->type->dtype, &in->tensor);
        } else if (loop->out[i] != in) {
            status = hlo_emit_alike(b, loop->of, in->type, &in->tensor, 1, true, &in->tensor);
        }
        XM_TRY(status);
    }
    return XM_OK;
}

static bool is_replaced(const hlo_value_t *in, const hlo_value_t *out)
{
    return in->kind == HLO_VALUE_TENSOR && out->kind == HLO_VALUE_TENSOR &&
           in->tensor != out->tensor;
}

/* Ties the end of a round to its beginning: what comes out of the body goes in again, so both have
 * one sharding, which an alias says. The leaves in `out` become those of *result, a value of its
 * own. */
static xm_status_t close_loop(hlo_build_t *b, loop_t *loop, hlo_value_t **result)
{
    *result = copy_state(b, *result);
    if (*result == NULL) {
        return hlo_no_memory();
    }
    (void)hlo_value_leaves(*result, loop->out, loop->count);
    for (int i = 0; i < loop->count && !b->dry; ++i) {
        hlo_value_t *in = loop->in[i], *out = loop->out[i];
        xm_status_t status;

        if (!is_replaced(in, out)) {
            continue;
        }
        status = hlo_emit_alike(b, loop->of, in->type, &out->tensor, 1, true, &out->tensor);
        XM_THEN(status, ap_graph_set_alias(b->graph, out->tensor, in->tensor));
        XM_TRY(status);
    }
    return XM_OK;
}

/* Whether an instruction reads element `element` of a loop's result. An instruction that takes the
 * whole result counts as reading all elements. */
static bool reads_element(const hlo_build_t *b, const loop_t *loop, const hlo_instruction_t *user,
                          int element)
{
    int64_t index = element;

    for (int o = 0; o < user->operand_count; ++o) {
        if (operand_of(loop->stands_in, user, o) == loop->of) {
            return !hlo_slice_is(user->opcode, "get-tuple-element") ||
                   hlo_attribute_number(b->module, user, "index", -1, &index) != XM_OK ||
                   index == element;
        }
    }
    return false;
}

/* Whether something behind a loop asks for an element of its result. Elements that nobody reads get
 * no operator behind the loop, and thus cost nothing there. */
static bool is_asked_for(const hlo_build_t *b, const loop_t *loop, int element)
{
    const hlo_computation_t *in = loop->stands_in;

    for (int n = 0; n < in->count; ++n) {
        if (in->instructions[n].needed && reads_element(b, loop, &in->instructions[n], element)) {
            return true;
        }
    }
    return root_of(in) == loop->of;
}

/* What is left after the last round, as the operators behind the loop find it. The operator in
 * between lets them have it in another sharding than the loop carries. */
static xm_status_t leave(hlo_build_t *b, const loop_t *loop, const hlo_value_t *result)
{
    const bool tuple = result->kind == HLO_VALUE_TUPLE;
    int leaf = 0;

    for (int e = 0; e < (tuple ? result->count : 1); ++e) {
        int end = tuple ? leaf + hlo_value_leaves(result->elements[e], NULL, 0) : 1;
        bool wanted = !tuple || is_asked_for(b, loop, e);

        for (; leaf < end; ++leaf) {
            hlo_value_t *out = loop->out[leaf];

            if (wanted && is_replaced(loop->in[leaf], out)) {
                XM_TRY(hlo_emit_alike(b, loop->of, out->type, &out->tensor, 1, true, &out->tensor));
            }
        }
    }
    return XM_OK;
}

/* Notes what the loop carries, for the exports, which write its sharding into the text; `outside`
 * goes in. */
static xm_status_t note_loop(hlo_build_t *b, const loop_t *loop, const int *outside, int *number)
{
    hlo_loop_t noted = {.context = b->context,
                        .body = b->source->context_count,
                        .body_computation = loop->body,
                        .condition_computation = loop->condition,
                        .first_op = ap_graph_ops(b->graph),
                        .count = loop->count};

    noted.state = xm_arena_get(&b->module->arena, (size_t)loop->count, sizeof(*noted.state));
    if (noted.state == NULL) {
        return hlo_no_memory();
    }
    for (int i = 0; i < loop->count; ++i) {
        const hlo_value_t *in = loop->in[i];

        noted.state[i] = (hlo_carried_t){
            .shape = in->type->shape,
            .outside = outside[i],
            .inside = in->kind == HLO_VALUE_TENSOR ? in->tensor : HLO_INSTANCE_NONE};
    }
    return hlo_source_add_loop(b->source, loop->of, &noted, number);
}

/* Notes what the body returns, or with `after` what is left after the loop. The entry is looked up
 * each time, because inner loops make the list grow and move. */
static void note_results(hlo_build_t *b, const loop_t *loop, int number, bool after)
{
    for (int i = 0; i < loop->count && !b->dry; ++i) {
        hlo_loop_t *noted = &b->source->loops[number];
        int tensor =
            loop->out[i]->kind == HLO_VALUE_TENSOR ? loop->out[i]->tensor : HLO_INSTANCE_NONE;

        if (after) {
            noted->state[i].after = tensor;
        } else {
            noted->state[i].returned = tensor;
        }
    }
}

/* The order matters: dry runs find out which state holds data, then the state is entered, noted and
 * run once for real. `repeat` is that of the body only while the body is built. */
static xm_status_t build_loop(hlo_build_t *b, loop_t *loop, double trips, hlo_value_t **result)
{
    bool *becomes = xm_arena_get(&b->module->arena, (size_t)loop->count, sizeof(bool));
    int *outside = xm_arena_get(&b->module->arena, (size_t)loop->count, sizeof(int));
    const double repeat = b->repeat;
    int number = -1, end_op;
    xm_status_t status;

    if (becomes == NULL || outside == NULL) {
        return hlo_no_memory();
    }
    for (int i = 0; i < loop->count; ++i) {
        outside[i] =
            loop->in[i]->kind == HLO_VALUE_TENSOR ? loop->in[i]->tensor : HLO_INSTANCE_NONE;
    }
    status = find_data(b, loop, becomes);
    XM_THEN(status, enter(b, loop, becomes));
    if (status == XM_OK && !b->dry) {
        status = note_loop(b, loop, outside, &number);
    }
    if (status == XM_OK) {
        b->repeat = repeat * trips;
        status = run_body(b, loop, result);
    }
    if (status == XM_OK) {
        note_results(b, loop, number, false);
        status = close_loop(b, loop, result);
    }
    b->repeat = repeat;
    end_op = ap_graph_ops(b->graph);
    if (status == XM_OK && !b->dry) {
        status = leave(b, loop, *result);
    }
    if (status == XM_OK && !b->dry) {
        note_results(b, loop, number, true);
        b->source->loops[number].end_op = end_op;
    }
    return status;
}

xm_status_t hlo_build_while(hlo_build_t *b, const hlo_computation_t *in,
                            const hlo_instruction_t *of, hlo_value_t *init, hlo_value_t **result)
{
    loop_t loop = {.of = of, .stands_in = in};
    double trips = 1;
    xm_status_t status = XM_OK;

    XM_TRY(hlo_attribute_computation(b->module, of, "condition", &loop.condition));
    XM_TRY(hlo_attribute_computation(b->module, of, "body", &loop.body));
    if (!operand_type_same(of->type, init->type)) {
        return hlo_error(&b->module->text, of->at, "while: the operand is of another type");
    }
    if (!trip_count(b, &b->module->computations[loop.condition],
                    &b->module->computations[loop.body], init, &trips)) {
        status = hlo_build_note(b, "while of unknown length",
                                (hlo_slice_t){.at = of->name.at, .length = 0});
    }
    /* A loop that never runs passes its state on. */
    if (trips == 0) {
        *result = init;
        return XM_OK;
    }
    loop.state = copy_state(b, init);
    if (loop.state == NULL) {
        return hlo_no_memory();
    }
    loop.count = hlo_value_leaves(loop.state, NULL, 0);
    loop.in = xm_arena_get(&b->module->arena, (size_t)loop.count, sizeof(hlo_value_t *));
    loop.out = xm_arena_get(&b->module->arena, (size_t)loop.count, sizeof(hlo_value_t *));
    if (loop.in == NULL || loop.out == NULL) {
        return hlo_no_memory();
    }
    (void)hlo_value_leaves(loop.state, loop.in, loop.count);
    return status == XM_OK ? build_loop(b, &loop, trips, result) : status;
}

/* Either of two results of one type, leaf by leaf: an elementwise choice of both tensors, or the
 * one that holds data. */
static xm_status_t either(hlo_build_t *b, const hlo_instruction_t *of, hlo_value_t *left,
                          hlo_value_t *right, hlo_value_t **result)
{
    const int tensors[] = {left->tensor, right->tensor};
    int made;

    if (left->kind == HLO_VALUE_TUPLE) {
        *result = copy_state(b, left);
        for (int i = 0; *result != NULL && i < left->count; ++i) {
            XM_TRY(either(b, of, left->elements[i], right->elements[i], &(*result)->elements[i]));
        }
        return *result == NULL ? hlo_no_memory() : XM_OK;
    }
    if (left->kind == HLO_VALUE_FREE || right->kind == HLO_VALUE_FREE ||
        left->tensor == right->tensor) {
        *result = copy_state(b, left->kind == HLO_VALUE_FREE ? right : left);
        return *result == NULL ? hlo_no_memory() : XM_OK;
    }
    XM_TRY(hlo_emit_alike(b, of, left->type, tensors, 2, false, &made));
    *result = hlo_value_tensor(b, left->type, made);
    return *result == NULL ? hlo_no_memory() : XM_OK;
}

/* The name of branch `index`, from a list or one of two attributes; length 0 past the last. */
static hlo_slice_t branch_name(const hlo_build_t *b, const hlo_instruction_t *of, int index)
{
    hlo_slice_t list = hlo_attribute(of, "branch_computations"), name = {0};
    hlo_cursor_t cursor = hlo_cursor_of(&b->module->text, list);

    if (list.length == 0) {
        return index > 1 ? name
                         : hlo_attribute(of, index == 0 ? "true_computation" : "false_computation");
    }
    (void)hlo_accept(&cursor, "{");
    for (int i = 0; i <= index; ++i) {
        name = hlo_word(&cursor);
        if (i < index && !hlo_accept(&cursor, ",")) {
            return (hlo_slice_t){0};
        }
    }
    return name;
}

/* Every branch is built, and their results are joined one after the other. A branch index that is
 * computed from data costs nothing by itself. */
xm_status_t hlo_build_conditional(hlo_build_t *b, const hlo_instruction_t *of,
                                  hlo_value_t *const *operands, hlo_value_t **result)
{
    *result = NULL;
    for (int branch = 0; branch + 1 < of->operand_count || branch == 0; ++branch) {
        hlo_slice_t name = branch_name(b, of, branch);
        int computation = name.length == 0 ? -1 : hlo_module_find(b->module, name);
        hlo_value_t *made = NULL;
        xm_status_t status;

        if (computation < 0 || branch + 1 >= of->operand_count) {
            return hlo_error(&b->module->text, of->at,
                             "conditional: branch %d names no computation or has no operand",
                             branch);
        }
        status = hlo_build_computation(b, computation, &operands[branch + 1], 1, of->at, &made);
        if (status == XM_OK && !operand_type_same(made->type, of->type)) {
            return hlo_error(&b->module->text, of->at,
                             "conditional: branch %d returns another type", branch);
        }
        XM_THEN(status, *result == NULL ? XM_OK : either(b, of, *result, made, &made));
        XM_TRY(status);
        *result = made;
    }
    return XM_OK;
}
