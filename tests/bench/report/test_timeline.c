/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/report/timeline.h"

#include <stdio.h>
#include <unistd.h>

#include "tests/bench/cases/bench_fixture.h"
#include "tests/resharding/plan/plan_lists.h"

static char *read_all(const char *path)
{
    static char text[1 << 20];
    FILE *file = fopen(path, "r");
    size_t length;

    ck_assert_ptr_nonnull(file);
    length = fread(text, 1, sizeof(text) - 1, file);
    text[length] = '\0';
    (void)fclose(file);
    return text;
}

static int count(const char *text, const char *what)
{
    int found = 0;

    for (const char *at = text; (at = strstr(at, what)) != NULL; at += strlen(what)) {
        ++found;
    }
    return found;
}

/* nm5 under broadcast: four tasks cross NICs, so four bars leave and four arrive. */
START_TEST(planned_and_measured_transfers_are_drawn)
{
    const rb_record_t records[] = {{.transfer = 0, .rank = 0, .start_ns = 0, .end_ns = 700000000}};
    char path[] = "/tmp/xm-timeline-XXXXXX";
    int fd = mkstemp(path);
    bench_fixture_t fixture;
    rb_result_t result = {0};
    const char *text;

    ck_assert_int_ge(fd, 0);
    (void)close(fd);
    bench_fixture_open("nm5", XM_STRATEGY_BROADCAST, XM_SCHEDULER_BALANCE, &fixture);
    (void)snprintf(fixture.one.name, sizeof(fixture.one.name), "a<b&c");
    result.prepared = &fixture.prepared;
    ck_assert_xm_ok(rb_timeline_write(path, &result));
    text = read_all(path);
    ck_assert_int_eq(count(text, "<title>"), 9); /* the figure has one, too */
    ck_assert_int_eq(count(text, "measured"), 0);
    ck_assert_ptr_nonnull(strstr(text, "a&lt;b&amp;c"));
    ck_assert_ptr_nonnull(strstr(text, "lower bound, 1000.000 ms"));
    result.records = (rb_record_t *)(uintptr_t)records;
    result.record_count = 1;
    ck_assert_xm_ok(rb_timeline_write(path, &result));
    text = read_all(path);
    ck_assert_int_eq(count(text, "<title>"), 10);
    ck_assert_int_eq(count(text, "measured"), 1);
    ck_assert_str_eq(text + strlen(text) - 7, "</svg>\n");
    (void)unlink(path);
    bench_fixture_close(&fixture);
}
END_TEST

/* Two hops of rank 0, both posted at once and served in order, are drawn one after the other, as
 * they leave and as they arrive; without an order as they were posted. */
START_TEST(hops_served_in_order_follow_each_other)
{
    rb_record_t records[] = {{.rank = 0, .start_ns = 0, .end_ns = 300000000},
                             {.rank = 0, .start_ns = 0, .end_ns = 700000000}};
    char path[] = "/tmp/xm-timeline-XXXXXX";
    int fd = mkstemp(path), found = 0;
    bench_fixture_t fixture;
    rb_result_t result = {.in_order = true, .records = records, .record_count = 2};
    const xm_transfer_t *transfers;
    const char *text;
    int64_t last;

    ck_assert_int_ge(fd, 0);
    (void)close(fd);
    bench_fixture_open("nm4", XM_STRATEGY_SEND_RECV, XM_SCHEDULER_NAIVE, &fixture);
    transfers = plan_transfers(fixture.prepared.plan, &last);
    for (int64_t t = 0; t < last && found < 2; ++t) {
        if (transfers[t].sender == 0) {
            records[found++].transfer = t;
        }
    }
    ck_assert_int_eq(found, 2);
    ck_assert_int_ne(transfers[records[0].transfer].task, transfers[records[1].transfer].task);
    result.prepared = &fixture.prepared;
    ck_assert_xm_ok(rb_timeline_write(path, &result));
    text = strstr(read_all(path), "measured");
    ck_assert_ptr_nonnull(text);
    ck_assert_int_eq(count(text, "<title>"), 4);
    ck_assert_int_eq(count(text, " 0.000 to 300.000 ms"), 2);
    ck_assert_int_eq(count(text, " 300.000 to 700.000 ms"), 2);
    result.in_order = false;
    ck_assert_xm_ok(rb_timeline_write(path, &result));
    text = strstr(read_all(path), "measured");
    ck_assert_int_eq(count(text, " 0.000 to 300.000 ms"), 1);
    ck_assert_int_eq(count(text, " 0.000 to 700.000 ms"), 1);
    (void)unlink(path);
    bench_fixture_close(&fixture);
}
END_TEST

START_TEST(a_file_that_cannot_be_written_is_named)
{
    bench_fixture_t fixture;
    rb_result_t result = {0};

    bench_fixture_open("nm1", XM_STRATEGY_BROADCAST, XM_SCHEDULER_NAIVE, &fixture);
    result.prepared = &fixture.prepared;
    ck_assert_xm_fails(rb_timeline_write("/proc/none/x.svg", &result), XM_ERR_IO,
                       "cannot write /proc/none/x.svg");
    bench_fixture_close(&fixture);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("timeline");
    TCase *tests = tcase_create("timeline");

    tcase_add_test(tests, planned_and_measured_transfers_are_drawn);
    tcase_add_test(tests, hops_served_in_order_follow_each_other);
    tcase_add_test(tests, a_file_that_cannot_be_written_is_named);
    suite_add_tcase(suite, tests);
    return xm_test_run(suite);
}
