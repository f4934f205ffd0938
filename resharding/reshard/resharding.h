/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file resharding.h
 * Cross-mesh resharding: everything of this folder that programs use.
 *
 * A tensor lies on a device mesh in some layout and is wanted on another mesh, or on the same, in
 * another layout. The way from one to the other has five steps; each has a header, which is its
 * reference.
 *
 *  1. Say where the data are and where they should be: a mesh (mesh.h) is an array of ranks, a
 *     sharding spec (spec.h) says which dimension is split over which mesh axis, a layout
 *     (layout.h) is both for one tensor's shape.
 *  2. Describe the network (network.h): hosts, rates, latencies; by hand or from a measured cluster
 *     profile.
 *  3. Plan (plan.h): one tensor or a batch of hundreds, a strategy and a scheduler. The plan knows
 *     its lower bound (bound.h) and its makespan in the model (simulate.h), and has been verified
 *     when you get it.
 *  4. Agree (execute.h, xm_reshard_agree()): all ranks compare what they are about to do before a
 *     byte moves.
 *  5. Run (execute.h): an executor per rank, made once, posted as often as the buffers' contents
 *     change.
 *
 * @code
 *     // rank r of a job of 16: a matrix in rows on ranks 0 … 7 becomes columns on 8 … 15
 *     int64_t shape[] = {8192, 8192};
 *     xm_mesh_parse("2x4", "0-7", 0, &from);
 *     xm_mesh_parse("2x4", "8-15", 0, &to);
 *     xm_spec_parse("S01R", &rows);
 *     xm_spec_parse("RS01", &columns);
 *     xm_layout_create(from, &rows, XM_PARTITION_EVEN, shape, &src);
 *     xm_layout_create(to, &columns, XM_PARTITION_EVEN, shape, &dst);
 *
 *     xm_plan_params_t params = XM_PLAN_PARAMS_INIT;
 *     params.src = src;
 *     params.dst = dst;
 *     params.element_size = sizeof(float);
 *     params.strategy = XM_STRATEGY_AUTO;
 *     params.scheduler = XM_SCHEDULER_AUTO;
 *     params.network = network;
 *     xm_plan_create(&params, &plan);
 *
 *     xm_executor_params_t run = {0};
 *     run.plan = plan;
 *     run.transport = xm_worker_transport(worker);
 *     run.src = my_rows;      // NULL on ranks 8 … 15
 *     run.src_bytes = xm_layout_buffer_bytes(src, r, sizeof(float));
 *     run.dst = my_columns;   // NULL on ranks 0 … 7
 *     run.dst_bytes = xm_layout_buffer_bytes(dst, r, sizeof(float));
 *     xm_reshard_agree(worker, plan, "float32");
 *     xm_executor_create(&run, &executor);
 *     for (step = 0; step < steps; ++step) {
 *         xm_executor_run(worker, executor, xm_worker_deadline(worker));
 *     }
 * @endcode
 *
 * (Every call returns a status to look at; xm_last_error() has the sentence.)
 *
 * Ownership: what a create function makes, its destroy function frees; layouts and networks given
 * to a plan are cloned, a plan given to an executor must outlive it. Threads: meshes, layouts,
 * networks and plans never change and may be shared; an executor belongs to the thread of its
 * transport. Units: bytes, elements, ranks, nanoseconds (seconds and bytes per second where a
 * network is described). Errors: comm/base/status.h.
 */
#pragma once

#include "resharding/solve.h"
#include "resharding/layout.h"
#include "resharding/execute.h"
#include "resharding/network.h"
#include "resharding/plan.h"
