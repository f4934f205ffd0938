/* SPDX-License-Identifier: Apache-2.0 */
#include "xm_test.h"

#include "planner/frontend/zoo.h"
#include "planner/passes/training.h"

static ap_graph_t *expanded(const char *model, int layers, bool tied, ap_optimizer_t optimizer)
{
    ap_zoo_params_t zoo = AP_ZOO_PARAMS_INIT;
    ap_graph_t *forward, *training;

    zoo.layers = layers;
    zoo.tied_embeddings = tied;
    ck_assert_xm_ok(ap_zoo_create(model, &zoo, &forward));
    ck_assert_xm_ok(ap_training_expand(forward, optimizer, &training));
    ap_graph_destroy(forward);
    return training;
}

static const ap_op_t *find_op(const ap_graph_t *graph, const char *name)
{
    for (int o = 0; o < ap_graph_ops(graph); ++o) {
        if (strcmp(ap_graph_op(graph, o)->name, name) == 0) {
            return ap_graph_op(graph, o);
        }
    }
    ck_abort_msg("no operator %s", name);
}

static double einsum_flops(const ap_graph_t *graph, ap_phase_t phase)
{
    double flops = 0;

    for (int o = 0; o < ap_graph_ops(graph); ++o) {
        const ap_op_t *op = ap_graph_op(graph, o);

        flops += op->kind == AP_OP_EINSUM && op->phase == phase ? op->flops : 0;
    }
    return flops;
}

START_TEST(an_mlp_gets_the_chain_rule)
{
    ap_graph_t *graph = expanded("mlp2", 0, false, AP_OPTIMIZER_SGD);
    const ap_op_t *dw2 = find_op(graph, "d_w2.h2"), *dh1 = find_op(graph, "d_h1.h2");
    const ap_op_t *dw1 = find_op(graph, "d_w1.h1"), *update = find_op(graph, "new_w1");

    /* h1, h2, loss; dw2, dh1, dw1; two updates. x needs no gradient. */
    ck_assert_int_eq(ap_graph_ops(graph), 8);
    ck_assert_str_eq(dw2->rule.text, "bn,bk->kn");
    ck_assert_str_eq(dh1->rule.text, "bn,kn->bk");
    ck_assert_str_eq(dw1->rule.text, "bn,bk->kn");
    ck_assert_int_eq(dw2->operands[0], find_op(graph, "loss")->results[0]);
    ck_assert_int_eq(dw1->operands[0], dh1->results[0]);
    ck_assert_str_eq(
        ap_graph_tensor(graph, ap_graph_tensor(graph, update->results[0])->alias_of)->name, "w1");
    ck_assert_int_eq(update->operands[1], dw1->results[0]);
    ck_assert_int_eq(update->phase, AP_PHASE_UPDATE);
    ap_graph_destroy(graph);
}
END_TEST

START_TEST(every_parameter_is_updated_by_a_gradient_of_its_shape)
{
    ap_graph_t *graph = expanded("gpt-125m", 2, _i == 1, AP_OPTIMIZER_ADAM);
    int parameters = 0, updates = 0;

    for (int t = 0; t < ap_graph_tensors(graph); ++t) {
        parameters += ap_graph_tensor(graph, t)->kind == AP_TENSOR_PARAMETER;
    }
    for (int o = 0; o < ap_graph_ops(graph); ++o) {
        const ap_op_t *op = ap_graph_op(graph, o);
        const ap_tensor_t *weight, *gradient;

        if (op->phase != AP_PHASE_UPDATE) {
            continue;
        }
        weight = ap_graph_tensor(graph, op->operands[0]);
        gradient = ap_graph_tensor(graph, op->operands[1]);
        ck_assert_int_eq(weight->kind, AP_TENSOR_PARAMETER);
        ck_assert_int_eq(gradient->dtype, weight->dtype);
        for (int d = 0; d < weight->shape.rank; ++d) {
            ck_assert_int_eq(gradient->shape.dims[d], weight->shape.dims[d]);
        }
        ++updates;
    }
    ck_assert_int_eq(parameters, updates);
    ap_graph_destroy(graph);
}
END_TEST

START_TEST(backward_einsums_cost_twice_the_forward_ones)
{
    ap_graph_t *graph = expanded("gpt-350m", 3, false, AP_OPTIMIZER_ADAM);

    ck_assert_double_eq_tol(einsum_flops(graph, AP_PHASE_BACKWARD),
                            2 * einsum_flops(graph, AP_PHASE_FORWARD), 1);
    ap_graph_destroy(graph);
}
END_TEST

/* The rules of the backward operators of one block, by forward operator. */
START_TEST(each_kind_has_its_backward)
{
    static const struct {
        const char *forward, *rule;
    } expected[] = {
        {"block1.norm1", "bsh,bsh,h->bsh,h,h"},
        {"block1.qkv", "bsne,hne->bsh"},
        {"block1.qkv", "bsne,bsh->hne"},
        {"block1.qkv.add", "bsne->ne"},
        {"block1.split", "bsnd,bsnd,bsnd->bsne"},
        {"block1.scores", "bnst,btnd->bsnd"},
        {"block1.scores", "bnst,bsnd->btnd"},
        {"block1.softmax", "bnst,bnst->bnst"},
        {"block1.gelu", "bsf,bsf->bsf"},
        {"embedding", "bsh,bs->vh"},
        {"position.add", "bsh->sh"},
        {"cross_entropy", "bs,bsv,bs->bsv"},
        {"loss", "->bs"},
    };
    ap_graph_t *graph = expanded("gpt-125m", 1, false, AP_OPTIMIZER_ADAM);

    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); ++i) {
        bool found = false;

        for (int o = 0; o < ap_graph_ops(graph); ++o) {
            const ap_op_t *op = ap_graph_op(graph, o);

            found =
                found || (op->phase == AP_PHASE_BACKWARD && op->forward >= 0 &&
                          strcmp(ap_graph_op(graph, op->forward)->name, expected[i].forward) == 0 &&
                          strcmp(op->rule.text, expected[i].rule) == 0);
        }
        ck_assert_msg(found, "%s has no backward operator %s", expected[i].forward,
                      expected[i].rule);
    }
    ap_graph_destroy(graph);
}
END_TEST

START_TEST(residual_gradients_are_summed_in_the_right_layer)
{
    ap_graph_t *graph = expanded("gpt-125m", 2, false, AP_OPTIMIZER_ADAM);
    int sums = 0;

    for (int o = 0; o < ap_graph_ops(graph); ++o) {
        const ap_op_t *op = ap_graph_op(graph, o);

        if (op->phase == AP_PHASE_BACKWARD && op->forward < 0) {
            int of = ap_graph_tensor(graph, op->results[0])->gradient_of;

            ck_assert_int_ge(of, 0);
            /* The users of a block's input are in the block. */
            ck_assert_int_le(ap_graph_tensor(graph, of)->layer, op->layer);
            ck_assert_int_ge(op->layer, 1);
            ck_assert_int_le(op->layer, 2);
            ++sums;
        }
    }
    ck_assert_int_eq(sums, 4); /* two residual branches per block */
    ap_graph_destroy(graph);
}
END_TEST

/* Of a graph of three blocks whose embedding and first block are frozen, nothing of these is in the
 * backward pass; all else is as it was, but what only the frozen layers would have read. */
START_TEST(frozen_layers_have_no_backward_pass)
{
    ap_zoo_params_t zoo = AP_ZOO_PARAMS_INIT;
    ap_graph_t *forward, *whole, *part;
    int backward[2] = {0}, updates[2] = {0};

    zoo.layers = 3;
    ck_assert_xm_ok(ap_zoo_create("gpt-125m", &zoo, &forward));
    ck_assert_xm_ok(ap_training_expand(forward, AP_OPTIMIZER_ADAM, &whole));
    ck_assert_xm_ok(ap_graph_freeze(forward, 2));
    ck_assert_xm_ok(ap_training_expand(forward, AP_OPTIMIZER_ADAM, &part));
    for (int g = 0; g < 2; ++g) {
        const ap_graph_t *graph = g == 0 ? whole : part;

        for (int o = 0; o < ap_graph_ops(graph); ++o) {
            const ap_op_t *op = ap_graph_op(graph, o);

            ck_assert(g == 0 || op->phase == AP_PHASE_FORWARD || op->layer >= 2);
            backward[g] += op->phase == AP_PHASE_BACKWARD && op->layer >= 3;
            updates[g] += op->phase == AP_PHASE_UPDATE && op->layer >= 2;
        }
    }
    ck_assert_int_eq(backward[0], backward[1]);
    ck_assert_int_eq(updates[0], updates[1]);
    /* 12 h^2 + 13 h a block, and the words and positions, h = 768. */
    ck_assert_double_eq(ap_graph_parameters(whole) - ap_graph_parameters(part),
                        12.0 * 768 * 768 + 13 * 768 + (51200 + 1024) * 768.0);
    ck_assert_xm_fails(ap_graph_freeze(forward, 5), XM_ERR_INVALID_ARGUMENT, "at least one");
    ap_graph_destroy(part);
    ap_graph_destroy(whole);
    ap_graph_destroy(forward);
}
END_TEST

START_TEST(state_and_failures)
{
    ap_graph_t *graph, *training = NULL;
    const ap_shape_t shape = {1, {4}};
    ap_op_params_t params = AP_OP_PARAMS_INIT;
    int result;

    ck_assert_double_eq_tol(ap_training_state_bytes(AP_OPTIMIZER_ADAM, AP_DTYPE_F16), 12, 1e-9);
    ck_assert_double_eq_tol(ap_training_state_bytes(AP_OPTIMIZER_ADAM, AP_DTYPE_F32), 8, 1e-9);
    ck_assert_double_eq_tol(ap_training_state_bytes(AP_OPTIMIZER_SGD, AP_DTYPE_F16), 0, 1e-9);
    ck_assert_xm_ok(ap_graph_create("lossless", &graph));
    ck_assert_xm_ok(
        ap_graph_add_tensor(graph, "w", AP_TENSOR_PARAMETER, &shape, AP_DTYPE_F32, &result));
    params.kind = AP_OP_REDUCE;
    params.name = "r";
    params.rule = "a->";
    params.operand_count = 1;
    params.operands = (const int[]){result};
    params.result_dtype = AP_DTYPE_F32;
    ck_assert_xm_ok(ap_graph_add_op(graph, &params, &result));
    ck_assert_xm_fails(ap_training_expand(graph, AP_OPTIMIZER_SGD, &training),
                       XM_ERR_INVALID_ARGUMENT, "'lossless' names no loss");
    ck_assert_ptr_null(training);
    ck_assert_xm_ok(ap_graph_set_loss(graph, result, false));
    ck_assert_xm_ok(ap_graph_finish(graph));
    ck_assert_xm_ok(ap_training_expand(graph, AP_OPTIMIZER_SGD, &training));
    ap_graph_destroy(training);
    ap_graph_destroy(graph);
}
END_TEST

/* A graph of one parameter w[4,8] and one input x[4,8], and what operators make of them. */
static ap_graph_t *small_graph(int *w, int *x)
{
    const ap_shape_t shape = {.rank = 2, .dims = {4, 8}};
    ap_graph_t *graph;

    ck_assert_xm_ok(ap_graph_create("small", &graph));
    ck_assert_xm_ok(ap_graph_add_tensor(graph, "w", AP_TENSOR_PARAMETER, &shape, AP_DTYPE_F32, w));
    ck_assert_xm_ok(ap_graph_add_tensor(graph, "x", AP_TENSOR_INPUT, &shape, AP_DTYPE_F32, x));
    return graph;
}

static int add_op(ap_graph_t *graph, ap_op_kind_t kind, const char *name, const char *rule,
                  const char *sizes, const int *operands, int count, ap_dtype_t dtype)
{
    ap_op_params_t params = AP_OP_PARAMS_INIT;
    int results[3];

    params.kind = kind;
    params.name = name;
    params.rule = rule;
    params.sizes = sizes;
    params.result_dtype = dtype;
    params.flops_per_point = 3;
    params.operand_count = count;
    params.operands = operands;
    ck_assert_xm_ok(ap_graph_add_op(graph, &params, results));
    return results[0];
}

static ap_graph_t *expand_small(ap_graph_t *graph, int loss)
{
    ap_graph_t *training;

    ck_assert_xm_ok(ap_graph_set_loss(graph, loss, true));
    ck_assert_xm_ok(ap_graph_finish(graph));
    ck_assert_xm_ok(ap_training_expand(graph, AP_OPTIMIZER_SGD, &training));
    ap_graph_destroy(graph);
    return training;
}

/* Each operand of a concatenation gets its part of the gradient; what has no parameter behind it
 * gets none. */
START_TEST(concatenations_give_every_operand_its_part)
{
    int w, x, y;
    ap_graph_t *graph = small_graph(&w, &x);

    y = add_op(graph, AP_OP_ELEMENTWISE, "y", "ab->ab", NULL, &w, 1, AP_DTYPE_F32);
    y = add_op(graph, AP_OP_RESHAPE, "all", "ab,ac,ad->ae", "e=24", (const int[]){x, y, w}, 3,
               AP_DTYPE_F32);
    graph = expand_small(graph, y);
    ck_assert_str_eq(find_op(graph, "d_w.all")->rule.text, "ae->ad");
    ck_assert_str_eq(find_op(graph, "d_y.all")->rule.text, "ae->ac");
    ck_assert_int_eq(find_op(graph, "new_w")->phase, AP_PHASE_UPDATE);
    ap_graph_destroy(graph);
}
END_TEST

/* A result of a split that nothing uses has no gradient and is left out. */
START_TEST(splits_may_have_unused_parts)
{
    ap_op_params_t params = AP_OP_PARAMS_INIT;
    int w, x, parts[3];
    ap_graph_t *graph = small_graph(&w, &x);

    params.kind = AP_OP_SPLIT;
    params.name = "split";
    params.rule = "ab->ac,ad,ae";
    params.sizes = "c=2,d=2,e=4";
    params.operand_count = 1;
    params.operands = (const int[]){w};
    params.result_dtype = AP_DTYPE_F32;
    ck_assert_xm_ok(ap_graph_add_op(graph, &params, parts));
    graph = expand_small(graph, parts[2]);
    ck_assert_str_eq(find_op(graph, "d_w.split")->rule.text, "ae->ab");
    ap_graph_destroy(graph);
}
END_TEST

/* A custom operator's derivative reads the gradient and its operands, of any number, at the
 * forward pass' FLOPs; whole numbers have none. */
START_TEST(custom_operators_have_derivatives)
{
    int w, x, y, index;
    ap_graph_t *graph = small_graph(&w, &x);

    index = add_op(graph, AP_OP_CUSTOM, "index", "ab->a", NULL, &w, 1, AP_DTYPE_I32);
    y = add_op(graph, AP_OP_CUSTOM, "y", "ab,ab,a->b", NULL, (const int[]){w, x, index}, 3,
               AP_DTYPE_F32);
    y = add_op(graph, AP_OP_ELEMENTWISE, "z", "b,ab,ab,a->ab", NULL, (const int[]){y, w, x, index},
               4, AP_DTYPE_F32);
    graph = expand_small(graph, y);
    ck_assert_str_eq(find_op(graph, "d_w.y")->rule.text, "b,ab,ab,a->ab");
    ck_assert_double_eq(find_op(graph, "d_w.y")->flops, 3 * 4 * 8);
    ck_assert_int_eq(find_op(graph, "d_w.z")->operand_count, 1 + 4);
    for (int o = 0; o < ap_graph_ops(graph); ++o) {
        ck_assert_ptr_null(strstr(ap_graph_op(graph, o)->name, "d_index"));
        ck_assert_ptr_null(strstr(ap_graph_op(graph, o)->name, ".index"));
    }
    ap_graph_destroy(graph);
}
END_TEST

/* What takes its operand's place moves nothing, and neither does its gradient. */
START_TEST(gradients_of_views_move_nothing)
{
    static const int none[] = {AP_TOUCHES_NONE, AP_TOUCHES_NONE};
    ap_op_params_t params = AP_OP_PARAMS_INIT;
    int w, x, y, z;
    ap_graph_t *graph = small_graph(&w, &x);

    params.kind = AP_OP_RESHAPE;
    params.name = "view";
    params.rule = "ab->ba";
    params.operand_count = 1;
    params.operands = &w;
    params.result_dtype = AP_DTYPE_F32;
    params.touched = none;
    ck_assert_xm_ok(ap_graph_add_op(graph, &params, &y));
    z = add_op(graph, AP_OP_RESHAPE, "copy", "ab->ba", NULL, &y, 1, AP_DTYPE_F32);
    graph = expand_small(graph, z);
    ck_assert(ap_op_passes_on(find_op(graph, "d_w.view")));
    ck_assert(!ap_op_passes_on(find_op(graph, "d_view.copy")));
    ap_graph_destroy(graph);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("training");
    TCase *tcase = tcase_create("all");

    tcase_add_test(tcase, an_mlp_gets_the_chain_rule);
    tcase_add_loop_test(tcase, every_parameter_is_updated_by_a_gradient_of_its_shape, 0, 2);
    tcase_add_test(tcase, backward_einsums_cost_twice_the_forward_ones);
    tcase_add_test(tcase, each_kind_has_its_backward);
    tcase_add_test(tcase, residual_gradients_are_summed_in_the_right_layer);
    tcase_add_test(tcase, frozen_layers_have_no_backward_pass);
    tcase_add_test(tcase, state_and_failures);
    tcase_add_test(tcase, concatenations_give_every_operand_its_part);
    tcase_add_test(tcase, splits_may_have_unused_parts);
    tcase_add_test(tcase, custom_operators_have_derivatives);
    tcase_add_test(tcase, gradients_of_views_move_nothing);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
