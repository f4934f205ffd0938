/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/search/model.h"

#include <stdio.h>
#include <unistd.h>

#include "planner/explain/explain.h"
#include "planner/frontend/json.h"
#include "planner/frontend/zoo.h"
#include "planner/explain/verify.h"
#include "tests/planner/search/planner_fixture.h"
#include "xm_test.h"

/* A built-in model written as a file is the same model, in whatever micro-batches: one that is
 * asked for, or any. */
START_TEST(a_file_plans_as_the_model_in_it)
{
    static const int64_t b16[] = {16};
    xm_cluster_profile_t *profile = planner_fixture_profile(2, 2, 8e9);
    ap_planner_params_t params = AP_PLANNER_PARAMS_INIT;
    ap_planner_result_t by_name, by_file;
    ap_zoo_params_t zoo = AP_ZOO_PARAMS_INIT;
    char path[] = "/tmp/test-planner-model-XXXXXX.json";
    ap_graph_t *graph;
    int file = mkstemps(path, 5);

    ck_assert_int_ge(file, 0);
    (void)close(file);
    zoo.batch = 4;
    ck_assert_xm_ok(ap_zoo_create("gpt-125m", &zoo, &graph));
    ck_assert_xm_ok(ap_json_save(graph, path));
    ap_graph_destroy(graph);
    params.profile = profile;
    params.global_batch = 32;
    params.micro_batches = b16;
    for (params.micro_batch_count = 0; params.micro_batch_count < 2; ++params.micro_batch_count) {
        params.model = "gpt-125m";
        ck_assert_xm_ok(ap_planner_run(&params, &by_name));
        params.model = path;
        ck_assert_xm_ok(ap_planner_run(&params, &by_file));
        ck_assert_double_eq_tol(ap_plan_info(by_file.plan)->step, ap_plan_info(by_name.plan)->step,
                                1e-9 * ap_plan_info(by_name.plan)->step);
        ck_assert_int_eq(ap_plan_info(by_file.plan)->micro_batches,
                         ap_plan_info(by_name.plan)->micro_batches);
        ck_assert_int_eq(ap_plan_stages(by_file.plan), ap_plan_stages(by_name.plan));
        ck_assert(by_file.read.own_layers);
        ck_assert_ptr_null(by_name.read.graph);
        ap_planner_result_clear(&by_file);
        ap_planner_result_clear(&by_name);
    }
    (void)unlink(path);
    xm_cluster_profile_destroy(profile);
}
END_TEST

/* Real dumps: planned, verified, explained. */
static const struct {
    const char *file;
    int stages, layers;
} files[] = {{"hlo/transformer2.hlo", 2, 0},      {"hlo/mlp12-b1024-h128.hlo", 4, 12},
             {"hlo/convnet.hlo", 1, 0},           {"onnx/gpt2layers.onnx", 2, 0},
             {"onnx/mlp2-b1024-h128.onnx", 2, 2}, {"graph/mlp2.json", 2, 2}};

START_TEST(files_of_every_front_end_are_planned)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(2, 2, 8e9);
    ap_planner_params_t params = AP_PLANNER_PARAMS_INIT;
    ap_explanation_t *explanation;
    ap_planner_result_t result;
    char path[128];

    (void)snprintf(path, sizeof(path), "tests/fixtures/%s", files[_i].file);
    params.model = xm_test_source_path(path);
    params.profile = profile;
    params.min_stages = params.max_stages = files[_i].stages;
    params.layering.layers = files[_i].layers;
    ck_assert_xm_ok(ap_planner_run(&params, &result));
    ck_assert_int_eq(ap_plan_stages(result.plan), files[_i].stages);
    ck_assert_int_eq(ap_plan_info(result.plan)->layers, ap_graph_layers(result.read.graph));
    ck_assert_int_le(result.read.forward_ops, result.read.file_ops);
    ck_assert_xm_ok(ap_plan_verify(&params, result.plan));
    ck_assert_xm_ok(ap_explanation_create(result.plan, profile, 2, &explanation));
    ap_explanation_destroy(explanation);
    ap_planner_result_clear(&result);
    xm_cluster_profile_destroy(profile);
}
END_TEST

/* The plan with another mark, of as many letters, in what it says of its file. */
static ap_plan_t *with_other_mark(const ap_plan_t *plan, const char *mark, const char *other)
{
    char *text = ap_plan_text(plan), *at;
    ap_plan_t *result;

    ck_assert_ptr_nonnull(text);
    at = strstr(text, "\"marks\"");
    ck_assert_ptr_nonnull(at);
    at = strstr(at, mark);
    ck_assert_ptr_nonnull(at);
    ck_assert_uint_eq(strlen(mark), strlen(other));
    memcpy(at, other, strlen(other));
    at = strstr(at, "\"digest\""); /* the last key, which is not needed */
    ck_assert_ptr_nonnull(at);
    while (*at != ',') {
        --at;
    }
    memcpy(at, "}", 2);
    ck_assert_xm_ok(ap_plan_parse("changed", text, strlen(text), &result));
    free(text);
    return result;
}

/* The plan says by which marks its file was cut. */
START_TEST(layers_cut_by_hand_are_explained_as_they_are)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(1, 2, 8e9);
    ap_planner_params_t params = AP_PLANNER_PARAMS_INIT;
    ap_explanation_t *explanation;
    ap_planner_result_t result;
    ap_planner_result_t by_hand;
    const char *mark = NULL, *other = NULL;
    ap_plan_t *changed;

    params.model = xm_test_source_path("tests/fixtures/hlo/mlp12-b1024-h128.hlo");
    params.profile = profile;
    params.layering.layers = 12;
    ck_assert_xm_ok(ap_planner_run(&params, &result));
    for (int o = 0; o < ap_graph_ops(result.read.graph); ++o) {
        const ap_op_t *op = ap_graph_op(result.read.graph, o);

        mark = mark == NULL && op->layer == 2 ? op->name : mark;
        other = other == NULL && op->layer == 4 ? op->name : other;
    }
    ck_assert(mark != NULL && other != NULL);
    params.layering.layers = 0;
    params.layering.marks = &mark;
    params.layering.mark_count = 1;
    ck_assert_xm_ok(ap_planner_run(&params, &by_hand));
    ck_assert_int_eq(ap_plan_info(by_hand.plan)->layers, 2);
    ck_assert_xm_ok(ap_explanation_create(by_hand.plan, profile, 1, &explanation));
    ap_explanation_destroy(explanation);
    changed = with_other_mark(by_hand.plan, mark, other);
    ck_assert_xm_fails(ap_explanation_create(changed, profile, 1, &explanation), XM_ERR_MISMATCH,
                       "are not the plan's: layer 1 begins with");
    ap_plan_destroy(changed);
    ap_planner_result_clear(&by_hand);
    ap_planner_result_clear(&result);
    xm_cluster_profile_destroy(profile);
}
END_TEST

START_TEST(a_file_has_micro_batches_of_any_size)
{
    static const int64_t four[] = {4}, five[] = {5};
    xm_cluster_profile_t *profile = planner_fixture_profile(1, 2, 8e9);
    ap_planner_params_t params = AP_PLANNER_PARAMS_INIT;
    ap_planner_result_t result;

    params.model = xm_test_source_path("tests/fixtures/hlo/transformer2.hlo"); /* 8 samples */
    params.profile = profile;
    ck_assert_xm_ok(ap_planner_run(&params, &result));
    ck_assert_int_eq(ap_plan_info(result.plan)->global_batch, 1024);
    ap_planner_result_clear(&result);
    params.global_batch = 33;
    ck_assert_xm_ok(ap_planner_run(&params, &result));
    ck_assert_int_eq(ap_plan_info(result.plan)->global_batch, 33);
    ap_planner_result_clear(&result);
    params.micro_batches = five;
    params.micro_batch_count = 1;
    ck_assert_xm_fails(ap_planner_run(&params, &result), XM_ERR_INVALID_ARGUMENT,
                       "a batch of 33 does not divide into 5 micro-batches");
    params.micro_batches = four;
    params.global_batch = 0;
    ck_assert_xm_ok(ap_planner_run(&params, &result));
    ck_assert_int_eq(ap_plan_info(result.plan)->global_batch, 32);
    ap_planner_result_clear(&result);
    params.model = "gpt-125m";
    params.layering.layers = 4;
    ck_assert_xm_fails(ap_planner_run(&params, &result), XM_ERR_INVALID_ARGUMENT,
                       "layers are told for files; gpt-125m has its own");
    xm_cluster_profile_destroy(profile);
}
END_TEST

/* As many experts' groups as divide no micro-batch: the plan is for the file's own one, and says
 * why. */
START_TEST(a_file_whose_samples_are_grouped_is_one_micro_batch)
{
    static const int64_t several[] = {4, 8};
    xm_cluster_profile_t *profile = planner_fixture_profile(1, 2, 8e9);
    ap_planner_params_t params = AP_PLANNER_PARAMS_INIT;
    ap_zoo_params_t zoo = AP_ZOO_PARAMS_INIT;
    char path[] = "/tmp/test-planner-model-XXXXXX.json";
    ap_planner_result_t result;
    ap_graph_t *graph;
    int file = mkstemps(path, 5);

    ck_assert_int_ge(file, 0);
    (void)close(file);
    zoo.batch = 8;
    zoo.layers = 2;
    ck_assert_xm_ok(ap_zoo_create("moe-380m", &zoo, &graph));
    ck_assert_xm_ok(ap_json_save(graph, path));
    ap_graph_destroy(graph);
    params.model = path;
    params.profile = profile;
    params.global_batch = 32;
    ck_assert_xm_ok(ap_planner_run(&params, &result));
    ck_assert_int_eq(ap_plan_info(result.plan)->micro_batches, 4);
    ck_assert_ptr_nonnull(strstr(result.read.fixed, "so their number cannot change"));
    ap_planner_result_clear(&result);
    params.global_batch = 33;
    ck_assert_xm_fails(ap_planner_run(&params, &result), XM_ERR_INVALID_ARGUMENT,
                       "is a micro-batch of 8 samples: a batch of 33 is not a number of them");
    params.global_batch = 32;
    params.micro_batches = several;
    params.micro_batch_count = 2;
    ck_assert_xm_fails(ap_planner_run(&params, &result), XM_ERR_INVALID_ARGUMENT,
                       "so a batch of 32 has 4 micro-batches, not 8");
    (void)unlink(path);
    xm_cluster_profile_destroy(profile);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("planner_model");
    TCase *tcase = tcase_create("planner_model");

    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, a_file_plans_as_the_model_in_it);
    tcase_add_loop_test(tcase, files_of_every_front_end_are_planned, 0,
                        (int)(sizeof(files) / sizeof(files[0])));
    tcase_add_test(tcase, layers_cut_by_hand_are_explained_as_they_are);
    tcase_add_test(tcase, a_file_has_micro_batches_of_any_size);
    tcase_add_test(tcase, a_file_whose_samples_are_grouped_is_one_micro_batch);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
