/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor parallelism by hand: Megatron's decoder layer needs four all-reduces of the activations of
 * a micro-batch, two forward and two backward, or four gathers and four reduce-scatters in their
 * place. q, k and v (gate and up as well) share the reduction of their input's gradient. */
#include "tests/planner/cost/profile_fixture.h"

#include <stdio.h>
#include <string.h>

#include "planner/frontend/zoo.h"
#include "planner/intra_op.h"
#include "planner/passes.h"
#include "planner/stage/stage.h"

enum { DEVICES = 8 };

static const char *const models[] = {"llama3-8b", "llama2-7b", "gpt-2.6b"};

typedef struct fixture {
    xm_cluster_profile_t *profile;
    ap_cost_model_t *model;
    ap_cost_mesh_t *mesh;
    ap_graph_t *graph;
} fixture_t;

/* Devices that are short of no memory. */
static void set_up(fixture_t *f, const char *model, int layers)
{
    const int shape[] = {1, DEVICES};
    ap_zoo_params_t zoo = AP_ZOO_PARAMS_INIT;
    xm_cluster_device_t device;

    ck_assert_xm_ok(xm_cluster_profile_load(
        xm_test_source_path("tests/fixtures/profiles/p3-16xlarge-8x8.json"), &f->profile));
    device = xm_cluster_profile_device(f->profile);
    device.memory_bytes = 1e15;
    ck_assert_xm_ok(ap_cost_model_create_hosts(
        f->profile, &device, xm_cluster_profile_nic_bandwidth(f->profile), &f->model));
    ck_assert_xm_ok(ap_cost_mesh_create(f->model, 1, DEVICES, shape, 2, &f->mesh));
    zoo.batch = 1;
    zoo.layers = layers;
    ck_assert_xm_ok(ap_zoo_create(model, &zoo, &f->graph));
}

static void tear_down(fixture_t *f)
{
    ap_graph_destroy(f->graph);
    ap_cost_mesh_destroy(f->mesh);
    ap_cost_model_destroy(f->model);
    xm_cluster_profile_destroy(f->profile);
}

/* What passes between two layers of the model. */
static double activation_bytes(const fixture_t *f)
{
    return ap_graph_tensor_bytes(f->graph, ap_graph_boundary(f->graph, 1));
}

/* k and v of the second layer are cut by heads, as q is. */
static void check_cut(const char *op, ap_spec_t weight)
{
    if (strcmp(op, "block2.k") == 0 || strcmp(op, "block2.v") == 0 || strcmp(op, "block2.q") == 0) {
        ck_assert_uint_eq(ap_spec_axes(weight, 1), 1U << 1);
    }
}

/* Seconds of communication in a micro-batch of a stage that may cut nothing but features. */
static double stage_seconds(fixture_t *f)
{
    ap_stage_context_params_t params = AP_STAGE_CONTEXT_PARAMS_INIT;
    ap_stage_query_t query = AP_STAGE_QUERY_INIT;
    ap_space_t space = AP_SPACE_INIT;
    ap_stage_context_t *context;
    ap_stage_solution_t *solution;
    double seconds = 0;

    space.roles[0] = space.roles[1] = AP_ROLE_TENSOR;
    space.scatter = false;
    space.cut_products = true;
    params.graph = f->graph;
    params.cost = f->model;
    params.space = &space;
    ck_assert_xm_ok(ap_stage_context_create(&params, &context));
    query.last = ap_graph_layers(f->graph) - 1;
    query.hosts = query.shape[0] = 1;
    query.devices = query.shape[1] = DEVICES;
    ck_assert_xm_ok(ap_stage_solve(context, &query, &solution));
    for (int c = 0; c < ap_stage_solution_choices(solution); ++c) {
        const ap_stage_choice_t *choice = ap_stage_solution_choice(solution, c);

        check_cut(ap_graph_op(f->graph, choice->op)->name, choice->operands[1]);
        seconds += choice->comm + choice->reshard;
    }
    ap_stage_solution_destroy(solution);
    ap_stage_context_destroy(context);
    return seconds;
}

START_TEST(a_layer_in_a_stage_takes_four_all_reduces)
{
    double seconds[2], by_hand = 0;

    for (int more = 0; more < 2; ++more) {
        fixture_t f;

        set_up(&f, models[_i], 4 + more);
        seconds[more] = stage_seconds(&f);
        by_hand = 4 * ap_cost_collective(f.mesh, AP_ALL_REDUCE, 1, activation_bytes(&f));
        tear_down(&f);
    }
    ck_assert_double_eq_tol(seconds[1] - seconds[0], by_hand, 1e-6 * by_hand);
}
END_TEST

/* Counts the gathers and reduce-scatters of a layer's activations in the best sharding of the
 * whole graph; a limit that is no hindrance must change nothing. */
static void count(fixture_t *f, double limit, int *gathers, int *scatters)
{
    ap_shard_params_t params = AP_SHARD_PARAMS_INIT;
    ap_shard_options_t options = AP_SHARD_OPTIONS_INIT;
    ap_shard_problem_t *problem;
    ap_shard_plan_t *plan;
    ap_shard_solution_t *solution;
    ap_shard_report_t *report;
    ap_graph_t *training;

    ck_assert_xm_ok(ap_training_expand(f->graph, AP_OPTIMIZER_ADAM, &training));
    params.graph = training;
    params.mesh = f->mesh;
    params.state_bytes = 12;
    options.seconds = 60;
    options.memory_limit = limit;
    ck_assert_xm_ok(ap_shard_problem_create(&params, &problem));
    ck_assert_xm_ok(ap_shard_solve(problem, &options, &plan));
    ck_assert_xm_ok(ap_shard_solution_create(problem, ap_shard_plan_strategies(plan), &solution));
    ck_assert_xm_ok(ap_shard_report_create(solution, &report));
    *gathers = *scatters = 0;
    for (int t = 0; t < report->transfer_count; ++t) {
        const ap_shard_transfer_t *of = &report->transfers[t];

        ck_assert(of->gradient || of->kind != AP_ALL_REDUCE || of->bytes < activation_bytes(f) / 2);
        if (of->bytes >= activation_bytes(f) && of->bytes <= activation_bytes(f)) {
            *gathers += of->kind == AP_ALL_GATHER;
            *scatters += of->kind == AP_REDUCE_SCATTER;
        }
    }
    for (int o = 0; o < ap_graph_ops(training); ++o) {
        check_cut(ap_graph_op(training, o)->name, solution->ops[o].spec[1]);
    }
    ap_shard_report_destroy(report);
    ap_shard_solution_destroy(solution);
    ap_shard_plan_destroy(plan);
    ap_shard_problem_destroy(problem);
    ap_graph_destroy(training);
}

START_TEST(a_layer_of_a_graph_takes_four_gathers_and_four_reduce_scatters)
{
    int gathers[2], scatters[2];

    for (int more = 0; more < 2; ++more) {
        fixture_t f;

        set_up(&f, models[_i / 2], 4 + more);
        count(&f, _i % 2 == 0 ? 0 : 1e14, &gathers[more], &scatters[more]);
        tear_down(&f);
    }
    ck_assert_int_eq(gathers[1] - gathers[0], 4);
    ck_assert_int_eq(scatters[1] - scatters[0], 4);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("megatron");
    TCase *all = tcase_create("all");

    tcase_set_timeout(all, 60);
    tcase_add_loop_test(all, a_layer_in_a_stage_takes_four_all_reduces, 0, 3);
    tcase_add_loop_test(all, a_layer_of_a_graph_takes_four_gathers_and_four_reduce_scatters, 0, 6);
    suite_add_tcase(suite, all);
    return xm_test_run(suite);
}
