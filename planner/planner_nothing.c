#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "comm/text.h"
#include "planner/planner_private.h"

enum { DOUBLINGS = 24, HALVINGS = 6, TEXT = 32 };

/* Where it may, every stage recomputes: nothing needs less. */
static ap_recompute_t least_memory(const ap_planner_setup_t *setup)
{
    return setup->params->recompute == AP_RECOMPUTE_OFF ? AP_RECOMPUTE_OFF : AP_RECOMPUTE_ON;
}

/* The schedule asked for; none needs less memory than 1f1b. */
static ap_schedule_kind_t schedule_of(const ap_planner_setup_t *setup)
{
    const char *name = setup->params->schedule;
    ap_schedule_kind_t kind = AP_SCHEDULE_1F1B;

    if (name == NULL || strcmp(name, "auto") == 0 || ap_schedule_find(name, &kind) != XM_OK) {
        return AP_SCHEDULE_1F1B;
    }
    return kind;
}

/* Is there a plan with this memory and these stage limits? XM_ERR_NO_SOLUTION: no. */
static xm_status_t solvable(const ap_planner_setup_t *setup, int64_t micro_batches, double memory,
                            int min_stages, int max_stages)
{
    ap_planner_case_options_t options = {.micro_batches = micro_batches,
                                         .recompute = least_memory(setup),
                                         .schedule = schedule_of(setup),
                                         .memory_limit = memory};
    ap_inter_op_result_t found = {0};
    ap_planner_case_t one;
    xm_status_t status = ap_planner_case_open(setup, &options, &one);

    if (status != XM_OK) {
        return status;
    }
    status = ap_stage_table_solve(one.table, min_stages, max_stages, &found);
    ap_inter_op_result_clear(&found);
    ap_planner_case_close(&one);
    return status;
}

/* Doubles the memory until a plan fits, then halves the interval a few times. */
static xm_status_t needed_memory(const ap_planner_setup_t *setup, int64_t micro_batches,
                                 double *needed)
{
    const ap_planner_params_t *params = setup->params;
    double low = setup->memory_limit, high = 2.0 * low;
    xm_status_t status = XM_ERR_NO_SOLUTION;

    for (int i = 0; i < DOUBLINGS && status == XM_ERR_NO_SOLUTION; ++i) {
        status = solvable(setup, micro_batches, high, params->min_stages, params->max_stages);
        if (status == XM_ERR_NO_SOLUTION) {
            low = high;
            high *= 2.0;
        }
    }
    for (int i = 0; i < HALVINGS && status == XM_OK; ++i) {
        double middle = 0.5 * (low + high);

        status = solvable(setup, micro_batches, middle, params->min_stages, params->max_stages);
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

/* The number of stages nearest to the limits for which there is a plan with enough memory; 0: none.
 */
static xm_status_t nearest_stages(const ap_planner_setup_t *setup, int64_t micro_batches,
                                  int *stages)
{
    const ap_planner_params_t *params = setup->params;
    int devices = xm_cluster_profile_hosts(params->profile) *
                  xm_cluster_profile_devices_per_host(params->profile);
    ap_planner_case_options_t options = {
        .micro_batches = micro_batches, .recompute = least_memory(setup), .memory_limit = INFINITY};
    ap_planner_case_t one;
    xm_status_t status = ap_planner_case_open(setup, &options, &one);

    if (status != XM_OK) {
        return status;
    }
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
    xm_status_t status = nearest_stages(setup, micro_batches, &stages);

    if (status != XM_OK) {
        return status;
    }
    if (params->max_stages == params->min_stages) {
        (void)snprintf(limits, sizeof(limits), "%d", params->min_stages);
    } else if (params->max_stages == 0) {
        (void)snprintf(limits, sizeof(limits), "%d or more", params->min_stages);
    } else {
        (void)snprintf(limits, sizeof(limits), "%d to %d", params->min_stages, params->max_stages);
    }
    if (stages == 0) {
        return xm_error_set(XM_ERR_NO_SOLUTION,
                            "%s cannot be planned on %d x %d devices with a batch of %" PRId64
                            " in %" PRId64 " micro-batches: no stage has a sharding that divides",
                            params->model, hosts, per_host, setup->global_batch, micro_batches);
    }
    return xm_error_set(XM_ERR_NO_SOLUTION,
                        "%s cannot be divided into %s stages on %d x %d devices; the nearest "
                        "number that works is %d",
                        params->model, limits, hosts, per_host, stages);
}

xm_status_t ap_planner_explain_nothing(const ap_planner_setup_t *setup, int64_t micro_batches)
{
    const ap_planner_params_t *params = setup->params;
    double needed;
    char has_text[TEXT], needs_text[TEXT], more_text[TEXT];
    xm_status_t status =
        solvable(setup, micro_batches, INFINITY, params->min_stages, params->max_stages);

    if (status == XM_ERR_NO_SOLUTION) {
        return blame_stages(setup, micro_batches);
    }
    if (status == XM_OK) {
        status = needed_memory(setup, micro_batches, &needed);
    }
    if (status != XM_OK) {
        return status;
    }
    return xm_error_set(
        XM_ERR_NO_SOLUTION,
        "%s does not fit into %s per device on %d x %d devices: with %" PRId64
        " micro-batches%s it needs %s, %s more",
        params->model,
        xm_text_format_bytes((uint64_t)setup->memory_limit, has_text, sizeof(has_text)),
        xm_cluster_profile_hosts(params->profile),
        xm_cluster_profile_devices_per_host(params->profile), micro_batches,
        params->recompute != AP_RECOMPUTE_OFF ? " and recomputation" : "",
        xm_text_format_bytes((uint64_t)needed, needs_text, sizeof(needs_text)),
        xm_text_format_bytes((uint64_t)(needed - setup->memory_limit), more_text,
                             sizeof(more_text)));
}
