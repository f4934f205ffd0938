/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/pipeline/wake_queue.h"

#include "xm_test.h"

enum { SLEEPERS = 40 };

START_TEST(sleepers_wake_in_the_order_of_time_and_number)
{
    ap_wake_queue_t queue;
    xm_arena_t arena = {0};
    int64_t time;
    int who;

    ck_assert_xm_ok(ap_wake_queue_init(&queue, 5, &arena));
    ck_assert(!ap_wake_queue_take(&queue, &who, &time));
    ap_wake_queue_set(&queue, 3, 20);
    ap_wake_queue_set(&queue, 1, 20);
    ap_wake_queue_set(&queue, 4, 10);
    ap_wake_queue_set(&queue, 0, 5);
    ap_wake_queue_set(&queue, 0, 30); /* later after all */
    ap_wake_queue_set(&queue, 2, 1);
    ap_wake_queue_remove(&queue, 2);
    ap_wake_queue_remove(&queue, 2);
    for (int i = 0; i < 4; ++i) {
        static const int sleepers[] = {4, 1, 3, 0};
        static const int64_t times[] = {10, 20, 20, 30};

        ck_assert(ap_wake_queue_take(&queue, &who, &time));
        ck_assert_int_eq(who, sleepers[i]);
        ck_assert_int_eq(time, times[i]);
    }
    ck_assert(!ap_wake_queue_take(&queue, &who, &time));
    xm_arena_clear(&arena);
}
END_TEST

/* Against a look at all of them. */
START_TEST(random_changes_keep_the_order)
{
    uint64_t state = 7;
    int64_t times[SLEEPERS];
    ap_wake_queue_t queue;
    xm_arena_t arena = {0};

    ck_assert_xm_ok(ap_wake_queue_init(&queue, SLEEPERS, &arena));
    for (int i = 0; i < SLEEPERS; ++i) {
        times[i] = -1;
    }
    for (int step = 0; step < 20000; ++step) {
        int sleeper, first = -1, who = -1;
        int64_t time;

        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        sleeper = (int)(state >> 33) % SLEEPERS;
        if (state >> 62 < 2) {
            times[sleeper] = (int64_t)(state >> 20 & 63);
            ap_wake_queue_set(&queue, sleeper, times[sleeper]);
        } else if (state >> 62 == 2) {
            times[sleeper] = -1;
            ap_wake_queue_remove(&queue, sleeper);
        } else {
            for (int i = 0; i < SLEEPERS; ++i) {
                first = times[i] >= 0 && (first < 0 || times[i] < times[first]) ? i : first;
            }
            ck_assert_int_eq(ap_wake_queue_take(&queue, &who, &time), first >= 0);
            ck_assert_int_eq(who, first);
            if (first >= 0) {
                ck_assert_int_eq(time, times[first]);
                times[first] = -1;
            }
        }
    }
    xm_arena_clear(&arena);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("wake_queue");
    TCase *unit = tcase_create("unit");

    tcase_add_test(unit, sleepers_wake_in_the_order_of_time_and_number);
    tcase_add_test(unit, random_changes_keep_the_order);
    suite_add_tcase(suite, unit);
    return xm_test_run(suite);
}
