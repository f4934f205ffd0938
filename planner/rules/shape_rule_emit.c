/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adds what a shape rule describes to a graph: by the rule as it is, or, where a graph's rule
 * cannot say it, as an operator that needs all of everything. Neither computes something else; the
 * second gives up the freedom to shard.
 */

#include "planner/rules/shape_rule.h"

/* Whether an operand that the rule reads holds data. */
static bool reads_data(const operator_rule_t *rule, const int *tensors)
{
    for (int o = 0; o < rule->operands; ++o) {
        if (tensors[o] != OPERATOR_NO_TENSOR && !rule->ignored[o]) {
            return true;
        }
    }
    return false;
}

/* At least one operand must hold data: an operator of constants alone would be computed by every
 * device for itself, which front ends handle before they come here. */
xm_status_t shape_rule_emit(shape_rule_t *op, ap_graph_t *graph, shape_emission_t *emission,
                            int *results)
{
    operator_rule_t *rule = &op->rule;
    ap_op_params_t params = AP_OP_PARAMS_INIT;
    xm_status_t status;

    if (rule->status == XM_OK) {
        operator_rule_close(rule);
    }
    if (rule->status != XM_OK) {
        return rule->status;
    }
    emission->opaque = !operator_rule_fits(rule) || !reads_data(rule, emission->tensors);
    if (emission->opaque) {
        rule->kind = AP_OP_CUSTOM;
        operator_rule_make_opaque(rule);
    }
    params.name = emission->name;
    params.label = emission->label;
    params.phase = emission->phase;
    params.repeat = emission->repeat;
    params.result_dtype = rule->type[rule->operands]->dtype;
    status = rule->status == XM_OK
                 ? operator_rule_add(rule, emission->tensors, &params, graph, results)
                 : rule->status;
    return status == XM_OK ? XM_OK : xm_error_prefix(status, "%s", rule->place);
}
