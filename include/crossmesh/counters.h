/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file counters.h
 * What a rank has sent and received, per peer and per NIC, and how that ended.
 *
 * A worker counts from its creation to its end, and all numbers only grow. Peers have the numbers
 * that the ranks had when the job began, also after xm_group_shrink(). XM_METRICS_FILE has the same
 * numbers written to a file for Prometheus (docs/observability.md).
 *
 * Two views of the same traffic:
 *  - per *peer*: operations as they were posted and as they ended, with the bytes of those that
 *    ended well. Chunks that a rank copies straight out of the memory of a rank of its host are no
 *    messages, and are counted apart;
 *  - per *NIC*: the pieces that operations were cut into, by what carried them: a NIC of XM_NICS
 *    ("eth0"), a port of an RDMA device ("mlx5_0:1"), "shm" (UCX inside a host), "tcp" (UCX between
 *    two emulated hosts of one machine), "auto" (UCX chose the NIC).
 *
 * Counting costs a few additions in the worker's own thread: no lock, no memory, no system call.
 *
 * @code
 *     // Bytes that have left this rank through all its NICs.
 *     uint64_t bytes_sent(const xm_worker_t *worker)
 *     {
 *         xm_nic_counts_t counts;
 *         uint64_t bytes = 0;
 *
 *         for (int nic = 0; xm_worker_nic_counts(worker, nic, &counts) == XM_OK; ++nic) {
 *             bytes += counts.bytes[XM_SENT];
 *         }
 *         return bytes;
 *     }
 * @endcode
 *
 * Threads: any thread may read as long as the worker exists. Each number is whole and as new as the
 * memory system makes it; numbers that belong together may be of different moments: the bytes of an
 * operation may be seen before its end, and while many end at once more may seem to be in flight
 * than ever were, but no end is seen without its post. When the worker's thread asks, they fit.
 * Units: operations, bytes, bits per second. The structs do not change within a symbol version.
 */
#ifndef CROSSMESH_COUNTERS_H
#define CROSSMESH_COUNTERS_H

#include <crossmesh/worker.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Index of the arrays by direction. */
typedef enum xm_direction { XM_SENT, XM_RECEIVED, XM_DIRECTION_COUNT } xm_direction_t;

/** How an operation ended; index of the arrays by outcome. */
typedef enum xm_outcome {
    XM_OUTCOME_OK,
    XM_OUTCOME_CANCELED,
    XM_OUTCOME_PEER_DIED,
    XM_OUTCOME_CORRUPT, /**< a message of another length than the receive */
    XM_OUTCOME_FAILED,  /**< anything else */
    XM_OUTCOME_COUNT
} xm_outcome_t;

/** Operations with one peer. */
typedef struct xm_peer_counts {
    uint64_t posted[XM_DIRECTION_COUNT];  /**< taken on; those that ended in the call included */
    uint64_t refused[XM_DIRECTION_COUNT]; /**< posting calls that failed */
    uint64_t ended[XM_DIRECTION_COUNT][XM_OUTCOME_COUNT]; /**< by how they ended */
    uint64_t bytes[XM_DIRECTION_COUNT];                   /**< of operations that ended well */
    uint64_t copies;       /**< chunks copied straight out of the peer's memory */
    uint64_t copied_bytes; /**< of these */
} xm_peer_counts_t;

/** Room for the name of a NIC, with the terminator. */
enum { XM_COUNTERS_NAME_SIZE = 64 };

/** What one NIC, or another way out of this process, has carried. */
typedef struct xm_nic_counts {
    char name[XM_COUNTERS_NAME_SIZE];    /**< as above */
    uint64_t rate;                       /**< bit/s; 0: unknown */
    uint64_t pieces[XM_DIRECTION_COUNT]; /**< that arrived, or were handed over for good */
    uint64_t bytes[XM_DIRECTION_COUNT];  /**< of these */
    uint64_t errors;                     /**< pieces that failed; cancelled ones are no failures */
    uint64_t retries;                    /**< pieces that another NIC failed to carry */
    uint64_t failovers;                  /**< times that its traffic was moved to other NICs */
} xm_nic_counts_t;

/** What belongs to no peer and no NIC. */
typedef struct xm_rank_counts {
    uint64_t sleeps;              /**< of xm_worker_wait() */
    uint64_t slept_ns;            /**< in them */
    uint64_t registration_hits;   /**< messages whose memory was registered already (verbs) */
    uint64_t registration_misses; /**< messages whose memory had to be registered (verbs) */
    uint64_t resends; /**< chunks and messages that came to this rank wrong, and were brought again
                         (XM_VERIFY=chunk) */
} xm_rank_counts_t;

/** Reads the counts of peer @p peer, 0 … size of the job − 1; XM_ERR_NOT_FOUND for another. */
XM_API xm_status_t xm_worker_peer_counts(const xm_worker_t *worker, int peer,
                                         xm_peer_counts_t *counts);

/** Reads the counts of the NIC that was opened as number @p nic, from 0; XM_ERR_NOT_FOUND for one
 * that has not been. */
XM_API xm_status_t xm_worker_nic_counts(const xm_worker_t *worker, int nic,
                                        xm_nic_counts_t *counts);

/** Reads the other counts. */
XM_API xm_status_t xm_worker_rank_counts(const xm_worker_t *worker, xm_rank_counts_t *counts);

#ifdef __cplusplus
}
#endif

#endif
