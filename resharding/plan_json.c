#include "resharding/plan_private.h"

#include <jansson.h>
#include <stdlib.h>

enum { PLAN_VERSION = 1 };

static json_t *shape_json(const xm_layout_t *layout)
{
    json_t *shape = json_array();

    for (int d = 0; d < xm_layout_dims(layout); ++d) {
        (void)json_array_append_new(shape, json_integer(xm_layout_shape(layout)[d]));
    }
    return shape;
}

/* Per dimension its cut points, or null where it is whole. */
static json_t *cuts_json(const xm_layout_t *layout)
{
    json_t *all = json_array();

    for (int d = 0; d < xm_layout_dims(layout); ++d) {
        int parts = xm_layout_parts(layout, d);
        json_t *cuts = parts > 1 ? json_array() : json_null();

        for (int i = 0; parts > 1 && i <= parts; ++i) {
            (void)json_array_append_new(cuts, json_integer(xm_layout_cuts(layout, d)[i]));
        }
        (void)json_array_append_new(all, cuts);
    }
    return all;
}

static json_t *layout_json(const xm_layout_t *layout)
{
    const xm_mesh_t *mesh = xm_layout_mesh(layout);
    char shape[64], spec[XM_SPEC_TEXT];
    json_t *ranks = json_array(), *json;

    for (int p = 0; p < xm_mesh_size(mesh); ++p) {
        (void)json_array_append_new(ranks, json_integer(xm_mesh_rank(mesh, p)));
    }
    json =
        json_pack("{s:s, s:o, s:s, s:s}", "mesh", xm_mesh_format_shape(mesh, shape, sizeof(shape)),
                  "ranks", ranks, "spec", xm_spec_format(xm_layout_spec(layout), spec), "partition",
                  xm_partition_name(xm_layout_partition(layout)));
    if (xm_layout_partition(layout) == XM_PARTITION_EXPLICIT) {
        (void)json_object_set_new(json, "cuts", cuts_json(layout));
    }
    return json;
}

static json_t *tasks_json(const xm_plan_t *plan)
{
    json_t *tasks = json_array();

    for (int64_t t = 0; t < plan->task_count; ++t) {
        const xm_unit_task_t *task = &plan->tasks[t];
        json_t *box = json_array();

        for (int d = 0; d < task->box.dims; ++d) {
            (void)json_array_append_new(
                box, json_pack("[I, I]", (json_int_t)task->box.lo[d], (json_int_t)task->box.hi[d]));
        }
        (void)json_array_append_new(tasks,
                                    json_pack("{s:o, s:i, s:i, s:I, s:I}", "box", box, "src_tile",
                                              task->src_tile, "dst_tile", task->dst_tile,
                                              "chunk_elements", (json_int_t)plan->chunk_elements[t],
                                              "chunks", (json_int_t)xm_plan_chunks(plan, t)));
    }
    return tasks;
}

static json_t *transfers_json(const xm_plan_t *plan)
{
    json_t *transfers = json_array();

    for (int64_t i = 0; i < plan->transfer_count; ++i) {
        const xm_transfer_t *t = &plan->transfers[i];

        (void)json_array_append_new(
            transfers, json_pack("{s:I, s:i, s:i, s:I, s:I, s:I}", "task", (json_int_t)t->task,
                                 "sender", t->sender, "receiver", t->receiver, "parent",
                                 (json_int_t)t->parent, "first_chunk", (json_int_t)t->first_chunk,
                                 "end_chunk", (json_int_t)t->end_chunk));
    }
    return transfers;
}

xm_status_t xm_plan_write_json(const xm_plan_t *plan, FILE *file)
{
    json_t *root = json_pack(
        "{s:i, s:s, s:o, s:I, s:o, s:o, s:s, s:s, s:I, s:I, s:f, s:f, s:o, s:o}", "version",
        PLAN_VERSION, "digest", plan->digest, "shape", shape_json(plan->src), "element_size",
        (json_int_t)plan->element_size, "src", layout_json(plan->src), "dst",
        layout_json(plan->dst), "strategy", xm_strategy_name(plan->strategy), "scheduler",
        xm_scheduler_name(plan->scheduler), "bytes", (json_int_t)xm_plan_bytes(plan), "net_bytes",
        (json_int_t)plan->net_bytes, "bound_s", (double)plan->bound_ns * 1e-9, "makespan_s",
        (double)plan->makespan_ns * 1e-9, "tasks", tasks_json(plan), "transfers",
        transfers_json(plan));
    int failed;

    if (root == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory to write the plan as JSON");
    }
    failed = json_dumpf(root, file, JSON_INDENT(1) | JSON_REAL_PRECISION(12));
    json_decref(root);
    if (failed != 0 || fputc('\n', file) == EOF) {
        return xm_error_set(XM_ERR_IO, "cannot write the plan as JSON");
    }
    return XM_OK;
}
