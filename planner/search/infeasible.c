/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Why there is no plan, in one sentence with the smallest change that would help. "No solution"
 * leaves a user to try limits by hand; the planner can try them faster. It asks the same search
 * again with one restriction less, doubles the memory until something fits, and names what worked.
 *
 * All of this runs only after a search has failed, so it may cost several more.
 */

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "comm/base.h"
#include "planner/search/search_private.h"

enum { DOUBLINGS = 60, HALVINGS = 6, TEXT = 32, LONG_TEXT = 320 };

/* Where it may, every stage recomputes: nothing needs less memory. */
static ap_recompute_t least_memory(const ap_planner_setup_t *setup)
{
    return setup->params->recompute == AP_RECOMPUTE_OFF ? AP_RECOMPUTE_OFF : AP_RECOMPUTE_ON;
}

/* The schedule asked for; with a choice it is 1f1b, for none needs less memory. */
static ap_schedule_kind_t schedule_of(const ap_planner_setup_t *setup)
{
    const char *name = setup->params->schedule;
    ap_schedule_kind_t kind = AP_SCHEDULE_1F1B;

    if (name == NULL || strcmp(name, "auto") == 0 || ap_schedule_find(name, &kind) != XM_OK) {
        return AP_SCHEDULE_1F1B;
    }
    return kind;
}

/* What is asked, with a change or two. */
typedef struct question {
    ap_planner_case_options_t options;
    int min_stages, max_stages;
} question_t;

static question_t as_asked(const ap_planner_setup_t *setup, int64_t micro_batches)
{
    return (question_t){.options = {.micro_batches = micro_batches,
                                    .recompute = least_memory(setup),
                                    .schedule = schedule_of(setup)},
                        .min_stages = setup->params->min_stages,
                        .max_stages = setup->params->max_stages};
}

/* Asks whether there is a plan; XM_ERR_NO_SOLUTION says no. The plan is the caller's, unless it is
 * not wanted. */
static xm_status_t solvable(const ap_planner_setup_t *setup, const question_t *question,
                            ap_plan_t **plan)
{
    const ap_plan_info_t info = ap_planner_info(setup);
    ap_inter_op_result_t found = {0};
    ap_planner_case_t one;
    xm_status_t status;

    XM_TRY(ap_planner_case_open(setup, &question->options, &one));
    status = ap_stage_table_solve(one.table, question->min_stages, question->max_stages, &found);
    if (status == XM_OK && plan != NULL) {
        status = ap_plan_build(one.table, &found, &info, plan);
    }
    ap_inter_op_result_clear(&found);
    ap_planner_case_close(&one);
    return status;
}

/* Doubles the memory until a plan fits, then halves the interval a few times: within a few per cent
 * is enough to say. */
static xm_status_t needed_memory(const ap_planner_setup_t *setup, question_t question,
                                 double *needed)
{
    double low = setup->memory_limit, high = 2.0 * low;
    xm_status_t status = XM_ERR_NO_SOLUTION;

    for (int i = 0; i < DOUBLINGS && status == XM_ERR_NO_SOLUTION; ++i) {
        question.options.memory_limit = high;
        status = solvable(setup, &question, NULL);
        if (status == XM_ERR_NO_SOLUTION) {
            low = high;
            high *= 2.0;
        }
    }
    for (int i = 0; i < HALVINGS && status == XM_OK; ++i) {
        double middle = 0.5 * (low + high);

        question.options.memory_limit = middle;
        status = solvable(setup, &question, NULL);
        if (status == XM_OK) {
            high = middle;
        } else if (status == XM_ERR_NO_SOLUTION) {
            low = middle;
            status = XM_OK;
        }
    }
    *needed = high;
    return status;
}

static const char *bytes_text(double bytes, char *text)
{
    return xm_text_format_bytes((uint64_t)bytes, text, TEXT);
}

/* Names the stage that needs most of a plan that fits into a little more memory, and what for. */
static xm_status_t name_fullest(const ap_planner_setup_t *setup, const question_t *question,
                                char *text, size_t size)
{
    const ap_plan_stage_t *fullest = NULL;
    char state[TEXT], activations[TEXT], work[TEXT];
    ap_plan_t *plan;
    int index = 0;
    int64_t held;

    XM_TRY(solvable(setup, question, &plan));
    for (int i = 0; i < ap_plan_stages(plan); ++i) {
        const ap_plan_stage_t *stage = ap_plan_stage(plan, i);

        if (fullest == NULL || ap_plan_stage_memory(stage) > ap_plan_stage_memory(fullest)) {
            fullest = stage;
            index = i;
        }
    }
    held = ap_schedule_in_flight(question->options.schedule, index,
                                 ap_plan_stages(plan) - 1 - index, question->options.micro_batches);
    (void)snprintf(
        text, size,
        "stage %d of %d (layers %d-%d on %dx%d devices): %s of parameters and their "
        "state, %" PRId64 " x %s of activations, %s of work",
        index, ap_plan_stages(plan), fullest->first_layer, fullest->last_layer, fullest->hosts,
        fullest->devices_per_host, bytes_text(fullest->state_bytes, state), held,
        bytes_text(fullest->activation_bytes, activations), bytes_text(fullest->work_bytes, work));
    ap_plan_destroy(plan);
    return XM_OK;
}

/* Finds the number of stages nearest to the limits for which there is a plan with enough memory; 0
 * when there is none. One table serves all numbers. */
static xm_status_t nearest_stages(const ap_planner_setup_t *setup, int64_t micro_batches,
                                  int *stages)
{
    const ap_planner_params_t *params = setup->params;
    int devices = xm_cluster_profile_hosts(params->profile) *
                  xm_cluster_profile_devices_per_host(params->profile);
    ap_planner_case_options_t options = {
        .micro_batches = micro_batches, .recompute = least_memory(setup), .memory_limit = INFINITY};
    ap_planner_case_t one;

    XM_TRY(ap_planner_case_open(setup, &options, &one));
    *stages = 0;
    for (int distance = 1; distance <= devices + params->min_stages && *stages == 0; ++distance) {
        const int candidates[] = {params->min_stages - distance,
                                  params->max_stages > 0 ? params->max_stages + distance : 0};

        for (int i = 0; i < 2 && *stages == 0; ++i) {
            ap_inter_op_result_t found = {0};

            if (candidates[i] >= 1 && candidates[i] <= devices &&
                ap_stage_table_solve(one.table, candidates[i], candidates[i], &found) == XM_OK) {
                *stages = candidates[i];
                ap_inter_op_result_clear(&found);
            }
        }
    }
    ap_planner_case_close(&one);
    return XM_OK;
}

static xm_status_t blame_stages(const ap_planner_setup_t *setup, int64_t micro_batches)
{
    const ap_planner_params_t *params = setup->params;
    int hosts = xm_cluster_profile_hosts(params->profile);
    int per_host = xm_cluster_profile_devices_per_host(params->profile);
    char limits[TEXT];
    int stages;
    bool demands = false;

    XM_TRY(nearest_stages(setup, micro_batches, &stages));
    if (params->max_stages == params->min_stages) {
        (void)snprintf(limits, sizeof(limits), "%d", params->min_stages);
    } else if (params->max_stages == 0) {
        (void)snprintf(limits, sizeof(limits), "%d or more", params->min_stages);
    } else {
        (void)snprintf(limits, sizeof(limits), "%d to %d", params->min_stages, params->max_stages);
    }
    for (int t = 0; setup->graph != NULL && t < ap_graph_tensors(setup->graph); ++t) {
        demands = demands || ap_tensor_demands(ap_graph_tensor(setup->graph, t));
    }
    if (stages == 0) {
        return XM_NO_SOLUTION("%s cannot be planned on %d x %d devices with a batch of %" PRId64
                              " in %" PRId64
                              " micro-batches: no stage has a sharding that divides%s",
                              params->model, hosts, per_host, setup->global_batch, micro_batches,
                              demands ? " and is as the model's annotations demand" : "");
    }
    return XM_NO_SOLUTION("%s cannot be divided into %s stages on %d x %d devices; the nearest "
                          "number that works is %d",
                          params->model, limits, hosts, per_host, stages);
}

/* More micro-batches than were asked for, the most that the batch allows; 0 when there are none. */
static int64_t more_micro_batches(const ap_planner_setup_t *setup, int64_t micro_batches)
{
    int64_t most = 0;

    for (int64_t b = 1; setup->micro_batches == 0 && b <= AP_PLANNER_MOST_MICRO_BATCHES &&
                        setup->global_batch % b == 0;
         b *= 2) {
        most = b;
    }
    return most > micro_batches ? most : 0;
}

/* Tries what was asked for with one restriction less, and names those changes that would do. */
static xm_status_t name_changes(const ap_planner_setup_t *setup, int64_t micro_batches, char *text,
                                size_t size)
{
    enum { CHANGES = 4, CHANGE_TEXT = 48 };
    const ap_planner_params_t *params = setup->params;
    int64_t more = more_micro_batches(setup, micro_batches);
    question_t changed[CHANGES];
    char names[CHANGES][CHANGE_TEXT];
    size_t length = 0;
    int count = 0;

    for (int i = 0; i < CHANGES; ++i) {
        changed[i] = as_asked(setup, micro_batches);
    }
    if (params->recompute == AP_RECOMPUTE_OFF) {
        changed[count].options.recompute = AP_RECOMPUTE_ON;
        (void)snprintf(names[count++], CHANGE_TEXT, "recomputation");
    }
    if (schedule_of(setup) != AP_SCHEDULE_1F1B) {
        changed[count].options.schedule = AP_SCHEDULE_1F1B;
        (void)snprintf(names[count++], CHANGE_TEXT, "the schedule 1f1b");
    }
    if (params->min_stages > 1 || params->max_stages > 0) {
        changed[count].min_stages = changed[count].max_stages = 0;
        (void)snprintf(names[count++], CHANGE_TEXT, "any number of stages");
    }
    if (more > 0) {
        changed[count].options.micro_batches = more;
        (void)snprintf(names[count++], CHANGE_TEXT, "%" PRId64 " micro-batches", more);
    }
    text[0] = '\0';
    for (int i = 0; i < count; ++i) {
        xm_status_t status = solvable(setup, &changed[i], NULL);

        if (status == XM_OK) {
            length += (size_t)snprintf(text + length, size - length, "%s%s",
                                       length == 0 ? "; it fits with " : ", or with ", names[i]);
        } else if (status != XM_ERR_NO_SOLUTION) {
            return status;
        }
    }
    return XM_OK;
}

/* Memory is to blame only if there is a plan without a limit on it. */
xm_status_t ap_planner_explain_infeasible(const ap_planner_setup_t *setup, int64_t micro_batches)
{
    const ap_planner_params_t *params = setup->params;
    question_t question = as_asked(setup, micro_batches);
    double needed;
    char has_text[TEXT], needs_text[TEXT], more_text[TEXT],
        reserve[2 * TEXT] = "", where[LONG_TEXT], changes[LONG_TEXT];
    xm_status_t status;

    question.options.memory_limit = INFINITY;
    status = solvable(setup, &question, NULL);
    if (status == XM_ERR_NO_SOLUTION) {
        return blame_stages(setup, micro_batches);
    }
    XM_THEN(status, needed_memory(setup, question, &needed));
    if (status == XM_OK) {
        question.options.memory_limit = needed;
        status = name_fullest(setup, &question, where, sizeof(where));
    }
    XM_THEN(status, name_changes(setup, micro_batches, changes, sizeof(changes)));
    XM_TRY(status);
    if (setup->memory_reserve > 0.0) {
        (void)snprintf(reserve, sizeof(reserve), " (and %s in reserve)",
                       bytes_text(setup->memory_reserve, more_text));
    }
    return XM_NO_SOLUTION("%s does not fit into %s per device%s on %d x %d devices: with %" PRId64
                          " micro-batch%s%s under %s it needs %s, %s more, in %s%s",
                          params->model, bytes_text(setup->memory_limit, has_text), reserve,
                          xm_cluster_profile_hosts(params->profile),
                          xm_cluster_profile_devices_per_host(params->profile), micro_batches,
                          micro_batches == 1 ? "" : "es",
                          params->recompute != AP_RECOMPUTE_OFF ? " and recomputation" : "",
                          ap_schedule_name(schedule_of(setup)), bytes_text(needed, needs_text),
                          bytes_text(needed - setup->memory_limit, more_text), where, changes);
}
