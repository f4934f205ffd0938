/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/cases/placement.h"

#include "tests/bench/cases/bench_fixture.h"

static void check(const char *name, int ranks, int ranks_per_host, const char *src_expected,
                  const char *dst_expected, bool shared_expected)
{
    rb_case_t one;
    rb_host_map_t hosts;
    xm_mesh_t *src, *dst;
    char text[128];
    bool shared;

    bench_fixture_case(name, &one);
    ck_assert_xm_ok(rb_host_map_emulate(ranks, ranks_per_host, &hosts));
    ck_assert_xm_ok(rb_place(&one, &hosts, &src, &dst, &shared));
    ck_assert_str_eq(xm_mesh_format_ranks(src, text, sizeof(text)), src_expected);
    ck_assert_str_eq(xm_mesh_format_ranks(dst, text, sizeof(text)), dst_expected);
    ck_assert_int_eq(shared, shared_expected);
    xm_mesh_destroy(src);
    xm_mesh_destroy(dst);
    rb_host_map_clear(&hosts);
}

START_TEST(suite_cases_lie_on_hosts)
{
    check("nm1", 16, 4, "0-7", "8-15", false);
    check("nm7", 16, 4, "0-3", "4-11", false);
    check("nm6", 20, 4, "0-7", "8-19", false);
    check("1m1", 16, 4, "0", "4", false);
    check("1m5", 16, 4, "0", "4-5,8-9", false);
    check("1m7", 18, 4, "0", "4-5,8-9,12-13,16-17", false);
    check("nm1", 32, 8, "0-3,8-11", "16-19,24-27", false);
}
END_TEST

START_TEST(too_few_hosts_are_shared)
{
    check("nm6", 16, 4, "0-7", "4-15", true);
    check("1m7", 16, 4, "0", "2-3,6-7,10-11,14-15", true);
}
END_TEST

START_TEST(small_tests_share_a_host_when_they_fit)
{
    check("t1", 8, 4, "0-1", "2-3", false);
    check("t15", 8, 4, "0-3", "4-7", false);
    check("t15", 8, 8, "0-3", "4-7", false);
    check("t1", 8, 0, "0-1", "2-3", false);
}
END_TEST

START_TEST(needs_are_the_ranks_of_disjoint_meshes)
{
    static const struct {
        const char *name;
        int needs;
    } rows[] = {{"nm1", 16}, {"nm6", 20}, {"nm7", 12}, {"1m1", 5},
                {"1m7", 18}, {"t1", 4},   {"t16", 8}};
    rb_case_t one;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); ++i) {
        bench_fixture_case(rows[i].name, &one);
        ck_assert_int_eq(rb_place_needs(&one, 4), rows[i].needs);
    }
}
END_TEST

START_TEST(a_job_that_is_too_small_is_told_how_many_ranks_are_needed)
{
    rb_case_t one;
    rb_host_map_t hosts;
    xm_mesh_t *src, *dst;
    bool shared;

    bench_fixture_case("nm1", &one);
    ck_assert_xm_ok(rb_host_map_emulate(6, 4, &hosts));
    ck_assert_xm_fails(rb_place(&one, &hosts, &src, &dst, &shared), XM_ERR_INVALID_ARGUMENT,
                       "host 1 of the job has 2; 16 ranks on hosts of 4 are enough");
    rb_host_map_clear(&hosts);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("placement");
    TCase *tests = tcase_create("placement");

    tcase_add_test(tests, suite_cases_lie_on_hosts);
    tcase_add_test(tests, too_few_hosts_are_shared);
    tcase_add_test(tests, small_tests_share_a_host_when_they_fit);
    tcase_add_test(tests, needs_are_the_ranks_of_disjoint_meshes);
    tcase_add_test(tests, a_job_that_is_too_small_is_told_how_many_ranks_are_needed);
    suite_add_tcase(suite, tests);
    return xm_test_run(suite);
}
