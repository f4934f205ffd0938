/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file autopar.h
 * libautopar: parallel plans for models on clusters. All of its headers.
 *
 * What a runtime does: read a model (frontend.h) or build its graph (graph.h), read the measured
 * cluster (profile.h), and ask for a pipeline plan (planner.h, plan.h) or for the sharding of one
 * mesh (shard.h). A plan can be simulated (simulate.h), explained (explain.h), verified (verify.h)
 * and compared with published planners' (like.h); plans and shardings are exported to JAX, XLA and
 * PyTorch (export.h). Other planners plug in (autopar/planner_command.h).
 * What all functions have in common is in api.h.
 *
 * @code
 *     xm_status_t print_plan(const char *path)
 *     {
 *         ap_planner_params_t params = AP_PLANNER_PARAMS_INIT;
 *         ap_profile_t *cluster = NULL;
 *         ap_plan_t *plan = NULL;
 *         char *text = NULL;
 *         xm_status_t status = ap_profile_load(path, &cluster);
 *
 *         if (status == XM_OK) {
 *             params.model = "gpt-1.3b";
 *             params.profile = cluster;
 *             status = ap_planner_plan(&params, &plan, NULL);
 *         }
 *         if (status == XM_OK) {
 *             status = ap_plan_table(plan, &text);
 *         }
 *         puts(status == XM_OK ? text : ap_last_error());
 *         ap_free(text);
 *         ap_plan_destroy(plan);
 *         ap_profile_destroy(cluster);
 *         return status;
 *     }
 * @endcode
 */
#ifndef AUTOPAR_H
#define AUTOPAR_H

#include <autopar/api.h>
#include <autopar/cost.h>
#include <autopar/explain.h>
#include <autopar/export.h>
#include <autopar/frontend.h>
#include <autopar/graph.h>
#include <autopar/like.h>
#include <autopar/plan.h>
#include <autopar/planner.h>
#include <autopar/planner_command.h>
#include <autopar/profile.h>
#include <autopar/shard.h>
#include <autopar/simulate.h>
#include <autopar/verify.h>

#endif
