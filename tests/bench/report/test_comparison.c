/* SPDX-License-Identifier: Apache-2.0 */
/* Statistics of one result, and what results say next to each other. */
#include "bench/report/comparison.h"

#include <math.h>

#include "tests/bench/cases/bench_fixture.h"

/* A result of nm3 with the given times, as variant @p variant of @p variants. */
static void add(rb_comparison_t *comparison, bench_fixture_t *fixture, xm_strategy_t strategy,
                xm_scheduler_t scheduler, int variant, int variants, double seconds)
{
    rb_result_t result = {.prepared = &fixture->prepared, .runs = 1, .seconds = &seconds};

    bench_fixture_open("nm3", strategy, scheduler, fixture);
    fixture->one.variant = variant;
    fixture->one.variants = variants;
    ck_assert_xm_ok(rb_comparison_add(comparison, &result));
    bench_fixture_close(fixture);
}

START_TEST(times_have_mean_and_variance)
{
    double seconds[] = {5, 1, 3, 7}, alone = 2;
    rb_times_t times = rb_result_times(&(rb_result_t){.runs = 4, .seconds = seconds});

    ck_assert_double_eq(times.min, 1);
    ck_assert_double_eq(times.median, 4);
    ck_assert_double_eq(times.max, 7);
    ck_assert_double_eq(times.mean, 4);
    ck_assert_double_eq_tol(times.variance, 5, 1e-12);
    times = rb_result_times(&(rb_result_t){.runs = 1, .seconds = &alone});
    ck_assert_double_eq(times.mean, 2);
    ck_assert_double_eq(times.variance, 0);
}
END_TEST

/* nm3 by naive broadcast takes 1.5 s at 1 GiB/s. */
START_TEST(simulation_error_is_signed)
{
    bench_fixture_t fixture;
    double slow = 3, fast = 1;
    rb_result_t result = {.prepared = &fixture.prepared};

    bench_fixture_open("nm3", XM_STRATEGY_BROADCAST, XM_SCHEDULER_NAIVE, &fixture);
    ck_assert(isnan(rb_result_sim_error(&result)));
    result.runs = 1;
    result.seconds = &slow;
    ck_assert_double_eq_tol(rb_result_sim_error(&result), -0.5, 0.01);
    ck_assert_double_eq_tol(rb_result_bound_fraction(&result), 1.0 / 3, 0.01);
    result.seconds = &fast;
    ck_assert_double_eq_tol(rb_result_sim_error(&result), 0.5, 0.01);
    bench_fixture_close(&fixture);
}
END_TEST

/* Makespan 1.5 s, runs of 2 s. */
START_TEST(what_waited_for_processors_is_not_compared)
{
    static const struct {
        double waited_s;
        rb_processors_t processors;
        const char *obstacle;
    } rows[] = {
        {0, {0, 0}, NULL},
        {0.29, {8, 2}, NULL},
        {0.5,
         {8, 2},
         "8 ranks share 2 processors, for which they waited 25 % of the time, added up"},
        {2, {2, 1}, "2 ranks share 1 processor, for which they waited 100 % of the time, added up"},
        {0.4, {2, 2}, "a rank waited 20 % of the time for processors that other programs had"},
        {-1e-9, {4, 4}, NULL},
        {-1e-9,
         {4, 3},
         "4 ranks share 3 processors, and the kernel does not tell how long they waited"},
    };
    double seconds[] = {2, 2};
    bench_fixture_t fixture;
    rb_result_t result = {.prepared = &fixture.prepared, .runs = 2, .seconds = seconds};

    bench_fixture_open("nm3", XM_STRATEGY_BROADCAST, XM_SCHEDULER_NAIVE, &fixture);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); ++i) {
        char text[RB_OBSTACLE_TEXT] = "untouched";
        const char *obstacle;

        result.waited_s = rows[i].waited_s;
        result.processors = rows[i].processors;
        obstacle = rb_result_obstacle(&result, text);
        ck_assert_str_eq(text, rows[i].obstacle != NULL ? rows[i].obstacle : "untouched");
        ck_assert_ptr_eq(obstacle, rows[i].obstacle != NULL ? text : NULL);
        ck_assert(isnan(rb_result_sim_error(&result)) == (obstacle != NULL));
    }
    bench_fixture_close(&fixture);
}
END_TEST

START_TEST(variants_are_compared_with_auto_or_the_first)
{
    rb_comparison_t comparison = {0};
    bench_fixture_t fixture;
    static const double ratios[] = {1, 0.5, 2, 4, 1, 1};
    static const size_t references[] = {0, 0, 4, 4, 4, 5};

    add(&comparison, &fixture, XM_STRATEGY_BROADCAST, XM_SCHEDULER_NAIVE, 0, 2, 4);
    add(&comparison, &fixture, XM_STRATEGY_BROADCAST, XM_SCHEDULER_GREEDY, 1, 2, 2);
    add(&comparison, &fixture, XM_STRATEGY_BROADCAST, XM_SCHEDULER_AUTO, 0, 3, 2);
    add(&comparison, &fixture, XM_STRATEGY_SEND_RECV, XM_SCHEDULER_AUTO, 1, 3, 4);
    add(&comparison, &fixture, XM_STRATEGY_AUTO, XM_SCHEDULER_AUTO, 2, 3, 1);
    add(&comparison, &fixture, XM_STRATEGY_SEND_RECV, XM_SCHEDULER_NAIVE, 0, 1, 9);
    for (size_t i = 0; i < comparison.count; ++i) {
        ck_assert_uint_eq(rb_comparison_reference(&comparison, i), references[i]);
        ck_assert_double_eq_tol(rb_comparison_ratio(&comparison, i), ratios[i], 1e-12);
    }
    rb_comparison_clear(&comparison);
}
END_TEST

/* Makespan 1.5 s: errors of +50 %, 0 and -75 %. */
START_TEST(prediction_error_is_the_median_and_the_worst)
{
    rb_comparison_t comparison = {0};
    bench_fixture_t fixture;
    double median;
    size_t worst;

    ck_assert(!rb_comparison_prediction(&comparison, &median, &worst));
    add(&comparison, &fixture, XM_STRATEGY_BROADCAST, XM_SCHEDULER_NAIVE, 0, 1, 1);
    add(&comparison, &fixture, XM_STRATEGY_BROADCAST, XM_SCHEDULER_NAIVE, 0, 1, 6);
    add(&comparison, &fixture, XM_STRATEGY_BROADCAST, XM_SCHEDULER_NAIVE, 0, 1, 1.5);
    ck_assert(rb_comparison_prediction(&comparison, &median, &worst));
    ck_assert_double_eq_tol(median, 0.5, 0.01);
    ck_assert_uint_eq(worst, 1);
    rb_comparison_clear(&comparison);
}
END_TEST

/* Prints the line of the prediction error of such outcomes. */
static char *line_of(rb_outcome_t *outcomes, size_t count)
{
    rb_comparison_t comparison = {.outcomes = outcomes, .count = count};
    char *line = NULL;
    size_t length;
    FILE *file = open_memstream(&line, &length);

    ck_assert_ptr_nonnull(file);
    rb_comparison_print_prediction(file, &comparison);
    ck_assert_int_eq(fclose(file), 0);
    return line;
}

START_TEST(the_line_says_why_there_is_no_error)
{
    rb_outcome_t outcomes[] = {{.name = "a", .sim_error = NAN, .obstacle = "first"},
                               {.name = "b", .sim_error = NAN, .obstacle = "second"},
                               {.name = "c", .sim_error = -0.25}};
    char *line = line_of(outcomes, 2);

    ck_assert_str_eq(line, "# Prediction error     : not comparable: first\n");
    free(line);
    line = line_of(outcomes, 3);
    ck_assert_str_eq(line, "# Prediction error     : median 25.0 %, worst -25.0 % (c, send_recv, "
                           "naive); 2 not comparable: first\n");
    free(line);
    line = line_of(outcomes, 0);
    ck_assert_str_eq(line, "");
    free(line);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("comparison");
    TCase *tests = tcase_create("comparison");

    tcase_add_test(tests, times_have_mean_and_variance);
    tcase_add_test(tests, simulation_error_is_signed);
    tcase_add_test(tests, what_waited_for_processors_is_not_compared);
    tcase_add_test(tests, the_line_says_why_there_is_no_error);
    tcase_add_test(tests, variants_are_compared_with_auto_or_the_first);
    tcase_add_test(tests, prediction_error_is_the_median_and_the_worst);
    suite_add_tcase(suite, tests);
    return xm_test_run(suite);
}
