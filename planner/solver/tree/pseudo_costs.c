/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pseudo-costs. A branch takes a mixture apart, and how far its usage lies apart at the prices is
 * what the bound could rise by if nothing else gave way. How much of that it does rise by is kept
 * per variable and side: it depends on what the others can do instead, which is much the same all
 * over the tree. Before a variable has been branched on, its links stand for that.
 */

#include "planner/solver/tree/pseudo_costs.h"

#include <math.h>
#include <stdlib.h>

/* Branches that what links alone promise counts as. With one, moe-1.3b's hundreds of variables,
 * each branched on a few times, had six times as many nodes to the same bound. */
static const double trust = 16.0;
/* Of the gap, what any side counts for. */
static const double least_rise = 1e-3;
/* Of what lies apart, times links, before there was any branch; only there to start with. */
static const double first_ratio = 0.1;

/* What has been noted of one side: the sums over all branches. */
typedef struct noted {
    double apart, rise;
} noted_t;

struct ap_cfn_pseudo_costs {
    noted_t all[2]; /* per side, of all variables; their `apart` is times links */
    noted_t side[]; /* per variable and side */
};

xm_status_t ap_cfn_pseudo_costs_create(int variables, ap_cfn_pseudo_costs_t **costs)
{
    *costs = calloc(1, sizeof(**costs) + 2 * (size_t)variables * sizeof((*costs)->side[0]));
    return *costs != NULL ? XM_OK : XM_NO_MEMORY("pseudo-costs");
}

/* A closed side has risen to what was looked for, and maybe farther; more would be no use. */
void ap_cfn_pseudo_costs_note(ap_cfn_pseudo_costs_t *costs, const ap_cfn_split_t *split,
                              double bound)
{
    if (costs != NULL && split->variable >= 0) {
        noted_t *all = &costs->all[split->above];
        noted_t *side = &costs->side[2 * split->variable + split->above];
        double rise = fmax(bound - split->bound, 0.0);

        side->apart += split->apart;
        side->rise += rise;
        all->apart += split->apart * split->links;
        all->rise += rise;
    }
}

/* The product of both sides: one that rises alone leaves the other as large as the node was. A
 * side without any rise so far still counts for something, else the other one would not count, and
 * as long as nothing has risen there would be nothing to choose by. */
double ap_cfn_pseudo_costs_score(const ap_cfn_pseudo_costs_t *costs, const ap_cfn_split_t *split,
                                 double gap)
{
    double score = 1.0;

    for (int above = 0; above < 2; ++above) {
        const noted_t *all = &costs->all[above];
        const noted_t *side = &costs->side[2 * split->variable + above];
        double ratio = all->apart > 0.0 ? all->rise / all->apart : first_ratio;
        double promised = split->apart * split->links * ratio;
        double rise =
            split->apart * (side->rise + trust * promised) / (side->apart + trust * split->apart);

        score *= fmin(fmax(rise, least_rise * gap), gap);
    }
    return score;
}

void ap_cfn_pseudo_costs_destroy(ap_cfn_pseudo_costs_t *costs)
{
    free(costs);
}
