/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A parallel plan in the words of JAX, PyTorch and XLA. A plan's specs are translated one by one by
 * planner/export/spec.c; here are the two document forms, JSON for torch and hlo, a Python module
 * for jax. Names, layers and ranks stay as the plan has them, so an export can be held against its
 * plan.
 */

#include "planner/export/plan.h"

#include <string.h>

#include "planner/export/spec.h"

/* A scalar's spec has no letters, and no list is empty: a rule has an operand and a result at
 * least. The rank follows from the letters. */
xm_status_t ap_export_read_specs(const char *text, ap_export_specs_t *list)
{
    const char *at = text;

    for (list->count = 0; at != NULL; ++list->count) {
        char word[AP_SPEC_TEXT];
        size_t length = xm_text_word(&at, ',', word, sizeof(word));
        int rank = 0;

        if (length >= sizeof(word) || list->count == AP_EXPORT_SPECS) {
            return XM_MALFORMED("'%s' is no list of at most %d specs", text, AP_EXPORT_SPECS);
        }
        for (size_t i = 0; i < length; ++i) {
            rank += word[i] == 'R' || word[i] == 'S';
        }
        XM_TRY(ap_spec_parse(word, rank, AP_MAX_MESH_RANK, &list->spec[list->count]));
        list->rank[list->count] = rank;
    }
    return XM_OK;
}

static ap_export_mesh_t mesh_of(const int *shape)
{
    return (ap_export_mesh_t){.rank = 2, .size = {shape[0], shape[1]}};
}

/* One spec in the form asked for. */

static json_t *spec_json(ap_export_form_t form, const ap_export_mesh_t *mesh, ap_spec_t spec,
                         int rank)
{
    char text[AP_HLO_SHARDING_TEXT];

    return form == AP_EXPORT_TORCH
               ? ap_export_placements(mesh, spec, rank, 0)
               : json_string(ap_export_hlo_sharding(mesh, spec, rank, text, sizeof(text)));
}

static xm_status_t specs_json(ap_export_form_t form, const ap_export_mesh_t *mesh, const char *text,
                              json_t **made)
{
    ap_export_specs_t list;

    XM_TRY(ap_export_read_specs(text, &list));
    *made = json_array();
    for (int i = 0; i < list.count; ++i) {
        (void)json_array_append_new(*made, spec_json(form, mesh, list.spec[i], list.rank[i]));
    }
    return XM_OK;
}

static xm_status_t operators_json(ap_export_form_t form, const ap_export_mesh_t *mesh,
                                  const ap_plan_layers_t *layers, json_t *into)
{
    for (int o = 0; o < layers->op_count; ++o) {
        const ap_plan_op_t *op = &layers->ops[o];
        json_t *operands = NULL, *results = NULL;
        xm_status_t status = specs_json(form, mesh, op->operands, &operands);

        XM_THEN(status, specs_json(form, mesh, op->results, &results));
        if (status != XM_OK) {
            json_decref(operands);
            return status;
        }
        (void)json_array_append_new(into, json_pack("{s:[i, i], s:s, s:s, s:o, s:o}", "layers",
                                                    layers->first_layer, layers->last_layer, "name",
                                                    op->name, "rule", op->rule, "operands",
                                                    operands, "results", results));
    }
    return XM_OK;
}

static xm_status_t stage_json(ap_export_form_t form, const ap_plan_stage_t *stage, json_t *into)
{
    const ap_export_mesh_t mesh = mesh_of(stage->shape);
    json_t *devices = json_array(), *operators = json_array();
    xm_status_t status = XM_OK;

    for (int d = 0; d < stage->hosts * stage->devices_per_host; ++d) {
        (void)json_array_append_new(devices, json_integer(stage->devices[d]));
    }
    for (int l = 0; l < stage->layer_count && status == XM_OK; ++l) {
        status = operators_json(form, &mesh, &stage->layers[l], operators);
    }
    (void)json_array_append_new(into,
                                json_pack("{s:[i, i], s:o, s:o, s:o}", "layers", stage->first_layer,
                                          stage->last_layer, "mesh", ap_export_mesh_json(&mesh),
                                          "devices", devices, "operators", operators));
    return status;
}

static xm_status_t boundary_json(ap_export_form_t form, const ap_plan_boundary_t *boundary,
                                 json_t *into)
{
    const ap_export_mesh_t from = mesh_of(boundary->src.shape), to = mesh_of(boundary->dst.shape);
    json_t *sent = NULL, *received = NULL;
    xm_status_t status = specs_json(form, &from, boundary->src.spec, &sent);

    XM_THEN(status, specs_json(form, &to, boundary->dst.spec, &received));
    if (status != XM_OK) {
        json_decref(sent);
        return status;
    }
    (void)json_array_append_new(into, json_pack("{s:s, s:O, s:O}", "tensor", boundary->tensor,
                                                "sent", json_array_get(sent, 0), "received",
                                                json_array_get(received, 0)));
    json_decref(sent);
    json_decref(received);
    return XM_OK;
}

/* A text that is not UTF-8 or a lack of memory makes the document NULL, which is told once, at the
 * end. */
static xm_status_t export_json(const ap_plan_t *plan, ap_export_form_t form, FILE *stream)
{
    json_t *stages = json_array(), *boundaries = json_array(), *document;
    xm_status_t status = XM_OK;

    for (int s = 0; s < ap_plan_stages(plan) && status == XM_OK; ++s) {
        status = stage_json(form, ap_plan_stage(plan, s), stages);
    }
    for (int b = 0; b < ap_plan_boundaries(plan) && status == XM_OK; ++b) {
        status = boundary_json(form, ap_plan_boundary(plan, b), boundaries);
    }
    document = json_pack("{s:s, s:i, s:s, s:s, s:o, s:o}", "format",
                         form == AP_EXPORT_TORCH ? "crossmesh-dtensor" : "crossmesh-hlo-shardings",
                         "version", 1, "model", ap_plan_info(plan)->model, "plan",
                         ap_plan_digest(plan), "stages", stages, "boundaries", boundaries);
    if (status == XM_OK &&
        (document == NULL || json_dumpf(document, stream, JSON_INDENT(1)) != 0)) {
        status = xm_error_set(XM_ERR_IO, "cannot write the plan of %d stages as JSON",
                              ap_plan_stages(plan));
    }
    json_decref(document);
    (void)putc('\n', stream);
    return status;
}

/* Writes a list of specs as a Python tuple. */

static xm_status_t put_specs(FILE *stream, const ap_export_mesh_t *mesh, const char *text)
{
    ap_export_specs_t list;

    XM_TRY(ap_export_read_specs(text, &list));
    for (int i = 0; i < list.count; ++i) {
        (void)fputs(i == 0 ? "(" : " ", stream);
        ap_export_put_partition_spec(stream, mesh, list.spec[i], list.rank[i]);
        (void)fputs(i + 1 < list.count || i == 0 ? "," : "", stream);
    }
    (void)fputs(")", stream);
    return XM_OK;
}

static xm_status_t put_operators(FILE *stream, const ap_export_mesh_t *mesh,
                                 const ap_plan_layers_t *layers)
{
    xm_status_t status = XM_OK;

    for (int o = 0; o < layers->op_count && status == XM_OK; ++o) {
        const ap_plan_op_t *op = &layers->ops[o];

        (void)fprintf(stream, "        (%d, %d, ", layers->first_layer, layers->last_layer);
        ap_export_put_string(stream, op->name);
        (void)fputs(", ", stream);
        ap_export_put_string(stream, op->rule);
        (void)fputs(", ", stream);
        status = put_specs(stream, mesh, op->operands);
        if (status == XM_OK) {
            (void)fputs(", ", stream);
            status = put_specs(stream, mesh, op->results);
        }
        (void)fputs("),\n", stream);
    }
    return status;
}

static xm_status_t put_stage(FILE *stream, const ap_plan_stage_t *stage)
{
    const ap_export_mesh_t mesh = mesh_of(stage->shape);
    xm_status_t status = XM_OK;

    (void)fprintf(stream, "    {\"layers\": (%d, %d), \"mesh\": ", stage->first_layer,
                  stage->last_layer);
    ap_export_put_mesh(stream, &mesh);
    (void)fputs(", \"devices\": (", stream);
    for (int d = 0; d < stage->hosts * stage->devices_per_host; ++d) {
        (void)fprintf(stream, d == 0 ? "%d," : " %d,", stage->devices[d]);
    }
    (void)fputs("), \"operators\": (\n", stream);
    for (int l = 0; l < stage->layer_count && status == XM_OK; ++l) {
        status = put_operators(stream, &mesh, &stage->layers[l]);
    }
    (void)fputs("    )},\n", stream);
    return status;
}

static xm_status_t export_python(const ap_plan_t *plan, FILE *stream)
{
    xm_status_t status = XM_OK;

    (void)fprintf(stream,
                  "\"\"\"Shardings of plan %s, written by autopar.\"\"\"\n"
                  "from jax.sharding import PartitionSpec as P\n\nMODEL = ",
                  ap_plan_digest(plan));
    ap_export_put_string(stream, ap_plan_info(plan)->model);
    (void)fputs("\n\n# Operators: first and last layer, name, rule, shardings of operands and "
                "results.\nSTAGES = (\n",
                stream);
    for (int s = 0; s < ap_plan_stages(plan) && status == XM_OK; ++s) {
        status = put_stage(stream, ap_plan_stage(plan, s));
    }
    (void)fputs(")\n\n# From stage k to k + 1: the tensor, its sharding there and here.\n"
                "BOUNDARIES = (\n",
                stream);
    for (int b = 0; b < ap_plan_boundaries(plan) && status == XM_OK; ++b) {
        const ap_plan_boundary_t *boundary = ap_plan_boundary(plan, b);
        const ap_export_mesh_t from = mesh_of(boundary->src.shape);
        const ap_export_mesh_t to = mesh_of(boundary->dst.shape);

        (void)fputs("    (", stream);
        ap_export_put_string(stream, boundary->tensor);
        (void)fputs(", ", stream);
        status = put_specs(stream, &from, boundary->src.spec);
        if (status == XM_OK) {
            (void)fputs(", ", stream);
            status = put_specs(stream, &to, boundary->dst.spec);
        }
        (void)fputs("),\n", stream);
    }
    (void)fputs(")\n", stream);
    return status;
}

xm_status_t ap_export_plan(const ap_plan_t *plan, ap_export_form_t form, FILE *stream)
{
    for (int b = 0; b < ap_plan_boundaries(plan); ++b) {
        const ap_plan_boundary_t *boundary = ap_plan_boundary(plan, b);

        if (boundary->to > boundary->from + 1 || boundary->more_count > 0) {
            return XM_UNSUPPORTED("from stage %d to stage %d the plan passes %d tensors; this form "
                                  "has one, between neighbours",
                                  boundary->from, boundary->to, boundary->more_count + 1);
        }
    }
    return form == AP_EXPORT_JAX ? export_python(plan, stream) : export_json(plan, form, stream);
}
