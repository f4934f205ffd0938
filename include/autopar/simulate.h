/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file simulate.h
 * A parallel plan under a pipeline schedule, simulated event by event in whole nanoseconds.
 *
 * Each device does its list of passes and transfers in order. Overlapped, a send is handed to a
 * channel and costs the device nothing; blocking, as when transfers run on the device's only
 * stream, both ends are busy with a message. Reshardings that are on the way together share the
 * NICs and uplinks that the plan says they use. The schedule is checked before: no device waits for
 * something that waits for it, and no activation is used that is not there.
 *
 * The plan gives a stage's whole backward pass; schedules that split it (zb-h1, zb-h2,
 * eager-1f1b-w) take its two halves to be equally long without recomputation.
 *
 * Integers only: the same input gives the same times on every machine. Threads: immutable.
 *
 * @code
 *     xm_status_t trace_zero_bubble(const ap_plan_t *plan, const char *path)
 *     {
 *         ap_simulation_params_t params = AP_SIMULATION_PARAMS_INIT;
 *         ap_simulation_t *simulation;
 *         xm_status_t status;
 *
 *         params.schedule = "zb-h1";
 *         status = ap_simulation_create(plan, &params, &simulation);
 *         if (status == XM_OK) {
 *             printf("%.1f %% idle\n", 100.0 * ap_simulation_result(simulation)->bubble);
 *             status = ap_simulation_trace(simulation, path);
 *             ap_simulation_destroy(simulation);
 *         }
 *         return status;
 *     }
 * @endcode
 */
#ifndef AUTOPAR_SIMULATE_H
#define AUTOPAR_SIMULATE_H

#include <autopar/plan.h>
#include <autopar/profile.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ap_simulation ap_simulation_t;

typedef struct ap_simulation_params {
    size_t struct_size;
    const char *schedule;  /**< a name of docs/pipeline-schedules.md; NULL: the plan's own */
    int64_t micro_batches; /**< of the plan's size; 0: as many as the plan has */
    int virtual_stages;    /**< interleaved: parts that every stage is cut into; equal in time */
    int slices;            /**< terapipe: parts of every micro-batch; equal in time */
    int batches;           /**< steps of asynchronous schedules, 0: 3 or 4 */
    bool blocking;         /**< transfers keep devices busy */
    /** Prices the reshardings anew, on this profile of the plan's hosts and devices; NULL: as the
     * plan predicts them. */
    const ap_profile_t *profile;
    /** The plan's stages are the virtual ones: a device of the schedule has as many of them as
     * `virtual_stages`, or the schedule, says. Their own times count, not equal parts; what passes
     * over stages does not. */
    bool fold;
} ap_simulation_params_t;

#define AP_SIMULATION_PARAMS_INIT                                                                  \
    {                                                                                              \
        sizeof(ap_simulation_params_t), NULL, 0, 0, 0, 0, false, NULL, false                       \
    }

typedef struct {
    int64_t makespan_ns;
    /** Of one batch: the makespan, or with several batches the mean distance of a device's updates,
     * of the device that takes longest. */
    int64_t step_ns;
    double bubble; /**< share of the devices' time in the makespan without pass or update */
    int devices;   /**< of the pipeline: each stands for those of a stage's mesh */
} ap_simulation_result_t;

/** @p params may be NULL. XM_ERR_INVALID_ARGUMENT says which number the schedule cannot have. */
XM_API xm_status_t ap_simulation_create(const ap_plan_t *plan, const ap_simulation_params_t *params,
                                        ap_simulation_t **simulation);

/** Belongs to the simulation. */
XM_API const ap_simulation_result_t *ap_simulation_result(const ap_simulation_t *simulation);

/** Every device's list with its times as JSON (docs/pipeline-schedules.md), which ap_free() ends.
 */
XM_API xm_status_t ap_simulation_text(const ap_simulation_t *simulation, char **text);

/** Writes a figure as SVG: a lane per device, and under it what it sends; @p title on top. */
XM_API xm_status_t ap_simulation_plot(const ap_simulation_t *simulation, const char *title,
                                      const char *path);

/** Writes a trace that Chrome and Perfetto open. */
XM_API xm_status_t ap_simulation_trace(const ap_simulation_t *simulation, const char *path);

/** NULL is accepted. */
XM_API void ap_simulation_destroy(ap_simulation_t *simulation);

#ifdef __cplusplus
}
#endif

#endif
