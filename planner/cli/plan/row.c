/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan that another planner would make of a model. A plan that does not fit into memory is
 * given nevertheless, with a warning on standard error: some planners do not look at memory, and
 * that their plan does not fit is an answer.
 */

#include "planner/cli/plan/row.h"

#include <stdio.h>
#include <stdlib.h>

#include "comm/base.h"
#include "planner/cli/output_file.h"

/* Files of other planners, as long as a row is run. */
typedef struct files {
    ap_like_rules_t *rules;
    char *strategies;
    ap_galvatron_t *galvatron;
} files_t;

static void close_files(files_t *files)
{
    ap_like_rules_destroy(files->rules);
    free(files->strategies);
    ap_galvatron_destroy(files->galvatron);
}

static xm_status_t check_files(const ap_plan_row_t *row, ap_search_kind_t search)
{
    return row->substitutions != NULL && search != AP_SEARCH_SUBSTITUTION
               ? XM_INVALID("--substitution-json is for --like unity")
           : row->strategies != NULL && search != AP_SEARCH_MCMC && search != AP_SEARCH_LAYERWISE
               ? XM_INVALID("--import-strategy is for --like flexflow or galvatron")
           : row->export != NULL && search != AP_SEARCH_LAYERWISE
               ? XM_INVALID("--export-strategy is for --like galvatron")
               : XM_OK;
}

static xm_status_t read_files(const ap_plan_row_t *row, ap_search_kind_t search, files_t *files,
                              ap_like_effort_t *effort)
{
    const char *path = row->substitutions != NULL ? row->substitutions : row->strategies;
    char *text = NULL;
    size_t length;
    xm_status_t status = check_files(row, search);

    if (status != XM_OK || path == NULL) {
        return status;
    }
    status = xm_text_load(path, &text, &length);
    if (status == XM_OK && search == AP_SEARCH_MCMC) {
        effort->strategies = files->strategies = text;
        return XM_OK;
    }
    XM_THEN(status, search == AP_SEARCH_LAYERWISE
                        ? ap_galvatron_read(path, text, length, &files->galvatron)
                        : ap_like_rules_read(path, text, length, &files->rules));
    free(text);
    effort->galvatron = files->galvatron;
    effort->rules = files->rules;
    if (status == XM_OK && files->rules != NULL && !row->quiet) {
        int all, used = ap_like_rules_count(files->rules, &all);

        (void)printf("# %s: %d of %d rules rewrite one operator\n", path, used, all);
    }
    return status;
}

static xm_status_t put_galvatron(const void *context, FILE *stream)
{
    char *text = ap_galvatron_text(context);
    xm_status_t status = text == NULL ? XM_NO_MEMORY("a file of Galvatron") : XM_OK;

    if (text != NULL && fprintf(stream, "%s\n", text) < 0) {
        status = xm_error_set(XM_ERR_IO, "a file of Galvatron cannot be written");
    }
    free(text);
    return status;
}

/* A point of DistIR's lattice: data, horizontal and pipeline parallel degrees, micro-batches. */
static void print_point(const ap_plan_t *judged, double over_bytes)
{
    const ap_plan_stage_t *stage = ap_plan_stage(judged, 0);
    const ap_plan_info_t *info = ap_plan_info(judged);
    char step[32], memory[32];

    (void)printf("# (%d, %d, %d, %lld)%s: step %s, memory %s%s\n", stage->shape[0], stage->shape[1],
                 ap_plan_stages(judged), (long long)info->micro_batches,
                 stage->recompute ? " recomputed" : "",
                 xm_text_format_seconds(info->step, step, sizeof(step)),
                 xm_text_format_bytes((uint64_t)ap_plan_memory(judged), memory, sizeof(memory)),
                 over_bytes > 0 ? ", too much" : "");
}

/* The plan leaves the result before that is cleared, so that the caller owns it. */
static xm_status_t take_plan(const ap_plan_row_t *row, ap_like_result_t *result, ap_plan_t **plan)
{
    char over[32];
    xm_status_t status = XM_OK;

    if (result->plan == NULL) {
        return XM_NO_SOLUTION("%s", result->why);
    }
    if (result->over_bytes > 0.0) {
        (void)fprintf(stderr, "autopar plan: the plan of %s does not fit: a device lacks %s\n",
                      row->name,
                      xm_text_format_bytes((uint64_t)result->over_bytes, over, sizeof(over)));
    }
    if (row->export != NULL) {
        status = result->galvatron == NULL
                     ? XM_UNSUPPORTED("Galvatron's files have an embedding, layers and a head")
                     : ap_output_file_write(row->export, put_galvatron, result->galvatron);
    }
    if (status == XM_OK) {
        *plan = result->plan;
        result->plan = NULL;
    }
    return status;
}

xm_status_t ap_plan_row_run(const ap_plan_row_t *row, const ap_planner_params_t *params,
                            ap_plan_t **plan)
{
    ap_like_effort_t effort = row->effort;
    files_t files = {0};
    const ap_planner_preset_t *preset;
    ap_like_result_t result;
    xm_status_t status = ap_planner_preset_find(row->name, &preset);

    if (status == XM_OK && params->schedule != NULL) {
        status = XM_INVALID("--schedule has no meaning with --like; that of %s is %s", row->name,
                            preset->schedule.kind);
    }
    if (status == XM_OK && row->given != NULL && preset->search != AP_SEARCH_MCMC &&
        preset->search != AP_SEARCH_TREE && preset->search != AP_SEARCH_SUBSTITUTION) {
        status = XM_INVALID("--%s has no meaning with --like %s: %s takes no budget", row->given,
                            row->name, ap_planner_preset_search(preset));
    }
    if (status == XM_OK && row->lattice && (row->quiet || preset->search != AP_SEARCH_GRID)) {
        status = XM_INVALID("--lattice is a table of what a grid judges, e.g. --like distir, and "
                            "not JSON");
    }
    if (status == XM_OK) {
        effort.tell = row->lattice ? print_point : NULL;
        status = read_files(row, preset->search, &files, &effort);
    }
    XM_THEN(status, ap_like_run(preset, &effort, params, &result));
    close_files(&files);
    if (status == XM_OK) {
        status = take_plan(row, &result, plan);
        ap_like_result_clear(&result);
    }
    return status;
}
