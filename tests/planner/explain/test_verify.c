/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/explain/verify.h"

#include <jansson.h>
#include <stdio.h>

#include "tests/planner/search/planner_fixture.h"
#include "xm_test.h"

static const int64_t b8[] = {8};

static ap_planner_params_t params_of(const xm_cluster_profile_t *profile)
{
    ap_planner_params_t params = AP_PLANNER_PARAMS_INIT;

    params.model = "gpt-125m";
    params.profile = profile;
    params.global_batch = 32;
    params.micro_batches = b8;
    params.micro_batch_count = 1;
    params.min_stages = 2;
    return params;
}

/* The planner's plan as a document. */
static json_t *own_document(const ap_planner_params_t *params)
{
    ap_planner_result_t result;
    json_t *document;
    char *text;

    ck_assert_xm_ok(ap_planner_run(params, &result));
    ck_assert_xm_ok(ap_plan_verify(params, result.plan));
    text = ap_plan_text(result.plan);
    document = json_loads(text, 0, NULL);
    free(text);
    ap_planner_result_clear(&result);
    ck_assert_ptr_nonnull(document);
    (void)json_object_del(document, "digest");
    return document;
}

static xm_status_t verify(const ap_planner_params_t *params, const json_t *document)
{
    char *text = json_dumps(document, 0);
    ap_plan_t *plan;

    ck_assert_xm_ok(ap_plan_parse("changed", text, strlen(text), &plan));
    free(text);
    xm_status_t status = ap_plan_verify(params, plan);

    ap_plan_destroy(plan);
    return status;
}

/* A value deep in the document: keys, or digits for places in lists, separated by dots. */
static json_t *at(json_t *document, const char *path, char *key)
{
    char copy[80], *rest = NULL, *word, *next;

    (void)snprintf(copy, sizeof(copy), "%s", path);
    word = strtok_r(copy, ".", &rest);
    while ((next = strtok_r(NULL, ".", &rest)) != NULL) {
        document = json_is_array(document)
                       ? json_array_get(document, (size_t)strtoul(word, NULL, 10))
                       : json_object_get(document, word);
        word = next;
    }
    (void)snprintf(key, 80, "%s", word);
    return document;
}

static const struct {
    const char *path, *value, *sentence;
} changes[] = {
    {"model.name", "\"gpt-350m\"", "the plan is for the model 'gpt-350m', not 'gpt-125m'"},
    {"schedule.global_batch", "64", "the plan is for 64 samples, not 32"},
    {"schedule.micro_batches", "16", "16 micro-batches were not asked for"},
    {"schedule.kind", "\"gpipe\"", "the plan has the schedule gpipe, not 1f1b"},
    {"cluster.memory_limit_bytes", "99000000000", "takes 99000000000 bytes a device for given"},
    {"stages.0.seconds.forward", "1e-9", "stages[0]: seconds of"},
    {"stages.1.seconds.backward", "0.0", "stages[1]: seconds of"},
    {"stages.0.memory.state_bytes", "1000", "stages[0]: state_bytes of 1000"},
    {"stages.0.memory.activation_bytes", "0", "stages[0]: activation_bytes of 0"},
    {"stages.1.memory.work_bytes", "99000000000", "stages[1] needs"},
    {"stages.0.memory.in_flight", "1", "stages[0] has 1 micro-batches in flight, of at least 2"},
    {"stages.0.sharding", "[]", "stages[0] does not say how its operators are sharded"},
    {"stages.0.sharding.0.ops.0.operands", "\"S0S0,RR\"", "cannot be sharded as S0S0,RR"},
    {"stages.0.sharding.0.ops.0.rule", "\"ab->ab\"", "is 'ab->ab' where the model has"},
    {"reshardings.0.predicted.forward_s", "1e-12", "reshardings[0]: forward_s of 1e-12"},
    {"reshardings.0.dtype", "\"bfloat16\"", "reshardings[0]: shape or type are not those of"},
    {"predicted.step_s", "0.001", "predicted: step_s of 0.001, which is at least"},
};

START_TEST(a_plan_that_says_too_much_is_refused)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(2, 2, 64e9);
    ap_planner_params_t params = params_of(profile);
    json_t *document = own_document(&params), *parent;
    char key[80];

    parent = at(document, changes[_i].path, key);
    ck_assert_msg(json_object_get(parent, key) != NULL, "no %s", changes[_i].path);
    ck_assert_int_eq(
        json_object_set_new(parent, key, json_loads(changes[_i].value, JSON_DECODE_ANY, NULL)), 0);
    ck_assert_xm_fails(verify(&params, document), XM_ERR_MISMATCH, changes[_i].sentence);
    json_decref(document);
    xm_cluster_profile_destroy(profile);
}
END_TEST

START_TEST(a_plan_may_be_pessimistic)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(2, 2, 64e9);
    ap_planner_params_t params = params_of(profile);
    json_t *document = own_document(&params), *stage, *seconds, *predicted;
    double more = 0.5;

    stage = json_array_get(json_object_get(document, "stages"), 0);
    seconds = json_object_get(stage, "seconds");
    predicted = json_object_get(document, "predicted");
    json_object_set_new(seconds, "forward",
                        json_real(json_number_value(json_object_get(seconds, "forward")) + more));
    ck_assert_xm_fails(verify(&params, document), XM_ERR_MISMATCH, "predicted: step_s");
    json_object_set_new(predicted, "step_s", json_real(1000.0));
    ck_assert_xm_ok(verify(&params, document));
    json_decref(document);
    xm_cluster_profile_destroy(profile);
}
END_TEST

START_TEST(limits_of_the_question_count)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(2, 2, 64e9);
    xm_cluster_profile_t *larger = planner_fixture_profile(4, 2, 64e9);
    ap_planner_params_t params = params_of(profile);
    json_t *document = own_document(&params);

    params.min_stages = 4;
    params.max_stages = 4;
    if (json_array_size(json_object_get(document, "stages")) != 4) {
        ck_assert_xm_fails(verify(&params, document), XM_ERR_MISMATCH, "stages were not asked for");
    }
    params.min_stages = params.max_stages = 0;
    params.profile = larger;
    ck_assert_xm_fails(verify(&params, document), XM_ERR_MISMATCH,
                       "for 2 x 2 devices, the cluster profile has 4 x 2");
    json_decref(document);
    xm_cluster_profile_destroy(larger);
    xm_cluster_profile_destroy(profile);
}
END_TEST

START_TEST(plans_under_other_schedules_and_with_recomputation_hold)
{
    static const char *const schedules[] = {"gpipe", "eager-1f1b", "zb-h1", "auto"};
    xm_cluster_profile_t *profile = planner_fixture_profile(2, 2, 64e9);
    ap_planner_params_t params = params_of(profile);

    params.schedule = schedules[_i];
    params.recompute = _i % 2 == 0 ? AP_RECOMPUTE_ON : AP_RECOMPUTE_OFF;
    json_decref(own_document(&params));
    xm_cluster_profile_destroy(profile);
}
END_TEST

/* Every tensor that skips stages must have its way: one that is taken out is missed, by name. */
START_TEST(tensors_that_skip_stages_must_pass)
{
    static const int64_t b4[] = {4};
    xm_cluster_profile_t *profile = planner_fixture_profile(2, 2, 64e9);
    ap_planner_params_t params = params_of(profile);
    json_t *document, *reshardings;
    size_t count;

    params.model = "unet-470m";
    params.micro_batches = b4;
    params.min_stages = params.max_stages = 4;
    document = own_document(&params);
    reshardings = json_object_get(document, "reshardings");
    count = json_array_size(reshardings);
    ck_assert_uint_gt(count, 3);
    (void)json_array_remove(reshardings, count - 1);
    ck_assert_xm_fails(verify(&params, document), XM_ERR_MISMATCH, "does not pass from stage");
    json_decref(document);
    document = own_document(&params);
    reshardings = json_object_get(document, "reshardings");
    for (size_t i = 0; i < count; ++i) {
        (void)json_object_del(json_array_get(reshardings, i), "more");
    }
    ck_assert_xm_fails(verify(&params, document), XM_ERR_MISMATCH, "does not pass from stage");
    json_decref(document);
    xm_cluster_profile_destroy(profile);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("plan_verify");
    TCase *tcase = tcase_create("plan_verify");

    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, a_plan_that_says_too_much_is_refused, 0,
                        (int)(sizeof(changes) / sizeof(changes[0])));
    tcase_add_test(tcase, a_plan_may_be_pessimistic);
    tcase_add_test(tcase, limits_of_the_question_count);
    tcase_add_test(tcase, tensors_that_skip_stages_must_pass);
    tcase_add_loop_test(tcase, plans_under_other_schedules_and_with_recomputation_hold, 0, 4);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
