/* SPDX-License-Identifier: Apache-2.0 */
/* Branch and bound on small problems, beside every assignment: in one go and in slices, the best
 * node first and the newest first, below caps, and in neighbourhoods, which must leave the bound of
 * the whole problem alone. */
#include <check.h>
#include <math.h>
#include <stdlib.h>

#include "planner/solver/tree.h"
#include "tests/planner/solver/tree/random_core.h"
#include "tests/xm_test.h"

enum { PROBLEMS = 1500, SLICES_MOST = 10000 };

static ap_cfn_core_t *core;
static ap_cfn_dual_t *dual;
static double best;

/* A problem with a dual that has hardly converged, so that much is left to branch on. */
static void make_problem(int k)
{
    seed_cores((uint64_t)k);
    core = random_core();
    best = least_of_all(core);
    ck_assert_xm_ok(ap_cfn_dual_create(core, &dual));
    for (int step = random_below(5); step >= 0; --step) {
        (void)ap_cfn_dual_sweep(dual);
        ap_cfn_dual_move_prices(dual, ap_cfn_dual_aim(dual, best));
    }
}

static void destroy_problem(void)
{
    ap_cfn_dual_destroy(dual);
    ap_cfn_core_destroy(core);
}

static void check_shared(const ap_cfn_shared_t *shared)
{
    double load[TIMES + 1];

    ck_assert_double_le(shared->bound, best + 1e-6);
    if (shared->cost < HUGE_VAL) {
        ck_assert(ap_cfn_core_fits(core, shared->best, load));
        ck_assert_double_eq(shared->cost, core->constant + ap_cfn_core_cost(core, shared->best));
        ck_assert_double_ge(shared->cost, best);
    }
}

/* Runs a search in slices of so many nodes until it is done; after each, what it has proved holds.
 * Returns the nodes. */
static int64_t run(ap_cfn_shared_t *shared, const ap_cfn_branch_params_t *params, int64_t slice)
{
    atomic_int_fast64_t nodes = 0;
    ap_cfn_branch_t *branch;
    bool done = false;
    int slices = 0;

    ck_assert_xm_ok(ap_cfn_branch_create(dual, shared, params, &branch));
    while (!done && !ap_cfn_shared_is_over(shared)) {
        ck_assert_xm_ok(ap_cfn_branch_run(branch, slice, INT64_MAX, &nodes, &done));
        check_shared(shared);
        ck_assert_int_lt(++slices, SLICES_MOST);
    }
    ap_cfn_branch_destroy(branch);
    return nodes;
}

START_TEST(every_order_finds_the_optimum)
{
    int64_t sliced = 0;
    int solved = 0;

    for (int k = 0; k < PROBLEMS; ++k) {
        ap_cfn_pseudo_costs_t *costs;

        make_problem(k);
        solved += best < HUGE_VAL;
        ck_assert_xm_ok(ap_cfn_pseudo_costs_create(core->variables, &costs));
        for (int way = 0; way < 6; ++way) {
            /* The last two know what the ones before them have learnt. */
            const ap_cfn_branch_params_t params = {
                .cap = HUGE_VAL, .depth_first = way % 2 == 1, .costs = way >= 2 ? costs : NULL};
            ap_cfn_shared_t shared;
            int64_t nodes;

            ck_assert_xm_ok(ap_cfn_shared_create(core, INT64_MAX, &shared));
            nodes = run(&shared, &params, way < 4 ? INT64_MAX / 2 : 1);
            sliced += way >= 4 && nodes > 1;
            ck_assert_double_eq(shared.cost, best);
            ck_assert(ap_cfn_shared_is_proved(&shared));
            ap_cfn_shared_destroy(&shared);
        }
        ap_cfn_pseudo_costs_destroy(costs);
        destroy_problem();
    }
    ck_assert_int_gt(solved, PROBLEMS / 4);
    ck_assert_int_gt(sliced, PROBLEMS / 4); /* or nothing was laid aside */
}
END_TEST

/* What has let both sides rise is expected to again, more than what nothing is known of; and where
 * nothing has risen, there still is something to choose by. */
START_TEST(branches_are_learnt_from)
{
    enum { BOTH, ONE, NONE, UNKNOWN, COUNT };
    static const double rise[][2] = {{10.0, 10.0}, {0.0, 20.0}, {0.0, 0.0}};
    ap_cfn_pseudo_costs_t *costs;
    double score[COUNT];

    ck_assert_xm_ok(ap_cfn_pseudo_costs_create(COUNT, &costs));
    for (int known = 0; known < 2; ++known) {
        for (int v = 0; v < COUNT; ++v) {
            ap_cfn_split_t split = {.variable = v, .apart = 5.0, .links = 2.0, .bound = 100.0};

            score[v] = ap_cfn_pseudo_costs_score(costs, &split, 1000.0);
            ck_assert_double_gt(score[v], 0.0);
            ck_assert(known || score[v] == score[0]);
        }
        for (int v = 0; v < UNKNOWN; ++v) {
            for (int side = 0; side < 2; ++side) {
                ap_cfn_split_t split = {
                    .variable = v, .above = side == 1, .apart = 5.0, .links = 2.0, .bound = 100.0};

                ap_cfn_pseudo_costs_note(costs, &split, 100.0 + rise[v][side]);
            }
        }
    }
    ck_assert_double_gt(score[BOTH], score[UNKNOWN]);
    ck_assert_double_gt(score[UNKNOWN], score[NONE]);
    ck_assert_double_gt(score[BOTH], score[ONE]);
    ck_assert_double_gt(score[ONE], score[NONE]);
    ap_cfn_pseudo_costs_destroy(costs);
}
END_TEST

/* A side on which nothing ever rose still counts, as otherwise nothing would be left to choose by.
 */
START_TEST(branches_without_a_rise_still_count)
{
    ap_cfn_split_t split = {.variable = 0, .apart = 5.0, .links = 2.0, .bound = 100.0};
    ap_cfn_pseudo_costs_t *costs;

    ck_assert_xm_ok(ap_cfn_pseudo_costs_create(1, &costs));
    ap_cfn_pseudo_costs_note(costs, &split, 100.0);
    split.above = true;
    ap_cfn_pseudo_costs_note(costs, &split, 100.0);
    ck_assert_double_gt(ap_cfn_pseudo_costs_score(costs, &split, 1000.0), 0.0);
    ap_cfn_pseudo_costs_destroy(costs);
}
END_TEST

/* Below a cap it finds what is there, and proves the cap where nothing is. */
START_TEST(caps_are_proved)
{
    int above = 0;

    for (int k = 0; k < PROBLEMS; ++k) {
        ap_cfn_branch_params_t params = {.cap = 0.0};
        ap_cfn_shared_t shared;

        make_problem(k);
        params.cap = best < HUGE_VAL ? best - 8 + random_below(16) : 300.0;
        ck_assert_xm_ok(ap_cfn_shared_create(core, INT64_MAX, &shared));
        (void)run(&shared, &params, 1 + random_below(4));
        if (best < params.cap) {
            ck_assert_double_eq(shared.cost, best);
            ++above;
        } else {
            ck_assert_double_ge(shared.bound, params.cap - 1e-6);
        }
        ap_cfn_shared_destroy(&shared);
        destroy_problem();
    }
    ck_assert_int_gt(above, PROBLEMS / 10);
    ck_assert_int_lt(above, PROBLEMS - PROBLEMS / 10);
}
END_TEST

/* Where only some values may be taken, the best of those is found, and nothing is said of the
 * rest. */
START_TEST(neighbourhoods_keep_to_their_values)
{
    int found = 0;

    for (int k = 0; k < PROBLEMS; ++k) {
        bool keep[VARIABLES * SIZE];
        ap_cfn_branch_params_t params = {.cap = HUGE_VAL, .keep = keep};
        ap_cfn_shared_t shared;
        int fixed[VARIABLES];

        make_problem(k);
        for (int v = 0; v < core->variables; ++v) {
            fixed[v] = random_below(3) == 0 ? random_below(core->variable[v].size) : -1;
            for (int x = 0; x < core->variable[v].size; ++x) {
                keep[dual->at[v] + (size_t)x] = fixed[v] < 0 || x == fixed[v];
            }
        }
        ck_assert_xm_ok(ap_cfn_shared_create(core, INT64_MAX, &shared));
        (void)run(&shared, &params, INT64_MAX / 2);
        ck_assert_double_eq(shared.bound, -HUGE_VAL);
        for (int v = 0; v < core->variables && shared.cost < HUGE_VAL; ++v) {
            ck_assert(fixed[v] < 0 || shared.best[v] == fixed[v]);
        }
        found += shared.cost < HUGE_VAL;
        ap_cfn_shared_destroy(&shared);
        destroy_problem();
    }
    ck_assert_int_gt(found, PROBLEMS / 10);
}
END_TEST

/* From a bad solution, searches nearby lead to the optimum of most problems, and never touch the
 * bound. */
START_TEST(neighbours_improve_a_solution)
{
    int bad = 0, best_found = 0;

    for (int k = 0; k < PROBLEMS; ++k) {
        ap_cfn_neighbours_t neighbours = {.part = 0.3, .random = 1};
        double load[TIMES + 1];
        ap_cfn_shared_t shared;
        int value[VARIABLES];

        make_problem(k);
        ck_assert_xm_ok(ap_cfn_shared_create(core, INT64_MAX, &shared));
        shared.counted = true;
        shared.most = INT64_MAX;
        /* Without a solution it returns at once. */
        ck_assert_xm_ok(ap_cfn_search_neighbours(dual, &shared, &neighbours, INT64_MAX));
        for (int v = 0; v < core->variables; ++v) {
            value[v] = random_below(core->variable[v].size);
        }
        if (ap_cfn_core_fits(core, value, load) && ap_cfn_core_cost(core, value) < HUGE_VAL) {
            double cost = core->constant + ap_cfn_core_cost(core, value);

            (void)ap_cfn_shared_offer(&shared, value, cost);
            ck_assert_xm_ok(ap_cfn_search_neighbours(dual, &shared, &neighbours, 2000000));
            check_shared(&shared);
            ck_assert_double_eq(shared.bound, -HUGE_VAL);
            bad += cost > best;
            best_found += cost > best && shared.cost == best;
        }
        ap_cfn_shared_destroy(&shared);
        destroy_problem();
    }
    ck_assert_int_gt(bad, PROBLEMS / 30);
    ck_assert_int_gt(5 * best_found, 4 * bad);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cfn_branch");
    TCase *all = tcase_create("all");

    tcase_set_timeout(all, 120);
    tcase_add_test(all, every_order_finds_the_optimum);
    tcase_add_test(all, branches_are_learnt_from);
    tcase_add_test(all, branches_without_a_rise_still_count);
    tcase_add_test(all, caps_are_proved);
    tcase_add_test(all, neighbourhoods_keep_to_their_values);
    tcase_add_test(all, neighbours_improve_a_solution);
    suite_add_tcase(suite, all);
    return xm_test_run(suite);
}
