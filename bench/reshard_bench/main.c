/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reshard-bench: moves tensors between device meshes, checks them, and says how fast that
 * was. The same program is the parent that starts ranks and every rank; which of them it
 * is follows from the launcher's variables. Whatever needs no ranks (lists, dry runs,
 * simulation) runs in one process.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/reshard_bench/check.h"
#include "bench/run.h"
#include "bench/reshard_bench/job.h"
#include "bench/reshard_bench/offline.h"
#include "bench/report.h"
#include "bench/reshard_bench/show_topology.h"
#include "bench/reshard_bench/simulated.h"
#include "comm/base.h"
#include "comm/job.h"

static const char program[] = "reshard-bench";

/* Starts the ranks, which run main() again and find themselves in a job. Without a
 * selection there is nothing to place. */
static int launch(const rb_options_t *options, const rb_selection_t *selection)
{
    return rb_launch(program, options,
                     selection != NULL ? rb_cluster_ranks_per_host(options, selection)
                                       : options->ranks_per_host,
                     options->argv);
}

/* Without -n there is nobody to run on, and the sentence says how many ranks would be
 * needed. */
static xm_status_t check_launch(const rb_options_t *options, const rb_selection_t *selection)
{
    if (options->ranks == 0) {
        return XM_INVALID("no launcher has started this process (RANK and WORLD_SIZE are not set) "
                          "and -n is not given; -n %d starts as many ranks as are needed",
                          rb_cluster_needs(options, selection));
    }
    return XM_OK;
}

/* Everything that this process does as the only one, or as the parent of ranks. */
static int run_alone(const rb_options_t *options)
{
    bool starts_ranks = !options->dry_run && options->transport != RB_TRANSPORT_SIM;
    rb_selection_t selection;
    rb_host_map_t hosts = {0};
    uint64_t wrong = 0;
    int exit_status = EXIT_SUCCESS;
    xm_status_t status;

    if (options->show_topology) {
        status = rb_show_topology(options, stdout);
        XM_THEN(status, xm_cli_flush());
        return status < 0 ? xm_cli_fail(program, status) : EXIT_SUCCESS;
    }
    if (options->check) {
        return options->ranks > 0 ? launch(options, NULL) : rb_check_run(options, NULL);
    }
    status = rb_select(options, &selection);
    if (status < 0) {
        return xm_cli_fail(program, status);
    }
    if (options->list) {
        status = rb_table_list(stdout, options, &selection);
        goto clear_selection;
    }
    /* Output files are checked before a run that may take minutes. */
    status = rb_report_check(options);
    if (status == XM_OK && starts_ranks) {
        status = check_launch(options, &selection);
    }
    XM_THEN(status, rb_cluster_create(options, &selection, &hosts));
    XM_THEN(status, rb_cluster_check(&selection, &hosts));
    if (status < 0) {
        goto clear_hosts;
    }
    if (options->dry_run) {
        status = rb_dry_run(options, &selection, &hosts);
    } else if (starts_ranks) {
        exit_status = launch(options, &selection);
    } else {
        status = rb_simulated_run(options, &selection, &hosts, &wrong);
    }

clear_hosts:
    rb_host_map_clear(&hosts);
clear_selection:
    rb_selection_clear(&selection);
    if (status < 0) {
        return xm_cli_fail(program, status);
    }
    return wrong > 0 ? EXIT_FAILURE : exit_status;
}

/* A malformed setting is what --check looks for, so it must not keep --check from being
 * run. */
static bool asks_for_check(int argc, char *const *argv)
{
    bool found = false;

    for (int i = 1; i < argc; ++i) {
        found = found || strcmp(argv[i], "--check") == 0;
    }
    return found;
}

/* Ranks inherit the variable, so the option reaches all of them. */
static xm_status_t set_topology(const char *path)
{
    if (path != NULL && setenv("XM_TOPOLOGY", path, 1) != 0) {
        return xm_error_set(XM_ERR_NO_MEMORY, "cannot set XM_TOPOLOGY: %s", strerror(errno));
    }
    return XM_OK;
}

int main(int argc, char **argv)
{
    xm_job_env_t env;
    rb_options_t options = {0};
    xm_status_t status = xm_job_env_read(&env);
    int exit_status;

    if (status < 0) {
        return xm_cli_fail(program, status);
    }
    /* Settings are checked before options are parsed, because some of them are options'
     * defaults. */
    status = asks_for_check(argc, argv) ? XM_OK : xm_cli_check_settings(env.rank < 0, program);
    XM_THEN(status, rb_options_parse(argc, argv, &options));
    if (status == XM_OK && xm_cli_finished(options.cli)) {
        rb_options_clear(&options);
        return EXIT_SUCCESS;
    }
    XM_THEN(status, set_topology(options.topology));
    if (env.rank >= 0 && status == XM_OK && options.check) {
        exit_status = rb_check_run(&options, &env);
    } else if (env.rank >= 0 &&
               (status < 0 || !(options.list || options.show_topology || options.dry_run ||
                                options.transport == RB_TRANSPORT_SIM))) {
        exit_status = rb_job_run(&options, status, &env);
    } else if (status < 0) {
        exit_status = xm_cli_fail(program, status);
    } else {
        /* Under a launcher one process is enough for what needs no ranks. */
        exit_status = env.rank > 0 ? EXIT_SUCCESS : run_alone(&options);
    }
    rb_options_clear(&options);
    return exit_status;
}
