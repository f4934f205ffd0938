/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes a plan as JSON (docs/reshard-plan.md has the format, with a schema). Every
 * builder function lets a failed value pass as NULL up to the root, where it is checked
 * once: jansson refuses to pack a NULL and returns NULL itself.
 */
#include "resharding/plan/plan_private.h"

#include <jansson.h>
#include <stdlib.h>

enum { PLAN_VERSION = 2 };

/* Appends to an array, which becomes NULL for good when that fails. */
static void append(json_t **array, json_t *value)
{
    if (json_array_append_new(*array, value) != 0) {
        json_decref(*array);
        *array = NULL;
    }
}

static json_t *shape_json(const xm_layout_t *layout)
{
    json_t *shape = json_array();

    for (int d = 0; d < xm_layout_dims(layout); ++d) {
        append(&shape, json_integer(xm_layout_shape(layout)[d]));
    }
    return shape;
}

/* The cut points by dimension, or null where a dimension is whole. */
static json_t *cuts_json(const xm_layout_t *layout)
{
    json_t *all = json_array();

    for (int d = 0; d < xm_layout_dims(layout); ++d) {
        int parts = xm_layout_parts(layout, d);
        json_t *cuts = parts > 1 ? json_array() : json_null();

        for (int i = 0; parts > 1 && i <= parts; ++i) {
            append(&cuts, json_integer(xm_layout_cuts(layout, d)[i]));
        }
        append(&all, cuts);
    }
    return all;
}

/* A layout as its caller described it; the cut points are added only where the
 * partition's name does not imply them. */
json_t *xm_layout_to_json(const xm_layout_t *layout)
{
    const xm_mesh_t *mesh = xm_layout_mesh(layout);
    char shape[64], spec[XM_SPEC_TEXT];
    json_t *ranks = json_array(), *json;

    for (int p = 0; p < xm_mesh_size(mesh); ++p) {
        append(&ranks, json_integer(xm_mesh_rank(mesh, p)));
    }
    json =
        json_pack("{s:s, s:o, s:s, s:s}", "mesh", xm_mesh_format_shape(mesh, shape, sizeof(shape)),
                  "ranks", ranks, "spec", xm_spec_format(xm_layout_spec(layout), spec), "partition",
                  xm_partition_name(xm_layout_partition(layout)));
    if (xm_layout_partition(layout) == XM_PARTITION_EXPLICIT &&
        json_object_set_new(json, "cuts", cuts_json(layout)) != 0) {
        json_decref(json);
        return NULL;
    }
    return json;
}

static json_t *tensors_json(const xm_plan_t *plan)
{
    json_t *tensors = json_array();

    for (int i = 0; i < plan->tensor_count; ++i) {
        const xm_planned_tensor_t *tensor = &plan->tensors[i];

        append(&tensors,
               json_pack("{s:s, s:o, s:I, s:o, s:o}", "name", tensor->name, "shape",
                         shape_json(tensor->src), "element_size", (json_int_t)tensor->element_size,
                         "src", xm_layout_to_json(tensor->src), "dst",
                         xm_layout_to_json(tensor->dst)));
    }
    return tensors;
}

static json_t *tasks_json(const xm_plan_t *plan)
{
    json_t *tasks = json_array();

    for (int64_t t = 0; t < plan->task_count; ++t) {
        const xm_unit_task_t task = xm_plan_task(plan, t);
        json_t *sides = json_array();
        xm_box_t box;

        xm_plan_task_box(plan, t, &box);
        for (int d = 0; d < box.dims; ++d) {
            append(&sides, json_pack("[I, I]", (json_int_t)box.lo[d], (json_int_t)box.hi[d]));
        }
        append(&tasks, json_pack("{s:i, s:o, s:i, s:i, s:I}", "tensor", task.tensor, "box", sides,
                                 "src_tile", task.src_tile, "dst_tile", task.dst_tile,
                                 "chunk_elements", (json_int_t)xm_plan_chunk_elements(plan, t)));
    }
    return tasks;
}

static json_t *ints_json(const int *values, int count)
{
    json_t *array = json_array();

    for (int i = 0; i < count; ++i) {
        append(&array, json_integer(values[i]));
    }
    return array;
}

/* Routes are written once and named by number, as in the plan, so that files stay small. */
static json_t *routes_json(const xm_plan_t *plan)
{
    json_t *routes = json_array();

    for (int r = 0; r < plan->builder.route_count; ++r) {
        const xm_route_t *route = &plan->builder.routes[r];

        append(&routes, json_pack("{s:o, s:o}", "ranks", ints_json(route->ranks, route->count),
                                  "parents", ints_json(route->parents, route->count)));
    }
    return routes;
}

static json_t *transfers_json(const xm_plan_t *plan)
{
    json_t *transfers = json_array();

    for (int64_t i = 0; i < plan->builder.transfer_count; ++i) {
        const xm_transfer_t t = xm_plan_transfer(plan, i);

        append(&transfers,
               json_pack("{s:I, s:I, s:I, s:i, s:i, s:I}", "task", (json_int_t)t.task, "first",
                         (json_int_t)t.first, "end", (json_int_t)t.end, "sender", t.sender, "route",
                         t.route, "parent", (json_int_t)t.parent));
    }
    return transfers;
}

static json_t *kept_json(const xm_plan_t *plan)
{
    json_t *all = json_array();

    for (int64_t k = 0; k < plan->kept_count; ++k) {
        const xm_kept_t *kept = &plan->kept[k];

        append(&all, json_pack("{s:I, s:I, s:I, s:i}", "task", (json_int_t)kept->task, "first",
                               (json_int_t)kept->first, "end", (json_int_t)kept->end, "route",
                               kept->route));
    }
    return all;
}

/* JSON is UTF-8 and names are the caller's, so a name that is not is refused with a
 * sentence instead of ending as a lack of memory. */
static xm_status_t check_names(const xm_plan_t *plan)
{
    for (int i = 0; i < plan->tensor_count; ++i) {
        json_t *name = json_string(plan->tensors[i].name);

        if (name == NULL) {
            return XM_INVALID("cannot write the plan as JSON: the name of tensor %d is not UTF-8",
                              i);
        }
        json_decref(name);
    }
    return XM_OK;
}

/* Times are in seconds here, unlike inside the plan, because people read the file. */
static xm_status_t write_document(const xm_plan_t *plan, FILE *file)
{
    json_t *root = json_pack(
        "{s:i, s:s, s:o, s:s, s:s, s:s, s:s, s:I, s:I, s:f, s:f, s:o, s:o, s:o}", "version",
        PLAN_VERSION, "digest", plan->digest, "tensors", tensors_json(plan), "strategy",
        xm_strategy_name(plan->strategy), "scheduler", xm_scheduler_name(plan->scheduler),
        "chosen_strategy", xm_strategy_name(plan->chosen_strategy), "chosen_scheduler",
        xm_scheduler_name(plan->chosen), "bytes", (json_int_t)xm_plan_bytes(plan), "net_bytes",
        (json_int_t)plan->net_bytes, "bound_s", (double)plan->bound_ns * 1e-9, "makespan_s",
        (double)plan->makespan_ns * 1e-9, "tasks", tasks_json(plan), "routes", routes_json(plan),
        "transfers", transfers_json(plan));
    int failed;

    if (root != NULL && plan->kept_count > 0 &&
        json_object_set_new(root, "kept", kept_json(plan)) != 0) {
        json_decref(root);
        root = NULL;
    }
    XM_NEED_MEMORY(root, "writing the plan as JSON");
    failed = json_dumpf(root, file, JSON_INDENT(1) | JSON_REAL_PRECISION(12));
    json_decref(root);
    if (failed != 0 || fputc('\n', file) == EOF) {
        return xm_error_set(XM_ERR_IO, "cannot write the plan as JSON");
    }
    return XM_OK;
}

xm_status_t xm_plan_write_json(const xm_plan_t *plan, FILE *file)
{
    XM_TRY(check_names(plan));

    return write_document(plan, file);
}
