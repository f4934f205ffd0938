/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/passes/layering.h"

#include <stdint.h>
#include <stdio.h>

#include "planner/passes/forward_pass.h"
#include "planner/frontend.h"
#include "planner/frontend/json.h"
#include "planner/passes/training.h"
#include "tests/planner/passes/check_layers.h"
#include "xm_test.h"

static ap_graph_t *forward_of(const char *file)
{
    ap_frontend_params_t params = AP_FRONTEND_PARAMS_INIT;
    ap_graph_t *graph, *forward;
    char path[128];

    (void)snprintf(path, sizeof(path), "tests/fixtures/%s", file);
    ck_assert_xm_ok(ap_frontend_load(xm_test_source_path(path), &params, &graph, NULL));
    ck_assert_xm_ok(ap_forward_pass(graph, &forward, NULL));
    ap_graph_destroy(graph);
    return forward;
}

/* The layers are a partition in order, also of the derived training step. */
static void check_all(const ap_graph_t *layered)
{
    ap_graph_t *training;

    check_layers(layered);
    ck_assert_xm_ok(ap_training_expand(layered, AP_OPTIMIZER_ADAM, &training));
    check_layers(training);
    ap_graph_destroy(training);
}

static ap_graph_t *apply(const ap_graph_t *forward, const ap_layering_t *how,
                         ap_layering_info_t *info)
{
    ap_graph_t *layered;

    ck_assert_xm_ok(ap_layering_apply(forward, how, &layered, info));
    check_all(layered);
    ck_assert_int_eq(info->layers, ap_graph_layers(layered));
    return layered;
}

/* What follows a loss on one number is no layer: nothing that could be resharded passes there. */
START_TEST(no_layer_begins_behind_one_number)
{
    static const char text[] =
        "{\"format\": \"autopar-graph\", \"version\": 1, \"name\": \"tail\", \"tensors\": ["
        "{\"name\": \"x\", \"kind\": \"input\", \"shape\": [8, 4]},"
        "{\"name\": \"w\", \"kind\": \"parameter\", \"shape\": [4, 4]}], \"ops\": ["
        "{\"name\": \"h\", \"kind\": \"matmul\", \"operands\": [\"x\", \"w\"]},"
        "{\"name\": \"square\", \"kind\": \"elementwise\", \"operands\": [\"h\", \"h\"]},"
        "{\"name\": \"sum\", \"kind\": \"reduce\", \"operands\": [\"square\"]},"
        "{\"name\": \"mean\", \"kind\": \"elementwise\", \"operands\": [\"sum\"]},"
        "{\"name\": \"loss\", \"kind\": \"elementwise\", \"operands\": [\"mean\"]}],"
        "\"loss\": {\"tensor\": \"loss\"}}";
    ap_layering_t how = AP_LAYERING_INIT;
    ap_layering_info_t info;
    ap_graph_t *forward, *layered;

    ck_assert_xm_ok(ap_json_from_text(text, sizeof(text) - 1, "tail", &forward));
    how.layers = 3;
    layered = apply(forward, &how, &info);
    ck_assert_int_eq(info.places, 2);
    ap_graph_destroy(layered);
    how.layers = 4;
    ck_assert_xm_fails(ap_layering_apply(forward, &how, &layered, &info), XM_ERR_NO_SOLUTION,
                       "2 places where one tensor passes, for at most 3");
    ap_graph_destroy(forward);
}
END_TEST

START_TEST(a_number_of_layers_is_had)
{
    ap_layering_t how = AP_LAYERING_INIT;
    ap_graph_t *forward = forward_of("hlo/mlp12-b1024-h128.hlo"), *layered;
    ap_layering_info_t info;

    for (int layers = 1; layers <= 12; ++layers) {
        int weights = 0;

        how.layers = layers;
        layered = apply(forward, &how, &info);
        ck_assert_int_eq(info.layers, layers);
        ck_assert_double_eq(info.largest_bytes, layers > 1 ? 4.0 * 1024 * 128 : 0);
        for (int t = 0; t < ap_graph_tensors(layered); ++t) {
            weights += ap_graph_tensor(layered, t)->kind == AP_TENSOR_PARAMETER;
        }
        ck_assert_int_eq(weights, 12);
        ap_graph_destroy(layered);
    }
    /* 12 layers are one product each; the last has the error besides. */
    how.layers = 12;
    layered = apply(forward, &how, &info);
    ck_assert_int_le(info.distinct, 3);
    for (int layer = 0; layer < 12; ++layer) {
        int products = 0;

        for (int o = 0; o < ap_graph_ops(layered); ++o) {
            products += ap_graph_op(layered, o)->layer == layer &&
                        ap_graph_op(layered, o)->kind == AP_OP_EINSUM;
        }
        ck_assert_int_eq(products, 1);
    }
    ap_graph_destroy(layered);
    how.layers = 14;
    ck_assert_xm_fails(ap_layering_apply(forward, &how, &layered, NULL), XM_ERR_NO_SOLUTION,
                       "does not make 14 layers");
    ap_graph_destroy(forward);
}
END_TEST

START_TEST(blocks_become_layers_by_themselves)
{
    ap_layering_t how = AP_LAYERING_INIT;
    ap_graph_t *forward = forward_of("onnx/gpt2layers.onnx"), *layered;
    ap_layering_info_t info;

    layered = apply(forward, &how, &info);
    ck_assert_int_ge(info.layers, 2);
    ck_assert_int_le(info.layers, 4);
    ck_assert_double_ge(info.imbalance, 1);
    ck_assert_double_le(info.imbalance, 1.6);
    ap_graph_destroy(layered);
    ap_graph_destroy(forward);
}
END_TEST

START_TEST(names_tell_layers)
{
    static const char *const marks[] = {"dot.2"};
    ap_layering_t how = AP_LAYERING_INIT;
    ap_graph_t *forward = forward_of("onnx/gpt2layers.onnx"), *layered;
    ap_layering_info_t info;

    how.pattern = "blocks[._/]([0-9]+)";
    layered = apply(forward, &how, &info);
    ck_assert_int_eq(info.layers, 3); /* the embedding before the first, the head in the last */
    ap_graph_destroy(layered);
    how.pattern = "([0-9]+";
    ck_assert_xm_fails(ap_layering_apply(forward, &how, &layered, NULL), XM_ERR_INVALID_ARGUMENT,
                       "the pattern of layers '([0-9]+':");
    how.pattern = "nowhere([0-9])";
    ck_assert_xm_fails(ap_layering_apply(forward, &how, &layered, NULL), XM_ERR_INVALID_ARGUMENT,
                       "matches the pattern of layers 'nowhere([0-9])'");
    how.marks = marks;
    how.mark_count = 1;
    ck_assert_xm_fails(ap_layering_apply(forward, &how, &layered, NULL), XM_ERR_INVALID_ARGUMENT,
                       "by one of them");
    how.pattern = NULL;
    ck_assert_xm_fails(ap_layering_apply(forward, &how, &layered, NULL), XM_ERR_INVALID_ARGUMENT,
                       "layer mark 'dot.2' names no operator");
    ap_graph_destroy(forward);
}
END_TEST

START_TEST(marks_begin_layers)
{
    ap_layering_t how = AP_LAYERING_INIT;
    ap_graph_t *forward = forward_of("hlo/transformer2.hlo"), *layered;
    const char *mark = NULL, *first = NULL;
    ap_layering_info_t info;

    how.layers = 2;
    layered = apply(forward, &how, &info);
    ck_assert_int_eq(info.layers, 2);
    for (int o = 0; o < ap_graph_ops(layered) && mark == NULL; ++o) {
        first = first == NULL ? ap_graph_op(layered, o)->name : first;
        mark = ap_graph_op(layered, o)->layer == 1 ? ap_graph_op(layered, o)->name : NULL;
    }
    how.layers = 0;
    how.marks = &mark;
    how.mark_count = 1;
    ap_graph_t *again = apply(forward, &how, &info);

    ck_assert_int_eq(info.layers, 2);
    for (int layer = 0; layer < 2; ++layer) {
        ck_assert(ap_graph_layer_hash(again, layer) == ap_graph_layer_hash(layered, layer));
    }
    ap_graph_destroy(again);
    ap_graph_destroy(layered);
    ap_graph_destroy(forward);
}
END_TEST

START_TEST(a_mark_may_stand_where_several_tensors_pass)
{
    ap_layering_info_t info;
    int resting[1024];
    ap_layering_t how = AP_LAYERING_INIT;
    ap_graph_t *forward = forward_of("hlo/transformer2.hlo"), *layered;
    const char *mark = NULL;

    /* The second product of a block reads beside what is left of the first. */
    for (int o = 0, products = 0; o < ap_graph_ops(forward) && mark == NULL; ++o) {
        products += ap_graph_op(forward, o)->kind == AP_OP_EINSUM;
        mark = products == 2 ? ap_graph_op(forward, o)->name : NULL;
    }
    how.marks = &mark;
    how.mark_count = 1;
    layered = apply(forward, &how, &info);
    ck_assert_int_eq(ap_graph_layers(layered), 2);
    ck_assert_int_ge(ap_graph_resting(layered, (int[]){0, 0}, (int[]){1, 1}, resting), 1);
    ap_graph_destroy(layered);
    how.one_tensor = true;
    ck_assert_xm_fails(ap_layering_apply(forward, &how, &layered, NULL), XM_ERR_NO_SOLUTION,
                       "layer 1 of 'jit_step' cannot begin with operator");
    ap_graph_destroy(forward);
}
END_TEST

static uint64_t state;

static int pick(int below)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int)((state >> 33) % (uint64_t)below);
}

/* The activations that pass from a layer to later ones. */
static int passing(const ap_graph_t *layered, int layer)
{
    int count = 0;

    for (int t = 0; t < ap_graph_tensors(layered); ++t) {
        const ap_tensor_t *tensor = ap_graph_tensor(layered, t);
        bool later = false;

        for (int o = 0; o < ap_graph_ops(layered) && !later; ++o) {
            const ap_op_t *op = ap_graph_op(layered, o);

            for (int i = 0; i < op->operand_count; ++i) {
                later = later || (op->operands[i] == t && op->layer > layer);
            }
        }
        count += later && tensor->kind == AP_TENSOR_ACTIVATION && tensor->layer <= layer;
    }
    return count;
}

/* Blocks that all read one tensor beside the last block's sum: two tensors pass between blocks,
 * three within, and there are more layers to be had than blocks. */
START_TEST(layers_begin_between_blocks_that_share_a_tensor)
{
    enum { BLOCKS = 9, ROOM = 16384 };
    ap_layering_t how = AP_LAYERING_INIT;
    ap_layering_info_t info;
    ap_graph_t *forward, *layered;
    char text[ROOM];
    int within = 0;
    int end = snprintf(
        text, ROOM,
        "{\"format\": \"autopar-graph\", \"version\": 1, \"name\": \"blocks\", \"tensors\": ["
        "{\"name\": \"x\", \"kind\": \"input\", \"shape\": [64, 32]},"
        "{\"name\": \"w\", \"kind\": \"parameter\", \"shape\": [32, 32]},"
        "{\"name\": \"up\", \"kind\": \"parameter\", \"shape\": [32, 16]},"
        "{\"name\": \"down\", \"kind\": \"parameter\", \"shape\": [16, 32]}], \"ops\": ["
        "{\"name\": \"m\", \"kind\": \"matmul\", \"operands\": [\"x\", \"w\"]},"
        "{\"name\": \"h0\", \"kind\": \"matmul\", \"operands\": [\"x\", \"w\"]}");

    for (int b = 0; b < BLOCKS; ++b) {
        end += snprintf(
            text + end, ROOM - (size_t)end,
            ",{\"name\": \"a%d\", \"kind\": \"matmul\", \"operands\": [\"h%d\", \"up\"]},"
            "{\"name\": \"b%d\", \"kind\": \"matmul\", \"operands\": [\"m\", \"up\"]},"
            "{\"name\": \"c%d\", \"kind\": \"elementwise\", \"operands\": [\"a%d\", \"b%d\"]}",
            b, b, b, b, b, b);
        for (int e = 0; e < 6; ++e) {
            end += snprintf(
                text + end, ROOM - (size_t)end,
                ",{\"name\": \"c%d%.*s\", \"kind\": \"elementwise\", \"operands\": [\"c%d%.*s\"]}",
                b, e + 1, "eeeeee", b, e, "eeeeee");
        }
        end += snprintf(
            text + end, ROOM - (size_t)end,
            ",{\"name\": \"d%d\", \"kind\": \"matmul\", \"operands\": [\"c%deeeeee\", \"down\"]},"
            "{\"name\": \"h%d\", \"kind\": \"elementwise\", \"operands\": [\"h%d\", \"d%d\"]}",
            b, b, b + 1, b, b);
    }
    end += snprintf(text + end, ROOM - (size_t)end,
                    ",{\"name\": \"loss\", \"kind\": \"reduce\", \"operands\": [\"h%d\"]}], "
                    "\"loss\": {\"tensor\": \"loss\"}}",
                    BLOCKS);
    ck_assert_int_lt(end, ROOM);
    ck_assert_xm_ok(ap_json_from_text(text, (size_t)end, "blocks", &forward));
    layered = apply(forward, &how, &info);
    ck_assert_int_ge(info.layers, 8);
    for (int layer = 0; layer + 1 < info.layers; ++layer) {
        within += passing(layered, layer) > 2;
    }
    ck_assert_msg(within <= 1, "%d of %d layers end within a block", within, info.layers);
    ap_graph_destroy(layered);
    ap_graph_destroy(forward);
}
END_TEST

/* Random chains of residual blocks, with masks made of the data and weights in other types. */
static ap_graph_t *random_forward(int *blocks)
{
    const ap_shape_t activation = {.rank = 2, .dims = {8, 4}}, weight = {.rank = 2, .dims = {4, 4}};
    ap_op_params_t op = AP_OP_PARAMS_INIT;
    ap_graph_t *graph;
    int x, mask, first, made[3], block_count = 1 + pick(6);
    char name[32];

    ck_assert_xm_ok(ap_graph_create("random", &graph));
    ck_assert_xm_ok(
        ap_graph_add_tensor(graph, "x", AP_TENSOR_INPUT, &activation, AP_DTYPE_F32, &x));
    op.kind = AP_OP_ELEMENTWISE;
    op.name = "mask";
    op.rule = "ab->ab";
    op.operand_count = 1;
    op.operands = (const int[]){x};
    op.result_dtype = AP_DTYPE_F32;
    ck_assert_xm_ok(ap_graph_add_op(graph, &op, &mask));
    for (int b = 0; b < block_count; ++b) {
        int w, depth = 1 + pick(3);

        first = x;
        for (int d = 0; d < depth; ++d) {
            (void)snprintf(name, sizeof(name), "w%d.%d", b, d);
            ck_assert_xm_ok(
                ap_graph_add_tensor(graph, name, AP_TENSOR_PARAMETER, &weight, AP_DTYPE_F16, &w));
            op.kind = AP_OP_ELEMENTWISE;
            op.name = "cast";
            op.rule = "ab->ab";
            op.operand_count = 1;
            op.operands = (const int[]){w};
            op.linear = true;
            op.flops_per_point = 0;
            ck_assert_xm_ok(ap_graph_add_op(graph, &op, &made[0]));
            op.kind = AP_OP_EINSUM;
            op.name = "product";
            op.rule = "bk,kn->bn";
            op.operand_count = 2;
            op.operands = (const int[]){x, made[0]};
            op.linear = false;
            op.flops_per_point = 2;
            ck_assert_xm_ok(ap_graph_add_op(graph, &op, &x));
            op.kind = AP_OP_ELEMENTWISE;
            op.rule = "ab,ab->ab";
            op.name = "masked";
            op.operands = (const int[]){x, d + 1 < depth ? mask : first};
            op.flops_per_point = 1;
            ck_assert_xm_ok(ap_graph_add_op(graph, &op, &x));
        }
    }
    ck_assert_xm_ok(ap_graph_set_loss(graph, x, true));
    ck_assert_xm_ok(ap_graph_finish(graph));
    *blocks = block_count;
    return graph;
}

START_TEST(random_chains_keep_their_parts)
{
    state = 7;
    for (int round = 0; round < 200; ++round) {
        ap_layering_t how = AP_LAYERING_INIT;
        ap_layering_info_t info;
        int blocks, products = 0, found = 0;
        ap_graph_t *forward = random_forward(&blocks), *layered;

        how.layers = pick(2) == 0 ? 0 : 1 + pick(blocks);
        layered = apply(forward, &how, &info);
        ck_assert_int_eq(how.layers > 0 ? info.layers : 1, how.layers > 0 ? how.layers : 1);
        for (int o = 0; o < ap_graph_ops(forward); ++o) {
            products += ap_graph_op(forward, o)->kind == AP_OP_EINSUM;
        }
        for (int o = 0; o < ap_graph_ops(layered); ++o) {
            const ap_op_t *op = ap_graph_op(layered, o);

            found += op->kind == AP_OP_EINSUM;
            ck_assert_str_ne(op->name, "cast"); /* the weight is taken as it is used */
        }
        ck_assert_int_eq(found, products);
        for (int layer = 0; layer + 1 < info.layers; ++layer) {
            ck_assert_str_ne(ap_graph_tensor(layered, ap_graph_boundary(layered, layer))->name,
                             "mask");
        }
        ap_graph_destroy(layered);
        ap_graph_destroy(forward);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("layering");
    TCase *tcase = tcase_create("layering");

    tcase_add_test(tcase, no_layer_begins_behind_one_number);
    tcase_add_test(tcase, a_number_of_layers_is_had);
    tcase_add_test(tcase, blocks_become_layers_by_themselves);
    tcase_add_test(tcase, names_tell_layers);
    tcase_add_test(tcase, marks_begin_layers);
    tcase_add_test(tcase, a_mark_may_stand_where_several_tensors_pass);
    tcase_add_test(tcase, layers_begin_between_blocks_that_share_a_tensor);
    tcase_add_test(tcase, random_chains_keep_their_parts);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
