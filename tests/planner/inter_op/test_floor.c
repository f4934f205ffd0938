/* SPDX-License-Identifier: Apache-2.0 */
/* What a plan takes at least, against its simulation: random pipelines under every schedule, with
 * and without recomputation, whole and as far as they have begun, with halves of backward passes of
 * several sizes. */
#include <math.h>
#include <stdlib.h>

#include "planner/inter_op/stage_table_private.h"
#include "tests/planner/search/planner_fixture.h"
#include "xm_test.h"

enum { MOST_STAGES = 6, MOST_MICRO_BATCHES = 40, INSTANCES = 20000 };

/* What may be measured of a backward pass in halves. */
static const xm_runtime_t runtimes[] = {
    {0}, {.weight = 0.1}, {.weight = 0.3, .split = 1.2}, {.weight = 0.8}};

enum { RUNTIMES = sizeof(runtimes) / sizeof(runtimes[0]) };

static const ap_schedule_kind_t kinds[] = {AP_SCHEDULE_1F1B,       AP_SCHEDULE_GPIPE,
                                           AP_SCHEDULE_EAGER_1F1B, AP_SCHEDULE_EAGER_1F1B_W,
                                           AP_SCHEDULE_ZB_H1,      AP_SCHEDULE_ZB_H2};

enum { KINDS = sizeof(kinds) / sizeof(kinds[0]), MODES = AP_TABLE_RECOMPUTE_MODES };

/* A number from 0 to 1. */
static double chance(uint64_t *state)
{
    *state = *state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (double)(*state >> 11) / 9007199254740992.0;
}

static int below(uint64_t *state, int limit)
{
    return (int)(chance(state) * limit);
}

/* A pipeline with one layer and one device to a stage, as a table knows it and as the simulator
 * does. */
typedef struct pipeline {
    int count, row[MOST_STAGES * MOST_STAGES];
    double forward[MOST_STAGES * MODES], backward[MOST_STAGES * MODES], once[MOST_STAGES * MODES];
    ap_inter_op_stage_t stages[MOST_STAGES];
    ap_pipeline_stage_t simulated[MOST_STAGES];
    ap_pipeline_transfer_t transfers[MOST_STAGES]; /* before a stage; the first has none */
} pipeline_t;

static void draw_stage(pipeline_t *pipeline, int i, double spread, double far, uint64_t *state)
{
    int mode = below(state, MODES), at = MODES * i + mode;
    double forward = exp(2.0 * spread * (chance(state) - 0.5));
    double backward = forward * (0.5 + 2.5 * chance(state) + mode);
    double once = fmax(0.0, 4.0 * chance(state) - 2.0);
    ap_pipeline_transfer_t transfer = {.from = i - 1, .to = i};

    transfer.forward = far * chance(state);
    transfer.backward = below(state, 2) == 0 ? transfer.forward : far * chance(state);
    pipeline->row[i * pipeline->count + i] = i;
    pipeline->forward[at] = forward;
    pipeline->backward[at] = backward;
    pipeline->once[at] = once;
    pipeline->transfers[i] = transfer;
    pipeline->simulated[i] = (ap_pipeline_stage_t){
        .forward = forward, .backward = backward, .once = once, .recompute = mode == 1};
    pipeline->stages[i] = (ap_inter_op_stage_t){
        .first_layer = i,
        .last_layer = i,
        .config = mode,
        .first_device = i,
        .seconds = forward + backward,
        .boundary_seconds = i > 0 ? transfer.forward + transfer.backward : 0.0};
}

/* Pipelines of equal and of very different stages, with transfers that are short or far longer. */
static void draw(pipeline_t *pipeline, uint64_t *state)
{
    double spread = 3.0 * chance(state);
    double far = below(state, 3) == 0 ? 0.0 : exp(6.0 * chance(state) - 3.0);

    *pipeline = (pipeline_t){.count = 1 + below(state, MOST_STAGES)};
    for (int i = 0; i < pipeline->count; ++i) {
        draw_stage(pipeline, i, spread, far, state);
    }
}

static double simulate(const pipeline_t *pipeline, ap_schedule_kind_t kind, int micro_batches,
                       const xm_runtime_t *runtime)
{
    ap_pipeline_step_t step = {.kind = kind,
                               .micro_batches = micro_batches,
                               .split = runtime->split,
                               .weight = runtime->weight,
                               .stages = pipeline->simulated,
                               .stage_count = pipeline->count,
                               .transfers = pipeline->transfers + 1,
                               .transfer_count = pipeline->count - 1};
    double seconds = 0.0;

    ck_assert_xm_ok(ap_pipeline_step_seconds(&step, &seconds));
    return seconds;
}

/* The floor of the whole pipeline, or of its first stages where others follow. */
static double floor_of(ap_stage_slicing_t *slicing, const pipeline_t *pipeline, int begun)
{
    double rest = 0.0;

    for (int i = begun; i < pipeline->count; ++i) {
        rest += pipeline->stages[i].seconds + pipeline->stages[i].boundary_seconds;
    }
    return ap_stage_table_floor(slicing, pipeline->stages, begun, rest);
}

static void measure(const xm_runtime_t *runtime, xm_cluster_profile_t **measured,
                    ap_cross_mesh_t **cross_mesh)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(1, 1, 1e9);

    ck_assert_xm_ok(xm_cluster_profile_set_runtime(profile, runtime, "made up", measured));
    ck_assert_xm_ok(ap_cross_mesh_create(*measured, cross_mesh));
    xm_cluster_profile_destroy(profile);
}

START_TEST(no_step_is_below_its_floor)
{
    xm_cluster_profile_t *profile[RUNTIMES];
    ap_cross_mesh_t *cross_mesh[RUNTIMES];
    ap_stage_table_t *table = calloc(1, sizeof(*table));
    ap_pipeline_stage_t scratch[MOST_STAGES];
    ap_stage_slicing_t slicing = {.table = table, .share = 1.0, .stages = scratch};
    uint64_t state = 7;
    double close = 0.0;

    ck_assert_ptr_nonnull(table);
    for (int i = 0; i < RUNTIMES; ++i) {
        measure(&runtimes[i], &profile[i], &cross_mesh[i]);
    }
    for (int i = 0; i < INSTANCES; ++i) {
        int runtime = below(&state, RUNTIMES);
        pipeline_t pipeline;
        double seconds;

        draw(&pipeline, &state);
        *table = (ap_stage_table_t){.layers = pipeline.count,
                                    .submeshes = {{1, 1}},
                                    .submesh_count = 1,
                                    .config_count = MODES,
                                    .level_count = MODES,
                                    .levels = {{0, -1}, {1, -1}},
                                    .recomputes = {false, true},
                                    .row = pipeline.row,
                                    .forward = pipeline.forward,
                                    .backward = pipeline.backward,
                                    .once = pipeline.once};
        table->params.schedule = kinds[below(&state, KINDS)];
        table->params.micro_batches = 1 + below(&state, MOST_MICRO_BATCHES);
        table->params.hosts = 1;
        table->params.devices_per_host = pipeline.count;
        table->params.cross_mesh = cross_mesh[runtime];
        seconds = simulate(&pipeline, table->params.schedule, table->params.micro_batches,
                           &runtimes[runtime]);
        for (int begun = 1; begun <= pipeline.count; ++begun) {
            double least = floor_of(&slicing, &pipeline, begun);

            /* The simulator counts whole nanoseconds. */
            ck_assert_msg(
                least <= seconds + 1e-6,
                "pipeline %d, %s: %d micro-batches take %.9g s, but %.9g s at least by %d "
                "of %d stages",
                i, ap_schedule_name(table->params.schedule), table->params.micro_batches, seconds,
                least, begun, pipeline.count);
            close += begun == pipeline.count ? least / seconds : 0.0;
        }
    }
    /* Nothing would be a floor as well. */
    ck_assert_double_gt(close, 0.9 * INSTANCES);
    for (int i = 0; i < RUNTIMES; ++i) {
        ap_cross_mesh_destroy(cross_mesh[i]);
        xm_cluster_profile_destroy(profile[i]);
    }
    free(table);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("floor");
    TCase *tcase = tcase_create("all");

    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, no_step_is_below_its_floor);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
