/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The solver of cost function networks against CBC on random problems of middle size, half of them
 * with a usage limit that binds. CBC_NODES and CBC_PROBLEMS make them larger or more.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/planner/solver/cbc.h"
#include "tests/xm_test.h"

enum { SIZE = 3, TIMES = 8, NODES = 12, PROBLEMS = 300 };

/* CBC may give a problem up, ours may not. */
enum { SECONDS = 60, SECONDS_OF_CBC = 5 };

static uint64_t state = 7;

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

static int setting(const char *name, int otherwise)
{
    const char *text = getenv(name);

    return text != NULL ? (int)strtol(text, NULL, 10) : otherwise;
}

/* A ring of nodes with chords, as graphs of operators have them; some cells are forbidden. */
static ap_cfn_t *random_problem(int nodes)
{
    ap_cfn_t *cfn = array(1, sizeof(*cfn));
    size_t edges = (size_t)(nodes + nodes / 4);

    cfn->nodes = (size_t)nodes;
    cfn->node_at = array(cfn->nodes + 1, sizeof(size_t));
    cfn->interval = array(2 * cfn->nodes, sizeof(int64_t));
    for (size_t n = 0; n < cfn->nodes; ++n) {
        int from = below(TIMES);

        cfn->node_at[n + 1] = cfn->node_at[n] + (size_t)(2 + below(SIZE - 1));
        cfn->interval[2 * n] = from;
        cfn->interval[2 * n + 1] = from + 1 + below(TIMES - from);
    }
    cfn->costs = array(cfn->node_at[cfn->nodes], sizeof(int64_t));
    cfn->usages = array(cfn->node_at[cfn->nodes], sizeof(int64_t));
    for (size_t k = 0; k < cfn->node_at[cfn->nodes]; ++k) {
        cfn->costs[k] = below(1000);
        cfn->usages[k] = below(100);
    }
    cfn->edges = edges;
    cfn->scope_at = array(edges + 1, sizeof(size_t));
    cfn->cell_at = array(edges + 1, sizeof(size_t));
    cfn->scope = array(2 * edges, sizeof(int));
    cfn->cells = array(edges * SIZE * SIZE, sizeof(int64_t));
    for (size_t e = 0; e < edges; ++e) {
        int a = e < cfn->nodes ? (int)e : below(nodes);
        int b = e < cfn->nodes ? (int)(e + 1) % nodes : (a + 2 + below(nodes - 3)) % nodes;
        size_t count = ap_cfn_strategies(cfn, (size_t)a) * ap_cfn_strategies(cfn, (size_t)b);

        cfn->scope[2 * e] = a;
        cfn->scope[2 * e + 1] = b;
        cfn->scope_at[e + 1] = 2 * (e + 1);
        cfn->cell_at[e + 1] = cfn->cell_at[e] + count;
        for (size_t k = 0; k < count; ++k) {
            cfn->cells[cfn->cell_at[e] + k] = below(25) == 0 ? AP_CFN_INFINITE : below(1000);
        }
    }
    ck_assert_int_eq(ap_cfn_check(cfn), XM_OK);
    return cfn;
}

/* Both solvers' answers; false when they agree that there is none. */
static bool compare(const ap_cfn_t *cfn, int *choice, ap_cfn_result_t *ours)
{
    ap_cfn_options_t options = AP_CFN_OPTIONS_INIT;
    ap_cfn_result_t cbc;
    xm_status_t status, theirs;

    options.seconds = SECONDS;
    options.threads = 1;
    theirs = ap_cfn_cbc_solve(cfn, SECONDS_OF_CBC, choice, &cbc);
    status = ap_cfn_solve(cfn, &options, choice, ours);
    ck_assert_msg(status == XM_OK || status == XM_ERR_NO_SOLUTION, "%s", xm_last_error());
    if (status == XM_ERR_NO_SOLUTION) {
        ck_assert_int_ne(theirs, XM_OK);
        return false;
    }
    ck_assert(ours->value.feasible && ours->value.infinite == 0);
    ck_assert_double_le(ours->bound, (double)ours->value.cost + 0.5);
    if (theirs == XM_OK) {
        ck_assert(cbc.value.feasible && cbc.value.infinite == 0);
        ck_assert_int_le((int64_t)ours->value.cost, (int64_t)cbc.value.cost);
        ck_assert_double_le(ours->bound, (double)cbc.value.cost + 0.5);
        if (cbc.optimal) {
            ck_assert_int_eq((int64_t)ours->value.cost, (int64_t)cbc.value.cost);
            ck_assert_double_le(cbc.bound, (double)ours->value.cost + 0.5);
        }
    } else {
        ck_assert_int_eq(theirs, XM_ERR_TIMEOUT);
    }
    return true;
}

START_TEST(random_problems_meet_cbc)
{
    int problems = setting("CBC_PROBLEMS", xm_test_rounds(PROBLEMS)),
        nodes = setting("CBC_NODES", NODES);
    int solved = 0, limited = 0, proved = 0;

    for (int k = 0; k < problems; k += 2) {
        ap_cfn_t *cfn = random_problem(nodes - below(nodes / 3));
        int *choice = array(cfn->nodes, sizeof(int));
        ap_cfn_result_t result;

        if (compare(cfn, choice, &result)) {
            ++solved;
            proved += result.optimal;
            /* The same within a limit that this solution exceeds. */
            cfn->limited = true;
            cfn->limit = (int64_t)result.value.peak * (70 + below(29)) / 100;
            if (compare(cfn, choice, &result)) {
                ++limited;
                proved += result.optimal;
            }
        }
        free(choice);
        ap_cfn_destroy(cfn);
    }
    printf("%d problems solved, and %d within a limit; %d proved optimal\n", solved, limited,
           proved);
    ck_assert_int_gt(solved, problems * 2 / 5);
    ck_assert_int_gt(limited, problems / 5);
}
END_TEST

START_TEST(what_does_not_fit_has_no_solution)
{
    ap_cfn_t *cfn = random_problem(NODES);
    int *choice = array(cfn->nodes, sizeof(int));
    ap_cfn_result_t result;

    for (size_t k = 0; k < cfn->node_at[cfn->nodes]; ++k) {
        ++cfn->usages[k];
    }
    cfn->limited = true;
    ck_assert_int_eq(ap_cfn_cbc_solve(cfn, SECONDS, choice, &result), XM_ERR_NO_SOLUTION);
    free(choice);
    ap_cfn_destroy(cfn);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cfn_cbc");
    TCase *tcase = tcase_create("all");

    if (system("command -v cbc > /dev/null 2>&1") != 0) {
        printf("skipped: no cbc in PATH (Debian package coinor-cbc)\n");
        return 77;
    }
    tcase_set_timeout(tcase, 280);
    tcase_add_test(tcase, random_problems_meet_cbc);
    tcase_add_test(tcase, what_does_not_fit_has_no_solution);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
