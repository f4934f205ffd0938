/* SPDX-License-Identifier: Apache-2.0 */
/* Runtimes that are fitted to steps of one stage, whose seconds and bytes are a formula: the fit
 * finds the numbers that made them, in spite of a strange run, and without the row left out. */
#include "planner/judge.h"

#include <math.h>

#include "comm/base.h"
#include "xm_test.h"

enum { ROWS = 9, RUNS = 10 };

typedef struct made {
    ap_measured_t measured;
    ap_measured_row_t rows[ROWS];
    xm_runtime_t truth;
} made_t;

static double between(xm_random_t *state, double low, double high)
{
    return low + (high - low) * xm_random_unit(xm_random_next(state));
}

/* One stage on one device, measured as its formula says. */
static void make_row(xm_random_t *state, const xm_runtime_t *truth, ap_measured_row_t *row)
{
    static const int device = 0;
    int64_t count = 1 + (int64_t)between(state, 0, 40);
    ap_plan_stage_t stage = {.hosts = 1,
                             .devices_per_host = 1,
                             .shape = {1, 1},
                             .devices = &device,
                             .forward = between(state, 0.01, 0.1),
                             .backward = between(state, 0.01, 0.2),
                             .sync = between(state, 0.001, 0.1),
                             .update = between(state, 0, 0.01),
                             .state_bytes = floor(between(state, 1e8, 2e9)),
                             .activation_bytes = floor(between(state, 1e8, 9e9)),
                             .work_bytes = floor(between(state, 1e7, 2e9)),
                             .in_flight = 1};
    ap_plan_params_t params = {.info = {.model = "made",
                                        .layers = 1,
                                        .global_batch = count,
                                        .micro_batches = count,
                                        .schedule = "1f1b",
                                        .cluster = "made",
                                        .cluster_provenance = "made",
                                        .hosts = 1,
                                        .devices_per_host = 1,
                                        .optimiser = "given"},
                               .stages = &stage,
                               .stage_count = 1};

    *row = (ap_measured_row_t){.name = "row"};
    ck_assert_xm_ok(ap_plan_create(&params, &row->plan));
    row->sync = truth->collective * stage.sync;
    row->step = (double)count * (stage.forward + stage.backward + 2 * truth->pass) + row->sync +
                stage.update;
    row->memory = truth->context + stage.state_bytes + stage.activation_bytes +
                  truth->working * stage.work_bytes;
}

static void make(xm_random_t *state, made_t *made)
{
    made->truth = (xm_runtime_t){.pass = between(state, 0.001, 0.02),
                                 .collective = between(state, 1, 4),
                                 .context = between(state, 1e9, 5e9),
                                 .working = between(state, 1, 4)};
    made->measured = (ap_measured_t){.rows = made->rows, .count = ROWS};
    for (int i = 0; i < ROWS; ++i) {
        make_row(state, &made->truth, &made->rows[i]);
    }
}

static void clear(made_t *made)
{
    for (int i = 0; i < ROWS; ++i) {
        ap_plan_destroy(made->rows[i].plan);
    }
}

static void check_runtime(const xm_runtime_t *found, const xm_runtime_t *truth)
{
    ck_assert_double_eq_tol(found->pass, truth->pass, 1e-5 * truth->pass);
    ck_assert_double_eq_tol(found->collective, truth->collective, 1e-9);
    ck_assert_double_eq_tol(found->context, truth->context, 1e-3 * truth->context);
    ck_assert_double_eq_tol(found->working, truth->working, 1e-2 * truth->working);
}

START_TEST(test_fit_finds_what_made_the_rows)
{
    xm_random_t state = {41};

    for (int run = 0; run < RUNS; ++run) {
        made_t made;
        xm_runtime_t found;

        make(&state, &made);
        ck_assert_xm_ok(ap_runtime_fit(&made.measured, -1, &found));
        check_runtime(&found, &made.truth);
        ck_assert_double_lt(found.spread, 1e-4);
        ck_assert_double_lt(found.memory_spread, 1e-3);
        clear(&made);
    }
}
END_TEST

START_TEST(test_a_strange_run_moves_little)
{
    xm_random_t state = {42};

    for (int run = 0; run < RUNS; ++run) {
        made_t made;
        xm_runtime_t found;

        make(&state, &made);
        made.rows[run % ROWS].step *= 1.7;
        made.rows[run % ROWS].sync *= 20;
        ck_assert_xm_ok(ap_runtime_fit(&made.measured, -1, &found));
        ck_assert_double_eq_tol(found.pass, made.truth.pass, 1e-5 * made.truth.pass);
        ck_assert_double_eq_tol(found.collective, made.truth.collective, 1e-9);
        ck_assert_double_gt(found.spread, 0.1);
        clear(&made);
    }
}
END_TEST

START_TEST(test_the_row_left_out_has_no_part)
{
    xm_random_t state = {43};

    for (int run = 0; run < RUNS; ++run) {
        made_t made;
        xm_runtime_t before, after;
        int out = run % ROWS;

        make(&state, &made);
        ck_assert_xm_ok(ap_runtime_fit(&made.measured, out, &before));
        check_runtime(&before, &made.truth);
        made.rows[out].step *= between(&state, 0.2, 5);
        made.rows[out].sync = 0;
        made.rows[out].memory *= between(&state, 0.2, 5);
        ck_assert_xm_ok(ap_runtime_fit(&made.measured, out, &after));
        ck_assert_double_eq(before.pass, after.pass);
        ck_assert_double_eq(before.collective, after.collective);
        ck_assert_double_eq(before.spread, after.spread);
        ck_assert_double_eq(before.context, after.context);
        ck_assert_double_eq(before.working, after.working);
        clear(&made);
    }
}
END_TEST

START_TEST(test_two_rows_tell_nothing)
{
    xm_random_t state = {44};
    made_t made;
    xm_runtime_t found;

    make(&state, &made);
    made.measured.count = 2;
    ck_assert_xm_ok(ap_runtime_fit(&made.measured, -1, &found));
    ck_assert_double_eq(found.pass, 0);
    ck_assert_double_eq(found.collective, 1);
    ck_assert_double_eq(found.context, 0);
    clear(&made);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("judge");
    TCase *tests = tcase_create("fit");

    tcase_add_test(tests, test_fit_finds_what_made_the_rows);
    tcase_add_test(tests, test_a_strange_run_moves_little);
    tcase_add_test(tests, test_the_row_left_out_has_no_part);
    tcase_add_test(tests, test_two_rows_tell_nothing);
    suite_add_tcase(suite, tests);
    return xm_test_run(suite);
}
