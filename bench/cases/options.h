/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file options.h
 * The command line of reshard-bench.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "bench/cases/choices.h"
#include "cli_support.h"
#include "comm/memory.h"
#include "resharding/plan.h"

/** In the order of the choices of --transport; the first ones move bytes between processes. */
typedef enum rb_transport { RB_TRANSPORT_UCX, RB_TRANSPORT_VERBS, RB_TRANSPORT_SIM } rb_transport_t;

/** Choices of the options, in the order of the enumerations. */
#define RB_STRATEGY_NAMES  "send_recv|allgather|broadcast|auto|local_allgather|global_allgather|alpa"
#define RB_SCHEDULER_NAMES "naive|balance|dfs|greedy|openshop|auto"

enum { RB_OPTIONS_MAX = 60, RB_NIC_RATES = 64, RB_UNEVEN_NICS = 8 };

/** Everything the command line says. Texts belong to `cli`; absent ones are NULL, numbers 0. */
/** Which elements change between the runs of an update. */
typedef enum rb_changes { RB_CHANGES_UNIFORM, RB_CHANGES_ROWS, RB_CHANGES_BLOCKS } rb_changes_t;

typedef struct rb_options {
    xm_cli_t *cli;
    xm_cli_command_t command; /**< `cli` refers to it and to the table, so never copy this object */
    xm_cli_option_t table[RB_OPTIONS_MAX];
    int argc;
    char *const *argv;

    int ranks, hosts, ranks_per_host;
    int suite; /**< rb_suite_t, or RB_ANY */
    xm_cli_list_t cases;
    int64_t scale_divisor; /**< 64 for 1/64 */
    bool list, show_topology, check;
    const char *src_mesh, *dst_mesh, *src_ranks, *dst_ranks, *src_spec, *dst_spec, *shape, *dtype;
    xm_partition_t partition;
    xm_sweep_t sweep;
    char half[16]; /**< a sweep without meshes: half of the ranks, to the other half; else "" */
    const char *model_config, *system_config, *shard_table;
    const char *plan;
    int boundary;
    rb_choices_t strategies; /**< of xm_strategy_t; none: the case's own */
    rb_choices_t schedulers; /**< of xm_scheduler_t likewise */
    rb_transport_t transport;
    xm_memory_kind_t memory;       /**< that the tiles are in */
    double nic_gbps[RB_NIC_RATES]; /**< of all NICs of a host together; of the hosts in turn */
    int nic_rates;                 /**< entries of nic_gbps; 0: not given */
    int nics_per_host;             /**< at least 1 when nic_rates is not 0 */
    const char *congestion;        /**< TCP's in emulated hosts; NULL: the machine's */
    int64_t queue; /**< bytes that wait at ports of emulated hosts; 0: as an ordinary switch */
    bool all_nics; /**< every rank uses all NICs of its host */
    double uneven_gbps[RB_UNEVEN_NICS]; /**< of a host's NICs in turn */
    int uneven_rates;                   /**< entries of uneven_gbps; 0: its NICs are equal */
    double uplink_gbps;                 /**< 0: uplinks are never the limit */
    int racks;
    double core_share; /**< of each rank of an emulated cluster; 0: no limit */
    const char *profile, *topology;
    bool paper; /**< --protocol paper; warmup and iterations are what it says */
    int warmup, iterations, seed;
    double density;        /**< per cent of the elements that change between runs, which then move
                              nothing else; 0: runs move everything */
    rb_changes_t pattern;  /**< which elements change */
    uint64_t memory_limit; /**< bytes of a rank's pack buffers; 0: none beyond the executor's own */
    bool validate, verify, dry_run, wide, csv;
    xm_cli_json_t json;
    const char *trace_path, *plot_path, *dump_path;
} rb_options_t;

/**
 * Parses and checks what can be checked without knowing the job. After success xm_cli_finished()
 * of options->cli tells whether --help or --version was all that was wanted. After a failure the
 * object holds nothing.
 */
xm_status_t rb_options_parse(int argc, char *const *argv, rb_options_t *options);

/** "ucx", "verbs" or "sim". */
const char *rb_transport_name(rb_transport_t transport);

/** True when the command line describes an emulated cluster that ranks run in: hosts and rates. */
bool rb_options_emulate(const rb_options_t *options);

void rb_options_clear(rb_options_t *options);
