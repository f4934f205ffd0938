/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All ranks of a case in one process, on the simulated fabric. The executors are the real
 * ones; only time is virtual and moves when no rank can do anything more. With the plan's
 * order the run takes exactly the simulated makespan, so this tests executor and
 * simulation against each other.
 */
#include "bench/reshard_bench/simulated.h"

#include <stdlib.h>
#include <string.h>

#include "bench/reshard_bench/offline.h"
#include "bench/run.h"
#include "bench/report.h"
#include "cli_support.h"
#include "comm/transport/sim.h"
#include "resharding/execute.h"
#include "resharding/order.h"

/* One simulated rank in one case. */
typedef struct {
    xm_transport_t *transport;
    rb_tile_buffers_t buffers;
    xm_executor_t *executor;
    xm_checksum_t *checksum; /* while a run is verified */
    rb_chunk_times_t chunks; /* of the last run, with --trace */
    bool running;
} slot_t;

typedef struct {
    const rb_options_t *options;
    const rb_host_map_t *hosts;
    const rb_prepared_t *prepared;
    int index; /* of the case */
    xm_sim_fabric_t *fabric;
    slot_t *slots;
    int64_t start_ns; /* of the last run */
} stage_t;

/* False when no byte needs to be made or copied, so that cases larger than this machine's
 * memory can run. */
static bool looks_at_data(const rb_options_t *options)
{
    return options->validate || options->verify;
}

/* `ordered` numbers the messages in plan order, which the fabric serves them by. */
static xm_status_t open_slot(stage_t *stage, int rank)
{
    slot_t *slot = &stage->slots[rank];
    xm_executor_params_t params = {0};

    XM_TRY(xm_transport_sim_create(stage->fabric, rank, &slot->transport));
    XM_TRY(rb_tile_buffers_create(stage->prepared, rank, false, &slot->buffers));
    params.plan = stage->prepared->plan;
    params.transport = slot->transport;
    params.buffers = slot->buffers.tensors;
    params.memory_limit = stage->options->memory_limit;
    params.chunk_ran = stage->options->trace_path != NULL ? rb_chunk_times_note : NULL;
    params.arg = &slot->chunks;
    params.ordered = true;
    params.no_copy = !looks_at_data(stage->options);
    return xm_executor_create(&params, &slot->executor);
}

/* Has NICs and ports serve the messages in the plan's order, so that the run takes what
 * the plan says. */
static xm_status_t order_fabric(stage_t *stage)
{
    xm_sim_slot_t *messages;
    int64_t count;
    xm_status_t status = xm_plan_messages(stage->prepared->plan, &messages, &count);

    if (status == XM_OK) {
        status = xm_sim_fabric_set_order(stage->fabric, messages, (size_t)count);
        free(messages);
    }
    return status;
}

static xm_status_t open_stage(stage_t *stage)
{
    xm_status_t status = XM_OK;

    XM_TRY(xm_network_fabric(stage->prepared->network, !looks_at_data(stage->options),
                             &stage->fabric));
    XM_TRY(order_fabric(stage));
    stage->slots = calloc((size_t)stage->hosts->ranks, sizeof(*stage->slots));
    XM_NEED_MEMORY(stage->slots, "%d simulated ranks", stage->hosts->ranks);
    for (int r = 0; status == XM_OK && r < stage->hosts->ranks; ++r) {
        status = open_slot(stage, r);
    }
    return status;
}

/* Executors go first, as they use the buffers and the transports. */
static void close_stage(stage_t *stage)
{
    for (int r = 0; stage->slots != NULL && r < stage->hosts->ranks; ++r) {
        xm_executor_destroy(stage->slots[r].executor);
        free(stage->slots[r].chunks.records);
        rb_tile_buffers_clear(&stage->slots[r].buffers);
        xm_transport_destroy(stage->slots[r].transport);
    }
    free(stage->slots);
    xm_sim_fabric_destroy(stage->fabric);
}

static bool may_sleep(const slot_t *slot)
{
    return slot->checksum != NULL ? xm_checksum_may_sleep(slot->checksum)
                                  : xm_executor_may_sleep(slot->executor);
}

/* Lets every rank do what it can. *running counts those that have not finished; *moved is
 * false when only the clock can bring anything about. */
static xm_status_t advance_all(stage_t *stage, int *running, bool *moved)
{
    *running = 0;
    *moved = false;
    for (int r = 0; r < stage->hosts->ranks; ++r) {
        slot_t *slot = &stage->slots[r];
        xm_status_t status;

        if (!slot->running) {
            continue;
        }
        *moved = xm_transport_progress(slot->transport) > 0 || *moved;
        status = slot->checksum != NULL ? xm_checksum_advance(slot->checksum)
                                        : xm_executor_advance(slot->executor);
        if (status < 0) {
            return status;
        }
        slot->running = status == XM_IN_PROGRESS;
        *running += slot->running;
        *moved = !slot->running || !may_sleep(slot) || *moved;
    }
    return XM_OK;
}

/*
 * Drives all ranks until each has finished what it was given to do. The clock moves only
 * when nobody can move; when it cannot move either, the ranks wait for each other for
 * ever, which is an internal error.
 */
static xm_status_t drive(stage_t *stage)
{
    int running = stage->hosts->ranks;
    xm_status_t status = XM_OK;

    for (int r = 0; r < stage->hosts->ranks; ++r) {
        stage->slots[r].running = true;
    }
    while (status == XM_OK && running > 0) {
        bool moved;

        status = advance_all(stage, &running, &moved);
        if (status == XM_OK && running > 0 && !moved && !xm_sim_fabric_step(stage->fabric)) {
            status = xm_error_set(XM_ERR_INTERNAL,
                                  "case %s: %d simulated ranks wait for each other for ever",
                                  stage->prepared->one->name, running);
        }
    }
    return status;
}

static xm_status_t verify_run(stage_t *stage)
{
    xm_status_t status = XM_OK;

    for (int r = 0; status == XM_OK && r < stage->hosts->ranks; ++r) {
        status = xm_checksum_create(stage->slots[r].executor, &stage->slots[r].checksum);
    }
    XM_THEN(status, drive(stage));
    for (int r = 0; r < stage->hosts->ranks; ++r) {
        xm_checksum_destroy(stage->slots[r].checksum);
        stage->slots[r].checksum = NULL;
    }
    return status;
}

static xm_status_t run_once(stage_t *stage, int run, double *seconds, uint64_t *wrong)
{
    uint64_t salt = rb_pattern_salt(stage->options->seed, stage->index, run);
    xm_status_t status = XM_OK;

    for (int r = 0; r < stage->hosts->ranks; ++r) {
        stage->slots[r].chunks.count = 0;
        if (looks_at_data(stage->options)) {
            rb_tile_buffers_fill(&stage->slots[r].buffers, salt);
        }
    }
    /* Virtual time starts here; filling the buffers took none of it. */
    stage->start_ns = xm_sim_fabric_now(stage->fabric);
    for (int r = 0; status == XM_OK && r < stage->hosts->ranks; ++r) {
        status = xm_executor_post(stage->slots[r].executor);
    }
    XM_THEN(status, drive(stage));
    *seconds = (double)(xm_sim_fabric_now(stage->fabric) - stage->start_ns) * 1e-9;
    if (status == XM_OK && stage->options->verify) {
        status = verify_run(stage);
    }
    for (int r = 0; status == XM_OK && stage->options->validate && r < stage->hosts->ranks; ++r) {
        *wrong += rb_tile_buffers_check(&stage->slots[r].buffers, salt);
    }
    return status;
}

static xm_status_t run_all(stage_t *stage, rb_result_t *result)
{
    const rb_options_t *options = stage->options;
    xm_cli_progress_t *progress = xm_cli_progress_create("reshard-bench");
    xm_status_t status = XM_OK;

    for (int i = 0; status == XM_OK && i < options->warmup + options->iterations; ++i) {
        double seconds;

        xm_cli_progress_update(progress, (double)i / (options->warmup + options->iterations),
                               stage->prepared->one->name);
        status = run_once(stage, i, &seconds, &result->wrong);
        if (status == XM_OK && i >= options->warmup) {
            result->seconds[result->runs++] = seconds;
        }
    }
    xm_cli_progress_destroy(progress);
    return status;
}

/* The ranks' records follow each other, as they would when gathered from processes. */
static xm_status_t collect_records(const stage_t *stage, rb_result_t *result)
{
    for (int r = 0; r < stage->hosts->ranks; ++r) {
        rb_record_t *own, *grown;
        size_t count;

        XM_TRY(rb_records_take(stage->prepared->plan, stage->slots[r].executor, r, stage->start_ns,
                               &stage->slots[r].chunks, &own, &count));
        grown = realloc(result->records, (result->record_count + count + 1) * sizeof(*grown));
        if (grown == NULL) {
            free(own);
            return XM_NO_MEMORY("the records of rank %d", r);
        }
        memcpy(grown + result->record_count, own, count * sizeof(*own));
        free(own);
        result->records = grown;
        result->record_count += count;
    }
    return XM_OK;
}

static xm_status_t run_case(const rb_job_info_t *job, int index, const rb_prepared_t *prepared,
                            rb_report_t *report)
{
    const rb_options_t *options = job->options;
    stage_t stage = {.options = options, .hosts = job->hosts, .prepared = prepared, .index = index};
    rb_result_t result = {.prepared = prepared,
                          .validated = options->validate,
                          .verified = options->verify,
                          .in_order = true};
    xm_status_t status;

    result.seconds = malloc((size_t)options->iterations * sizeof(*result.seconds));
    status =
        result.seconds != NULL ? open_stage(&stage) : XM_NO_MEMORY("%d times", options->iterations);
    XM_THEN(status, run_all(&stage, &result));
    if (status == XM_OK && (options->trace_path != NULL || options->plot_path != NULL)) {
        status = collect_records(&stage, &result);
    }
    close_stage(&stage);
    XM_THEN(status, rb_report_add(report, &result));
    rb_result_clear(&result);
    return status;
}

xm_status_t rb_simulated_run(const rb_options_t *options, const rb_selection_t *selection,
                             const rb_host_map_t *hosts, uint64_t *wrong)
{
    return rb_offline_run(options, selection, hosts, run_case, wrong);
}
