/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/report/refit.h"

#include "tests/bench/cases/bench_fixture.h"

/* Times that were made of 50 us a message and 2 GB/s. */
START_TEST(terms_are_found_again)
{
    rb_outcome_t outcomes[] = {{.load = {100, 1e9}}, {.load = {20000, 1e8}}, {.load = {3, 4e9}}};
    rb_terms_t terms;

    for (int i = 0; i < 3; ++i) {
        outcomes[i].time_s = outcomes[i].load.messages * 50e-6 + outcomes[i].load.bytes / 2e9;
    }
    ck_assert(rb_terms_fit(outcomes, 3, &terms));
    ck_assert_double_eq_tol(terms.overhead_s, 50e-6, 1e-9);
    ck_assert_double_eq_tol(terms.bytes_per_s, 2e9, 1e4);
    ck_assert_double_le(terms.worst_error, 1e-9);
    outcomes[0].time_s *= 1.1;
    ck_assert(rb_terms_fit(outcomes, 3, &terms));
    ck_assert_double_ge(terms.worst_error, 0.01);
}
END_TEST

/* More messages and less time: what they cost is nothing, and never less. */
START_TEST(no_term_is_negative)
{
    rb_outcome_t falling[] = {{.load = {100, 1e9}, .time_s = 1},
                              {.load = {200, 1e9}, .time_s = 0.9}};
    rb_outcome_t many[] = {{.load = {1000, 1e6}, .time_s = 1},
                           {.load = {1000, 2e6}, .time_s = 0.9}};
    rb_terms_t terms;

    ck_assert(rb_terms_fit(falling, 2, &terms));
    ck_assert_double_eq(terms.overhead_s, 0);
    ck_assert_double_eq_tol(terms.bytes_per_s, 1e9 / 0.947, 1e7);
    ck_assert(rb_terms_fit(many, 2, &terms));
    ck_assert(isinf(terms.bytes_per_s));
    ck_assert_double_eq_tol(terms.overhead_s, 0.947e-3, 1e-5);
}
END_TEST

START_TEST(alike_loads_have_no_terms)
{
    rb_outcome_t alike[] = {{.load = {100, 1e9}, .time_s = 1}, {.load = {200, 2e9}, .time_s = 2}};
    rb_terms_t terms;

    ck_assert(!rb_terms_fit(alike, 2, &terms));
    ck_assert(!rb_terms_fit(alike, 1, &terms));
    ck_assert(!rb_terms_fit(alike, 0, &terms));
}
END_TEST

/* nm1 sends the half of 2 GiB that each of two hosts holds to another host, in chunks of at most
 * 512 KiB. */
START_TEST(the_busiest_host_is_counted)
{
    static const struct {
        const char *name;
        double bytes;
    } rows[] = {{"nm1", GIB}, {"1m1", GIB}, {"1m5", GIB}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); ++i) {
        bench_fixture_t fixture;
        rb_load_t load;

        bench_fixture_open(rows[i].name, XM_STRATEGY_BROADCAST, XM_SCHEDULER_BALANCE, &fixture);
        ck_assert_xm_ok(rb_load_of(fixture.prepared.plan, &load));
        ck_assert_double_eq(load.bytes, rows[i].bytes);
        ck_assert_double_ge(load.messages, rows[i].bytes / (8 << 20));
        ck_assert_double_le(load.messages, rows[i].bytes / (64 << 10));
        bench_fixture_close(&fixture);
    }
}
END_TEST

/* Each published case is a model of the suite, and no other case is. */
START_TEST(published_cases_are_models)
{
    int published = 0;

    for (int i = 0; i < rb_suite_cases(); ++i) {
        const rb_published_t *row = rb_published_find(rb_suite_case_name(i));

        ck_assert_int_eq(row != NULL, rb_suite_holds(RB_SUITE_REFIT, i));
        ck_assert(row == NULL || !rb_suite_holds(RB_SUITE_MODEL, i));
        ck_assert(row == NULL || (row->least_s > 0 && row->most_s >= row->least_s));
        published += row != NULL;
    }
    ck_assert_int_eq(published, 7);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("refit");
    TCase *tests = tcase_create("refit");

    tcase_add_test(tests, terms_are_found_again);
    tcase_add_test(tests, no_term_is_negative);
    tcase_add_test(tests, alike_loads_have_no_terms);
    tcase_add_test(tests, the_busiest_host_is_counted);
    tcase_add_test(tests, published_cases_are_models);
    suite_add_tcase(suite, tests);
    return xm_test_run(suite);
}
