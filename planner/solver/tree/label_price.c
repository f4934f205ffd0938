/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The limit at most times is not looked at but paid for: labels then compare few numbers, so that
 * more of them dominate others. What is left out is relaxed as in any Lagrangian bound, and what is
 * looked at is not, so the bound is better than that of the prices alone.
 */

#include "planner/solver/tree/label_price.h"

#include <string.h>

/* Of equal prices the earlier time wins, so that the same dual always leaves the same. */
int ap_label_price(const ap_cfn_dual_t *dual, int *when, int times, int most, double *paid,
                   xm_arena_t *pool)
{
    const ap_cfn_core_t *core = dual->core;
    double *sums = xm_arena_get(pool, (size_t)core->times + 1, sizeof(*sums));
    int count = 0;

    if (sums == NULL) {
        return 0;
    }
    memcpy(paid, ap_cfn_core_costs(core), ap_cfn_core_values(core) * sizeof(*paid));
    for (int k = 0; k < times; ++k) {
        int dearer = 0;

        for (int j = 0; j < times; ++j) {
            double more = dual->price[when[j]] - dual->price[when[k]];

            dearer += more > 0.0 || (j < k && !(more < 0.0));
        }
        /* A negative number marks what stays, as no price is. */
        sums[when[k] + 1] = dearer < most ? -1.0 : dual->price[when[k]];
    }
    for (int k = 0; k < times; ++k) {
        if (sums[when[k] + 1] < 0.0) {
            sums[when[k] + 1] = 0.0;
            when[count++] = when[k];
        }
    }
    /* Prices of the times before each, so that a segment's price is a difference. */
    for (int t = 0; t < core->times; ++t) {
        sums[t + 1] += sums[t];
    }
    for (int v = 0; v < core->variables; ++v) {
        const ap_cfn_variable_t *variable = &core->variable[v];

        for (int k = 0; k < variable->segments; ++k) {
            const ap_cfn_segment_t *segment = &variable->segment[k];

            ap_cfn_charge(segment, variable->size, sums[segment->to] - sums[segment->from],
                          paid + dual->at[v]);
        }
    }
    return count;
}
