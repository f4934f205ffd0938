/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/planner/cost/profile_fixture.h"

#include <math.h>
#include <string.h>

#include "planner/solver/elimination.h"

enum { MAX_VARIABLES = 6, MAX_TABLES = 10 };
enum { ORDERED = 40, LINKS = 60, LARGEST = 4, GRAPHS = 200 };

/* A random sum of tables, kept aside for brute force. */
typedef struct instance {
    int variables, domain[MAX_VARIABLES];
    int tables, arity[MAX_TABLES], scope[MAX_TABLES][2];
    double values[MAX_TABLES][16];
} instance_t;

static void draw(instance_t *x, unsigned *seed)
{
    x->variables = 1 + (int)(fixture_random(seed) % MAX_VARIABLES);
    x->tables = 1 + (int)(fixture_random(seed) % MAX_TABLES);
    for (int v = 0; v < x->variables; ++v) {
        x->domain[v] = 1 + (int)(fixture_random(seed) % 4);
    }
    for (int t = 0; t < x->tables; ++t) {
        int most = x->variables < 2 ? x->variables : 2, cells = 1;

        x->arity[t] = (int)(fixture_random(seed) % (unsigned)(most + 1));
        for (int i = 0; i < x->arity[t]; ++i) {
            bool again = true;

            while (again) {
                x->scope[t][i] = (int)(fixture_random(seed) % (unsigned)x->variables);
                again = false;
                for (int j = 0; j < i; ++j) {
                    again = again || x->scope[t][j] == x->scope[t][i];
                }
            }
            cells *= x->domain[x->scope[t][i]];
        }
        for (int c = 0; c < cells; ++c) {
            x->values[t][c] = fixture_random(seed) % 100;
        }
    }
}

static double value_of(const instance_t *x, const int *assignment)
{
    double sum = 0;

    for (int t = 0; t < x->tables; ++t) {
        int cell = 0;

        for (int i = 0; i < x->arity[t]; ++i) {
            cell = cell * x->domain[x->scope[t][i]] + assignment[x->scope[t][i]];
        }
        sum += x->values[t][cell];
    }
    return sum;
}

/* Moves on to the next assignment; false after the last. */
static bool next(const instance_t *x, int *assignment)
{
    for (int v = 0; v < x->variables; ++v) {
        if (++assignment[v] < x->domain[v]) {
            return true;
        }
        assignment[v] = 0;
    }
    return false;
}

static double brute_force(const instance_t *x, const bool *keep, const int *fixed)
{
    int assignment[MAX_VARIABLES] = {0};
    double best = HUGE_VAL;

    do {
        bool agrees = true;

        for (int v = 0; v < x->variables; ++v) {
            agrees = agrees && (!keep[v] || assignment[v] == fixed[v]);
        }
        best = agrees ? fmin(best, value_of(x, assignment)) : best;
    } while (next(x, assignment));
    return best;
}

/* The same as a network: tables of one variable are its costs, those of none the constant. */
static ap_cfn_core_t *core_of(const instance_t *x)
{
    ap_cfn_core_size_t size = {.variables = x->variables,
                               .links = MAX_TABLES,
                               .values = MAX_VARIABLES * 4,
                               .cells = MAX_TABLES * 16};
    ap_cfn_core_maker_t maker;

    ck_assert_xm_ok(ap_cfn_core_begin(&size, &maker));
    for (int v = 0; v < x->variables; ++v) {
        double *cost = ap_cfn_core_add_variable(&maker, x->domain[v]);

        memset(cost, 0, (size_t)x->domain[v] * sizeof(*cost));
        for (int t = 0; t < x->tables; ++t) {
            for (int i = 0; i < x->domain[v] && x->arity[t] == 1 && x->scope[t][0] == v; ++i) {
                cost[i] += x->values[t][i];
            }
        }
    }
    for (int t = 0; t < x->tables; ++t) {
        maker.core->constant += x->arity[t] == 0 ? x->values[t][0] : 0.0;
        if (x->arity[t] == 2) {
            int a = x->scope[t][0], b = x->scope[t][1];

            memcpy(ap_cfn_core_add_link(&maker, a, b), x->values[t],
                   (size_t)(x->domain[a] * x->domain[b]) * sizeof(double));
        }
    }
    return ap_cfn_core_finish(&maker);
}

START_TEST(every_cell_is_the_minimum_and_is_attained)
{
    unsigned seed = 7;

    for (int round = 0; round < 2000; ++round) {
        instance_t x = {0};
        bool keep[MAX_VARIABLES];
        int assignment[MAX_VARIABLES] = {0};
        const ap_elimination_params_t params = {.keep = keep, .cells = 1 << 20};
        ap_cfn_core_t *core;
        ap_elimination_t *e;

        draw(&x, &seed);
        for (int v = 0; v < x.variables; ++v) {
            keep[v] = fixture_random(&seed) % 3 == 0;
        }
        core = core_of(&x);
        ck_assert_xm_ok(ap_elimination_create(core, &e));
        ck_assert_xm_ok(ap_elimination_plan(e, &params));
        ap_elimination_run(e, ap_cfn_core_costs(core));
        do {
            int traced[MAX_VARIABLES];
            double expected = brute_force(&x, keep, assignment);
            double found = ap_elimination_minimum(e, ap_cfn_core_costs(core), assignment);

            memcpy(traced, assignment, sizeof(traced));
            ck_assert_double_eq_tol(core->constant + found, expected, 1e-9);
            ap_elimination_trace(e, ap_cfn_core_costs(core), traced);
            ck_assert_double_eq_tol(value_of(&x, traced), expected, 1e-9);
            for (int v = 0; v < x.variables; ++v) {
                ck_assert(!keep[v] || traced[v] == assignment[v]);
            }
        } while (next(&x, assignment));
        ap_elimination_destroy(e);
        ap_cfn_core_destroy(core);
    }
}
END_TEST

/* A part of the variables, some of them fixed because the tables would be too large: what is left
 * is a problem of its own, of the links inside. One object serves many plans. */
START_TEST(parts_are_problems_of_their_own)
{
    unsigned seed = 11;
    int fixed = 0;

    for (int round = 0; round < 500; ++round) {
        instance_t x = {0}, part;
        int list[MAX_VARIABLES], value[MAX_VARIABLES];
        const double cost[MAX_VARIABLES * 4] = {0.0};
        const int zeros[MAX_VARIABLES] = {0};
        bool none[MAX_VARIABLES] = {false};
        ap_cfn_core_t *core;
        ap_elimination_t *e;

        draw(&x, &seed);
        core = core_of(&x);
        ck_assert_xm_ok(ap_elimination_create(core, &e));
        for (int again = 0; again < 3; ++again) {
            ap_elimination_params_t params = {.variables = list, .cells = 3, .fix = true};

            for (int v = x.variables - 1; v >= 0; --v) {
                if (fixture_random(&seed) % 4 != 0) {
                    list[params.count++] = v;
                }
            }
            ck_assert_xm_ok(ap_elimination_plan(e, &params));
            part = x;
            part.tables = 0;
            for (int v = 0; v < x.variables; ++v) {
                int number = e->local[v];

                if (number < 0 || e->position[number] < 0) {
                    part.domain[v] = 1;
                    fixed += number >= 0;
                }
            }
            for (int t = 0; t < x.tables; ++t) {
                if (x.arity[t] == 2 && e->local[x.scope[t][0]] >= 0 &&
                    e->local[x.scope[t][1]] >= 0 && e->position[e->local[x.scope[t][0]]] >= 0 &&
                    e->position[e->local[x.scope[t][1]]] >= 0) {
                    part.arity[part.tables] = 2;
                    memcpy(part.scope[part.tables], x.scope[t], sizeof(x.scope[t]));
                    memcpy(part.values[part.tables++], x.values[t], sizeof(x.values[t]));
                }
            }
            memset(value, 0, sizeof(value));
            ck_assert_double_eq_tol(ap_elimination_solve(e, cost, value),
                                    brute_force(&part, none, zeros), 1e-9);
        }
        ap_elimination_destroy(e);
        ap_cfn_core_destroy(core);
    }
    ck_assert_int_gt(fixed, 50);
}
END_TEST

START_TEST(limits_are_kept)
{
    const ap_elimination_params_t small = {.cells = 5};
    instance_t x = {.variables = 3,
                    .domain = {4, 4, 4},
                    .tables = 3,
                    .arity = {2, 2, 2},
                    .scope = {{0, 1}, {1, 2}, {0, 2}}};
    ap_cfn_core_size_t size = {.variables = 1, .values = 65536};
    ap_cfn_core_maker_t maker;
    ap_cfn_core_t *core;
    ap_elimination_t *e;

    core = core_of(&x);
    ck_assert_xm_ok(ap_elimination_create(core, &e));
    ck_assert_xm_fails(ap_elimination_plan(e, &small), XM_ERR_UNSUPPORTED,
                       "variable 0 needs a table of 16 cells, allowed are 5");
    ap_elimination_destroy(e);
    ap_cfn_core_destroy(core);
    ck_assert_xm_ok(ap_cfn_core_begin(&size, &maker));
    (void)ap_cfn_core_add_variable(&maker, 65536);
    core = ap_cfn_core_finish(&maker);
    ck_assert_xm_ok(ap_elimination_create(core, &e));
    ck_assert_xm_fails(ap_elimination_plan(e, &small), XM_ERR_UNSUPPORTED,
                       "variable 0 has 65536 values");
    ap_elimination_destroy(e);
    ap_elimination_destroy(NULL);
    ap_cfn_core_destroy(core);
}
END_TEST

/* A sparse core, in tables of zeros. */
static ap_cfn_core_t *draw_graph(unsigned *seed, bool linked[ORDERED][ORDERED])
{
    ap_cfn_core_size_t size = {.variables = ORDERED,
                               .links = LINKS,
                               .values = ORDERED * LARGEST,
                               .cells = LINKS * LARGEST * LARGEST};
    ap_cfn_core_maker_t maker;
    size_t sizes[ORDERED];

    memset(linked, 0, ORDERED * sizeof(*linked));
    ck_assert_xm_ok(ap_cfn_core_begin(&size, &maker));
    for (int v = 0; v < ORDERED; ++v) {
        sizes[v] = 1 + fixture_random(seed) % LARGEST;
        memset(ap_cfn_core_add_variable(&maker, (int)sizes[v]), 0, sizes[v] * sizeof(double));
    }
    for (int k = 0; k < LINKS; ++k) {
        int a = (int)(fixture_random(seed) % (ORDERED - 1));
        int b = a + 1 + (int)(fixture_random(seed) % (unsigned)(ORDERED - 1 - a));

        memset(ap_cfn_core_add_link(&maker, a, b), 0, sizes[a] * sizes[b] * sizeof(double));
        linked[a][b] = linked[b][a] = true;
    }
    return ap_cfn_core_finish(&maker);
}

/* The variable whose elimination makes the fewest rows, of equal ones the first. */
static int scan(const ap_cfn_core_t *core, bool linked[ORDERED][ORDERED], const bool *gone)
{
    double least = HUGE_VAL;
    int first = -1;

    for (int v = 0; v < ORDERED; ++v) {
        double rows = 1.0;
        int count = 0;

        for (int w = 0; w < ORDERED; ++w) {
            rows *= linked[v][w] && !gone[w] ? core->variable[w].size : 1;
            count += linked[v][w] && !gone[w];
        }
        if (!gone[v] && count <= AP_ELIMINATION_SCOPE && rows < least) {
            least = rows;
            first = v;
        }
    }
    return first;
}

/* The tournament that finds the next variable beside a look at all of them. */
START_TEST(the_order_is_that_of_a_scan)
{
    const ap_elimination_params_t params = {.work = 1e5};
    int planned = 0;

    for (unsigned k = 0; k < GRAPHS; ++k) {
        bool linked[ORDERED][ORDERED], gone[ORDERED] = {false};
        unsigned seed = k + 1;
        ap_cfn_core_t *core = draw_graph(&seed, linked);
        ap_elimination_t *e;
        xm_status_t status;

        ck_assert_xm_ok(ap_elimination_create(core, &e));
        status = ap_elimination_plan(e, &params);
        for (int step = 0; status == XM_OK && step < ORDERED; ++step) {
            int v = scan(core, linked, gone);

            ck_assert_int_eq(e->step[step].variable, v);
            gone[v] = true;
            for (int a = 0; a < ORDERED; ++a) { /* what was linked to it is linked together */
                for (int b = 0; b < ORDERED; ++b) {
                    linked[a][b] = linked[a][b] || (a != b && linked[v][a] && linked[v][b]);
                }
            }
        }
        planned += status == XM_OK;
        ap_elimination_destroy(e);
        ap_cfn_core_destroy(core);
    }
    ck_assert_int_gt(planned, GRAPHS / 2);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("elimination");
    TCase *tcase = tcase_create("all");

    tcase_set_timeout(tcase, 50);
    tcase_add_test(tcase, every_cell_is_the_minimum_and_is_attained);
    tcase_add_test(tcase, parts_are_problems_of_their_own);
    tcase_add_test(tcase, limits_are_kept);
    tcase_add_test(tcase, the_order_is_that_of_a_scan);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
