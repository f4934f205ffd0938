/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From an HLO module to operators of a graph, by evaluating it: every computation is run on values
 * that stand for tensors, and each instruction that computes on data adds an operator. So calls,
 * fusions and tuples vanish by themselves, and what depends on constants alone is seen to need no
 * data.
 *
 * A computation that is called twice is evaluated twice, which can make more operators than the
 * text has instructions; depth and work are bounded for files that would make too many. Values live
 * in the module's arena and are freed with it.
 */

#include "planner/frontend/hlo/build.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/frontend/hlo/rules.h"
#include "planner/frontend/hlo/sharding.h"

enum { MAX_DEPTH = 64, MAX_WORK = 1 << 21 };

xm_status_t hlo_no_memory(void)
{
    return XM_NO_MEMORY("the graph of an HLO module");
}

/* Dry runs see every instruction of a loop several times; only the real run counts. */
xm_status_t hlo_build_note(hlo_build_t *b, const char *prefix, hlo_slice_t name)
{
    char text[128];

    if (b->dry) {
        return XM_OK;
    }
    (void)snprintf(text, sizeof(text), "%s%.*s", prefix, (int)(name.length > 60 ? 60 : name.length),
                   name.length > 0 ? name.at : "");
    return ap_frontend_notes_add(b->notes, text);
}

/* A tensor and a free array differ in their kind only. */
hlo_value_t *hlo_value_tensor(hlo_build_t *b, const operand_type_t *type, int tensor)
{
    hlo_value_t *made = xm_arena_get(&b->module->arena, 1, sizeof(*made));

    if (made != NULL) {
        made->kind = HLO_VALUE_TENSOR;
        made->type = type;
        made->tensor = tensor;
    }
    return made;
}

static hlo_value_t *make_tuple(hlo_build_t *b, const operand_type_t *type)
{
    hlo_value_t *made = xm_arena_get(&b->module->arena, 1, sizeof(*made));

    if (made == NULL) {
        return NULL;
    }
    made->kind = HLO_VALUE_TUPLE;
    made->type = type;
    made->count = type->count;
    made->elements = xm_arena_get(&b->module->arena, (size_t)type->count, sizeof(hlo_value_t *));
    return made->elements == NULL ? NULL : made;
}

/* Recursion is as deep as the type is nested, which the parser bounds. */
hlo_value_t *hlo_value_free(hlo_build_t *b, const operand_type_t *type)
{
    hlo_value_t *made;

    if (!type->tuple) {
        made = hlo_value_tensor(b, type, OPERATOR_NO_TENSOR);
        if (made != NULL) {
            made->kind = HLO_VALUE_FREE;
        }
        return made;
    }
    made = make_tuple(b, type);
    for (int i = 0; made != NULL && i < type->count; ++i) {
        made->elements[i] = hlo_value_free(b, type->elements[i]);
        if (made->elements[i] == NULL) {
            return NULL;
        }
    }
    return made;
}

/* With too little room the number is still the whole one, so callers ask once without room and once
 * with it. Values nest as deep as types do. NOLINTNEXTLINE(misc-no-recursion) */
int hlo_value_leaves(hlo_value_t *value, hlo_value_t **leaves, int room)
{
    int count = 0;

    if (value->kind != HLO_VALUE_TUPLE) {
        if (room > 0) {
            leaves[0] = value;
        }
        return 1;
    }
    for (int i = 0; i < value->count; ++i) {
        count += hlo_value_leaves(value->elements[i], count < room ? leaves + count : NULL,
                                  count < room ? room - count : 0);
    }
    return count;
}

/* A result of a type whose array leaves are the tensors `ids`, in order; *next moves on. What holds
 * no data becomes free, whatever id it has. */
static hlo_value_t *value_of(hlo_build_t *b, const operand_type_t *type, const int *ids, int *next)
{
    hlo_value_t *made;

    if (!type->tuple) {
        int id = ids[(*next)++];

        return id == OPERATOR_NO_TENSOR || type->empty ? hlo_value_free(b, type)
                                                       : hlo_value_tensor(b, type, id);
    }
    made = make_tuple(b, type);
    for (int i = 0; made != NULL && i < type->count; ++i) {
        made->elements[i] = value_of(b, type->elements[i], ids, next);
        if (made->elements[i] == NULL) {
            return NULL;
        }
    }
    return made;
}

/* Adds an operator without a rule, over whatever tuples. All leaves of its operands are read whole
 * and all leaves of its result are made whole, which is right for any operator, and dear; it is
 * counted in the notes so that the user sees where plans cannot cut. */
static xm_status_t build_unknown(hlo_build_t *b, const hlo_instruction_t *of,
                                 hlo_value_t *const *operands, hlo_value_t **result)
{
    xm_arena_t *arena = &b->module->arena;
    hlo_value_t *made = hlo_value_free(b, of->type), **leaves;
    const operand_type_t **types;
    int *ids, *spread;
    int operand_leaves = 0, results, size, read = 0, count = 0, next = 0;
    xm_status_t status;

    if (made == NULL) {
        return hlo_no_memory();
    }
    for (int o = 0; o < of->operand_count; ++o) {
        operand_leaves += hlo_value_leaves(operands[o], NULL, 0);
    }
    results = hlo_value_leaves(made, NULL, 0);
    size = operand_leaves + results;
    leaves = xm_arena_get(arena, (size_t)size, sizeof(hlo_value_t *));
    types = xm_arena_get(arena, (size_t)size, sizeof(const operand_type_t *));
    ids = xm_arena_get(arena, (size_t)size, sizeof(int));
    spread = xm_arena_get(arena, (size_t)results, sizeof(int));
    if (leaves == NULL || types == NULL || ids == NULL || spread == NULL) {
        /* The name of a custom call says nothing; what it calls does. */
        return hlo_no_memory();
    }
    status = hlo_slice_is(of->opcode, "custom-call")
                 ? hlo_build_note(b, "custom-call ", hlo_attribute(of, "custom_call_target"))
                 : hlo_build_note(b, "", of->opcode);
    for (int o = 0; o < of->operand_count; ++o) {
        count += hlo_value_leaves(operands[o], leaves + count, size - count);
    }
    for (int i = 0; i < count; ++i) {
        if (leaves[i]->kind == HLO_VALUE_TENSOR) {
            types[read] = leaves[i]->type;
            ids[read++] = leaves[i]->tensor;
        }
    }
    *result = made;
    if (status != XM_OK || read == 0) {
        return status;
    }
    (void)hlo_value_leaves(made, leaves, size);
    count = 0;
    for (int i = 0; i < results; ++i) {
        if (!leaves[i]->type->empty) {
            types[read + count++] = leaves[i]->type;
        }
    }
    if (count == 0) { /* only tokens */
        return XM_OK;
    }
    XM_TRY(hlo_emit_opaque(b, of, types, ids, read, types + read, count, ids + read));
    count = 0;
    for (int i = 0; i < results; ++i) { /* tokens hold no data */
        spread[i] = leaves[i]->type->empty ? OPERATOR_NO_TENSOR : ids[read + count++];
    }
    *result = value_of(b, of->type, spread, &next);
    return *result == NULL ? hlo_no_memory() : XM_OK;
}

xm_status_t hlo_build_demand(hlo_build_t *b, const hlo_instruction_t *of, int tensor)
{
    hlo_sharding_t sharding;
    XM_TRY(b->dry || of->type->tuple
               ? XM_OK
               : hlo_sharding_read(b->module, of, &of->type->shape, &sharding));

    if (!b->dry && !of->type->tuple && sharding.demands) {
        ap_graph_demand(b->graph, tensor, sharding.cut);
    }
    return XM_OK;
}

/* An operator whose operands are all free needs no device to send anything: each can compute any
 * part of the result from nothing. The same holds where all data go in beside the point, such as
 * the start value of a reduction. */
static xm_status_t build_by_rule(hlo_build_t *b, const hlo_instruction_t *of, operator_rule_t *rule,
                                 hlo_value_t *const *operands, hlo_value_t **result)
{
    const size_t terms = (size_t)rule->operands + (size_t)rule->results;
    int *tensors = xm_arena_get(&b->module->arena, terms, sizeof(int)), *ids, next = 0;
    bool reads = false;

    if (tensors == NULL) {
        return hlo_no_memory();
    }
    ids = tensors + rule->operands;
    for (int o = 0; o < rule->operands; ++o) {
        tensors[o] =
            operands[o]->kind == HLO_VALUE_TENSOR ? operands[o]->tensor : OPERATOR_NO_TENSOR;
        reads = reads || (tensors[o] != OPERATOR_NO_TENSOR && !rule->ignored[o]);
    }
    /* A result without elements holds no data. */
    for (int r = 0; r < rule->results; ++r) {
        reads = reads && !rule->type[rule->operands + r]->empty;
    }
    if (!reads) {
        *result = hlo_value_free(b, of->type);
        return *result == NULL ? hlo_no_memory() : XM_OK;
    }
    XM_TRY(hlo_emit(b, of, rule, tensors, ids));
    if (hlo_slice_is(of->opcode, "custom-call")) {
        XM_TRY(hlo_build_demand(b, of, ids[0]));
    }
    *result = value_of(b, of->type, ids, &next);
    return *result == NULL ? hlo_no_memory() : XM_OK;
}

static xm_status_t build_operator(hlo_build_t *b, const hlo_computation_t *in,
                                  const hlo_instruction_t *of, hlo_value_t *const *operands,
                                  hlo_value_t **result)
{
    bool known;
    hlo_operator_t made;
    xm_status_t status = hlo_rules_make(b->module, in, of, &made, &known);

    XM_THEN(status, known ? build_by_rule(b, of, &made.rule, operands, result)
                          : build_unknown(b, of, operands, result));
    operator_rule_end(&made.rule);
    return status;
}

/* Only the numbers of scalars are kept, for the trip counts of loops. */
static xm_status_t build_constant(hlo_build_t *b, const hlo_instruction_t *of, hlo_value_t **result)
{
    hlo_cursor_t cursor = hlo_cursor_of(&b->module->text, of->literal);

    *result = hlo_value_free(b, of->type);
    if (*result == NULL) {
        return hlo_no_memory();
    }
    if (!of->type->tuple && of->type->shape.rank == 0 && of->literal.length < 24) {
        (*result)->number = hlo_integer(&cursor);
        (*result)->known = cursor.status == XM_OK && hlo_peek(&cursor) == '\0';
    }
    return XM_OK;
}

static xm_status_t build_tuple(hlo_build_t *b, const hlo_instruction_t *of,
                               hlo_value_t *const *operands, hlo_value_t **result)
{
    if (!of->type->tuple || of->type->count != of->operand_count) {
        return hlo_error(&b->module->text, of->at, "tuple: %d operands do not make this type",
                         of->operand_count);
    }
    *result = make_tuple(b, of->type);
    for (int i = 0; *result != NULL && i < of->operand_count; ++i) {
        if (!operand_type_same(of->type->elements[i], operands[i]->type)) {
            return hlo_error(&b->module->text, of->at,
                             "tuple: operand %d differs from element %d of the type", i, i);
        }
        (*result)->elements[i] = operands[i];
    }
    return *result == NULL ? hlo_no_memory() : XM_OK;
}

static xm_status_t build_element(hlo_build_t *b, const hlo_instruction_t *of,
                                 hlo_value_t *const *operands, hlo_value_t **result)
{
    int64_t index;

    XM_TRY(hlo_attribute_number(b->module, of, "index", -1, &index));
    if (of->operand_count != 1 || operands[0]->kind != HLO_VALUE_TUPLE || index < 0 ||
        index >= operands[0]->count ||
        !operand_type_same(of->type, operands[0]->elements[index]->type)) {
        return hlo_error(&b->module->text, of->at,
                         "get-tuple-element: the operand has no element %lld of this type",
                         (long long)index);
    }
    *result = operands[0]->elements[index];
    return XM_OK;
}

static xm_status_t build_call(hlo_build_t *b, const hlo_instruction_t *of, const char *key,
                              hlo_value_t *const *operands, hlo_value_t **result)
{
    int computation;
    XM_TRY(hlo_attribute_computation(b->module, of, key, &computation));

    XM_TRY(hlo_build_computation(b, computation, operands, of->operand_count, of->at, result));
    if (!operand_type_same((*result)->type, of->type)) {
        return hlo_error(&b->module->text, of->at,
                         "what is called returns another type than is written here");
    }
    return XM_OK;
}

/* Whether an operator only passes its first operand on. Such an operator adds nothing to the graph;
 * one that would need a decision, such as a Sharding annotation, does. */
static bool is_transparent(const hlo_instruction_t *of, hlo_value_t *const *operands)
{
    /* A reshape to the same shape is one of them, another reshape is not. */
    if (of->operand_count < 1 || !operand_type_same(of->type, operands[0]->type)) {
        return false;
    }
    return hlo_slice_in(of->opcode, "optimization-barrier opt-barrier copy reshape bitcast domain "
                                    "add-dependency copy-done") ||
           (hlo_slice_is(of->opcode, "custom-call") &&
            hlo_slice_in(hlo_attribute(of, "custom_call_target"),
                         "xla.sdy.FuncResultSharding annotate_device_placement LayoutConstraint"));
}

/* Whether an operator makes something out of nothing, on every device for itself. */
static bool is_source(const hlo_instruction_t *of)
{
    return hlo_slice_in(of->opcode, "iota rng partition-id replica-id after-all get-dimension-size "
                                    "create-token rng-get-and-update-state");
}

/* Opcodes that shape the control flow or the values come first; everything else is an operator with
 * a rule, or without. */
static xm_status_t build_instruction(hlo_build_t *b, const hlo_computation_t *in,
                                     const hlo_instruction_t *of, hlo_value_t *const *operands,
                                     hlo_value_t **result)
{
    if (hlo_slice_is(of->opcode, "constant")) {
        return build_constant(b, of, result);
    }
    if (hlo_slice_is(of->opcode, "tuple")) {
        return build_tuple(b, of, operands, result);
    }
    if (hlo_slice_is(of->opcode, "get-tuple-element")) {
        return build_element(b, of, operands, result);
    }
    if (hlo_slice_is(of->opcode, "call")) {
        return build_call(b, of, "to_apply", operands, result);
    }
    if (hlo_slice_is(of->opcode, "fusion")) {
        return build_call(b, of, "calls", operands, result);
    }
    if (hlo_slice_is(of->opcode, "conditional")) {
        return hlo_build_conditional(b, of, operands, result);
    }
    if (hlo_slice_is(of->opcode, "while")) {
        return of->operand_count == 1
                   ? hlo_build_while(b, in, of, operands[0], result)
                   : hlo_error(&b->module->text, of->at, "while: one operand is needed");
    }
    if (is_source(of)) {
        *result = hlo_value_free(b, of->type);
        return *result == NULL ? hlo_no_memory() : XM_OK;
    }
    if (is_transparent(of, operands)) {
        *result = operands[0];
        return XM_OK;
    }
    return build_operator(b, in, of, operands, result);
}

static int tensor_of(const hlo_value_t *value)
{
    return value != NULL && value->kind == HLO_VALUE_TENSOR ? value->tensor : HLO_INSTANCE_NONE;
}

/* Notes where the operators made since the last instance, and this value, stand in the text.
 * Instances are noted for instructions that are not needed as well, because an export goes through
 * the text and looks each of them up. */
static xm_status_t note_instance(hlo_build_t *b, const hlo_instruction_t *of,
                                 hlo_value_t *const *values, const hlo_value_t *value)
{
    hlo_instance_t instance = {.context = b->context,
                               .tensor = tensor_of(value),
                               .first_op = b->noted_ops,
                               .op_count = ap_graph_ops(b->graph) - b->noted_ops};

    if (b->dry) {
        return XM_OK;
    }
    instance.operand_count = of->operand_count;
    instance.operands = xm_arena_get(&b->module->arena, (size_t)of->operand_count + 1, sizeof(int));
    if (instance.operands == NULL) {
        return hlo_no_memory();
    }
    for (int o = 0; o < of->operand_count; ++o) {
        instance.operands[o] = tensor_of(of->needed ? values[of->operands[o]] : NULL);
    }
    b->noted_ops = ap_graph_ops(b->graph);
    return hlo_source_add(b->source, of, &instance);
}

/* Evaluates the instructions of a computation in order, up to its root. Operands precede their
 * users, which the parser has checked, so one pass is enough. What the root does not need gets a
 * instance and no value. */
static xm_status_t build_all(hlo_build_t *b, const hlo_computation_t *in,
                             hlo_value_t *const *arguments, hlo_value_t **values)
{
    for (int i = 0; i <= in->root; ++i) {
        const hlo_instruction_t *of = &in->instructions[i];
        hlo_value_t **operands;
        xm_status_t status;

        if (!of->needed) {
            XM_TRY(note_instance(b, of, values, NULL));
            continue;
        }
        if (hlo_slice_is(of->opcode, "parameter")) {
            values[i] = arguments[of->number];
            if (!operand_type_same(of->type, values[i]->type)) {
                return hlo_error(&b->module->text, of->at,
                                 "parameter %d gets an argument of another type", (int)of->number);
            }
            XM_TRY(note_instance(b, of, values, values[i]));
            continue;
        }
        operands =
            xm_arena_get(&b->module->arena, (size_t)of->operand_count, sizeof(hlo_value_t *));
        if (operands == NULL) {
            return hlo_no_memory();
        }
        for (int o = 0; o < of->operand_count; ++o) {
            operands[o] = values[of->operands[o]];
        }
        b->calling = of;
        status = build_instruction(b, in, of, operands, &values[i]);
        XM_THEN(status, note_instance(b, of, values, values[i]));
        XM_TRY(status);
    }
    return XM_OK;
}

/* The depth ends recursion, the work ends exponential nests of calls; both are errors of the text
 * and not of this program. Values are made anew for each call, because the same computation may be
 * called with data and without. */
xm_status_t hlo_build_computation(hlo_build_t *b, int computation, hlo_value_t *const *arguments,
                                  int count, size_t at, hlo_value_t **result)
{
    const hlo_computation_t *in = &b->module->computations[computation];
    hlo_value_t **values =
        xm_arena_get(&b->module->arena, (size_t)in->count, sizeof(hlo_value_t *));
    const int context = b->context;
    xm_status_t status = XM_OK;

    if (values == NULL) {
        return hlo_no_memory();
    }
    if (count != in->parameter_count) {
        return hlo_error(&b->module->text, at, "'%.*s' takes %d parameters, %d are given",
                         (int)(in->name.length > 80 ? 80 : in->name.length), in->name.at,
                         in->parameter_count, count);
    }
    if (b->depth == MAX_DEPTH) {
        return hlo_error(&b->module->text, at, "calls are nested deeper than %d, or in a circle",
                         MAX_DEPTH);
    }
    b->work += in->count;
    if (b->work > MAX_WORK) {
        return hlo_error(&b->module->text, at,
                         "calls and loops make more than %d instructions of this module", MAX_WORK);
    }
    ++b->depth;
    if (!b->dry) {
        status = hlo_source_enter(b->source, context, b->calling, &b->context);
    }
    XM_THEN(status, build_all(b, in, arguments, values));
    b->context = context;
    --b->depth;
    *result = status == XM_OK ? values[in->root] : NULL;
    return status;
}
