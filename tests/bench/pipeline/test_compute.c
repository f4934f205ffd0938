/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/pipeline/compute.h"

#include "xm_test.h"

START_TEST(waiting_is_no_work)
{
    rb_compute_t *compute;

    ck_assert_xm_ok(rb_compute_create(RB_COMPUTE_WAIT, &compute));
    ck_assert_int_eq(rb_compute_kind(compute), RB_COMPUTE_WAIT);
    ck_assert_int_eq(rb_compute_units(compute, 1000000000), 0);
    rb_compute_destroy(compute);
    ck_assert_xm_ok(rb_compute_check(RB_COMPUTE_WAIT, 1 << 20, "here"));
}
END_TEST

/* Units follow the duration, and there is at least one of them in a second. */
START_TEST(work_is_counted_in_units)
{
    const rb_compute_kind_t kinds[] = {RB_COMPUTE_SPIN, RB_COMPUTE_GEMM};

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); ++i) {
        rb_compute_t *compute;
        int64_t second;

        ck_assert_xm_ok(rb_compute_create(kinds[i], &compute));
        second = rb_compute_units(compute, 1000000000);
        ck_assert_int_gt(second, 0);
        ck_assert_int_le(2 * second - rb_compute_units(compute, 2000000000), 1);
        ck_assert_int_ge(2 * second - rb_compute_units(compute, 2000000000), -1);
        ck_assert_int_eq(rb_compute_units(compute, 0), 0);
        rb_compute_unit(compute);
        rb_compute_destroy(compute);
        ck_assert_xm_fails(rb_compute_check(kinds[i], 1 << 20, "here"), XM_ERR_INVALID_ARGUMENT,
                           "here has 1048576 ranks");
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("compute");
    TCase *tests = tcase_create("compute");

    tcase_add_test(tests, waiting_is_no_work);
    tcase_add_test(tests, work_is_counted_in_units);
    suite_add_tcase(suite, tests);
    return xm_test_run(suite);
}
