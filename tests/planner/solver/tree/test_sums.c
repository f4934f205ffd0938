/* SPDX-License-Identifier: Apache-2.0 */
/* Lowered capacities: no sum of usages is lost, and what lies between two sums goes. */
#include <check.h>
#include <stdlib.h>

#include "planner/solver/tree/sums.h"
#include "tests/xm_test.h"

enum { VARIABLES = 6, SIZE = 4, TIMES = 3, PROBLEMS = 3000 };

static uint64_t state = 1;

static int below(int limit)
{
    state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (int)((state >> 33) % (uint64_t)limit);
}

/* Usages that are multiples of a large number, but for a small rest. */
static ap_cfn_core_t *random_core(size_t *at, bool *keep, int rest)
{
    int variables = 1 + below(VARIABLES);
    ap_cfn_core_size_t size = {.variables = variables,
                               .times = TIMES,
                               .values = VARIABLES * SIZE,
                               .segments = 2 * VARIABLES,
                               .usages = 2 * VARIABLES * SIZE};
    ap_cfn_core_maker_t maker;
    size_t next = 0;

    ck_assert_xm_ok(ap_cfn_core_begin(&size, &maker));
    for (int v = 0; v < variables; ++v) {
        int count = 1 + below(SIZE), from = below(TIMES);
        double *usage;

        (void)ap_cfn_core_add_variable(&maker, count);
        usage = ap_cfn_core_add_segment(&maker, from, from + 1 + below(TIMES - from));
        at[v] = next;
        for (int x = 0; x < count; ++x) {
            keep[next + (size_t)x] = x == 0 || below(4) > 0;
            usage[x] = 1000.0 * below(5) + below(rest + 1);
        }
        next += (size_t)count;
    }
    for (int t = 0; t < TIMES; ++t) {
        maker.capacity[t] = 1 + below(12000);
    }
    return ap_cfn_core_finish(&maker);
}

/* The largest load at a time that is not above its capacity; -1: none. */
static double largest_load(const ap_cfn_core_t *core, const size_t *at, const bool *keep, int time)
{
    int value[VARIABLES] = {0}, v;
    double best = -1.0;

    do {
        double load = 0.0;
        bool kept = true;

        for (v = 0; v < core->variables; ++v) {
            const ap_cfn_segment_t *segment = core->variable[v].segment;

            kept = kept && keep[at[v] + (size_t)value[v]];
            load += segment->from <= time && time < segment->to ? segment->usage[value[v]] : 0.0;
        }
        best = kept && load <= core->capacity[time] && load > best ? load : best;
        for (v = 0; v < core->variables; ++v) {
            if (++value[v] < core->variable[v].size) {
                break;
            }
            value[v] = 0;
        }
    } while (v < core->variables);
    return best;
}

static void compare(int rest, double slack)
{
    static const double price[TIMES] = {1.0, 0.0, 2.0};

    for (int k = 0; k < PROBLEMS; ++k) {
        size_t at[VARIABLES];
        bool keep[VARIABLES * SIZE];
        double capacity[TIMES];
        ap_cfn_core_t *core;

        state = (uint64_t)k * 7919 + (uint64_t)rest;
        core = random_core(at, keep, rest);
        for (int t = 0; t < TIMES; ++t) {
            capacity[t] = core->capacity[t];
        }
        ck_assert_xm_ok(ap_cfn_lower_capacities(core, at, keep, price, 1000000, capacity));
        for (int t = 0; t < TIMES; ++t) {
            double most = largest_load(core, at, keep, t);

            ck_assert_double_le(most, capacity[t]);
            if (price[t] > 0.0) {
                ck_assert_msg(capacity[t] <= most + slack, "problem %d: %g, the largest load is %g",
                              k, capacity[t], most);
            } else {
                ck_assert_double_eq(capacity[t], core->capacity[t]);
            }
        }
        ap_cfn_core_destroy(core);
    }
}

START_TEST(capacities_fall_to_the_largest_sum)
{
    compare(0, 0.0);
}
END_TEST

/* Sums that lie close count as a range: at most that much is left above the largest. */
START_TEST(close_sums_stay_together)
{
    compare(2, 2.0 * VARIABLES + 3.0 * VARIABLES);
}
END_TEST

/* Nothing is known without work, and nothing changes. */
START_TEST(without_work_nothing_changes)
{
    static const double price[TIMES] = {1.0, 1.0, 1.0};
    size_t at[VARIABLES];
    bool keep[VARIABLES * SIZE];

    for (int k = 0; k < 100; ++k) {
        double capacity[TIMES];
        ap_cfn_core_t *core = random_core(at, keep, 0);

        for (int t = 0; t < TIMES; ++t) {
            capacity[t] = core->capacity[t];
        }
        ck_assert_xm_ok(ap_cfn_lower_capacities(core, at, keep, price, 0, capacity));
        for (int t = 0; t < TIMES; ++t) {
            ck_assert_double_eq(capacity[t], core->capacity[t]);
        }
        ap_cfn_core_destroy(core);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cfn_sums");
    TCase *all = tcase_create("all");

    tcase_set_timeout(all, 60);
    tcase_add_test(all, capacities_fall_to_the_largest_sum);
    tcase_add_test(all, close_sums_stay_together);
    tcase_add_test(all, without_work_nothing_changes);
    suite_add_tcase(suite, all);
    return xm_test_run(suite);
}
