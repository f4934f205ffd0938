#include "bench/dry_run.h"

#include "bench/offline.h"

static xm_status_t plan_case(const rb_job_info_t *job, const xm_network_t *network, int index,
                             rb_report_t *report)
{
    rb_prepared_t prepared;
    xm_status_t status = rb_prepare(&job->selection->cases[index], job->options->partition,
                                    job->hosts, network, &prepared);

    if (status < 0) {
        return status;
    }
    status = rb_report_add(report, &(rb_result_t){.prepared = &prepared});
    rb_prepared_clear(&prepared);
    return status;
}

xm_status_t rb_dry_run(const rb_options_t *options, const rb_selection_t *selection,
                       const rb_host_map_t *hosts)
{
    uint64_t nothing_was_moved;

    return rb_offline_run(options, selection, hosts, plan_case, &nothing_was_moved);
}
