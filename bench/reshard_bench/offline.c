/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What dry runs and simulations have in common: rates from the options or assumed, one
 * network, all plans beforehand, then case by case into a report. They differ only in
 * what is done with a prepared case.
 */
#include "bench/reshard_bench/offline.h"

#include "bench/cases.h"
#include "bench/run.h"

/* Each plan is freed before the next case is run, so that a suite needs the memory of its
 * largest case. */
static xm_status_t run_all(const rb_job_info_t *job, rb_prepared_list_t *list,
                           rb_offline_case_t *run_case, uint64_t *wrong)
{
    rb_report_t *report;
    xm_status_t status = XM_OK;

    XM_TRY(rb_report_create(job, &report));
    for (int i = 0; status == XM_OK && i < job->selection->count; ++i) {
        rb_prepared_t prepared;

        status = rb_prepared_list_take(list, i, &prepared);
        if (status == XM_OK) {
            status = run_case(job, i, &prepared, report);
            rb_prepared_clear(&prepared);
        }
    }
    if (status == XM_OK) {
        status = rb_report_finish(report);
        *wrong = rb_report_wrong(report);
    }
    rb_report_destroy(report);
    return status;
}

xm_status_t rb_offline_run(const rb_options_t *options, const rb_selection_t *selection,
                           const rb_host_map_t *hosts, rb_offline_case_t *run_case, uint64_t *wrong)
{
    rb_rates_t rates = {0};
    rb_job_info_t job = {
        .options = options, .selection = selection, .hosts = hosts, .rates = &rates};
    rb_prepared_list_t list;
    xm_network_t *network;
    bool known;
    xm_status_t status;

    XM_TRY(rb_rates_read(options, &rates, &known));
    /* Without ranks nothing can be probed. */
    if (!known) {
        rb_rates_assume(selection, &rates);
    }
    rb_rates_set_uplinks(options, &rates);
    /* The simulated fabric has no processors. */
    rates.cores_per_host = options->dry_run ? rates.cores_per_host : 0;
    XM_TRY(rb_rates_network(&rates, hosts, NULL, &network));
    status = rb_prepared_list_create(selection, hosts, network, &list);
    if (status == XM_OK) {
        status = run_all(&job, &list, run_case, wrong);
        rb_prepared_list_clear(&list);
    }
    xm_network_destroy(network);
    return status;
}

/* The result of a dry run is a report without runs. */
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
