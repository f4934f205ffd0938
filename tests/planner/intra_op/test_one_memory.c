/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of a stage, an upper bound by parts, against the peak over the step that `autopar
 * shard` follows operator by operator: the same strategy on the same devices. */
#include "tests/planner/cost/profile_fixture.h"

#include "planner/frontend/zoo.h"
#include "planner/intra_op.h"
#include "planner/passes.h"
#include "planner/stage/stage.h"

/* A stage holds its temporaries beside everything that is kept, although the largest may come when
 * less is: so it is above the peak, never below; the more so where operators are large beside what
 * is kept. */
static const struct {
    const char *name;
    int layers; /* 0: all */
    double tolerance;
} models[] = {{"gpt-125m", 0, 0.006},   {"gpt-1.3b", 0, 0.006},  {"llama2-7b", 2, 0.006},
              {"llama3-8b", 2, 0.006},  {"qwen3-32b", 2, 0.006}, {"moe-380m", 0, 0.006},
              {"t5-220m", 0, 0.006},    {"t5-770m", 0, 0.006},   {"unet-470m", 0, 0.01},
              {"wresnet-250m", 0, 0.01}};

static const int shapes[][2] = {{1, 1}, {1, 4}, {2, 4}};

enum { MODELS = sizeof(models) / sizeof(models[0]), SHAPES = 3, SAMPLES = 2, MICRO_BATCHES = 2 };

static ap_graph_t *make_graph(int model, int batch)
{
    ap_zoo_params_t zoo = AP_ZOO_PARAMS_INIT;
    ap_graph_t *graph;

    zoo.batch = batch;
    zoo.layers = models[model].layers;
    ck_assert_xm_ok(ap_zoo_create(models[model].name, &zoo, &graph));
    return graph;
}

/* Data parallelism, with all of the state on every device. */
static double by_stage(const ap_cost_model_t *model, const ap_graph_t *graph, const int *shape)
{
    ap_stage_context_params_t params = AP_STAGE_CONTEXT_PARAMS_INIT;
    ap_stage_query_t query = AP_STAGE_QUERY_INIT;
    ap_space_t space = AP_SPACE_INIT;
    ap_stage_context_t *context;
    ap_stage_cost_t cost;

    space.roles[0] = space.roles[1] = AP_ROLE_DATA;
    space.parameter_modes = 1U << AP_PARAMETER_REPLICATED;
    params.graph = graph;
    params.cost = model;
    params.micro_batches = MICRO_BATCHES;
    params.space = &space;
    ck_assert_xm_ok(ap_stage_context_create(&params, &context));
    query.last = ap_graph_layers(graph) - 1;
    query.hosts = query.shape[0] = shape[0];
    query.devices = query.shape[1] = shape[1];
    ck_assert_xm_ok(ap_stage_evaluate(context, &query, &cost));
    ap_stage_context_destroy(context);
    return ap_stage_memory(&cost, 1);
}

/* One device with its share of the samples. */
static double by_shard(const ap_cost_model_t *model, const ap_graph_t *graph)
{
    const int shape[] = {1, 1};
    ap_shard_params_t params = AP_SHARD_PARAMS_INIT;
    ap_shard_options_t options = AP_SHARD_OPTIONS_INIT;
    ap_shard_problem_t *problem;
    ap_shard_plan_t *plan;
    ap_cost_mesh_t *mesh;
    ap_graph_t *training;
    double peak;
    int weight = 0;

    ck_assert_xm_ok(ap_training_expand(graph, AP_OPTIMIZER_ADAM, &training));
    while (ap_graph_tensor(training, weight)->kind != AP_TENSOR_PARAMETER) {
        ++weight;
    }
    ck_assert_xm_ok(ap_cost_mesh_create(model, 1, 1, shape, 2, &mesh));
    params.graph = training;
    params.mesh = mesh;
    params.micro_batches = MICRO_BATCHES;
    params.state_bytes =
        ap_training_state_bytes(AP_OPTIMIZER_ADAM, ap_graph_tensor(training, weight)->dtype);
    ck_assert_xm_ok(ap_shard_problem_create(&params, &problem));
    ck_assert_xm_ok(ap_shard_solve(problem, &options, &plan));
    peak = ap_shard_plan_result(plan)->peak;
    ap_shard_plan_destroy(plan);
    ap_shard_problem_destroy(problem);
    ap_cost_mesh_destroy(mesh);
    ap_graph_destroy(training);
    return peak;
}

START_TEST(a_stage_holds_what_its_operators_do)
{
    xm_cluster_profile_params_t params = XM_CLUSTER_PROFILE_PARAMS_INIT;
    xm_cluster_profile_t *profile;
    ap_cost_model_t *model;
    ap_graph_t *one = make_graph(_i, SAMPLES);
    double peak;

    fixture_params(&params);
    params.device.memory_bytes = 1e15; /* no device is short of it */
    ck_assert_xm_ok(xm_cluster_profile_create(&params, &profile));
    ck_assert_xm_ok(ap_cost_model_create_profile(profile, &model));
    peak = by_shard(model, one);
    for (int s = 0; s < SHAPES; ++s) {
        ap_graph_t *graph = make_graph(_i, SAMPLES * shapes[s][0] * shapes[s][1]);
        double stage = by_stage(model, graph, shapes[s]);

        ck_assert_double_ge(stage, peak);
        ck_assert_double_le(stage, (1 + models[_i].tolerance) * peak);
        ap_graph_destroy(graph);
    }
    ap_graph_destroy(one);
    ap_cost_model_destroy(model);
    xm_cluster_profile_destroy(profile);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("one_memory");
    TCase *all = tcase_create("all");

    tcase_set_timeout(all, 60);
    tcase_add_loop_test(all, a_stage_holds_what_its_operators_do, 0, MODELS);
    suite_add_tcase(suite, all);
    return xm_test_run(suite);
}
