#include "planner/explain/explain_private.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>

#include "planner/search/planner.h"
#include "tests/planner/search/planner_fixture.h"
#include "xm_test.h"

static ap_plan_t *make_plan(const xm_cluster_profile_t *profile, int stages)
{
    static const int64_t micro_batches[] = {8};
    ap_planner_params_t params = AP_PLANNER_PARAMS_INIT;
    ap_planner_result_t result;
    ap_plan_t *plan;

    params.model = "gpt-125m";
    params.profile = profile;
    params.global_batch = 32;
    params.micro_batches = micro_batches;
    params.micro_batch_count = 1;
    params.min_stages = params.max_stages = stages;
    ck_assert_xm_ok(ap_planner_run(&params, &result));
    plan = result.plan;
    result.plan = NULL;
    ap_planner_result_clear(&result);
    return plan;
}

static const ap_decision_t *find(const ap_explanation_t *explanation, const char *subject)
{
    for (int i = 0; i < explanation->count; ++i) {
        const ap_decision_t *decision = &explanation->decisions[i];

        if (strncmp(decision->subject, subject, strlen(subject)) == 0) {
            return decision;
        }
    }
    ck_abort_msg("no decision on %s", subject);
    return NULL;
}

START_TEST(every_decision_has_its_numbers)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(2, 2, 64e9);
    ap_plan_t *plan = make_plan(profile, 2);
    const ap_decision_t *decision;
    ap_explanation_t *explanation;

    ck_assert_xm_ok(ap_explanation_create(plan, profile, 2, &explanation));
    decision = find(explanation, "micro-batches");
    ck_assert_ptr_nonnull(strstr(decision->chosen, "8 micro-batches of 4"));
    ck_assert_double_eq(decision->chosen_seconds, ap_plan_info(plan)->step);
    ck_assert_double_lt(decision->runner_up_seconds, INFINITY);
    ck_assert_ptr_nonnull(strstr(decision->decided_by, "50.000 GFLOP/s"));
    decision = find(explanation, "number of stages");
    ck_assert_str_eq(decision->chosen, "2");
    ck_assert_str_ne(decision->runner_up, "2");
    decision = find(explanation, "schedule");
    ck_assert_str_eq(decision->chosen, "1f1b");
    ck_assert_double_lt(decision->runner_up_seconds, INFINITY);
    ck_assert_ptr_nonnull(strstr(decision->decided_by, "without a pass"));
    decision = find(explanation, "stage 0 (layers 0-");
    ck_assert_double_eq_tol(decision->chosen_seconds, ap_plan_stage_seconds(plan, 0),
                            1e-9 * decision->chosen_seconds);
    decision = find(explanation, "stage 1: recomputation");
    ck_assert_str_eq(decision->chosen, "off");
    ck_assert_str_eq(decision->runner_up, "on");
    ck_assert_double_gt(decision->runner_up_seconds, decision->chosen_seconds);
    ck_assert_ptr_nonnull(strstr(decision->decided_by, "for 1 micro-batches in flight with it"));
    ck_assert_double_gt(find(explanation, "stage 1: operator")->chosen_seconds, 0.0);
    decision = find(explanation, "boundary 0-1");
    ck_assert_ptr_nonnull(strstr(decision->decided_by, "link class inter_host"));
    ck_assert_ptr_nonnull(strstr(explanation->costs, "assumed for tests"));
    ap_explanation_destroy(explanation);
    ap_explanation_destroy(NULL);
    ap_plan_destroy(plan);
    xm_cluster_profile_destroy(profile);
}
END_TEST

/* The runner-up of the number of stages is what planning for that number really gives. */
START_TEST(runner_up_can_be_planned)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(2, 2, 64e9);
    ap_plan_t *plan = make_plan(profile, 1), *other;
    const ap_decision_t *decision;
    ap_explanation_t *explanation;
    int64_t micro_batches;

    ck_assert_xm_ok(ap_explanation_create(plan, profile, 0, &explanation));
    decision = find(explanation, "number of stages");
    other = make_plan(profile, atoi(decision->runner_up));
    micro_batches = ap_plan_info(other)->micro_batches;
    ck_assert_int_eq(micro_batches, 8);
    ck_assert_double_eq_tol(ap_plan_info(other)->step, decision->runner_up_seconds,
                            1e-9 * decision->runner_up_seconds);
    ap_plan_destroy(other);
    ap_explanation_destroy(explanation);
    ap_plan_destroy(plan);
    xm_cluster_profile_destroy(profile);
}
END_TEST

START_TEST(json_holds_the_same)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(2, 1, 64e9);
    ap_plan_t *plan = make_plan(profile, 2);
    ap_explanation_t *explanation;
    char *text;
    json_t *document;
    FILE *sink = fopen("/dev/null", "wb");

    ck_assert_xm_ok(ap_explanation_create(plan, profile, 1, &explanation));
    text = ap_explanation_text(explanation);
    document = json_loads(text, 0, NULL);
    ck_assert_ptr_nonnull(document);
    ck_assert_int_eq((int)json_array_size(json_object_get(document, "decisions")),
                     explanation->count);
    ap_explanation_print(explanation, sink);
    (void)fclose(sink);
    json_decref(document);
    free(text);
    ap_explanation_destroy(explanation);
    ap_plan_destroy(plan);
    xm_cluster_profile_destroy(profile);
}
END_TEST

START_TEST(another_cluster_is_refused)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(2, 1, 64e9);
    xm_cluster_profile_t *larger = planner_fixture_profile(2, 4, 64e9);
    ap_plan_t *plan = make_plan(profile, 2);
    ap_explanation_t *explanation;

    ck_assert_xm_fails(ap_explanation_create(plan, larger, 1, &explanation), XM_ERR_MISMATCH,
                       "the plan is for 2 x 1 devices, the cluster profile has 2 x 4");
    ap_plan_destroy(plan);
    xm_cluster_profile_destroy(larger);
    xm_cluster_profile_destroy(profile);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("explain");
    TCase *tcase = tcase_create("all");

    tcase_set_timeout(tcase, 100);
    tcase_add_test(tcase, every_decision_has_its_numbers);
    tcase_add_test(tcase, runner_up_can_be_planned);
    tcase_add_test(tcase, json_holds_the_same);
    tcase_add_test(tcase, another_cluster_is_refused);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
