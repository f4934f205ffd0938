/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file spoiler.h
 * A simulated network that flips bits: what is received is spoiled between the transport and
 * whoever waits for it, in data, hashes and answers alike. One job at a time.
 */
#pragma once

#include "tests/resharding/execute/sim_job.h"

/* Puts the spoiler between the job's ranks and their transports, which count from now on. Of
 * `one_in` messages it spoils one. */
void spoiler_attach(sim_job_t *job, uint64_t seed, int one_in);
/* What comes from here on is left alone. */
void spoiler_rest(void);

/* Spoiled messages that must be sent again: answers count by most of their bits. */
int64_t spoiler_hits(void);
/* What the ranks have counted. */
int64_t spoiler_resends(void);

/* After the job is gone. */
void spoiler_release(void);
