/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A case with its layouts and its plan. Laying out alone is used as a check; models bring
 * their layouts with them, and only their ranks are checked against the job.
 */
#include "bench/cases/prepared.h"

#include <stdlib.h>

#include "bench/cases/placement.h"
#include "comm/base.h"

/* Both checks are made here because their sentences can name the side and the case. */
static xm_status_t lay_out(const char *side_name, const rb_case_t *one, const rb_side_t *side,
                           const rb_host_map_t *hosts, const xm_mesh_t *mesh, xm_layout_t **layout)
{
    char spec[XM_SPEC_TEXT];
    xm_status_t status;

    if (xm_mesh_max_rank(mesh) >= hosts->ranks) {
        return XM_INVALID("case %s: the %s mesh names rank %d, but the job has ranks 0 … %d",
                          one->name, side_name, xm_mesh_max_rank(mesh), hosts->ranks - 1);
    }
    if (side->spec.dims != one->dims) {
        return XM_INVALID("%s spec '%s' is for %d dimensions, but the tensor of case %s has %d",
                          side_name, xm_spec_format(&side->spec, spec), side->spec.dims, one->name,
                          one->dims);
    }
    status = xm_layout_create(mesh, &side->spec, one->partition, one->shape, layout);
    return status < 0 ? xm_error_prefix(status, "case %s: %s layout", one->name, side_name)
                      : status;
}

/* The meshes are released at once: layouts keep them. */
xm_status_t rb_lay_out(const rb_case_t *one, const rb_host_map_t *hosts, xm_layout_t **src,
                       xm_layout_t **dst, bool *shared)
{
    xm_mesh_t *src_mesh = NULL, *dst_mesh = NULL;
    xm_layout_t *made = NULL;
    xm_status_t status = rb_place(one, hosts, &src_mesh, &dst_mesh, shared);

    if (status == XM_OK && one->model == NULL) {
        status = lay_out("source", one, &one->src, hosts, src_mesh, &made);
    }
    if (status == XM_OK && one->model == NULL) {
        status = lay_out("destination", one, &one->dst, hosts, dst_mesh, dst);
    }
    xm_mesh_destroy(dst_mesh);
    xm_mesh_destroy(src_mesh);
    if (status < 0) {
        xm_layout_destroy(made);
        return status;
    }
    *src = made;
    return XM_OK;
}

/* The layouts are thrown away at once; making them is the check. */
xm_status_t rb_prepare_check(const rb_case_t *one, const rb_host_map_t *hosts)
{
    xm_layout_t *src = NULL, *dst = NULL;
    bool shared;
    xm_status_t status = rb_lay_out(one, hosts, &src, &dst, &shared);

    xm_layout_destroy(dst);
    xm_layout_destroy(src);
    return status;
}

/* A model is planned as one batch, as its tensors share the network. */
static xm_status_t make_plan(const rb_case_t *one, xm_plan_params_t *params, xm_plan_t **plan)
{
    const rb_model_t *model = one->model;
    xm_tensor_t *tensors = NULL;
    xm_status_t status;

    if (model != NULL) {
        tensors = malloc(((size_t)model->count + 1) * sizeof(*tensors));
        XM_NEED_MEMORY(tensors, "%d tensors", model->count);
        for (int i = 0; i < model->count; ++i) {
            const rb_model_tensor_t *tensor = &model->tensors[i];

            tensors[i] =
                (xm_tensor_t){tensor->name, tensor->src, tensor->dst, tensor->element_bits};
        }
        params->tensors = tensors;
        params->tensor_count = model->count;
    }
    status = xm_plan_create(params, plan);
    free(tensors);
    return status;
}

/* The planning time includes the layouts, as a user would wait for both. */
xm_status_t rb_prepare(const rb_case_t *one, const rb_host_map_t *hosts,
                       const xm_network_t *network, rb_prepared_t *prepared)
{
    rb_prepared_t made = {.one = one, .network = network};
    xm_plan_params_t params = XM_PLAN_PARAMS_INIT;
    double start = xm_clock_seconds();
    xm_layout_t *src = NULL, *dst = NULL;
    xm_status_t status;

    XM_TRY(rb_lay_out(one, hosts, &src, &dst, &made.shared));
    params.src = src;
    params.dst = dst;
    params.element_size = one->element_size;
    params.strategy = (xm_strategy_t)one->strategy;
    params.scheduler = (xm_scheduler_t)one->scheduler;
    params.seed = (uint64_t)(int64_t)one->seed;
    params.network = network;
    status = make_plan(one, &params, &made.plan);
    xm_layout_destroy(dst);
    xm_layout_destroy(src);
    XM_TRY(status);
    made.plan_s = xm_clock_seconds() - start;
    *prepared = made;
    return XM_OK;
}

void rb_prepared_clear(rb_prepared_t *prepared)
{
    xm_plan_destroy(prepared->plan);
    *prepared = (rb_prepared_t){0};
}

static xm_status_t prepare_or_check(rb_prepared_list_t *list, int index)
{
    const rb_case_t *one = &list->selection->cases[index];

    return one->model != NULL ? rb_prepare_check(one, list->hosts)
                              : rb_prepare(one, list->hosts, list->network, &list->prepared[index]);
}

xm_status_t rb_prepared_list_create(const rb_selection_t *selection, const rb_host_map_t *hosts,
                                    const xm_network_t *network, rb_prepared_list_t *list)
{
    rb_prepared_list_t made = {.selection = selection, .hosts = hosts, .network = network};
    xm_status_t status = XM_OK;

    made.prepared = calloc((size_t)selection->count + 1, sizeof(*made.prepared));
    XM_NEED_MEMORY(made.prepared, "%d cases", selection->count);
    for (int i = 0; status == XM_OK && i < selection->count; ++i) {
        status = prepare_or_check(&made, i);
    }
    if (status < 0) {
        rb_prepared_list_clear(&made);
        return status;
    }
    *list = made;
    return XM_OK;
}

/* Moves the plan to the caller, or makes it now. */
xm_status_t rb_prepared_list_take(rb_prepared_list_t *list, int index, rb_prepared_t *prepared)
{
    rb_prepared_t *held = &list->prepared[index];

    if (held->plan == NULL) {
        return rb_prepare(&list->selection->cases[index], list->hosts, list->network, prepared);
    }
    *prepared = *held;
    *held = (rb_prepared_t){0};
    return XM_OK;
}

void rb_prepared_list_clear(rb_prepared_list_t *list)
{
    for (int i = 0; list->prepared != NULL && i < list->selection->count; ++i) {
        rb_prepared_clear(&list->prepared[i]);
    }
    free(list->prepared);
    *list = (rb_prepared_list_t){0};
}
