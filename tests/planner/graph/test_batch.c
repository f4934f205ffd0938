/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs with another batch, held against models that are made for that batch. */
#include "planner/graph/batch.h"

#include "xm_test.h"

#include "planner/frontend/zoo.h"

static ap_graph_t *model(const char *name, int64_t batch)
{
    ap_zoo_params_t zoo = AP_ZOO_PARAMS_INIT;
    ap_graph_t *graph;

    zoo.batch = batch;
    zoo.layers = strncmp(name, "wresnet", 7) == 0 || strncmp(name, "mlp", 3) == 0 ? 0 : 2;
    ck_assert_xm_ok(ap_zoo_create(name, &zoo, &graph));
    return graph;
}

static void check_equal(const ap_graph_t *a, const ap_graph_t *b)
{
    ck_assert_int_eq(ap_graph_ops(a), ap_graph_ops(b));
    ck_assert_int_eq(ap_graph_tensors(a), ap_graph_tensors(b));
    for (int t = 0; t < ap_graph_tensors(a); ++t) {
        const ap_shape_t *x = &ap_graph_tensor(a, t)->shape, *y = &ap_graph_tensor(b, t)->shape;

        ck_assert_int_eq(x->rank, y->rank);
        for (int d = 0; d < x->rank; ++d) {
            ck_assert_msg(x->dims[d] == y->dims[d], "%s, dimension %d: %ld, not %ld",
                          ap_graph_tensor(a, t)->name, d, (long)x->dims[d], (long)y->dims[d]);
        }
    }
    for (int o = 0; o < ap_graph_ops(a); ++o) {
        const ap_op_t *x = ap_graph_op(a, o), *y = ap_graph_op(b, o);

        ck_assert_msg(fabs(x->flops - y->flops) <= 1e-9 * y->flops, "%s: %g FLOPs, not %g", x->name,
                      x->flops, y->flops);
        for (int f = 0; f < x->rule.factors; ++f) {
            ck_assert_int_eq(x->rule.factor[f].size, y->rule.factor[f].size);
        }
    }
    ck_assert_int_eq(ap_graph_layers(a), ap_graph_layers(b));
    for (int layer = 0; layer < ap_graph_layers(a); ++layer) {
        ck_assert(ap_graph_layer_hash(a, layer) == ap_graph_layer_hash(b, layer));
    }
}

static const char *const names[] = {"gpt-125m", "wresnet-250m", "mlp2", "llama3-8b"};

START_TEST(equals_the_model_made_for_that_batch)
{
    static const int64_t batches[][2] = {{6, 2}, {2, 14}, {8, 1}, {3, 3}};

    for (size_t i = 0; i < sizeof(batches) / sizeof(batches[0]); ++i) {
        ap_graph_t *from = model(names[_i], batches[i][0]), *made;
        ap_graph_t *to = model(names[_i], batches[i][1]);

        ck_assert_xm_ok(ap_graph_with_batch(from, batches[i][0], batches[i][1], &made));
        check_equal(made, to);
        ap_graph_destroy(made);
        ap_graph_destroy(from);
        ap_graph_destroy(to);
    }
}
END_TEST

/* x[4, 6] times a weight [4, 6], element by element: the weight has a sample's place. */
START_TEST(a_weight_with_the_batch_is_refused)
{
    const ap_shape_t shape = {2, {4, 6}};
    ap_op_params_t op = AP_OP_PARAMS_INIT;
    ap_graph_t *graph, *made = NULL;
    int x, w, loss;

    ck_assert_xm_ok(ap_graph_create("g", &graph));
    ck_assert_xm_ok(ap_graph_add_tensor(graph, "x", AP_TENSOR_INPUT, &shape, AP_DTYPE_F32, &x));
    ck_assert_xm_ok(ap_graph_add_tensor(graph, "w", AP_TENSOR_PARAMETER, &shape, AP_DTYPE_F32, &w));
    op.kind = AP_OP_EINSUM;
    op.name = "scale";
    op.rule = "bk,bk->b";
    op.operand_count = 2;
    op.operands = (const int[]){x, w};
    op.result_dtype = AP_DTYPE_F32;
    ck_assert_xm_ok(ap_graph_add_op(graph, &op, &loss));
    ck_assert_xm_ok(ap_graph_finish(graph));
    ck_assert_int_eq(ap_graph_with_batch(graph, 4, 8, &made), XM_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(xm_last_error(), "'scale'"));
    ck_assert_ptr_nonnull(strstr(xm_last_error(), "'w'"));
    ck_assert_ptr_null(made);
    ap_graph_destroy(graph);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("batch of a graph");
    TCase *tcase = tcase_create("all");

    tcase_add_loop_test(tcase, equals_the_model_made_for_that_batch, 0,
                        (int)(sizeof(names) / sizeof(names[0])));
    tcase_add_test(tcase, a_weight_with_the_batch_is_refused);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
