/* SPDX-License-Identifier: Apache-2.0 */
/*
 * --dry-run: plans, bounds and simulates the cases without any rank. It shares the loop
 * of offline.c with the simulated transport, and its result is a report without runs.
 */
#include "bench/reshard_bench/dry_run.h"

#include "bench/reshard_bench/offline.h"

static xm_status_t add_case(const rb_job_info_t *job, int index, const rb_prepared_t *prepared,
                            rb_report_t *report)
{
    (void)job;
    (void)index;
    return rb_report_add(report, &(rb_result_t){.prepared = prepared});
}

xm_status_t rb_dry_run(const rb_options_t *options, const rb_selection_t *selection,
                       const rb_host_map_t *hosts)
{
    uint64_t nothing_was_moved;

    return rb_offline_run(options, selection, hosts, add_case, &nothing_was_moved);
}
