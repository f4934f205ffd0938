/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/run/processors.h"

#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/base.h"
#include "xm_test.h"

/* Two processes on one processor, neither of which ever sleeps. */
START_TEST(what_was_not_run_was_waited)
{
    int64_t started, ran, waited;
    int file = rb_processors_open();
    cpu_set_t set;
    pid_t other;

    if (rb_processors_waited_ns(file) < 0) {
        return; /* the kernel does not count */
    }
    CPU_ZERO(&set);
    CPU_SET((size_t)sched_getcpu(), &set);
    ck_assert_int_eq(sched_setaffinity(0, sizeof(set), &set), 0);
    other = fork();
    ck_assert_int_ge(other, 0);
    while (other == 0) {
    }
    started = xm_clock_ns();
    ran = xm_clock_read_ns(CLOCK_THREAD_CPUTIME_ID);
    waited = rb_processors_waited_ns(file);
    while (xm_clock_ns() - started < 400000000) {
    }
    waited = rb_processors_waited_ns(file) - waited;
    ran = xm_clock_read_ns(CLOCK_THREAD_CPUTIME_ID) - ran;
    started = xm_clock_ns() - started;
    ck_assert_int_eq(kill(other, SIGKILL), 0);
    ck_assert_int_eq(waitpid(other, NULL, 0), other);
    (void)close(file);
    ck_assert_int_gt(waited, 50000000);
    ck_assert_double_eq_tol((double)waited, (double)(started - ran), 0.1 * (double)started);
}
END_TEST

START_TEST(where_nothing_is_told_nothing_is_known)
{
    ck_assert_int_eq(rb_processors_waited_ns(-1), -1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("processors");
    TCase *tests = tcase_create("processors");

    tcase_add_test(tests, what_was_not_run_was_waited);
    tcase_add_test(tests, where_nothing_is_told_nothing_is_known);
    suite_add_tcase(suite, tests);
    return xm_test_run(suite);
}
