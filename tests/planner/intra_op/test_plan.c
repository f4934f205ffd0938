/* SPDX-License-Identifier: Apache-2.0 */
/* Plans for whole graphs: known optima, memory over time, ZeRO and recomputation as answers. */
#include "tests/planner/cost/profile_fixture.h"
#include "tests/planner/intra_op/tables_fixture.h"

#include <math.h>
#include <stdio.h>

#include "planner/frontend/zoo.h"
#include "planner/intra_op/network.h"
#include "planner/intra_op/plan.h"
#include "planner/passes/training.h"
#include "tests/planner/solver/cbc.h"

typedef struct fixture {
    xm_cluster_profile_t *profile;
    ap_cost_model_t *model;
    ap_cost_mesh_t *mesh;
    ap_graph_t *forward, *training;
    ap_shard_params_t params;
    ap_shard_problem_t *problem;
    ap_shard_options_t options;
    ap_shard_plan_t *plan;
    const ap_shard_result_t *result;
} fixture_t;

typedef struct setting {
    const char *model;
    int batch, hidden, layers;
    int rank, shape[AP_MAX_MESH_RANK];
    bool alpa, uneven;
    double beta[AP_MAX_MESH_RANK];
    bool data_parallel;
    int micro_batches;
    ap_optimizer_t optimizer;
} setting_t;

static void set_up(fixture_t *f, const setting_t *s)
{
    ap_zoo_params_t zoo = AP_ZOO_PARAMS_INIT;
    ap_alpa_params_t alpa = AP_ALPA_PARAMS_INIT;
    int devices = 1;

    memset(f, 0, sizeof(*f));
    for (int a = 0; a < s->rank; ++a) {
        devices *= s->shape[a];
        alpa.beta[a] = s->beta[a];
    }
    alpa.force_data_parallel = s->data_parallel;
    zoo.batch = s->batch;
    zoo.hidden = s->hidden;
    zoo.layers = s->layers;
    f->profile = fixture_profile();
    ck_assert_xm_ok(s->alpa ? ap_cost_model_create_alpa(&alpa, &f->model)
                            : ap_cost_model_create_profile(f->profile, &f->model));
    ck_assert_xm_ok(ap_cost_mesh_create(f->model, devices > 4 ? 2 : 1,
                                        devices > 4 ? devices / 2 : devices, s->shape, s->rank,
                                        &f->mesh));
    if (s->uneven) {
        ap_cost_mesh_allow_uneven(f->mesh);
    }
    ck_assert_xm_ok(ap_zoo_create(s->model, &zoo, &f->forward));
    ck_assert_xm_ok(ap_training_expand(f->forward, s->optimizer, &f->training));
    f->params = (ap_shard_params_t)AP_SHARD_PARAMS_INIT;
    f->params.graph = f->training;
    f->params.mesh = f->mesh;
    f->params.micro_batches = s->micro_batches;
    for (int t = 0; t < ap_graph_tensors(f->training); ++t) {
        if (ap_graph_tensor(f->training, t)->kind == AP_TENSOR_PARAMETER) {
            f->params.state_bytes =
                ap_training_state_bytes(s->optimizer, ap_graph_tensor(f->training, t)->dtype);
        }
    }
    f->options = (ap_shard_options_t)AP_SHARD_OPTIONS_INIT;
    f->options.seconds = 20;
    ck_assert_xm_ok(ap_shard_problem_create(&f->params, &f->problem));
}

static void solve(fixture_t *f)
{
    ap_shard_plan_destroy(f->plan);
    ck_assert_xm_ok(ap_shard_solve(f->problem, &f->options, &f->plan));
    f->result = ap_shard_plan_result(f->plan);
    ck_assert_double_le(f->result->bound, f->result->objective * (1 + 1e-9));
    if (f->options.memory_limit > 0) {
        ck_assert_double_le(f->result->peak, f->options.memory_limit);
    }
}

static void tear_down(fixture_t *f)
{
    ap_shard_plan_destroy(f->plan);
    ap_shard_problem_destroy(f->problem);
    ap_graph_destroy(f->training);
    ap_graph_destroy(f->forward);
    ap_cost_mesh_destroy(f->mesh);
    ap_cost_model_destroy(f->model);
    xm_cluster_profile_destroy(f->profile);
}

static ap_spec_t spec_of(const fixture_t *f, int tensor)
{
    return ap_shard_problem_spec(f->problem, ap_shard_plan_strategies(f->plan), tensor);
}

static double local_bytes(const fixture_t *f, int tensor)
{
    return ap_cost_mesh_local_bytes(f->mesh, &ap_graph_tensor(f->training, tensor)->shape,
                                    ap_graph_tensor_bytes(f->training, tensor), spec_of(f, tensor));
}

/* Parameters of one kind of ZeRO's. */
static int count_stage(const fixture_t *f, int stage)
{
    int count = 0;

    for (int t = 0; t < ap_graph_tensors(f->training); ++t) {
        count +=
            ap_shard_problem_zero_stage(f->problem, ap_shard_plan_strategies(f->plan), t) == stage;
    }
    return count;
}

static const struct {
    setting_t setting;
    double printed; /* by Alpa's solver */
} goldens[] = {
    {{"mlp2", 1024, 128, 0, 2, {4, 1}, true, false, {1, 1}, false, 0, 0}, 196614.02},
    {{"mlp2", 128, 1024, 0, 2, {1, 4}, true, false, {1, 1}, false, 0, 0}, 786437.00},
    {{"mlp12", 1024, 128, 0, 2, {4, 1}, true, false, {1, 1}, false, 0, 0}, 1179684.09},
    {{"mlp2", 1024, 128, 0, 2, {4, 8}, true, false, {1, 0.01}, false, 0, 0}, 26872.03},
    {{"mlp2", 128, 1024, 0, 2, {4, 1}, true, false, {1, 1}, true, 0, 0}, 12582918.00},
    {{"mlp2", 1024, 128, 0, 1, {4}, true, false, {1}, false, 0, 0}, 196614.02},
};

START_TEST(objectives_are_alpas)
{
    ap_intra_op_result_t eliminated;
    fixture_t f;

    set_up(&f, &goldens[_i].setting);
    solve(&f);
    ck_assert_double_eq_tol(f.result->objective, goldens[_i].printed, 1e-4 * goldens[_i].printed);
    ck_assert(f.result->optimal);
    ck_assert_double_eq_tol(f.result->objective, f.result->bound, 1e-6 * goldens[_i].printed);
    free(tables_solve(f.problem, &eliminated));
    ck_assert_double_eq_tol(eliminated.objective, goldens[_i].printed, 1e-4 * goldens[_i].printed);
    f.options.memory_limit = 1000e6;
    solve(&f);
    ck_assert_double_eq_tol(f.result->objective, goldens[_i].printed, 1e-4 * goldens[_i].printed);
    tear_down(&f);
}
END_TEST

static const setting_t block = {"gpt-125m", 4,     0,   1,     2, {2, 2},
                                false,      false, {0}, false, 4, AP_OPTIMIZER_ADAM};

/* Elimination, which prices every reader's resharding on its own, finds nothing cheaper than the
 * network does, where readers of one tensor share one: the difference is what query, key and value
 * share of their input. A limit that is no limit changes nothing. */
START_TEST(elimination_agrees)
{
    ap_intra_op_result_t eliminated;
    double free_objective, limit;
    fixture_t f;

    set_up(&f, &block);
    solve(&f);
    free_objective = f.result->objective;
    limit = f.result->peak;
    free(tables_solve(f.problem, &eliminated));
    ck_assert_double_le(free_objective, eliminated.objective * (1 + 1e-6));
    ck_assert_double_ge(free_objective, eliminated.objective * (1 - 0.005));
    f.options.memory_limit = limit; /* it fits already: nothing changes */
    solve(&f);
    ck_assert_double_le(f.result->objective, free_objective * (1 + 1e-6));
    tear_down(&f);
}
END_TEST

/* The optimum of the problem's network by CBC, in the cost model's unit. */
static double objective_of_cbc(const fixture_t *f, bool limited)
{
    ap_shard_network_t *network;
    ap_cfn_result_t result;
    double objective;
    int *choice;

    ck_assert_xm_ok(ap_shard_network_create(f->problem, &f->options, limited, &network));
    choice = calloc(network->cfn->nodes + 1, sizeof(*choice));
    ck_assert_ptr_nonnull(choice);
    ck_assert_xm_ok(ap_cfn_cbc_solve(network->cfn, f->options.seconds, choice, &result));
    ck_assert(result.optimal);
    objective = ap_shard_network_cost(network, choice);
    free(choice);
    ap_shard_network_destroy(network);
    return objective;
}

/* CBC finds the same optimum, without a limit and with one. */
START_TEST(cbc_agrees)
{
    static const setting_t setting = {"mlp3", 1024,  512, 0,     1, {4},
                                      false,  false, {0}, false, 4, AP_OPTIMIZER_ADAM};
    bool have_cbc = system("command -v cbc > /dev/null 2>&1") == 0;
    fixture_t f;

    set_up(&f, &setting);
    f.options.every_layer = true;
    for (int round = 0; round < 2 && have_cbc; ++round) {
        double theirs;

        solve(&f);
        ck_assert(f.result->optimal);
        ck_assert_double_le(f.result->bound, f.result->objective * (1 + 1e-9));
        theirs = objective_of_cbc(&f, round > 0);
        ck_assert_double_eq_tol(f.result->objective, theirs, 1e-6 * theirs);
        f.options.memory_limit = 0.85 * f.result->peak;
    }
    tear_down(&f);
}
END_TEST

/* Memory at every operator against a count of the tensors that are live then. */
START_TEST(memory_is_what_live_ranges)
{
    fixture_t f;
    int ops, compared = 0;

    set_up(&f, &block);
    solve(&f);
    ops = ap_graph_ops(f.training);
    for (int o = 0; o < ops; ++o) {
        ap_shard_memory_t expected = {{0}};
        const ap_shard_memory_t *found = ap_shard_plan_memory(f.plan, o);

        for (int t = 0; t < ap_graph_tensors(f.training); ++t) {
            const ap_tensor_t *tensor = ap_graph_tensor(f.training, t);
            int last = tensor->producer, of = tensor->gradient_of;
            bool gradient = of >= 0 && ap_graph_tensor(f.training, of)->kind == AP_TENSOR_PARAMETER;

            for (int u = 0; u < ops; ++u) {
                const ap_op_t *op = ap_graph_op(f.training, u);

                for (int i = 0; i < op->operand_count; ++i) {
                    last = op->operands[i] == t && u > last ? u : last;
                }
            }
            if (tensor->alias_of >= 0) {
                double weight = ap_graph_tensor_bytes(f.training, t) / local_bytes(&f, t);

                expected.part[AP_SHARD_STATE] += f.params.state_bytes / weight *
                                                 ap_graph_tensor_bytes(f.training, t) /
                                                 ap_dtype_bytes(tensor->dtype);
            } else if (tensor->producer < 0) {
                expected.part[tensor->kind == AP_TENSOR_INPUT ? AP_SHARD_INPUTS
                                                              : AP_SHARD_PARAMETERS] +=
                    local_bytes(&f, t);
            } else if (!gradient &&
                       (last == tensor->producer || (tensor->producer <= o && o <= last))) {
                /* Nothing reads a result of the graph: it stays. */
                expected.part[AP_SHARD_ACTIVATIONS] +=
                    tensor->producer <= o ? local_bytes(&f, t) : 0;
            }
        }
        for (int part = 0; part < AP_SHARD_PARTS; ++part) {
            if (part != AP_SHARD_GRADIENTS && part != AP_SHARD_TEMPORARIES) {
                ck_assert_double_eq_tol(found->part[part], expected.part[part],
                                        1 + 1e-9 * expected.part[part]);
                ++compared;
            }
        }
        ck_assert_double_gt(found->part[AP_SHARD_GRADIENTS], 0);
    }
    ck_assert_int_eq(compared, 4 * ops);
    tear_down(&f);
}
END_TEST

static const setting_t small_mlp = {"mlp4", 8192,  512, 0,     1, {4},
                                    false,  false, {0}, false, 8, AP_OPTIMIZER_ADAM};

/* Plenty of memory: every weight whole on every device, the batch cut. Less of it: the optimizer's
 * state and the gradients in parts, which costs nothing here, then weights gathered for use. */
START_TEST(short_memory_is_answered_by_zero)
{
    double plenty, least;
    int gathered = 0;
    fixture_t f;

    set_up(&f, &small_mlp);
    solve(&f);
    plenty = f.result->peak;
    least = f.result->objective;
    for (int t = 0; t < ap_graph_tensors(f.training); ++t) {
        const ap_tensor_t *tensor = ap_graph_tensor(f.training, t);

        if (tensor->kind == AP_TENSOR_PARAMETER) {
            ck_assert_uint_eq(spec_of(&f, t), AP_SPEC_REPLICATED);
        } else if (tensor->producer >= 0 &&
                   ap_graph_op(f.training, tensor->producer)->phase == AP_PHASE_FORWARD) {
            ck_assert_uint_eq(ap_spec_axes(spec_of(&f, t), 0), 1);
        }
    }
    ck_assert_int_eq(count_stage(&f, 3), 0);
    for (int percent = 65; percent >= 55; percent -= 5) {
        int before = gathered;

        f.options.memory_limit = plenty * percent / 100;
        solve(&f);
        gathered = count_stage(&f, 3);
        ck_assert_int_ge(count_stage(&f, 1) + count_stage(&f, 2) + gathered, 4);
        ck_assert_int_ge(gathered, before);
        ck_assert_double_ge(f.result->objective, least * (1 - 1e-9));
        least = f.result->objective;
    }
    ck_assert_int_ge(gathered, 1);
    tear_down(&f);
}
END_TEST

/* Scattering after every micro-batch is bought only when memory is short. */
START_TEST(gradients_are_scattered_late_when_there_is_room)
{
    double roomy, tight;
    fixture_t f;

    set_up(&f, &small_mlp);
    solve(&f);
    roomy = ap_shard_plan_memory(f.plan, f.result->peak_op)->part[AP_SHARD_GRADIENTS];
    f.options.memory_limit = 0.55 * f.result->peak;
    solve(&f);
    tight = ap_shard_plan_memory(f.plan, f.result->peak_op)->part[AP_SHARD_GRADIENTS];
    ck_assert_double_gt(roomy, 2 * tight);
    tear_down(&f);
}
END_TEST

static const setting_t deep_mlp = {"mlp12", 8192,  512, 0,     1, {4},
                                   false,   false, {0}, false, 8, AP_OPTIMIZER_ADAM};

/* Below what all kept activations need, only plans that run operators twice are left. */
START_TEST(a_limit_forces_recomputation)
{
    const double limit = 70 << 20;
    ap_shard_plan_t *none;
    double objective;
    fixture_t f;

    set_up(&f, &deep_mlp);
    solve(&f);
    ck_assert_double_gt(f.result->peak, limit);
    ck_assert_int_eq(f.result->recomputed, 0);
    objective = f.result->objective;
    f.options.memory_limit = limit;
    ck_assert_int_eq(ap_shard_solve(f.problem, &f.options, &none), XM_ERR_NO_SOLUTION);
    ck_assert_ptr_nonnull(strstr(xm_last_error(), "70.00 MiB"));
    f.options.recompute = true;
    solve(&f);
    ck_assert_int_gt(f.result->recomputed, 2);
    ck_assert_double_gt(f.result->objective, objective);
    for (int o = 0; o < ap_graph_ops(f.training); ++o) {
        const ap_op_t *op = ap_graph_op(f.training, o);

        if (ap_shard_plan_recomputes(f.plan, o)) {
            ck_assert_int_eq(op->phase, AP_PHASE_FORWARD);
        }
    }
    /* And not where there is room. */
    f.options.memory_limit = 200 << 20;
    solve(&f);
    ck_assert_int_eq(f.result->recomputed, 0);
    tear_down(&f);
}
END_TEST

/* With hardly any time there is a plan, under every limit above one that has one. */
START_TEST(more_memory_never_loses_the_plan)
{
    static const char *const models[] = {"gpt-125m", "moe-380m", "wresnet-250m"};
    setting_t s = {.model = models[_i],
                   .batch = 8,
                   .shape = {2, 4},
                   .rank = 2,
                   .uneven = true,
                   .optimizer = AP_OPTIMIZER_ADAM};
    bool found = false;
    fixture_t f;

    set_up(&f, &s);
    f.options.seconds = 0.1;
    f.options.recompute = true;
    solve(&f);
    f.options.memory_limit = 0.3 * f.result->peak;
    for (int i = 0; i < 10; ++i, f.options.memory_limit *= 1.15) {
        ap_shard_plan_t *plan = NULL;
        xm_status_t status;

        if (getenv("TEST_FEW") != NULL && i % 3 != 0) {
            continue;
        }
        status = ap_shard_solve(f.problem, &f.options, &plan);
        ck_assert(status == XM_OK || !found);
        ck_assert(status == XM_OK || status == XM_ERR_TIMEOUT || status == XM_ERR_NO_SOLUTION);
        found = status == XM_OK;
        if (found) {
            ck_assert_double_le(ap_shard_plan_result(plan)->peak, f.options.memory_limit);
        }
        ap_shard_plan_destroy(plan);
    }
    ck_assert(found);
    tear_down(&f);
}
END_TEST

/* Twelve layers as one problem of one layer: the cost is that of every layer for itself. */
START_TEST(layers_alike_are_solved_once)
{
    static const setting_t setting = {"gpt-125m", 4,     0,   12,    2, {2, 2},
                                      false,      false, {0}, false, 4, AP_OPTIMIZER_ADAM};
    fixture_t f;
    int nodes;

    set_up(&f, &setting);
    f.options.seconds = 60;
    solve(&f);
    nodes = ap_shard_problem_nodes(f.problem);
    ck_assert_int_eq(f.result->variables + f.result->alike, nodes);
    ck_assert_int_lt(f.result->variables, nodes / 5);
    ck_assert(f.result->optimal);
    tear_down(&f);
}
END_TEST

/* Three and four axes, and dimensions that no axis divides. */
START_TEST(any_mesh_will_do)
{
    static const setting_t settings[] = {
        {"mlp3", 96, 64, 0, 3, {2, 2, 2}, false, false, {0}, false, 2, AP_OPTIMIZER_ADAM},
        {"mlp3", 101, 67, 0, 1, {4}, false, true, {0}, false, 2, AP_OPTIMIZER_ADAM},
        {"mlp3", 101, 67, 0, 2, {2, 2}, false, true, {0}, false, 2, AP_OPTIMIZER_ADAM},
        {"mlp3", 4099, 1031, 0, 3, {2, 2, 2}, false, true, {0}, false, 2, AP_OPTIMIZER_ADAM},
        {"mlp3", 96, 64, 0, 4, {1, 2, 2, 2}, false, false, {0}, false, 2, AP_OPTIMIZER_ADAM},
    };
    double even;
    fixture_t f;

    set_up(&f, &settings[_i]);
    solve(&f);
    ck_assert(f.result->optimal);
    if (settings[_i].uneven) {
        setting_t rigid = settings[_i];
        fixture_t g;

        rigid.uneven = false;
        set_up(&g, &rigid);
        solve(&g);
        even = g.result->objective;
        /* Nothing divides: every device does all the work, or, padded, its part of it. */
        ck_assert_double_le(f.result->objective, even * (1 + 1e-9));
        if (_i == 3) {
            ck_assert_double_lt(f.result->objective, 0.5 * even);
        }
        tear_down(&g);
    }
    tear_down(&f);
}
END_TEST

/* What an input costs at least when its only reader has strategy `use` of tables[node]. */
static double cheapest(const ap_intra_op_edge_t *edge, const double *costs, int count, int uses,
                       int use)
{
    double best = HUGE_VAL;

    for (int s = 0; s < count; ++s) {
        best = fmin(best, costs[s] + edge->costs[s * uses + use]);
    }
    return best;
}

/* A product on 2 x 2 x 2 x 2 devices, of which every choice is tried: of the product, and for each
 * of the one input and the one weight. The axes' prices differ, so none can stand for another. */
START_TEST(four_axes_agree_with_all_choices)
{
    static const ap_shape_t rows = {2, {2, 64}}, weights = {2, {64, 2}};
    static const int shape[] = {2, 2, 2, 2};
    ap_alpa_params_t alpa = {sizeof(alpa), {1, 2, 3, 5}, {1, 0.5, 0.2, 0.1}, 2, false};
    ap_op_params_t product = AP_OP_PARAMS_INIT;
    double best = HUGE_VAL;
    fixture_t f = {.params = AP_SHARD_PARAMS_INIT, .options = AP_SHARD_OPTIONS_INIT};
    tables_t t;
    int x, w, y;

    ck_assert_xm_ok(ap_cost_model_create_alpa(&alpa, &f.model));
    ck_assert_xm_ok(ap_cost_mesh_create(f.model, 1, 16, shape, 4, &f.mesh));
    ck_assert_xm_ok(ap_graph_create("product", &f.training));
    ck_assert_xm_ok(ap_graph_add_tensor(f.training, "x", AP_TENSOR_INPUT, &rows, AP_DTYPE_F32, &x));
    ck_assert_xm_ok(
        ap_graph_add_tensor(f.training, "w", AP_TENSOR_PARAMETER, &weights, AP_DTYPE_F32, &w));
    product.name = "y";
    product.rule = "bk,kn->bn";
    product.operand_count = 2;
    product.operands = (const int[]){x, w};
    ck_assert_xm_ok(ap_graph_add_op(f.training, &product, &y));
    ck_assert_xm_ok(ap_graph_finish(f.training));
    f.params.graph = f.training;
    f.params.mesh = f.mesh;
    ck_assert_xm_ok(ap_shard_problem_create(&f.params, &f.problem));
    solve(&f);
    ck_assert(f.result->optimal);

    tables_open(f.problem, &t);
    ck_assert_int_eq(t.problem.edges, 2);
    ck_assert_int_eq(t.problem.edge[0].b, t.problem.edge[1].b);
    for (int s = 0, node = t.problem.edge[0].b; s < t.counts[node]; ++s) {
        double cost = t.costs[node][s];

        for (int e = 0; e < 2; ++e) {
            int from = t.problem.edge[e].a;

            cost += cheapest(&t.problem.edge[e], t.costs[from], t.counts[from], t.counts[node], s);
        }
        best = fmin(best, cost);
    }
    ck_assert_int_eq(t.counts[t.problem.edge[0].a], 48);
    ck_assert_double_gt(best, 0);
    ck_assert_double_eq_tol(f.result->objective, best, 1e-9 * best);
    tables_close(&t);
    tear_down(&f);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("shard_plan");
    TCase *tcase = tcase_create("all");

    tcase_set_timeout(tcase, 180);
    tcase_add_loop_test(tcase, objectives_are_alpas, 0,
                        (int)(sizeof(goldens) / sizeof(goldens[0])));
    tcase_add_test(tcase, elimination_agrees);
    tcase_add_test(tcase, cbc_agrees);
    tcase_add_test(tcase, memory_is_what_live_ranges);
    tcase_add_test(tcase, short_memory_is_answered_by_zero);
    tcase_add_test(tcase, gradients_are_scattered_late_when_there_is_room);
    tcase_add_test(tcase, a_limit_forces_recomputation);
    tcase_add_test(tcase, layers_alike_are_solved_once);
    tcase_add_loop_test(tcase, more_memory_never_loses_the_plan, 0, 3);
    tcase_add_loop_test(tcase, any_mesh_will_do, 0, 5);
    tcase_add_test(tcase, four_axes_agree_with_all_choices);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
