/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes a parallel plan ready to run: simulates it, plans the resharding of each
 * direction over each boundary, and checks that both ends of a boundary number their
 * messages alike. All of it is computed on every rank from the same inputs, so nothing
 * has to be sent around.
 */
#include "bench/pipeline/pipeline.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Whether an entry of the schedule's lists hands over, or takes, a message of a way. */
static bool is_of_way(const ap_schedule_op_t *op, const rb_way_t *way)
{
    bool gradients = way->from > way->to;

    switch (op->pass) {
    case AP_PASS_SEND_ACTIVATION:
        return !gradients && op->stage == way->from;
    case AP_PASS_RECEIVE_ACTIVATION:
        return !gradients && op->stage == way->to;
    case AP_PASS_SEND_GRADIENT:
        return gradients && op->stage == way->from;
    case AP_PASS_RECEIVE_GRADIENT:
        return gradients && op->stage == way->to;
    default:
        return false;
    }
}

/* The micro-batch of message @p number of a way in a stage's list; −1 past the last. */
static int message_at(const ap_schedule_t *schedule, int stage, const rb_way_t *way, int number)
{
    for (int i = 0; i < schedule->op_count[stage]; ++i) {
        const ap_schedule_op_t *op = &schedule->ops[stage][i];

        if (is_of_way(op, way) && number-- == 0) {
            return op->micro_batch;
        }
    }
    return -1;
}

/* Counts a way's messages. They are told apart by their number only, so both ends must
 * have the same order. Quadratic in the length of a list, which is short. */
static xm_status_t count_messages(const ap_schedule_t *schedule, rb_way_t *way)
{
    for (;;) {
        int sent = message_at(schedule, way->from, way, way->messages);
        int received = message_at(schedule, way->to, way, way->messages);

        if (sent != received) {
            return XM_UNSUPPORTED("%s: message %d from stage %d to stage %d is of micro-batch %d "
                                  "for the one and %d for the other",
                                  ap_schedule_name(schedule->kind), way->messages, way->from,
                                  way->to, sent, received);
        }
        if (sent < 0) {
            return XM_OK;
        }
        ++way->messages;
    }
}

/* A boundary's meshes have two axes, as the planner's have. */
static xm_status_t make_layout(const ap_plan_side_t *side, const char *cuts, const int64_t *shape,
                               const xm_layout_t **layout)
{
    xm_layout_t *made = NULL;
    xm_mesh_t *mesh;
    xm_spec_t spec;
    xm_status_t status;

    XM_TRY(xm_mesh_create(2, side->shape, side->devices, &mesh));
    status = xm_spec_parse(cuts, &spec);
    XM_THEN(status, xm_layout_create(mesh, &spec, XM_PARTITION_EVEN, shape, &made));
    xm_mesh_destroy(mesh);
    *layout = made;
    return status;
}

/* The batch of a way: all tensors of the boundary, in its direction. */
static xm_status_t fill_batch(const ap_plan_boundary_t *boundary, rb_way_t *way, xm_tensor_t *batch)
{
    bool back = way->from > way->to;

    for (int i = 0; i <= boundary->more_count; ++i) {
        const ap_plan_tensor_t tensor = ap_plan_boundary_tensor(boundary, i);
        size_t length = strlen(way->dtype);

        (void)snprintf(way->dtype + length, sizeof(way->dtype) - length, "%s%s", i > 0 ? "," : "",
                       tensor.dtype);
        batch[i].element_bits = 8 * (int)tensor.element_size;
        XM_TRY(make_layout(way->src, back ? tensor.dst : tensor.src, tensor.shape, &batch[i].src));
        XM_TRY(make_layout(way->dst, back ? tensor.src : tensor.dst, tensor.shape, &batch[i].dst));
    }
    return XM_OK;
}

/* The boundary's own strategy and scheduler are used, as the plan's prices assume them. */
static xm_status_t plan_way(const ap_plan_boundary_t *boundary, const xm_network_t *network,
                            rb_way_t *way)
{
    xm_plan_params_t params = XM_PLAN_PARAMS_INIT;
    xm_tensor_t *batch = calloc((size_t)boundary->more_count + 1, sizeof(*batch));
    xm_status_t status = xm_strategy_parse(boundary->strategy, &params.strategy);

    XM_NEED_MEMORY(batch, "%d tensors", boundary->more_count + 1);
    XM_THEN(status, xm_scheduler_parse(boundary->scheduler, &params.scheduler));
    XM_THEN(status, fill_batch(boundary, way, batch));
    if (status == XM_OK) {
        params.tensors = batch;
        params.tensor_count = boundary->more_count + 1;
        params.network = network;
        status = xm_plan_create(&params, &way->plan);
    }
    for (int i = 0; i <= boundary->more_count; ++i) {
        xm_layout_destroy((xm_layout_t *)batch[i].dst);
        xm_layout_destroy((xm_layout_t *)batch[i].src);
    }
    free(batch);
    return status;
}

/* Two ways a boundary: activations forward, gradients back with the sides exchanged. */
static xm_status_t make_ways(const rb_pipeline_params_t *params, rb_pipeline_t *pipeline)
{
    int count = 2 * ap_plan_boundaries(pipeline->plan);
    xm_status_t status = XM_OK;

    pipeline->ways = calloc((size_t)count + 1, sizeof(*pipeline->ways));
    XM_NEED_MEMORY(pipeline->ways, "%d reshardings", count);
    pipeline->way_count = count;
    for (int w = 0; w < count && status == XM_OK; ++w) {
        const ap_plan_boundary_t *boundary = ap_plan_boundary(pipeline->plan, w / 2);
        bool back = w % 2 == 1;
        rb_way_t *way = &pipeline->ways[w];

        way->src = back ? &boundary->dst : &boundary->src;
        way->dst = back ? &boundary->src : &boundary->dst;
        way->from = back ? boundary->to : boundary->from;
        way->to = back ? boundary->from : boundary->to;
        status = plan_way(boundary, params->network, way);
        XM_THEN(status, count_messages(pipeline->schedule, way));
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
    XM_TRY(ap_schedule_find(name, &simulation.kind));

    XM_TRY(ap_plan_check_schedule(simulation.kind));
    simulation.profile = params->profile;
    simulation.micro_batches = params->micro_batches;
    return ap_plan_simulate(pipeline->plan, &simulation, &pipeline->schedule, &pipeline->predicted);
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

    XM_NEED_MEMORY(all, "the times of %zu stages", stages);
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

    XM_NEED_MEMORY(pipeline, "%s", params->path);
    status = ap_plan_load(params->path, &pipeline->plan);
    if (status < 0) {
        goto destroy_pipeline; /* the sentence names the file */
    }
    status = simulate(params, pipeline);
    XM_THEN(status, simulate_free(pipeline));
    XM_THEN(status, make_ways(params, pipeline));
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
