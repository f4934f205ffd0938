/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a stage takes at least with the shardings that a plan names, over everything that the plan
 * leaves open. Bounds are sums of minima per node and edge: weaker than solving the stage, but
 * quick, and certain for any combination.
 */

#include "planner/explain/least.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "planner/explain/explain_private.h"

enum { PLACE = 48 };

/* Which strategies of a node have the specs that the plan names. */
typedef struct fitting {
    bool *strategy;
    int count;
} fitting_t;

/* A layer of the stage: its problem, what fits the plan, and the specs that the stage's boundaries
 * fix, or NULL. */
typedef struct layer {
    const ap_layer_problem_t *problem;
    const ap_layer_weights_t *weights;
    xm_arena_t arena; /* of what fits */
    fitting_t *fits;
    const ap_spec_t *in, *out;
    bool held; /* an earlier layer of the stage may have the tied parameter */
} layer_t;

/* Whether the specs of the terms first … first + count - 1 are what a plan's text says: "S0RR,RS1".
 */
static bool terms_are(const ap_sharding_rule_t *rule, const ap_strategy_t *strategy, int first,
                      int count, const char *text)
{
    for (int t = first; t < first + count; ++t) {
        char spec[AP_SPEC_TEXT];
        size_t length =
            strlen(ap_spec_format(strategy->spec[t], rule->rank[t], spec, sizeof(spec)));

        if (strncmp(text, spec, length) != 0) {
            return false;
        }
        text += length;
        if (t + 1 < first + count && *text++ != ',') {
            return false;
        }
    }
    return *text == '\0';
}

/* At least one strategy must fit, or the operator cannot run that way. */
static xm_status_t fit_node(const ap_layer_node_t *node, const ap_op_t *op,
                            const ap_plan_op_t *planned, const char *place, xm_arena_t *arena,
                            fitting_t *fit)
{
    if (strcmp(op->rule.text, planned->rule) != 0) {
        return XM_MISMATCH("%s: operator '%s' is '%s' where the model has '%s'", place,
                           planned->name, planned->rule, op->rule.text);
    }
    fit->strategy = xm_arena_get(arena, (size_t)node->strategies.count, sizeof(*fit->strategy));
    XM_NEED_MEMORY(fit->strategy, "%d strategies", node->strategies.count);
    for (int s = 0; s < node->strategies.count; ++s) {
        const ap_strategy_t *strategy = &node->strategies.items[s];

        fit->strategy[s] =
            terms_are(&op->rule, strategy, 0, op->operand_count, planned->operands) &&
            terms_are(&op->rule, strategy, op->operand_count, op->result_count, planned->results);
        fit->count += fit->strategy[s];
    }
    return fit->count > 0
               ? XM_OK
               : XM_MISMATCH("%s: operator '%s' ('%s') cannot be sharded as %s -> %s", place,
                             planned->name, planned->rule, planned->operands, planned->results);
}

/* The least a node can take, over the strategies that fit and the ways to keep its parameters; time
 * and memory each by themselves, as if they could be had together. */
static ap_least_t least_of_node(const layer_t *of, int index)
{
    const ap_layer_node_t *node = &of->problem->node[index];
    ap_least_t least = {.seconds = HUGE_VAL, .state = HUGE_VAL, .activations = HUGE_VAL};

    for (int s = 0; s < node->strategies.count; ++s) {
        double seconds = ap_parts_cost(&node->base[s], of->weights);
        double state = node->base[s].mem_stage, activations = node->base[s].mem_act;

        for (int p = 0; p < node->parameters; ++p) {
            const ap_parts_t *modes = &node->modes[(s * node->parameters + p) * AP_PARAMETER_MODES];
            double time = HUGE_VAL, held = HUGE_VAL;

            if ((of->held || node->tied_again) && p == node->tied) {
                continue;
            }
            for (int m = 0; m < AP_PARAMETER_MODES; ++m) {
                time = fmin(time, ap_parts_cost(&modes[m], of->weights));
                held = fmin(held, modes[m].mem_stage);
            }
            seconds += time;
            state += held;
        }
        if (of->fits[index].strategy[s]) {
            least.seconds = fmin(least.seconds, seconds);
            least.state = fmin(least.state, state);
            least.activations = fmin(least.activations, activations);
        }
    }
    return least;
}

/* Whether this class of a node, or this spec of a boundary, may be the plan's. */
static bool may_be(const layer_t *of, int end, int index)
{
    const ap_layer_node_t *node;

    if (end == AP_IN) {
        return of->in == NULL || of->problem->in_specs[index] == *of->in;
    }
    if (end == AP_OUT) {
        return of->out == NULL || of->problem->out_specs[index] == *of->out;
    }
    if (end >= of->problem->op_nodes) {
        return true; /* plans do not say what readers share */
    }
    node = &of->problem->node[end];
    for (int s = 0; s < node->strategies.count; ++s) {
        if (of->fits[end].strategy[s] && node->class_of[s] == index) {
            return true;
        }
    }
    return false;
}

static double least_of_edge(const layer_t *of, const ap_layer_edge_t *edge)
{
    double least = HUGE_VAL;

    for (int from = 0; from < edge->from_count; ++from) {
        if (!may_be(of, edge->from, from)) {
            continue;
        }
        for (int to = 0; to < edge->to_count; ++to) {
            if (may_be(of, edge->to, to)) {
                ap_parts_t parts = ap_layer_edge_parts(edge, from, to);

                least = fmin(least, ap_parts_cost(&parts, of->weights));
            }
        }
    }
    return least;
}

/* One layer with the shardings of its group. */
static xm_status_t add_layer(layer_t *of, const ap_graph_t *training, const ap_plan_layers_t *group,
                             const char *place, ap_least_t *sum)
{
    const ap_layer_problem_t *problem = of->problem;
    xm_status_t status = XM_OK;

    of->fits = xm_arena_get(&of->arena, (size_t)problem->op_nodes, sizeof(*of->fits));
    XM_NEED_MEMORY(of->fits, "%d operators", problem->op_nodes);
    if (group->op_count != problem->op_nodes) {
        status = XM_MISMATCH("%s: %d operators where the model has %d", place, group->op_count,
                             problem->op_nodes);
    }
    for (int n = 0; n < problem->op_nodes && status == XM_OK; ++n) {
        const ap_layer_node_t *node = &problem->node[n];

        status = fit_node(node, ap_graph_op(training, node->op), &group->ops[n], place, &of->arena,
                          &of->fits[n]);
        if (status == XM_OK) {
            ap_least_t least = least_of_node(of, n);

            sum->seconds += least.seconds;
            sum->state += least.state;
            sum->activations += least.activations;
        }
    }
    for (int e = 0; e < problem->edges && status == XM_OK; ++e) {
        sum->seconds += least_of_edge(of, &problem->edge[e]);
    }
    xm_arena_clear(&of->arena);
    return status;
}

xm_status_t ap_plan_stage_least(const ap_plan_t *plan, int index, ap_stage_context_t *context,
                                const ap_layer_weights_t *weights, ap_least_t *sum)
{
    const ap_plan_stage_t *stage = ap_plan_stage(plan, index);
    ap_stage_query_t query;
    xm_status_t status = ap_plan_stage_query(plan, index, &query);

    *sum = (ap_least_t){0};
    for (int g = 0; g < stage->layer_count && status == XM_OK; ++g) {
        const ap_plan_layers_t *group = &stage->layers[g];

        for (int l = group->first_layer; l <= group->last_layer && status == XM_OK; ++l) {
            layer_t layer = {.weights = weights,
                             .held = ap_stage_holds_tied(context, stage->first_layer, l),
                             .in = query.fix_input && l == stage->first_layer ? &query.input : NULL,
                             .out =
                                 query.fix_output && l == stage->last_layer ? &query.output : NULL};
            char place[PLACE];

            (void)snprintf(place, sizeof(place), "stages[%d], layer %d", index, l);
            status = ap_stage_layer_problem(context, &query, l, &layer.problem);
            XM_THEN(status, add_layer(&layer, ap_stage_training(context), group, place, sum));
        }
    }
    return status;
}
