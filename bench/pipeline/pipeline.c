/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes a parallel plan ready to run: simulates it, plans the resharding of each
 * direction over each boundary, and checks that both ends of a boundary number their
 * messages alike. All of it is computed on every rank from the same inputs, so nothing
 * has to be sent around.
 */
#include "bench/pipeline/pipeline.h"

#include <inttypes.h>
#include <stdlib.h>

/* The way that a transfer takes, by its number in the pipeline; −1 for passes. */
static int way_of(const ap_schedule_op_t *op, bool *sends)
{
    *sends = op->pass == AP_PASS_SEND_ACTIVATION || op->pass == AP_PASS_SEND_GRADIENT;
    switch (op->pass) {
    case AP_PASS_SEND_ACTIVATION:
        return 2 * op->stage;
    case AP_PASS_RECEIVE_ACTIVATION:
        return 2 * (op->stage - 1);
    case AP_PASS_SEND_GRADIENT:
        return 2 * (op->stage - 1) + 1;
    case AP_PASS_RECEIVE_GRADIENT:
        return 2 * op->stage + 1;
    default:
        return -1;
    }
}

/* The micro-batch of message @p number of a way in a stage's list; −1 past the last. */
static int message_at(const ap_schedule_t *schedule, int stage, int way, int number)
{
    for (int i = 0; i < schedule->op_count[stage]; ++i) {
        const ap_schedule_op_t *op = &schedule->ops[stage][i];
        bool sends;

        if (way_of(op, &sends) == way && number-- == 0) {
            return op->micro_batch;
        }
    }
    return -1;
}

/* Counts a way's messages. They are told apart by their number only, so both ends must
 * have the same order. Quadratic in the length of a list, which is short. */
static xm_status_t count_messages(const ap_schedule_t *schedule, int index, rb_way_t *way)
{
    for (;;) {
        int sent = message_at(schedule, way->from, index, way->messages);
        int received = message_at(schedule, way->to, index, way->messages);

        if (sent != received) {
            return xm_error_set(XM_ERR_UNSUPPORTED,
                                "%s: message %d from stage %d to stage %d is of micro-batch %d for "
                                "the one and %d for the other",
                                ap_schedule_name(schedule->kind), way->messages, way->from, way->to,
                                sent, received);
        }
        if (sent < 0) {
            return XM_OK;
        }
        ++way->messages;
    }
}

/* A boundary's meshes have two axes, as the planner's have. */
static xm_status_t make_layout(const ap_plan_boundary_t *boundary, const ap_plan_side_t *side,
                               xm_layout_t **layout)
{
    xm_mesh_t *mesh;
    xm_spec_t spec;
    xm_status_t status = xm_mesh_create(2, side->shape, side->devices, &mesh);

    if (status < 0) {
        return status;
    }
    status = xm_spec_parse(side->spec, &spec);
    if (status == XM_OK) {
        status = xm_layout_create(mesh, &spec, XM_PARTITION_EVEN, boundary->shape, layout);
    }
    xm_mesh_destroy(mesh);
    return status;
}

/* The boundary's own strategy and scheduler are used, as the plan's prices assume them. */
static xm_status_t plan_way(const ap_plan_boundary_t *boundary, const xm_network_t *network,
                            rb_way_t *way)
{
    xm_plan_params_t params = XM_PLAN_PARAMS_INIT;
    xm_layout_t *src = NULL, *dst = NULL;
    xm_status_t status = xm_strategy_parse(boundary->strategy, &params.strategy);

    if (status == XM_OK) {
        status = xm_scheduler_parse(boundary->scheduler, &params.scheduler);
    }
    if (status == XM_OK) {
        status = make_layout(boundary, way->src, &src);
    }
    if (status == XM_OK) {
        status = make_layout(boundary, way->dst, &dst);
    }
    if (status == XM_OK) {
        params.src = src;
        params.dst = dst;
        params.element_size = boundary->element_size;
        params.network = network;
        status = xm_plan_create(&params, &way->plan);
    }
    xm_layout_destroy(dst);
    xm_layout_destroy(src);
    return status;
}

/* Two ways a boundary: activations forward, gradients back with the sides exchanged. */
static xm_status_t make_ways(const rb_pipeline_params_t *params, rb_pipeline_t *pipeline)
{
    int count = 2 * ap_plan_boundaries(pipeline->plan);
    xm_status_t status = XM_OK;

    pipeline->ways = calloc((size_t)count + 1, sizeof(*pipeline->ways));
    if (pipeline->ways == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for %d reshardings", count);
    }
    pipeline->way_count = count;
    for (int w = 0; w < count && status == XM_OK; ++w) {
        const ap_plan_boundary_t *boundary = ap_plan_boundary(pipeline->plan, w / 2);
        bool back = w % 2 == 1;
        rb_way_t *way = &pipeline->ways[w];

        way->dtype = boundary->dtype;
        way->src = back ? &boundary->dst : &boundary->src;
        way->dst = back ? &boundary->src : &boundary->dst;
        way->from = back ? w / 2 + 1 : w / 2;
        way->to = back ? w / 2 : w / 2 + 1;
        status = plan_way(boundary, params->network, way);
        if (status == XM_OK) {
            status = count_messages(pipeline->schedule, w, way);
        }
        if (status < 0) {
            status = xm_error_prefix(status, "boundary %d", w / 2);
        }
    }
    return status;
}

/* A schedule other than the plan's is checked before it is simulated. */
static xm_status_t simulate(const rb_pipeline_params_t *params, rb_pipeline_t *pipeline)
{
    ap_plan_simulation_t simulation = AP_PLAN_SIMULATION_INIT;
    const char *name =
        params->schedule != NULL ? params->schedule : ap_plan_info(pipeline->plan)->schedule;
    xm_status_t status = ap_schedule_find(name, &simulation.kind);

    if (status == XM_OK) {
        status = ap_plan_check_schedule(simulation.kind);
    }
    if (status == XM_OK) {
        simulation.profile = params->profile;
        simulation.micro_batches = params->micro_batches;
        status = ap_plan_simulate(pipeline->plan, &simulation, &pipeline->schedule,
                                  &pipeline->predicted);
    }
    return status;
}

/* Simulates the same passes with transfers that take no time: the difference is what
 * transfers cost. */
static xm_status_t simulate_free(rb_pipeline_t *pipeline)
{
    const ap_schedule_t *schedule = pipeline->schedule;
    ap_pipeline_times_t times = AP_PIPELINE_TIMES_INIT;
    size_t stages = (size_t)schedule->stages;
    int64_t *all = calloc(4 * stages, sizeof(*all));
    int64_t *const of_pass[] = {all, all + stages, all + 2 * stages, all + 3 * stages};
    ap_pipeline_run_t *run;
    xm_status_t status;

    if (all == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for the times of %zu stages", stages);
    }
    for (int stage = 0; stage < schedule->stages; ++stage) {
        for (int i = 0; i < schedule->op_count[stage]; ++i) {
            const ap_pipeline_span_t *span = &pipeline->predicted->spans[stage][i];
            ap_pass_t pass = schedule->ops[stage][i].pass;

            if (pass <= AP_PASS_UPDATE) {
                of_pass[pass][stage] = span->end_ns - span->start_ns;
            }
        }
    }
    times.forward = of_pass[AP_PASS_FORWARD];
    times.backward = of_pass[AP_PASS_BACKWARD];
    times.weight = of_pass[AP_PASS_WEIGHT]; /* 0, and part of `backward`, unless split */
    times.update = of_pass[AP_PASS_UPDATE];
    status = ap_pipeline_simulate(schedule, &times, &run);
    if (status == XM_OK) {
        pipeline->free_ns = run->step_ns;
        ap_pipeline_run_destroy(run);
    }
    free(all);
    return status;
}

/* On a failure the file is named in front of the sentence. */
xm_status_t rb_pipeline_create(const rb_pipeline_params_t *params, rb_pipeline_t **result)
{
    rb_pipeline_t *pipeline = calloc(1, sizeof(*pipeline));
    xm_status_t status;

    if (pipeline == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for %s", params->path);
    }
    status = ap_plan_load(params->path, &pipeline->plan);
    if (status < 0) {
        goto destroy_pipeline; /* the sentence names the file */
    }
    status = simulate(params, pipeline);
    if (status == XM_OK) {
        status = simulate_free(pipeline);
    }
    if (status == XM_OK) {
        status = make_ways(params, pipeline);
    }
    if (status == XM_OK) {
        *result = pipeline;
        return XM_OK;
    }
    status = xm_error_prefix(status, "%s", params->path);

destroy_pipeline:
    rb_pipeline_destroy(pipeline);
    return status;
}

/* A rank may belong to no stage when the job is larger than the plan. */
int rb_pipeline_stage_of(const rb_pipeline_t *pipeline, int rank, bool *first)
{
    for (int s = 0; s < ap_plan_stages(pipeline->plan); ++s) {
        const ap_plan_stage_t *stage = ap_plan_stage(pipeline->plan, s);

        for (int i = 0; i < stage->hosts * stage->devices_per_host; ++i) {
            if (stage->devices[i] == rank) {
                *first = i == 0;
                return s;
            }
        }
    }
    *first = false;
    return -1;
}

/* Schedules that span several batches are counted for one. */
uint64_t rb_pipeline_net_bytes(const rb_pipeline_t *pipeline)
{
    uint64_t bytes = 0;

    for (int w = 0; w < pipeline->way_count; ++w) {
        const rb_way_t *way = &pipeline->ways[w];

        bytes += (uint64_t)way->messages / (uint64_t)pipeline->schedule->batches *
                 xm_plan_net_bytes(way->plan);
    }
    return bytes;
}

void rb_pipeline_destroy(rb_pipeline_t *pipeline)
{
    if (pipeline == NULL) {
        return;
    }
    for (int w = 0; w < pipeline->way_count; ++w) {
        xm_plan_destroy(pipeline->ways[w].plan);
    }
    free(pipeline->ways);
    ap_pipeline_run_destroy(pipeline->predicted);
    ap_schedule_destroy(pipeline->schedule);
    ap_plan_destroy(pipeline->plan);
    free(pipeline);
}
