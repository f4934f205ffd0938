/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file command.h
 * The sub-commands of autopar. Each takes its own arguments (argv[0] is its name) and returns the
 * exit status: 0, 2 when the caller's input was wrong, 1 otherwise.
 */
#pragma once

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "cli_support.h"
#include "comm/profile.h"
#include "planner/search.h"

int ap_command_probe(int argc, char *const *argv);
int ap_command_plan(int argc, char *const *argv);
int ap_command_replan(int argc, char *const *argv);
int ap_command_import(int argc, char *const *argv);
int ap_command_shard(int argc, char *const *argv);
int ap_command_solve(int argc, char *const *argv);
int ap_command_explain(int argc, char *const *argv);
int ap_command_simulate(int argc, char *const *argv);
int ap_command_export(int argc, char *const *argv);
int ap_command_judge(int argc, char *const *argv);
int ap_command_fit(int argc, char *const *argv);
int ap_command_compare(int argc, char *const *argv);

/** A positional argument, or NULL where there are fewer. */
const char *ap_command_argument(const xm_cli_t *cli, size_t index);

/** Value of an --overlap that was not given. */
#define AP_COMMAND_NO_OVERLAP (-1.0)

/**
 * Loads a cluster profile, resizes it where @p hosts or @p devices are not 0, and gives it another
 * overlap where that is not negative. After a failure @p profile is unchanged.
 */
xm_status_t ap_command_load_cluster(const char *path, int hosts, int devices, double overlap,
                                    xm_cluster_profile_t **profile);

/** What a plan is searched for; its options, for the list of a command. */
typedef struct ap_command_search {
    const char *model, *cluster, *micro_batches, *stages;
    int hosts, devices_per_host, global_batch, recompute;
    uint64_t memory_limit;
    const char *memory_reserve;
} ap_command_search_t;

/** Value of a --memory-limit that was not given. */
#define AP_COMMAND_NOT_GIVEN UINT64_MAX

#define AP_COMMAND_MEMORY_RESERVE(text)                                                            \
    XM_CLI_ROW("memory-reserve", 0, XM_CLI_STRING, text, "BYTES|PART%", 0, 0,                      \
               "Memory of a device that plans leave free, e.g. 4GiB or 10%; 0: none (default: "    \
               "for context, communication and fragmentation; nothing of a --memory-limit).")
#define AP_COMMAND_MICRO_BATCHES(text)                                                             \
    XM_CLI_ROW("micro-batches", 0, XM_CLI_STRING, text, "LIST", 0, 0,                              \
               "Numbers of micro-batches to try, e.g. 16,32 (default: powers of two to 1024).")
#define AP_COMMAND_PLAN_OUTPUT(output, json)                                                       \
    XM_CLI_ROW("output", 'o', XM_CLI_OUTPUT, output, "FILE", 0, 0, "Write the plan as JSON."),     \
        XM_CLI_JSON_OPTIONS(XM_CLI_OUTPUT, json, "Print the plan as JSON instead of a table.")
#define AP_COMMAND_SEARCH_OPTIONS(o)                                                               \
    XM_CLI_ROW("cluster", 0, XM_CLI_STRING, &(o)->cluster, "FILE", 0, 0,                           \
               "Cluster profile, as autopar probe writes it."),                                    \
        XM_CLI_ROW("hosts", 0, XM_CLI_INT, &(o)->hosts, "HOSTS", 1, 4096,                          \
                   "Plan for this many such hosts instead of the profile's."),                     \
        XM_CLI_ROW("devices-per-host", 0, XM_CLI_INT, &(o)->devices_per_host, "DEVICES", 1, 4096,  \
                   "Plan for this many such devices a host."),                                     \
        XM_CLI_ROW("global-batch", 0, XM_CLI_INT, &(o)->global_batch, "SAMPLES", 1, 1 << 30,       \
                   "Samples of one training step (default 1024)."),                                \
        AP_COMMAND_MICRO_BATCHES(&(o)->micro_batches),                                             \
        XM_CLI_ROW("stages", 0, XM_CLI_STRING, &(o)->stages, "MIN-MAX", 0, 0,                      \
                   "Number of pipeline stages, e.g. 2 or 2-4 (default: any)."),                    \
        XM_CLI_ROW(                                                                                \
            "memory-limit", 0, XM_CLI_BYTES, &(o)->memory_limit, "BYTES", 0, 0,                    \
            "Memory of one device that a plan may use, e.g. 16GiB (default: the profile's)."),     \
        AP_COMMAND_MEMORY_RESERVE(&(o)->memory_reserve),                                           \
        XM_CLI_ROW(                                                                                \
            "recompute", 0, XM_CLI_CHOICE, &(o)->recompute, "auto|off|on|uniform", 0, 0,           \
            "Run the forward pass of layers again in the backward pass: auto lets each stage "     \
            "choose, uniform all together (default auto).")

/**
 * Sets the planner's parameters from the options. The numbers of micro-batches lie in memory of the
 * caller, because the parameters only point to them.
 */
xm_status_t ap_command_search_params(const ap_command_search_t *search, int64_t *micro_batches,
                                     size_t capacity, ap_planner_params_t *params);

/** Reads "4GiB" or "10%" as the parameters of planners have it; NULL: the default. */
xm_status_t ap_command_parse_reserve(const char *text, double *reserve);

/** Parses "8,16,32" into at most @p capacity integers from @p least on. */
xm_status_t ap_command_parse_list(const char *what, const char *text, int64_t least,
                                  int64_t *values, size_t capacity, size_t *count);
