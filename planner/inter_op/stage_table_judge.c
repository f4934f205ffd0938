/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a plan of a stage table takes: its simulation under its schedule, with all that passes
 * between its stages; and what a plan that has begun takes at least, whatever follows.
 *
 * The floor goes along one micro-batch, the first. It follows from three things that hold in every
 * schedule: a pass waits for its input, a device does one pass at a time, and before its first
 * backward pass a device takes up no more micro-batches than it may hold. It needs no knowledge of
 * the order of passes besides, so it holds whichever order a schedule has.
 */

#include <math.h>
#include <stdlib.h>

#include "planner/inter_op/stage_table_private.h"

/* A stage as what passes sees it. */
static ap_passing_stage_t passing_stage(const ap_stage_table_t *table,
                                        const ap_inter_op_stage_t *stage)
{
    int state = stage->submesh * table->config_count + stage->config;
    ap_passing_stage_t seen = {.first_layer = stage->first_layer, .last_layer = stage->last_layer};

    seen.input = ap_stage_table_side(table, table->in_port[state], &seen.side);
    seen.output = ap_stage_table_side(table, table->out_port[state], &seen.side);
    seen.side.first_device = stage->first_device;
    seen.batch_axes = ap_stage_batch_axes(table->context[0]);
    return seen;
}

/* What passes from a stage to a later one, priced as everywhere, if anything does. */
static xm_status_t price_transfer(ap_stage_slicing_t *slicing, const ap_inter_op_stage_t *stages,
                                  int from, int to, ap_pipeline_step_t *step)
{
    ap_cross_mesh_t *cross_mesh = slicing->table->params.cross_mesh;
    const ap_passing_stage_t source = passing_stage(slicing->table, &stages[from]);
    const ap_passing_stage_t target = passing_stage(slicing->table, &stages[to]);
    ap_pipeline_transfer_t *priced = &slicing->transfers[step->transfer_count];
    ap_cross_mesh_cost_t cost;
    xm_status_t status;

    ap_passing_between(&slicing->passing, &source, &target, to == from + 1);
    if (slicing->passing.transfer.count == 0) {
        return XM_OK;
    }
    status = ap_cross_mesh_cost(cross_mesh, &slicing->passing.transfer, &cost);
    *priced = (ap_pipeline_transfer_t){.from = from, .to = to};
    XM_THEN(status, ap_cross_mesh_loads(cross_mesh, &slicing->passing.transfer, &slicing->links,
                                        &priced->links, &priced->link_count));
    if (status == XM_OK) {
        priced->forward = cost.forward;
        priced->backward = cost.backward;
        ++step->transfer_count;
    }
    return status;
}

/* Prices all that passes, as the finished plan has it: were a tensor left out here that the plan
 * has to move, another plan would be the faster one. Those are neighbours, and where layers read
 * what others than the one before them have made, every pair of stages. */
static xm_status_t price_transfers(ap_stage_slicing_t *slicing, const ap_inter_op_stage_t *stages,
                                   ap_pipeline_step_t *step)
{
    for (int from = 0; from + 1 < step->stage_count; ++from) {
        int end = slicing->table->skips ? step->stage_count : from + 2;

        for (int to = from + 1; to < end; ++to) {
            XM_TRY(price_transfer(slicing, stages, from, to, step));
        }
    }
    return XM_OK;
}

/* The seconds of a stage as they were priced, not as a search counts them. */
static void fill_stage(const ap_stage_table_t *table, const ap_inter_op_stage_t *stage,
                       ap_pipeline_stage_t *filled)
{
    size_t at = ap_stage_table_cell(table, stage->first_layer, stage->last_layer, stage->submesh) *
                    (size_t)table->config_count +
                (size_t)stage->config;

    *filled = (ap_pipeline_stage_t){
        .forward = table->forward[at],
        .backward = table->backward[at],
        .once = table->once[at],
        .recompute =
            table->recomputes[table->levels[stage->config % table->level_count].recompute_mode]};
}

/* Seconds that stand for a plan that its schedule cannot have. */
static const double LAST_RESORT = 1e15;

/* Simulates a plan of the search under its schedule, in the search's units. */
double ap_stage_table_judge(void *arg, const ap_inter_op_stage_t *stages, int count)
{
    ap_stage_slicing_t *slicing = arg;
    ap_stage_table_t *table = slicing->table;
    ap_pipeline_step_t step = {.kind = table->params.schedule,
                               .micro_batches = table->params.micro_batches,
                               .split = ap_cross_mesh_runtime(table->params.cross_mesh)->split,
                               .weight = ap_cross_mesh_runtime(table->params.cross_mesh)->weight,
                               .stages = slicing->stages,
                               .stage_count = count,
                               .transfers = slicing->transfers};
    /* What was not simulated is no plan. */
    double seconds = INFINITY;
    xm_status_t status = XM_OK;

    /* Whoever puts the plan under the schedule says what is wrong; any other plan is better. */
    if (!ap_schedule_is_synchronous(step.kind) && count > step.micro_batches) {
        return LAST_RESORT;
    }
    for (int i = 0; i < count; ++i) {
        fill_stage(table, &stages[i], &slicing->stages[i]);
    }
    if (!table->params.free_boundaries) {
        step.send = ap_cross_mesh_runtime(table->params.cross_mesh)->send;
        status = price_transfers(slicing, stages, &step);
    }
    XM_THEN(status, ap_pipeline_step_seconds(&step, &seconds));
    xm_arena_reset(&slicing->links);
    return status == XM_OK ? seconds / slicing->share : ap_stage_table_failed(table);
}

/* What one stage after another takes, as far as a micro-batch has to wait for it on its way to the
 * last stage and back. */
static double on_the_way(const ap_pipeline_stage_t *stage, double delayed)
{
    return stage->forward + stage->backward - ap_pipeline_weight_half(stage, delayed);
}

/* Micro-batches that a stage may take up before the first of them is back, whatever follows. */
static int64_t most_ahead(const ap_stage_table_t *table, const ap_inter_op_stage_t *stages,
                          int index, int count, bool whole)
{
    const ap_inter_op_stage_t *last = &stages[count - 1];
    const ap_submesh_t *submesh = &table->submeshes[last->submesh];
    int devices = table->params.hosts * table->params.devices_per_host - last->first_device -
                  submesh->hosts * submesh->devices;
    int layers = table->layers - 1 - last->last_layer;
    int more = whole ? 0 : layers < devices ? layers : devices;

    return ap_schedule_in_flight(table->params.schedule, index + more, count - 1 - index + more,
                                 table->params.micro_batches);
}

/* What a step takes at least, in the search's units. The objective has one period for the whole
 * plan, which says little where micro-batches are few and transfers long; this follows the first
 * micro-batch instead, whose way every schedule has in common. A stage waits for its first
 * micro-batch, does all passes of all, and its last backward pass has the way back to the first
 * stage before it. While its first micro-batch is on the way to the last stage and back it can do
 * the forward passes that its window allows, and nothing else. */
double ap_stage_table_floor(void *arg, const ap_inter_op_stage_t *stages, int count, double rest)
{
    ap_stage_slicing_t *slicing = arg;
    const ap_stage_table_t *table = slicing->table;
    double delayed = ap_stage_table_delayed(table), before = 0.0, after = (1.0 - delayed) * rest;
    double forward = 0.0, most = 0.0, end;
    bool whole = !(rest > 0.0);

    if (!ap_schedule_is_synchronous(table->params.schedule)) {
        return 0.0;
    }
    for (int i = 0; i < count; ++i) {
        fill_stage(table, &stages[i], &slicing->stages[i]);
        after += on_the_way(&slicing->stages[i], delayed) + stages[i].boundary_seconds;
    }
    end = slicing->stages[0].once + slicing->stages[0].forward + slicing->stages[0].backward -
          on_the_way(&slicing->stages[0], delayed);
    for (int i = 0; i < count; ++i) {
        const ap_pipeline_stage_t *stage = &slicing->stages[i];
        double passes = on_the_way(stage, delayed), all = stage->forward + stage->backward, idle;

        before += stages[i].boundary_seconds;
        after -= passes + stages[i].boundary_seconds;
        idle = fmax(0.0, after - (double)(most_ahead(table, stages, i, count, whole) - 1) *
                                     stage->forward);
        most = fmax(most, before + table->params.micro_batches * passes + idle + end);
        most = fmax(most, forward + table->params.micro_batches * all + idle + stage->once);
        before += passes;
        forward += stage->forward;
    }
    return (1.0 - 1e-9) * most / slicing->share;
}
