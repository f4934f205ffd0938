/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/passes/elementwise_fusion.h"

#include "planner/passes/forward_pass.h"
#include "planner/frontend.h"
#include "planner/frontend/json.h"
#include "planner/passes/layering.h"
#include "planner/passes/training.h"
#include "tests/planner/passes/check_layers.h"
#include "xm_test.h"

/* y = (x·w + bias) scaled by 1 + sigmoid: five element-wise operators, one of which spreads. */
static const char text[] =
    "{\"format\": \"autopar-graph\", \"version\": 1, \"name\": \"chain\", \"tensors\": ["
    "{\"name\": \"x\", \"kind\": \"input\", \"shape\": [8, 4]},"
    "{\"name\": \"w\", \"kind\": \"parameter\", \"shape\": [4, 6]},"
    "{\"name\": \"bias\", \"kind\": \"parameter\", \"shape\": [6]},"
    "{\"name\": \"v\", \"kind\": \"parameter\", \"shape\": [6, 4]}], \"ops\": ["
    "{\"name\": \"h\", \"kind\": \"einsum\", \"operands\": [\"x\", \"w\"], \"rule\": "
    "\"bk,kn->bn\"},"
    "{\"name\": \"spread\", \"kind\": \"reshape\", \"operands\": [\"bias\"], \"rule\": \"n->bn\", "
    "\"sizes\": {\"b\": 8}},"
    "{\"name\": \"biased\", \"kind\": \"elementwise\", \"operands\": [\"h\", \"spread\"], "
    "\"rule\": "
    "\"bn,bn->bn\", \"linear\": true, \"flops\": 48},"
    "{\"name\": \"gate\", \"kind\": \"elementwise\", \"operands\": [\"biased\"], \"rule\": "
    "\"bn->bn\", "
    "\"flops\": 48},"
    "{\"name\": \"more\", \"kind\": \"elementwise\", \"operands\": [\"gate\"], \"rule\": "
    "\"bn->bn\", "
    "\"linear\": true, \"flops\": 48},"
    "{\"name\": \"scaled\", \"kind\": \"elementwise\", \"operands\": [\"biased\", \"more\"], "
    "\"rule\": "
    "\"bn,bn->bn\", \"flops\": 48},"
    "{\"name\": \"out\", \"kind\": \"einsum\", \"operands\": [\"scaled\", \"v\"], \"rule\": "
    "\"bn,nk->bk\"}], \"loss\": {\"tensor\": \"out\", \"is_gradient\": true}}";

START_TEST(a_chain_becomes_what_a_kernel_is)
{
    ap_graph_t *graph, *fused, *training;

    ck_assert_xm_ok(ap_json_from_text(text, sizeof(text) - 1, "chain", &graph));
    ck_assert_xm_ok(ap_elementwise_fuse(graph, &fused));
    /* gate and more become part of scaled; biased has two users. */
    ck_assert_int_eq(ap_graph_ops(fused), 4);
    ck_assert_str_eq(ap_graph_op(fused, 1)->name, "biased");
    ck_assert_str_eq(ap_graph_op(fused, 1)->rule.text, "ab,b->ab");
    ck_assert(ap_graph_op(fused, 1)->linear);
    ck_assert_int_eq(ap_graph_tensor(fused, ap_graph_op(fused, 1)->operands[1])->kind,
                     AP_TENSOR_PARAMETER);
    ck_assert_str_eq(ap_graph_op(fused, 2)->name, "scaled");
    ck_assert_str_eq(ap_graph_op(fused, 2)->rule.text, "ab->ab");
    ck_assert(!ap_graph_op(fused, 2)->linear);
    ck_assert_double_eq(ap_graph_op(fused, 2)->flops, 144);
    ck_assert_double_eq(ap_graph_parameters(fused), ap_graph_parameters(graph));
    ck_assert_xm_ok(ap_training_expand(fused, AP_OPTIMIZER_ADAM, &training));
    ap_graph_destroy(training);
    ap_graph_destroy(fused);
    ap_graph_destroy(graph);
}
END_TEST

static double flops_of(const ap_graph_t *graph)
{
    double flops = 0;

    for (int layer = 0; layer < ap_graph_layers(graph); ++layer) {
        flops += ap_graph_layer_flops(graph, layer);
    }
    return flops;
}

START_TEST(layers_stay_what_they_are)
{
    static const char *const files[] = {
        "tests/fixtures/hlo/transformer2.hlo", "tests/fixtures/hlo/convnet.hlo",
        "tests/fixtures/hlo/moe.hlo", "tests/fixtures/onnx/gpt2layers.onnx"};
    ap_frontend_params_t params = AP_FRONTEND_PARAMS_INIT;
    ap_layering_t how = AP_LAYERING_INIT;
    ap_layering_info_t before, after;
    ap_graph_t *file, *forward, *layered, *fused, *training;

    ck_assert_xm_ok(ap_frontend_load(xm_test_source_path(files[_i]), &params, &file, NULL));
    ck_assert_xm_ok(ap_forward_pass(file, &forward, NULL));
    ck_assert_xm_ok(ap_layering_apply(forward, &how, &layered, NULL));
    ck_assert_xm_ok(ap_elementwise_fuse(layered, &fused));
    check_layers(fused);
    ck_assert_int_lt(ap_graph_ops(fused), ap_graph_ops(layered));
    ck_assert_int_eq(ap_graph_layers(fused), ap_graph_layers(layered));
    ap_layering_describe(layered, &before);
    ap_layering_describe(fused, &after);
    ck_assert_int_le(after.distinct, before.distinct);
    ck_assert_double_eq_tol(flops_of(fused), flops_of(layered), 1e-9 * flops_of(layered));
    ck_assert_double_eq(ap_graph_parameters(fused), ap_graph_parameters(layered));
    for (int layer = 0; layer + 1 < ap_graph_layers(fused); ++layer) {
        ck_assert_str_eq(ap_graph_tensor(fused, ap_graph_boundary(fused, layer))->name,
                         ap_graph_tensor(layered, ap_graph_boundary(layered, layer))->name);
    }
    ck_assert_xm_ok(ap_training_expand(fused, AP_OPTIMIZER_ADAM, &training));
    ap_graph_destroy(training);
    ap_graph_destroy(fused);
    ap_graph_destroy(layered);
    ap_graph_destroy(forward);
    ap_graph_destroy(file);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("elementwise_fusion");
    TCase *tcase = tcase_create("elementwise_fusion");

    tcase_add_test(tcase, a_chain_becomes_what_a_kernel_is);
    tcase_add_loop_test(tcase, layers_stay_what_they_are, 0, 4);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
