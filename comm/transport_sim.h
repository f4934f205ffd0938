/**
 * @file transport_sim.h
 * A simulated fabric: many ranks in one process, a virtual clock, real bytes.
 *
 * Every rank of the fabric has a transport that keeps the contract of transport.h. A message starts
 * when both its send and its receive are posted and the NICs it needs are free (in the order in
 * which messages became ready), takes latency + bytes / bandwidth, and its bytes are copied when it
 * ends. So a program that deadlocks on a real network without eager buffers deadlocks here, and
 * xm_sim_fabric_step() tells.
 *
 * Single-threaded: one loop drives all ranks. When no rank can make progress, xm_sim_fabric_step()
 * advances the clock to the next event.
 *
 * @code
 *     do {
 *         for (int r = 0; r < n; ++r) { xm_transport_progress(transport[r]); … }
 *     } while (!finished && xm_sim_fabric_step(fabric));
 * @endcode
 */
#ifndef XM_COMM_TRANSPORT_SIM_H
#define XM_COMM_TRANSPORT_SIM_H

#include "comm/transport.h"

typedef struct xm_sim_fabric xm_sim_fabric_t;

typedef struct xm_sim_fabric_params {
    size_t struct_size;
    int ranks;
    const int *host_of_rank; /**< ranks entries, copied; NULL: every rank on a host of its own */
    double nic_bandwidth;  /**< bytes/s per host and direction, shared by its ranks; 0 means 1e9 */
    double nic_latency;    /**< seconds */
    double host_bandwidth; /**< bytes/s between two ranks of a host; 0 means 1e10 */
    double host_latency;   /**< seconds */
} xm_sim_fabric_params_t;

#define XM_SIM_FABRIC_PARAMS_INIT                                                                  \
    {                                                                                              \
        .struct_size = sizeof(xm_sim_fabric_params_t)                                              \
    }

XM_API xm_status_t xm_sim_fabric_create(const xm_sim_fabric_params_t *params,
                                        xm_sim_fabric_t **fabric);

/** The transport of a rank; one at a time per rank. Destroy it before the fabric. */
XM_API xm_status_t xm_transport_sim_create(xm_sim_fabric_t *fabric, int rank,
                                           xm_transport_t **transport);

/**
 * Advances the clock to the next event and makes its operations ready to be reported by progress.
 * False when nothing is in flight: whoever still waits will wait for ever.
 */
XM_API bool xm_sim_fabric_step(xm_sim_fabric_t *fabric);

/** Virtual time, ns. */
XM_API int64_t xm_sim_fabric_now(const xm_sim_fabric_t *fabric);

/** Kills a rank: its operations vanish, its peers' operations with it end with XM_ERR_PEER_DIED. */
XM_API void xm_sim_fabric_kill(xm_sim_fabric_t *fabric, int rank);

XM_API void xm_sim_fabric_destroy(xm_sim_fabric_t *fabric);

#endif
