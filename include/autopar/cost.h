/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file cost.h
 * What compute and communication cost on a logical mesh: two models behind one interface.
 *
 *  - *profile*: seconds, from a measured cluster profile (profile.h). Compute is a roofline,
 *    corrected by what was measured of such operators. A collective costs what was measured of it
 *    on such groups, else what a ring of measured point-to-point steps takes.
 *  - *alpa*: the alpha-beta constants of Alpa (OSDI'22) with its tie-breakers, for comparison;
 *    compute is free. Its unit is Alpa's, not seconds.
 *
 * Bytes of a collective are those of the whole tensor as seen on its axis: the gathered result of
 * an all-gather, the operand of an all-reduce or reduce-scatter, n times a device's buffer for an
 * all-to-all, the buffer of one device for a permutation.
 *
 * A model is made once; a mesh binds it to a logical mesh and must not outlive it. Threads: both
 * immutable.
 *
 * @code
 *     // Of a gigabyte between the hosts of a 2 x 4 mesh; below 0: a failure.
 *     double all_reduce(const ap_profile_t *profile)
 *     {
 *         const int shape[2] = {2, 4};
 *         ap_cost_model_t *model = NULL;
 *         ap_cost_mesh_t *mesh = NULL;
 *         double seconds = -1;
 *
 *         if (ap_cost_model_create_profile(profile, &model) == XM_OK &&
 *             ap_cost_mesh_create(model, 2, 4, shape, 2, &mesh) == XM_OK) {
 *             seconds = ap_cost_collective(mesh, AP_ALL_REDUCE, 0, 1e9);
 *         }
 *         ap_cost_mesh_destroy(mesh);
 *         ap_cost_model_destroy(model);
 *         return seconds;
 *     }
 * @endcode
 */
#ifndef AUTOPAR_COST_H
#define AUTOPAR_COST_H

#include <autopar/graph.h>
#include <autopar/profile.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ap_cost_model ap_cost_model_t;
typedef struct ap_cost_mesh ap_cost_mesh_t;

typedef enum ap_collective_kind {
    AP_ALL_GATHER,
    AP_ALL_REDUCE,
    AP_REDUCE_SCATTER,
    AP_ALL_TO_ALL,
    AP_PERMUTE,
    AP_COLLECTIVE_COUNT
} ap_collective_kind_t;

/** Alpa's constants. */
typedef struct ap_alpa_params {
    size_t struct_size;
    double alpha[AP_MAX_MESH_RANK]; /**< per mesh axis */
    double beta[AP_MAX_MESH_RANK];
    double replicated_penalty; /**< of a replicated parameter or input */
    bool force_data_parallel;  /**< no all-gather, no all-to-all, parameters replicated */
} ap_alpa_params_t;

#define AP_ALPA_PARAMS_INIT                                                                        \
    {                                                                                              \
        sizeof(ap_alpa_params_t), {1, 1, 1, 1}, {1, 0.1, 0.1, 0.1}, 2, false                               \
    }

/** @p profile is borrowed and must outlive the model. */
XM_API xm_status_t ap_cost_model_create_profile(const ap_profile_t *profile,
                                                ap_cost_model_t **model);
XM_API xm_status_t ap_cost_model_create_alpa(const ap_alpa_params_t *params,
                                             ap_cost_model_t **model);
/** NULL is accepted. */
XM_API void ap_cost_model_destroy(ap_cost_model_t *model);

/**
 * Binds @p model to a logical mesh of @p rank axes on a submesh of @p hosts x @p devices; the
 * product of @p shape must be hosts·devices. Logical devices are numbered row-major, the submesh's
 * host by host. The profile model refuses a submesh larger than its cluster.
 */
XM_API xm_status_t ap_cost_mesh_create(const ap_cost_model_t *model, int hosts, int devices,
                                       const int *shape, int rank, ap_cost_mesh_t **mesh);

/**
 * Lets dimensions be cut that do not divide: every device has ceil(extent / devices) of them, the
 * last ones padded, and what is padded costs compute, memory and bytes like the rest. Call it
 * before the mesh is used.
 */
XM_API void ap_cost_mesh_allow_uneven(ap_cost_mesh_t *mesh);

/** NULL is accepted. */
XM_API void ap_cost_mesh_destroy(ap_cost_mesh_t *mesh);

/** Cost of a collective over one axis; 0 on an axis of one device. */
XM_API double ap_cost_collective(const ap_cost_mesh_t *mesh, ap_collective_kind_t kind, int axis,
                                 double bytes);

/** Cost of one device's share of an operator that computes in numbers of @p dtype, from what was
 * measured of that kind and type, else by the device's peak rates: FLOPs, and bytes read plus
 * written. */
XM_API double ap_cost_op(const ap_cost_mesh_t *mesh, ap_op_kind_t kind, ap_dtype_t dtype,
                         double flops, double bytes);

/** One sentence on where the cost of a collective comes from: ring steps, link class, measured
 * point or interpolation, shared NIC. Returns @p buffer. */
XM_API char *ap_cost_explain_collective(const ap_cost_mesh_t *mesh, ap_collective_kind_t kind,
                                        int axis, double bytes, char *buffer, size_t size);

#ifdef __cplusplus
}
#endif

#endif
