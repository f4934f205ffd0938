/* SPDX-License-Identifier: Apache-2.0 */
/* planner_scale: how long a full plan takes as layers, hosts and devices of a host grow.
 * Every row resizes one measured profile, so that only the sizes differ between rows. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "cli_support.h"
#include "comm/base.h"
#include "planner/search.h"

static const char program[] = "planner_scale";

typedef struct options {
    const char *cluster, *model, *row;
    int hosts, devices, layers; /* the largest */
    int repeat;
} options_t;

/* The peak of the whole process so far. */
static double peak_mib(void)
{
    struct rusage usage;

    (void)getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_maxrss / 1024;
}

static void print_head(const char *title)
{
    printf("# %s\n#%6s %6s %8s %8s %9s %9s %7s %9s %11s %7s %8s\n", title, "blocks", "hosts",
           "devices", "memory", "plan s", "cpu s", "stages", "priced", "step s", "gap %",
           "RSS MiB");
}

/*
 * The memory that a device gets: what the model needs for parameters and their state, as
 * much again for activations, and at least that of the profile. Without this, large rows
 * would be infeasible at once and measure nothing.
 */
static double memory_for(const xm_cluster_profile_t *profile, int blocks, int devices)
{
    const double block_bytes = 12.0 * 8192 * 8192 * 16, own = 2.0 * blocks * block_bytes / devices;

    return fmax(own, xm_cluster_profile_device_memory_bytes(profile));
}

/* Plans several times and prints the least time, as planning is deterministic and noise
 * only adds. */
static xm_status_t row(const options_t *options, const xm_cluster_profile_t *measured, int blocks,
                       int hosts, int devices)
{
    ap_planner_params_t params = AP_PLANNER_PARAMS_INIT;
    xm_cluster_profile_t *profile;
    double least = INFINITY, least_cpu = INFINITY;
    xm_status_t status = xm_cluster_profile_resize(measured, hosts, devices, &profile);

    if (status != XM_OK) {
        return status;
    }
    params.model = options->model;
    params.layers = blocks;
    params.profile = profile;
    params.global_batch = 1024;
    params.memory_limit = memory_for(measured, blocks, hosts * devices);
    for (int i = 0; i < options->repeat && status == XM_OK; ++i) {
        double start = xm_clock_seconds(), cpu = xm_clock_cpu_seconds();
        ap_planner_result_t result;

        status = ap_planner_run(&params, &result);
        least = fmin(least, xm_clock_seconds() - start);
        least_cpu = fmin(least_cpu, xm_clock_cpu_seconds() - cpu);
        if (status != XM_OK) {
            break;
        }
        if (i == options->repeat - 1) {
            printf("%7d %6d %8d %7.1fG %9.3f %9.3f %7d %9lld %11.4f %7.3f %8.0f\n", blocks, hosts,
                   hosts * devices, params.memory_limit * 1e-9, least, least_cpu,
                   ap_plan_stages(result.plan), (long long)result.stages_priced, result.objective,
                   100.0 * (1.0 - result.bound / result.objective), peak_mib());
            (void)fflush(stdout);
        }
        ap_planner_result_clear(&result);
    }
    xm_cluster_profile_destroy(profile);
    return status;
}

/* Parses "96x128x8", blocks, hosts and devices of a host, and plans that row alone. */
static xm_status_t one_row(const options_t *options, const xm_cluster_profile_t *profile)
{
    enum { LARGEST = 4096 };
    const char *text = options->row;
    long sizes[3];

    for (int i = 0; i < 3; ++i) {
        char *end;

        sizes[i] = strtol(text, &end, 10);
        if (end == text || *end != (i < 2 ? 'x' : '\0') || sizes[i] < 1 || sizes[i] > LARGEST) {
            return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                                "--row: %s is not BLOCKSxHOSTSxDEVICES, each 1 to %d", options->row,
                                LARGEST);
        }
        text = end + 1;
    }
    print_head("as asked for");
    return row(options, profile, (int)sizes[0], (int)sizes[1], (int)sizes[2]);
}

/* The profile gives rates; its own numbers of hosts and devices do not matter. */
static xm_status_t run(const xm_cli_t *cli, void *arg)
{
    const options_t *options = arg;
    enum { BLOCKS = 48 /* where it is not the blocks that grow */ };
    int blocks_of_all = options->layers < BLOCKS ? options->layers : BLOCKS;
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
    printf("# %s, batch 1024, blocks as given, micro-batches 1 to 1024, recomputation on and off\n",
           options->model);
    if (options->row != NULL) {
        status = one_row(options, profile);
        xm_cluster_profile_destroy(profile);
        return status;
    }
    /* One size grows at a time, from a common middle. */
    print_head("layers, on 8 x 8 devices");
    for (int blocks = 12; status == XM_OK && blocks <= options->layers; blocks *= 2) {
        status = row(options, profile, blocks, 8, 8);
    }
    if (status == XM_OK) {
        print_head("hosts of 8 devices");
    }
    for (int hosts = 1; status == XM_OK && hosts <= options->hosts; hosts *= 2) {
        status = row(options, profile, blocks_of_all, hosts, 8);
    }
    if (status == XM_OK) {
        print_head("devices of a host, 8 hosts");
    }
    for (int devices = 1; status == XM_OK && devices <= options->devices; devices *= 2) {
        status = row(options, profile, blocks_of_all, 8, devices);
    }
    if (status == XM_OK && options->hosts >= 128) {
        print_head("all together");
        status = row(options, profile, 96, 128, 8);
    }
    xm_cluster_profile_destroy(profile);
    return status;
}

int main(int argc, char **argv)
{
    options_t options = {
        .model = "gpt-39b", .hosts = 128, .devices = 16, .layers = 96, .repeat = 1};
    const xm_cli_option_t table[] = {
        {"cluster", 0, XM_CLI_STRING, &options.cluster, "FILE", 0, 0,
         "Cluster profile; resized for every row."},
        {"model", 0, XM_CLI_STRING, &options.model, "NAME", 0, 0,
         "Built-in language model whose block is repeated (gpt-39b)."},
        {"hosts", 0, XM_CLI_INT, &options.hosts, "HOSTS", 1, 1024, "Most hosts (128)."},
        {"devices", 0, XM_CLI_INT, &options.devices, "DEVICES", 1, 64,
         "Most devices of a host (16)."},
        {"layers", 0, XM_CLI_INT, &options.layers, "LAYERS", 12, 1024, "Most blocks (96)."},
        {"row", 0, XM_CLI_STRING, &options.row, "SIZE", 0, 0,
         "Only this row: blocks, hosts and devices of a host, such as 96x128x8."},
        {"repeat", 0, XM_CLI_INT, &options.repeat, "TIMES", 1, 1000,
         "Plan each row so often; the least time counts (1)."},
    };
    const xm_cli_command_t command = XM_CLI_COMMAND(
        program, NULL, "Times planning as layers, hosts and devices grow.", NULL, table, 0, 0);

    return xm_cli_main(&command, argc, argv, run, &options);
}
