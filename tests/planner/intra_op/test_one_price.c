/* SPDX-License-Identifier: Apache-2.0 */
/* The two solvers of a mesh, that of stages and that of whole graphs, against each other: they
 * share the price of a strategy and nothing else. */
#include "tests/planner/cost/profile_fixture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base/random.h"
#include "planner/frontend/zoo.h"
#include "planner/intra_op/plan.h"
#include "planner/passes/training.h"
#include "planner/stage/stage.h"

static const struct {
    const char *profile;
    int hosts, devices;
} meshes[] = {{"lab-2x4", 2, 4}, {"p3-16xlarge-8x8", 2, 8}, {"p3-16xlarge-8x8", 8, 8}};

enum { MESHES = 3 };

/* Stages take more where whole graphs may do what they cannot. A convolution whose channels are too
 * few for an axis leaves it free on the smallest mesh; its weight's gradient is cut over it in a
 * whole graph, while a plan of stages has no place to say so. What skips layers rests in a stage,
 * cut over both axes; a whole graph does better where leaving out the axis between hosts is best:
 * there, encoders with decoders are left out. */
static const struct {
    const char *name;
    int layers;  /* 0: all */
    double more; /* what stages take, of the whole on the smallest mesh */
    bool skips;  /* layers */
    bool differ; /* equal layers, on two hosts: whole graphs tie them unless told not to */
} models[] = {{"gpt-125m", 0, 0.005, false, false},   {"gpt-760m", 0, 0.005, false, false},
              {"gpt-2.6b", 0, 0.005, false, false},   {"llama2-7b", 2, 0.005, false, false},
              {"llama3-8b", 2, 0.005, false, false},  {"qwen3-32b", 2, 0.005, false, false},
              {"llama3-70b", 2, 0.005, false, false}, {"moe-380m", 0, 0.005, false, false},
              {"t5-220m", 0, 0.005, true, false},     {"wresnet-250m", 0, 0.016, false, true}};

/* The best of one stage on a mesh, in one micro-batch and without a memory limit. */
static double by_stages(const ap_cost_model_t *model, const ap_graph_t *graph, int hosts,
                        int devices)
{
    ap_stage_context_params_t params = AP_STAGE_CONTEXT_PARAMS_INIT;
    ap_stage_query_t query = AP_STAGE_QUERY_INIT;
    ap_stage_context_t *context;
    ap_stage_cost_t cost;

    params.graph = graph;
    params.cost = model;
    ck_assert_xm_ok(ap_stage_context_create(&params, &context));
    query.last = ap_graph_layers(graph) - 1;
    query.hosts = query.shape[0] = hosts;
    query.devices = query.shape[1] = devices;
    query.in_flight = 1;
    ck_assert_xm_ok(ap_stage_evaluate(context, &query, &cost));
    ap_stage_context_destroy(context);
    return ap_stage_objective(&cost, 1);
}

/* The best of the whole graph; `training` is what is planned. */
static double by_graph(const ap_cost_model_t *model, const ap_graph_t *training, int hosts,
                       int devices, bool every_layer)
{
    const int shape[] = {hosts, devices};
    ap_shard_params_t params = AP_SHARD_PARAMS_INIT;
    ap_shard_options_t options = AP_SHARD_OPTIONS_INIT;
    ap_shard_problem_t *problem;
    ap_shard_plan_t *plan;
    ap_cost_mesh_t *mesh;
    double objective;
    int weight = 0;

    while (weight + 1 < ap_graph_tensors(training) &&
           ap_graph_tensor(training, weight)->kind != AP_TENSOR_PARAMETER) {
        ++weight;
    }
    ck_assert_xm_ok(ap_cost_mesh_create(model, hosts, devices, shape, 2, &mesh));
    params.graph = training;
    params.mesh = mesh;
    params.micro_batches = 1;
    params.state_bytes =
        ap_training_state_bytes(AP_OPTIMIZER_ADAM, ap_graph_tensor(training, weight)->dtype);
    options.seconds = 60;
    options.every_layer = every_layer;
    ck_assert_xm_ok(ap_shard_problem_create(&params, &problem));
    ck_assert_xm_ok(ap_shard_solve(problem, &options, &plan));
    objective = ap_shard_plan_result(plan)->objective;
    ck_assert(ap_shard_plan_result(plan)->optimal);
    ap_shard_plan_destroy(plan);
    ap_shard_problem_destroy(problem);
    ap_cost_mesh_destroy(mesh);
    return objective;
}

/* The devices have so much memory that none of the two is short of it. */
static ap_cost_model_t *model_of(const char *name, xm_cluster_profile_t **profile)
{
    xm_cluster_device_t device;
    ap_cost_model_t *model;
    char path[96];

    (void)snprintf(path, sizeof(path), "tests/fixtures/profiles/%s.json", name);
    ck_assert_xm_ok(xm_cluster_profile_load(xm_test_source_path(path), profile));
    device = xm_cluster_profile_device(*profile);
    device.memory_bytes = 1e15;
    ck_assert_xm_ok(ap_cost_model_create_hosts(*profile, &device,
                                               xm_cluster_profile_nic_bandwidth(*profile), &model));
    return model;
}

/* Backward operators of a stage are cut as their forward operators are; apart from that little
 * difference both find the same. */
START_TEST(stages_and_graphs_agree)
{
    ap_zoo_params_t zoo = AP_ZOO_PARAMS_INIT;
    ap_graph_t *graph, *training;

    zoo.layers = getenv("TEST_FEW") != NULL ? 2 : models[_i].layers;
    for (int m = 0; m < (xm_test_rounds(2) < 2 ? 1 : MESHES); ++m) {
        xm_cluster_profile_t *profile;
        ap_cost_model_t *model;
        double stages, whole;

        if (models[_i].skips && (m == 1 || getenv("TEST_FEW") != NULL)) {
            continue;
        }
        model = model_of(meshes[m].profile, &profile);
        zoo.batch = meshes[m].hosts * meshes[m].devices * 8;
        ck_assert_xm_ok(ap_zoo_create(models[_i].name, &zoo, &graph));
        ck_assert_xm_ok(ap_training_expand(graph, AP_OPTIMIZER_ADAM, &training));
        stages = by_stages(model, graph, meshes[m].hosts, meshes[m].devices);
        whole = by_graph(model, training, meshes[m].hosts, meshes[m].devices,
                         models[_i].differ && m == 1);
        ck_assert_double_ge(stages, 0.995 * whole);
        ck_assert_double_le(stages, (m == 0 ? 1 + models[_i].more : 1.005) * whole);
        ap_graph_destroy(training);
        ap_graph_destroy(graph);
        ap_cost_model_destroy(model);
        xm_cluster_profile_destroy(profile);
    }
}
END_TEST

static int add_input(ap_graph_t *graph, int64_t rows, int64_t columns)
{
    const ap_shape_t shape = {2, {rows, columns}};
    int tensor;

    ck_assert_xm_ok(
        ap_graph_add_tensor(graph, "x", AP_TENSOR_INPUT, &shape, AP_DTYPE_F32, &tensor));
    return tensor;
}

/* An operator of the forward pass on one tensor or two. */
static int add_op(ap_graph_t *graph, const char *rule, int left, int right, int repeat)
{
    ap_op_params_t op = AP_OP_PARAMS_INIT;
    int result[3];

    op.kind = right < 0 ? AP_OP_CUSTOM : AP_OP_EINSUM;
    op.name = rule;
    op.rule = rule;
    op.operand_count = right < 0 ? 1 : 2;
    op.operands = (const int[]){left, right};
    op.flops_per_point = 2;
    op.repeat = repeat;
    op.result_dtype = AP_DTYPE_F32;
    ck_assert_xm_ok(ap_graph_add_op(graph, &op, result));
    return result[0];
}

/* A random expression of rows x columns, in which every tensor is read once. */
static int add_expression(ap_graph_t *graph, xm_random_t *random, int depth, int64_t rows,
                          int64_t columns)
{
    int64_t inner = INT64_C(64) << xm_random_below(random, 6);
    int repeat = 1 + (int)xm_random_below(random, 3), left;

    if (depth == 0) {
        return add_input(graph, rows, columns);
    }
    switch (xm_random_below(random, 4)) {
    case 0:
        left = add_expression(graph, random, depth - 1, rows, columns);
        return add_op(graph, "ab->ab", left, -1, repeat);
    case 1:
        left = add_expression(graph, random, depth - 1, columns, rows);
        return add_op(graph, "ab->ba", left, -1, repeat);
    default:
        left = add_expression(graph, random, depth - 1, rows, inner);
        return add_op(graph, "ab,bc->ac", left,
                      add_expression(graph, random, depth - 1, inner, columns), repeat);
    }
}

/* Without parameters there is no backward operator that another one could hold: every operator is
 * free in both solvers. */
START_TEST(with_every_operator_free_they_are_equal)
{
    xm_cluster_profile_t *profile;
    ap_cost_model_t *model = model_of("lab-2x4", &profile);
    xm_random_t random = {.state = 7};

    for (int round = 0; round < (getenv("TEST_FEW") != NULL ? 8 : 40); ++round) {
        ap_graph_t *graph;
        double stages, whole;

        ck_assert_xm_ok(ap_graph_create("free", &graph));
        ck_assert_xm_ok(ap_graph_set_loss(
            graph, add_expression(graph, &random, 1 + round % 4, 512, 1024), true));
        ck_assert_xm_ok(ap_graph_finish(graph));
        stages = by_stages(model, graph, 2, 4);
        whole = by_graph(model, graph, 2, 4, false);
        ck_assert_double_eq_tol(stages, whole, 1e-6 * whole);
        ap_graph_destroy(graph);
    }
    ap_cost_model_destroy(model);
    xm_cluster_profile_destroy(profile);
}
END_TEST

enum { OPS = 5 /* norm, q, k, v, attention */ };

/* The best choice of a block by trying all of them: what the norm makes is brought into one more
 * spec at most, and q, k and v each take the cheaper one. */
typedef struct trial {
    const ap_graph_t *graph;
    const ap_cost_mesh_t *mesh;
    ap_strategy_list_t list[OPS];
    double *price[OPS];
    const ap_strategy_t *chosen[OPS];
    double best;
} trial_t;

static double move(const trial_t *t, int tensor, ap_spec_t from, ap_spec_t to)
{
    return ap_cost_reshard(t->mesh, &ap_graph_tensor(t->graph, tensor)->shape,
                           ap_graph_tensor_bytes(t->graph, tensor), from, to, NULL, NULL);
}

static double moves(const trial_t *t)
{
    int shared = ap_graph_op(t->graph, 0)->results[0];
    ap_spec_t made = t->chosen[0]->spec[1];
    double best = HUGE_VAL, rest = 0;

    for (int c = 0; c < 3; ++c) {
        /* Whole, or cut by the second axis; the first has one device. */
        ap_spec_t copy = c == 2 ? AP_SPEC_REPLICATED : ap_spec_with(AP_SPEC_REPLICATED, c, 1U << 1);
        double sum = move(t, shared, made, copy);

        for (int o = 1; o <= 3; ++o) {
            sum += fmin(move(t, shared, made, t->chosen[o]->spec[0]),
                        move(t, shared, copy, t->chosen[o]->spec[0]));
        }
        best = fmin(best, sum);
    }
    for (int o = 1; o <= 3; ++o) {
        rest += move(t, ap_graph_op(t->graph, o)->results[0], t->chosen[o]->spec[2],
                     t->chosen[4]->spec[o - 1]);
    }
    return best + rest;
}

static void try_all(trial_t *t, int op, double sum)
{
    if (op == OPS) {
        t->best = fmin(t->best, sum + moves(t));
        return;
    }
    for (int s = 0; s < t->list[op].count; ++s) {
        t->chosen[op] = &t->list[op].items[s];
        try_all(t, op + 1, sum + t->price[op][s]);
    }
}

static double by_trial(const ap_cost_model_t *model, const ap_graph_t *graph, int devices)
{
    const ap_strategy_options_t options = {.scatter = true};
    const int shape[] = {1, devices};
    trial_t t = {.graph = graph, .best = HUGE_VAL};
    ap_cost_mesh_t *mesh;

    ck_assert_xm_ok(ap_cost_mesh_create(model, 1, devices, shape, 2, &mesh));
    t.mesh = mesh;
    for (int o = 0; o < OPS; ++o) {
        ap_priced_op_t op = ap_price_op(graph, mesh, o, 0);

        ck_assert_xm_ok(ap_strategy_enumerate(&op.site, &options, &t.list[o]));
        t.price[o] = calloc((size_t)t.list[o].count, sizeof(double));
        for (int s = 0; s < t.list[o].count; ++s) {
            double rare;

            ap_price_strategy(&op, &t.list[o].items[s], &t.price[o][s], &rare);
        }
    }
    try_all(&t, 0, 0);
    for (int o = 0; o < OPS; ++o) {
        ap_strategy_list_free(&t.list[o]);
        free(t.price[o]);
    }
    ap_cost_mesh_destroy(mesh);
    return t.best;
}

/* A decoder's attention with `heads` columns of q and fewer of k and v, the norm before it and what
 * mixes the rows. */
static ap_graph_t *make_block(int64_t rows, int64_t width, int64_t heads, int64_t groups)
{
    const int64_t columns[] = {heads, groups, groups};
    ap_op_params_t op = AP_OP_PARAMS_INIT;
    int made[3], part[3];
    ap_graph_t *graph;

    ck_assert_xm_ok(ap_graph_create("block", &graph));
    op.kind = AP_OP_CUSTOM;
    op.name = "norm";
    op.rule = "ab->ab";
    op.replicated = "b";
    op.operand_count = 1;
    op.operands = (const int[]){add_input(graph, rows, width)};
    op.flops_per_point = 4;
    op.result_dtype = AP_DTYPE_F32;
    ck_assert_xm_ok(ap_graph_add_op(graph, &op, made));
    for (int i = 0; i < 3; ++i) {
        part[i] = add_op(graph, "ab,bc->ac", made[0], add_input(graph, width, columns[i]), 1);
    }
    op.name = "attention";
    op.rule = "ab,ac,ac->ab";
    op.replicated = "a";
    op.operand_count = 3;
    op.operands = part;
    op.flops_per_point = 100;
    ck_assert_xm_ok(ap_graph_add_op(graph, &op, made));
    ck_assert_xm_ok(ap_graph_set_loss(graph, made[0], true));
    ck_assert_xm_ok(ap_graph_finish(graph));
    return graph;
}

/* k, v and q share one gather of their input, in both solvers and by trying everything. */
START_TEST(a_shared_gather_is_charged_once)
{
    xm_cluster_profile_t *profile;
    ap_cost_model_t *model = model_of("p3-16xlarge-8x8", &profile);

    for (int size = 0; size < (getenv("TEST_FEW") != NULL ? 1 : 6); ++size) {
        ap_graph_t *graph = make_block(256 << size, 1024, 4096 >> size % 2, 512);
        double best = by_trial(model, graph, 8);

        ck_assert_double_eq_tol(by_graph(model, graph, 1, 8, false), best, 1e-6 * best);
        ck_assert_double_eq_tol(by_stages(model, graph, 1, 8), best, 1e-6 * best);
        ap_graph_destroy(graph);
    }
    ap_cost_model_destroy(model);
    xm_cluster_profile_destroy(profile);
}
END_TEST

/* x, its sum, that by a factor, and with the sum of the squares the loss; the first sum may have a
 * second reader, or one whose derivative reads it. */
static ap_graph_t *make_loss(bool second, bool linear, int *ops)
{
    ap_op_params_t op = AP_OP_PARAMS_INIT;
    int made[1], of[2];
    ap_graph_t *graph;

    ck_assert_xm_ok(ap_graph_create("loss", &graph));
    of[0] = add_input(graph, 8, 4);
    op.kind = AP_OP_REDUCE;
    op.rule = "ab->";
    op.operand_count = 1;
    op.operands = of;
    op.flops_per_point = 1;
    op.result_dtype = AP_DTYPE_F32;
    for (int i = 0; i < 2; ++i) {
        op.name = i == 0 ? "sum" : "squares";
        ck_assert_xm_ok(ap_graph_add_op(graph, &op, made));
        ops[i] = made[0];
    }
    op.kind = AP_OP_ELEMENTWISE;
    op.linear = linear;
    op.name = "scaled";
    op.rule = "->";
    op.operands = &ops[0];
    ck_assert_xm_ok(ap_graph_add_op(graph, &op, made));
    of[0] = made[0];
    of[1] = second ? ops[0] : ops[1];
    op.linear = true;
    op.name = "loss";
    op.rule = ",->";
    op.operand_count = 2;
    op.operands = of;
    ck_assert_xm_ok(ap_graph_add_op(graph, &op, made));
    ck_assert_xm_ok(ap_graph_set_loss(graph, made[0], false));
    ck_assert_xm_ok(ap_graph_finish(graph));
    for (int i = 0; i < 2; ++i) {
        ops[i] = ap_graph_tensor(graph, ops[i])->producer;
    }
    return graph;
}

START_TEST(parts_of_the_loss_are_summed_once)
{
    static const struct {
        bool second, linear, once[2];
    } cases[] = {{false, true, {true, true}},
                 {true, true, {false, false}}, /* nobody reads the squares */
                 {false, false, {false, true}}};

    for (size_t c = 0; c < sizeof(cases) / sizeof(*cases); ++c) {
        int ops[2];
        ap_graph_t *graph = make_loss(cases[c].second, cases[c].linear, ops);

        for (int i = 0; i < 2; ++i) {
            ck_assert_int_eq(ap_price_is_once(graph, ap_graph_op(graph, ops[i]), 1),
                             cases[c].once[i]);
            ck_assert(!ap_price_is_once(graph, ap_graph_op(graph, ops[i]), 0));
        }
        ap_graph_destroy(graph);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("one_price");
    TCase *all = tcase_create("all");

    tcase_set_timeout(all, 120);
    tcase_add_loop_test(all, stages_and_graphs_agree, 0,
                        getenv("TEST_FEW") != NULL ? 2 : (int)(sizeof(models) / sizeof(*models)));
    tcase_add_test(all, a_shared_gather_is_charged_once);
    tcase_add_test(all, parts_of_the_loss_are_summed_once);
    tcase_add_test(all, with_every_operator_free_they_are_equal);
    suite_add_tcase(suite, all);
    return xm_test_run(suite);
}
