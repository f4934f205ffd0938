/* SPDX-License-Identifier: Apache-2.0 */
#include "xm_test.h"

#include <stdio.h>

#include "planner/frontend/zoo.h"
#include "planner/graph/graph.h"

static int einsum(ap_graph_t *graph, const char *name, int a, int b)
{
    ap_op_params_t params = AP_OP_PARAMS_INIT;
    int result = -1;

    params.kind = AP_OP_EINSUM;
    params.name = name;
    params.rule = "bk,kn->bn";
    params.operand_count = 2;
    params.operands = (const int[]){a, b};
    params.result_dtype = AP_DTYPE_F32;
    params.flops_per_point = 2;
    ck_assert_xm_ok(ap_graph_add_op(graph, &params, &result));
    return result;
}

static int tensor(ap_graph_t *graph, const char *name, ap_tensor_kind_t kind, int64_t rows,
                  int64_t columns)
{
    const ap_shape_t shape = {2, {rows, columns}};
    int id = -1;

    ck_assert_xm_ok(ap_graph_add_tensor(graph, name, kind, &shape, AP_DTYPE_F32, &id));
    return id;
}

/* x[8,4] times a chain of weights, one layer each. */
static ap_graph_t *chain(int layers)
{
    ap_graph_t *graph;
    int x;

    ck_assert_xm_ok(ap_graph_create("chain", &graph));
    x = tensor(graph, "x", AP_TENSOR_INPUT, 8, 4);
    for (int i = 0; i < layers; ++i) {
        ck_assert_xm_ok(ap_graph_set_layer(graph, i));
        x = einsum(graph, "h", x, tensor(graph, "w", AP_TENSOR_PARAMETER, 4, 4));
    }
    return graph;
}

START_TEST(operators_tensors_and_layers_are_recorded)
{
    ap_graph_t *graph = chain(3);
    const ap_op_t *op;

    ck_assert_xm_ok(ap_graph_finish(graph));
    ck_assert_str_eq(ap_graph_name(graph), "chain");
    ck_assert_int_eq(ap_graph_loss(graph, NULL), -1);
    ck_assert_int_eq(ap_graph_layers(graph), 3);
    ck_assert_int_eq(ap_graph_ops(graph), 3);
    ck_assert_int_eq(ap_graph_tensors(graph), 7);
    op = ap_graph_op(graph, 1);
    ck_assert_int_eq(op->layer, 1);
    ck_assert_double_eq_tol(op->flops, 2.0 * 8 * 4 * 4, 1e-9);
    ck_assert_int_eq(op->operands[0], ap_graph_op(graph, 0)->results[0]);
    ck_assert_int_eq(ap_graph_boundary(graph, 0), ap_graph_op(graph, 0)->results[0]);
    ck_assert_int_eq(ap_graph_boundary(graph, 2), -1);
    ck_assert_double_eq_tol(ap_graph_tensor_bytes(graph, op->results[0]), 8 * 4 * 4, 1e-9);
    ck_assert_double_eq_tol(ap_graph_parameters(graph), 3 * 16, 1e-9);
    ck_assert_double_eq_tol(ap_graph_layer_flops(graph, 2), 256, 1e-9);
    ck_assert_int_eq(ap_graph_tensor(graph, op->operands[1])->layer, 1);
    ap_graph_destroy(graph);
    ap_graph_destroy(NULL);
}
END_TEST

START_TEST(equal_layers_have_equal_hashes)
{
    ap_zoo_params_t zoo = AP_ZOO_PARAMS_INIT;
    ap_graph_t *one, *other;

    ck_assert_xm_ok(ap_zoo_create("gpt-125m", &zoo, &one));
    zoo.batch = 2;
    ck_assert_xm_ok(ap_zoo_create("gpt-125m", &zoo, &other));
    for (int layer = 2; layer <= 12; ++layer) {
        ck_assert_uint_eq(ap_graph_layer_hash(one, 1), ap_graph_layer_hash(one, layer));
    }
    ck_assert_uint_ne(ap_graph_layer_hash(one, 0), ap_graph_layer_hash(one, 1));
    ck_assert_uint_ne(ap_graph_layer_hash(one, 1), ap_graph_layer_hash(one, 13));
    ck_assert_uint_ne(ap_graph_layer_hash(one, 1), ap_graph_layer_hash(other, 1));
    ap_graph_destroy(one);
    ap_graph_destroy(other);
}
END_TEST

START_TEST(bad_graphs_are_refused)
{
    const ap_shape_t empty = {2, {4, 0}};
    ap_op_params_t params = AP_OP_PARAMS_INIT;
    ap_graph_t *graph;
    int id = -5, first, w;

    ck_assert_xm_ok(ap_graph_create("bad", &graph));
    ck_assert_xm_fails(ap_graph_finish(graph), XM_ERR_INVALID_ARGUMENT, "no operators");
    ck_assert_xm_fails(ap_graph_add_tensor(graph, "t", AP_TENSOR_INPUT, &empty, AP_DTYPE_F32, &id),
                       XM_ERR_INVALID_ARGUMENT, "dimension 1 is 0");
    params.name = "op";
    params.rule = "ab->ab";
    params.operand_count = 1;
    params.operands = (const int[]){3};
    ck_assert_xm_fails(ap_graph_add_op(graph, &params, &id), XM_ERR_INVALID_ARGUMENT,
                       "operator 'op' operand 0: the graph 'bad' has no tensor 3");
    ck_assert_xm_fails(ap_graph_set_layer(graph, -1), XM_ERR_INVALID_ARGUMENT, "negative");
    first = tensor(graph, "x", AP_TENSOR_INPUT, 8, 4);
    w = tensor(graph, "w", AP_TENSOR_PARAMETER, 4, 4);
    ck_assert_xm_fails(ap_graph_set_alias(graph, first, w), XM_ERR_INVALID_ARGUMENT,
                       "differ in shape");
    ck_assert_xm_fails(ap_graph_set_loss(graph, first, false), XM_ERR_INVALID_ARGUMENT,
                       "not a scalar");
    ck_assert_int_eq(id, -5);
    ap_graph_destroy(graph);
}
END_TEST

/* By hand: layer 3 adds what layers 0, 1 and 2 made. Only the last is the boundary before it. */
START_TEST(tensors_that_skip_layers_rest)
{
    ap_graph_t *graph = chain(3);
    int made[3], all[16], sum, result;
    ap_op_params_t params = AP_OP_PARAMS_INIT;

    for (int i = 0; i < 3; ++i) {
        made[i] = ap_graph_op(graph, i)->results[0];
    }
    ck_assert_xm_ok(ap_graph_set_layer(graph, 3));
    params.kind = AP_OP_ELEMENTWISE;
    params.name = "sum";
    params.rule = "bn,bn->bn";
    params.operand_count = 2;
    params.operands = (const int[]){made[0], made[2]};
    params.result_dtype = AP_DTYPE_F32;
    ck_assert_xm_ok(ap_graph_add_op(graph, &params, &sum));
    params.name = "sum2";
    params.operands = (const int[]){sum, made[1]};
    ck_assert_xm_ok(ap_graph_add_op(graph, &params, &result));
    ck_assert_xm_ok(ap_graph_finish(graph));
    for (int i = 0; i < 3; ++i) {
        ck_assert_int_eq(ap_graph_boundary(graph, i), made[i]);
        ck_assert_int_eq(ap_graph_rests_until(graph, made[i]), i < 2 ? 3 : -1);
        ck_assert_int_eq(ap_graph_reads_rest(graph, 3, made[i]), i < 2);
    }
    ck_assert(!ap_graph_reads_rest(graph, 1, made[0]));
    ck_assert_int_eq(ap_graph_resting(graph, (int[]){0, 0}, (int[]){3, 3}, all), 1);
    ck_assert_int_eq(all[0], made[0]);
    ck_assert_int_eq(ap_graph_resting(graph, (int[]){0, 2}, (int[]){3, 3}, all), 2);
    ck_assert_int_eq(ap_graph_resting(graph, (int[]){0, 0}, (int[]){1, 2}, all), 0);
    ap_graph_destroy(graph);
}
END_TEST

START_TEST(layers_must_follow_each_other)
{
    ap_graph_t *graph = chain(2);

    ck_assert_xm_ok(ap_graph_set_layer(graph, 2));
    (void)einsum(graph, "apart", tensor(graph, "x2", AP_TENSOR_INPUT, 8, 4),
                 tensor(graph, "w2", AP_TENSOR_PARAMETER, 4, 4));
    ck_assert_xm_fails(ap_graph_finish(graph), XM_ERR_INVALID_ARGUMENT,
                       "nothing passes from layer 1 to layer 2");
    ap_graph_destroy(graph);

    graph = chain(1);
    ck_assert_xm_ok(ap_graph_set_layer(graph, 2));
    (void)einsum(graph, "gap", ap_graph_op(graph, 0)->results[0],
                 tensor(graph, "w", AP_TENSOR_PARAMETER, 4, 4));
    ck_assert_xm_fails(ap_graph_finish(graph), XM_ERR_INVALID_ARGUMENT,
                       "'gap' is in layer 2 after layer 0");
    ap_graph_destroy(graph);
}
END_TEST

START_TEST(a_finished_graph_is_closed)
{
    ap_graph_t *graph = chain(1);

    ck_assert_xm_ok(ap_graph_finish(graph));
    ck_assert_xm_fails(ap_graph_set_layer(graph, 1), XM_ERR_INVALID_ARGUMENT, "finished");
    ap_graph_destroy(graph);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("graph");
    TCase *tcase = tcase_create("all");

    tcase_add_test(tcase, operators_tensors_and_layers_are_recorded);
    tcase_add_test(tcase, equal_layers_have_equal_hashes);
    tcase_add_test(tcase, bad_graphs_are_refused);
    tcase_add_test(tcase, tensors_that_skip_layers_rest);
    tcase_add_test(tcase, layers_must_follow_each_other);
    tcase_add_test(tcase, a_finished_graph_is_closed);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
