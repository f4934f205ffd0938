/*
 * Adds what a shape rule describes to a graph. A graph's operator has at most 4 operands, 3 results
 * and 8 factors; an operator of a model may have more. There are three forms, tried in turn: the
 * rule as it is; one operator that needs all of everything; and a chain of such operators for any
 * number of operands. None computes something else, each gives up some freedom to shard.
 */

#include <string.h>

#include "planner/rules/shape_rule.h"

static const operand_type_t scalar = {.dtype = AP_DTYPE_F32};

static xm_status_t add(const operator_rule_t *rule, const operator_rule_text_t *text,
                       ap_graph_t *graph, const shape_emission_t *emission, int *results)
{
    ap_op_params_t params = operator_rule_params(rule, text);
    xm_status_t status;

    params.phase = emission->phase;
    params.name = emission->name;
    params.label = emission->label;
    params.repeat = emission->repeat;
    status = ap_graph_add_op(graph, &params, results);
    return status == XM_OK ? XM_OK : xm_error_prefix(status, "%s", rule->place);
}

/* Adds one operator that needs all of everything, when it fits the graph's limits. *fits tells
 * whether it was added; not to fit is no failure here. */
static xm_status_t add_whole(const operator_rule_t *like, const operand_type_t *const *types,
                             const int *tensors, int operands, const operand_type_t *const *made,
                             int results, ap_graph_t *graph, const shape_emission_t *emission,
                             int *ids, bool *fits)
{
    operator_rule_t rule = {.place = like->place,
                            .kind = AP_OP_CUSTOM,
                            .operands = operands,
                            .results = results,
                            .flops = like->flops};
    operator_rule_text_t text;

    *fits = operands <= AP_MAX_OPERANDS && results <= AP_MAX_RESULTS;
    if (!*fits) {
        return XM_OK;
    }
    for (int t = 0; t < operands + results; ++t) {
        rule.type[t] = t < operands ? types[t] : made[t - operands];
    }
    operator_rule_make_opaque(&rule);
    if (rule.status != XM_OK) {
        return rule.status;
    }
    *fits = operator_rule_write(&rule, tensors, &text) && text.operand_count > 0;
    return *fits ? add(&rule, &text, graph, emission, ids) : XM_OK;
}

/* What is too large for one operator: each operand is read whole into a token, a scalar that stands
 * for having read it, and every result comes from the last token. So results depend on all
 * operands, and each operand is gathered once. */
static xm_status_t add_chain(const operator_rule_t *rule, ap_graph_t *graph,
                             const shape_emission_t *emission, int *results)
{
    const operand_type_t *token = &scalar;
    int chain = OPERATOR_NO_TENSOR;
    bool fits = true;
    xm_status_t status = XM_OK;

    for (int o = 0; o < rule->operands && status == XM_OK && fits; ++o) {
        const operand_type_t *const read[] = {rule->type[o], token};
        const int pair[] = {emission->tensors[o], chain};

        if (pair[0] != OPERATOR_NO_TENSOR) {
            status = add_whole(rule, read, pair, 2, &token, 1, graph, emission, &chain, &fits);
        }
    }
    for (int r = 0; r < rule->results && status == XM_OK && fits; ++r) {
        const operand_type_t *const made[] = {rule->type[rule->operands + r]};

        status = add_whole(rule, &token, &chain, 1, made, 1, graph, emission, &results[r], &fits);
    }
    return status == XM_OK && !fits
               ? xm_error_set(XM_ERR_UNSUPPORTED,
                              "%s: an operand or result has too many dimensions", rule->place)
               : status;
}

/* At least one operand must hold data: an operator of constants alone would be computed by every
 * device for itself, which front ends handle before they come here. */
xm_status_t shape_rule_emit(shape_rule_t *op, ap_graph_t *graph, shape_emission_t *emission,
                            int *results)
{
    operator_rule_t *rule = &op->rule;
    operator_rule_text_t text;
    bool fits;
    xm_status_t status;

    if (rule->status != XM_OK) {
        return rule->status;
    }
    emission->opaque = false;
    if (rule->results <= AP_MAX_RESULTS && operator_rule_write(rule, emission->tensors, &text) &&
        text.operand_count > 0) {
        return add(rule, &text, graph, emission, results);
    }
    emission->opaque = true;
    status = add_whole(rule, rule->type, emission->tensors, rule->operands,
                       rule->type + rule->operands, rule->results, graph, emission, results, &fits);
    return status == XM_OK && !fits ? add_chain(rule, graph, emission, results) : status;
}
