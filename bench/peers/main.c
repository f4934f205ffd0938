/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reshard-peer-mpi: reshards tensors as users of MPI do, on the ranks of mpirun. It takes
 * cases, buffers and reports from reshard-bench, so both measure the same bytes between
 * the same ranks, and only the means of moving them differ.
 */
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#include "bench/run.h"
#include "bench/peers/mpi_hosts.h"
#include "bench/peers/peer_report.h"
#include "bench/peers/request.h"
#include "bench/peers/timing.h"
#include "bench/peers/together.h"
#include "bench/cases.h"
#include "comm/base.h"

typedef struct {
    int rank;
    rb_peer_request_t request;
    rb_selection_t selection;
    rb_host_map_t hosts;
    rb_rank_info_t *ranks;
    rb_peer_job_t info;
    rb_peer_report_t *report; /* rank 0 */
    uint64_t wrong;
} job_t;

/* A method's failure ends the case on all ranks. */
static xm_status_t run_method(job_t *job, const rb_peer_slot_t *slot, int index,
                              const rb_peer_method_t *method)
{
    rb_peer_result_t result;
    xm_status_t status = XM_OK;

    XM_TRY(rb_peer_time(slot, method, &job->request.options, index, &result));
    job->wrong += result.wrong;
    if (job->report != NULL) {
        status = rb_peer_report_add(job->report, slot->one, method, &result);
    }
    rb_peer_result_clear(&result);
    return rb_peer_agree(status);
}

static xm_status_t run_case(job_t *job, int index)
{
    rb_peer_slot_t slot = {0};
    xm_status_t status = rb_peer_agree(
        rb_peer_slot_create(&job->selection.cases[index], &job->hosts, job->rank, &slot));

    for (int m = 0; status == XM_OK && m < job->request.method_count; ++m) {
        status = run_method(job, &slot, index, job->request.methods[m]);
    }
    rb_peer_slot_clear(&slot);
    return status;
}

/* Variants of a case stand side by side and differ in its plan, which means nothing to a
 * peer. */
static bool is_variant(const rb_selection_t *selection, int index)
{
    return index > 0 && strcmp(selection->cases[index].name, selection->cases[index - 1].name) == 0;
}

static xm_status_t run_cases(job_t *job)
{
    xm_status_t status = XM_OK;

    job->info = (rb_peer_job_t){&job->request.options, &job->hosts, job->ranks};
    if (job->rank == 0) {
        status = rb_peer_report_create(&job->info, &job->report);
    }
    status = rb_peer_agree(status);
    for (int i = 0; status == XM_OK && i < job->selection.count; ++i) {
        status = is_variant(&job->selection, i) ? XM_OK : run_case(job, i);
    }
    if (status == XM_OK && job->report != NULL) {
        status = rb_peer_report_finish(job->report);
    }
    return rb_peer_agree(status);
}

/* Checks everything that can be wrong with the cases, before anything moves. */
static xm_status_t check_cases(const job_t *job)
{
    for (int i = 0; i < job->selection.count; ++i) {
        if (job->selection.cases[i].model != NULL) {
            return XM_UNSUPPORTED("case %s has many tensors, and the peers move one at a time",
                                  job->selection.cases[i].name);
        }
    }
    return rb_cluster_check(&job->selection, &job->hosts);
}

/* The watchdog starts before the first wait that MPI would make without a limit. */
static xm_status_t run(job_t *job, int argc, char **argv)
{
    xm_status_t status;

    XM_TRY(rb_peer_agree(xm_cli_check_settings(job->rank == 0, "reshard-peer-mpi")));
    rb_peer_watchdog_start();
    status = rb_peer_agree(rb_peer_request_parse(argc, argv, job->rank == 0, &job->request));
    if (status < 0 || job->request.finished) {
        return status;
    }
    XM_TRY(rb_peer_agree(rb_select(&job->request.options, &job->selection)));
    XM_TRY(rb_peer_agree(
        rb_peer_hosts(job->request.options.ranks_per_host, &job->hosts, &job->ranks)));
    XM_TRY(rb_peer_agree(check_cases(job)));
    return run_cases(job);
}

int main(int argc, char **argv)
{
    job_t job = {0};
    int exit_status = EXIT_SUCCESS;
    xm_status_t status;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &job.rank);
    status = run(&job, argc, argv);
    if (status < 0 && job.rank == 0) {
        exit_status = xm_cli_fail("reshard-peer-mpi", status);
    } else if (status < 0 || job.wrong > 0) {
        exit_status = EXIT_FAILURE;
    }
    rb_peer_report_destroy(job.report);
    free(job.ranks);
    rb_host_map_clear(&job.hosts);
    rb_selection_clear(&job.selection);
    rb_peer_request_clear(&job.request);
    /* Finalizing waits for all ranks too, so the watchdog ends last. */
    MPI_Finalize();
    rb_peer_watchdog_stop();
    return exit_status;
}
