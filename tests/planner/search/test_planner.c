/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/search/planner.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "planner/frontend/zoo.h"
#include "planner/plan/print.h"
#include "planner/stage/stage.h"
#include "tests/planner/search/planner_fixture.h"
#include "xm_test.h"

static const int64_t b16[] = {16};

static ap_planner_params_t params_of(const xm_cluster_profile_t *profile)
{
    ap_planner_params_t params = AP_PLANNER_PARAMS_INIT;

    params.model = "gpt-125m";
    params.profile = profile;
    params.global_batch = 64;
    params.micro_batches = b16;
    params.micro_batch_count = 1;
    return params;
}

/* The plan's step is that of its own numbers, simulated. */
static void check_step(const ap_plan_t *plan)
{
    const ap_plan_info_t *info = ap_plan_info(plan);
    ap_plan_simulation_t simulation = AP_PLAN_SIMULATION_INIT;
    ap_schedule_t *schedule;
    ap_pipeline_run_t *run;

    for (int i = 0; i < ap_plan_stages(plan); ++i) {
        ck_assert_double_le(ap_plan_stage_memory(ap_plan_stage(plan, i)), info->memory_limit + 8);
    }
    ck_assert_xm_ok(ap_schedule_find(info->schedule, &simulation.kind));
    ck_assert_xm_ok(ap_plan_simulate(plan, &simulation, &schedule, &run));
    ck_assert_double_eq_tol(info->step, 1e-9 * (double)run->step_ns, 1e-3 * info->step);
    ck_assert_double_le(info->bound, info->step * (1.0 + 1e-9));
    ap_pipeline_run_destroy(run);
    ap_schedule_destroy(schedule);
}

/* Every schedule that plans, on every profile: the step is that of the plan simulated anew. */
START_TEST(steps_are_simulated_on_all_profiles)
{
    static const char *const profiles[] = {"fast-links-4x4", "gigabit-links-4x4", "lab-2x4",
                                           "p3-16xlarge-8x8", "slow-links-4x4"};
    static const char *const schedules[] = {"1f1b",  "gpipe", "eager-1f1b",   "eager-1f1b-w",
                                            "zb-h1", "zb-h2", "pipedream-2bw"};
    static const int64_t counts[] = {8};

    for (size_t p = 0; p < (getenv("TEST_FEW") != NULL ? 1 : sizeof(profiles) / sizeof(*profiles));
         ++p) {
        xm_cluster_profile_t *profile;
        char path[96];

        (void)snprintf(path, sizeof(path), "tests/fixtures/profiles/%s.json", profiles[p]);
        ck_assert_xm_ok(xm_cluster_profile_load(xm_test_source_path(path), &profile));
        for (size_t i = 0; i < sizeof(schedules) / sizeof(schedules[0]); ++i) {
            ap_planner_params_t params = params_of(profile);
            ap_planner_result_t result;

            if (xm_test_rounds(4) < 4 && (i + p) % 4 != 0) {
                continue; /* a share: every schedule, every profile, but not each with each */
            }

            params.layers = 6;
            params.schedule = schedules[i];
            params.micro_batches = counts;
            ck_assert_xm_ok(ap_planner_run(&params, &result));
            check_step(result.plan);
            ap_planner_result_clear(&result);
        }
        xm_cluster_profile_destroy(profile);
    }
}
END_TEST

/* Where transfers take as long as stages and windows are small, they do not hide; 6.731 s is a plan
 * that was found by trying. */
START_TEST(transfers_that_do_not_hide_are_counted)
{
    ap_planner_params_t params = AP_PLANNER_PARAMS_INIT;
    xm_cluster_profile_t *profile;
    ap_planner_result_t result;

    ck_assert_xm_ok(xm_cluster_profile_load(
        xm_test_source_path("tests/fixtures/profiles/gigabit-links-4x4.json"), &profile));
    params.model = "gpt-350m";
    params.profile = profile;
    params.global_batch = 128;
    ck_assert_xm_ok(ap_planner_run(&params, &result));
    check_step(result.plan);
    ck_assert_double_le(ap_plan_info(result.plan)->step, 6.74);
    ap_planner_result_clear(&result);
    xm_cluster_profile_destroy(profile);
}
END_TEST

/* A host more never makes the step longer: it may be left out. */
START_TEST(a_host_more_is_no_harm)
{
    xm_cluster_profile_t *healthy = planner_fixture_profile(2, 4, 64e9);
    xm_cluster_profile_t *bad = planner_fixture_profile(3, 4, 64e9);
    ap_planner_params_t params = params_of(healthy);
    ap_planner_result_t without, with;

    ck_assert_xm_ok(ap_planner_run(&params, &without));
    params.profile = bad;
    ck_assert_xm_ok(ap_planner_run(&params, &with));
    ck_assert_double_le(ap_plan_info(with.plan)->step, ap_plan_info(without.plan)->step * 1.001);
    ap_planner_result_clear(&with);
    ap_planner_result_clear(&without);
    xm_cluster_profile_destroy(bad);
    xm_cluster_profile_destroy(healthy);
}
END_TEST

static int stage_of(const ap_plan_t *plan, int layer)
{
    int stage = 0;

    while (ap_plan_stage(plan, stage)->last_layer < layer) {
        ++stage;
    }
    return stage;
}

/* How often the plan passes the tensor of this name from one stage to another. */
static int passes(const ap_plan_t *plan, int from, int to, const char *name)
{
    int count = 0;

    for (int b = 0; b < ap_plan_boundaries(plan); ++b) {
        const ap_plan_boundary_t *boundary = ap_plan_boundary(plan, b);

        for (int i = -1; i < boundary->more_count; ++i) {
            const char *tensor = i < 0 ? boundary->tensor : boundary->more[i].tensor;

            count += boundary->from == from && boundary->to == to && strcmp(tensor, name) == 0;
        }
    }
    return count;
}

/* Looks at operators alone: what an operator reads of another stage must come from there. */
static void check_passing(const ap_plan_t *plan, const ap_graph_t *graph)
{
    for (int o = 0; o < ap_graph_ops(graph); ++o) {
        const ap_op_t *op = ap_graph_op(graph, o);
        int here = stage_of(plan, op->layer);

        for (int i = 0; i < op->operand_count; ++i) {
            const ap_tensor_t *tensor = ap_graph_tensor(graph, op->operands[i]);
            int there = stage_of(plan, tensor->layer);

            if (tensor->kind == AP_TENSOR_ACTIVATION && there != here) {
                ck_assert_int_lt(there, here);
                ck_assert_msg(passes(plan, there, here, tensor->name) >= 1,
                              "'%s' does not come from stage %d to stage %d", tensor->name, there,
                              here);
            }
        }
    }
}

START_TEST(plans_add_up_for_every_number_of_stages)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(2, 4, 64e9);
    ap_planner_params_t params = params_of(profile);
    double best = INFINITY, free_choice;
    ap_planner_result_t result;

    ck_assert_xm_ok(ap_planner_run(&params, &result));
    check_step(result.plan);
    free_choice = ap_plan_info(result.plan)->step;
    ck_assert_int_eq(result.trial_count, 1);
    ap_planner_result_clear(&result);
    for (int stages = 1; stages <= 8; ++stages) {
        params.min_stages = stages;
        params.max_stages = stages;
        ck_assert_xm_ok(ap_planner_run(&params, &result));
        ck_assert_int_eq(ap_plan_stages(result.plan), stages);
        check_step(result.plan);
        best = fmin(best, ap_plan_info(result.plan)->step);
        ap_planner_result_clear(&result);
    }
    ck_assert_double_eq_tol(free_choice, best, 1e-9 * best);
    xm_cluster_profile_destroy(profile);
}
END_TEST

static ap_pipeline_stage_t part_of_step(const ap_stage_cost_t *cost)
{
    return (ap_pipeline_stage_t){.forward = cost->forward,
                                 .backward = cost->backward,
                                 .once = cost->sync + cost->update,
                                 .recompute = cost->recompute};
}

/* The step of two stages with what passes between those of a plan. */
static double step_of_two(const ap_plan_t *plan, const ap_pipeline_stage_t *stages)
{
    const ap_plan_boundary_t *boundary = ap_plan_boundary(plan, 0);
    ap_pipeline_transfer_t transfer = {.to = 1,
                                       .forward = boundary->forward,
                                       .backward = boundary->backward,
                                       .links = boundary->links,
                                       .link_count = boundary->link_count};
    ap_pipeline_step_t step = {.kind = AP_SCHEDULE_1F1B,
                               .micro_batches = 16,
                               .stages = stages,
                               .stage_count = 2,
                               .transfers = &transfer,
                               .transfer_count = 1};
    double seconds;

    ck_assert_xm_ok(ap_pipeline_step_seconds(&step, &seconds));
    return seconds;
}

/* Two stages on two devices: every cut and every pair of boundary specs, priced here by hand. */
START_TEST(two_stages_match_trying_every_cut)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(2, 1, 256e9);
    ap_planner_params_t params = params_of(profile);
    ap_stage_context_params_t context_params = AP_STAGE_CONTEXT_PARAMS_INIT;
    ap_zoo_params_t zoo = AP_ZOO_PARAMS_INIT;
    double best = INFINITY;
    ap_planner_result_t result;
    ap_stage_context_t *context;
    ap_cost_model_t *cost;
    ap_graph_t *graph;
    int layers;

    params.min_stages = params.max_stages = 2;
    params.recompute = AP_RECOMPUTE_OFF;
    ck_assert_xm_ok(ap_planner_run(&params, &result));
    zoo.batch = 4;
    ck_assert_xm_ok(ap_zoo_create("gpt-125m", &zoo, &graph));
    ck_assert_xm_ok(ap_cost_model_create_profile(profile, &cost));
    context_params.graph = graph;
    context_params.cost = cost;
    context_params.micro_batches = 16;
    ck_assert_xm_ok(ap_stage_context_create(&context_params, &context));
    layers = ap_graph_layers(graph);
    for (int cut = 0; cut + 1 < layers; ++cut) {
        ap_pipeline_stage_t stages[2];

        for (int i = 0; i < 2; ++i) {
            ap_stage_query_t query = AP_STAGE_QUERY_INIT;
            ap_stage_cost_t stage;

            query.first = i == 0 ? 0 : cut + 1;
            query.last = i == 0 ? cut : layers - 1;
            query.hosts = query.devices = query.shape[0] = query.shape[1] = 1;
            ck_assert_xm_ok(ap_stage_evaluate(context, &query, &stage));
            stages[i] = part_of_step(&stage);
        }
        best = fmin(best, step_of_two(result.plan, stages));
    }
    ck_assert_double_eq_tol(ap_plan_info(result.plan)->step, best, 1e-8 * best);
    ap_stage_context_destroy(context);
    ap_cost_model_destroy(cost);
    ap_graph_destroy(graph);
    ap_planner_result_clear(&result);
    xm_cluster_profile_destroy(profile);
}
END_TEST

/* The same on two kinds of devices: each stage on its host's, and the cut moves to the faster. */
START_TEST(unequal_devices_match_trying_every_cut)
{
    xm_cluster_profile_t *profile = planner_fixture_two_kinds(2, 1, 256e9);
    ap_planner_params_t params = params_of(profile);
    ap_zoo_params_t zoo = AP_ZOO_PARAMS_INIT;
    ap_stage_context_t *context[2];
    ap_cost_model_t *cost[2];
    double best = INFINITY;
    ap_planner_result_t result;
    ap_graph_t *graph;
    int layers, best_cut = -1;

    params.min_stages = params.max_stages = 2;
    params.recompute = AP_RECOMPUTE_OFF;
    ck_assert_xm_ok(ap_planner_run(&params, &result));
    zoo.batch = 4;
    ck_assert_xm_ok(ap_zoo_create("gpt-125m", &zoo, &graph));
    layers = ap_graph_layers(graph);
    for (int i = 0; i < 2; ++i) {
        ap_stage_context_params_t context_params = AP_STAGE_CONTEXT_PARAMS_INIT;
        xm_cluster_device_t device = xm_cluster_profile_host_device(profile, i);

        ck_assert_xm_ok(ap_cost_model_create_hosts(profile, &device, 1e9, &cost[i]));
        context_params.graph = graph;
        context_params.cost = cost[i];
        context_params.micro_batches = 16;
        ck_assert_xm_ok(ap_stage_context_create(&context_params, &context[i]));
    }
    for (int cut = 0; cut + 1 < layers; ++cut) {
        ap_pipeline_stage_t stages[2];
        double whole;

        for (int i = 0; i < 2; ++i) {
            ap_stage_query_t query = AP_STAGE_QUERY_INIT;
            ap_stage_cost_t stage;

            query.first = i == 0 ? 0 : cut + 1;
            query.last = i == 0 ? cut : layers - 1;
            query.hosts = query.devices = query.shape[0] = query.shape[1] = 1;
            ck_assert_xm_ok(ap_stage_evaluate(context[i], &query, &stage));
            stages[i] = part_of_step(&stage);
        }
        whole = step_of_two(result.plan, stages);
        if (whole < best) {
            best = whole;
            best_cut = cut;
        }
    }
    ck_assert_double_eq_tol(ap_plan_info(result.plan)->step, best, 1e-8 * best);
    ck_assert_int_eq(ap_plan_stage(result.plan, 0)->last_layer, best_cut);
    ck_assert_int_ge(best_cut, layers / 2);
    ap_planner_result_clear(&result);
    for (int i = 0; i < 2; ++i) {
        ap_stage_context_destroy(context[i]);
        ap_cost_model_destroy(cost[i]);
    }
    ap_graph_destroy(graph);
    xm_cluster_profile_destroy(profile);
}
END_TEST

/* No stage exceeds the memory of the devices it is on, whichever kind. */
START_TEST(each_kind_keeps_to_its_own_memory)
{
    xm_cluster_profile_t *profile = planner_fixture_two_kinds(2, 2, 2.4e9);
    ap_planner_params_t params = params_of(profile);
    ap_planner_result_t result;

    ck_assert_xm_ok(ap_planner_run(&params, &result));
    for (int i = 0; i < ap_plan_stages(result.plan); ++i) {
        const ap_plan_stage_t *stage = ap_plan_stage(result.plan, i);
        int last = stage->devices[stage->hosts * stage->devices_per_host - 1] / 2;

        ck_assert_double_le(ap_plan_stage_memory(stage),
                            xm_cluster_profile_host_device(profile, last).memory_bytes + 8);
    }
    ap_planner_result_clear(&result);
    xm_cluster_profile_destroy(profile);
}
END_TEST

/* 3 devices, 6 hosts: every device is used, and more shapes never make it slower. */
START_TEST(any_number_of_hosts_and_devices)
{
    static const int sizes[][2] = {{1, 3}, {3, 1}, {6, 1}, {3, 3}, {5, 1}, {1, 7}};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); ++i) {
        xm_cluster_profile_t *profile = planner_fixture_profile(sizes[i][0], sizes[i][1], 64e9);
        ap_planner_params_t params = params_of(profile);
        ap_planner_result_t regular, all;
        int devices = 0;

        ck_assert_xm_ok(ap_planner_run(&params, &regular));
        check_step(regular.plan);
        params.all_submeshes = true;
        ck_assert_xm_ok(ap_planner_run(&params, &all));
        check_step(all.plan);
        ck_assert_double_le(all.objective, regular.objective * 1.001);
        for (int s = 0; s < ap_plan_stages(all.plan); ++s) {
            const ap_plan_stage_t *stage = ap_plan_stage(all.plan, s);

            devices += stage->hosts * stage->devices_per_host;
        }
        ck_assert_int_eq(devices, sizes[i][0] * sizes[i][1]);
        ap_planner_result_clear(&regular);
        ap_planner_result_clear(&all);
        xm_cluster_profile_destroy(profile);
    }
}
END_TEST

/* Stages on every device of 4 hosts x 2: the pipeline crosses 3 times from host to host, not 5. */
START_TEST(pipelines_cross_between_hosts_as_seldom_as_can_be)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(4, 2, 64e9);
    ap_planner_params_t params = params_of(profile);
    ap_planner_result_t result;
    int crossings = 0;

    params.min_stages = params.max_stages = 8;
    ck_assert_xm_ok(ap_planner_run(&params, &result));
    for (int i = 0; i < ap_plan_boundaries(result.plan); ++i) {
        crossings += ap_plan_boundary(result.plan, i)->net_bytes > 0;
    }
    ck_assert_int_eq(crossings, 3);
    ap_planner_result_clear(&result);
    xm_cluster_profile_destroy(profile);
}
END_TEST

/* A plan at any time: what is left when time runs out is a plan with an honest bound. */
START_TEST(a_time_limit_gives_the_best_so_far)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(2, 4, 8e9);
    ap_planner_params_t params = params_of(profile);
    ap_planner_result_t best, result = {0};

    params.micro_batches = NULL;
    params.micro_batch_count = 0;
    ck_assert_xm_ok(ap_planner_run(&params, &best));
    ck_assert(!best.stopped);
    ck_assert_double_ge(best.bound, best.objective * (1 - 1.1e-3));
    for (params.time_limit = 1e-6; params.time_limit < 60.0; params.time_limit *= 2.0) {
        ck_assert_xm_ok(ap_planner_run(&params, &result));
        check_step(result.plan);
        ck_assert_double_le(result.bound, best.objective * (1 + 1e-9));
        ck_assert_double_ge(result.objective, best.bound * (1 - 1e-9));
        if (!result.stopped) {
            ck_assert_str_eq(ap_plan_digest(result.plan), ap_plan_digest(best.plan));
            ap_planner_result_clear(&result);
            break;
        }
        ap_planner_result_clear(&result);
    }
    ap_planner_result_clear(&best);
    xm_cluster_profile_destroy(profile);
}
END_TEST

/* Given stages are kept, and are never faster than what the planner finds. */
START_TEST(pinned_stages_are_kept)
{
    static const ap_planner_pin_t pins[] = {
        {.first_layer = 0, .last_layer = 4, .hosts = 1, .devices = 2, .shape = {2, 1}},
        {.first_layer = 5, .last_layer = 9, .hosts = 1, .devices = 2, .shape = {0, 0}},
        {.first_layer = 10, .last_layer = 13, .hosts = 1, .devices = 4, .shape = {2, 2}}};
    xm_cluster_profile_t *profile = planner_fixture_profile(2, 4, 64e9);
    ap_planner_params_t params = params_of(profile);
    ap_planner_result_t ours, theirs;
    ap_planner_pin_t wrong = {.first_layer = 0, .last_layer = 13, .hosts = 1, .devices = 3};

    ck_assert_xm_ok(ap_planner_run(&params, &ours));
    params.pins = pins;
    params.pin_count = 3;
    ck_assert_xm_ok(ap_planner_run(&params, &theirs));
    check_step(theirs.plan);
    ck_assert_int_eq(ap_plan_stages(theirs.plan), 3);
    for (int i = 0; i < 3; ++i) {
        const ap_plan_stage_t *stage = ap_plan_stage(theirs.plan, i);

        ck_assert_int_eq(stage->first_layer, pins[i].first_layer);
        ck_assert_int_eq(stage->last_layer, pins[i].last_layer);
        ck_assert_int_eq(stage->devices_per_host, pins[i].devices);
    }
    ck_assert_int_eq(ap_plan_stage(theirs.plan, 2)->shape[0], 2);
    ck_assert_double_le(ours.objective, theirs.objective * 1.001);
    ap_planner_result_clear(&ours);
    ap_planner_result_clear(&theirs);
    params.pins = &wrong;
    params.pin_count = 1;
    ck_assert_xm_fails(ap_planner_run(&params, &ours), XM_ERR_INVALID_ARGUMENT,
                       "a stage on 1 x 3 devices in the shape 0 x 0 is not in the space");
    xm_cluster_profile_destroy(profile);
}
END_TEST

START_TEST(more_choices_never_make_it_slower)
{
    static const int64_t many[] = {4, 8, 16, 32};
    xm_cluster_profile_t *profile = planner_fixture_profile(2, 2, 6e9);
    ap_planner_params_t params = params_of(profile);
    ap_planner_result_t one, all;

    ck_assert_xm_ok(ap_planner_run(&params, &one));
    params.micro_batches = many;
    params.micro_batch_count = 4;
    ck_assert_xm_ok(ap_planner_run(&params, &all));
    ck_assert_int_eq(all.trial_count, 4);
    /* A thousandth is what the second round may leave on the table. */
    ck_assert_double_le(ap_plan_info(all.plan)->step, ap_plan_info(one.plan)->step * 1.001);
    for (int i = 0; i < all.trial_count; ++i) {
        ck_assert_double_le(all.trials[i].bound, all.trials[i].step * (1 + 1e-9));
        ck_assert_double_ge(all.trials[i].step * (1 + 1e-12), ap_plan_info(all.plan)->step);
    }
    ap_planner_result_clear(&one);
    ap_planner_result_clear(&all);
    xm_cluster_profile_destroy(profile);
}
END_TEST

START_TEST(runs_are_deterministic)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(2, 4, 8e9);
    ap_planner_params_t params = params_of(profile);
    ap_planner_result_t a, b;

    ck_assert_xm_ok(ap_planner_run(&params, &a));
    ck_assert_xm_ok(ap_planner_run(&params, &b));
    ck_assert_str_eq(ap_plan_digest(a.plan), ap_plan_digest(b.plan));
    ap_planner_result_clear(&a);
    ap_planner_result_clear(&b);
    ap_planner_result_clear(NULL);
    xm_cluster_profile_destroy(profile);
}
END_TEST

START_TEST(stages_fill_the_hosts_in_order)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(2, 4, 64e9);
    ap_planner_params_t params = params_of(profile);
    ap_planner_result_t result;
    int next = 0;

    params.min_stages = params.max_stages = 5;
    ck_assert_xm_ok(ap_planner_run(&params, &result));
    for (int i = 0; i < ap_plan_stages(result.plan); ++i) {
        const ap_plan_stage_t *stage = ap_plan_stage(result.plan, i);

        for (int d = 0; d < stage->hosts * stage->devices_per_host; ++d) {
            ck_assert_int_eq(stage->devices[d], next++);
        }
        if (stage->hosts == 1) {
            ck_assert_int_eq(stage->devices[0] / 4,
                             stage->devices[stage->devices_per_host - 1] / 4);
        }
    }
    ck_assert_int_eq(next, 8);
    ap_planner_result_clear(&result);
    xm_cluster_profile_destroy(profile);
}
END_TEST

/* Every device of a large plan keeps room for its runtime: what is asked for, or by default
 * context, communication and fragmentation. */
START_TEST(plans_leave_the_reserve)
{
    static const double asked[] = {AP_MEMORY_RESERVE_DEFAULT, 0.0, 0.25, 30e9};
    const double device = 80e9, kept[] = {(512 + 240) * 1048576.0 + 0.05 * 80e9, 0.0, 20e9, 30e9};
    xm_cluster_profile_t *profile = planner_fixture_profile(8, 8, device);
    ap_planner_params_t params = params_of(profile);
    ap_planner_result_t result;

    params.model = "llama3-70b";
    params.global_batch = 1024;
    params.memory_reserve = asked[_i];
    ck_assert_xm_ok(ap_planner_run(&params, &result));
    ck_assert_double_eq_tol(ap_plan_info(result.plan)->memory_reserve, kept[_i], 1);
    ck_assert_double_eq_tol(ap_plan_info(result.plan)->memory_limit, device - kept[_i], 1);
    for (int i = 0; i < ap_plan_stages(result.plan); ++i) {
        ck_assert_double_le(ap_plan_stage_memory(ap_plan_stage(result.plan, i)),
                            device - kept[_i] + 1);
    }
    ap_planner_result_clear(&result);
    params.memory_reserve = 80e9;
    ck_assert_xm_fails(ap_planner_run(&params, &result), XM_ERR_INVALID_ARGUMENT,
                       "leaves nothing of 74.51 GiB per device");
    params.memory_reserve = NAN;
    ck_assert_xm_fails(ap_planner_run(&params, &result), XM_ERR_INVALID_ARGUMENT, "no number");
    xm_cluster_profile_destroy(profile);
}
END_TEST

/* However little time there is, there is a plan, and never one faster than the search in full
 * finds. */
START_TEST(any_time_limit_has_a_plan)
{
    static const char *const models[] = {"gpt-125m", "moe-380m", "wresnet-250m"};
    static const double wrong[] = {-1.0, NAN, INFINITY};
    xm_cluster_profile_t *profile = planner_fixture_profile(2, 4, 64e9);
    ap_planner_params_t params = params_of(profile);
    ap_planner_result_t quick, whole;

    params.model = models[_i];
    ck_assert_xm_ok(ap_planner_run(&params, &whole));
    params.time_limit = 1e-9;
    ck_assert_xm_ok(ap_planner_run(&params, &quick));
    ck_assert(quick.stopped);
    ck_assert_double_ge(ap_plan_info(quick.plan)->step,
                        ap_plan_info(whole.plan)->step * (1 - 1e-3));
    ck_assert_double_le(quick.bound, ap_plan_info(whole.plan)->step);
    /* What is done before there is a first plan does not grow with the search. */
    (void)printf("%s: %lld of %lld questions\n", models[_i], (long long)quick.stages_priced,
                 (long long)whole.stages_priced);
    ck_assert_int_le(quick.stages_priced, 16);
    ck_assert_int_ge(whole.stages_priced, 20 * quick.stages_priced);
    ap_planner_result_clear(&quick);
    ap_planner_result_clear(&whole);
    params.time_limit = wrong[_i];
    ck_assert_xm_fails(ap_planner_run(&params, &quick), XM_ERR_INVALID_ARGUMENT, "a time limit of");
    xm_cluster_profile_destroy(profile);
}
END_TEST

/* What the sentence asks for is enough, and a tenth less is not. */
START_TEST(the_memory_asked_for_is_what_it_takes)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(1, 2, 2e8);
    ap_planner_params_t params = params_of(profile);
    ap_planner_result_t result;
    const char *needs;
    double needed;

    params.recompute = AP_RECOMPUTE_ON;
    ck_assert_xm_fails(
        ap_planner_run(&params, &result), XM_ERR_NO_SOLUTION,
        "gpt-125m does not fit into 162.12 MiB per device (and 28.61 MiB in reserve) on "
        "1 x 2 devices");
    needs = strstr(xm_last_error(), "it needs ");
    ck_assert_ptr_nonnull(needs);
    ck_assert_int_eq(sscanf(needs, "it needs %lf GiB", &needed), 1);
    params.memory_limit = (needed + 0.005) * 1073741824.0;
    ck_assert_xm_ok(ap_planner_run(&params, &result));
    check_step(result.plan);
    ap_planner_result_clear(&result);
    params.memory_limit = 0.9 * needed * 1073741824.0;
    ck_assert_xm_fails(ap_planner_run(&params, &result), XM_ERR_NO_SOLUTION, "does not fit");
    xm_cluster_profile_destroy(profile);
}
END_TEST

/* The head of a mixture has the embedding's table: both stages, a host each, get the gradients of
 * the other's, all of it over a NIC, once a step. Inside a host there is no NIC to wait for. */
START_TEST(stages_pay_for_weights_that_they_share)
{
    static const double rate = 1e9, table = 32000.0 * 768 * 2;
    static const int hosts[] = {2, 1};
    double sync[2][2];

    for (int i = 0; i < 2; ++i) {
        xm_cluster_profile_t *profile = planner_fixture_profile(hosts[i], 2, 64e9);
        ap_planner_params_t params = params_of(profile);
        ap_planner_result_t result;

        params.model = "moe-380m";
        params.min_stages = params.max_stages = 2;
        ck_assert_xm_ok(ap_planner_run(&params, &result));
        for (int s = 0; s < 2; ++s) {
            sync[i][s] = ap_plan_stage(result.plan, s)->sync;
        }
        ap_planner_result_clear(&result);
        xm_cluster_profile_destroy(profile);
    }
    for (int s = 0; s < 2; ++s) {
        ck_assert_double_ge(sync[0][s], table / rate);
        ck_assert_double_lt(sync[1][s], 0.5 * table / rate);
        ck_assert_double_gt(sync[1][s], 0.0); /* one device each: nothing but the table */
    }
}
END_TEST

/* The work is all there however a U-Net is cut, and whatever a stage reads of another comes from
 * there. */
START_TEST(a_u_net_is_cut_anywhere)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(2, 4, 64e9);
    ap_planner_params_t params = params_of(profile);
    double whole = 0.0;

    params.model = "unet-470m";
    for (int stages = 1; stages <= 8; stages *= 2) {
        ap_planner_result_t result;
        ap_zoo_params_t zoo = AP_ZOO_PARAMS_INIT;
        double seconds = 0.0;
        ap_graph_t *graph;

        params.profile = profile;
        params.min_stages = params.max_stages = stages;
        ck_assert_xm_ok(ap_planner_run(&params, &result));
        zoo.batch = 4;
        ck_assert_xm_ok(ap_zoo_create("unet-470m", &zoo, &graph));
        for (int i = 0; i < stages; ++i) {
            const ap_plan_stage_t *stage = ap_plan_stage(result.plan, i);

            seconds += stage->shape[0] * stage->shape[1] * (stage->forward + stage->backward);
        }
        whole = stages == 1 ? seconds : whole;
        ck_assert_double_ge(seconds, 0.3 * whole);
        check_passing(result.plan, graph);
        ap_graph_destroy(graph);
        ap_planner_result_clear(&result);
    }
    xm_cluster_profile_destroy(profile);
}
END_TEST

START_TEST(bad_requests_are_refused)
{
    static const int64_t b3[] = {3};
    xm_cluster_profile_t *profile = planner_fixture_profile(2, 4, 64e9);
    ap_planner_params_t params = params_of(profile);
    ap_planner_result_t result;

    params.model = "gpt-1.3bb";
    ck_assert_xm_fails(ap_planner_run(&params, &result), XM_ERR_NOT_FOUND, "gpt-1.3b");
    params = params_of(profile);
    params.micro_batches = b3;
    ck_assert_xm_fails(ap_planner_run(&params, &result), XM_ERR_INVALID_ARGUMENT,
                       "a batch of 64 does not divide into 3 micro-batches");
    params = params_of(profile);
    params.min_stages = 3;
    params.max_stages = 2;
    ck_assert_xm_fails(ap_planner_run(&params, &result), XM_ERR_INVALID_ARGUMENT, "3 to 2");
    params = params_of(profile);
    params.model = "mlp2";
    params.min_stages = params.max_stages = 3;
    ck_assert_xm_fails(ap_planner_run(&params, &result), XM_ERR_NO_SOLUTION,
                       "mlp2 cannot be divided into 3 stages on 2 x 4 devices; the nearest number "
                       "that works is 2");
    params = params_of(profile);
    params.profile = NULL;
    ck_assert_xm_fails(ap_planner_run(&params, &result), XM_ERR_INVALID_ARGUMENT, "profile");
    xm_cluster_profile_destroy(profile);
}
END_TEST

static char *slurp(const char *path)
{
    FILE *file = fopen(path, "rb");
    char *text = calloc(1, 1 << 20);
    size_t length;

    ck_assert_ptr_nonnull(file);
    length = fread(text, 1, (1 << 20) - 1, file);
    ck_assert_uint_gt(length, 0);
    (void)fclose(file);
    return text;
}

START_TEST(table_and_figure_show_every_stage)
{
    char path[] = "/tmp/xm_test_planner_XXXXXX";
    xm_cluster_profile_t *profile = planner_fixture_profile(2, 4, 64e9);
    ap_planner_params_t params = params_of(profile);
    int fd = mkstemp(path);
    ap_planner_result_t result;
    char *text;
    FILE *file;

    ck_assert_int_ge(fd, 0);
    (void)close(fd);
    params.min_stages = params.max_stages = 3;
    ck_assert_xm_ok(ap_planner_run(&params, &result));
    ck_assert_xm_ok(ap_plan_plot(result.plan, path));
    text = slurp(path);
    ck_assert_ptr_nonnull(strstr(text, "stage 2: layers "));
    ck_assert_ptr_nonnull(strstr(text, "host 1"));
    ck_assert_ptr_nonnull(strstr(text, "</svg>"));
    ck_assert_ptr_null(strstr(text, "nan"));
    free(text);
    file = fopen(path, "wb");
    ap_plan_print(result.plan, file);
    (void)fclose(file);
    text = slurp(path);
    ck_assert_ptr_nonnull(strstr(text, "# model gpt-125m"));
    ck_assert_ptr_nonnull(strstr(text, ap_plan_digest(result.plan)));
    free(text);
    ck_assert_xm_fails(ap_plan_plot(result.plan, "/nowhere/x.svg"), XM_ERR_IO, "/nowhere/x.svg");
    (void)unlink(path);
    ap_planner_result_clear(&result);
    xm_cluster_profile_destroy(profile);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("planner");
    TCase *tcase = tcase_create("all");

    tcase_set_timeout(tcase, 240);
    tcase_add_test(tcase, steps_are_simulated_on_all_profiles);
    tcase_add_test(tcase, transfers_that_do_not_hide_are_counted);
    tcase_add_test(tcase, a_host_more_is_no_harm);
    tcase_add_test(tcase, plans_add_up_for_every_number_of_stages);
    tcase_add_test(tcase, stages_pay_for_weights_that_they_share);
    tcase_add_test(tcase, a_u_net_is_cut_anywhere);
    tcase_add_test(tcase, two_stages_match_trying_every_cut);
    tcase_add_test(tcase, unequal_devices_match_trying_every_cut);
    tcase_add_test(tcase, each_kind_keeps_to_its_own_memory);
    tcase_add_test(tcase, any_number_of_hosts_and_devices);
    tcase_add_test(tcase, pipelines_cross_between_hosts_as_seldom_as_can_be);
    tcase_add_test(tcase, a_time_limit_gives_the_best_so_far);
    tcase_add_test(tcase, pinned_stages_are_kept);
    tcase_add_test(tcase, more_choices_never_make_it_slower);
    tcase_add_test(tcase, runs_are_deterministic);
    tcase_add_test(tcase, stages_fill_the_hosts_in_order);
    tcase_add_loop_test(tcase, plans_leave_the_reserve, 0, 4);
    tcase_add_loop_test(tcase, any_time_limit_has_a_plan, 0, 3);
    tcase_add_test(tcase, the_memory_asked_for_is_what_it_takes);
    tcase_add_test(tcase, bad_requests_are_refused);
    tcase_add_test(tcase, table_and_figure_show_every_stage);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
