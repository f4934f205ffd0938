/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans as another planner would: narrows the question to the row's space, runs the row's search,
 * and keeps what the judge finds best. Searches differ, the judge does not: every plan is priced
 * and simulated by the same code, so the comparison is of what was chosen and not of how it was
 * counted.
 *
 * That a row finds no plan is a result and no failure; the reason is kept as a sentence.
 */

#include "planner/published/like.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "planner/published/like/like_private.h"

/* Stands for the memory of a device where a row does not look at it. */
static const double ENDLESS = 1e18;

void ap_like_result_clear(ap_like_result_t *result)
{
    if (result != NULL) {
        ap_plan_destroy(result->plan);
        ap_galvatron_destroy(result->galvatron);
        free(result->curve);
        *result = (ap_like_result_t){0};
    }
}

/* Our planner in the row's space and under its schedule: like all rows', its plans are chosen by
 * the simulation, whatever the row's own planner looks at. */
static xm_status_t like_stages(ap_like_t *like)
{
    bool ours = strcmp(like->row->name, "default") == 0;
    ap_planner_params_t params = like->params;
    ap_planner_result_t found;
    xm_status_t status;
    bool kept;

    params.space = &like->row->space;
    params.keep_host_order = params.keep_host_order || !ours;
    params.all_devices = params.all_devices || !ours;
    params.memory_limit = like->row->memory ? like->limit : ENDLESS;
    params.memory_reserve = 0.0; /* the limit is without it */
    params.schedule = like->row->schedule.kind;
    status = ap_planner_run(&params, &found);
    if (status == XM_ERR_NO_SOLUTION) {
        (void)snprintf(like->result->why, sizeof(like->result->why), "%s", xm_last_error());
        return XM_OK;
    }
    if (status == XM_OK) {
        status = ap_like_consider_plan(like, found.plan, &kept);
        found.plan = NULL;
        ap_planner_result_clear(&found);
    }
    return status;
}

static xm_status_t search(ap_like_t *like)
{
    static ap_like_case_fn *const searches[] = {
        [AP_SEARCH_STAGES] = NULL,
        [AP_SEARCH_GRID] = ap_like_grid,
        [AP_SEARCH_REDUCTION] = ap_like_choices,
        [AP_SEARCH_ORDERING] = ap_like_choices,
        [AP_SEARCH_MCMC] = ap_like_choices,
        [AP_SEARCH_RECURSIVE] = ap_like_choices,
        [AP_SEARCH_GREEDY] = ap_like_choices,
        [AP_SEARCH_TREE] = ap_like_choices,
        [AP_SEARCH_SUBSTITUTION] = ap_like_choices,
        [AP_SEARCH_FRONTIER] = ap_like_choices,
        [AP_SEARCH_LAYERWISE] = ap_like_layerwise,
        [AP_SEARCH_IDEALS] = ap_like_ideals,
        [AP_SEARCH_PLACEMENT] = ap_like_placement,
        [AP_SEARCH_PROPOSALS] = ap_like_placement,
    };
    ap_like_case_fn *const of_case = searches[like->row->search];

    return of_case == NULL ? like_stages(like) : ap_like_each_case(like, of_case);
}

/* Narrows the caller's limits on stages and recomputation to the row's; a contradiction between the
 * two leaves no plan. */
static xm_status_t narrow(ap_like_t *like)
{
    const ap_space_t *space = &like->row->space;
    ap_planner_params_t *params = &like->params;
    int devices = like->hosts * like->devices_per_host;

    if (like->row->by_speed) {
        return XM_NO_SOLUTION("the stages of a plan cut evenly; autopar shard --like %s parts by "
                              "speed",
                              like->row->name);
    }
    /* A placement may leave devices idle; other rows with one device to a stage use all or none. */
    if (space->stage_devices == 1 && devices > like->layers &&
        like->row->search != AP_SEARCH_PLACEMENT && like->row->search != AP_SEARCH_PROPOSALS) {
        return XM_NO_SOLUTION("%s has stages of one device: %d layers do not fill %d devices",
                              like->row->name, like->layers, devices);
    }
    if (!space->pipeline) {
        if (params->min_stages > 1) {
            return XM_NO_SOLUTION("%s has no pipeline, at least %d stages asked", like->row->name,
                                  params->min_stages);
        }
        params->max_stages = 1;
    }
    if ((!space->recompute && params->recompute == AP_RECOMPUTE_ON) ||
        (!space->keep && params->recompute == AP_RECOMPUTE_OFF)) {
        return XM_NO_SOLUTION("%s %s", like->row->name,
                              space->keep ? "never recomputes activations"
                                          : "always recomputes activations");
    }
    if (!space->recompute || !space->keep) {
        params->recompute = space->keep ? AP_RECOMPUTE_OFF : AP_RECOMPUTE_ON;
    }
    /* What the model's own step does holds for all rows alike, as far as they can. */
    params->recompute = ap_planner_recompute(&like->setup);
    if (!space->mixed && params->recompute == AP_RECOMPUTE_AUTO) {
        params->recompute = AP_RECOMPUTE_UNIFORM;
    }
    return XM_OK;
}

static xm_status_t open(ap_like_t *like)
{
    const ap_graph_t *graph;
    ap_graph_t *made;
    XM_TRY(ap_planner_setup_open(&like->params, 0.0, &like->setup));

    like->limit = like->setup.memory_limit;
    like->hosts = xm_cluster_profile_hosts(like->params.profile);
    like->devices_per_host = xm_cluster_profile_devices_per_host(like->params.profile);
    XM_TRY(ap_planner_micro_batches(&like->setup, like->micro_batches, &like->micro_batch_count));
    XM_TRY(ap_planner_graph_open(&like->setup, like->micro_batches[0], &graph, &made));
    like->layers = ap_graph_layers(graph);
    ap_graph_destroy(made);
    return XM_OK;
}

/* What a file of Galvatron says besides its layers. */
static void take_galvatron(const ap_galvatron_t *told, ap_planner_params_t *params)
{
    params->global_batch = (int)told->batch;
    params->micro_batches = &told->chunks;
    params->micro_batch_count = 1;
    params->min_stages = params->max_stages = told->stages;
    params->recompute = told->recompute ? AP_RECOMPUTE_ON : AP_RECOMPUTE_OFF;
}

xm_status_t ap_like_run(const ap_planner_preset_t *row, const ap_like_effort_t *effort,
                        const ap_planner_params_t *params, ap_like_result_t *result)
{
    ap_like_result_t made = {.row = row};
    ap_like_t like = {.row = row, .params = *params, .result = &made};
    double start = xm_clock_seconds();
    xm_status_t status;

    like.effort = effort != NULL ? *effort : like.effort;
    if (params->struct_size < sizeof(*params) || params->model == NULL || params->profile == NULL) {
        return XM_INVALID(
            "a model and a cluster profile are needed, and AP_PLANNER_PARAMS_INIT to start from");
    }
    if (like.effort.galvatron != NULL) {
        take_galvatron(like.effort.galvatron, &like.params);
    }
    status = open(&like);
    if (status == XM_OK) {
        status = narrow(&like);
        XM_THEN(status, search(&like));
        if (status == XM_ERR_NO_SOLUTION || status == XM_ERR_UNSUPPORTED) {
            (void)snprintf(made.why, sizeof(made.why), "%s", xm_last_error());
            status = XM_OK;
        }
    }
    ap_planner_setup_close(&like.setup);
    if (status != XM_OK) {
        ap_like_result_clear(&made);
        return status;
    }
    if (made.plan == NULL && made.why[0] == '\0') {
        (void)snprintf(made.why, sizeof(made.why),
                       "%s has no plan for %d layers on %d x %d devices", row->name, like.layers,
                       like.hosts, like.devices_per_host);
    }
    made.search_seconds = xm_clock_seconds() - start;
    *result = made;
    return XM_OK;
}
