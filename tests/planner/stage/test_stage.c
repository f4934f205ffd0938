/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/planner/cost/profile_fixture.h"

#include <math.h>
#include <stdio.h>
#include <time.h>

#include "planner/frontend/zoo.h"
#include "planner/stage/layer_problem.h"
#include "planner/stage/stage.h"

typedef struct fixture {
    xm_cluster_profile_t *profile;
    ap_cost_model_t *model;
    ap_graph_t *graph;
    ap_stage_context_t *context;
} fixture_t;

static void set_up_on(fixture_t *f, xm_cluster_profile_t *profile, const char *name, int layers,
                      bool rematerialize)
{
    ap_zoo_params_t zoo = AP_ZOO_PARAMS_INIT;
    ap_stage_context_params_t params = AP_STAGE_CONTEXT_PARAMS_INIT;

    zoo.batch = 4;
    zoo.layers = layers;
    f->profile = profile;
    ck_assert_xm_ok(ap_cost_model_create_profile(f->profile, &f->model));
    ck_assert_xm_ok(ap_zoo_create(name, &zoo, &f->graph));
    params.graph = f->graph;
    params.cost = f->model;
    params.micro_batches = 16;
    params.rematerialize = rematerialize;
    ck_assert_xm_ok(ap_stage_context_create(&params, &f->context));
}

static void set_up(fixture_t *f, const char *name, int layers, bool rematerialize)
{
    set_up_on(f, fixture_profile(), name, layers, rematerialize);
}

static void tear_down(fixture_t *f)
{
    ap_stage_context_destroy(f->context);
    ap_graph_destroy(f->graph);
    ap_cost_model_destroy(f->model);
    xm_cluster_profile_destroy(f->profile);
}

static ap_stage_query_t query(int first, int last, int hosts, int devices, int d0, int d1)
{
    ap_stage_query_t q = AP_STAGE_QUERY_INIT;

    q.first = first;
    q.last = last;
    q.hosts = hosts;
    q.devices = devices;
    q.shape[0] = d0;
    q.shape[1] = d1;
    return q;
}

static ap_stage_cost_t evaluate(fixture_t *f, const ap_stage_query_t *q)
{
    ap_stage_cost_t cost;

    ck_assert_xm_ok(ap_stage_evaluate(f->context, q, &cost));
    return cost;
}

/* Weighted cost of one assignment of strategies to the nodes of a layer, by definition. */
static double assignment_cost(const ap_layer_problem_t *p, const ap_layer_weights_t *w,
                              const int *strategies, int in, int out)
{
    double cost = ap_parts_cost(&p->in_parts[in], w);

    for (int n = 0; n < p->nodes; ++n) {
        ap_parts_t parts = ap_layer_strategy_parts(&p->node[n], strategies[n], w);

        cost += ap_parts_cost(&parts, w);
    }
    for (int e = 0; e < p->edges; ++e) {
        const ap_layer_edge_t *edge = &p->edge[e];
        int from = edge->from == AP_IN ? in : p->node[edge->from].class_of[strategies[edge->from]];
        int to = edge->to == AP_OUT ? out : p->node[edge->to].class_of[strategies[edge->to]];
        ap_parts_t parts = ap_layer_edge_parts(edge, from, to);

        cost += ap_parts_cost(&parts, w);
    }
    return cost;
}

/* The table of the last mlp layer (two nodes) against every assignment. */
START_TEST(layer_tables_meet_brute_force)
{
    const ap_layer_weights_t weights = {
        .forward = 1, .per_iteration = 0.25, .stage_byte = _i * 1e-9, .act_byte = _i * 2e-9};
    const int shape[] = {2, 2};
    ap_graph_t *training;
    ap_cost_mesh_t *mesh;
    ap_reshard_memo_t *memo;
    ap_layer_problem_t *p;
    ap_layer_table_t *table;
    xm_arena_t arena = {0};
    fixture_t f;

    set_up(&f, "mlp3", 0, false);
    ck_assert_xm_ok(ap_training_expand(f.graph, AP_OPTIMIZER_ADAM, &training));
    ck_assert_xm_ok(ap_cost_mesh_create(f.model, 1, 4, shape, 2, &mesh));
    ck_assert_xm_ok(ap_reshard_memo_create(mesh, &memo));
    for (int layer = 1; layer < 3; ++layer) {
        ck_assert_xm_ok(ap_layer_problem_create(training, layer, -1, mesh, memo, AP_OPTIMIZER_ADAM,
                                                false, NULL, &arena, &p));
        ck_assert_xm_ok(ap_layer_problem_solve(p, &weights, &table));
        for (int c = 0; c < p->in_count * p->out_count; ++c) {
            int in = c / p->out_count, out = c % p->out_count, s[2] = {0, 0}, traced[2];
            int second = p->nodes > 1 ? p->node[1].strategies.count : 1;
            double best = HUGE_VAL;

            for (s[0] = 0; s[0] < p->node[0].strategies.count; ++s[0]) {
                for (s[1] = 0; s[1] < second; ++s[1]) {
                    best = fmin(best, assignment_cost(p, &weights, s, in, out));
                }
            }
            ck_assert_double_eq_tol(table->cost[c], best, 1e-12 + 1e-9 * best);
            ck_assert_double_eq_tol(ap_parts_cost(&table->parts[c], &weights), best,
                                    1e-12 + 1e-9 * best);
            ck_assert_xm_ok(ap_layer_problem_trace(p, &weights, in, out, traced));
            ck_assert_double_eq_tol(assignment_cost(p, &weights, traced, in, out), best,
                                    1e-12 + 1e-9 * best);
        }
        ap_layer_problem_release(p);
    }
    xm_arena_clear(&arena);
    ap_reshard_memo_destroy(memo);
    ap_cost_mesh_destroy(mesh);
    ap_graph_destroy(training);
    tear_down(&f);
}
END_TEST

/* A range is the best way to join two ranges over the spec between them. */
START_TEST(ranges_join_over_their_boundary)
{
    fixture_t f;
    ap_stage_query_t whole = query(0, 5, 2, 4, 2, 4);
    double best = HUGE_VAL;
    ap_spec_t specs[AP_MAX_SPECS];
    const int shape[] = {2, 4};
    ap_cost_mesh_t *mesh;
    int count, boundary;

    set_up(&f, "gpt-350m", 4, false);
    ck_assert_xm_ok(ap_cost_mesh_create(f.model, 2, 4, shape, 2, &mesh));
    boundary = ap_graph_boundary(f.graph, 2);
    count = ap_specs_enumerate(mesh, &ap_graph_tensor(f.graph, boundary)->shape, specs);
    for (int s = 0; s < count; ++s) {
        ap_stage_query_t left = query(0, 2, 2, 4, 2, 4), right = query(3, 5, 2, 4, 2, 4);
        ap_stage_cost_t l, r;

        left.fix_output = right.fix_input = true;
        left.output = right.input = specs[s];
        l = evaluate(&f, &left);
        r = evaluate(&f, &right);
        ck_assert_uint_eq(l.output, specs[s]);
        ck_assert_uint_eq(r.input, specs[s]);
        ck_assert_int_eq(l.output_tensor, boundary);
        ck_assert_int_eq(r.input_tensor, boundary);
        best = fmin(best, ap_stage_objective(&l, 16) + ap_stage_objective(&r, 16));
    }
    {
        ap_stage_cost_t w = evaluate(&f, &whole);

        ck_assert_double_eq_tol(ap_stage_objective(&w, 16), best, 1e-9 * best);
        ck_assert_double_eq_tol(w.bound, best, 1e-9 * best);
        ck_assert_int_eq(w.input_tensor, -1);
        ck_assert_int_eq(w.output_tensor, -1);
    }
    ap_cost_mesh_destroy(mesh);
    tear_down(&f);
}
END_TEST

/* One device communicates nothing and computes the graph's FLOPs at least at device speed. */
START_TEST(one_device_is_a_roofline)
{
    fixture_t f;
    ap_stage_query_t q = query(0, 5, 1, 1, 1, 1);
    ap_stage_cost_t cost;
    double flops = 0;

    set_up(&f, "gpt-350m", 4, false);
    cost = evaluate(&f, &q);
    for (int layer = 0; layer < 6; ++layer) {
        flops += ap_graph_layer_flops(f.graph, layer);
    }
    ck_assert_double_eq_tol(cost.sync, 0, 1e-15);
    ck_assert_double_ge(cost.forward, flops / 1e13);
    ck_assert_double_le(cost.forward, 1.5 * flops / 1e13);
    ck_assert_double_ge(cost.backward, 1.9 * flops / 1e13);
    /* Adam in mixed precision: 16 bytes per parameter. */
    ck_assert_double_eq_tol(cost.mem_stage, 16 * ap_graph_parameters(f.graph), 1);
    tear_down(&f);
}
END_TEST

START_TEST(memory_limits_are_met_with_a_bound)
{
    fixture_t f;
    ap_stage_query_t q = query(1, 4, 2, 4, 2, 4);
    ap_stage_cost_t free_cost, previous;
    double memory;
    int refused = 0;

    set_up(&f, "gpt-1.3b", 4, _i == 1);
    q.in_flight = 2;
    free_cost = evaluate(&f, &q);
    memory = ap_stage_memory(&free_cost, 2);
    for (int percent = 99; percent >= 60; percent -= 3) {
        ap_stage_cost_t cost;
        xm_status_t status;

        q.memory_limit = memory * percent / 100;
        status = ap_stage_evaluate(f.context, &q, &cost);
        if (status != XM_OK) {
            ck_assert_int_eq(status, XM_ERR_NO_SOLUTION);
            break;
        }
        ck_assert_double_le(ap_stage_memory(&cost, 2), q.memory_limit);
        ck_assert_double_ge(ap_stage_objective(&cost, 16),
                            ap_stage_objective(&free_cost, 16) * (1 - 1e-12));
        ck_assert_double_le(cost.bound, ap_stage_objective(&cost, 16) * (1 + 1e-12));
        /* A plan is not looked for where none can be worth it; where one is, it is the same. */
        q.worth = ap_stage_objective(&cost, 16) * (1 + 1e-12);
        previous = evaluate(&f, &q);
        ck_assert_double_eq(ap_stage_objective(&previous, 16), ap_stage_objective(&cost, 16));
        q.worth = ap_stage_objective(&free_cost, 16) * (1 - 1e-6);
        status = ap_stage_evaluate(f.context, &q, &previous);
        refused += percent < 99 && status == XM_ERR_NO_SOLUTION;
        q.worth = 0.0;
        /* Bisection visits other prices at another limit, each of which gives a bound. */
        ck_assert_double_ge(cost.bound, free_cost.bound * (1 - 1e-12));
    }
    ck_assert_int_ge(refused, 1);
    q.memory_limit = 1e6;
    ck_assert_xm_fails(ap_stage_evaluate(f.context, &q, &previous), XM_ERR_NO_SOLUTION,
                       "layers 1 … 4 on 2 x 4 devices (logical 2 x 4) with 2 micro-batches");
    tear_down(&f);
}
END_TEST

START_TEST(rematerialization_trades_time_for_memory)
{
    fixture_t keep, again;
    ap_stage_query_t q = query(0, 5, 1, 4, 2, 2);
    ap_stage_cost_t kept, redone;

    set_up(&keep, "gpt-1.3b", 4, false);
    set_up(&again, "gpt-1.3b", 4, true);
    kept = evaluate(&keep, &q);
    redone = evaluate(&again, &q);
    ck_assert_double_lt(redone.mem_act, kept.mem_act / 10);
    ck_assert_double_gt(redone.backward, kept.backward);
    ck_assert_double_le(redone.forward + redone.backward, 1.4 * (kept.forward + kept.backward));
    tear_down(&keep);
    tear_down(&again);
}
END_TEST

START_TEST(a_solution_accounts_for_its_cost)
{
    fixture_t f;
    ap_stage_query_t q = query(1, 3, 2, 4, 2, 4);
    ap_stage_solution_t *solution;
    const ap_stage_cost_t *cost;
    double seconds = 0, sync = 0, memory = 0, act = 0;
    int last = -1;
    bool explained = false;
    int named[4] = {0}; /* per layer: texts that name a parameter */

    set_up(&f, "gpt-1.3b", 4, false);
    ck_assert_xm_ok(ap_stage_solve(f.context, &q, &solution));
    cost = ap_stage_solution_cost(solution);
    ck_assert_int_eq(ap_stage_solution_choices(solution), 3 * 17);
    for (int c = 0; c < ap_stage_solution_choices(solution); ++c) {
        const ap_stage_choice_t *choice = ap_stage_solution_choice(solution, c);
        const ap_op_t *op = ap_graph_op(f.graph, choice->op);

        ck_assert_int_gt(choice->op, last);
        last = choice->op;
        ck_assert_int_ge(op->layer, 1);
        ck_assert_int_le(op->layer, 3);
        ck_assert_str_eq(choice->rule, op->rule.text);
        seconds += choice->compute + choice->comm + choice->reshard;
        sync += choice->sync;
        memory += choice->memory;
        act += choice->act;
        /* The others kept, no other choice is better. */
        ck_assert_double_ge(choice->runner_up_extra, -1e-12);
        explained = explained || strstr(choice->why, "_host curve") != NULL;
        for (int layer = 1; layer <= 3; ++layer) {
            char block[16];

            (void)snprintf(block, sizeof(block), "block%d.", layer);
            if (strstr(choice->why, block) != NULL) {
                ck_assert_int_eq(op->layer, layer);
                ++named[layer];
            }
        }
    }
    ck_assert(explained);
    ck_assert_int_gt(named[3], 0);
    ck_assert_int_eq(named[1], named[3]);
    /* What is not an operator's: gradient sums and reshards at the boundaries. */
    ck_assert_double_le(seconds, (cost->forward + cost->backward) * (1 + 1e-9));
    ck_assert_double_ge(seconds, 0.98 * (cost->forward + cost->backward));
    ck_assert_double_eq_tol(sync, cost->sync, 1e-9 * sync);
    ck_assert_double_eq_tol(memory, cost->mem_stage, 1e-9 * memory);
    ck_assert_double_eq_tol(act, cost->mem_act, 1e-9 * act);
    ap_stage_solution_destroy(solution);
    tear_down(&f);
}
END_TEST

/* Behind a backward pass no more of the sums of gradients hides than would of sums as long as it:
 * one layer on few samples has longer ones, four layers of another model shorter ones. */
START_TEST(sums_hide_behind_one_backward_pass)
{
    static const struct {
        const char *model;
        int last;
        bool longer;
    } cases[] = {{"gpt-1.3b", 1, true}, {"wresnet-250m", 3, false}};
    const double overlap = 0.75;
    fixture_t f;
    ap_stage_query_t q = query(1, cases[_i].last, 2, 4, 2, 4);
    xm_cluster_profile_t *profile = fixture_profile(), *hiding;
    ap_stage_solution_t *solution;
    const ap_stage_cost_t *cost;
    double whole = 0;

    ck_assert_xm_ok(xm_cluster_profile_set_gradient_overlap(profile, overlap, &hiding));
    xm_cluster_profile_destroy(profile);
    set_up_on(&f, hiding, cases[_i].model, 4, false);
    ck_assert_xm_ok(ap_stage_solve(f.context, &q, &solution));
    cost = ap_stage_solution_cost(solution);
    for (int c = 0; c < ap_stage_solution_choices(solution); ++c) {
        whole += ap_stage_solution_choice(solution, c)->sync / (1 - overlap);
    }
    ck_assert_double_gt(whole, 0);
    ck_assert_int_eq(whole > cost->backward, cases[_i].longer);
    ck_assert_double_eq_tol(cost->sync, whole - overlap * fmin(whole, cost->backward),
                            1e-9 * whole);
    ck_assert_double_eq(cost->sync, evaluate(&f, &q).sync);
    ap_stage_solution_destroy(solution);
    tear_down(&f);
}
END_TEST

/* A memory so slow that every time overflows leaves no plan, and no table cell to trace. */
START_TEST(times_beyond_all_bounds_are_no_plan)
{
    fixture_t f;
    ap_stage_query_t q = query(0, 3, 1, 4, 2, 2);
    ap_stage_cost_t cost;

    set_up_on(&f, fixture_profile_with(1e-320), "gpt-125m", 4, false);
    ck_assert_xm_fails(ap_stage_evaluate(f.context, &q, &cost), XM_ERR_NO_SOLUTION,
                       "layers 0 … 3 on 1 x 4 devices (logical 2 x 2) have no sharding");
    tear_down(&f);
}
END_TEST

START_TEST(bad_queries_are_refused)
{
    fixture_t f;
    ap_stage_cost_t cost;
    ap_stage_query_t q = query(0, 6, 1, 4, 2, 2);
    ap_alpa_params_t alpa = AP_ALPA_PARAMS_INIT;
    ap_stage_context_params_t params = AP_STAGE_CONTEXT_PARAMS_INIT;
    ap_cost_model_t *model;
    ap_stage_context_t *context;

    set_up(&f, "gpt-350m", 4, false);
    ck_assert_xm_fails(ap_stage_evaluate(f.context, &q, &cost), XM_ERR_INVALID_ARGUMENT,
                       "layers 0 … 6 are not a range of 0 … 5");
    q = query(0, 5, 1, 4, 2, 4);
    ck_assert_xm_fails(ap_stage_evaluate(f.context, &q, &cost), XM_ERR_INVALID_ARGUMENT,
                       "does not fit a submesh of 1 x 4");
    q = query(0, 5, 4, 4, 4, 4);
    ck_assert_xm_fails(ap_stage_evaluate(f.context, &q, &cost), XM_ERR_INVALID_ARGUMENT,
                       "larger than the cluster");
    q = query(0, 5, 1, 4, 2, 2);
    q.in_flight = 0;
    ck_assert_xm_fails(ap_stage_evaluate(f.context, &q, &cost), XM_ERR_INVALID_ARGUMENT,
                       "0 micro-batches in flight");
    ck_assert_xm_ok(ap_cost_model_create_alpa(&alpa, &model));
    params.graph = f.graph;
    params.cost = model;
    ck_assert_xm_fails(ap_stage_context_create(&params, &context), XM_ERR_INVALID_ARGUMENT,
                       "cluster profile");
    params.cost = f.model;
    params.micro_batches = 0;
    ck_assert_xm_fails(ap_stage_context_create(&params, &context), XM_ERR_INVALID_ARGUMENT,
                       "0 micro-batches");
    ap_cost_model_destroy(model);
    tear_down(&f);
}
END_TEST

/* Every range of gpt-1.3b on ten shapes: one table per distinct layer and shape, well under 300 ms
 * in a release build (the limit leaves room for slow machines, and more for what slows down
 * besides, sanitizers and valgrind). */
START_TEST(all_ranges_of_a_model_are_quick)
{
    static const int shapes[][4] = {{1, 1, 1, 1}, {1, 2, 1, 2}, {1, 2, 2, 1}, {1, 4, 1, 4},
                                    {1, 4, 2, 2}, {1, 4, 4, 1}, {2, 4, 1, 8}, {2, 4, 2, 4},
                                    {2, 4, 4, 2}, {2, 4, 8, 1}};
    fixture_t f;
    const char *slower = getenv("CK_TIMEOUT_MULTIPLIER");
    clock_t start;
    double seconds;

    set_up(&f, "gpt-1.3b", 0, false);
    start = clock();
    for (int k = 0; k < 10; ++k) {
        for (int first = 0; first < 26; ++first) {
            for (int last = first; last < 26; ++last) {
                ap_stage_query_t q =
                    query(first, last, shapes[k][0], shapes[k][1], shapes[k][2], shapes[k][3]);

                (void)evaluate(&f, &q);
            }
        }
    }
    seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    printf("3510 stages in %.1f ms\n", 1e3 * seconds);
    ck_assert_double_lt(seconds, 3 * (slower != NULL ? strtod(slower, NULL) : 1));
    tear_down(&f);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("stage");
    TCase *tcase = tcase_create("all");

    tcase_set_timeout(tcase, 50);
    tcase_add_loop_test(tcase, layer_tables_meet_brute_force, 0, 2);
    tcase_add_test(tcase, ranges_join_over_their_boundary);
    tcase_add_test(tcase, one_device_is_a_roofline);
    tcase_add_loop_test(tcase, memory_limits_are_met_with_a_bound, 0, 2);
    tcase_add_test(tcase, rematerialization_trades_time_for_memory);
    tcase_add_test(tcase, a_solution_accounts_for_its_cost);
    tcase_add_loop_test(tcase, sums_hide_behind_one_backward_pass, 0, 2);
    tcase_add_test(tcase, times_beyond_all_bounds_are_no_plan);
    tcase_add_test(tcase, bad_queries_are_refused);
    tcase_add_test(tcase, all_ranges_of_a_model_are_quick);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
