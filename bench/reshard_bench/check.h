/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file check.h
 * reshard-bench --check: the doctor (comm/doctor.h), as a table or a JSON document.
 */
#pragma once

#include "bench/cases.h"
#include "comm/job.h"

/**
 * Examines this machine, or with @p env the job that this process is a rank of; rank 0 prints.
 * Returns the exit status: 1 when something fails. Ranks other than 0 end with 0, so that a
 * launcher reports what rank 0 found.
 */
int rb_check_run(const rb_options_t *options, const xm_job_env_t *env);
