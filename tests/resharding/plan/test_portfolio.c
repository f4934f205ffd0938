/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/resharding/plan/random_case.h"
#include "xm_test.h"

static int64_t makespan(const random_batch_t *batch, xm_strategy_t strategy,
                        xm_scheduler_t scheduler, xm_plan_info_t *info)
{
    xm_plan_params_t params = batch->params;
    xm_plan_t *plan;

    params.strategy = strategy;
    params.scheduler = scheduler;
    ck_assert_xm_ok(xm_plan_create(&params, &plan));
    *info = (xm_plan_info_t)XM_PLAN_INFO_INIT;
    ck_assert_xm_ok(xm_plan_get_info(plan, info));
    xm_plan_destroy(plan);
    return info->makespan_ns;
}

/* Half a per cent is what `auto` may leave; its choice is one of the combinations, to the ns. */
static void compare(const random_batch_t *batch)
{
    xm_plan_info_t chosen, info;
    int64_t best = makespan(batch, XM_STRATEGY_AUTO, XM_SCHEDULER_AUTO, &chosen);

    ck_assert_int_ne(chosen.scheduler, XM_SCHEDULER_AUTO);
    if (chosen.strategy != XM_STRATEGY_AUTO) {
        ck_assert_int_eq(makespan(batch, chosen.strategy, chosen.scheduler, &info), best);
    }
    for (int t = 0; t < XM_STRATEGY_COUNT; ++t) {
        for (int s = 0; s < XM_SCHEDULER_COUNT; ++s) {
            int64_t single = makespan(batch, (xm_strategy_t)t, (xm_scheduler_t)s, &info);

            ck_assert_msg((double)best <= (double)single * 1.005,
                          "auto takes %lld ns, %s with %s %lld: %s", (long long)best,
                          info.strategy_name, info.scheduler_name, (long long)single,
                          random_batch_text(batch));
        }
    }
}

START_TEST(never_worse_than_any_combination)
{
    random_t random = {77};
    /* Each problem is planned 43 times, so all of them take minutes. */
    int rounds = xm_test_rounds(10000) == 10000 ? 10000 : xm_test_rounds(1000);

    for (int i = 0; i < rounds; ++i) {
        random_batch_t batch;

        random_batch_create(&random, &batch);
        compare(&batch);
        random_batch_destroy(&batch);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("portfolio");
    TCase *tcase = tcase_create("all");

    tcase_set_timeout(tcase, 600);
    tcase_add_test(tcase, never_worse_than_any_combination);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
