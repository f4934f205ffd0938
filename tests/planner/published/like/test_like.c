/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/published/like.h"

#include <stdio.h>
#include <string.h>

#include "planner/pipeline/schedule.h"
#include "tests/planner/search/planner_fixture.h"
#include "xm_test.h"

static const int64_t few[] = {2, 8};

static ap_planner_params_t params_of(const xm_cluster_profile_t *profile, const char *model)
{
    ap_planner_params_t params = AP_PLANNER_PARAMS_INIT;

    params.model = model;
    params.profile = profile;
    params.global_batch = 32;
    params.micro_batches = few;
    params.micro_batch_count = 2;
    params.memory_reserve = 0; /* devices have what the tests say */
    return params;
}

/* Whether a part allows no more than the whole in any respect; what the whole demands, the part
 * must demand, too. */
static bool contains(const ap_space_t *whole, const ap_space_t *part)
{
    bool inside = (part->parameter_modes & ~whole->parameter_modes) == 0 &&
                  whole->scatter >= part->scatter && whole->pipeline >= part->pipeline &&
                  part->cut_products >= whole->cut_products &&
                  whole->recompute >= part->recompute && whole->keep >= part->keep &&
                  whole->mixed >= part->mixed && (!whole->one_axis || part->one_axis);

    for (int axis = 0; axis < AP_MAX_MESH_RANK; ++axis) {
        inside = inside && (part->roles[axis] & ~whole->roles[axis]) == 0;
    }
    return inside && (whole->stage_devices == 0 ||
                      (part->stage_devices > 0 && part->stage_devices <= whole->stage_devices));
}

static ap_like_result_t run(const char *name, const ap_planner_params_t *params)
{
    const ap_planner_preset_t *row;
    ap_like_result_t result;

    ck_assert_xm_ok(ap_planner_preset_find(name, &row));
    ck_assert_xm_ok(ap_like_run(row, NULL, params, &result));
    return result;
}

static bool is_synchronous(const ap_plan_t *plan)
{
    ap_schedule_kind_t kind;

    ck_assert_xm_ok(ap_schedule_find(ap_plan_info(plan)->schedule, &kind));
    return ap_schedule_is_synchronous(kind);
}

/* What the judge says follows from the plan that it gives. */
static void check_fault_status(const ap_like_result_t *result, const ap_planner_params_t *params)
{
    double most = 0.0, limit = xm_cluster_profile_device_memory_bytes(params->profile);

    for (int i = 0; i < ap_plan_stages(result->plan); ++i) {
        double bytes = ap_plan_stage_memory(ap_plan_stage(result->plan, i));

        most = bytes > most ? bytes : most;
        if (result->row->space.stage_devices == 1) {
            ck_assert_int_eq(ap_plan_stage(result->plan, i)->shape[1], 1);
        }
    }
    ck_assert_double_eq(result->memory, most);
    ck_assert_double_eq(result->over_bytes, most > limit ? most - limit : 0.0);
    ck_assert_double_eq(result->step, ap_plan_info(result->plan)->step);
    ck_assert(result->row->space.pipeline || ap_plan_stages(result->plan) == 1);
    ck_assert(result->row->space.recompute || !ap_plan_info(result->plan)->rematerialize);
    ck_assert(result->row->space.keep || ap_plan_info(result->plan)->rematerialize);
}

/* Ours is never slower than a row whose space it contains: all synchronous ones that fit. */
static void check_all(const char *model, int hosts, int devices, double memory)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(hosts, devices, memory);
    ap_planner_params_t params = params_of(profile, model);
    ap_like_result_t ours = run("default", &params);
    int count, planned = 0;
    const ap_planner_preset_t *rows = ap_planner_presets(&count);

    ck_assert_ptr_nonnull(ours.plan);
    ck_assert_double_eq(ours.over_bytes, 0.0);
    for (int i = 0; i < count; ++i) {
        ap_like_result_t result;

        /* The rows that take as long as they may need not be good for this. */
        const ap_like_effort_t brief = {.budget = 2};
        bool patient = rows[i].search == AP_SEARCH_TREE || rows[i].search == AP_SEARCH_SUBSTITUTION;

        ck_assert_xm_ok(ap_like_run(&rows[i], patient ? &brief : NULL, &params, &result));
        if (result.plan == NULL) {
            ck_assert_str_ne(result.why, "");
            continue;
        }
        ++planned;
        check_fault_status(&result, &params);
        ck_assert(contains(&ours.row->space, &rows[i].space));
        if (result.over_bytes <= 0.0 && is_synchronous(result.plan)) {
            ck_assert_msg(ours.step <= result.step * (1.0 + 1e-3),
                          "%s on %dx%d: default %g s, %s %g s", model, hosts, devices, ours.step,
                          rows[i].name, result.step);
        }
        ap_like_result_clear(&result);
    }
    ck_assert_int_ge(planned, count - 2);
    ap_like_result_clear(&ours);
    xm_cluster_profile_destroy(profile);
}

START_TEST(default_is_never_worse_than_a_part_of_it_gpt)
{
    check_all("gpt-125m", 2, 2, 64e9);
}
END_TEST

START_TEST(default_is_never_worse_than_a_part_of_it_short_of_memory)
{
    check_all("gpt-125m", 2, 2, 2.5e9);
}
END_TEST

/* The smallest of every other family; ./test tries one of them. */
START_TEST(default_is_never_worse_than_a_part_of_it_anywhere)
{
    static const char *const models[] = {"moe-380m", "wresnet-250m", "unet-470m"};

    check_all(models[_i], 2, 2, 64e9);
}
END_TEST

START_TEST(default_is_never_worse_than_a_part_of_it_mlp)
{
    check_all("mlp8", 2, 2, 64e9);
}
END_TEST

/* Two exact searches of one space agree; the others of that space do not beat them. */
START_TEST(searches_of_one_space_are_ordered)
{
    static const char *const others[] = {"flexflow", "tofu", "double-recursive"};
    xm_cluster_profile_t *profile = planner_fixture_profile(2, 2, 64e9);
    ap_planner_params_t params =
        params_of(profile, getenv("TEST_FEW") == NULL ? "gpt-125m" : "mlp8");
    ap_like_result_t pase, optcnn, curve;

    params.micro_batch_count = 1;
    pase = run("pase", &params);
    optcnn = run("optcnn", &params);
    curve = run("tensoropt", &params);
    ck_assert_double_eq_tol(optcnn.step, pase.step, 1e-6 * pase.step);
    ck_assert_double_eq_tol(curve.step, pase.step, 1e-6 * pase.step);
    ck_assert_int_ge(curve.curve_count, 2);
    ck_assert_double_eq_tol(curve.curve[0].step, pase.step, 1e-4 * pase.step); /* whole ns there */
    for (int i = 1; i < curve.curve_count; ++i) {
        ck_assert_double_gt(curve.curve[i].seconds, curve.curve[i - 1].seconds);
        ck_assert_double_lt(curve.curve[i].bytes, curve.curve[i - 1].bytes);
        ck_assert_double_gt(curve.curve[i].step, curve.curve[i - 1].step);
        ck_assert_double_lt(curve.curve[i].memory, curve.curve[i - 1].memory);
    }
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); ++i) {
        ap_like_result_t result = run(others[i], &params);

        ck_assert_double_ge(result.step, pase.step * (1.0 - 1e-6));
        ap_like_result_clear(&result);
    }
    ap_like_result_clear(&curve);
    ap_like_result_clear(&optcnn);
    ap_like_result_clear(&pase);
    xm_cluster_profile_destroy(profile);
}
END_TEST

/* All points of Megatron's grid, one by one: the row gives the fastest. */
START_TEST(a_grid_gives_its_fastest_point)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(1, 4, 64e9);
    ap_planner_params_t params = params_of(profile, "gpt-125m");
    ap_like_result_t whole = run("megatron", &params);
    double fastest = 1e30;

    for (int b = 0; b < 2; ++b) {
        params.micro_batches = &few[b];
        params.micro_batch_count = 1;
        for (int stages = 1; stages <= 4; stages *= 2) {
            ap_like_result_t point;

            params.min_stages = params.max_stages = stages;
            point = run("megatron", &params);
            ck_assert_int_eq(ap_plan_stages(point.plan), stages);
            for (int i = 0; i < stages; ++i) {
                const ap_plan_stage_t *stage = ap_plan_stage(point.plan, i);

                ck_assert_int_eq(stage->hosts * stage->devices_per_host, 4 / stages);
            }
            fastest = point.step < fastest ? point.step : fastest;
            ap_like_result_clear(&point);
        }
    }
    ck_assert_double_eq(whole.step, fastest);
    ap_like_result_clear(&whole);
    xm_cluster_profile_destroy(profile);
}
END_TEST

/* What a planner without an eye for memory gives does not fit, and by how much is said. */
START_TEST(a_plan_that_does_not_fit_says_by_how_much)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(2, 2, 1.2e9);
    ap_planner_params_t params = params_of(profile, "gpt-125m");
    ap_like_result_t result = run("pase", &params);

    ck_assert_ptr_nonnull(result.plan);
    ck_assert_double_gt(result.over_bytes, 0.0);
    ck_assert_double_eq(result.over_bytes, result.memory - 1.2e9);
    ap_like_result_clear(&result);
    xm_cluster_profile_destroy(profile);
}
END_TEST

START_TEST(rows_without_a_plan_say_why)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(2, 8, 64e9);
    ap_planner_params_t params = params_of(profile, "mlp8");
    ap_like_result_t result = run("gpipe", &params);

    ck_assert_ptr_null(result.plan); /* 8 layers for 16 devices, one to a stage */
    ck_assert_str_eq(result.why, "gpipe has stages of one device: 8 layers do not fill 16 devices");
    ap_like_result_clear(&result);
    params.min_stages = 2;
    result = run("pase", &params);
    ck_assert_ptr_null(result.plan);
    ck_assert_str_eq(result.why, "pase has no pipeline, at least 2 stages asked");
    ap_like_result_clear(&result);
    params.min_stages = 0;
    params.recompute = AP_RECOMPUTE_ON;
    result = run("pase", &params);
    ck_assert_str_eq(result.why, "pase never recomputes activations");
    ap_like_result_clear(&result);
    xm_cluster_profile_destroy(profile);
}
END_TEST

START_TEST(a_difference_names_what_differs)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(1, 4, 64e9);
    ap_planner_params_t params = params_of(profile, "gpt-125m");
    ap_like_result_t one, two;
    char text[160];

    params.max_stages = 1;
    one = run("megatron", &params);
    params.min_stages = params.max_stages = 2;
    two = run("megatron", &params);
    ck_assert_str_eq(ap_like_difference(one.plan, one.plan, text, sizeof(text)), "");
    ck_assert_msg(strstr(ap_like_difference(two.plan, one.plan, text, sizeof(text)),
                         "2 stages, not 1") == text,
                  "%s", text);
    ap_like_result_clear(&two);
    ap_like_result_clear(&one);
    xm_cluster_profile_destroy(profile);
}
END_TEST

START_TEST(names_are_found_or_the_nearest_is_given)
{
    const ap_planner_preset_t *row;
    int count;
    const ap_planner_preset_t *rows = ap_planner_presets(&count);

    ck_assert_str_eq(rows[count - 1].name, "default");
    for (int i = 0; i < count; ++i) {
        ck_assert_xm_ok(ap_planner_preset_find(rows[i].name, &row));
        ck_assert_ptr_eq(row, &rows[i]);
        ck_assert_str_ne(ap_planner_preset_search(row), "");
    }
    ck_assert_xm_fails(ap_planner_preset_find("megatorn", &row), XM_ERR_INVALID_ARGUMENT,
                       "did you mean megatron?");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("like");
    TCase *tcase = tcase_create("all");

    tcase_set_timeout(tcase, 120);
    if (getenv("TEST_FEW") == NULL) {
        tcase_add_test(tcase, default_is_never_worse_than_a_part_of_it_gpt);
        tcase_add_test(tcase, default_is_never_worse_than_a_part_of_it_short_of_memory);
        tcase_add_loop_test(tcase, default_is_never_worse_than_a_part_of_it_anywhere, 0,
                            xm_test_rounds(3));
    }
    tcase_add_test(tcase, default_is_never_worse_than_a_part_of_it_mlp);
    tcase_add_test(tcase, searches_of_one_space_are_ordered);
    tcase_add_test(tcase, a_grid_gives_its_fastest_point);
    tcase_add_test(tcase, a_plan_that_does_not_fit_says_by_how_much);
    tcase_add_test(tcase, rows_without_a_plan_say_why);
    tcase_add_test(tcase, a_difference_names_what_differs);
    tcase_add_test(tcase, names_are_found_or_the_nearest_is_given);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
