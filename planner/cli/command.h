/**
 * @file command.h
 * The sub-commands of autopar. Each takes its own arguments (argv[0] is its name) and returns the
 * exit status: 0, 2 when the caller's input was wrong, 1 otherwise.
 */
#ifndef AP_CLI_COMMAND_H
#define AP_CLI_COMMAND_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "cli_support.h"
#include "comm/profile.h"
#include "planner/search.h"

int ap_command_probe(int argc, char *const *argv);
int ap_command_plan(int argc, char *const *argv);
int ap_command_import(int argc, char *const *argv);
int ap_command_shard(int argc, char *const *argv);
int ap_command_solve(int argc, char *const *argv);
int ap_command_explain(int argc, char *const *argv);
int ap_command_simulate(int argc, char *const *argv);
int ap_command_export(int argc, char *const *argv);
int ap_command_compare(int argc, char *const *argv);

/** Loads a cluster profile and, where @p hosts or @p devices are not 0, resizes it. */
xm_status_t ap_command_load_cluster(const char *path, int hosts, int devices,
                                    xm_cluster_profile_t **profile);

/** What a plan is searched for; its options, for the list of a command. */
typedef struct ap_command_search {
    const char *model, *cluster, *micro_batches, *stages;
    int hosts, devices_per_host, global_batch, recompute;
    uint64_t memory_limit;
} ap_command_search_t;

/** Value of a --memory-limit that was not given. */
#define AP_COMMAND_NOT_GIVEN UINT64_MAX

#define AP_COMMAND_SEARCH_OPTIONS(o)                                                               \
    {.name = "cluster",                                                                            \
     .kind = XM_CLI_STRING,                                                                        \
     .target = &(o)->cluster,                                                                      \
     .argument = "FILE",                                                                           \
     .help = "Cluster profile, as autopar probe writes it."},                                      \
        {.name = "hosts",                                                                          \
         .kind = XM_CLI_INT,                                                                       \
         .target = &(o)->hosts,                                                                    \
         .argument = "HOSTS",                                                                      \
         .minimum = 1,                                                                             \
         .maximum = 4096,                                                                          \
         .help = "Plan for this many such hosts instead of the profile's."},                       \
        {.name = "devices-per-host",                                                               \
         .kind = XM_CLI_INT,                                                                       \
         .target = &(o)->devices_per_host,                                                         \
         .argument = "DEVICES",                                                                    \
         .minimum = 1,                                                                             \
         .maximum = 64,                                                                            \
         .help = "Plan for this many such devices a host."},                                       \
        {.name = "global-batch",                                                                   \
         .kind = XM_CLI_INT,                                                                       \
         .target = &(o)->global_batch,                                                             \
         .argument = "SAMPLES",                                                                    \
         .minimum = 1,                                                                             \
         .maximum = 1 << 30,                                                                       \
         .help = "Samples of one training step (default 1024)."},                                  \
        {.name = "micro-batches",                                                                  \
         .kind = XM_CLI_STRING,                                                                    \
         .target = &(o)->micro_batches,                                                            \
         .argument = "LIST",                                                                       \
         .help = "Numbers of micro-batches to try, e.g. 16,32 (default: powers of two to 1024)."}, \
        {.name = "stages",                                                                         \
         .kind = XM_CLI_STRING,                                                                    \
         .target = &(o)->stages,                                                                   \
         .argument = "MIN-MAX",                                                                    \
         .help = "Number of pipeline stages, e.g. 2 or 2-4 (default: any)."},                      \
        {.name = "memory-limit",                                                                   \
         .kind = XM_CLI_BYTES,                                                                     \
         .target = &(o)->memory_limit,                                                             \
         .argument = "BYTES",                                                                      \
         .help = "Memory of one device, e.g. 16GiB (default: the profile's)."},                    \
    {                                                                                              \
        .name = "recompute", .kind = XM_CLI_CHOICE, .target = &(o)->recompute,                     \
        .argument = "auto|off|on|uniform",                                                         \
        .help =                                                                                    \
            "Run the forward pass of layers again in the backward pass: auto lets each stage\n"    \
            "choose, uniform all together (default auto)."                                         \
    }

/**
 * Sets the planner's parameters from the options. The numbers of micro-batches lie in memory of the
 * caller, because the parameters only point to them.
 */
xm_status_t ap_command_search_params(const ap_command_search_t *search, int64_t *micro_batches,
                                     size_t capacity, ap_planner_params_t *params);

/** Value of an --overlap that was not given. */
#define AP_COMMAND_NO_OVERLAP (-1.0)

/** Replaces @p profile by one with the overlap of an option, unless that was not given. */
xm_status_t ap_command_set_overlap(double overlap, xm_cluster_profile_t **profile);

/** Prints a document, which it takes over. NULL means that building it ran out of memory: callers
 *  hand in the result of json_pack() without a look at it. */
xm_status_t ap_command_print_json(json_t *document);

/** Parses "8,16,32" into at most @p capacity positive integers. */
xm_status_t ap_command_parse_list(const char *what, const char *text, int64_t *values,
                                  size_t capacity, size_t *count);

#endif
