/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/report/lanes.h"

#include "xm_test.h"

static void add(rb_lanes_t *lanes, int64_t start, int64_t end, int64_t task, int source)
{
    const rb_bar_t bar = {.start_ns = start,
                          .end_ns = end,
                          .task = task,
                          .source = source,
                          .hops = 1,
                          .bytes = (uint64_t)(end - start)};

    ck_assert_xm_ok(rb_lanes_add(lanes, 0, &bar));
}

/* Bars of one task that touch, overlap or nearly touch become one; others stay. */
START_TEST(bars_of_a_task_are_merged)
{
    rb_lanes_t lanes;
    const rb_bar_t *bars;

    ck_assert_xm_ok(rb_lanes_create(2, &lanes));
    add(&lanes, 30, 40, 1, 0);
    add(&lanes, 0, 10, 1, 0);
    add(&lanes, 10, 22, 1, 0);
    add(&lanes, 24, 28, 2, 0); /* between two of task 1 */
    add(&lanes, 60, 70, 1, 0); /* too far */
    add(&lanes, 40, 44, 1, 3); /* another's data */
    rb_lanes_merge_tasks(&lanes, 8);
    ck_assert_xm_ok(rb_lanes_arrange(&lanes, 0));
    ck_assert_uint_eq(rb_lanes_bars(&lanes), 4);
    ck_assert_int_eq(rb_lanes_end(&lanes), 70);
    bars = lanes.lanes[0].bars;
    ck_assert_int_eq(bars[0].start_ns, 0);
    ck_assert_int_eq(bars[0].end_ns, 40);
    ck_assert_int_eq(bars[0].hops, 3);
    ck_assert_uint_eq(bars[0].bytes, 32);
    ck_assert_int_eq(bars[1].task, 2);
    ck_assert_int_eq(bars[1].row, 1);
    ck_assert_int_eq(bars[2].source, 3);
    ck_assert_int_eq(bars[2].row, 0);
    ck_assert_int_eq(bars[3].start_ns, 60);
    rb_lanes_clear(&lanes);
}
END_TEST

START_TEST(short_neighbours_of_any_task_are_merged)
{
    rb_lanes_t lanes;
    const rb_bar_t *bars;

    ck_assert_xm_ok(rb_lanes_create(1, &lanes));
    add(&lanes, 0, 4, 0, 5);
    add(&lanes, 4, 8, 1, 5);
    add(&lanes, 100, 104, 2, 5);
    add(&lanes, 104, 108, 3, 6);
    add(&lanes, 108, 208, 4, 6); /* long */
    rb_lanes_merge_short(&lanes, 10);
    bars = lanes.lanes[0].bars;
    ck_assert_uint_eq(rb_lanes_bars(&lanes), 3);
    ck_assert_int_eq(bars[0].task, -1);
    ck_assert_int_eq(bars[0].source, 5);
    ck_assert_int_eq(bars[1].source, -1);
    ck_assert_int_eq(bars[1].end_ns, 108);
    ck_assert_int_eq(bars[2].task, 4);
    rb_lanes_clear(&lanes);
}
END_TEST

/* What overlaps by no more than the slack shares a row. */
START_TEST(overlapping_bars_get_rows_of_their_own)
{
    rb_lanes_t lanes;

    ck_assert_xm_ok(rb_lanes_create(1, &lanes));
    add(&lanes, 0, 10, 0, 0);
    add(&lanes, 8, 20, 1, 0);
    add(&lanes, 9, 20, 2, 0);
    ck_assert_xm_ok(rb_lanes_arrange(&lanes, 0));
    ck_assert_int_eq(lanes.lanes[0].rows, 3);
    ck_assert_xm_ok(rb_lanes_arrange(&lanes, 2));
    ck_assert_int_eq(lanes.lanes[0].rows, 2);
    rb_lanes_clear(&lanes);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("lanes");
    TCase *tests = tcase_create("lanes");

    tcase_add_test(tests, bars_of_a_task_are_merged);
    tcase_add_test(tests, short_neighbours_of_any_task_are_merged);
    tcase_add_test(tests, overlapping_bars_get_rows_of_their_own);
    suite_add_tcase(suite, tests);
    return xm_test_run(suite);
}
