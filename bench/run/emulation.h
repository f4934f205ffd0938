/**
 * @file emulation.h
 * Runs the ranks of reshard-bench or pipeline-bench in an emulated cluster, which --hosts with
 * --nic-gbps (or --uneven) describes.
 */
#ifndef RB_BENCH_RUN_EMULATION_H
#define RB_BENCH_RUN_EMULATION_H

#include "bench/cluster.h"
#include "bench/cases.h"
#include "comm/job.h"

enum { RB_EMULATION_MTU = 1500 };

/** The cluster of the options. Fails when it cannot be emulated. */
xm_status_t rb_emulation_shape(const rb_options_t *options, rb_cluster_shape_t *shape);

/**
 * xm_launch() inside the cluster of the options, which exists only meanwhile. Ranks learn their
 * host's NICs from XM_NICS.
 */
xm_status_t rb_emulation_launch(const rb_options_t *options, const xm_launch_params_t *params,
                                int *exit_code);

/** Writes e.g. "4 hosts, NICs of a host: 1 Gbit/s + 500 Mbit/s" into @p buffer, which is returned.
 */
char *rb_emulation_describe(const rb_options_t *options, char *buffer, size_t size);

#endif
