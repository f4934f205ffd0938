#include "bench/offline.h"

#include "bench/rates.h"

xm_status_t rb_offline_run(const rb_options_t *options, const rb_selection_t *selection,
                           const rb_host_map_t *hosts, rb_offline_case_t *run_case, uint64_t *wrong)
{
    rb_rates_t rates;
    rb_job_info_t job = {
        .options = options, .selection = selection, .hosts = hosts, .rates = &rates};
    rb_report_t *report;
    xm_network_t *network;
    bool known;
    xm_status_t status = rb_rates_read(options, &rates, &known);

    if (status < 0) {
        return status;
    }
    if (!known) {
        rb_rates_assume(&rates);
    }
    status = rb_rates_network(&rates, hosts, &network);
    if (status < 0) {
        return status;
    }
    status = rb_report_create(&job, &report);
    if (status < 0) {
        goto destroy_network;
    }
    for (int i = 0; status == XM_OK && i < selection->count; ++i) {
        status = run_case(&job, network, i, report);
    }
    if (status == XM_OK) {
        status = rb_report_finish(report);
        *wrong = rb_report_wrong(report);
    }
    rb_report_destroy(report);

destroy_network:
    xm_network_destroy(network);
    return status;
}
