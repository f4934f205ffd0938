/**
 * @file counters.h
 * What a rank has sent and received, per peer and per NIC, and how that ended.
 *
 * A worker has one such object from its creation to its end (xm_worker_counters()); peers have the
 * numbers that the ranks had when the job began, also after xm_group_shrink(). All numbers only
 * grow, and count from the worker's creation.
 *
 * Two views of the same traffic:
 *  - per *peer*: operations as they were posted and as they ended (xm_transport_send(),
 *    xm_transport_receive()), with the bytes of those that ended well. Chunks that a rank copies
 *    straight out of the memory of a rank of its host are no messages, and are counted apart;
 *  - per *NIC*: the pieces that operations were cut into, by what carried them: a NIC of XM_NICS
 *    ("eth0"), a port of an RDMA device ("mlx5_0:1"), "shm" (UCX inside a host), "tcp" (UCX between
 *    two emulated hosts of one machine), "auto" (UCX chose the NIC), "sim" (the simulated fabric).
 *
 * Counting costs a few additions in the worker's own thread: no lock, no memory, no system call.
 *
 * Threads: the functions that read may be called from any thread as long as the object lives. Each
 * number is whole and as new as the memory system makes it; numbers that belong together may be of
 * different moments: the bytes of an operation may be seen before its end, and while many end at
 * once more may seem to be in flight than ever were, but no end is seen without its post. When the
 * worker's thread asks, as XM_METRICS_FILE does, they fit.
 */
#ifndef XM_COMM_COUNTERS_H
#define XM_COMM_COUNTERS_H

#include <stddef.h>
#include <stdint.h>

#include "comm/status.h"

typedef struct xm_counters xm_counters_t;

typedef enum xm_direction { XM_SENT, XM_RECEIVED, XM_DIRECTION_COUNT } xm_direction_t;

/** How an operation ended. */
typedef enum xm_outcome {
    XM_OUTCOME_OK,
    XM_OUTCOME_CANCELED,
    XM_OUTCOME_PEER_DIED,
    XM_OUTCOME_CORRUPT, /**< a message of another length than the receive */
    XM_OUTCOME_FAILED,  /**< anything else */
    XM_OUTCOME_COUNT
} xm_outcome_t;

/** "send", "receive". */
XM_API const char *xm_direction_name(xm_direction_t direction);
/** "ok", "canceled", "peer_died", "corrupt", "failed". */
XM_API const char *xm_outcome_name(xm_outcome_t outcome);

/** Operations with one peer. */
typedef struct xm_peer_counts {
    uint64_t posted[XM_DIRECTION_COUNT];  /**< taken on; those that ended in the call included */
    uint64_t refused[XM_DIRECTION_COUNT]; /**< posting calls that failed */
    uint64_t ended[XM_DIRECTION_COUNT][XM_OUTCOME_COUNT];
    uint64_t bytes[XM_DIRECTION_COUNT]; /**< of operations that ended well */
    uint64_t copies;                    /**< chunks copied straight out of the peer's memory */
    uint64_t copied_bytes;              /**< of these */
} xm_peer_counts_t;

/** Operations with the peer that have been posted and have not ended. */
XM_API uint64_t xm_peer_counts_in_flight(const xm_peer_counts_t *counts, xm_direction_t direction);

enum { XM_COUNTERS_NAME_SIZE = 64 };

/** What one NIC, or another way out of this process, has carried. */
typedef struct xm_nic_counts {
    char name[XM_COUNTERS_NAME_SIZE];
    uint64_t rate;                       /**< bit/s; 0: nobody knows */
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
} xm_rank_counts_t;

/** Most NICs that are told apart; what comes after them is counted as the last. */
enum { XM_COUNTERS_MAX_NICS = 32 };

/** Counters of a rank with @p peers peers, itself included. A worker makes its own; for users of a
 * transport without one. */
XM_API xm_status_t xm_counters_create(int peers, xm_counters_t **counters);

XM_API int xm_counters_peers(const xm_counters_t *counters);
/** Reads the counts of peer @p peer, 0 … peers - 1. */
XM_API void xm_counters_peer(const xm_counters_t *counters, int peer, xm_peer_counts_t *counts);

/** NICs that have been opened so far. */
XM_API int xm_counters_nics(const xm_counters_t *counters);
/** Reads the counts of NIC @p nic, 0 … nics - 1. */
XM_API void xm_counters_nic(const xm_counters_t *counters, int nic, xm_nic_counts_t *counts);

XM_API void xm_counters_rank(const xm_counters_t *counters, xm_rank_counts_t *counts);

/** NULL is accepted. */
XM_API void xm_counters_destroy(xm_counters_t *counters);

#endif
