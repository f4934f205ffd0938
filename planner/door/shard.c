/* SPDX-License-Identifier: Apache-2.0 */
/* Shardings at the public door: problem, plan and solution are one object there. */
#include <stdlib.h>

#include "comm/base.h"
#include "planner/door/door.h"
#include "planner/export.h"
#include "planner/cost.h"
#include "planner/intra_op.h"

#include <autopar/export.h>

struct ap_sharding {
    ap_shard_problem_t *problem;
    ap_shard_plan_t *plan;
    ap_shard_solution_t *solution;
};

static xm_status_t solve(const ap_sharding_params_t *params, ap_sharding_t *sharding)
{
    ap_shard_params_t asked = AP_SHARD_PARAMS_INIT;
    ap_shard_options_t options = AP_SHARD_OPTIONS_INIT;

    asked.graph = params->graph;
    asked.mesh = params->mesh;
    asked.micro_batches = params->micro_batches;
    asked.state_bytes = params->state_bytes;
    options.seconds = params->time_limit;
    options.threads = params->threads;
    options.seed = params->seed;
    options.memory =
        (ap_memory_budget_t){.limit = params->memory_limit, .reserve = params->memory_reserve};
    options.recompute = params->recompute;
    options.every_layer = params->every_layer;
    options.progress = params->progress;
    options.progress_arg = params->progress_arg;
    XM_TRY(ap_shard_problem_create(&asked, &sharding->problem));
    XM_TRY(ap_shard_solve(sharding->problem, &options, &sharding->plan));
    return ap_shard_solution_create(sharding->problem, ap_shard_plan_strategies(sharding->plan),
                                    &sharding->solution);
}

xm_status_t ap_sharding_create(const ap_sharding_params_t *params, ap_sharding_t **sharding)
{
    XM_NEED_ARGUMENTS(sharding);
    ap_sharding_params_t own = AP_SHARDING_PARAMS_INIT;
    ap_sharding_t *made;
    xm_status_t status;

    XM_TRY(XM_PARAMS_COPY(ap_sharding_params_t, &own, params));
    if (xm_is_null(__func__, "params.graph", own.graph) ||
        xm_is_null(__func__, "params.mesh", own.mesh)) {
        return XM_ERR_INVALID_ARGUMENT;
    }
    made = calloc(1, sizeof(*made));
    XM_NEED_MEMORY(made, "a sharding");
    status = solve(&own, made);
    if (status == XM_OK) {
        *sharding = made;
    } else {
        ap_sharding_destroy(made);
    }
    return status;
}

const ap_shard_result_t *ap_sharding_result(const ap_sharding_t *sharding)
{
    if (XM_IS_NULL(sharding)) {
        return NULL;
    }
    return ap_shard_plan_result(sharding->plan);
}

char *ap_sharding_spec(const ap_sharding_t *sharding, int tensor, char *buffer, size_t size)
{
    if (XM_IS_NULL(sharding) || XM_IS_NULL(buffer)) {
        return NULL;
    }
    return ap_spec_format(sharding->solution->made[tensor],
                          ap_graph_tensor(sharding->solution->graph, tensor)->shape.rank, buffer,
                          size);
}

bool ap_sharding_recomputes(const ap_sharding_t *sharding, int op)
{
    if (XM_IS_NULL(sharding)) {
        return false;
    }
    return ap_shard_plan_recomputes(sharding->plan, op);
}

void ap_sharding_destroy(ap_sharding_t *sharding)
{
    if (sharding != NULL) {
        ap_shard_solution_destroy(sharding->solution);
        ap_shard_plan_destroy(sharding->plan);
        ap_shard_problem_destroy(sharding->problem);
        free(sharding);
    }
}

static xm_status_t export_to(const ap_sharding_t *sharding, const ap_frontend_notes_t *notes,
                             ap_export_form_t form, FILE *stream)
{
    switch (form) {
    case AP_EXPORT_JAX:
        return ap_export_jax(sharding->solution, notes, stream);
    case AP_EXPORT_TORCH:
        return ap_export_torch(sharding->solution, stream);
    case AP_EXPORT_HLO:
        return XM_UNSUPPORTED("shardings for HLO go into its text: ap_export_sharding_hlo()");
    }
    return XM_INVALID("%d is no form of export", (int)form);
}

xm_status_t ap_export_sharding(const ap_sharding_t *sharding, const ap_frontend_notes_t *notes,
                               ap_export_form_t form, char **text)
{
    XM_NEED_ARGUMENTS(sharding, text);
    ap_door_text_t door;
    XM_TRY(ap_door_text_open(&door, __func__, text));

    return ap_door_text_close(&door, export_to(sharding, notes, form, door.stream), text);
}

xm_status_t ap_export_sharding_hlo(const ap_sharding_t *sharding, const ap_frontend_notes_t *notes,
                                   const char *hlo, size_t size, const char *name, char **text)
{
    XM_NEED_ARGUMENTS(sharding, notes, hlo, name, text);
    ap_door_text_t door;
    xm_status_t status = ap_door_text_open(&door, __func__, text);

    if (status == XM_OK) {
        status = ap_export_hlo(sharding->solution, notes, hlo, size, name, door.stream);
        status = ap_door_text_close(&door, status, text);
    }
    return status;
}
