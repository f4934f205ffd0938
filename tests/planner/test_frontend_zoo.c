#include "xm_test.h"

#include "planner/frontend_zoo.h"

/* Parameters by hand: 12 h² + 13 h per block, embedding, positions, final norm, head. */
static double expected_parameters(double hidden, double layers, bool tied)
{
    return layers * (12 * hidden * hidden + 13 * hidden) + 51200 * hidden * (tied ? 1 : 2) +
           1024 * hidden + 2 * hidden;
}

static const struct {
    const char *name;
    int hidden, layers;
} models[] = {{"gpt-125m", 768, 12},  {"gpt-350m", 1024, 24}, {"gpt-760m", 1536, 24},
              {"gpt-1.3b", 2048, 24}, {"gpt-2.6b", 2560, 32}, {"gpt-6.7b", 4096, 32},
              {"gpt-15b", 5120, 48},  {"gpt-39b", 8192, 48},  {"gpt-76b", 10240, 60}};

START_TEST(gpt_models_have_their_parameters)
{
    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); ++i) {
        for (int tied = 0; tied < 2; ++tied) {
            ap_zoo_params_t params = AP_ZOO_PARAMS_INIT;
            ap_graph_t *graph;

            params.tied_embeddings = tied == 1;
            ck_assert_xm_ok(ap_zoo_create(models[i].name, &params, &graph));
            ck_assert_str_eq(ap_zoo_name(i), models[i].name);
            ck_assert_int_eq(ap_graph_layers(graph), models[i].layers + 2);
            ck_assert_double_eq_tol(
                ap_graph_parameters(graph),
                expected_parameters(models[i].hidden, models[i].layers, tied == 1), 0.5);
            ap_graph_destroy(graph);
        }
    }
    ck_assert_ptr_null(ap_zoo_name(sizeof(models) / sizeof(models[0])));
}
END_TEST

/* 24·b·s·h² of matrix products and 4·b·s²·h of attention per block: the usual count. */
START_TEST(block_flops_are_the_known_count)
{
    ap_zoo_params_t params = AP_ZOO_PARAMS_INIT;
    const double b = 4, s = 1024, h = 2048;
    double einsum = 0;
    ap_graph_t *graph;

    params.batch = 4;
    ck_assert_xm_ok(ap_zoo_create("gpt-1.3b", &params, &graph));
    for (int o = 0; o < ap_graph_ops(graph); ++o) {
        const ap_op_t *op = ap_graph_op(graph, o);

        einsum += op->layer == 5 && op->kind == AP_OP_EINSUM ? op->flops : 0;
    }
    ck_assert_double_eq_tol(einsum, 24 * b * s * h * h + 4 * b * s * s * h, 1);
    ck_assert_double_ge(ap_graph_layer_flops(graph, 5), einsum);
    ck_assert_double_le(ap_graph_layer_flops(graph, 5), 1.02 * einsum);
    ap_graph_destroy(graph);
}
END_TEST

START_TEST(boundaries_are_hidden_states)
{
    ap_zoo_params_t params = AP_ZOO_PARAMS_INIT;
    ap_graph_t *graph;

    params.batch = 2;
    params.layers = 3;
    ck_assert_xm_ok(ap_zoo_create("gpt-1.3b", &params, &graph));
    ck_assert_int_eq(ap_graph_layers(graph), 5);
    for (int layer = 0; layer < 4; ++layer) {
        const ap_tensor_t *boundary = ap_graph_tensor(graph, ap_graph_boundary(graph, layer));

        ck_assert_int_eq(boundary->shape.rank, 3);
        ck_assert_int_eq(boundary->shape.dims[0], 2);
        ck_assert_int_eq(boundary->shape.dims[1], 1024);
        ck_assert_int_eq(boundary->shape.dims[2], 2048);
        ck_assert_int_eq(boundary->dtype, AP_DTYPE_F16);
    }
    ap_graph_destroy(graph);
}
END_TEST

START_TEST(unknown_names_get_the_nearest)
{
    ap_zoo_params_t params = AP_ZOO_PARAMS_INIT;
    ap_graph_t *graph = NULL;

    ck_assert_xm_fails(ap_zoo_create("gpt-1.3", &params, &graph), XM_ERR_NOT_FOUND,
                       "did you mean 'gpt-1.3b'");
    ck_assert_xm_fails(ap_zoo_create("mlp", &params, &graph), XM_ERR_NOT_FOUND, "'mlp2'");
    ck_assert_xm_fails(ap_zoo_create("mlp0", &params, &graph), XM_ERR_NOT_FOUND, "no built-in");
    ck_assert_xm_fails(ap_zoo_create("something else", &params, &graph), XM_ERR_NOT_FOUND,
                       "no built-in model");
    params.batch = -1;
    ck_assert_xm_fails(ap_zoo_create("mlp2", &params, &graph), XM_ERR_INVALID_ARGUMENT, "positive");
    ck_assert_ptr_null(graph);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("frontend_zoo");
    TCase *tcase = tcase_create("all");

    tcase_add_test(tcase, gpt_models_have_their_parameters);
    tcase_add_test(tcase, block_flops_are_the_known_count);
    tcase_add_test(tcase, boundaries_are_hidden_states);
    tcase_add_test(tcase, unknown_names_get_the_nearest);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
