/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file crossmesh.h
 * Cross-mesh resharding: everything that programs use of libcrossmesh.
 *
 * A tensor lies on a device mesh in some layout and is wanted on another mesh, or on the same, in
 * another layout. The way from one to the other has five steps; each has a header, which is its
 * reference.
 *
 *  1. Join the job (job.h, worker.h): a worker is this process's rank.
 *  2. Say where the data are and where they should be: a mesh (mesh.h) is an array of ranks, a
 *     layout (layout.h) says how one tensor is split over it.
 *  3. Describe the network (network.h): hosts, rates, latencies; by hand, from a measured cluster
 *     profile (profile.h), or from what the worker knows of its hosts.
 *  4. Plan (plan.h): one tensor or a batch of hundreds, a strategy and a scheduler. The plan knows
 *     its lower bound and its simulated time, and has been verified when you get it.
 *  5. Reshard (reshard.h): made once for the buffers of this rank, run as often as their contents
 *     change. When a rank dies: group.h. Small messages besides: message.h. Buffers that ranks of
 *     one host can share: shared_memory.h. What has been moved: counters.h.
 *     Narrower types for what is moved: convert.h.
 *
 * A reshard takes the third and the fourth step itself when it is given no plan: reshard.h has the
 * shortest way.
 *
 * @code
 *     // Ranks 0 … 7 hold a matrix of floats in rows; ranks 8 … 15 want it in columns.
 *     xm_status_t plan_transpose(const xm_network_t *network, xm_plan_t **plan)
 *     {
 *         const int64_t shape[] = {8192, 8192};
 *         xm_mesh_t *from = NULL, *to = NULL;
 *         xm_layout_t *src = NULL, *dst = NULL;
 *         xm_spec_t rows, columns;
 *         xm_plan_params_t params = XM_PLAN_PARAMS_INIT;
 *         xm_status_t status = XM_ERR_INVALID_ARGUMENT;
 *
 *         if (xm_mesh_parse("2x4", "0-7", 0, &from) == XM_OK &&
 *             xm_mesh_parse("2x4", "8-15", 0, &to) == XM_OK &&
 *             xm_spec_parse("S01R", &rows) == XM_OK &&
 *             xm_spec_parse("RS01", &columns) == XM_OK &&
 *             xm_layout_create(from, &rows, XM_PARTITION_EVEN, shape, &src) == XM_OK &&
 *             xm_layout_create(to, &columns, XM_PARTITION_EVEN, shape, &dst) == XM_OK) {
 *             params.src = src;
 *             params.dst = dst;
 *             params.element_size = (int64_t)sizeof(float);
 *             params.network = network;
 *             status = xm_plan_create(&params, plan);
 *         }
 *         xm_layout_destroy(src); // plans keep what they need
 *         xm_layout_destroy(dst);
 *         xm_mesh_destroy(from);
 *         xm_mesh_destroy(to);
 *         return status;
 *     }
 * @endcode
 *
 * Rules for all of it. Ownership: what a create function makes, its destroy function frees, and
 * destroy functions accept NULL; texts and arrays that are returned belong to the object, unless
 * something else is said. Threads: meshes, layouts, networks, profiles and plans never change and
 * may be shared; a worker, its reshards and its messages belong to one thread at a time. Structs
 * that begin with `struct_size` are started from their _INIT macro; that keeps programs and
 * libraries of different versions together (docs/abi.md). Errors: status.h.
 */
#ifndef CROSSMESH_H
#define CROSSMESH_H

#include <crossmesh/convert.h>
#include <crossmesh/counters.h>
#include <crossmesh/group.h>
#include <crossmesh/job.h>
#include <crossmesh/layout.h>
#include <crossmesh/meeting.h>
#include <crossmesh/mesh.h>
#include <crossmesh/message.h>
#include <crossmesh/network.h>
#include <crossmesh/plan.h>
#include <crossmesh/profile.h>
#include <crossmesh/reshard.h>
#include <crossmesh/update.h>
#include <crossmesh/shared_memory.h>
#include <crossmesh/status.h>
#include <crossmesh/version.h>
#include <crossmesh/worker.h>

#endif
