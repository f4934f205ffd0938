/*
 * pipeline-bench: the pipeline of a parallel plan on real processes, beside what is
 * predicted. As in reshard-bench, one program is the parent that starts ranks and each of
 * them.
 */
#include <stdio.h>
#include <stdlib.h>

#include "bench/run.h"
#include "bench/pipeline/job.h"
#include "comm/base.h"
#include "comm/job.h"
#include "planner/plan.h"

static const char program[] = "pipeline-bench";

/* Starts the ranks, which run main() again and find themselves in a job. */
static int launch(const rb_pipeline_options_t *options)
{
    xm_launch_params_t params = XM_LAUNCH_PARAMS_INIT;
    rb_options_t cluster;
    ap_plan_t *plan;
    int exit_status = 0, failed;
    xm_status_t status = ap_plan_load(options->plans[0], &plan);

    if (status < 0) {
        return xm_cli_fail(program, status);
    }
    rb_pipeline_options_cluster(options, ap_plan_info(plan)->hosts,
                                ap_plan_info(plan)->devices_per_host, &cluster);
    ap_plan_destroy(plan);
    /* Emulated hosts share the cores of this machine, so all ranks are counted. */
    status = rb_compute_check((rb_compute_kind_t)options->compute, cluster.ranks, "this machine");
    if (status < 0) {
        return xm_cli_fail(program, status);
    }
    params.ranks = cluster.ranks;
    params.ranks_per_host = cluster.ranks_per_host;
    params.argv = options->argv;
    status = rb_options_emulate(&cluster) ? rb_emulation_launch(&cluster, &params, &exit_status)
                                          : xm_launch(&params, &exit_status);
    if (status == XM_OK) {
        return EXIT_SUCCESS;
    }
    /* A rank that ends by itself has said why; only the parent knows about one that was
     * killed. */
    if (exit_status > 128 || status != XM_ERR_PEER_DIED) {
        failed = xm_cli_fail(program, status);
        exit_status = exit_status > 0 ? exit_status : failed;
    }
    return exit_status;
}

int main(int argc, char **argv)
{
    rb_pipeline_options_t options = {0};
    xm_job_env_t env;
    xm_status_t status = xm_job_env_read(&env);
    int exit_status = EXIT_SUCCESS;

    if (status < 0) {
        return xm_cli_fail(program, status);
    }
    status = xm_config_check();
    if (status == XM_OK) {
        status = rb_pipeline_options_parse(argc, argv, &options);
    }
    if (status == XM_OK && xm_cli_finished(options.cli)) {
        exit_status = EXIT_SUCCESS;
    } else if (env.rank >= 0) {
        exit_status = rb_pipeline_job_run(&options, status, &env);
    } else {
        exit_status = status < 0 ? xm_cli_fail(program, status) : launch(&options);
    }
    rb_pipeline_options_clear(&options);
    return exit_status;
}
