/* SPDX-License-Identifier: Apache-2.0 */
/* Shares of cores: what a busy loop gets, and that groups are gone afterwards, also those of a
 * maker that was killed. Runs by version 1 or 2 of control groups, whichever the machine has. */
#include "bench/cluster/core_share.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "xm_test.h"

enum { SKIPPED = 77 };

static double now(clockid_t clock)
{
    struct timespec time;

    (void)clock_gettime(clock, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Processor time per second of this process, which does nothing but want it. */
static double burn(double seconds)
{
    double begin = now(CLOCK_MONOTONIC), spent = now(CLOCK_PROCESS_CPUTIME_ID), end;

    do {
        end = now(CLOCK_MONOTONIC);
    } while (end < begin + seconds);
    return (now(CLOCK_PROCESS_CPUTIME_ID) - spent) / (end - begin);
}

/* In the share: the status says how many hundredths of a core there were. */
static int hundredths(const rb_core_share_t *share)
{
    int wait_status = -1;
    pid_t child = fork();

    ck_assert_int_ge(child, 0);
    if (child == 0) {
        _exit(rb_core_share_join(share) == XM_OK ? (int)(100 * burn(2) + 0.5) : 255);
    }
    ck_assert_int_eq(waitpid(child, &wait_status, 0), child);
    ck_assert(WIFEXITED(wait_status));
    return WEXITSTATUS(wait_status);
}

START_TEST(a_loop_gets_its_share)
{
    static const double shares[] = {0.1, 0.4};
    rb_core_share_t share;
    double got[2];

    for (int i = 0; i < 2; ++i) {
        ck_assert_xm_ok(rb_core_share_open(shares[i], &share));
        ck_assert_int_eq(access(share.folder, F_OK), 0);
        /* No more; a machine that is busy, or interpreted, has less for everybody. */
        got[i] = hundredths(&share) / 100.0;
        ck_assert_double_le(got[i], 1.25 * shares[i]);
        ck_assert_double_ge(got[i], 0.2 * shares[i]);
        rb_core_share_close(&share);
        ck_assert_int_ne(access(share.folder, F_OK), 0);
        rb_core_share_close(&share); /* nothing twice */
    }
    ck_assert_double_gt(got[1], got[0]);
    ck_assert_xm_ok(rb_core_share_open(0, &share));
    ck_assert_int_ne(hundredths(&share), 255); /* in no group, which is no error */
    rb_core_share_close(&share);
}
END_TEST

START_TEST(groups_of_killed_makers_go)
{
    rb_core_share_t share;
    char folder[sizeof(share.folder)] = "";
    int ends[2], wait_status;
    pid_t child;

    ck_assert_int_eq(pipe(ends), 0);
    child = fork();
    if (child == 0) {
        if (rb_core_share_open(0.5, &share) == XM_OK) {
            (void)!write(ends[1], share.folder, sizeof(share.folder));
        }
        (void)raise(SIGKILL);
    }
    ck_assert_int_eq(read(ends[0], folder, sizeof(folder)), sizeof(folder));
    ck_assert_int_eq(waitpid(child, &wait_status, 0), child);
    ck_assert_int_eq(access(folder, F_OK), 0);
    ck_assert_xm_ok(rb_core_share_open(0.5, &share));
    ck_assert_int_ne(access(folder, F_OK), 0);
    rb_core_share_close(&share);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("core_share");
    TCase *tcase = tcase_create("groups");
    rb_core_share_t share;

    /* What version 1 lets be written must be taken. */
    if (rb_core_share_open(1, &share) < 0 &&
        access("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", W_OK) != 0) {
        (void)printf("skipped: %s\n", xm_last_error());
        return SKIPPED;
    }
    rb_core_share_close(&share);
    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, a_loop_gets_its_share);
    tcase_add_test(tcase, groups_of_killed_makers_go);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
