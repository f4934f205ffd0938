/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What autopar shard says about a solution besides the strategies themselves: the files for other
 * systems, the curve of memory over the operators, and the collectives that the shardings cause.
 * Costs are called seconds only where a measured profile stands behind them.
 */

#include "planner/cli/shard_output.h"

#include <stdio.h>
#include <stdlib.h>

#include "comm/base.h"
#include "planner/cli/output_file.h"
#include "planner/export.h"

enum { BYTES_TEXT = 32, AXES_TEXT = 4 * AP_MAX_MESH_RANK };

/* Refuses before the search what could not be written after it: shardings go into HLO text, and a
 * built-in model has none. */
xm_status_t ap_shard_files_check(const ap_shard_files_t *files, bool is_hlo, const char *model)
{
    return files->hlo == NULL || is_hlo
               ? XM_OK
               : XM_INVALID("--export-hlo writes shardings into HLO text; %s is a built-in model",
                            model);
}

typedef struct export_job {
    const char *model;
    const ap_shard_solution_t *solution;
    const ap_frontend_notes_t *notes;
} export_job_t;

static xm_status_t put_jax(const void *context, FILE *stream)
{
    const export_job_t *job = context;

    return ap_export_jax(job->solution, job->notes, stream);
}

static xm_status_t put_hlo(const void *context, FILE *stream)
{
    const export_job_t *job = context;

    return ap_export_hlo_file(job->solution, job->notes, job->model, stream);
}

static xm_status_t put_torch(const void *context, FILE *stream)
{
    const export_job_t *job = context;

    return ap_export_torch(job->solution, stream);
}

xm_status_t ap_shard_files_write(const ap_shard_files_t *files, const char *model,
                                 const ap_shard_solution_t *solution,
                                 const ap_memory_curve_t *curve, const ap_frontend_notes_t *notes)
{
    const export_job_t job = {.model = model, .solution = solution, .notes = notes};

    if (files->plot != NULL) {
        XM_TRY(ap_memory_curve_plot(curve, solution->graph, ap_graph_name(solution->graph),
                                    files->plot));
    }
    if (files->jax != NULL) {
        XM_TRY(ap_output_file_write(files->jax, put_jax, &job));
    }
    if (files->hlo != NULL) {
        XM_TRY(ap_output_file_write(files->hlo, put_hlo, &job));
    }
    if (files->torch != NULL) {
        XM_TRY(ap_output_file_write(files->torch, put_torch, &job));
    }
    return XM_OK;
}

static void put_numbers(FILE *stream, const int64_t *number, size_t count, bool last)
{
    (void)fputc('[', stream);
    for (size_t k = 0; k < count; ++k) {
        (void)fprintf(stream, "%s%lld", k > 0 ? "," : "", (long long)number[k]);
    }
    (void)fputs(last ? "]" : "],\n", stream);
}

/* A list per node of numbers that lie one after the other. */
static void put_nodes(FILE *stream, const ap_cfn_t *cfn, const char *name, const int64_t *number)
{
    (void)fprintf(stream, "\"%s\": [", name);
    for (size_t n = 0; n < cfn->nodes; ++n) {
        put_numbers(stream, number + cfn->node_at[n], ap_cfn_strategies(cfn, n),
                    n + 1 == cfn->nodes);
    }
}

/* The text is written as it comes: a document of all numbers would need ten times their memory. */
static xm_status_t put_problem(const void *context, FILE *stream)
{
    const ap_cfn_t *cfn = context;

    (void)fputs("{\"problem\": {\"nodes\": {\"intervals\": [", stream);
    for (size_t n = 0; n < cfn->nodes; ++n) {
        put_numbers(stream, cfn->interval + 2 * n, 2, n + 1 == cfn->nodes);
    }
    (void)fputs("],\n", stream);
    put_nodes(stream, cfn, "costs", cfn->costs);
    (void)fputs("],\n", stream);
    put_nodes(stream, cfn, "usages", cfn->usages);
    (void)fputs("]},\n\"edges\": {\"nodes\": [", stream);
    for (size_t e = 0; e < cfn->edges; ++e) {
        (void)fprintf(stream, "%s[%d,%d]", e > 0 ? "," : "", cfn->scope[cfn->scope_at[e]],
                      cfn->scope[cfn->scope_at[e] + 1]);
    }
    (void)fputs("],\n\"costs\": [", stream);
    for (size_t e = 0; e < cfn->edges; ++e) {
        put_numbers(stream, cfn->cells + cfn->cell_at[e], cfn->cell_at[e + 1] - cfn->cell_at[e],
                    e + 1 == cfn->edges);
    }
    (void)fputs("]}", stream);
    if (cfn->limited) {
        (void)fprintf(stream, ",\n\"usage_limit\": %lld", (long long)cfn->limit);
    }
    (void)fputs("}}\n", stream);
    return XM_OK;
}

xm_status_t ap_shard_problem_write(const ap_cfn_t *cfn, const char *path)
{
    return ap_output_file_write(path, put_problem, cfn);
}

/* Copies what the plan knows about memory into the form that plots and JSON share: one row per part
 * of the memory, one point per operator. */
xm_status_t ap_shard_memory_curve(const ap_shard_plan_t *plan, const ap_graph_t *graph,
                                  ap_memory_curve_t **curve)
{
    ap_memory_curve_t *made = calloc(1, sizeof(*made));

    XM_NEED_MEMORY(made, "a memory curve");
    made->points = ap_graph_ops(graph);
    made->parts = AP_SHARD_PARTS;
    for (int part = 0; part < AP_SHARD_PARTS; ++part) {
        made->name[part] = ap_shard_part_name((ap_shard_part_t)part);
        made->bytes[part] = calloc((size_t)made->points + 1, sizeof(double));
        if (made->bytes[part] == NULL) {
            ap_memory_curve_destroy(made);
            return XM_NO_MEMORY("a memory curve");
        }
        for (int o = 0; o < made->points; ++o) {
            made->bytes[part][o] = ap_shard_plan_memory(plan, o)->part[part];
        }
    }
    *curve = made;
    return XM_OK;
}

/* Writes a set of mesh axes as "0,2". The buffer holds the number of every axis, so that nothing is
 * cut off. */
static const char *axes_text(unsigned axes, char text[AXES_TEXT])
{
    size_t length = 0;

    for (int a = 0; a < AP_MAX_MESH_RANK; ++a) {
        if ((axes >> a & 1U) != 0) {
            length += (size_t)snprintf(text + length, AXES_TEXT - length, "%s%d",
                                       length > 0 ? "," : "", a);
        }
    }
    return text;
}

static json_t *axes_json(unsigned axes)
{
    json_t *list = json_array();

    for (int a = 0; a < AP_MAX_MESH_RANK; ++a) {
        if ((axes >> a & 1U) != 0) {
            (void)json_array_append_new(list, json_integer(a));
        }
    }
    return list;
}

/* Prints the sums per kind of collective and set of axes. Counts are reals, as an operator that
 * stands for repeated layers counts for each of them. A model that needs no communication says so,
 * which is a result and not an empty table. */
/* A smaller share of repeated work is left unsaid. */
static const double repeated_share = 0.005;

void ap_shard_report_print(const ap_shard_report_t *report, bool seconds)
{
    char bytes[BYTES_TEXT], axes[AXES_TEXT];
    bool any = false;

    for (int k = 0; k < AP_COLLECTIVE_COUNT; ++k) {
        for (unsigned set = 1; set < AP_AXIS_SETS; ++set) {
            const ap_shard_total_t *total = &report->total[k][set];

            if (total->count == 0) {
                continue;
            }
            if (!any) {
                (void)printf("# %-16s %4s %8s %12s  %s\n", "collective", "axes", "count", "bytes",
                             seconds ? "seconds" : "cost");
                any = true;
            }
            (void)printf(
                "  %-16s %4s %8.0f %12s  %.6g\n", ap_collective_name((ap_collective_kind_t)k),
                axes_text(set, axes), total->count,
                xm_text_format_bytes((uint64_t)total->bytes, bytes, sizeof(bytes)), total->cost);
        }
    }
    if (!any) {
        (void)printf("# no communication\n");
    }
    for (int a = 0; a < AP_MAX_MESH_RANK; ++a) {
        if (report->repeated[a] >= repeated_share) {
            (void)printf("# the devices of axis %d all perform %.3g %% of their FLOPs alike\n", a,
                         100 * report->repeated[a]);
        }
    }
}

static json_t *totals_json(const ap_shard_report_t *report)
{
    json_t *list = json_array();

    for (int k = 0; k < AP_COLLECTIVE_COUNT; ++k) {
        for (unsigned set = 1; set < AP_AXIS_SETS; ++set) {
            const ap_shard_total_t *total = &report->total[k][set];

            if (total->count > 0) {
                (void)json_array_append_new(list,
                                            json_pack("{s:s, s:o, s:f, s:f, s:f}", "kind",
                                                      ap_collective_name((ap_collective_kind_t)k),
                                                      "axes", axes_json(set), "count", total->count,
                                                      "bytes", total->bytes, "cost", total->cost));
            }
        }
    }
    return list;
}

static json_t *transfers_json(const ap_shard_report_t *report, const ap_shard_solution_t *solution)
{
    json_t *list = json_array();

    for (int i = 0; i < report->transfer_count; ++i) {
        const ap_shard_transfer_t *of = &report->transfers[i];

        (void)json_array_append_new(
            list, json_pack("{s:s, s:o, s:s, s:s, s:b, s:f, s:f, s:f}", "kind",
                            ap_collective_name(of->kind), "axes", axes_json(of->axes), "operator",
                            ap_graph_op(solution->graph, of->op)->name, "tensor",
                            ap_graph_tensor(solution->graph, of->tensor)->name, "reshard",
                            of->reshard, "bytes", of->bytes, "runs", of->runs, "cost", of->cost));
    }
    return list;
}

xm_status_t ap_memory_curve_json(const ap_memory_curve_t *curve, const ap_graph_t *graph,
                                 json_t *document)
{
    int peak = ap_memory_curve_peak(curve);
    json_t *parts = json_object(), *memory;

    for (int part = 0; part < curve->parts; ++part) {
        json_t *list = json_array();

        for (int o = 0; o < curve->points; ++o) {
            (void)json_array_append_new(list, json_real(curve->bytes[part][o]));
        }
        (void)json_object_set_new(parts, curve->name[part], list);
    }
    memory =
        json_pack("{s:f, s:s, s:o}", "peak_bytes", ap_memory_curve_sum(curve, peak, curve->parts),
                  "peak_operator", ap_graph_op(graph, peak)->name, "parts", parts);
    return json_object_set_new(document, "memory", memory) == 0
               ? XM_OK
               : XM_NO_MEMORY("the memory curve as JSON");
}

xm_status_t ap_shard_report_json(const ap_shard_report_t *report,
                                 const ap_shard_solution_t *solution, json_t *document)
{
    json_t *mesh = json_array(), *repeated = json_array();
    int failed;

    for (int a = 0; a < ap_cost_mesh_rank(solution->mesh); ++a) {
        (void)json_array_append_new(mesh, json_integer(ap_cost_mesh_size(solution->mesh, a)));
        (void)json_array_append_new(repeated, json_real(report->repeated[a]));
    }
    failed = json_object_set_new(document, "mesh", mesh) |
             json_object_set_new(document, "repeated_flops", repeated) |
             json_object_set_new(document, "compute", json_real(report->compute)) |
             json_object_set_new(document, "collectives", totals_json(report)) |
             json_object_set_new(document, "transfers", transfers_json(report, solution));
    return failed == 0 ? XM_OK : XM_NO_MEMORY("the report as JSON");
}
