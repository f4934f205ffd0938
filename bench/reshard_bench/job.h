/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file job.h
 * One rank's part in a job of real processes: joins, agrees on what to do, runs the cases, and on
 * rank 0 reports.
 */
#pragma once

#include "bench/cases.h"
#include "comm/job.h"

/**
 * Takes part in the job that @p env describes and returns the exit status of the process. @p parsed
 * is what parsing the command line gave on this rank; a failure is reported to all ranks. Prints
 * failures itself: in an orderly job only the lowest rank alive does.
 */
int rb_job_run(const rb_options_t *options, xm_status_t parsed, const xm_job_env_t *env);
