/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Templates as filters of strategies. A product of activations A and weights W into C occurs three
 * times in a training step: C = A W, and the gradients of A, from C's and W, and of W, from A and
 * C's. In all three a factor is in two of the three tensors, and which two says what it is: rows
 * (A, C), inner (A, W) or columns (W, C). So one table serves all three.
 */

#include "planner/published/like/template.h"

#include "comm/base.h"

enum { ROWS = 1, INNER = 2, COLUMNS = 4 };
enum { REFUSED, ACCEPTED, WANTED };

static const struct {
    const char *name;
    int rank;
    unsigned cut[AP_MAX_MESH_RANK]; /* by each axis, one of these */
    unsigned all;                   /* that occur in every product */
    unsigned kept, weights;         /* axes that tensors are kept cut by */
} templates[] = {
    [AP_TEMPLATE_1D] = {"1d", 1, {INNER | COLUMNS}, 0, 0, 1},
    [AP_TEMPLATE_2D] = {"2d", 2, {ROWS, COLUMNS}, ROWS | COLUMNS, 3, 3},
    [AP_TEMPLATE_25D] = {"2.5d", 3, {ROWS, ROWS, COLUMNS}, ROWS | COLUMNS, 7, 6},
    [AP_TEMPLATE_3D] =
        {"3d", 3, {INNER | COLUMNS, INNER | COLUMNS, ROWS}, ROWS | INNER | COLUMNS, 7, 7},
};

/* A parameter, or what operators with no other operand make of one, such as a transpose. */
static bool is_weight(const ap_graph_t *graph, int tensor)
{
    const ap_tensor_t *of = ap_graph_tensor(graph, tensor);

    while (of->kind != AP_TENSOR_PARAMETER && of->producer >= 0 &&
           ap_graph_op(graph, of->producer)->operand_count == 1) {
        of = ap_graph_tensor(graph, ap_graph_op(graph, of->producer)->operands[0]);
    }
    return of->kind == AP_TENSOR_PARAMETER;
}

/* Of the gradient of a weight, the operand that went with the weight into a product. */
static int find_activation(const ap_graph_t *graph, const ap_op_t *op)
{
    int weight = ap_graph_tensor(graph, op->results[0])->gradient_of;

    for (int f = 0; f < ap_graph_ops(graph); ++f) {
        const ap_op_t *of = ap_graph_op(graph, f);

        for (int o = 0; o < 2 && of->phase == AP_PHASE_FORWARD && of->operand_count == 2; ++o) {
            for (int a = 0; a < 2 && of->operands[o] == weight; ++a) {
                if (op->operands[a] == of->operands[1 - o]) {
                    return a;
                }
            }
        }
    }
    return -1;
}

/* Which term is A, and which is C; W is the third. The kind of what is no such product is 0. */
static int kind_of(const void *arg, const ap_graph_t *graph, const ap_op_t *op)
{
    int weight = -1;

    (void)arg;
    if (op->kind != AP_OP_EINSUM || op->operand_count != 2 || op->result_count != 1) {
        return 0;
    }
    for (int o = 0; o < 2; ++o) {
        weight = is_weight(graph, op->operands[o]) ? o : weight;
    }
    if (weight < 0) {
        int a = ap_price_is_parameter_gradient(graph, op, 2) ? find_activation(graph, op) : -1;

        return a >= 0 ? 1 + 3 * a + (1 - a) : 0;
    }
    return op->phase == AP_PHASE_FORWARD ? 1 + 3 * (1 - weight) + 2 : 1 + 3 * 2 + (1 - weight);
}

static unsigned role_of(const ap_sharding_rule_t *rule, int kind, int factor)
{
    int a = (kind - 1) / 3, c = (kind - 1) % 3, w = 3 - a - c;
    bool in_a = ap_sharding_rule_carries(rule, a, factor);
    bool in_c = ap_sharding_rule_carries(rule, c, factor);
    bool in_w = ap_sharding_rule_carries(rule, w, factor);

    return in_a && in_c && in_w ? 0 : in_a && in_c ? ROWS : in_a && in_w ? INNER : COLUMNS;
}

/* Of a product: whether each axis cuts one factor that it may, and the result is kept as it shall
 * be. */
static int rank_product(const ap_like_template_filter_t *like, const ap_op_t *op, int kind,
                        const ap_strategy_t *strategy)
{
    unsigned used = ap_spec_used_axes(strategy->spec[2]), roles = 0, cut = 0, kept, weights;

    for (int f = 0; f < op->rule.factors; ++f) {
        unsigned role = role_of(&op->rule, kind, f);

        for (int a = 0; a < AP_MAX_MESH_RANK; ++a) {
            if ((strategy->axes[f] >> a & 1U) != 0 &&
                (templates[like->template].cut[a] & role) == 0) {
                return REFUSED;
            }
        }
        roles |= strategy->axes[f] != 0 ? role : 0;
        cut |= strategy->axes[f];
    }
    kept = templates[like->template].kept & like->axes;
    weights = templates[like->template].weights & like->axes;
    if (cut != like->axes ||
        (like->axes == (1U << templates[like->template].rank) - 1 &&
         (roles & templates[like->template].all) != templates[like->template].all)) {
        return REFUSED;
    }
    return ((kind - 1) / 3 + (kind - 1) % 3 == 1 ? used == weights : (used & kept) == kept)
               ? WANTED
               : REFUSED;
}

static int rank_op(const void *arg, const ap_graph_t *graph, const ap_op_t *op,
                   const ap_strategy_t *strategy)
{
    const ap_like_template_filter_t *like = arg;
    int kind = kind_of(arg, graph, op);
    unsigned wanted = (op->phase == AP_PHASE_UPDATE ? templates[like->template].weights
                                                    : templates[like->template].kept) &
                      like->axes;

    return kind > 0 ? rank_product(like, op, kind, strategy)
           : (ap_strategy_axes(&op->rule, strategy) & wanted) == wanted ? WANTED
                                                                        : ACCEPTED;
}

static int rank_tensor(const void *arg, const ap_tensor_t *tensor, ap_spec_t spec)
{
    const ap_like_template_filter_t *like = arg;
    bool weight = tensor->kind == AP_TENSOR_PARAMETER;
    unsigned wanted =
        (weight ? templates[like->template].weights : templates[like->template].kept) & like->axes;
    unsigned used = ap_spec_used_axes(spec);

    return (weight ? used == wanted : (used & wanted) == wanted) ? WANTED : ACCEPTED;
}

xm_status_t ap_like_template_open(ap_like_template_t template, const ap_cost_mesh_t *mesh,
                                  ap_like_template_filter_t *opened)
{
    if (ap_cost_mesh_rank(mesh) != templates[template].rank) {
        return XM_INVALID("--template %s is for a mesh of %d %s, this one has %d",
                          templates[template].name, templates[template].rank,
                          templates[template].rank > 1 ? "axes" : "axis", ap_cost_mesh_rank(mesh));
    }
    *opened = (ap_like_template_filter_t){
        .filter = {.arg = opened, .kind = kind_of, .op = rank_op, .tensor = rank_tensor},
        .template = template,
        .axes = ap_cost_mesh_axes(mesh)};
    return XM_OK;
}
