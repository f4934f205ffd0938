/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/cases/case.h"

#include "tests/bench/cases/bench_fixture.h"
#include "tests/resharding/plan/plan_lists.h"

typedef struct {
    const char *name;
    uint64_t bytes;
    int src_tiles, dst_tiles;
    int64_t tasks;
    double task_mib; /* of every task; 0: not equal */
} row_t;

/* Tiles, unit tasks and their sizes as the cases' descriptions give them. */
static const row_t rows[] = {
    {"1m1", 1u << 30, 1, 1, 1, 1024},    {"1m2", 1u << 30, 1, 1, 1, 1024},
    {"1m3", 1u << 30, 1, 1, 1, 1024},    {"1m4", 1u << 30, 1, 1, 1, 1024},
    {"1m5", 1u << 30, 1, 1, 1, 1024},    {"1m6", 1u << 30, 1, 1, 1, 1024},
    {"1m7", 1u << 30, 1, 1, 1, 1024},    {"nm1", 2147483648u, 2, 2, 2, 1024},
    {"nm2", 2147483648u, 1, 2, 2, 1024}, {"nm3", 2147483648u, 2, 2, 4, 512},
    {"nm4", 2147483648u, 8, 8, 64, 32},  {"nm5", 2147483648u, 4, 2, 4, 512},
    {"nm6", 2139095040u, 2, 3, 4, 0},    {"nm7", 2147483648u, 4, 1, 4, 512},
    {"nm8", 2147483648u, 4, 1, 4, 512},  {"nm9", 2147483648u, 2, 2, 4, 512},
};

START_TEST(suites_have_the_described_tiles_and_unit_tasks)
{
    const row_t *row = &rows[_i];
    bench_fixture_t fixture;
    int64_t count;
    const xm_unit_task_t *tasks;

    bench_fixture_open(row->name, XM_STRATEGY_BROADCAST, XM_SCHEDULER_NAIVE, &fixture);
    ck_assert_uint_eq(xm_plan_bytes(fixture.prepared.plan), row->bytes);
    ck_assert_int_eq(xm_layout_tiles(xm_plan_src(fixture.prepared.plan)), row->src_tiles);
    ck_assert_int_eq(xm_layout_tiles(xm_plan_dst(fixture.prepared.plan)), row->dst_tiles);
    tasks = plan_tasks(fixture.prepared.plan, &count);
    ck_assert_int_eq(count, row->tasks);
    for (int64_t t = 0; t < count && row->task_mib > 0; ++t) {
        ck_assert_double_eq((double)tasks[t].elements * 4 / 1048576, row->task_mib);
    }
    bench_fixture_close(&fixture);
}
END_TEST

/* Case 6: 680 MiB from source host 0 to destination host 0, 340 from both to host 1, 680. */
START_TEST(nm6_has_slices_of_two_sizes)
{
    static const int64_t mib[] = {680, 340, 340, 680};
    bench_fixture_t fixture;
    int64_t count;
    const xm_unit_task_t *tasks;

    bench_fixture_open("nm6", XM_STRATEGY_BROADCAST, XM_SCHEDULER_NAIVE, &fixture);
    tasks = plan_tasks(fixture.prepared.plan, &count);
    for (int64_t t = 0; t < count; ++t) {
        ck_assert_int_eq(tasks[t].elements * 4, mib[t] * 1048576);
    }
    bench_fixture_close(&fixture);
}
END_TEST

typedef struct {
    const char *name;
    xm_strategy_t strategy;
    int64_t hops;
    uint64_t bytes;
} volume_t;

/* Hops and the bytes they bring, without Alpa's local all-gather. */
static const volume_t volumes[] = {
    {"t1", XM_STRATEGY_SEND_RECV, 2, 2048},     {"t2", XM_STRATEGY_SEND_RECV, 2, 2048},
    {"t3", XM_STRATEGY_SEND_RECV, 2, 2048},     {"t4", XM_STRATEGY_SEND_RECV, 2, 2048},
    {"t5", XM_STRATEGY_SEND_RECV, 4, 2048},     {"t6", XM_STRATEGY_SEND_RECV, 4, 2048},
    {"t7", XM_STRATEGY_SEND_RECV, 2, 4096},     {"t8", XM_STRATEGY_SEND_RECV, 4, 4096},
    {"t9", XM_STRATEGY_SEND_RECV, 4, 4096},     {"t10", XM_STRATEGY_SEND_RECV, 4, 384},
    {"t11", XM_STRATEGY_SEND_RECV, 4, 12288},   {"t12", XM_STRATEGY_BROADCAST, 2, 2048},
    {"t13", XM_STRATEGY_BROADCAST, 2, 2048},    {"t14", XM_STRATEGY_BROADCAST, 4, 2048},
    {"t15", XM_STRATEGY_SEND_RECV, 16, 131072}, {"t15", XM_STRATEGY_BROADCAST, 16, 131072},
    {"t16", XM_STRATEGY_BROADCAST, 8, 1048576},
};

START_TEST(small_tests_move_what_they_should)
{
    const volume_t *row = &volumes[_i];
    bench_fixture_t fixture;
    int64_t count, hops = 0;
    uint64_t bytes = 0;
    const xm_transfer_t *transfers;

    bench_fixture_open(row->name, row->strategy, XM_SCHEDULER_NAIVE, &fixture);
    transfers = plan_transfers(fixture.prepared.plan, &count);
    for (int64_t i = 0; i < count; ++i) {
        int ranks = xm_plan_route(fixture.prepared.plan, transfers[i].route)->count;

        hops += ranks;
        bytes += (uint64_t)ranks * xm_plan_transfer_bytes(fixture.prepared.plan, i);
    }
    ck_assert_int_eq(hops, row->hops);
    ck_assert_uint_eq(bytes, row->bytes);
    bench_fixture_close(&fixture);
}
END_TEST

START_TEST(each_small_test_has_its_own_strategy)
{
    for (int i = 0; i < rb_suite_cases(); ++i) {
        rb_case_t one;

        ck_assert_xm_ok(rb_suite_case(i, &one));
        if (rb_suite_holds(RB_SUITE_TESTS, i)) {
            ck_assert_int_eq(one.strategy, atoi(one.name + 1) <= 11 ? XM_STRATEGY_SEND_RECV
                                                                    : XM_STRATEGY_BROADCAST);
        } else {
            ck_assert_int_eq(one.strategy, RB_ANY);
        }
    }
}
END_TEST

START_TEST(scaling_divides_dimension_0_exactly)
{
    rb_case_t one;

    bench_fixture_case("nm6", &one);
    ck_assert_xm_ok(rb_case_scale(&one, 64));
    ck_assert_int_eq(one.shape[0], 48);
    ck_assert_int_eq(one.shape[2], 170);
    ck_assert_xm_fails(rb_case_scale(&one, 64), XM_ERR_INVALID_ARGUMENT,
                       "--scale 1/64: case nm6 has 48 elements in dimension 0");
    ck_assert_int_eq(one.shape[0], 48);
    ck_assert_xm_ok(rb_case_scale(&one, 1));
    ck_assert_int_eq(one.shape[0], 48);
}
END_TEST

START_TEST(element_types_have_their_sizes)
{
    static const struct {
        const char *name;
        int64_t bytes;
    } types[] = {{"int8", 1},  {"uint8", 1},   {"bool", 1},  {"float16", 2},  {"bfloat16", 2},
                 {"int32", 4}, {"float32", 4}, {"int64", 8}, {"float64", 8},  {"complex128", 16},
                 {"bf16", 2},  {"f16", 2},     {"half", 2},  {"fp8_e4m3", 1}, {"fp8_e5m2", 1},
                 {"f32", 4},   {"F8_E4M3", 1}};
    rb_case_t one = {0};

    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); ++i) {
        ck_assert_xm_ok(rb_case_set_dtype(&one, types[i].name));
        ck_assert_int_eq(one.element_size, types[i].bytes);
    }
    ck_assert_xm_fails(rb_case_set_dtype(&one, "int4"), XM_ERR_UNSUPPORTED, "of 4 bits");
    ck_assert_xm_fails(rb_case_set_dtype(&one, "flaot32"), XM_ERR_INVALID_ARGUMENT,
                       "did you mean float32?");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("case");
    TCase *tests = tcase_create("case");

    tcase_add_loop_test(tests, suites_have_the_described_tiles_and_unit_tasks, 0,
                        (int)(sizeof(rows) / sizeof(rows[0])));
    tcase_add_test(tests, nm6_has_slices_of_two_sizes);
    tcase_add_loop_test(tests, small_tests_move_what_they_should, 0,
                        (int)(sizeof(volumes) / sizeof(volumes[0])));
    tcase_add_test(tests, each_small_test_has_its_own_strategy);
    tcase_add_test(tests, scaling_divides_dimension_0_exactly);
    tcase_add_test(tests, element_types_have_their_sizes);
    suite_add_tcase(suite, tests);
    return xm_test_run(suite);
}
