/* SPDX-License-Identifier: Apache-2.0 */
/* Plans at the public door: searched, in tables, exported, as published planners make them. */
#include <stddef.h>

#include "comm/base.h"
#include "planner/door/door.h"
#include "planner/search.h"
#include "planner/explain.h"
#include "planner/export.h"
#include "planner/passes.h"
#include "planner/published/like.h"
#include "planner/plan.h"

xm_status_t ap_graph_make_layers(const ap_graph_t *forward, const ap_layering_t *how,
                                 ap_graph_t **layered)
{
    XM_NEED_ARGUMENTS(forward, how, layered);
    ap_layering_t own = AP_LAYERING_INIT;
    XM_TRY(XM_PARAMS_COPY(ap_layering_t, &own, how));

    return ap_layering_apply(forward, &own, layered, NULL);
}

xm_status_t ap_planner_plan(const ap_planner_params_t *params, ap_plan_t **plan,
                            ap_planner_info_t *info)
{
    XM_NEED_ARGUMENTS(plan);
    ap_door_planner_t asked;
    ap_planner_result_t result = {0};
    xm_status_t status = ap_door_planner_params(&asked, __func__, params);

    XM_THEN(status, ap_planner_run(&asked.params, &result));
    if (status == XM_OK && info != NULL) {
        ap_planner_info_t own = {.objective = result.objective,
                                 .bound = result.bound,
                                 .stopped = result.stopped,
                                 .host_orders = result.host_orders,
                                 .stages_priced = result.stages_priced,
                                 .boundaries_simulated = result.boundaries_simulated};

        status = xm_info_copy(__func__, "ap_planner_info_t", info, &own, sizeof(own));
    }
    if (status == XM_OK) {
        *plan = result.plan;
        result.plan = NULL;
    }
    ap_planner_result_clear(&result);
    return status;
}

const char *ap_like_name(size_t index)
{
    int count = 0;
    const ap_planner_preset_t *rows = ap_planner_presets(&count);

    return index < (size_t)count ? rows[index].name : NULL;
}

xm_status_t ap_like_plan(const char *name, const ap_planner_params_t *params, ap_plan_t **plan,
                         ap_like_info_t *info)
{
    XM_NEED_ARGUMENTS(name, plan);
    const ap_planner_preset_t *row = NULL;
    ap_door_planner_t asked;
    ap_like_result_t result = {0};
    xm_status_t status = ap_door_planner_params(&asked, __func__, params);

    XM_THEN(status, ap_planner_preset_find(name, &row));
    XM_THEN(status, ap_like_run(row, NULL, &asked.params, &result));
    if (status == XM_OK && result.plan == NULL) {
        status = XM_NO_SOLUTION("%s: %s", name, result.why);
    }
    if (status == XM_OK && info != NULL) {
        ap_like_info_t own = {.step = result.step,
                              .memory = result.memory,
                              .over_bytes = result.over_bytes,
                              .search_seconds = result.search_seconds,
                              .judged = result.judged};

        status = xm_info_copy(__func__, "ap_like_info_t", info, &own, sizeof(own));
    }
    if (status == XM_OK) {
        *plan = result.plan;
        result.plan = NULL;
    }
    ap_like_result_clear(&result);
    return status;
}

xm_status_t ap_plan_table(const ap_plan_t *plan, char **text)
{
    XM_NEED_ARGUMENTS(plan, text);
    ap_door_text_t door;
    XM_TRY(ap_door_text_open(&door, __func__, text));

    ap_plan_print(plan, door.stream);
    return ap_door_text_close(&door, XM_OK, text);
}

xm_status_t ap_explanation_table(const ap_explanation_t *explanation, char **text)
{
    XM_NEED_ARGUMENTS(explanation, text);
    ap_door_text_t door;
    XM_TRY(ap_door_text_open(&door, __func__, text));

    ap_explanation_print(explanation, door.stream);
    return ap_door_text_close(&door, XM_OK, text);
}

xm_status_t ap_export_plan_text(const ap_plan_t *plan, ap_export_form_t form, char **text)
{
    XM_NEED_ARGUMENTS(plan, text);
    ap_door_text_t door;
    XM_TRY(ap_door_text_open(&door, __func__, text));

    return ap_door_text_close(&door, ap_export_plan(plan, form, door.stream), text);
}
