/* SPDX-License-Identifier: Apache-2.0 */
/*
 * autopar compare: plans the model as each row of the table of published planners would, and judges
 * all the plans with our one cost model. Predicted times of different planners cannot be compared
 * with each other, since each has its own idea of what a step costs; the same judge for all makes
 * the ratios mean something. Our own planner runs in every comparison, as the row that the others
 * are divided by.
 */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli_support.h"
#include "comm/base.h"
#include "planner/cli/command.h"
#include "planner/published/like.h"

enum { MAX_ROWS = 64, TEXT = 32, RECOMPUTE_TEXT = 64, DIFFERENCE = 160 };

static const char program[] = "autopar compare";
static const char summary[] =
    "Plans a model as published planners would, and as we do, from the same "
    "costs, and judges all plans alike.";

typedef struct compare_options {
    const char *like;
    ap_command_search_t search;
    bool list, wide;
    xm_cli_json_t json;
} compare_options_t;

/* Says what the two mesh axes of a row may do. A set of roles is the index into the names; sets for
 * which no row of the table exists have empty names. */
static void roles_text(const ap_space_t *space, char *text, size_t size)
{
    static const char *const names[] = {"none", "data", "sequence", "", "tensor", "", "", "any"};

    (void)snprintf(text, size, "%s/%s", names[space->roles[0] & AP_ROLES_ALL],
                   space->one_axis ? "-" : names[space->roles[1] & AP_ROLES_ALL]);
}

static const char *recompute_text(const ap_space_t *space)
{
    if (!space->recompute) {
        return "never";
    }
    return !space->keep ? "always" : space->mixed ? "by stage" : "or not";
}

/* Prints the table of planners itself, which costs nothing to look at: it needs neither model nor
 * cluster, so that one can choose before one waits. */
static xm_status_t list_rows(const compare_options_t *o)
{
    static const xm_table_column_t columns[] = {
        {"planner", "", -16, false}, {"source", "", -21, false},   {"axes", "", -12, false},
        {"ZeRO", "", -4, false},     {"stages", "", -6, false},    {"recompute", "", -9, false},
        {"search", "", -21, false},  {"schedule", "", -13, false}, {"memory", "", -6, false}};
    xm_table_t table = {stdout, columns, 9, .wide = o->wide};
    int count;
    const ap_planner_preset_t *rows = ap_planner_presets(&count);

    xm_table_head(&table);
    for (int i = 0; i < count; ++i) {
        const ap_planner_preset_t *row = &rows[i];
        const ap_space_t *space = &row->space;
        unsigned modes = space->parameter_modes;
        char roles[TEXT];

        roles_text(space, roles, sizeof(roles));
        xm_table_text(&table, "%s", row->name);
        xm_table_text(&table, "%s", row->source);
        xm_table_text(&table, "%s", roles);
        xm_table_text(&table, "%s",
                      (modes >> AP_PARAMETER_STATE_SHARDED & 1U) != 0 ? "1, 3"
                      : (modes >> AP_PARAMETER_SHARDED & 1U) != 0     ? "3"
                                                                      : "no");
        xm_table_text(&table, "%s",
                      !space->pipeline            ? "one"
                      : space->stage_devices == 1 ? "of one"
                                                  : "any");
        xm_table_text(&table, "%s", recompute_text(space));
        xm_table_text(&table, "%s", ap_planner_preset_search(row));
        xm_table_text(&table, "%s", row->schedule.kind);
        xm_table_text(&table, "%s", row->memory ? "yes" : "no");
    }
    return xm_cli_flush();
}

/* Chooses the rows asked for, in the order of the table whatever the order on the command line, so
 * that equal questions print equal tables. The row `default` always belongs to them and comes last,
 * since it is the reference of every ratio; all rows are chosen where none are named. */
static xm_status_t choose_rows(const char *names, const ap_planner_preset_t **chosen, int *count)
{
    bool wanted[MAX_ROWS] = {false};
    int rows;
    const ap_planner_preset_t *table = ap_planner_presets(&rows);
    char *copy = names != NULL ? strdup(names) : NULL, *rest = copy, *name;
    xm_status_t status = XM_OK;

    if (names != NULL && copy == NULL) {
        return XM_NO_MEMORY("the names of planners");
    }
    while (names != NULL && status == XM_OK && (name = strsep(&rest, ",")) != NULL) {
        const ap_planner_preset_t *row;

        status = ap_planner_preset_find(name, &row);
        if (status == XM_OK) {
            wanted[row - table] = true;
        }
    }
    free(copy);
    *count = 0;
    for (int i = 0; i < rows; ++i) {
        if (names == NULL || wanted[i] || i == rows - 1) {
            chosen[(*count)++] = &table[i];
        }
    }
    return status;
}

static const xm_table_column_t columns[] = {
    {"planner", "", -16, false}, {"step", "", 12, false},
    {"ratio", "", 6, false},     {"memory", "", 10, false},
    {"search", "", 12, false},   {"where it differs from default", "", -67, false}};

/* Prints one planner's result. A row without a plan says why instead, and still says how long its
 * search was; where our own planner has found no plan there is no ratio and no difference to
 * print. */
static void print_row(xm_table_t *table, const ap_like_result_t *row, const ap_like_result_t *ours)
{
    bool planned = row->plan != NULL, both = planned && ours->plan != NULL;
    char over[TEXT], seconds[TEXT], memory[TEXT], differs[DIFFERENCE] = "";
    char said[2 * DIFFERENCE] = "";

    if (both) {
        (void)ap_like_difference(row->plan, ours->plan, differs, sizeof(differs));
    }
    if (!planned) {
        xm_text_list_add(said, sizeof(said), "; ", "no plan: %s", row->why);
    } else if (row->over_bytes > 0.0) {
        xm_text_list_add(said, sizeof(said), "; ", "does not fit: %s too much",
                         xm_text_format_bytes((uint64_t)row->over_bytes, over, sizeof(over)));
    }
    if (differs[0] != '\0') {
        xm_text_list_add(said, sizeof(said), "; ", "%s", differs);
    }
    xm_table_text(table, "%s", row->row->name);
    xm_table_text(table, "%s",
                  planned ? xm_text_format_seconds(row->step, seconds, sizeof(seconds)) : "-");
    xm_table_number(table, 3, both ? row->step / ours->step : NAN);
    xm_table_text(table, "%s",
                  planned ? xm_text_format_bytes((uint64_t)row->memory, memory, sizeof(memory))
                          : "-");
    xm_table_text(table, "%s",
                  xm_text_format_seconds(row->search_seconds, seconds, sizeof(seconds)));
    xm_table_text(table, "%s", said);
}

/* Prints the points of a search that answers with a curve of time over memory instead of one plan.
 * The numbers are those of the judge, not of the search. */
static void print_curve(const ap_like_result_t *row)
{
    (void)printf("# %s: time over memory, %" PRId64 " micro-batches\n# %12s %12s\n", row->row->name,
                 row->curve[0].micro_batches, "step", "memory");
    for (int i = 0; i < row->curve_count; ++i) {
        char step[TEXT], memory[TEXT];

        (void)printf("  %12s %12s\n",
                     xm_text_format_seconds(row->curve[i].step, step, sizeof(step)),
                     xm_text_format_bytes((uint64_t)row->curve[i].memory, memory, sizeof(memory)));
    }
}

static void print_table(const compare_options_t *o, const ap_planner_params_t *params,
                        const ap_like_result_t *results, int count)
{
    const ap_like_result_t *ours = &results[count - 1];
    xm_table_t table = {stdout, columns, 6, .wide = o->wide};

    (void)printf("# %s on %s, %d x %d devices, batch %" PRId64 "\n", o->search.model,
                 xm_cluster_profile_name(params->profile),
                 xm_cluster_profile_hosts(params->profile),
                 xm_cluster_profile_devices_per_host(params->profile),
                 params->global_batch > 0 ? params->global_batch : (int64_t)1024);
    if (ours->plan != NULL) {
        const ap_plan_info_t *info = ap_plan_info(ours->plan);
        char recompute[RECOMPUTE_TEXT];

        (void)printf("# default: %d stages, %" PRId64 " micro-batches, recomputation %s, %s\n",
                     ap_plan_stages(ours->plan), info->micro_batches,
                     ap_plan_recompute_text(ours->plan, recompute, sizeof(recompute)),
                     info->schedule);
    }
    xm_table_head(&table);
    for (int i = 0; i < count; ++i) {
        print_row(&table, &results[i], ours);
    }
    for (int i = 0; i < count; ++i) {
        if (results[i].curve_count > 0) {
            print_curve(&results[i]);
        }
    }
}

static json_t *curve_to_json(const ap_like_result_t *row)
{
    json_t *curve = json_array();

    for (int i = 0; i < row->curve_count; ++i) {
        (void)json_array_append_new(curve, json_pack("{s:f, s:f}", "step_s", row->curve[i].step,
                                                     "memory_bytes", row->curve[i].memory));
    }
    return curve;
}

/* A row without a plan keeps its place in the list and has the reason as no_plan, so that a reader
 * can tell "found nothing" from "was not asked". */
static json_t *row_to_json(const ap_like_result_t *row, const ap_like_result_t *ours)
{
    json_t *object =
        json_pack("{s:s, s:s, s:f, s:I, s:s*}", "planner", row->row->name, "search",
                  ap_planner_preset_search(row->row), "search_s", row->search_seconds, "judged",
                  (json_int_t)row->judged, "no_plan", row->plan == NULL ? row->why : NULL);
    const ap_plan_info_t *info;
    bool compares = ours->plan != NULL;
    char differs[DIFFERENCE];

    if (row->plan == NULL) {
        return object;
    }
    info = ap_plan_info(row->plan);
    (void)json_object_update_new(
        object,
        json_pack("{s:f, s:f, s:f, s:i, s:I, s:b, s:s, s:s, s:o*, s:s*, s:o*}", "step_s", row->step,
                  "memory_bytes", row->memory, "over_bytes", row->over_bytes, "stages",
                  ap_plan_stages(row->plan), "micro_batches", (json_int_t)info->micro_batches,
                  "recompute", info->rematerialize, "schedule", info->schedule, "digest",
                  ap_plan_digest(row->plan), "ratio",
                  compares ? json_real(row->step / ours->step) : NULL, "differs",
                  compares ? ap_like_difference(row->plan, ours->plan, differs, sizeof(differs))
                           : NULL,
                  "curve", row->curve_count > 0 ? curve_to_json(row) : NULL));
    return object;
}

static json_t *to_json(const compare_options_t *o, const ap_planner_params_t *params,
                       const ap_like_result_t *results, int count)
{
    json_t *rows = json_array();

    for (int i = 0; i < count; ++i) {
        (void)json_array_append_new(rows, row_to_json(&results[i], &results[count - 1]));
    }
    return json_pack("{s:i, s:s, s:s, s:i, s:i, s:I, s:o}", "version", 1, "model", o->search.model,
                     "cluster", xm_cluster_profile_name(params->profile), "hosts",
                     xm_cluster_profile_hosts(params->profile), "devices_per_host",
                     xm_cluster_profile_devices_per_host(params->profile), "global_batch",
                     (json_int_t)(params->global_batch > 0 ? params->global_batch : 1024), "rows",
                     rows);
}

static xm_status_t give(const compare_options_t *o, const ap_planner_params_t *params,
                        const ap_like_result_t *results, int count)
{
    if (xm_cli_wants_json(&o->json)) {
        XM_TRY(xm_cli_give_json(&o->json, to_json(o, params, results, count)));
    }
    if (!o->json.print) {
        print_table(o, params, results, count);
        XM_TRY(xm_cli_flush());
    }
    return XM_OK;
}

/* Runs the rows one after the other, so that no search slows another down and their times can be
 * compared. Everything is printed at the end, because each row is compared with the last. Results
 * that were never filled are zero, so that all of them can be cleared after a failure half-way. */
static xm_status_t run(const xm_cli_t *cli, void *options)
{
    const compare_options_t *o = options;
    const ap_planner_preset_t *rows[MAX_ROWS];
    ap_like_result_t results[MAX_ROWS] = {0};
    int64_t micro_batches[MAX_ROWS];
    ap_planner_params_t params = AP_PLANNER_PARAMS_INIT;
    xm_cluster_profile_t *profile = NULL;
    xm_cli_progress_t *progress;
    int count;
    xm_status_t status;

    (void)cli;
    if (o->list) {
        return list_rows(o);
    }
    status = choose_rows(o->like, rows, &count);
    XM_THEN(status, ap_command_search_params(&o->search, micro_batches, MAX_ROWS, &params));
    if (status == XM_OK) {
        status =
            ap_command_load_cluster(o->search.cluster, o->search.hosts, o->search.devices_per_host,
                                    AP_COMMAND_NO_OVERLAP, &profile);
    }
    XM_TRY(status);
    progress = xm_cli_progress_create(program);
    params.profile = profile;
    params.progress = xm_cli_progress_update;
    params.progress_arg = progress;
    for (int i = 0; i < count && status == XM_OK; ++i) {
        status = ap_like_run(rows[i], NULL, &params, &results[i]);
    }
    xm_cli_progress_destroy(progress);
    XM_THEN(status, give(o, &params, results, count));
    for (int i = 0; i < count; ++i) {
        ap_like_result_clear(&results[i]);
    }
    xm_cluster_profile_destroy(profile);
    return status;
}

int ap_command_compare(int argc, char *const *argv)
{
    compare_options_t o = {.search.memory_limit = AP_COMMAND_NOT_GIVEN};
    const xm_cli_option_t table[] = {
        {"like", 0, XM_CLI_STRING, &o.like, "NAMES", 0, 0,
         "Planners to compare, e.g. megatron,alpa (default: all); ours is always there."},
        {"list", 0, XM_CLI_FLAG, &o.list, NULL, 0, 0,
         "Print the planners: space, search and schedule of each, and whether it sees memory."},
        {"model", 0, XM_CLI_STRING, &o.search.model, "NAME", 0, 0,
         "Built-in model; autopar import lists them."},
        AP_COMMAND_SEARCH_OPTIONS(&o.search),
        {"wide", 0, XM_CLI_FLAG, &o.wide, NULL, 0, 0,
         "Print all of the last column, not 132 characters of a line."},
        XM_CLI_JSON_OPTIONS(XM_CLI_OUTPUT, &o.json,
                            "Print the comparison as JSON instead of a table."),
    };
    const xm_cli_command_t command = XM_CLI_COMMAND(
        program, NULL, summary,
        "autopar compare --model gpt-1.3b --cluster cluster.json --like megatron,gpipe", table, 0,
        0);

    return xm_cli_main(&command, argc, argv, run, &o);
}
