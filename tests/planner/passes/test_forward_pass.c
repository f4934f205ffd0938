/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/passes/forward_pass.h"

#include <stdio.h>

#include "planner/frontend.h"
#include "planner/frontend/json.h"
#include "planner/frontend/zoo.h"
#include "planner/passes/training.h"
#include "xm_test.h"

static ap_graph_t *load(const char *file)
{
    ap_frontend_params_t params = AP_FRONTEND_PARAMS_INIT;
    ap_graph_t *graph;
    char path[128];

    (void)snprintf(path, sizeof(path), "tests/fixtures/%s", file);
    ck_assert_xm_ok(ap_frontend_load(xm_test_source_path(path), &params, &graph, NULL));
    return graph;
}

static ap_graph_t *forward_of(const ap_graph_t *graph)
{
    ap_graph_t *forward;

    ck_assert_xm_ok(ap_forward_pass(graph, &forward, NULL));
    return forward;
}

static double product_flops(const ap_graph_t *graph)
{
    double flops = 0;

    for (int o = 0; o < ap_graph_ops(graph); ++o) {
        flops += ap_graph_op(graph, o)->kind == AP_OP_EINSUM ? ap_graph_op(graph, o)->flops : 0;
    }
    return flops;
}

/* JAX's own backward pass is in the file: the derived one has as many FLOPs in its products. */
static const struct {
    const char *file;
    double forward; /* FLOPs of the products of the forward pass */
    int weights;
} steps[] = {
    {"hlo/mlp2-b1024-h128.hlo", 2 * 2.0 * 1024 * 128 * 128, 2},
    {"hlo/mlp12-b1024-h128.hlo", 12 * 2.0 * 1024 * 128 * 128, 12},
    {"hlo/mlp2-b1024-h128.before_optimizations.txt", 2 * 2.0 * 1024 * 128 * 128, 2},
    /* qkv, scores, context, out, up, down */
    {"hlo/transformer1.hlo", 2.0 * 64 * 128 * (384 + 8 + 8 + 128 + 512 + 512), 6},
    {"hlo/transformer1.before_optimizations.txt", 2.0 * 64 * 128 * (384 + 8 + 8 + 128 + 512 + 512),
     6},
    {"hlo/transformer2.hlo", 2 * 2.0 * 64 * 128 * (384 + 8 + 8 + 128 + 512 + 512), 12},
};

START_TEST(a_step_has_its_forward_pass_in_it)
{
    ap_graph_t *step = load(steps[_i].file), *forward = forward_of(step), *training;
    bool is_gradient;
    int loss = ap_graph_loss(forward, &is_gradient), weights = 0;

    ck_assert_int_ge(loss, 0);
    ck_assert(is_gradient);
    ck_assert_int_ge(ap_graph_tensor(forward, loss)->gradient_of, 0);
    for (int t = 0; t < ap_graph_tensors(forward); ++t) {
        weights += ap_graph_tensor(forward, t)->kind == AP_TENSOR_PARAMETER;
    }
    ck_assert_int_eq(weights, steps[_i].weights);
    ck_assert_double_eq_tol(product_flops(forward), steps[_i].forward, 1);
    ck_assert_xm_ok(ap_training_expand(forward, AP_OPTIMIZER_SGD, &training));
    ck_assert_double_eq_tol(product_flops(training), product_flops(step), 1);
    ap_graph_destroy(training);
    ap_graph_destroy(forward);
    ap_graph_destroy(step);
}
END_TEST

/* A loop over one stacked weight, in which nothing but the loss tells forward from backward. */
START_TEST(one_weight_is_enough)
{
    ap_graph_t *step = load("hlo/scan12-b1024-h128.hlo"), *forward;
    ap_forward_info_t info;

    ck_assert_xm_ok(ap_forward_pass(step, &forward, &info));
    ck_assert_double_eq_tol(product_flops(forward), 12 * 2.0 * 1024 * 128 * 128, 1);
    ck_assert_double_eq(info.again, 0);
    ap_graph_destroy(forward);
    ap_graph_destroy(step);
}
END_TEST

/* Convolutions, gathers and loops: at least every weight has its part. */
START_TEST(every_weight_has_a_part)
{
    static const char *const files[] = {"hlo/convnet.hlo",           "hlo/moe.hlo",
                                        "hlo/scan12-b1024-h128.hlo", "onnx/gpt2layers.onnx",
                                        "onnx/convnet.onnx",         "onnx/block.onnx"};
    static const int weights[] = {4, 4, 1, 0, 0, 0};
    ap_graph_t *step = load(files[_i]), *forward = forward_of(step);
    int found = 0;

    for (int t = 0; t < ap_graph_tensors(forward); ++t) {
        found += ap_graph_tensor(forward, t)->kind == AP_TENSOR_PARAMETER;
    }
    if (weights[_i] > 0) {
        ck_assert_int_eq(found, weights[_i]);
    } else {
        ck_assert_int_gt(found, 0);
    }
    for (int o = 0; o < ap_graph_ops(forward); ++o) {
        ck_assert_int_eq(ap_graph_op(forward, o)->phase, AP_PHASE_FORWARD);
    }
    ap_graph_destroy(forward);
    ap_graph_destroy(step);
}
END_TEST

/* h = x·w1·w2, with the gradients scaled by their common norm: all of them depend on each other. */
static const char clipped[] =
    "{\"format\": \"autopar-graph\", \"version\": 1, \"name\": \"clipped\", \"tensors\": ["
    "{\"name\": \"x\", \"kind\": \"input\", \"shape\": [8, 4]},"
    "{\"name\": \"y\", \"kind\": \"input\", \"shape\": [8, 4]},"
    "{\"name\": \"w1\", \"kind\": \"parameter\", \"shape\": [4, 4]},"
    "{\"name\": \"w2\", \"kind\": \"parameter\", \"shape\": [4, 4]}], \"ops\": ["
    "{\"name\": \"h1\", \"kind\": \"einsum\", \"operands\": [\"x\", \"w1\"], \"rule\": "
    "\"bk,kn->bn\"},"
    "{\"name\": \"h2\", \"kind\": \"einsum\", \"operands\": [\"h1\", \"w2\"], \"rule\": "
    "\"bk,kn->bn\"},"
    "{\"name\": \"e\", \"kind\": \"elementwise\", \"operands\": [\"h2\", \"y\"], \"rule\": "
    "\"bn,bn->bn\"},"
    "{\"name\": \"g2\", \"kind\": \"einsum\", \"operands\": [\"h1\", \"e\"], \"rule\": "
    "\"bk,bn->kn\"},"
    "{\"name\": \"d1\", \"kind\": \"einsum\", \"operands\": [\"e\", \"w2\"], \"rule\": "
    "\"bn,kn->bk\"},"
    "{\"name\": \"g1\", \"kind\": \"einsum\", \"operands\": [\"x\", \"d1\"], \"rule\": "
    "\"bk,bn->kn\"},"
    "{\"name\": \"n1\", \"kind\": \"reduce\", \"operands\": [\"g1\"], \"rule\": \"kn->\"},"
    "{\"name\": \"n2\", \"kind\": \"reduce\", \"operands\": [\"g2\"], \"rule\": \"kn->\"},"
    "{\"name\": \"n\", \"kind\": \"elementwise\", \"operands\": [\"n1\", \"n2\"], \"rule\": "
    "\",->\"},"
    "{\"name\": \"c1\", \"kind\": \"elementwise\", \"operands\": [\"g1\", \"n\"], \"rule\": "
    "\"kn,->kn\"},"
    "{\"name\": \"c2\", \"kind\": \"elementwise\", \"operands\": [\"g2\", \"n\"], \"rule\": "
    "\"kn,->kn\"},"
    "{\"name\": \"new1\", \"kind\": \"elementwise\", \"operands\": [\"w1\", \"c1\"], \"rule\": "
    "\"kn,kn->kn\"},"
    "{\"name\": \"new2\", \"kind\": \"elementwise\", \"operands\": [\"w2\", \"c2\"], \"rule\": "
    "\"kn,kn->kn\"}], \"aliases\": {\"new1\": \"w1\", \"new2\": \"w2\"}}";

START_TEST(clipping_by_a_common_norm_hides_nothing)
{
    ap_graph_t *step, *forward;
    bool is_gradient;
    int loss;

    ck_assert_xm_ok(ap_json_from_text(clipped, sizeof(clipped) - 1, "clipped", &step));
    forward = forward_of(step);
    ck_assert_int_eq(ap_graph_ops(forward), 3);
    loss = ap_graph_loss(forward, &is_gradient);
    ck_assert_str_eq(ap_graph_tensor(forward, loss)->name, "e");
    ck_assert_str_eq(ap_graph_tensor(forward, ap_graph_tensor(forward, loss)->gradient_of)->name,
                     "h2");
    ap_graph_destroy(forward);
    ap_graph_destroy(step);
}
END_TEST

/* The clipped step with something else instead of its last product for the first weight. */
static xm_status_t change(const char *from, const char *to, ap_graph_t **forward,
                          ap_forward_info_t *info)
{
    char text[2 * sizeof(clipped)];
    const char *at = strstr(clipped, from);
    ap_graph_t *step;
    xm_status_t status;

    ck_assert_ptr_nonnull(at);
    (void)snprintf(text, sizeof(text), "%.*s%s%s", (int)(at - clipped), clipped, to,
                   at + strlen(from));
    ck_assert_xm_ok(ap_json_from_text(text, strlen(text), "changed", &step));
    status = ap_forward_pass(step, forward, info);
    ap_graph_destroy(step);
    return status;
}

/* The first product once more for the second weight's gradient: one of two. */
START_TEST(what_is_computed_again_is_counted)
{
    ap_forward_info_t info;
    ap_graph_t *forward;

    ck_assert_xm_ok(
        change("{\"name\": \"g2\", \"kind\": \"einsum\", \"operands\": [\"h1\", \"e\"]",
               "{\"name\": \"again\", \"kind\": \"einsum\", \"operands\": [\"x\", "
               "\"w1\"], \"rule\": \"bk,kn->bn\"},"
               "{\"name\": \"g2\", \"kind\": \"einsum\", \"operands\": [\"again\", \"e\"]",
               &forward, &info));
    ck_assert_int_eq(ap_graph_ops(forward), 3);
    ck_assert_double_eq_tol(info.again, 0.5, 1e-9);
    ap_graph_destroy(forward);
}
END_TEST

/* Of five products (two forward, three backward) and one that belongs to neither. */
START_TEST(work_that_is_not_explained_is_refused)
{
    ap_graph_t *forward;

    ck_assert_xm_fails(change("{\"name\": \"n1\"",
                              "{\"name\": \"beside\", \"kind\": \"einsum\", \"operands\": [\"h2\", "
                              "\"w2\"], \"rule\": \"bn,kn->bk\"},{\"name\": \"n1\"",
                              &forward, NULL),
                       XM_ERR_UNSUPPORTED, "17 % of the FLOPs of its products are not explained");
}
END_TEST

START_TEST(a_model_with_a_loss_is_what_leads_to_it)
{
    ap_zoo_params_t zoo = AP_ZOO_PARAMS_INIT;
    ap_graph_t *graph, *training, *forward;

    zoo.layers = 3;
    ck_assert_xm_ok(ap_zoo_create("gpt-125m", &zoo, &graph));
    ck_assert_xm_ok(ap_training_expand(graph, AP_OPTIMIZER_ADAM, &training));
    forward = forward_of(training);
    ck_assert_int_eq(ap_graph_ops(forward), ap_graph_ops(graph));
    ck_assert_int_eq(ap_graph_layers(forward), ap_graph_layers(graph));
    for (int layer = 0; layer < ap_graph_layers(graph); ++layer) {
        ck_assert(ap_graph_layer_hash(forward, layer) == ap_graph_layer_hash(graph, layer));
    }
    ap_graph_destroy(forward);
    ap_graph_destroy(training);
    ap_graph_destroy(graph);
}
END_TEST

START_TEST(what_trains_nothing_is_refused)
{
    char text[sizeof(clipped)];
    ap_graph_t *graph, *forward;
    char *aliases;

    (void)snprintf(text, sizeof(text), "%s", clipped);
    aliases = strstr(text, ", \"aliases\"");
    ck_assert_ptr_nonnull(aliases);
    (void)snprintf(aliases, 2, "}");
    ck_assert_xm_ok(ap_json_from_text(text, strlen(text), "text", &graph));
    ck_assert_xm_fails(ap_forward_pass(graph, &forward, NULL), XM_ERR_UNSUPPORTED,
                       "'clipped' names no loss and gives no weight back");
    ap_graph_destroy(graph);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("forward_pass");
    TCase *tcase = tcase_create("forward_pass");

    tcase_add_loop_test(tcase, a_step_has_its_forward_pass_in_it, 0,
                        (int)(sizeof(steps) / sizeof(steps[0])));
    tcase_add_loop_test(tcase, every_weight_has_a_part, 0, 6);
    tcase_add_test(tcase, one_weight_is_enough);
    tcase_add_test(tcase, clipping_by_a_common_norm_hides_nothing);
    tcase_add_test(tcase, what_is_computed_again_is_counted);
    tcase_add_test(tcase, work_that_is_not_explained_is_refused);
    tcase_add_test(tcase, a_model_with_a_loss_is_what_leads_to_it);
    tcase_add_test(tcase, what_trains_nothing_is_refused);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
