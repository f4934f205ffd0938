/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/plan/schedule.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "planner/pipeline/timeline.h"
#include "planner/search/planner.h"
#include "tests/planner/search/planner_fixture.h"
#include "xm_test.h"

static const int64_t b16[] = {16};

/* A plan of four stages on 2 x 4 devices. */
static ap_plan_t *make_plan(const xm_cluster_profile_t *profile, const char *schedule)
{
    ap_planner_params_t params = AP_PLANNER_PARAMS_INIT;
    ap_planner_result_t result;
    ap_plan_t *plan;

    params.model = "gpt-125m";
    params.profile = profile;
    params.global_batch = 64;
    params.micro_batches = b16;
    params.micro_batch_count = 1;
    params.min_stages = 4;
    params.max_stages = 4;
    params.schedule = schedule;
    ck_assert_xm_ok(ap_planner_run(&params, &result));
    plan = result.plan;
    result.plan = NULL;
    ap_planner_result_clear(&result);
    return plan;
}

START_TEST(plans_take_the_step_of_their_schedule)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(2, 4, 64e9);
    ap_plan_t *plan = make_plan(profile, NULL);

    ck_assert_str_eq(ap_plan_info(plan)->schedule, "1f1b");
    for (int i = 0; i < AP_SCHEDULE_KINDS; ++i) {
        ap_schedule_kind_t kind = (ap_schedule_kind_t)i;
        ap_plan_t *other;

        if (!ap_plan_can_have(kind)) {
            ck_assert_xm_fails(ap_plan_reschedule(plan, kind, 0.25, &other), XM_ERR_UNSUPPORTED,
                               "autopar simulate shows");
            ck_assert_int_gt(planner_fixture_step_ns(plan, kind, NULL), 0);
            continue;
        }
        ck_assert_xm_ok(ap_plan_reschedule(plan, kind, 0.25, &other));
        ck_assert_str_eq(ap_plan_info(other)->schedule, ap_schedule_name(kind));
        ck_assert_double_eq_tol(ap_plan_info(other)->step,
                                1e-9 * (double)planner_fixture_step_ns(plan, kind, NULL), 1e-9);
        ap_plan_destroy(other);
    }
    ap_plan_destroy(plan);
    xm_cluster_profile_destroy(profile);
}
END_TEST

START_TEST(activations_in_flight_follow_the_schedule)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(2, 4, 64e9);
    ap_plan_t *plan = make_plan(profile, NULL), *gpipe, *eager, *zb;

    ck_assert_xm_ok(ap_plan_reschedule(plan, AP_SCHEDULE_GPIPE, 0.25, &gpipe));
    ck_assert_xm_ok(ap_plan_reschedule(plan, AP_SCHEDULE_EAGER_1F1B, 0.25, &eager));
    ck_assert_xm_ok(ap_plan_reschedule(plan, AP_SCHEDULE_ZB_H2, 0.25, &zb));
    for (int i = 0; i < 4; ++i) {
        ck_assert_int_eq(ap_plan_stage(plan, i)->in_flight, 4 - i);
        ck_assert_int_eq(ap_plan_stage(gpipe, i)->in_flight, 16);
        ck_assert_int_eq(ap_plan_stage(eager, i)->in_flight, 2 * (4 - i) - 1);
        /* With the weight halves that wait, the same on every device. */
        ck_assert_int_eq(ap_plan_stage(zb, i)->in_flight, 7);
    }
    ap_plan_destroy(zb);
    ap_plan_destroy(eager);
    ap_plan_destroy(gpipe);
    ap_plan_destroy(plan);
    xm_cluster_profile_destroy(profile);
}
END_TEST

START_TEST(the_fastest_schedule_that_fits_is_chosen)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(2, 4, 64e9);
    ap_plan_t *plan = make_plan(profile, NULL), *best = make_plan(profile, "auto");
    double step = ap_plan_info(best)->step;

    for (int i = 0; i < AP_SCHEDULE_KINDS; ++i) {
        ap_schedule_kind_t kind = (ap_schedule_kind_t)i;

        if (ap_plan_may_choose(kind)) {
            ck_assert_double_le(step,
                                1e-9 * (double)planner_fixture_step_ns(plan, kind, NULL) + 1e-9);
        }
    }
    ck_assert_double_lt(step, 1e-9 * (double)planner_fixture_step_ns(plan, AP_SCHEDULE_1F1B, NULL));
    ap_plan_destroy(best);
    best = make_plan(profile, "zb-h1");
    ck_assert_str_eq(ap_plan_info(best)->schedule, "zb-h1");
    ap_plan_destroy(best);
    ap_plan_destroy(plan);
    xm_cluster_profile_destroy(profile);
}
END_TEST

/* Seconds of the best plan under the best schedule, with a number of stages or (0) any. */
static double best_step(const xm_cluster_profile_t *profile, int stages)
{
    static const int64_t numbers[] = {4, 16, 32};
    ap_planner_params_t params = AP_PLANNER_PARAMS_INIT;
    ap_planner_result_t result;
    double step;

    params.model = "gpt-125m";
    params.profile = profile;
    params.global_batch = 64;
    params.micro_batches = numbers;
    params.micro_batch_count = 3;
    params.min_stages = stages;
    params.max_stages = stages;
    params.schedule = "auto";
    ck_assert_xm_ok(ap_planner_run(&params, &result));
    step = ap_plan_info(result.plan)->step;
    ap_planner_result_clear(&result);
    return step;
}

START_TEST(no_number_of_stages_has_a_shorter_simulated_step)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(4, 2, 64e9);
    double best = best_step(profile, 0);

    for (int stages = 1; stages <= 6; ++stages) {
        ck_assert_double_le(best, best_step(profile, stages) * (1 + 1e-9));
    }
    xm_cluster_profile_destroy(profile);
}
END_TEST

START_TEST(memory_decides_with_a_sentence)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(2, 4, 64e9), *small;
    ap_plan_t *plan = make_plan(profile, NULL), *other, *tight;
    double most = 0.0;
    ap_planner_params_t params = AP_PLANNER_PARAMS_INIT;
    ap_planner_result_t result;

    for (int i = 0; i < 4; ++i) {
        most = fmax(most, ap_plan_stage_memory(ap_plan_stage(plan, i)));
    }
    /* Room for what 1f1b holds, and no more. */
    small = planner_fixture_profile(2, 4, most + 64);
    tight = make_plan(small, NULL);
    ck_assert_xm_fails(ap_plan_reschedule(tight, AP_SCHEDULE_GPIPE, 0.25, &other),
                       XM_ERR_NO_SOLUTION, "with 16 micro-batches in flight, the limit is");
    ck_assert_xm_ok(ap_plan_reschedule_best(tight, &other));
    for (int i = 0; i < 4; ++i) {
        ck_assert_double_le(ap_plan_stage_memory(ap_plan_stage(other, i)), most + 65);
    }
    ap_plan_destroy(other);
    params.model = "gpt-125m";
    params.profile = small;
    params.global_batch = 64;
    params.micro_batches = b16;
    params.micro_batch_count = 1;
    params.min_stages = 4;
    params.max_stages = 4;
    params.recompute = AP_RECOMPUTE_OFF;
    params.schedule = "gpipe";
    ck_assert_xm_fails(ap_planner_run(&params, &result), XM_ERR_NO_SOLUTION,
                       "under gpipe it needs");
    ck_assert_ptr_nonnull(strstr(xm_last_error(), "in stage 0 of 4 (layers 0-"));
    ck_assert_ptr_nonnull(strstr(xm_last_error(), "16 x "));
    ck_assert_ptr_nonnull(
        strstr(xm_last_error(), "; it fits with recomputation, or with the schedule 1f1b"));
    params.schedule = "chimera";
    ck_assert_xm_fails(ap_planner_run(&params, &result), XM_ERR_UNSUPPORTED, "chimera");
    params.schedule = "zb-h3";
    ck_assert_xm_fails(ap_planner_run(&params, &result), XM_ERR_INVALID_ARGUMENT, "did you mean");
    ap_plan_destroy(tight);
    ap_plan_destroy(plan);
    xm_cluster_profile_destroy(small);
    xm_cluster_profile_destroy(profile);
}
END_TEST

/* Too few micro-batches are no plan, and the search goes on with more of them. */
START_TEST(pipedream_2bw_takes_enough_micro_batches)
{
    static const int64_t two[] = {2}, both[] = {2, 16};
    xm_cluster_profile_t *profile = planner_fixture_profile(2, 4, 64e9);
    ap_planner_params_t params = AP_PLANNER_PARAMS_INIT;
    ap_planner_result_t result;

    params.model = "gpt-125m";
    params.profile = profile;
    params.global_batch = 64;
    params.min_stages = 4;
    params.max_stages = 4;
    params.schedule = "pipedream-2bw";
    params.micro_batches = two;
    params.micro_batch_count = 1;
    ck_assert_xm_fails(ap_planner_run(&params, &result), XM_ERR_NO_SOLUTION,
                       "need at least as many micro-batches as stages: 2 for 4");
    params.micro_batches = both;
    params.micro_batch_count = 2;
    ck_assert_xm_ok(ap_planner_run(&params, &result));
    ck_assert_str_eq(ap_plan_info(result.plan)->schedule, "pipedream-2bw");
    ck_assert_int_eq(ap_plan_info(result.plan)->micro_batches, 16);
    ap_planner_result_clear(&result);
    xm_cluster_profile_destroy(profile);
}
END_TEST

/* PipeDream keeps as many versions as there are stages from this one on, HetPipe as many as all;
 * each update comes with a micro-batch of its own. */
START_TEST(versions_and_updates_are_counted)
{
    static const ap_schedule_kind_t kinds[] = {AP_SCHEDULE_PIPEDREAM, AP_SCHEDULE_PIPEMARE,
                                               AP_SCHEDULE_HETPIPE};
    xm_cluster_profile_t *profile = planner_fixture_profile(2, 4, 64e9);
    ap_plan_t *plan = make_plan(profile, NULL), *other;

    for (int k = 0; k < 3; ++k) {
        double updates = kinds[k] == AP_SCHEDULE_PIPEMARE ? 1 : 16, busiest = 0;

        ck_assert_xm_ok(ap_plan_reschedule(plan, kinds[k], 0.125, &other));
        for (int i = 0; i < 4; ++i) {
            const ap_plan_stage_t *stage = ap_plan_stage(plan, i);
            int more = kinds[k] == AP_SCHEDULE_PIPEMARE  ? 0
                       : kinds[k] == AP_SCHEDULE_HETPIPE ? 3
                                                         : 3 - i;

            ck_assert_double_eq_tol(ap_plan_stage(other, i)->state_bytes,
                                    stage->state_bytes * (1 + 0.125 * more), 1);
            busiest = fmax(busiest, 16 * (stage->forward + stage->backward) +
                                        updates * (stage->sync + stage->update));
        }
        ck_assert_double_ge(ap_plan_info(other)->step, busiest * (1 - 1e-6));
        ck_assert_double_le(ap_plan_info(other)->step, 1.1 * busiest);
        ap_plan_destroy(other);
    }
    ap_plan_destroy(plan);
    xm_cluster_profile_destroy(profile);
}
END_TEST

/* Prices taken anew on the profile that the plan was made with are the plan's own. */
START_TEST(reshardings_are_priced_on_the_profile)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(2, 4, 64e9);
    ap_plan_t *plan = make_plan(profile, NULL);

    ck_assert_int_eq(planner_fixture_step_ns(plan, AP_SCHEDULE_1F1B, profile),
                     planner_fixture_step_ns(plan, AP_SCHEDULE_1F1B, NULL));
    ck_assert_int_gt(planner_fixture_step_ns(plan, AP_SCHEDULE_INTERLEAVED, profile), 0);
    ap_plan_destroy(plan);
    xm_cluster_profile_destroy(profile);
}
END_TEST

static void slow_down(json_t *number, double factor)
{
    (void)json_real_set(number, factor * json_real_value(number));
}

/* The plan with reshardings so many times as long, on NICs as many times slower; or without a word
 * on NICs. */
static ap_plan_t *with_reshardings(const ap_plan_t *plan, double factor, bool links)
{
    char *text = ap_plan_text(plan);
    json_t *document = json_loads(text, 0, NULL), *boundary, *link;
    ap_plan_t *changed;
    size_t b, l;

    free(text);
    (void)json_object_del(document, "digest");
    json_array_foreach(json_object_get(document, "reshardings"), b, boundary)
    {
        json_t *predicted = json_object_get(boundary, "predicted");

        slow_down(json_object_get(predicted, "forward_s"), factor);
        slow_down(json_object_get(predicted, "backward_s"), factor);
        json_array_foreach(json_object_get(predicted, "links"), l, link)
        {
            for (size_t d = 0; d < AP_LINK_DIRECTIONS; ++d) {
                slow_down(json_array_get(json_object_get(link, "forward_s"), d), factor);
                slow_down(json_array_get(json_object_get(link, "backward_s"), d), factor);
            }
        }
        if (!links) {
            (void)json_object_del(predicted, "links");
        }
    }
    text = json_dumps(document, 0);
    ck_assert_xm_ok(ap_plan_parse("changed.json", text, strlen(text), &changed));
    json_decref(document);
    free(text);
    return changed;
}

/* Four stages on four hosts: the NICs of those between carry activations on and gradients back. */
START_TEST(transfers_share_the_nics_of_their_hosts)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(4, 1, 64e9);
    ap_plan_t *plan = make_plan(profile, NULL), *bare = with_reshardings(plan, 1.0, false);
    ap_plan_t *slow = with_reshardings(plan, 500.0, true);
    ap_plan_t *slow_bare = with_reshardings(plan, 500.0, false);

    for (int b = 0; b < ap_plan_boundaries(plan); ++b) {
        const ap_plan_boundary_t *boundary = ap_plan_boundary(plan, b);

        ck_assert_int_eq(boundary->link_count, 2);
        for (int i = 0; i < 2; ++i) {
            ck_assert_int_eq(boundary->links[i].index, b + i);
            ck_assert(!boundary->links[i].rack);
            ck_assert_double_gt(boundary->links[i].forward[i], 0.0);
            ck_assert_double_eq(boundary->links[i].forward[1 - i], 0.0);
            ck_assert_double_gt(boundary->links[i].backward[1 - i], 0.0);
        }
    }
    ck_assert_int_gt(planner_fixture_step_ns(slow, AP_SCHEDULE_ZB_H1, NULL),
                     planner_fixture_step_ns(slow_bare, AP_SCHEDULE_ZB_H1, NULL));
    /* A profile tells what the plan does not. */
    ck_assert_int_eq(planner_fixture_step_ns(bare, AP_SCHEDULE_ZB_H1, profile),
                     planner_fixture_step_ns(plan, AP_SCHEDULE_ZB_H1, NULL));
    ap_plan_destroy(slow_bare);
    ap_plan_destroy(slow);
    ap_plan_destroy(bare);
    ap_plan_destroy(plan);
    xm_cluster_profile_destroy(profile);
}
END_TEST

static long file_size(const char *path)
{
    FILE *file = fopen(path, "rb");
    long size;

    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fseek(file, 0, SEEK_END), 0);
    size = ftell(file);
    (void)fclose(file);
    return size;
}

START_TEST(timelines_are_written)
{
    char path[] = "/tmp/xm_test_timeline_XXXXXX";
    int fd = mkstemp(path);
    xm_cluster_profile_t *profile = planner_fixture_profile(2, 4, 64e9);
    ap_plan_t *plan = make_plan(profile, NULL);
    ap_plan_simulation_t simulation = AP_PLAN_SIMULATION_INIT;
    ap_schedule_t *schedule;
    ap_pipeline_run_t *run;
    json_t *trace, *text_root, *events;
    size_t passes = 0;
    double end = 0.0;
    char *text;

    (void)close(fd);
    simulation.kind = AP_SCHEDULE_ZB_H1;
    ck_assert_xm_ok(ap_plan_simulate(plan, &simulation, &schedule, &run));
    ck_assert_xm_ok(ap_pipeline_trace(schedule, run, path));
    trace = json_load_file(path, 0, NULL);
    ck_assert_ptr_nonnull(trace);
    events = json_object_get(trace, "traceEvents");
    for (size_t i = 0; i < json_array_size(events); ++i) {
        json_t *event = json_array_get(events, i);

        if (json_object_get(event, "dur") != NULL &&
            json_integer_value(json_object_get(event, "pid")) == 0) {
            end = fmax(end, json_number_value(json_object_get(event, "ts")) +
                                json_number_value(json_object_get(event, "dur")));
            ++passes;
        }
    }
    /* Three passes and an update on each of four stages. */
    ck_assert_uint_eq(passes, 4 * (3 * 16 + 1));
    ck_assert_double_eq_tol(end, 1e-3 * (double)run->makespan_ns, 0.01);
    ck_assert_xm_ok(ap_pipeline_plot(schedule, run, "a <plan> & more", path));
    ck_assert_int_gt(file_size(path), 4000);
    text = ap_pipeline_text(schedule, run);
    text_root = json_loads(text, 0, NULL);
    ck_assert_int_eq(json_integer_value(json_object_get(text_root, "makespan_ns")),
                     run->makespan_ns);
    ck_assert_uint_eq(json_array_size(json_object_get(text_root, "devices")), 4);
    ck_assert_xm_fails(ap_pipeline_plot(schedule, run, "", "/nowhere/x.svg"), XM_ERR_IO,
                       "/nowhere/x.svg");
    json_decref(text_root);
    json_decref(trace);
    free(text);
    ap_pipeline_run_destroy(run);
    ap_schedule_destroy(schedule);
    ap_plan_destroy(plan);
    xm_cluster_profile_destroy(profile);
    (void)unlink(path);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("plan_schedule");
    TCase *unit = tcase_create("unit");

    tcase_set_timeout(unit, 60);
    tcase_add_test(unit, plans_take_the_step_of_their_schedule);
    tcase_add_test(unit, activations_in_flight_follow_the_schedule);
    tcase_add_test(unit, the_fastest_schedule_that_fits_is_chosen);
    tcase_add_test(unit, no_number_of_stages_has_a_shorter_simulated_step);
    tcase_add_test(unit, memory_decides_with_a_sentence);
    tcase_add_test(unit, pipedream_2bw_takes_enough_micro_batches);
    tcase_add_test(unit, versions_and_updates_are_counted);
    tcase_add_test(unit, reshardings_are_priced_on_the_profile);
    tcase_add_test(unit, transfers_share_the_nics_of_their_hosts);
    tcase_add_test(unit, timelines_are_written);
    suite_add_tcase(suite, unit);
    return xm_test_run(suite);
}
