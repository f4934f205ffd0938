/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file bench/pipeline/job.h
 * One rank's part in a job of pipeline-bench: joins, agrees on what to do, runs the plans one after
 * the other, and on rank 0 reports.
 */
#pragma once

#include "bench/pipeline/options.h"
#include "comm/job.h"

/**
 * Takes part in the job that @p env describes and returns the exit status of the process. @p parsed
 * is what parsing the command line gave on this rank; a failure is reported to all ranks. Prints
 * failures itself, of an orderly job on rank 0 only.
 */
int rb_pipeline_job_run(const rb_pipeline_options_t *options, xm_status_t parsed,
                        const xm_job_env_t *env);
