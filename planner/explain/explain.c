/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Explanations of a plan, by asking the planner again. A plan holds what was chosen and not what
 * was rejected, so each decision's runner-up is found by a search of its own on the same prices:
 * the other numbers of micro-batches, of stages, the profile's order of hosts. What decided is told
 * in numbers of the profile, because those are what a user can measure again.
 *
 * Options that the plan was made with are not recorded in it; a runner-up that is faster is named
 * as excluded by one.
 */

#include "planner/explain/explain.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "planner/explain/explain_private.h"
#include "planner/plan.h"

enum { TEXT = 32, MOST_STAGES = 32 };

/* The planner promises the best plan within a thousandth. */
#define WITHIN 0.001

/* Cases that are slower than the best by up to this share are still worth naming as runners-up. */
#define RUNNERS_UP 0.5

/* The decision is entered before it is filled in, so a failure later leaves one with empty texts,
 * and the explanation is then destroyed as a whole. */
ap_decision_t *ap_explanation_add(ap_explanation_t *explanation, const char *unit,
                                  const char *subject, ...)
{
    ap_decision_t *decision;
    va_list arguments;

    if (!XM_ARRAY_ROOM(explanation->decisions, explanation->capacity, explanation->count)) {
        (void)XM_NO_MEMORY("%d decisions", explanation->count + 1);
        return NULL;
    }
    decision = &explanation->decisions[explanation->count++];
    *decision = (ap_decision_t){.runner_up_seconds = INFINITY};
    (void)snprintf(decision->unit, sizeof(decision->unit), "%s", unit);
    va_start(arguments, subject);
    (void)vsnprintf(decision->subject, sizeof(decision->subject), subject, arguments);
    va_end(arguments);
    return decision;
}

static void name_case(const ap_plan_info_t *info, int64_t micro_batches, char *text)
{
    (void)snprintf(text, AP_CHOICE_TEXT, "%" PRId64 " micro-batches of %" PRId64, micro_batches,
                   info->global_batch / micro_batches);
}

/* The best other case of a run, or NULL. Without the margin that the run was given, worse cases
 * would never have been solved. */
static const ap_planner_trial_t *best_other(const ap_planner_result_t *result,
                                            const ap_plan_info_t *info)
{
    const ap_planner_trial_t *best = NULL;

    for (int i = 0; i < result->trial_count; ++i) {
        const ap_planner_trial_t *trial = &result->trials[i];

        if (trial->micro_batches != info->micro_batches && trial->solved &&
            (best == NULL || trial->step < best->step)) {
            best = trial;
        }
    }
    return best;
}

static xm_status_t explain_batches(const ap_explain_context_t *context,
                                   ap_explanation_t *explanation)
{
    const ap_plan_info_t *info = ap_plan_info(context->plan);
    ap_decision_t *decision = ap_explanation_add(explanation, "step", "micro-batches");
    const ap_planner_trial_t *other;
    ap_planner_result_t result;
    char sum[TEXT], bottleneck[TEXT], bound[TEXT];

    if (decision == NULL) {
        return XM_ERR_NO_MEMORY;
    }
    XM_TRY(ap_planner_run(context->setup.params, &result));
    other = best_other(&result, info);
    name_case(info, info->micro_batches, decision->chosen);
    decision->chosen_seconds = info->step;
    if (other != NULL) {
        name_case(info, other->micro_batches, decision->runner_up);
        decision->runner_up_seconds = other->step;
    }
    (void)snprintf(decision->decided_by, sizeof(decision->decided_by),
                   "simulated steps; once through %s, longest station %s; no plan is below %s; a "
                   "device does %.3f GFLOP/s and %.3f GB/s",
                   xm_text_format_seconds(info->sum, sum, sizeof(sum)),
                   xm_text_format_seconds(info->bottleneck, bottleneck, sizeof(bottleneck)),
                   xm_text_format_seconds(result.bound, bound, sizeof(bound)),
                   1e-9 * xm_cluster_profile_device_flops(context->profile),
                   1e-9 * xm_cluster_profile_device_memory_bandwidth(context->profile));
    ap_planner_result_clear(&result);
    return XM_OK;
}

static double crossing_seconds(const ap_inter_op_result_t *result)
{
    double seconds = 0.0;

    for (int i = 0; i < result->stage_count; ++i) {
        seconds += result->stages[i].boundary_seconds;
    }
    return seconds;
}

static double plan_crossing_seconds(const ap_plan_t *plan)
{
    double seconds = 0.0;

    for (int i = 0; i < ap_plan_boundaries(plan); ++i) {
        seconds += ap_plan_boundary(plan, i)->forward + ap_plan_boundary(plan, i)->backward;
    }
    return seconds;
}

/* The step of what was found, under the plan's schedule. *step is infinite if it does not fit. */
static xm_status_t step_of(const ap_explain_context_t *context, const ap_inter_op_result_t *found,
                           double *step)
{
    const ap_plan_info_t info = ap_planner_info(&context->setup);
    ap_plan_t *plan = NULL, *scheduled = NULL;
    ap_schedule_kind_t kind;
    xm_status_t status = ap_schedule_find(ap_plan_info(context->plan)->schedule, &kind);

    XM_THEN(status, ap_plan_build(context->one.table, found, &info, &plan));
    XM_THEN(status, ap_plan_reschedule(plan, kind, context->one.version_share, &scheduled));
    *step = status == XM_OK ? ap_plan_info(scheduled)->step : INFINITY;
    ap_plan_destroy(scheduled);
    ap_plan_destroy(plan);
    return status == XM_ERR_NO_SOLUTION ? XM_OK : status;
}

/* The fastest plan with another number of stages; stage_count stays 0 when there is none. Every
 * number up to a limit is searched on one stage table. */
static xm_status_t best_other_count(const ap_explain_context_t *context, ap_inter_op_result_t *best,
                                    double *least)
{
    int most = ap_plan_info(context->plan)->hosts * ap_plan_info(context->plan)->devices_per_host;

    for (int count = 1; count <= most && count <= MOST_STAGES; ++count) {
        ap_inter_op_result_t found;
        double step;
        xm_status_t status;

        if (count == ap_plan_stages(context->plan)) {
            continue;
        }
        status = ap_stage_table_solve(context->one.table, count, count, &found);
        if (status == XM_ERR_NO_SOLUTION) {
            continue;
        }
        if (status == XM_OK) {
            status = step_of(context, &found, &step);
            if (status != XM_OK) {
                ap_inter_op_result_clear(&found);
            }
        }
        XM_TRY(status);
        if (step < *least) {
            *least = step;
            ap_inter_op_result_clear(best);
            *best = found;
        } else {
            ap_inter_op_result_clear(&found);
        }
    }
    return XM_OK;
}

static xm_status_t explain_count(const ap_explain_context_t *context, ap_explanation_t *explanation)
{
    const ap_plan_info_t *info = ap_plan_info(context->plan);
    ap_decision_t *decision = ap_explanation_add(explanation, "step", "number of stages");
    ap_inter_op_result_t other = {0};
    char a[TEXT], b[TEXT];
    double step = INFINITY;

    if (decision == NULL) {
        return XM_ERR_NO_MEMORY;
    }
    XM_TRY(best_other_count(context, &other, &step));
    (void)snprintf(decision->chosen, sizeof(decision->chosen), "%d", ap_plan_stages(context->plan));
    decision->chosen_seconds = info->step;
    if (other.stage_count > 0) {
        (void)snprintf(decision->runner_up, sizeof(decision->runner_up), "%d", other.stage_count);
        decision->runner_up_seconds = step;
        (void)snprintf(
            decision->decided_by, sizeof(decision->decided_by),
            "simulated steps; transfers between stages take %s against %s per micro-batch",
            xm_text_format_seconds(plan_crossing_seconds(context->plan), a, sizeof(a)),
            xm_text_format_seconds(crossing_seconds(&other), b, sizeof(b)));
    } else {
        (void)snprintf(decision->decided_by, sizeof(decision->decided_by),
                       "no other number of stages divides the %d layers over the devices within "
                       "their memory",
                       info->layers);
    }
    ap_inter_op_result_clear(&other);
    return XM_OK;
}

/* A boundary has no runner-up: its layouts follow from the stages, and its strategy is fixed. */
static xm_status_t explain_boundary(const ap_explain_context_t *context, int index,
                                    ap_explanation_t *explanation)
{
    const ap_plan_boundary_t *boundary = ap_plan_boundary(context->plan, index);
    ap_decision_t *decision = ap_explanation_add(
        explanation, "micro-batch", "boundary %d-%d: resharding", boundary->from, boundary->to);
    xm_link_class_t link = boundary->net_bytes > 0 ? XM_LINK_INTER_HOST : XM_LINK_INTRA_HOST;
    double moved =
        (double)(boundary->net_bytes > 0 ? boundary->net_bytes : ap_plan_boundary_bytes(boundary));
    char with[TEXT] = "";
    char bytes[TEXT], bound[TEXT], single[TEXT];

    if (decision == NULL) {
        return XM_ERR_NO_MEMORY;
    }
    if (boundary->more_count > 0) {
        (void)snprintf(with, sizeof(with), " and %d more", boundary->more_count);
    }
    (void)snprintf(decision->chosen, sizeof(decision->chosen), "%s%s %s(%dx%d) to %s(%dx%d), %s",
                   boundary->tensor, with, boundary->src.spec, boundary->src.shape[0],
                   boundary->src.shape[1], boundary->dst.spec, boundary->dst.shape[0],
                   boundary->dst.shape[1], boundary->strategy);
    decision->chosen_seconds = boundary->forward + boundary->backward;
    (void)snprintf(
        decision->decided_by, sizeof(decision->decided_by),
        "link class %s: %s move (one message of that size takes %s there; NICs %.3f GB/s; lower "
        "bound one way %s)",
        xm_link_class_name(link), xm_text_format_bytes((uint64_t)moved, bytes, sizeof(bytes)),
        xm_text_format_seconds(xm_cluster_profile_seconds(context->profile, link, moved), single,
                               sizeof(single)),
        1e-9 * xm_cluster_profile_nic_bandwidth(context->profile),
        xm_text_format_seconds(boundary->bound, bound, sizeof(bound)));
    return XM_OK;
}

/* Names an order as "hosts 2,3,0,1", as far as there is room. */
static void name_order(const ap_plan_info_t *info, char *text)
{
    size_t length = (size_t)snprintf(text, AP_CHOICE_TEXT, "hosts ");

    for (int i = 0; i < info->hosts && length < AP_CHOICE_TEXT; ++i) {
        length += (size_t)snprintf(text + length, AP_CHOICE_TEXT - length, "%s%d", i > 0 ? "," : "",
                                   info->host_order[i]);
    }
}

/* What the hosts would do in the profile's order: the same question, asked without the freedom to
 * move them. */
static xm_status_t explain_order(const ap_explain_context_t *context, ap_explanation_t *explanation)
{
    const ap_plan_info_t *info = ap_plan_info(context->asked_plan), *other;
    ap_planner_params_t params = *context->setup.params;
    ap_decision_t *decision;
    ap_planner_result_t result = {0};
    char a[TEXT], b[TEXT], c[TEXT], d[TEXT];
    xm_status_t status;

    if (info->host_order == NULL) {
        return XM_OK;
    }
    decision = ap_explanation_add(explanation, "step", "order of hosts");
    if (decision == NULL) {
        return XM_ERR_NO_MEMORY;
    }
    params.profile = context->asked_profile;
    params.margin = 0.0;
    status = ap_planner_run(&params, &result);
    if (status != XM_OK && status != XM_ERR_NO_SOLUTION) {
        return status;
    }
    name_order(info, decision->chosen);
    decision->chosen_seconds = info->step;
    if (status == XM_OK) {
        other = ap_plan_info(result.plan);
        (void)snprintf(decision->runner_up, sizeof(decision->runner_up), "the profile's");
        decision->runner_up_seconds = other->step;
        (void)snprintf(decision->decided_by, sizeof(decision->decided_by),
                       "longest station %s against %s, once through %s against %s in %" PRId64
                       " micro-batches",
                       xm_text_format_seconds(info->bottleneck, a, sizeof(a)),
                       xm_text_format_seconds(other->bottleneck, b, sizeof(b)),
                       xm_text_format_seconds(info->sum, c, sizeof(c)),
                       xm_text_format_seconds(other->sum, d, sizeof(d)), other->micro_batches);
    } else {
        (void)snprintf(decision->decided_by, sizeof(decision->decided_by),
                       "no plan fits with the hosts in the profile's order");
    }
    ap_planner_result_clear(&result);
    return XM_OK;
}

static xm_status_t explain_all(ap_explain_context_t *context, ap_explanation_t *explanation)
{
    XM_TRY(explain_batches(context, explanation));

    XM_TRY(explain_order(context, explanation));
    XM_TRY(explain_count(context, explanation));
    XM_TRY(ap_explain_schedule(context, explanation));
    for (int i = 0; i < ap_plan_stages(context->plan); ++i) {
        XM_TRY(ap_explain_stage(context, i, explanation));
    }
    for (int i = 0; i < ap_plan_boundaries(context->plan); ++i) {
        XM_TRY(explain_boundary(context, i, explanation));
    }
    return XM_OK;
}

/* Reads a file in the layers that the plan was made of; where the plan does not say how, in as
 * many. */
static xm_status_t open_model(ap_planner_params_t *params, const ap_plan_info_t *info,
                              ap_planner_setup_t *setup)
{
    XM_TRY(ap_planner_setup_open(params, 0.0, setup));

    if (setup->graph != NULL && ap_graph_layers(setup->graph) != info->layers) {
        ap_planner_setup_close(setup);
        params->layering.layers = info->layers;
        XM_TRY(ap_planner_setup_open(params, 0.0, setup));
    }
    return XM_OK;
}

/* Checks that the graph is the plan's: a file may have changed since, or the plan may not say how
 * it was cut. The first operator of each group is enough to tell. */
static xm_status_t check_layers(const ap_plan_t *plan, const ap_graph_t *graph)
{
    for (int s = 0; s < ap_plan_stages(plan); ++s) {
        const ap_plan_stage_t *stage = ap_plan_stage(plan, s);

        for (int g = 0; g < stage->layer_count; ++g) {
            const ap_plan_layers_t *group = &stage->layers[g];
            int o = 0;

            while (o < ap_graph_ops(graph) && ap_graph_op(graph, o)->layer != group->first_layer) {
                ++o;
            }
            if (group->op_count > 0 && o < ap_graph_ops(graph) &&
                strcmp(ap_graph_op(graph, o)->name, group->ops[0].name) != 0) {
                return XM_MISMATCH("the layers of %s are not the plan's: layer %d begins with "
                                   "'%s', in the plan with '%s'",
                                   ap_plan_info(plan)->model, group->first_layer,
                                   ap_graph_op(graph, o)->name, group->ops[0].name);
            }
        }
    }
    return XM_OK;
}

/* Plan and profile are seen in the plan's order of hosts (planner/plan/order.h), so that
 * consecutive stages are on consecutive hosts for everything below. */
xm_status_t ap_explanation_create(const ap_plan_t *plan, const xm_cluster_profile_t *profile,
                                  int operators, ap_explanation_t **result)
{
    if (XM_IS_NULL(plan) || XM_IS_NULL(profile) || xm_is_null(__func__, "explanation", result)) {
        return XM_ERR_INVALID_ARGUMENT;
    }
    const ap_plan_info_t *info = ap_plan_info(plan);
    ap_planner_params_t params = AP_PLANNER_PARAMS_INIT;
    ap_planner_case_options_t options = {0};
    ap_plan_view_t view;
    ap_explanation_t *explanation = NULL;
    xm_status_t status = ap_plan_view_open(plan, profile, &view);
    ap_explain_context_t context = {.plan = view.plan,
                                    .profile = view.profile,
                                    .asked_plan = plan,
                                    .asked_profile = profile,
                                    .operators = operators};

    if (status != XM_OK) {
        goto close_view;
    }
    explanation = calloc(1, sizeof(*explanation));
    if (explanation != NULL) {
        explanation->costs = strdup(xm_cluster_profile_provenance(profile));
    }
    if (explanation == NULL || explanation->costs == NULL) {
        free(explanation);
        status = XM_NO_MEMORY("an explanation");
        goto close_view;
    }
    ap_planner_params_of_plan(info, view.profile, &params);
    params.keep_host_order = true; /* that of the plan */
    params.margin = RUNNERS_UP;
    options.micro_batches = info->micro_batches;
    status = ap_schedule_find(info->schedule, &options.schedule);
    XM_THEN(status, open_model(&params, info, &context.setup));
    XM_THEN(status, ap_planner_case_open(&context.setup, &options, &context.one));
    if (status == XM_OK && ap_graph_layers(context.one.graph) != info->layers) {
        status = XM_MISMATCH("model %s has %d layers, the plan's %d", info->model,
                             ap_graph_layers(context.one.graph), info->layers);
    }
    XM_THEN(status, check_layers(plan, context.one.graph));
    XM_THEN(status, explain_all(&context, explanation));
    ap_planner_case_close(&context.one);
    ap_planner_setup_close(&context.setup);
    if (status == XM_OK) {
        *result = explanation;
    } else {
        ap_explanation_destroy(explanation);
    }

close_view:
    ap_plan_view_close(&view);
    return status;
}

void ap_explanation_print(const ap_explanation_t *explanation, FILE *stream)
{
    for (int i = 0; i < explanation->count; ++i) {
        const ap_decision_t *decision = &explanation->decisions[i];
        char seconds[TEXT];

        (void)fprintf(stream, "%s\n  %-10s  %-60s %14s per %s\n", decision->subject, "chosen",
                      decision->chosen,
                      xm_text_format_seconds(decision->chosen_seconds, seconds, sizeof(seconds)),
                      decision->unit);
        if (decision->runner_up[0] != '\0') {
            double extra = decision->chosen_seconds > 0.0
                               ? decision->runner_up_seconds / decision->chosen_seconds - 1.0
                               : 0.0;

            /* Plans are explained anew without the options of that time, which a plan does not
             * record. */
            (void)fprintf(
                stream, "  %-10s  %-60s %14s (%+.2f %%%s)\n", "runner-up", decision->runner_up,
                xm_text_format_seconds(decision->runner_up_seconds, seconds, sizeof(seconds)),
                100.0 * extra, extra < -WITHIN ? "; an option of the plan excluded it" : "");
        }
        xm_text_print_wrapped(stream, XM_TEXT_COLUMNS, "  decided by  ", "              ", "%s",
                              decision->decided_by);
    }
}

char *ap_explanation_text(const ap_explanation_t *explanation)
{
    if (XM_IS_NULL(explanation)) {
        return NULL;
    }
    json_t *list = json_array();
    json_t *document;
    char *text;

    for (int i = 0; i < explanation->count; ++i) {
        const ap_decision_t *decision = &explanation->decisions[i];
        json_t *item = json_pack("{s:s, s:s, s:f, s:s, s:s}", "subject", decision->subject,
                                 "chosen", decision->chosen, "chosen_s", decision->chosen_seconds,
                                 "per", decision->unit, "decided_by", decision->decided_by);

        if (decision->runner_up[0] != '\0') {
            (void)json_object_set_new(item, "runner_up", json_string(decision->runner_up));
            (void)json_object_set_new(item, "runner_up_s", json_real(decision->runner_up_seconds));
        }
        (void)json_array_append_new(list, item);
    }
    document =
        json_pack("{s:i, s:s, s:o}", "version", 1, "costs", explanation->costs, "decisions", list);
    text = document != NULL ? json_dumps(document, JSON_INDENT(1)) : NULL;
    json_decref(document);
    return text;
}

void ap_explanation_destroy(ap_explanation_t *explanation)
{
    if (explanation != NULL) {
        free(explanation->costs);
        free(explanation->decisions);
        free(explanation);
    }
}
