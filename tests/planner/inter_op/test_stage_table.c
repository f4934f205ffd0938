/* SPDX-License-Identifier: Apache-2.0 */
/* Stage tables whose stages choose whether to recompute, under every schedule's memory and bubble,
 * against trying all cuts and choices. */
#include "planner/inter_op/stage_table.h"

#include <math.h>

#include "planner/plan/schedule.h"
#include "planner/search/case.h"
#include "tests/planner/search/planner_fixture.h"
#include "xm_test.h"

enum { LAYERS = 6, MOST_STAGES = 4, INSTANCES = 250, BATCH = 64 };

static const ap_schedule_kind_t kinds[] = {AP_SCHEDULE_1F1B,       AP_SCHEDULE_GPIPE,
                                           AP_SCHEDULE_EAGER_1F1B, AP_SCHEDULE_EAGER_1F1B_W,
                                           AP_SCHEDULE_ZB_H1,      AP_SCHEDULE_ZB_H2};

enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

static const uint64_t seeds[] = {7, 2, 11};

static uint64_t state;

static uint32_t random_below(uint32_t limit)
{
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (uint32_t)(state >> 33) % limit;
}

/* One device to a stage: what every range costs, without recomputation and with it. */
typedef struct model {
    ap_planner_params_t params;
    ap_planner_setup_t setup;
    int64_t micro_batches;
    ap_stage_cost_t cost[LAYERS][LAYERS][2];
    ap_pipeline_transfer_t transfer[LAYERS]; /* of the tensor before a layer, both ways */
} model_t;

static void price(model_t *model)
{
    ap_stage_context_params_t context = AP_STAGE_CONTEXT_PARAMS_INIT;
    const ap_graph_t *graph;
    ap_graph_t *made;

    ck_assert_xm_ok(ap_planner_graph_open(&model->setup, model->micro_batches, &graph, &made));
    ck_assert_int_eq(ap_graph_layers(graph), LAYERS);
    context.graph = graph;
    context.cost = model->setup.classes->classes[0].cost;
    context.micro_batches = (int)model->micro_batches;
    for (int again = 0; again < 2; ++again) {
        ap_stage_context_t *stages;

        context.rematerialize = again == 1;
        ck_assert_xm_ok(ap_stage_context_create(&context, &stages));
        for (int range = 0; range < LAYERS * LAYERS; ++range) {
            ap_stage_query_t query = AP_STAGE_QUERY_INIT;

            query.first = range / LAYERS;
            query.last = range % LAYERS;
            query.hosts = query.devices = query.shape[0] = query.shape[1] = 1;
            if (query.first <= query.last) {
                ck_assert_xm_ok(ap_stage_evaluate(stages, &query,
                                                  &model->cost[query.first][query.last][again]));
            }
        }
        ap_stage_context_destroy(stages);
    }
    for (int layer = 1; layer < LAYERS; ++layer) {
        const ap_tensor_t *tensor = ap_graph_tensor(graph, ap_graph_boundary(graph, layer - 1));
        const ap_cross_mesh_tensor_t passing = {tensor->shape, ap_dtype_bytes(tensor->dtype),
                                                model->cost[0][layer - 1][0].output,
                                                model->cost[layer][LAYERS - 1][0].input};
        const ap_cross_mesh_transfer_t transfer = {{0, {1, 1}}, {1, {1, 1}}, &passing, 1, false};
        ap_cross_mesh_cost_t cost;

        ck_assert_xm_ok(ap_cross_mesh_cost(model->setup.cross_mesh, &transfer, &cost));
        model->transfer[layer] =
            (ap_pipeline_transfer_t){.forward = cost.forward, .backward = cost.backward};
    }
    ap_graph_destroy(made);
}

/* Every way to cut the layers into so many stages, each with and without recomputation. */
typedef struct attempt {
    const model_t *model;
    ap_schedule_kind_t kind;
    ap_recompute_t recompute;
    int stages;
    double limit, best;
    bool best_mixed;
    ap_pipeline_stage_t stage[MOST_STAGES];
    ap_pipeline_transfer_t transfer[MOST_STAGES];
} attempt_t;

static void try_whole(attempt_t *attempt, unsigned again)
{
    ap_pipeline_step_t step = {.kind = attempt->kind,
                               .micro_batches = (int)attempt->model->micro_batches,
                               .stages = attempt->stage,
                               .stage_count = attempt->stages,
                               .transfers = attempt->transfer + 1,
                               .transfer_count = attempt->stages - 1};
    double seconds;

    if (attempt->kind == AP_SCHEDULE_PIPEDREAM_2BW && step.micro_batches < attempt->stages) {
        return;
    }
    ck_assert_xm_ok(ap_pipeline_step_seconds(&step, &seconds));
    if (seconds < attempt->best) {
        attempt->best = seconds;
        attempt->best_mixed = again != 0 && again != (1U << attempt->stages) - 1U;
    }
}

static void try_from(attempt_t *attempt, int stage, int first, unsigned again)
{
    int64_t m = attempt->model->micro_batches;
    int after = attempt->stages - 1 - stage;

    if (stage == attempt->stages) {
        try_whole(attempt, again);
        return;
    }
    for (int last = after > 0 ? first : LAYERS - 1; last < LAYERS - after; ++last) {
        for (int recompute_mode = 0; recompute_mode < 2; ++recompute_mode) {
            const ap_stage_cost_t *cost = &attempt->model->cost[first][last][recompute_mode];
            int64_t held = ap_schedule_in_flight(attempt->kind, stage, after, m);

            if ((attempt->recompute == AP_RECOMPUTE_OFF && recompute_mode == 1) ||
                (attempt->recompute == AP_RECOMPUTE_ON && recompute_mode == 0) ||
                ap_stage_memory(cost, (int)held) > attempt->limit) {
                continue;
            }
            attempt->stage[stage] = (ap_pipeline_stage_t){.forward = cost->forward,
                                                          .backward = cost->backward,
                                                          .once = cost->sync + cost->update,
                                                          .recompute = recompute_mode == 1};
            attempt->transfer[stage] = attempt->model->transfer[first];
            attempt->transfer[stage].from = stage - 1;
            attempt->transfer[stage].to = stage;
            try_from(attempt, stage + 1, last + 1,
                     again | (unsigned)recompute_mode << (unsigned)stage);
        }
    }
}

/* What some plan needs, drawn at random; now and then a little less. */
static double random_limit(const attempt_t *attempt)
{
    double most = 0.0;
    int first = 0;

    for (int stage = 0; stage < attempt->stages; ++stage) {
        int after = attempt->stages - 1 - stage;
        int last =
            after > 0 ? first + (int)random_below((uint32_t)(LAYERS - after - first)) : LAYERS - 1;
        int recompute_mode = attempt->recompute == AP_RECOMPUTE_AUTO
                                 ? (int)random_below(2)
                                 : attempt->recompute == AP_RECOMPUTE_ON;
        int64_t held =
            ap_schedule_in_flight(attempt->kind, stage, after, attempt->model->micro_batches);

        most = fmax(most,
                    ap_stage_memory(&attempt->model->cost[first][last][recompute_mode], (int)held));
        first = last + 1;
    }
    return random_below(5) == 0 ? 0.9 * most : most + 1.0;
}

static void compare(const model_t *model, attempt_t *attempt, int *solved, int *mixed)
{
    ap_planner_case_options_t options = {.micro_batches = model->micro_batches,
                                         .recompute = attempt->recompute,
                                         .schedule = attempt->kind,
                                         .stages = attempt->stages,
                                         .memory_limit = attempt->limit};
    ap_inter_op_result_t found;
    ap_planner_case_t one;
    double bound = 0.0;
    xm_status_t status;

    attempt->best = INFINITY;
    try_from(attempt, 0, 0, 0);
    ck_assert_xm_ok(ap_planner_case_open(&model->setup, &options, &one));
    status = ap_stage_table_solve(one.table, attempt->stages, attempt->stages, &found);
    if (attempt->best < INFINITY) {
        ck_assert_xm_ok(status);
        ck_assert_double_ge(found.seconds, attempt->best * (1.0 - 1e-6));
        ck_assert_double_le(found.seconds, attempt->best * 1.01);
        ck_assert_double_le(found.bound, attempt->best * (1.0 + 1e-6));
        ck_assert_xm_ok(ap_stage_table_bound(one.table, attempt->stages, attempt->stages, &bound));
        ck_assert_msg(bound <= attempt->best * (1.0 + 1e-6),
                      "%s, %d stages, %d micro-batches, recompute %d: bound %g, best %g",
                      ap_schedule_name(attempt->kind), attempt->stages, (int)model->micro_batches,
                      (int)attempt->recompute, bound, attempt->best);
        ++*solved;
        *mixed += attempt->best_mixed;
        ap_inter_op_result_clear(&found);
    } else {
        ck_assert_int_eq(status, XM_ERR_NO_SOLUTION);
    }
    ap_planner_case_close(&one);
}

START_TEST(equals_trying_all_cuts_and_choices)
{
    static const int64_t counts[] = {1, 2, 4, 8, 16};
    int solved = 0, mixed = 0;

    state = seeds[_i];
    for (int stages = 2; stages <= MOST_STAGES; ++stages) {
        xm_cluster_profile_t *profile = planner_fixture_profile(stages, 1, 64e9);
        model_t model = {.params = AP_PLANNER_PARAMS_INIT};

        model.params.model = "gpt-125m";
        model.params.profile = profile;
        model.params.layers = LAYERS - 2;
        model.params.global_batch = BATCH;
        ck_assert_xm_ok(ap_planner_setup_open(&model.params, 0.0, &model.setup));
        for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); ++c) {
            model.micro_batches = counts[c];
            price(&model);
            for (int i = 0; i < INSTANCES / 15 + 1; ++i) {
                attempt_t attempt = {.model = &model,
                                     .kind = kinds[random_below(KINDS)],
                                     .recompute = (ap_recompute_t)(random_below(6) % 4 % 3),
                                     .stages = stages};

                attempt.limit = random_limit(&attempt);
                compare(&model, &attempt, &solved, &mixed);
            }
        }
        ap_planner_setup_close(&model.setup);
        xm_cluster_profile_destroy(profile);
    }
    ck_assert_int_gt(solved, INSTANCES / 2);
    ck_assert_int_gt(mixed, INSTANCES / 20);
}
END_TEST

/* What the formulas say is what the lists do. */
START_TEST(formulas_count_what_the_lists_hold)
{
    for (int k = 0; k < KINDS; ++k) {
        for (int devices = 1; devices <= 6; ++devices) {
            for (int m = 1; m <= 16; ++m) {
                ap_schedule_params_t params = AP_SCHEDULE_PARAMS_INIT;
                ap_schedule_t *schedule;

                params.kind = kinds[k];
                params.devices = devices;
                params.micro_batches = m;
                ck_assert_xm_ok(ap_schedule_create(&params, &schedule));
                for (int d = 0; d < devices; ++d) {
                    int now = 0, most = 0;

                    for (int i = 0; i < schedule->op_count[d]; ++i) {
                        ap_pass_t pass = schedule->ops[d][i].pass;

                        now += pass == AP_PASS_FORWARD;
                        most = now > most ? now : most;
                        now -= pass == (schedule->split ? AP_PASS_WEIGHT : AP_PASS_BACKWARD);
                    }
                    ck_assert_msg(
                        most == ap_schedule_in_flight(kinds[k], d, devices - 1 - d, m),
                        "%s: device %d of %d holds %d of %d micro-batches, the formula says %d",
                        ap_schedule_name(kinds[k]), d, devices, most, m,
                        (int)ap_schedule_in_flight(kinds[k], d, devices - 1 - d, m));
                }
                ap_schedule_destroy(schedule);
            }
        }
    }
}
END_TEST

/* Equal stages without transfers take what the objective says. */
START_TEST(formulas_time_equal_stages)
{
    enum { DEVICES = 4, M = 12 };
    int64_t passes[DEVICES], none[DEVICES] = {0};

    for (int i = 0; i < DEVICES; ++i) {
        passes[i] = 1000;
    }
    for (int k = 0; k < KINDS; ++k) {
        ap_schedule_params_t params = AP_SCHEDULE_PARAMS_INIT;
        ap_pipeline_times_t times = AP_PIPELINE_TIMES_INIT;
        double fill = ap_schedule_fill_share(kinds[k], 1.0 / 3.0);
        ap_schedule_t *schedule;
        ap_pipeline_run_t *run;

        params.kind = kinds[k];
        params.devices = DEVICES;
        params.micro_batches = M;
        ck_assert_xm_ok(ap_schedule_create(&params, &schedule));
        times.forward = times.backward = times.weight = passes;
        times.activation = times.gradient = times.update = none;
        ck_assert_xm_ok(ap_pipeline_simulate(schedule, &times, &run));
        ck_assert_double_eq_tol((double)run->step_ns, 3000.0 * (M + fill * (DEVICES - 1)), 1.0);
        ap_pipeline_run_destroy(run);
        ap_schedule_destroy(schedule);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("stage_table");
    TCase *tcase = tcase_create("all");

    tcase_set_timeout(tcase, 120);
    tcase_add_loop_test(tcase, equals_trying_all_cuts_and_choices, 0,
                        (int)(sizeof(seeds) / sizeof(seeds[0])));
    tcase_add_test(tcase, formulas_count_what_the_lists_hold);
    tcase_add_test(tcase, formulas_time_equal_stages);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
