/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file shard.h
 * Shardings: how every tensor and operator of a graph is cut over one logical mesh (Alpa's
 * intra-operator problem), within a memory limit that holds at every moment.
 *
 * Every operator, input and parameter has a strategy; what is made in one way and used in another
 * is resharded between. The sharding that costs least by the mesh's cost model is looked for
 * (cost.h), with a bound below which no sharding is. Memory is that of one device over time:
 * parameters, inputs and optimizer state all the time, what operators make to its last use. A limit
 * makes the solver shard optimizer state, gradients and parameters (ZeRO's stages 1 to 3), and, if
 * it may, compute tensors of the forward pass a second time. Layers of one structure get one plan
 * unless the parameters say otherwise.
 *
 * A *spec* is one token per dimension, `R` or `S` with the mesh axes that cut it: "S01RR".
 *
 * Ownership: graph and mesh are borrowed and must outlive the sharding. Threads: immutable.
 *
 * @code
 *     xm_status_t print_sharding(const ap_graph_t *graph, const ap_cost_mesh_t *mesh)
 *     {
 *         ap_sharding_params_t params = AP_SHARDING_PARAMS_INIT;
 *         ap_sharding_t *sharding;
 *         char spec[AP_SPEC_TEXT];
 *         xm_status_t status;
 *
 *         params.graph = graph;
 *         params.mesh = mesh;
 *         params.memory_limit = 40e9;
 *         status = ap_sharding_create(&params, &sharding);
 *         if (status == XM_OK) {
 *             printf("%g s a step\n", ap_sharding_result(sharding)->objective);
 *             for (int i = 0; i < ap_graph_tensors(graph); i++) {
 *                 printf("%d %s\n", i, ap_sharding_spec(sharding, i, spec, sizeof(spec)));
 *             }
 *             ap_sharding_destroy(sharding);
 *         }
 *         return status;
 *     }
 * @endcode
 */
#ifndef AUTOPAR_SHARD_H
#define AUTOPAR_SHARD_H

#include <autopar/cost.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ap_sharding ap_sharding_t;

typedef struct ap_sharding_params {
    size_t struct_size;
    const ap_graph_t *graph; /**< finished; usually the training step */
    const ap_cost_mesh_t *mesh;
    int micro_batches; /**< of a step: what happens once a step is divided by it; 0 = 1 */
    double
        memory_limit; /**< bytes per device; 0: what the profile's devices have, if there is one */
    double state_bytes; /**< of an optimizer that the graph does not have, per parameter element */
    bool recompute;     /**< tensors of the forward pass may be computed a second time */
    bool every_layer;   /**< layers of one structure may get different plans */
    double time_limit; /**< seconds of the solver, kept to; 0 = 1, or up to 60 until there is one */
    int threads;       /**< 0 = one per core */
    uint64_t seed;
    /** Called about once a second from the calling thread: a fraction from 0 to 1, and what is done
     * now. May be NULL. */
    void (*progress)(void *arg, double fraction, const char *what);
    void *progress_arg;
    /** What the plan leaves free of a device's memory: bytes, or below 1 a part, as in planner.h.
     */
    double memory_reserve;
} ap_sharding_params_t;

#define AP_SHARDING_PARAMS_INIT                                                                    \
    {                                                                                              \
        sizeof(ap_sharding_params_t), NULL, NULL, 0, 0, 0, false, false, 0, 0, 1, NULL, NULL,      \
            AP_MEMORY_RESERVE_DEFAULT                                                              \
    }

typedef struct ap_shard_result {
    double objective; /**< in the unit of the cost model */
    double bound;     /**< no plan within the limit is below */
    bool optimal;     /**< proved, up to a millionth */
    bool repeatable;  /**< any run returns this plan; false where the time ended it */
    double peak;      /**< bytes */
    int peak_op;      /**< the operator that runs then */
    int variables;    /**< choices to make: nodes that are not alike */
    int alike;        /**< nodes that do as an earlier one does */
    int recomputed;   /**< operators that run a second time */
    double seconds;   /**< of the solver */
} ap_shard_result_t;

/**
 * Finds a sharding. XM_ERR_NO_SOLUTION when nothing fits the limit, XM_ERR_TIMEOUT when nothing was
 * found in time.
 */
XM_API xm_status_t ap_sharding_create(const ap_sharding_params_t *params, ap_sharding_t **sharding);

/** What was found; belongs to the sharding. */
XM_API const ap_shard_result_t *ap_sharding_result(const ap_sharding_t *sharding);

/** The spec that a tensor is made in. @p buffer of AP_SPEC_TEXT bytes, which is returned; "" for a
 * scalar. */
XM_API char *ap_sharding_spec(const ap_sharding_t *sharding, int tensor, char *buffer, size_t size);

/** Whether an operator runs a second time, in the backward pass. */
XM_API bool ap_sharding_recomputes(const ap_sharding_t *sharding, int op);

/** NULL is accepted. */
XM_API void ap_sharding_destroy(ap_sharding_t *sharding);

#ifdef __cplusplus
}
#endif

#endif
