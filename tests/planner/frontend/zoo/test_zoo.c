/* SPDX-License-Identifier: Apache-2.0 */
#include "xm_test.h"

#include <math.h>

#include "planner/frontend/zoo.h"
#include "planner/passes/training.h"

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
}
END_TEST

/* Parameters in billions: of the decoders what their authors publish (1 %); of Alpa's models what
 * their names say, which are rounded. */
static const struct {
    const char *name;
    double billions, tolerance;
} published[] = {
    {"llama2-7b", 6.738, 0.01},
    {"llama3-8b", 8.030, 0.01},
    {"llama3-70b", 70.55, 0.01},
    {"qwen3-32b", 32.76, 0.01},
    {"mixtral-8x7b", 46.70, 0.01},
    {"mixtral-8x22b", 140.6, 0.01},
    {"deepseek-v3", 671.0, 0.001},
    {"qwen3-30b-a3b", 30.53, 0.01},
    {"qwen3-235b-a22b", 235.1, 0.01},
    {"wresnet-250m", 0.250, 0.03},
    {"wresnet-500m", 0.500, 0.03},
    {"wresnet-1b", 1.0, 0.03},
    {"wresnet-2b", 2.0, 0.03},
    {"wresnet-4b", 4.0, 0.03},
    {"wresnet-6.8b", 6.8, 0.03},
    {"wresnet-13b", 13.0, 0.03},
    {"unet-470m", 0.470, 0.03},
    {"unet-1b", 1.0, 0.09},
    {"unet-1.2b", 1.2, 0.04},
    {"unet-1.8b", 1.8, 0.08},
    {"unet-2b", 2.0, 0.07},
    /* Rae and others 2021; Wang and others 2021; Wu and others 2021; Naumov and others 2019. */
    {"gopher-280b", 280.0, 0.002},
    {"ernie-3.0-titan-260b", 260.0, 0.006},
    {"yuan-245.7b", 245.7, 0.0005},
    {"dlrm-540m", 0.540, 0.002}};

START_TEST(models_have_their_published_parameters)
{
    for (size_t i = 0; i < sizeof(published) / sizeof(published[0]); ++i) {
        ap_zoo_params_t params = AP_ZOO_PARAMS_INIT;
        double expected = 1e9 * published[i].billions;
        ap_graph_t *graph;

        ck_assert_xm_ok(ap_zoo_create(published[i].name, &params, &graph));
        ck_assert_msg(fabs(ap_graph_parameters(graph) - expected) <=
                          published[i].tolerance * expected,
                      "%s has %.0f parameters", published[i].name, ap_graph_parameters(graph));
        ap_graph_destroy(graph);
    }
}
END_TEST

/* Alpa's own count for its mixture of experts: dense and expert blocks by turns. */
START_TEST(experts_have_alpas_parameters)
{
    static const struct {
        const char *name;
        double hidden, layers, experts;
    } moes[] = {
        {"moe-380m", 768, 8, 8},    {"moe-690m", 768, 8, 16},   {"moe-1.3b", 768, 16, 16},
        {"moe-2.4b", 1024, 16, 16}, {"moe-7.1b", 1280, 16, 32}, {"moe-10b", 1536, 16, 32},
        {"moe-27b", 2048, 16, 48},  {"moe-70b", 2048, 32, 64},  {"moe-140b", 2048, 32, 128}};

    for (size_t i = 0; i < sizeof(moes) / sizeof(moes[0]); ++i) {
        ap_zoo_params_t params = AP_ZOO_PARAMS_INIT;
        const double h = moes[i].hidden;
        const double attention = 4 * h * h, mlp = 2 * 8 * h * h;
        const double expected = moes[i].layers * attention +
                                moes[i].layers / 2 * mlp * (1 + moes[i].experts) + 32000 * h;
        ap_graph_t *graph;

        ck_assert_xm_ok(ap_zoo_create(moes[i].name, &params, &graph));
        ck_assert_double_eq_tol(ap_graph_parameters(graph), expected, 0.01 * expected);
        ck_assert_int_eq(ap_graph_layers(graph), (int)moes[i].layers + 2);
        ap_graph_destroy(graph);
    }
}
END_TEST

static double flops_of(const ap_graph_t *graph, ap_phase_t phase)
{
    double flops = 0;

    for (int o = 0; o < ap_graph_ops(graph); ++o) {
        flops += ap_graph_op(graph, o)->phase == phase ? ap_graph_op(graph, o)->flops : 0;
    }
    return flops;
}

/* 2 FLOPs per weight and token forward, and attention; the backward pass has twice that. */
START_TEST(a_decoder_has_its_flops)
{
    ap_zoo_params_t params = AP_ZOO_PARAMS_INIT;
    ap_graph_t *graph, *training;
    double weights, attention, forward;

    params.batch = 2;
    ck_assert_xm_ok(ap_zoo_create("llama3-8b", &params, &graph));
    weights = ap_graph_parameters(graph) - 128256.0 * 4096; /* looked up, not multiplied */
    attention = 4.0 * 4096 * 4096 * 4096 * 32;
    forward = flops_of(graph, AP_PHASE_FORWARD);
    ck_assert_double_eq_tol(forward, 2 * (2 * 4096 * weights + attention), 0.01 * forward);
    ck_assert_xm_ok(ap_training_expand(graph, AP_OPTIMIZER_SGD, &training));
    ck_assert_double_ge(flops_of(training, AP_PHASE_BACKWARD), 2 * forward);
    ck_assert_double_le(flops_of(training, AP_PHASE_BACKWARD), 2.2 * forward);
    ap_graph_destroy(training);
    ap_graph_destroy(graph);
}
END_TEST

/* Experts that see their share of the tokens: the FLOPs of the active parameters. */
START_TEST(experts_compute_for_their_share)
{
    ap_zoo_params_t params = AP_ZOO_PARAMS_INIT;
    double expert = 0;
    ap_graph_t *graph;

    ck_assert_xm_ok(ap_zoo_create("mixtral-8x7b", &params, &graph));
    for (int o = 0; o < ap_graph_ops(graph); ++o) {
        const ap_op_t *op = ap_graph_op(graph, o);

        expert += op->layer == 3 && strstr(op->name, "expert.") != NULL ? op->flops : 0;
    }
    ck_assert_double_eq_tol(expert, 4096 * 2.0 * (3.0 * 2 * 4096 * 14336), 0.001 * expert);
    ap_graph_destroy(graph);
}
END_TEST

/* The step of every model can be derived, and every parameter is trained. */
START_TEST(every_model_can_be_trained)
{
    static const char *const few[] = {"moe-690m",      "wresnet-500m", "unet-470m", "qwen3-32b",
                                      "qwen3-30b-a3b", "gopher-280b",  "dlrm-540m"};

    for (size_t i = 0; i < sizeof(few) / sizeof(few[0]); ++i) {
        ap_zoo_params_t params = AP_ZOO_PARAMS_INIT;
        int parameters = 0, updates = 0;
        ap_graph_t *graph, *training;

        params.layers = 2;
        params.batch = 2;
        ck_assert_xm_ok(ap_zoo_create(few[i], &params, &graph));
        ck_assert_xm_ok(ap_training_expand(graph, AP_OPTIMIZER_ADAM, &training));
        for (int t = 0; t < ap_graph_tensors(graph); ++t) {
            parameters += ap_graph_tensor(graph, t)->kind == AP_TENSOR_PARAMETER;
        }
        for (int o = 0; o < ap_graph_ops(training); ++o) {
            updates += ap_graph_op(training, o)->phase == AP_PHASE_UPDATE;
        }
        ck_assert_int_eq(updates, parameters);
        ap_graph_destroy(training);
        ap_graph_destroy(graph);
    }
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

    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, gpt_models_have_their_parameters);
    tcase_add_test(tcase, models_have_their_published_parameters);
    tcase_add_test(tcase, experts_have_alpas_parameters);
    tcase_add_test(tcase, a_decoder_has_its_flops);
    tcase_add_test(tcase, experts_compute_for_their_share);
    tcase_add_test(tcase, every_model_can_be_trained);
    tcase_add_test(tcase, block_flops_are_the_known_count);
    tcase_add_test(tcase, boundaries_are_hidden_states);
    tcase_add_test(tcase, unknown_names_get_the_nearest);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
