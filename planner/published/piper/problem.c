/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of Piper problems and plans. It is a file of its own because both the solver and the
 * importer make them halfway before they fail, and free them the same way.
 */

#include <stdlib.h>

#include "planner/published/piper/piper.h"

void ap_piper_plan_clear(ap_piper_plan_t *plan)
{
    if (plan == NULL) {
        return;
    }
    for (int i = 0; i < plan->stage_count; ++i) {
        free(plan->stages[i].nodes);
        free(plan->stages[i].variants);
    }
    free(plan->stages);
    *plan = (ap_piper_plan_t){0};
}

static void clear_variant(ap_piper_variant_t *variant)
{
    free(variant->id);
    free(variant->in_bytes);
    free(variant->out_bytes);
}

void ap_piper_problem_clear(ap_piper_problem_t *problem)
{
    if (problem == NULL) {
        return;
    }
    for (int i = 0; problem->nodes != NULL && i < problem->node_count; ++i) {
        ap_piper_node_t *node = &problem->nodes[i];

        for (int j = 0; j < node->degree_count; ++j) {
            for (int l = 0; l < node->degrees[j].variant_count; ++l) {
                clear_variant(&node->degrees[j].variants[l]);
            }
        }
        free(node->degrees);
        free(node->in);
        free(node->out);
    }
    free(problem->nodes);
    free(problem->edges);
    free(problem->bytes);
    *problem = (ap_piper_problem_t){0};
}
