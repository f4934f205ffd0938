/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/planner/solver/tree/random_core.h"

#include <check.h>
#include <math.h>

#include "tests/xm_test.h"

static uint64_t state = 1;

void seed_cores(uint64_t seed)
{
    state = seed * 7919 + 17;
}

int random_below(int limit)
{
    state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (int)((state >> 33) % (uint64_t)limit);
}

/* The dearer a value, the less it uses, so that the limit binds. */
ap_cfn_core_t *random_core(void)
{
    int variables = 2 + random_below(VARIABLES - 1), parts = 1 + random_below(3);
    ap_cfn_core_size_t size = {.variables = variables,
                               .links = VARIABLES * VARIABLES,
                               .times = TIMES,
                               .values = VARIABLES * SIZE,
                               .segments = 2 * VARIABLES,
                               .usages = 2 * VARIABLES * SIZE,
                               .cells = VARIABLES * VARIABLES * SIZE * SIZE};
    ap_cfn_core_maker_t maker;
    int sizes[VARIABLES];
    double most[TIMES] = {0};

    ck_assert_xm_ok(ap_cfn_core_begin(&size, &maker));
    for (int v = 0; v < variables; ++v) {
        int from = random_below(TIMES), to = from + 1 + random_below(TIMES - from),
            count = to < TIMES ? 2 : 1;
        double *cost;

        sizes[v] = 1 + random_below(SIZE);
        cost = ap_cfn_core_add_variable(&maker, sizes[v]);
        for (int x = 0; x < sizes[v]; ++x) {
            cost[x] = random_below(100);
        }
        for (int k = 0; k < count; ++k) {
            double *usage = ap_cfn_core_add_segment(&maker, from, to), largest = 0.0;

            for (int x = 0; x < sizes[v]; ++x) {
                usage[x] = (120.0 - cost[x]) * (1 + random_below(2)) + random_below(20);
                largest = fmax(largest, usage[x]);
            }
            for (int t = from; t < to; ++t) {
                most[t] += largest;
            }
            from = to;
            to = TIMES;
        }
    }
    for (int a = 0; a < variables; ++a) {
        for (int b = a + 1; b < variables; ++b) {
            if (a % parts == b % parts && random_below(3) > 0) {
                double *table = ap_cfn_core_add_link(&maker, a, b);

                for (int k = 0; k < sizes[a] * sizes[b]; ++k) {
                    table[k] = k > 0 && random_below(12) == 0 ? HUGE_VAL : random_below(60);
                }
            }
        }
    }
    for (int t = 0; t < TIMES; ++t) {
        maker.capacity[t] = floor(most[t] * (60 + random_below(35)) / 100.0);
        maker.when[t] = t;
    }
    return ap_cfn_core_finish(&maker);
}

/* Counts through all assignments as through the digits of a number. */
double least_of_all(const ap_cfn_core_t *core)
{
    int value[VARIABLES] = {0}, v;
    double load[TIMES + 1], best = HUGE_VAL;

    do {
        if (ap_cfn_core_fits(core, value, load)) {
            best = fmin(best, core->constant + ap_cfn_core_cost(core, value));
        }
        for (v = 0; v < core->variables; ++v) {
            if (++value[v] < core->variable[v].size) {
                break;
            }
            value[v] = 0;
        }
    } while (v < core->variables);
    return best;
}
