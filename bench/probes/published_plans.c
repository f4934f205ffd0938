/* SPDX-License-Identifier: Apache-2.0 */
/*
 * published_plans: the plans that Alpa's authors published for GPT, MoE and Wide-ResNet, with the
 * stages and shapes of theirs pinned: beside what they measured, and beside ours under the same
 * cost model. It fails when a price is too far from what was measured, or when one of theirs is
 * faster than ours, so it is a test of prices and of the planner as much as a table.
 */
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli_support.h"
#include "planner/search.h"
#include "published_measured.h"

static const char program[] = "published_plans";

enum { MAX_STAGES = 16, MAX_COUNTS = 24, TEXT = 256 };

/* A published plan: blocks and devices of each stage. The embedding or stem goes with the first,
 * the head with the last. */
typedef struct published {
    const char *family, *model;
    int hosts, devices; /* the cluster */
    int batch, micro_batches;
    int stages;
    int blocks[MAX_STAGES];  /* the last given one goes for the rest */
    int submesh[MAX_STAGES]; /* devices of one host, likewise */
    int shape[MAX_STAGES];   /* first number of the logical shape, likewise; 0: not published */
} published_t;

static const published_t plans[] = {
    {"GPT", "gpt-350m", 1, 1, 1024, 64, 1, {24}, {1}, {1}},
    {"GPT", "gpt-760m", 1, 2, 1024, 128, 2, {12}, {1}, {1}},
    {"GPT", "gpt-1.3b", 1, 4, 1024, 128, 2, {12}, {2}, {2}},
    {"GPT", "gpt-2.6b", 1, 8, 1024, 128, 3, {8, 8, 16}, {2, 2, 4}, {2, 2, 4}},
    {"GPT", "gpt-6.7b", 2, 8, 1024, 64, 2, {16}, {8}, {2}},
    {"GPT", "gpt-15b", 4, 8, 1024, 128, 4, {12}, {8}, {2}},
    {"GPT", "gpt-39b", 8, 8, 1024, 1024, 16, {3}, {4}, {1}},
    {"MoE", "moe-690m", 1, 2, 1024, 32, 1, {8}, {2}, {2}},
    {"MoE", "moe-1.3b", 1, 4, 1024, 32, 2, {8}, {2}, {2}},
    {"MoE", "moe-2.4b", 1, 8, 1024, 32, 2, {8}, {4}, {4}},
    {"MoE", "moe-10b", 2, 8, 1024, 16, 2, {8}, {8}, {8}},
    {"MoE", "moe-27b", 4, 8, 1024, 128, 8, {2}, {4}, {4}},
    {"Wide-ResNet", "wresnet-250m", 1, 1, 1536, 24, 1, {16}, {1}, {0}},
    {"Wide-ResNet", "wresnet-500m", 1, 2, 1536, 24, 1, {16}, {2}, {0}},
    {"Wide-ResNet", "wresnet-1b", 1, 4, 1536, 24, 1, {16}, {4}, {0}},
    {"Wide-ResNet", "wresnet-2b", 1, 8, 1536, 24, 2, {8}, {4}, {4, 1}},
    {"Wide-ResNet", "wresnet-4b", 2, 8, 1536, 32, 3, {5, 4, 7}, {4, 4, 8}, {4, 4, 8}},
    {"Wide-ResNet", "wresnet-6.8b", 4, 8, 1536, 32, 4, {5, 4, 4, 3}, {8}, {8}},
};

typedef struct options {
    const char *cluster;
    int devices;       /* rows with at most so many */
    bool priced;       /* theirs only */
    int within;        /* percent of what was measured; 0: any */
    const char *write; /* a folder for autopar judge */
    json_t *rows;      /* of its document */
    bool wrong;        /* a published plan is faster, or its price too far off */
} options_t;

/* A plan in a row of the table. */
typedef struct outcome {
    ap_planner_result_t result;
    bool fits;
    char reason[TEXT]; /* why it does not */
} outcome_t;

/* The last number that is given: lists may be shorter than the stages. */
static int value_at(const int *values, int i)
{
    while (i > 0 && values[i] == 0) {
        --i;
    }
    return values[i];
}

/* Layers are the embedding or stem, the blocks, and the head; the published numbers count
 * blocks only. */
static void list_pins(const published_t *row, ap_planner_pin_t *pins)
{
    int block = 0;

    for (int i = 0; i < row->stages; ++i) {
        int devices = value_at(row->submesh, i), rows = value_at(row->shape, i);
        int blocks = value_at(row->blocks, i);

        pins[i] = (ap_planner_pin_t){.first_layer = i == 0 ? 0 : block + 1,
                                     .last_layer = block + blocks + (i == row->stages - 1),
                                     .hosts = 1,
                                     .devices = devices,
                                     .shape = {rows, rows > 0 ? devices / rows : 0}};
        block += blocks;
    }
}

/* Lists the powers of two that divide the batch, and three times those: 24 is among the
 * published ones. */
static int list_counts(int batch, int64_t *counts)
{
    int count = 0;

    for (int b = 1; b <= 1024 && b <= batch; ++b) {
        int odd = b % 3 == 0 ? b / 3 : b;

        if (batch % b == 0 && (odd & (odd - 1)) == 0) {
            counts[count++] = b;
        }
    }
    return count;
}

/* A plan that does not fit is an outcome and no failure; its reason goes into the table. */
static xm_status_t plan_row(const published_t *row, const xm_cluster_profile_t *profile,
                            const ap_planner_pin_t *pins, int micro_batches,
                            ap_recompute_t recompute, outcome_t *outcome)
{
    ap_planner_params_t params = AP_PLANNER_PARAMS_INIT;
    int64_t counts[MAX_COUNTS] = {micro_batches};
    xm_status_t status;

    params.model = row->model;
    params.profile = profile;
    params.global_batch = row->batch;
    params.micro_batches = counts;
    params.micro_batch_count = micro_batches > 0 ? 1 : (size_t)list_counts(row->batch, counts);
    params.recompute = recompute;
    params.margin = 1e-9; /* no case is left alone for a thousandth */
    params.pins = pins;
    params.pin_count = pins != NULL ? row->stages : 0;
    status = ap_planner_run(&params, &outcome->result);
    outcome->fits = status == XM_OK;
    if (status == XM_ERR_NO_SOLUTION) {
        (void)snprintf(outcome->reason, sizeof(outcome->reason), "%s", xm_last_error());
        status = XM_OK;
    }
    return status;
}

/* The seconds of a step in which a device works, and the part of it in which it waits;
 * both on average over devices. */
static void measure(const ap_plan_t *plan, double *busy, double *idle)
{
    const ap_plan_info_t *info = ap_plan_info(plan);
    double work = 0.0;
    int devices = 0;

    for (int i = 0; i < ap_plan_stages(plan); ++i) {
        const ap_plan_stage_t *stage = ap_plan_stage(plan, i);
        int count = stage->hosts * stage->devices_per_host;

        work += count * ap_plan_stage_seconds(plan, i);
        devices += count;
    }
    *busy = (double)info->micro_batches * work / devices;
    *idle = fmax(0.0, 1.0 - *busy / info->step);
}

/* Stages that are alike print their mesh once. */
static void print_plan(const ap_plan_t *plan)
{
    const ap_plan_info_t *info = ap_plan_info(plan);
    char recompute[64];
    const char *which = ap_plan_recompute_text(plan, recompute, sizeof(recompute));

    printf("%lld micro-batches", (long long)info->micro_batches);
    if (info->rematerialize) {
        printf(" recomputing");
    } else if (strcmp(which, "off") != 0) {
        printf(" recomputing %s", which);
    }
    printf(", ");
    for (int i = 0; i < ap_plan_stages(plan); ++i) {
        const ap_plan_stage_t *stage = ap_plan_stage(plan, i);
        const ap_plan_stage_t *before = i > 0 ? ap_plan_stage(plan, i - 1) : NULL;

        printf("%s%d", i > 0 ? "/" : "", stage->last_layer - stage->first_layer + 1);
        if (before == NULL || before->hosts != stage->hosts ||
            before->devices_per_host != stage->devices_per_host ||
            before->shape[0] != stage->shape[0]) {
            printf("@%dx%d:%dx%d", stage->hosts, stage->devices_per_host, stage->shape[0],
                   stage->shape[1]);
        }
    }
}

/* Equal in all that the table shows of stages. */
static bool same_stages(const ap_plan_t *a, const ap_plan_t *b)
{
    bool same = ap_plan_stages(a) == ap_plan_stages(b);

    for (int i = 0; same && i < ap_plan_stages(a); ++i) {
        const ap_plan_stage_t *x = ap_plan_stage(a, i), *y = ap_plan_stage(b, i);

        same = x->last_layer == y->last_layer && x->hosts == y->hosts &&
               x->devices_per_host == y->devices_per_host && x->shape[0] == y->shape[0];
    }
    return same;
}

/* The gain that needs no other stages is named by itself. */
static void print_difference(const ap_plan_t *theirs, const ap_plan_t *best, const ap_plan_t *ours)
{
    double busy[2], idle[2], gain = 1.0 - ap_plan_info(best)->step / ap_plan_info(theirs)->step;

    measure(theirs, &busy[0], &idle[0]);
    measure(ours, &busy[1], &idle[1]);
    printf("%s; work %.3f → %.3f s, waiting %.1f → %.1f %%",
           same_stages(theirs, ours) ? "same stages" : "other stages", busy[0], busy[1],
           100.0 * idle[0], 100.0 * idle[1]);
    if (gain > 5e-4) {
        printf("; %.1f %% of the step by micro-batches and recomputation alone", 100.0 * gain);
    }
}

/* Saves theirs as it ran, and what was measured of it. */
static xm_status_t write_row(const published_t *row, const ap_plan_t *plan,
                             const options_t *options)
{
    char file[64], path[PATH_MAX];
    double measured = published_measured_seconds(row->model, row->batch, row->hosts * row->devices);

    (void)snprintf(file, sizeof(file), "%s.json", row->model);
    (void)snprintf(path, sizeof(path), "%s/%s", options->write, file);
    (void)json_array_append_new(options->rows, json_pack("{s:s, s:s, s:f}", "name", row->model,
                                                         "plan", file, "step_s", measured));
    return ap_plan_save(plan, path);
}

static xm_status_t write_measured(const options_t *options)
{
    char path[PATH_MAX];
    json_t *document = json_pack("{s:s, s:i, s:s, s:O}", "format", "crossmesh-measured", "version",
                                 1, "source", "Alpa, OSDI'22, artifact", "rows", options->rows);
    char *text = json_dumps(document, JSON_INDENT(1));
    xm_status_t status = XM_ERR_NO_MEMORY;

    (void)snprintf(path, sizeof(path), "%s/measured.json", options->write);
    if (text != NULL) {
        status = xm_text_save(path, text);
    }
    free(text);
    json_decref(document);
    return status;
}

/* Prints what theirs takes as it ran beside what was measured. Experts are not judged: their
 * products are narrow, on which one GPU alone attains a fifth less than on those of a GPT. */
static void print_measured(const published_t *row, const outcome_t *theirs, options_t *options)
{
    double step = theirs->result.objective;
    double measured = published_measured_seconds(row->model, row->batch, row->hosts * row->devices);
    bool judged = options->within > 0 && strcmp(row->family, "MoE") != 0;

    printf("| %s %s | %d x %d | ", row->family, row->model, row->hosts, row->devices);
    if (!theirs->fits) {
        printf("does not fit: %s | – | %.2f | – |", theirs->reason, measured);
        options->wrong = options->wrong || judged;
        return;
    }
    print_plan(theirs->result.plan);
    printf(" | %.3f | %.2f | %.3f |", step, measured, step / measured);
    options->wrong =
        options->wrong || (judged && fabs(step / measured - 1) > 0.01 * options->within);
}

/* Prints theirs at its best and ours. */
static void print_ours(const outcome_t *theirs, const outcome_t *best, const outcome_t *ours,
                       options_t *options)
{
    double step = ours->result.objective;

    if (!ours->fits) {
        printf(" – | %s |", ours->reason);
        options->wrong = options->wrong || theirs->fits;
        return;
    }
    printf(best->fits ? " %.3f | " : " – | ", best->fits ? best->result.objective : 0.0);
    print_plan(ours->result.plan);
    printf(" | %.3f | ", step);
    if (theirs->fits && best->fits) {
        printf("%.3f | ", step / theirs->result.objective);
        print_difference(theirs->result.plan, best->result.plan, ours->result.plan);
        /* A hair above counts as equal, as both are sums of doubles. */
        options->wrong = options->wrong || step > theirs->result.objective * (1.0 + 1e-9);
    } else {
        printf("– | theirs does not fit");
    }
    printf(" |");
}

/* Three plans for a row: theirs as it ran, theirs with the best micro-batches, and ours. */
static xm_status_t compare_row(const published_t *row, const xm_cluster_profile_t *measured,
                               options_t *options)
{
    ap_planner_pin_t pins[MAX_STAGES];
    outcome_t theirs = {0}, best = {0}, ours = {0};
    xm_cluster_profile_t *profile;
    xm_status_t status = xm_cluster_profile_resize(measured, row->hosts, row->devices, &profile);

    if (status != XM_OK) {
        return status;
    }
    list_pins(row, pins);
    status = plan_row(row, profile, pins, row->micro_batches, AP_RECOMPUTE_ON, &theirs);
    if (status == XM_OK) {
        print_measured(row, &theirs, options);
    }
    if (status == XM_OK && options->write != NULL && theirs.fits) {
        status = write_row(row, theirs.result.plan, options);
    }
    if (status == XM_OK && !options->priced) {
        status = plan_row(row, profile, pins, 0, AP_RECOMPUTE_AUTO, &best);
    }
    if (status == XM_OK && !options->priced) {
        status = plan_row(row, profile, NULL, 0, AP_RECOMPUTE_AUTO, &ours);
    }
    if (status == XM_OK && !options->priced) {
        print_ours(&theirs, &best, &ours, options);
    }
    printf("\n");
    (void)fflush(stdout);
    ap_planner_result_clear(&theirs.result);
    ap_planner_result_clear(&best.result);
    ap_planner_result_clear(&ours.result);
    xm_cluster_profile_destroy(profile);
    return status;
}

static xm_status_t run(const xm_cli_t *cli, void *arg)
{
    options_t *options = arg;
    xm_cluster_profile_t *profile;
    xm_status_t status;

    (void)cli;
    if (options->cluster == NULL) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "--cluster is needed");
    }
    status = xm_cluster_profile_load(options->cluster, &profile);
    if (status != XM_OK) {
        return status;
    }
    printf("| model | devices | published plan | its price, s | measured, s | price / measured |");
    printf(options->priced ? "\n|--|--|--|--|--|--|\n"
                           : " its stages at best, s | our plan | our step, s | ours / published | "
                             "what differs |\n|--|--|--|--|--|--|--|--|--|--|--|\n");
    for (size_t i = 0; i < sizeof(plans) / sizeof(plans[0]) && status == XM_OK; ++i) {
        if (plans[i].hosts * plans[i].devices <= options->devices) {
            status = compare_row(&plans[i], profile, options);
        }
    }
    xm_cluster_profile_destroy(profile);
    if (status == XM_OK && options->write != NULL) {
        status = write_measured(options);
    }
    return status;
}

int main(int argc, char **argv)
{
    options_t options = {.devices = 64, .rows = json_array()};
    const xm_cli_option_t table[] = {
        {"cluster", 0, XM_CLI_STRING, &options.cluster, "FILE", 0, 0,
         "Cluster profile of one kind of host; resized for every row."},
        {"devices", 0, XM_CLI_INT, &options.devices, "DEVICES", 1, 64,
         "Only rows with at most so many devices (64)."},
        {"priced", 0, XM_CLI_FLAG, &options.priced, NULL, 0, 0,
         "Only the prices of the published plans and what was measured of them."},
        {"write", 0, XM_CLI_STRING, &options.write, "FOLDER", 0, 0,
         "Write the published plans and what was measured of them for autopar judge."},
        {"within", 0, XM_CLI_INT, &options.within, "PERCENT", 1, 100,
         "Fail where the price of a GPT or Wide-ResNet is further from what was measured."},
    };
    const xm_cli_command_t command = XM_CLI_COMMAND(
        program, NULL,
        "Compares Alpa's published plans with what was measured of them, and with ours under "
        "one cost model, as a table in Markdown. Exit status 1 when a published plan is faster.",
        NULL, table, 0, 0);
    int exit_status = xm_cli_main(&command, argc, argv, run, &options);

    json_decref(options.rows);

    return exit_status == EXIT_SUCCESS && options.wrong ? EXIT_FAILURE : exit_status;
}
