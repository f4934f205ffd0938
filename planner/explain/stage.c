/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Why a stage is what it is: its logical mesh, whether it recomputes, how its dearest operators are
 * cut. Each is answered by pricing the stage again with one thing changed, in the same context that
 * the planner priced it in, so both prices are of one kind.
 */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "planner/explain/explain_private.h"

enum { TEXT = 32, SPECS_TEXT = 100, WHY_TEXT = 520 };

xm_status_t ap_plan_stage_query(const ap_plan_t *plan, int index, ap_stage_query_t *query)
{
    const ap_plan_stage_t *stage = ap_plan_stage(plan, index);
    xm_status_t status = XM_OK;

    *query = (ap_stage_query_t)AP_STAGE_QUERY_INIT;
    query->first = stage->first_layer;
    query->last = stage->last_layer;
    query->hosts = stage->hosts;
    query->devices = stage->devices_per_host;
    query->shape[0] = stage->shape[0];
    query->shape[1] = stage->shape[1];
    query->memory_limit = ap_plan_info(plan)->memory_limit;
    query->in_flight = stage->in_flight;
    if (index > 0) {
        const ap_plan_boundary_t *boundary = ap_plan_boundary(plan, index - 1);

        query->fix_input = true;
        status = ap_spec_parse(boundary->dst.spec, boundary->rank, 2, &query->input);
    }
    if (status == XM_OK && index + 1 < ap_plan_stages(plan)) {
        const ap_plan_boundary_t *boundary = ap_plan_boundary(plan, index);

        query->fix_output = true;
        status = ap_spec_parse(boundary->src.spec, boundary->rank, 2, &query->output);
    }
    return status;
}

/* Names the operator on which a stage spends most time for communication. */
static void dearest_transfer(const ap_explain_context_t *context,
                             const ap_stage_solution_t *solution, char *text, size_t size)
{
    const ap_stage_choice_t *dearest = NULL;
    double most = 0.0, micro_batches = context->one.accumulated;
    char seconds[TEXT];

    for (int i = 0; i < ap_stage_solution_choices(solution); ++i) {
        const ap_stage_choice_t *choice = ap_stage_solution_choice(solution, i);
        double spent = choice->comm + choice->reshard + choice->sync / micro_batches;

        if (spent > most) {
            most = spent;
            dearest = choice;
        }
    }
    if (dearest == NULL) {
        (void)snprintf(text, size, "no communication");
        return;
    }
    (void)snprintf(text, size, "%s %s (%.*s)", ap_graph_op(context->one.graph, dearest->op)->name,
                   xm_text_format_seconds(most, seconds, sizeof(seconds)), WHY_TEXT, dearest->why);
}

/* Where a stage of the plan is priced: the context of the devices that it stands on. */
static ap_stage_context_t *pricing_of(const ap_explain_context_t *context, int index)
{
    const ap_plan_stage_t *stage = ap_plan_stage(context->plan, index);
    int per_host = ap_plan_info(context->plan)->devices_per_host;

    return ap_stage_table_context(context->one.table, stage->devices[0] / per_host, stage->hosts,
                                  stage->recompute);
}

/* Prices the same stage with recomputation if it has none, and the other way round. Where that does
 * not fit, it is priced without a limit, to say how much memory it would take. */
static xm_status_t explain_recompute(const ap_explain_context_t *context, int index,
                                     const ap_stage_query_t *query, const ap_stage_cost_t *cost,
                                     ap_explanation_t *explanation)
{
    const ap_plan_stage_t *stage = ap_plan_stage(context->plan, index);
    int per_host = ap_plan_info(context->plan)->devices_per_host;
    int micro_batches = context->one.accumulated;
    ap_stage_context_t *others = ap_stage_table_context(
        context->one.table, stage->devices[0] / per_host, stage->hosts, !stage->recompute);
    ap_decision_t *decision =
        ap_explanation_add(explanation, "micro-batch", "stage %d: recomputation", index);
    char memory[TEXT], limit[TEXT], kept[TEXT];
    ap_stage_query_t roomy = *query;
    ap_stage_cost_t other;
    xm_status_t status;

    if (decision == NULL) {
        return XM_ERR_NO_MEMORY;
    }
    (void)snprintf(decision->chosen, sizeof(decision->chosen), "%s",
                   stage->recompute ? "on" : "off");
    decision->chosen_seconds = ap_stage_objective(cost, micro_batches);
    status = ap_stage_evaluate(others, query, &other);
    if (status == XM_ERR_NO_SOLUTION) { /* in which memory would it fit? */
        roomy.memory_limit = 0.0;
        status = ap_stage_evaluate(others, &roomy, &other);
    }
    if (status == XM_ERR_NO_SOLUTION) {
        (void)snprintf(decision->decided_by, sizeof(decision->decided_by),
                       "no other way to shard it has these specs at its ends");
        return XM_OK;
    }
    XM_TRY(status);
    (void)snprintf(decision->decided_by, sizeof(decision->decided_by),
                   "%s for %d micro-batches in flight %s; of %s it needs %s now",
                   xm_text_format_bytes((uint64_t)ap_stage_memory(&other, stage->in_flight), memory,
                                        sizeof(memory)),
                   stage->in_flight, stage->recompute ? "without" : "with it",
                   xm_text_format_bytes((uint64_t)query->memory_limit, limit, sizeof(limit)),
                   xm_text_format_bytes((uint64_t)ap_stage_memory(cost, stage->in_flight), kept,
                                        sizeof(kept)));
    if (ap_stage_memory(&other, stage->in_flight) <= query->memory_limit) {
        (void)snprintf(decision->runner_up, sizeof(decision->runner_up), "%s",
                       stage->recompute ? "off" : "on");
        decision->runner_up_seconds = ap_stage_objective(&other, micro_batches);
    }
    return XM_OK;
}

/* The best other logical mesh of the stage; *other stays NULL when none fits. Specs at the ends are
 * free then: those of the chosen mesh may not exist on another. */
static xm_status_t best_other_mesh(const ap_explain_context_t *context, int index,
                                   const ap_stage_query_t *chosen, ap_stage_query_t *best,
                                   ap_stage_solution_t **other)
{
    ap_stage_context_t *stages = pricing_of(context, index);
    int micro_batches = context->one.accumulated;
    int devices = chosen->hosts * chosen->devices;
    double least = INFINITY;

    for (int d0 = 1; d0 < devices; ++d0) {
        ap_stage_query_t query = *chosen;
        ap_stage_cost_t cost;
        xm_status_t status;

        if (devices % d0 != 0 || d0 == chosen->shape[0]) {
            continue;
        }
        query.shape[0] = d0;
        query.shape[1] = devices / d0;
        query.fix_input = false;
        query.fix_output = false;
        status = ap_stage_evaluate(stages, &query, &cost);
        if (status == XM_OK && ap_stage_objective(&cost, micro_batches) < least) {
            least = ap_stage_objective(&cost, micro_batches);
            *best = query;
        } else if (status != XM_OK && status != XM_ERR_NO_SOLUTION) {
            return status;
        }
    }
    return least < INFINITY ? ap_stage_solve(stages, best, other) : XM_OK;
}

static xm_status_t explain_mesh(const ap_explain_context_t *context, int index,
                                const ap_stage_query_t *query, const ap_stage_solution_t *solution,
                                ap_explanation_t *explanation)
{
    ap_decision_t *decision = ap_explanation_add(
        explanation, "micro-batch", "stage %d (layers %d-%d on %dx%d): logical mesh", index,
        query->first, query->last, query->hosts, query->devices);
    int micro_batches = context->one.accumulated;
    ap_stage_solution_t *other = NULL;
    ap_stage_query_t best;
    char ours[WHY_TEXT + 64], theirs[WHY_TEXT + 64];

    if (decision == NULL) {
        return XM_ERR_NO_MEMORY;
    }
    XM_TRY(best_other_mesh(context, index, query, &best, &other));
    (void)snprintf(decision->chosen, sizeof(decision->chosen), "%dx%d", query->shape[0],
                   query->shape[1]);
    decision->chosen_seconds = ap_stage_objective(ap_stage_solution_cost(solution), micro_batches);
    dearest_transfer(context, solution, ours, sizeof(ours));
    if (other != NULL) {
        (void)snprintf(decision->runner_up, sizeof(decision->runner_up), "%dx%d", best.shape[0],
                       best.shape[1]);
        decision->runner_up_seconds =
            ap_stage_objective(ap_stage_solution_cost(other), micro_batches);
        dearest_transfer(context, other, theirs, sizeof(theirs));
        (void)snprintf(decision->decided_by, sizeof(decision->decided_by),
                       "dearest transfer: %s; of the runner-up: %s", ours, theirs);
    } else {
        (void)snprintf(decision->decided_by, sizeof(decision->decided_by),
                       "dearest transfer: %s; no other shape of this submesh fits", ours);
    }
    ap_stage_solution_destroy(other);
    return XM_OK;
}

static double seconds_of(const ap_stage_choice_t *choice, double micro_batches)
{
    return choice->compute + choice->comm + choice->reshard + choice->sync / micro_batches;
}

/* The choice with the most seconds below @p limit (ties by order after @p previous), or -1. Asking
 * again with the last answer walks through the choices by falling cost without sorting them. */
static int next_dearest(const ap_explain_context_t *context, const ap_stage_solution_t *solution,
                        int layer, double limit, int previous)
{
    double micro_batches = context->one.accumulated, most = -1.0;
    int dearest = -1;

    for (int i = 0; i < ap_stage_solution_choices(solution); ++i) {
        const ap_stage_choice_t *choice = ap_stage_solution_choice(solution, i);
        double seconds = seconds_of(choice, micro_batches);

        if (ap_graph_op(context->one.graph, choice->op)->layer == layer && seconds > most &&
            (seconds < limit || (seconds == limit && i > previous))) {
            most = seconds;
            dearest = i;
        }
    }
    return dearest;
}

static void name_specs(const ap_op_t *op, const ap_stage_choice_t *choice, char *text, size_t size)
{
    size_t length;

    ap_spec_list(choice->specs, op->rule.rank, op->operand_count, text, size);
    length = strlen(text);
    length += (size_t)snprintf(text + length, size - length, " -> ");
    if (length < size) {
        ap_spec_list(choice->specs + op->operand_count, op->rule.rank + op->operand_count,
                     op->result_count, text + length, size - length);
    }
}

static xm_status_t explain_operator(const ap_explain_context_t *context, int index,
                                    const ap_stage_choice_t *choice, ap_explanation_t *explanation)
{
    const ap_op_t *op = ap_graph_op(context->one.graph, choice->op);
    ap_decision_t *decision =
        ap_explanation_add(explanation, "micro-batch", "stage %d: operator %.60s", index, op->name);
    double micro_batches = context->one.accumulated;
    char specs[SPECS_TEXT], compute[TEXT], comm[TEXT], sync[TEXT];

    if (decision == NULL) {
        return XM_ERR_NO_MEMORY;
    }
    name_specs(op, choice, specs, sizeof(specs));
    (void)snprintf(decision->chosen, sizeof(decision->chosen), "%s  %s", choice->rule, specs);
    decision->chosen_seconds = seconds_of(choice, micro_batches);
    if (choice->runner_up[0] != '\0') {
        (void)snprintf(decision->runner_up, sizeof(decision->runner_up), "%s", choice->runner_up);
        decision->runner_up_seconds = decision->chosen_seconds + choice->runner_up_extra;
    }
    (void)snprintf(decision->decided_by, sizeof(decision->decided_by),
                   "compute %s, communication %s, gradient sync %s per step%s%s",
                   xm_text_format_seconds(choice->compute, compute, sizeof(compute)),
                   xm_text_format_seconds(choice->comm + choice->reshard, comm, sizeof(comm)),
                   xm_text_format_seconds(choice->sync, sync, sizeof(sync)),
                   choice->why[0] != '\0' ? "; " : "", choice->why);
    return XM_OK;
}

/* The layers of a stage are much alike: the dearest operators of its middle layer stand for all. */
static xm_status_t explain_operators(const ap_explain_context_t *context, int index,
                                     const ap_stage_query_t *query,
                                     const ap_stage_solution_t *solution,
                                     ap_explanation_t *explanation)
{
    double limit = INFINITY;
    int previous = -1;

    for (int i = 0; i < context->operators; ++i) {
        int dearest =
            next_dearest(context, solution, (query->first + query->last) / 2, limit, previous);
        const ap_stage_choice_t *choice;

        if (dearest < 0) {
            break;
        }
        choice = ap_stage_solution_choice(solution, dearest);
        limit = seconds_of(choice, context->one.accumulated);
        previous = dearest;
        XM_TRY(explain_operator(context, index, choice, explanation));
    }
    return XM_OK;
}

xm_status_t ap_explain_stage(ap_explain_context_t *context, int index,
                             ap_explanation_t *explanation)
{
    ap_stage_solution_t *solution;
    ap_stage_query_t query;
    xm_status_t status;

    XM_TRY(ap_plan_stage_query(context->plan, index, &query));
    XM_TRY(ap_stage_solve(pricing_of(context, index), &query, &solution));
    status = explain_mesh(context, index, &query, solution, explanation);
    XM_THEN(status, explain_recompute(context, index, &query, ap_stage_solution_cost(solution),
                                      explanation));
    XM_THEN(status, explain_operators(context, index, &query, solution, explanation));
    ap_stage_solution_destroy(solution);
    return status;
}
