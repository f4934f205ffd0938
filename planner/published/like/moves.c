/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A parallel substitution as something that an operator does with a mesh axis. FlexFlow writes
 * PARTITION before and COMBINE behind an operator; a strategy says the same by the specs of its
 * operands and results, and what is written between two operators is a resharding, whose price the
 * network has. So a rule is a condition on specs, and its moves are the strategies that meet it.
 */

#include "planner/published/like/moves.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"

enum { INPUTS = 4, WHOLE = -1, ANY = -2, PARTIAL = -3 };

/* One operator, and the dimension (0: the last) that its inputs and its output are cut in. */
typedef struct rule {
    char type[32];
    int inputs, input[INPUTS], output;
} rule_t;

struct ap_like_rules {
    int all, count;
    rule_t *rule;
};

/* Types of FlexFlow, in the terms of our graphs: which have no names for functions of elements. */
static const struct {
    const char *type;
    ap_op_kind_t kind;
    int operands; /* 0: any */
} types[] = {{"OP_LINEAR", AP_OP_EINSUM, 2},       {"OP_BATCHMATMUL", AP_OP_EINSUM, 2},
             {"OP_MATMUL", AP_OP_EINSUM, 2},       {"OP_EW_ADD", AP_OP_ELEMENTWISE, 2},
             {"OP_EW_MUL", AP_OP_ELEMENTWISE, 2},  {"OP_RELU", AP_OP_ELEMENTWISE, 1},
             {"OP_SIGMOID", AP_OP_ELEMENTWISE, 1}, {"OP_TANH", AP_OP_ELEMENTWISE, 1},
             {"OP_SOFTMAX", AP_OP_SOFTMAX, 0},     {"OP_EMBEDDING", AP_OP_EMBEDDING, 0},
             {"OP_LAYERNORM", AP_OP_LAYER_NORM, 0}};

enum { TYPES = sizeof(types) / sizeof(types[0]) };

static const char *type_of(const json_t *op)
{
    const char *type = json_string_value(json_object_get(op, "type"));

    return type != NULL ? type : "";
}

static bool is_parallel(const char *type)
{
    static const char *const names[] = {"OP_PARTITION", "OP_REPARTITION", "OP_REPLICATE",
                                        "OP_COMBINE",   "OP_REDUCE",      "OP_REDUCTION"};
    bool found = false;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); ++i) {
        found = found || strcmp(type, names[i]) == 0;
    }
    return found;
}

/* What a parallel operator does with a dimension. */
static int cut_of(const json_t *op)
{
    const json_t *para = json_object_get(op, "para"), *one;
    int dim = 0;
    size_t i;

    if (strstr(type_of(op), "REPLICATE") != NULL) {
        return WHOLE;
    }
    if (strstr(type_of(op), "REDUC") != NULL) {
        return PARTIAL;
    }
    json_array_foreach(para, i, one)
    {
        const char *key = json_string_value(json_object_get(one, "key"));

        if (key != NULL && strcmp(key, "PM_PARALLEL_DIM") == 0) {
            dim = (int)json_integer_value(json_object_get(one, "value"));
        }
    }
    return dim;
}

static int maker_of(const json_t *op, size_t input)
{
    const json_t *from = json_array_get(json_object_get(op, "input"), input);
    const json_t *id = json_object_get(from, "opId");

    return json_is_integer(id) ? (int)json_integer_value(id) : WHOLE;
}

/* The one operator that computes among these; -1: there is none, or several. */
static int only_compute(const json_t *ops)
{
    int found = -1;
    size_t i;
    const json_t *op;

    json_array_foreach(ops, i, op)
    {
        if (!is_parallel(type_of(op))) {
            if (found >= 0) {
                return -1;
            }
            found = (int)i;
        }
    }
    return found;
}

/* Reads a rule that rewrites one operator; false where it is another kind of rule. */
static bool read_rule(const json_t *from, const json_t *to, rule_t *rule)
{
    int at = only_compute(to);
    const json_t *op = json_array_get(to, (size_t)(at < 0 ? 0 : at)), *other;
    size_t i;

    if (json_array_size(from) != 1 || at < 0 || json_array_size(to) < 2 ||
        strcmp(type_of(json_array_get(from, 0)), type_of(op)) != 0 ||
        strlen(type_of(op)) >= sizeof(rule->type) ||
        json_array_size(json_object_get(op, "input")) > INPUTS) {
        return false;
    }
    *rule = (rule_t){.output = ANY};
    memcpy(rule->type, type_of(op), strlen(type_of(op)) + 1);
    rule->inputs = (int)json_array_size(json_object_get(op, "input"));
    for (int j = 0; j < rule->inputs; ++j) {
        int maker = maker_of(op, (size_t)j);

        rule->input[j] = maker < 0 ? WHOLE : cut_of(json_array_get(to, (size_t)maker));
    }
    json_array_foreach(to, i, other)
    {
        if (is_parallel(type_of(other)) && maker_of(other, 0) == at) {
            rule->output = cut_of(other);
        }
    }
    return true;
}

xm_status_t ap_like_rules_read(const char *name, const char *text, size_t length,
                               ap_like_rules_t **rules)
{
    json_error_t error;
    json_t *root = json_loadb(text, length, 0, &error);
    const json_t *list = json_object_get(root, "rule"), *one;
    ap_like_rules_t *made = calloc(1, sizeof(*made));
    xm_status_t status = made == NULL ? XM_NO_MEMORY("rules") : XM_OK;
    size_t i;

    if (root == NULL) {
        status = XM_MALFORMED("%s:%d: %s", name, error.line, error.text);
    } else if (!json_is_array(list)) {
        status = XM_MALFORMED("%s: no list 'rule'", name);
    }
    if (status == XM_OK) {
        made->all = (int)json_array_size(list);
        made->rule = calloc((size_t)made->all + 1, sizeof(*made->rule));
        status = made->rule == NULL ? XM_NO_MEMORY("rules") : XM_OK;
    }
    json_array_foreach(list, i, one)
    {
        const json_t *from = json_object_get(one, "srcOp"), *to = json_object_get(one, "dstOp");

        if (status == XM_OK && (json_array_size(from) == 0 || json_array_size(to) == 0)) {
            status = XM_MALFORMED("%s: rule %zu has no operators in srcOp and dstOp", name, i);
        }
        made->count += status == XM_OK && read_rule(from, to, &made->rule[made->count]);
    }
    json_decref(root);
    if (status == XM_OK) {
        *rules = made;
    } else {
        ap_like_rules_destroy(made);
    }
    return status;
}

int ap_like_rules_count(const ap_like_rules_t *rules, int *all)
{
    *all = rules->all;
    return rules->count;
}

void ap_like_rules_destroy(ap_like_rules_t *rules)
{
    if (rules != NULL) {
        free(rules->rule);
        free(rules);
    }
}

/* Whether a rule is about such operators. */
static bool is_of_type(const rule_t *rule, const ap_op_t *op)
{
    for (int i = 0; i < TYPES; ++i) {
        if (strcmp(rule->type, types[i].type) == 0 && op->kind == types[i].kind &&
            (types[i].operands == 0 || types[i].operands == op->operand_count)) {
            return true;
        }
    }
    return false;
}

/* Whether an axis cuts a term as a rule says, which counts dimensions from the last. */
static bool is_cut(const ap_op_t *op, const ap_strategy_t *strategy, int term, int axis, int cut)
{
    int rank = op->rule.rank[term];
    ap_spec_t spec = strategy->spec[term];

    if (cut == WHOLE || cut == PARTIAL) {
        return (ap_spec_used_axes(spec) >> axis & 1U) == 0;
    }
    return cut < rank && (ap_spec_axes(spec, rank - 1 - cut) >> axis & 1U) != 0;
}

static bool meets(const rule_t *rule, const ap_op_t *op, const ap_strategy_t *strategy, int axis)
{
    bool partial = (strategy->partial[0] >> axis & 1U) != 0;

    for (int j = 0; j < rule->inputs; ++j) {
        if (j >= op->operand_count || !is_cut(op, strategy, j, axis, rule->input[j])) {
            return false;
        }
    }
    return rule->output == ANY || (partial == (rule->output == PARTIAL) &&
                                   is_cut(op, strategy, op->operand_count, axis, rule->output));
}

/* Whether something allows the operator to do what this value does with the axis. */
static bool is_allowed(const ap_like_rules_t *rules, const ap_op_t *op,
                       const ap_strategy_t *strategy, int axis)
{
    for (int r = 0; rules != NULL && r < rules->count; ++r) {
        if (is_of_type(&rules->rule[r], op) && meets(&rules->rule[r], op, strategy, axis)) {
            return true;
        }
    }
    return rules == NULL;
}

typedef struct list {
    const ap_stage_network_t *network;
    const ap_like_rules_t *rules;
    ap_choice_move_t *move;
    int *variable;
    int moves, variables;
    bool counting;
} list_t;

/* A move of the operator and of its likes in other layers. */
static void add_move(list_t *list, int first, int axis, uint8_t part)
{
    int count = ap_stage_network_choices(list->network)->variables, layer, like;
    ap_choice_move_t move = {axis, part, list->variables, 0};

    for (int v = 0; v < count; ++v) {
        if (ap_stage_network_op(list->network, v, &layer, &like) != NULL && like == first) {
            if (!list->counting) {
                list->variable[list->variables] = v;
            }
            ++list->variables;
            ++move.count;
        }
    }
    if (!list->counting) {
        list->move[list->moves] = move;
    }
    ++list->moves;
}

static void list_moves(list_t *list)
{
    const ap_cfn_core_t *core = ap_stage_network_choices(list->network);
    const uint8_t *const *part = ap_stage_network_parts(list->network);

    list->moves = list->variables = 0;
    for (int v = 0; v < core->variables; ++v) {
        int layer, first;
        const ap_op_t *op = ap_stage_network_op(list->network, v, &layer, &first);

        for (int axis = 0; op != NULL && first == v && axis < 2; ++axis) {
            bool done[256] = {false};

            for (int x = 0; x < core->variable[v].size; ++x) {
                uint8_t does = part[v][x * AP_CHOICE_LEVELS + axis];

                if (!done[does] &&
                    is_allowed(list->rules, op, ap_stage_network_strategy(list->network, v, x),
                               axis)) {
                    done[does] = true;
                    add_move(list, v, axis, does);
                }
            }
        }
    }
}

xm_status_t ap_like_moves(const ap_stage_network_t *network, const ap_like_rules_t *rules,
                          xm_arena_t *arena, ap_choice_moves_t *moves)
{
    int count = ap_stage_network_choices(network)->variables, layer, first;
    list_t list = {.network = network, .rules = rules, .counting = true};
    bool *fixed = xm_arena_get(arena, (size_t)count + 1, sizeof(*fixed));

    list_moves(&list);
    list.move = xm_arena_get(arena, (size_t)list.moves + 1, sizeof(*list.move));
    list.variable = xm_arena_get(arena, (size_t)list.variables + 1, sizeof(*list.variable));
    if (arena->failed || fixed == NULL || list.move == NULL || list.variable == NULL) {
        return XM_NO_MEMORY("moves");
    }
    list.counting = false;
    list_moves(&list);
    for (int v = 0; v < count; ++v) {
        fixed[v] = ap_stage_network_op(network, v, &layer, &first) != NULL;
    }
    *moves = (ap_choice_moves_t){list.moves, list.move, list.variable, fixed};
    return XM_OK;
}
