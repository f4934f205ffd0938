/* SPDX-License-Identifier: Apache-2.0 */
#include "resharding/solve/bound.h"

#include "tests/resharding/plan/random_case.h"
#include "xm_test.h"

START_TEST(no_plan_beats_the_bound)
{
    random_t random = {4};

    for (int i = 0; i < xm_test_rounds(2000); ++i) {
        random_batch_t batch;
        xm_plan_t *plan;

        random_batch_create(&random, &batch);
        ck_assert_xm_ok(xm_plan_create(&batch.params, &plan));
        ck_assert_msg(xm_plan_makespan_ns(plan) >= xm_plan_bound_ns(plan),
                      "makespan %lld ns, bound %lld ns: %s", (long long)xm_plan_makespan_ns(plan),
                      (long long)xm_plan_bound_ns(plan), random_batch_text(&batch));
        xm_plan_destroy(plan);
        random_batch_destroy(&batch);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("bound");
    TCase *tcase = tcase_create("all");

    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, no_plan_beats_the_bound);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
