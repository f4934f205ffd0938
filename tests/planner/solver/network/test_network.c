/* SPDX-License-Identifier: Apache-2.0 */
/* The solver of cost function networks against brute force, and its reader against bad input. */
#include <check.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "planner/solver/network/read.h"
#include "planner/solver/solve.h"
#include "tests/xm_test.h"

enum { NODES_MAX = 8, EDGES_MAX = 14, SIZE_MAX_ = 4, TIMES = 6, PROBLEMS = 5000 };

static uint64_t state = 1;

static int below(int limit)
{
    state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (int)((state >> 33) % (uint64_t)limit);
}

static void *array(size_t count, size_t size)
{
    void *made = calloc(count + 1, size);

    ck_assert_ptr_nonnull(made);
    return made;
}

/* A problem with some forbidden cells, parallel edges, edges of one, two and three nodes, and nodes
 * that follow others. */
static ap_cfn_t *random_problem(bool limited)
{
    ap_cfn_t *cfn = array(1, sizeof(*cfn));
    size_t cells = 0;
    int forbidden = below(60);

    cfn->nodes = (size_t)(1 + below(NODES_MAX));
    cfn->node_at = array(cfn->nodes + 1, sizeof(size_t));
    cfn->interval = array(2 * cfn->nodes, sizeof(int64_t));
    for (size_t n = 0; n < cfn->nodes; ++n) {
        int from = below(TIMES);

        cfn->node_at[n + 1] = cfn->node_at[n] + (size_t)(1 + below(SIZE_MAX_));
        cfn->interval[2 * n] = from;
        cfn->interval[2 * n + 1] = from + below(TIMES - from + 1);
    }
    cfn->costs = array(cfn->node_at[cfn->nodes], sizeof(int64_t));
    cfn->usages = array(cfn->node_at[cfn->nodes], sizeof(int64_t));
    for (size_t k = 0; k < cfn->node_at[cfn->nodes]; ++k) {
        cfn->costs[k] = below(20) == 0 ? AP_CFN_INFINITE : below(30);
        cfn->usages[k] = below(3) == 0 ? 0 : below(20);
    }
    cfn->edges = cfn->nodes > 1 ? (size_t)below(EDGES_MAX) : 0;
    cfn->scope_at = array(cfn->edges + 1, sizeof(size_t));
    cfn->cell_at = array(cfn->edges + 1, sizeof(size_t));
    cfn->scope = array(3 * cfn->edges, sizeof(int));
    cfn->cells = array(cfn->edges * SIZE_MAX_ * SIZE_MAX_ * SIZE_MAX_, sizeof(int64_t));
    for (size_t e = 0; e < cfn->edges; ++e) {
        int arity = cfn->nodes > 2 && below(8) == 0 ? 3 : below(12) == 0 ? 1 : 2;
        int *scope = cfn->scope + cfn->scope_at[e];
        size_t count = 1;

        for (int k = 0; k < arity; ++k) {
            bool again;

            do {
                scope[k] = below((int)cfn->nodes);
                again = false;
                for (int j = 0; j < k; ++j) {
                    again = again || scope[j] == scope[k];
                }
            } while (again);
            count *= ap_cfn_strategies(cfn, (size_t)scope[k]);
        }
        cfn->scope_at[e + 1] = cfn->scope_at[e] + (size_t)arity;
        cfn->cell_at[e + 1] = cells + count;
        for (size_t k = 0; k < count; ++k) {
            cfn->cells[cells + k] = below(100) < forbidden ? AP_CFN_INFINITE : below(25);
        }
        if (arity == 2 && below(3) == 0) { /* one follows the other */
            size_t width = ap_cfn_strategies(cfn, (size_t)scope[1]);

            for (size_t k = 0; k < count; ++k) {
                cfn->cells[cells + k] =
                    (k / width) % width == k % width ? below(9) : AP_CFN_INFINITE;
            }
        }
        cells += count;
    }
    cfn->limited = limited;
    cfn->limit = below(70);
    ck_assert_int_eq(ap_cfn_check(cfn), XM_OK);
    return cfn;
}

/* The cheapest choice of finite cost that fits; false when there is none. */
static bool brute_force(const ap_cfn_t *cfn, ap_cfn_total_t *best)
{
    int choice[NODES_MAX] = {0};
    bool found = false;
    size_t n;

    do {
        ap_cfn_value_t value;

        ck_assert_int_eq(ap_cfn_evaluate(cfn, choice, &value), XM_OK);
        if (value.feasible && value.infinite == 0 && (!found || value.cost < *best)) {
            *best = value.cost;
            found = true;
        }
        for (n = 0; n < cfn->nodes; ++n) {
            if ((size_t)++choice[n] < ap_cfn_strategies(cfn, n)) {
                break;
            }
            choice[n] = 0;
        }
    } while (n < cfn->nodes);
    return found;
}

static void compare_with_brute_force(bool limited)
{
    ap_cfn_options_t options = AP_CFN_OPTIONS_INIT;
    int solved = 0, problems = getenv("TEST_FEW") != NULL ? PROBLEMS / 20 : PROBLEMS;

    options.seconds = 60.0;
    options.threads = 1;
    for (int k = 0; k < problems / 2; ++k) {
        int choice[NODES_MAX];
        ap_cfn_t *cfn;
        ap_cfn_total_t best = 0;
        ap_cfn_result_t result;
        xm_status_t status;
        bool exists;

        state = (uint64_t)(2 * k + limited) * 7919 + 1;
        cfn = random_problem(limited);
        exists = brute_force(cfn, &best);
        options.cells = k % 2 == 0 ? 0 : 1; /* bounds by elimination, and by messages */
        status = ap_cfn_solve(cfn, &options, choice, &result);
        if (exists) {
            ck_assert_msg(status == XM_OK, "problem %d: %s", k, xm_last_error());
            ck_assert_msg(result.value.cost == best && result.optimal, "problem %d: %lld, not %lld",
                          k, (long long)result.value.cost, (long long)best);
            ck_assert(result.value.feasible);
            ck_assert(result.bound <= (double)best + 0.01);
            ++solved;
        } else {
            ck_assert_msg(status == XM_ERR_NO_SOLUTION, "problem %d has no solution: %d", k,
                          (int)status);
        }
        ap_cfn_destroy(cfn);
    }
    ck_assert_int_gt(solved, problems / 8); /* most of them have one */
}

START_TEST(equals_brute_force_without_limit)
{
    compare_with_brute_force(false);
}
END_TEST

START_TEST(equals_brute_force_with_limit)
{
    compare_with_brute_force(true);
}
END_TEST

/* A grid of nodes with few different costs, so that many choices cost the same. */
static ap_cfn_t *grid_problem(int side, int strategies, int costs)
{
    ap_cfn_t *cfn = array(1, sizeof(*cfn));
    size_t nodes = (size_t)(side * side), each = (size_t)strategies;

    cfn->nodes = nodes;
    cfn->node_at = array(nodes + 1, sizeof(size_t));
    cfn->interval = array(2 * nodes, sizeof(int64_t));
    cfn->costs = array(nodes * each, sizeof(int64_t));
    cfn->usages = array(nodes * each, sizeof(int64_t));
    cfn->scope_at = array(2 * nodes + 1, sizeof(size_t));
    cfn->cell_at = array(2 * nodes + 1, sizeof(size_t));
    cfn->scope = array(4 * nodes, sizeof(int));
    cfn->cells = array(2 * nodes * each * each, sizeof(int64_t));
    for (size_t n = 0; n < nodes; ++n) {
        cfn->node_at[n + 1] = cfn->node_at[n] + each;
        cfn->interval[2 * n] = (int64_t)(n / 4);
        cfn->interval[2 * n + 1] = (int64_t)(n / 4 + 3);
        for (size_t x = 0; x < each; ++x) {
            cfn->costs[n * each + x] = below(costs);
            cfn->usages[n * each + x] = 10 * below(4);
        }
        for (int right = 0; right < 2; ++right) {
            size_t other = right ? n + 1 : n + (size_t)side, e = cfn->edges;

            if (right ? other % (size_t)side == 0 : other >= nodes) {
                continue;
            }
            cfn->scope[2 * e] = (int)n;
            cfn->scope[2 * e + 1] = (int)other;
            cfn->scope_at[e + 1] = 2 * e + 2;
            cfn->cell_at[e + 1] = cfn->cell_at[e] + each * each;
            for (size_t c = cfn->cell_at[e]; c < cfn->cell_at[e + 1]; ++c) {
                cfn->cells[c] = below(costs);
            }
            ++cfn->edges;
        }
    }
    cfn->limited = true;
    cfn->limit = 120;
    ck_assert_int_eq(ap_cfn_check(cfn), XM_OK);
    return cfn;
}

/* One of many optima, whatever the seed and the threads. */
START_TEST(a_proved_choice_is_the_same_in_every_run)
{
    enum { SIDE = 5, RUNS = 4 };
    ap_cfn_options_t options = AP_CFN_OPTIONS_INIT;
    int compared = 0;

    options.seconds = 30.0;
    for (int k = 0; k < 12; ++k) {
        int choice[RUNS][SIDE * SIDE];
        ap_cfn_t *cfn;

        state = (uint64_t)k * 31 + 5;
        cfn = grid_problem(SIDE, 4, 3);
        for (int run = 0; run < RUNS; ++run) {
            ap_cfn_result_t result;

            options.threads = 1 + run % 3;
            options.seed = (uint64_t)(1 + 17 * run);
            ck_assert_xm_ok(ap_cfn_solve(cfn, &options, choice[run], &result));
            ck_assert(result.value.feasible);
            if (result.repeatable && run > 0) {
                ck_assert_mem_eq(choice[run], choice[0], sizeof(choice[0]));
                ++compared;
            }
        }
        ap_cfn_destroy(cfn);
    }
    ck_assert_int_gt(compared, 24);
}
END_TEST

/* Edges of three nodes become nodes, of more values than a node of the problem may have; those of
 * live nodes have segments of usage. */
START_TEST(an_edge_has_more_values_than_a_node)
{
    enum { NODES = 3, EACH = 40 };
    static const int scope[NODES] = {0, 1, 2};
    ap_cfn_options_t options = AP_CFN_OPTIONS_INIT;
    ap_cfn_t *cfn = array(1, sizeof(*cfn));
    int choice[NODES];
    ap_cfn_result_t result;

    cfn->nodes = NODES;
    cfn->node_at = array(NODES + 1, sizeof(size_t));
    cfn->interval = array(2 * NODES, sizeof(int64_t));
    cfn->costs = array(NODES * EACH, sizeof(int64_t));
    cfn->usages = array(NODES * EACH, sizeof(int64_t));
    for (int n = 0; n < NODES; ++n) {
        cfn->node_at[n + 1] = cfn->node_at[n] + EACH;
        cfn->interval[2 * n + 1] = 1;
        for (int x = 0; x < EACH; ++x) {
            cfn->usages[n * EACH + x] = EACH - x;
        }
    }
    cfn->edges = 1;
    cfn->scope_at = array(2, sizeof(size_t));
    cfn->cell_at = array(2, sizeof(size_t));
    cfn->scope = array(NODES, sizeof(int));
    memcpy(cfn->scope, scope, sizeof(scope));
    cfn->scope_at[1] = NODES;
    cfn->cell_at[1] = EACH * EACH * EACH;
    cfn->cells = array(cfn->cell_at[1], sizeof(int64_t));
    /* The more is used, the less it costs. */
    for (size_t c = 0; c < cfn->cell_at[1]; ++c) {
        cfn->cells[c] = (int64_t)(c % EACH + c / EACH % EACH + c / (EACH * EACH));
    }
    cfn->limited = true;
    cfn->limit = 2 * EACH;
    options.seconds = 30.0;
    ck_assert_int_eq(ap_cfn_check(cfn), XM_OK);
    ck_assert_xm_ok(ap_cfn_solve(cfn, &options, choice, &result));
    ck_assert(result.optimal && result.value.feasible);
    ck_assert_int_eq((int)result.value.cost, EACH);
    ap_cfn_destroy(cfn);
}
END_TEST

/* What a large problem takes of the processor is no more than the time that it was given. */
START_TEST(the_time_is_kept)
{
    enum { SIDE = 40 };
    const double given[] = {0.05, 0.2}, slack = getenv("TEST_FEW") != NULL ? 1.0 : 0.03;
    ap_cfn_options_t options = AP_CFN_OPTIONS_INIT;
    int *choice = array(SIDE * SIDE, sizeof(int));
    ap_cfn_t *cfn;

    state = 99;
    cfn = grid_problem(SIDE, 12, 1000);
    options.threads = 1;
    for (int k = 0; k < 2; ++k) {
        clock_t begin = clock();
        ap_cfn_result_t result;
        xm_status_t status;
        double used;

        options.seconds = given[k];
        status = ap_cfn_solve(cfn, &options, choice, &result);
        used = (double)(clock() - begin) / CLOCKS_PER_SEC;
        ck_assert_msg(used <= given[k] + slack, "%g s of %g s", used, given[k]);
        if (status == XM_OK) {
            ck_assert(result.value.feasible && !result.optimal && !result.repeatable);
            ck_assert(!result.counted);
        } else { /* of a busy processor the time may have been almost nothing */
            ck_assert_int_eq(status, XM_ERR_TIMEOUT);
            ck_assert_ptr_nonnull(strstr(xm_last_error(), "the usage limit 120"));
        }
    }
    ap_cfn_destroy(cfn);
    free(choice);
}
END_TEST

/* A presolve that its work ends anywhere, and a search that it ends soon after, promise nothing
 * that is not so, and the same again. */
START_TEST(a_presolve_may_end_anywhere)
{
    ap_cfn_options_t options = AP_CFN_OPTIONS_INIT;
    int cut = 0, problems = getenv("TEST_FEW") != NULL ? PROBLEMS / 20 : PROBLEMS / 5;

    options.threads = 1;
    for (int k = 0; k < problems; ++k) {
        int choice[2][NODES_MAX] = {{0}};
        ap_cfn_t *cfn;
        ap_cfn_total_t best = 0;
        ap_cfn_result_t result[2] = {0};
        xm_status_t status[2];
        bool exists;

        state = (uint64_t)k * 7919 + 3;
        cfn = random_problem(k % 2 == 0);
        exists = brute_force(cfn, &best);
        options.work = 1e-9 * (1 + below(2 << (k % 16)));
        for (int run = 0; run < 2; ++run) {
            status[run] = ap_cfn_solve(cfn, &options, choice[run], &result[run]);
        }
        ck_assert_int_eq(status[0], status[1]);
        ck_assert_msg(exists ? status[0] == XM_OK : status[0] == XM_ERR_NO_SOLUTION,
                      "problem %d: %d", k, (int)status[0]);
        if (exists) {
            ck_assert_msg(result[0].value.cost >= best && result[0].bound <= (double)best + 0.01,
                          "problem %d: %lld, bound %g", k, (long long)best, result[0].bound);
            ck_assert(result[0].value.feasible && result[0].value.infinite == 0);
            ck_assert(!result[0].optimal || result[0].value.cost == best);
            ck_assert(result[0].counted && result[1].counted);
            ck_assert(result[0].bound == result[1].bound);
            ck_assert_mem_eq(choice[0], choice[1], sizeof(choice[0]));
            cut += !result[0].repeatable;
        }
        ap_cfn_destroy(cfn);
    }
    ck_assert_int_gt(cut, problems / 20);
}
END_TEST

static void look_on(void *context, const ap_cfn_progress_t *progress)
{
    (void)context;
    ck_assert(progress->cost >= progress->bound);
}

static void *spin(void *stop)
{
    while (!atomic_load((atomic_bool *)stop)) {
    }
    return NULL;
}

/* One thread whose work is limited finds the same with the same seed, however fast it goes: the
 * second run is watched by another thread, and others keep the processors busy. */
START_TEST(equal_seeds_of_one_thread_find_the_same)
{
    enum { SIDE = 20, SPINNERS = 3 };
    ap_cfn_options_t options = AP_CFN_OPTIONS_INIT;
    pthread_t spinner[SPINNERS];
    atomic_bool stop = false;
    int *choice[2];
    ap_cfn_result_t result[2];
    ap_cfn_t *cfn;

    state = 99;
    cfn = grid_problem(SIDE, 12, 1000);
    cfn->limit = 170; /* which binds a little: a solution is soon found, and no proof */
    options.threads = 1;
    options.seconds = 1000.0;
    options.work = 0.4;
    options.seed = 7;
    for (int k = 0; k < 2; ++k) {
        options.progress = k > 0 ? look_on : NULL;
        for (int s = 0; k > 0 && s < SPINNERS; ++s) {
            ck_assert_int_eq(pthread_create(&spinner[s], NULL, spin, &stop), 0);
        }
        choice[k] = array(SIDE * SIDE, sizeof(int));
        ck_assert_xm_ok(ap_cfn_solve(cfn, &options, choice[k], &result[k]));
        ck_assert(result[k].counted && !result[k].optimal);
    }
    atomic_store(&stop, true);
    for (int s = 0; s < SPINNERS; ++s) {
        (void)pthread_join(spinner[s], NULL);
    }
    ck_assert_mem_eq(choice[0], choice[1], (size_t)(SIDE * SIDE) * sizeof(int));
    ck_assert(result[0].bound == result[1].bound);
    ap_cfn_destroy(cfn);
    free(choice[0]);
    free(choice[1]);
}
END_TEST

static void refuse(const char *text, const char *sentence)
{
    ap_cfn_t *cfn;

    ck_assert_msg(ap_cfn_read_text(text, strlen(text), &cfn) < 0, "accepted: %s", text);
    ck_assert_msg(strstr(xm_last_error(), sentence) != NULL, "%s: %s", text, xm_last_error());
}

#define NODES  "\"nodes\": {\"intervals\": [[0, 1], [0, 0]], \"costs\": [[1, 2], [3]], "
#define USAGES "\"usages\": [[4, 5], [6]]}"

START_TEST(reads_the_format)
{
    static const char text[] =
        "{\"other\": [{\"a\": [1.5, \"x\"]}], \"problem\": {\"usage_limit\": 9, \"edges\": "
        "{\"costs\": [[7, 1000000000000000000]], \"nodes\": [[0, 1]], \"more\": null}, " NODES
            USAGES ", \"name\": \"two\"}}";
    ap_cfn_t *cfn;

    ck_assert_msg(ap_cfn_read_text(text, strlen(text), &cfn) == XM_OK, "%s", xm_last_error());
    ck_assert_str_eq(cfn->name, "two");
    ck_assert_uint_eq(cfn->nodes, 2);
    ck_assert_uint_eq(cfn->edges, 1);
    ck_assert(cfn->limited && cfn->limit == 9);
    ck_assert_int_eq(cfn->usages[2], 6);
    ck_assert_int_eq(cfn->cells[1], AP_CFN_INFINITE);
    ap_cfn_destroy(cfn);
}
END_TEST

START_TEST(refuses_bad_text)
{
    refuse("", "line 1, column 1");
    refuse("{\n\"problem\": {\"nodes\": {\"costs\": [[1, 2.5]]}}}", "line 2, column");
    refuse("{\"problem\": 5}", "an object is expected");
    refuse("[]", "an object with the member \"problem\"");
    refuse("{\"problem\": {\"nodes\": {\"costs\": [[-1]]}}}", "not an integer");
    refuse("{\"problem\": {\"nodes\": {\"costs\": [[NaN]]}}}", "line 1, column");
    refuse("{\"problem\": {\"nodes\": {\"costs\": [1]}}}", "a list of lists");
    refuse("{\"problem\": {\"nodes\": {\"costs\": [[[1]]]}}}", "a list where a number");
    refuse("{\"problem\": {\"nodes\": {\"costs\": [[9223372036854775808]]}}}", "not an integer");
    refuse("{\"problem\": {" NODES "\"usages\": [[4, 5]]}}}", "nodes.usages 1");
    refuse("{\"problem\": {" NODES "\"usages\": [[4], [6]]}}}", "node 0 has 2 costs and 1 usages");
    refuse("{\"problem\": {" NODES USAGES ", \"edges\": {\"nodes\": [[0, 2]], \"costs\": [[1]]}}}",
           "names node 2");
    refuse("{\"problem\": {" NODES USAGES ", \"edges\": {\"nodes\": [[0, 1]], \"costs\": [[1]]}}}",
           "edge 0 has 1 costs, its nodes' strategies make 2");
    /* The place of a part that is wrong only beside another. */
    refuse("{\"problem\": {\n\"edges\": {\"nodes\":\n [[0, 1]], \"costs\": [[1]]},\n" NODES USAGES
           "}}",
           "line 3, column 23: edge 0 has 1 costs, its nodes' strategies make 2");
    refuse("{\"problem\": {\n\"edges\": {\"nodes\":\n [[0, 7]], \"costs\": [[1]]},\n" NODES USAGES
           "}}",
           "line 3, column 4: edge 0 names node 7");
    refuse("{\"problem\": {" NODES USAGES ", " NODES USAGES "}}", "came before");
    refuse("{\"problem\": {" NODES USAGES, "premature EOF");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cfn");
    TCase *search = tcase_create("brute force"), *reader = tcase_create("reader");
    TCase *work = tcase_create("work");

    tcase_set_timeout(search, 300);
    tcase_set_timeout(work, 300);
    tcase_add_test(search, equals_brute_force_without_limit);
    tcase_add_test(search, equals_brute_force_with_limit);
    tcase_add_test(search, a_proved_choice_is_the_same_in_every_run);
    tcase_add_test(search, an_edge_has_more_values_than_a_node);
    tcase_add_test(search, the_time_is_kept);
    tcase_add_test(work, a_presolve_may_end_anywhere);
    tcase_add_test(work, equal_seeds_of_one_thread_find_the_same);
    tcase_add_test(reader, reads_the_format);
    tcase_add_test(reader, refuses_bad_text);
    suite_add_tcase(suite, search);
    suite_add_tcase(suite, work);
    suite_add_tcase(suite, reader);
    return xm_test_run(suite);
}
