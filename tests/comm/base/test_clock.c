/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/base/clock.h"

#include "xm_test.h"

START_TEST(readings_never_go_back)
{
    int64_t last = xm_clock_ns();

    for (int i = 0; i < 100000; ++i) {
        int64_t now = xm_clock_ns();

        ck_assert_int_ge(now, last);
        last = now;
    }
}
END_TEST

START_TEST(seconds_and_nanoseconds_are_one_clock)
{
    int64_t before = xm_clock_ns();
    double now = xm_clock_seconds();
    int64_t after = xm_clock_ns();

    ck_assert_double_ge(now, 1e-9 * (double)before);
    ck_assert_double_le(now, 1e-9 * (double)after);
}
END_TEST

START_TEST(sleep_takes_time_and_no_processor)
{
    struct timespec nap = {.tv_nsec = 50 * 1000 * 1000};
    int64_t start = xm_clock_ns();
    double cpu = xm_clock_cpu_seconds();

    ck_assert_int_eq(nanosleep(&nap, NULL), 0);
    ck_assert_int_ge(xm_clock_ns() - start, nap.tv_nsec);
    ck_assert_double_lt(xm_clock_cpu_seconds() - cpu, 0.045);
}
END_TEST

START_TEST(work_takes_processor_time)
{
    int64_t cpu = xm_clock_cpu_ns();

    while (xm_clock_cpu_ns() == cpu) {
    }
    ck_assert_int_gt(xm_clock_cpu_ns(), cpu);
}
END_TEST

START_TEST(wall_clock_is_after_2020)
{
    ck_assert_int_gt(xm_clock_read_ns(CLOCK_REALTIME), INT64_C(1577836800) * 1000000000);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("clock");
    TCase *tcase = tcase_create("all");

    tcase_add_test(tcase, readings_never_go_back);
    tcase_add_test(tcase, seconds_and_nanoseconds_are_one_clock);
    tcase_add_test(tcase, sleep_takes_time_and_no_processor);
    tcase_add_test(tcase, work_takes_processor_time);
    tcase_add_test(tcase, wall_clock_is_after_2020);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
