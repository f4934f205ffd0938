/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file emulation.h
 * Runs the ranks of reshard-bench or pipeline-bench in an emulated cluster, which --hosts with
 * --nic-gbps (or --uneven) describes.
 */
#pragma once

#include "bench/cluster.h"
#include "bench/cases.h"
#include "comm/job.h"

enum { RB_EMULATION_MTU = 1500 };

/** The environment variable "FIRST/HANDS@HOST" of a rank in an emulated host: it has the NICs
 * FIRST, FIRST + HANDS, … of that host. */
#define RB_EMULATION_DEALT "EMULATED_NIC"

/** The cluster of the options. Fails when it cannot be emulated. */
xm_status_t rb_emulation_shape(const rb_options_t *options, rb_cluster_shape_t *shape);

/**
 * Starts the ranks of the options, which run main() again and find themselves in a job, and returns
 * the exit status of the program, after the sentence of a failure that no rank has told. Ranks of
 * an emulated cluster learn their host's NICs from XM_NICS; the cluster exists only meanwhile.
 */
int rb_launch(const char *program, const rb_options_t *options, int ranks_per_host,
              char *const *argv);

/** Writes e.g. "4 hosts, NICs of a host: 1 Gbit/s + 500 Mbit/s" into @p buffer, which is returned.
 */
char *rb_emulation_describe(const rb_options_t *options, char *buffer, size_t size);
