/* SPDX-License-Identifier: Apache-2.0 */
/* Random small problems: the plan that the search chooses, and the bound that it states, against
 * all plans that there are. */
#include <math.h>
#include <string.h>

#include "planner/plan/schedule.h"
#include "planner/search/planner.h"
#include "tests/planner/search/all_plans.h"
#include "tests/planner/search/planner_fixture.h"
#include "xm_test.h"

enum { PROBLEMS = 260, MORE = 40, ROWS = 64 };

/* All that a plan can have, and after them all synchronous ones together. Those that change what
 * training computes, or keep to no order, have problems of their own behind the others. */
static const ap_schedule_kind_t kinds[] = {
    AP_SCHEDULE_1F1B,     AP_SCHEDULE_GPIPE,   AP_SCHEDULE_EAGER_1F1B,    AP_SCHEDULE_EAGER_1F1B_W,
    AP_SCHEDULE_ZB_H1,    AP_SCHEDULE_ZB_H2,   AP_SCHEDULE_PIPEDREAM_2BW, AP_SCHEDULE_PIPEDREAM,
    AP_SCHEDULE_PIPEMARE, AP_SCHEDULE_HETPIPE, AP_SCHEDULE_VARUNA};

enum { KINDS = sizeof(kinds) / sizeof(kinds[0]), FIRST = 7, SYNCHRONOUS = 6 };

/* Seeds beyond those below, with kinds, of which plans or bounds were wrong once: recomputing is
 * faster than keeping everything in little memory, and zb-h2 than all that are searched. */
static const int once_wrong[][2] = {{289, 1}, {524, 4}, {815, KINDS}, {839, KINDS}};

static uint32_t next_random(uint64_t *state, uint32_t limit)
{
    *state = *state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (uint32_t)(*state >> 33) % limit;
}

typedef struct problem {
    ap_planner_params_t params;
    ap_graph_t *graph;
    xm_cluster_profile_t *profile;
    int64_t counts[2];
    int kind;   /* KINDS: whichever is fastest */
    bool whole; /* no plan is left out of the comparison */
} problem_t;

static int add_tensor(ap_graph_t *graph, ap_tensor_kind_t kind, const char *name, int64_t rows,
                      int64_t columns)
{
    const ap_shape_t shape = {2, {rows, columns}};
    int tensor;

    ck_assert_xm_ok(ap_graph_add_tensor(graph, name, kind, &shape, AP_DTYPE_F32, &tensor));
    return tensor;
}

static int add_op(ap_graph_t *graph, const char *name, const char *rule, int a, int b)
{
    ap_op_params_t op = AP_OP_PARAMS_INIT;
    int result;

    op.kind = strcmp(name, "add") == 0 ? AP_OP_ELEMENTWISE : AP_OP_EINSUM;
    op.linear = op.kind == AP_OP_ELEMENTWISE;
    op.name = name;
    op.rule = rule;
    op.operand_count = 2;
    op.operands = (const int[]){a, b};
    op.result_dtype = AP_DTYPE_F32;
    op.flops_per_point = 2;
    ck_assert_xm_ok(ap_graph_add_op(graph, &op, &result));
    return result;
}

/* Layers of two products of matrices each; some add what earlier layers have made. */
static ap_graph_t *random_graph(uint64_t *state, int layers, bool skips)
{
    static const int64_t widths[] = {64, 128, 256, 512};
    int64_t width = widths[next_random(state, 4)], outer = widths[next_random(state, 4)];
    int made[ALL_PLANS_LAYERS], x;
    ap_graph_t *graph;

    ck_assert_xm_ok(ap_graph_create("random", &graph));
    x = add_tensor(graph, AP_TENSOR_INPUT, "x", ROWS, width);
    for (int layer = 0; layer < layers; ++layer) {
        int64_t middle = next_random(state, 2) == 0 ? width : widths[next_random(state, 4)];
        int up, down;

        ck_assert_xm_ok(ap_graph_set_layer(graph, layer));
        up = add_tensor(graph, AP_TENSOR_PARAMETER, "u", width, middle);
        width = next_random(state, 3) == 0 ? outer : width;
        down = add_tensor(graph, AP_TENSOR_PARAMETER, "d", middle, width);
        x = add_op(graph, "up", "bk,kn->bn", x, up);
        x = add_op(graph, "down", "bk,kn->bn", x, down);
        for (int from = 0; skips && from + 1 < layer; ++from) {
            if (next_random(state, 2) == 0 &&
                ap_graph_tensor(graph, made[from])->shape.dims[1] == width) {
                x = add_op(graph, "add", "bn,bn->bn", x, made[from]);
            }
        }
        made[layer] = x;
    }
    ck_assert_xm_ok(ap_graph_set_loss(graph, x, true));
    ck_assert_xm_ok(ap_graph_finish(graph));
    return graph;
}

/* Two rates of NICs, and now and then two kinds of devices, messages that keep their senders
 * busy, and backward passes that take longer in halves. */
static xm_cluster_profile_t *random_profile(uint64_t *state, int hosts, int devices)
{
    static const double rates[] = {1e9, 3e8, 1e8, 2e7};
    double nics[ALL_PLANS_HOSTS], shares[ALL_PLANS_HOSTS];
    double typical = rates[next_random(state, 4)], other = rates[next_random(state, 4)];
    bool differ = next_random(state, 4) == 0;
    xm_cluster_profile_t *profile, *made;
    xm_runtime_t runtime = {0};

    for (int h = 0; h < ALL_PLANS_HOSTS; ++h) {
        nics[h] = next_random(state, 3) == 0 ? other : typical;
        shares[h] = next_random(state, 3) == 0 ? 0.5 : 1.0;
    }
    profile = planner_fixture_unequal(hosts, devices, 64e9, differ ? shares : NULL, nics, 0);
    runtime.send = next_random(state, 3) == 0 ? 1e-4 * (1 + next_random(state, 4)) : 0.0;
    runtime.split = next_random(state, 3) == 0 ? 1.0 + 0.1 * next_random(state, 6) : 0.0;
    runtime.weight = next_random(state, 3) == 0 ? 0.1 * (1 + next_random(state, 8)) : 0.0;
    ck_assert_xm_ok(xm_cluster_profile_set_runtime(profile, &runtime, "made up", &made));
    xm_cluster_profile_destroy(profile);
    return made;
}

/* Clusters of up to eight devices; the larger ones for the shorter models, of which there are still
 * thousands of plans. */
static void make_problem(problem_t *problem, int seed, int kind)
{
    static const int clusters[][2] = {{1, 2}, {2, 1}, {2, 2}, {3, 1}, {1, 4}, {2, 2},
                                      {4, 1}, {1, 3}, {2, 3}, {3, 2}, {1, 8}, {2, 4}};
    uint64_t state = 0x9e3779b97f4a7c15ULL * (uint64_t)(unsigned)(seed + 1);
    const int *cluster = clusters[next_random(&state, 12)];
    int devices = cluster[0] * cluster[1];
    int layers = 2 + (int)next_random(&state, devices > 4 ? 3 : ALL_PLANS_LAYERS - 1);
    ap_planner_params_t *params = &problem->params;

    *problem = (problem_t){.params = AP_PLANNER_PARAMS_INIT, .kind = kind};
    problem->whole = devices * layers <= 6;
    problem->graph = random_graph(&state, layers, next_random(&state, 3) == 0);
    problem->profile = random_profile(&state, cluster[0], cluster[1]);
    problem->counts[0] = 1 << next_random(&state, 4);
    problem->counts[1] = 2 * problem->counts[0];
    params->model = "random";
    params->graph = problem->graph;
    params->profile = problem->profile;
    params->global_batch = ROWS;
    params->micro_batches = problem->counts;
    params->micro_batch_count = 1 + next_random(&state, 2);
    params->schedule = problem->kind < KINDS ? ap_schedule_name(kinds[problem->kind]) : "auto";
    params->recompute = AP_RECOMPUTE_OFF;
    params->all_devices = next_random(&state, 4) == 0;
    /* Two versions of the parameters are not counted here. */
    if (next_random(&state, 4) == 0 && problem->kind < SYNCHRONOUS) {
        params->recompute = AP_RECOMPUTE_AUTO;
        params->memory_limit = ap_graph_parameters(problem->graph) * 16.0 *
                               (1.0 + 0.2 * next_random(&state, 12)) / devices;
    }
}

/* Kinds in turn, all synchronous ones together last. */
static int synchronous_kind(int index)
{
    return index % (FIRST + 1) == FIRST ? KINDS : index % (FIRST + 1);
}

/* The best step of all plans, as far as it is below @p known. */
static double best_of_all(const problem_t *problem, double known)
{
    all_plans_t all = {.params = problem->params, .prune = !problem->whole, .best = known};
    int first = problem->kind < KINDS ? problem->kind : 0;
    int end = problem->kind < KINDS ? problem->kind + 1 : SYNCHRONOUS;

    for (size_t c = 0; c < problem->params.micro_batch_count; ++c) {
        for (int kind = first; kind < end; ++kind) {
            all.micro_batches = problem->counts[c];
            all.kind = kinds[kind];
            all_plans_try(&all);
        }
    }
    return all.best;
}

static void check(int seed, int kind)
{
    problem_t problem;
    ap_planner_result_t found = {0};
    double step = INFINITY, best;
    xm_status_t status;

    make_problem(&problem, seed, kind);
    status = ap_planner_run(&problem.params, &found);
    if (status != XM_ERR_NO_SOLUTION) {
        ck_assert_xm_ok(status);
        step = ap_plan_info(found.plan)->step;
        ck_assert_double_eq(ap_plan_info(found.plan)->bound, found.bound);
    }
    best = best_of_all(&problem, problem.whole ? INFINITY : step);
    ck_assert_msg(isinf(step) == isinf(best), "problem %d: %g s was found, %g s is there", seed,
                  step, best);
    ck_assert_msg(isinf(best) || (step <= 1.01 * best && step >= best * (1.0 - 1e-9)),
                  "problem %d: %g s was found, %g s is the best", seed, step, best);
    ck_assert_msg(isinf(best) || found.bound <= best * (1.0 + 1e-9),
                  "problem %d: none is said to be below %g s, %g s is there", seed, found.bound,
                  best);
    ap_planner_result_clear(&found);
    xm_cluster_profile_destroy(problem.profile);
    ap_graph_destroy(problem.graph);
}

START_TEST(no_other_plan_is_faster)
{
    check(_i, synchronous_kind(_i));
}
END_TEST

START_TEST(no_other_plan_of_its_kind_is_faster)
{
    check(_i, FIRST + _i % (KINDS - FIRST));
}
END_TEST

START_TEST(what_was_wrong_once_is_right)
{
    check(once_wrong[_i][0], once_wrong[_i][1]);
}
END_TEST

/* What a plan's stages take under its schedule if transfers take no time. */
static double step_without_transfers(const ap_plan_t *plan, ap_schedule_kind_t kind)
{
    ap_pipeline_stage_t stages[ALL_PLANS_LAYERS];
    ap_pipeline_step_t step = {.kind = kind,
                               .micro_batches = (int)ap_plan_info(plan)->micro_batches,
                               .stages = stages,
                               .stage_count = ap_plan_stages(plan)};
    double seconds;

    for (int i = 0; i < step.stage_count; ++i) {
        const ap_plan_stage_t *stage = ap_plan_stage(plan, i);

        stages[i] = (ap_pipeline_stage_t){.forward = stage->forward,
                                          .backward = stage->backward,
                                          .once = stage->sync + stage->update,
                                          .recompute = stage->recompute};
    }
    ck_assert_xm_ok(ap_pipeline_step_seconds(&step, &seconds));
    return seconds;
}

/* Whoever leaves transfers out has the simulation without them decide. */
START_TEST(stages_are_the_best_without_transfers)
{
    problem_t problem;
    ap_planner_result_t found;
    double step, best;

    make_problem(&problem, _i, synchronous_kind(_i));
    problem.params.free_boundaries = problem.params.keep_host_order = true;
    problem.params.micro_batch_count = 1;
    problem.params.memory_limit = 0.0;
    if (problem.kind < KINDS) {
        ck_assert_xm_ok(ap_planner_run(&problem.params, &found));
        step = step_without_transfers(found.plan, kinds[problem.kind]);
        best = best_of_all(&problem, problem.whole ? INFINITY : step);
        ck_assert_msg(step <= 1.01 * best && step >= best * (1.0 - 1e-9),
                      "problem %d: %g s was found, %g s is the best", _i, step, best);
        ap_planner_result_clear(&found);
    }
    xm_cluster_profile_destroy(problem.profile);
    ap_graph_destroy(problem.graph);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("exhaustive");
    TCase *tcase = tcase_create("all");

    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, no_other_plan_is_faster, 0, xm_test_rounds(PROBLEMS));
    tcase_add_loop_test(tcase, no_other_plan_of_its_kind_is_faster, PROBLEMS,
                        PROBLEMS + xm_test_rounds(MORE));
    tcase_add_loop_test(tcase, what_was_wrong_once_is_right, 0,
                        sizeof(once_wrong) / sizeof(once_wrong[0]));
    tcase_add_loop_test(tcase, stages_are_the_best_without_transfers, 0,
                        xm_test_rounds(PROBLEMS / 6));
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
