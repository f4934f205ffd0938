/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pipeline-bench: the pipeline of a parallel plan on real processes, beside what is
 * predicted. As in reshard-bench, one program is the parent that starts ranks and each of
 * them.
 */
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
    rb_options_t cluster;
    ap_plan_t *plan;
    xm_status_t status = rb_pipeline_options_check_outputs(options);

    XM_THEN(status, ap_plan_load(options->plans[0], &plan));
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
    return rb_launch(program, &cluster, cluster.ranks_per_host, options->argv);
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
    status = xm_cli_check_settings(env.rank < 0, program);
    XM_THEN(status, rb_pipeline_options_parse(argc, argv, &options));
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
