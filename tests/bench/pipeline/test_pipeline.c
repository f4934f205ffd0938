/* SPDX-License-Identifier: Apache-2.0 */
/* What pipeline-bench makes of a plan before anything runs. */
#include "bench/pipeline/pipeline.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "bench/cases/host_map.h"
#include "bench/run/rates.h"
#include "planner/search/planner.h"
#include "xm_test.h"

enum { HOSTS = 2, DEVICES = 2, MICRO_BATCHES = 4, STAGES = 2 };

static const char *const schedules[] = {"1f1b",         "gpipe", "eager-1f1b",
                                        "eager-1f1b-w", "zb-h1", "zb-h2"};

typedef struct {
    char path[64];
    xm_cluster_profile_t *profile;
    rb_host_map_t hosts;
    xm_network_t *network;
    rb_pipeline_params_t params;
} fixture_t;

static const char profile_text[] =
    "{\"version\": 1, \"name\": \"two\", \"provenance\": \"assumed, for tests\", \"hosts\": 2,"
    " \"devices_per_host\": 2, \"device\": {\"flop_per_s\": 1e9, \"memory_bytes\": 1e10,"
    " \"memory_bytes_per_s\": 1e10}, \"nic\": {\"bytes_per_s\": 1e8}, \"curves\": {"
    " \"self\": [[8, 1e-6], [1048576, 1e-4]], \"intra_host\": [[8, 1e-5], [1048576, 1e-3]],"
    " \"inter_host\": [[8, 1e-4], [1048576, 1.1e-2]]}}";

static void open_fixture(fixture_t *fixture)
{
    int64_t micro_batches = MICRO_BATCHES;
    ap_planner_params_t params = AP_PLANNER_PARAMS_INIT;
    ap_planner_result_t result;
    rb_rates_t rates = {0};
    char profile[] = "/tmp/pipeline-profile-XXXXXX";
    FILE *file = fdopen(mkstemp(profile), "w");

    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(profile_text, file), 0);
    ck_assert_int_eq(fclose(file), 0);
    ck_assert_xm_ok(xm_cluster_profile_load(profile, &fixture->profile));
    (void)unlink(profile);
    params.model = "mlp4";
    params.profile = fixture->profile;
    params.global_batch = 256;
    params.micro_batches = &micro_batches;
    params.micro_batch_count = 1;
    params.min_stages = params.max_stages = STAGES;
    ck_assert_xm_ok(ap_planner_run(&params, &result));
    (void)snprintf(fixture->path, sizeof(fixture->path), "/tmp/pipeline-plan-%d.json",
                   (int)getpid());
    ck_assert_xm_ok(ap_plan_save(result.plan, fixture->path));
    ap_planner_result_clear(&result);
    rb_rates_assume(&(rb_selection_t){0}, &rates);
    ck_assert_xm_ok(rb_host_map_emulate(HOSTS * DEVICES, DEVICES, &fixture->hosts));
    ck_assert_xm_ok(rb_rates_network(&rates, &fixture->hosts, NULL, &fixture->network));
    fixture->params = (rb_pipeline_params_t){.path = fixture->path, .network = fixture->network};
}

static void close_fixture(fixture_t *fixture)
{
    (void)unlink(fixture->path);
    xm_network_destroy(fixture->network);
    rb_host_map_clear(&fixture->hosts);
    xm_cluster_profile_destroy(fixture->profile);
}

/* Every micro-batch passes every boundary once each way, whatever the schedule; free transfers make
 * no step longer; the prediction is the simulation's. */
START_TEST(ways_carry_every_micro_batch)
{
    fixture_t fixture;

    open_fixture(&fixture);
    for (size_t i = 0; i < sizeof(schedules) / sizeof(schedules[0]); ++i) {
        ap_plan_simulation_t simulation = AP_PLAN_SIMULATION_INIT;
        ap_pipeline_run_t *run;
        ap_schedule_t *schedule;
        rb_pipeline_t *pipeline;

        fixture.params.schedule = schedules[i];
        ck_assert_xm_ok(rb_pipeline_create(&fixture.params, &pipeline));
        ck_assert_int_eq(pipeline->way_count, 2 * (STAGES - 1));
        for (int w = 0; w < pipeline->way_count; ++w) {
            ck_assert_int_eq(pipeline->ways[w].messages, MICRO_BATCHES);
            ck_assert_int_eq(pipeline->ways[w].from, w % 2);
            ck_assert_int_eq(pipeline->ways[w].to, 1 - w % 2);
        }
        ck_assert_int_gt(pipeline->free_ns, 0);
        ck_assert_int_lt(pipeline->free_ns, pipeline->predicted->step_ns);
        ck_assert_xm_ok(ap_schedule_find(schedules[i], &simulation.kind));
        ck_assert_xm_ok(ap_plan_simulate(pipeline->plan, &simulation, &schedule, &run));
        ck_assert_int_eq(pipeline->predicted->step_ns, run->step_ns);
        ap_pipeline_run_destroy(run);
        ap_schedule_destroy(schedule);
        rb_pipeline_destroy(pipeline);
    }
    close_fixture(&fixture);
}
END_TEST

START_TEST(ranks_know_their_stage)
{
    fixture_t fixture;
    rb_pipeline_t *pipeline;
    bool first;

    open_fixture(&fixture);
    ck_assert_xm_ok(rb_pipeline_create(&fixture.params, &pipeline));
    for (int s = 0; s < STAGES; ++s) {
        const ap_plan_stage_t *stage = ap_plan_stage(pipeline->plan, s);

        for (int i = 0; i < stage->hosts * stage->devices_per_host; ++i) {
            ck_assert_int_eq(rb_pipeline_stage_of(pipeline, stage->devices[i], &first), s);
            ck_assert_int_eq(first, i == 0);
        }
    }
    ck_assert_int_eq(rb_pipeline_stage_of(pipeline, HOSTS * DEVICES, &first), -1);
    ck_assert(!first);
    rb_pipeline_destroy(pipeline);
    close_fixture(&fixture);
}
END_TEST

START_TEST(micro_batches_and_profile_are_taken)
{
    fixture_t fixture;
    rb_pipeline_t *as_planned, *priced;

    open_fixture(&fixture);
    fixture.params.micro_batches = 7;
    ck_assert_xm_ok(rb_pipeline_create(&fixture.params, &as_planned));
    ck_assert_int_eq(as_planned->ways[0].messages, 7);
    fixture.params.profile = fixture.profile; /* that the plan was made on */
    ck_assert_xm_ok(rb_pipeline_create(&fixture.params, &priced));
    ck_assert_int_eq(priced->predicted->step_ns, as_planned->predicted->step_ns);
    ck_assert_uint_eq(rb_pipeline_net_bytes(priced), 7 * (xm_plan_net_bytes(priced->ways[0].plan) +
                                                          xm_plan_net_bytes(priced->ways[1].plan)));
    rb_pipeline_destroy(priced);
    rb_pipeline_destroy(as_planned);
    close_fixture(&fixture);
}
END_TEST

/* A sentence that names the file, and nothing left behind. */
START_TEST(what_cannot_run_is_refused)
{
    fixture_t fixture;
    rb_pipeline_t *pipeline = NULL;

    open_fixture(&fixture);
    fixture.params.schedule = "interleaved";
    ck_assert_xm_fails(rb_pipeline_create(&fixture.params, &pipeline), XM_ERR_UNSUPPORTED,
                       fixture.path);
    fixture.params.schedule = "1f2b";
    ck_assert_int_lt(rb_pipeline_create(&fixture.params, &pipeline), 0);
    fixture.params.schedule = NULL;
    fixture.params.path = "/nonexistent/plan.json";
    ck_assert_int_lt(rb_pipeline_create(&fixture.params, &pipeline), 0);
    ck_assert_ptr_nonnull(strstr(xm_last_error(), "/nonexistent/plan.json"));
    ck_assert_ptr_null(pipeline);
    close_fixture(&fixture);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pipeline");
    TCase *tests = tcase_create("pipeline");

    tcase_add_test(tests, ways_carry_every_micro_batch);
    tcase_add_test(tests, ranks_know_their_stage);
    tcase_add_test(tests, micro_batches_and_profile_are_taken);
    tcase_add_test(tests, what_cannot_run_is_refused);
    suite_add_tcase(suite, tests);
    return xm_test_run(suite);
}
