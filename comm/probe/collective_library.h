/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file collective_library.h
 * A library of collectives as the probe sees it: one ops table, implemented for NCCL
 * (collective_nccl.h) and MPI (collective_mpi.h). Internal to the probe.
 *
 * The ranks talk to each other about the measurement through the job's own allgather, never through
 * the library that is measured. Every call of an ops entry that is marked collective is made by all
 * ranks in the same order; a rank on which it fails must make that known with
 * xm_collective_agree() before any rank goes on.
 *
 * Threads: one at a time.
 */
#pragma once

#include <stdint.h>

#include "comm/profile.h"

/** The ranks that measure together. */
typedef struct xm_collective_job {
    int rank, ranks;
    const int *host_of; /**< by rank; hosts are numbered by their lowest rank */
    double timeout;     /**< seconds that one step may take */
    /** Blocking allgather of @p length bytes a rank. */
    xm_status_t (*allgather)(void *context, const void *send, void *receive, size_t length);
    /** XM_OK while all ranks are there; asked while a library works. NULL: never asked. */
    xm_status_t (*alive)(void *context);
    void *context;
} xm_collective_job_t;

/** One kind of mesh axis, and this rank's place in one of its groups. */
typedef struct xm_collective_axis {
    int hosts, devices_per_host, groups_per_host; /**< as collective_curve.h has them */
    int size, rank;                               /**< of this rank's group; this rank in it */
    int group;                                    /**< number of this rank's group */
    int root;                                     /**< the job's rank that is rank 0 of it */
} xm_collective_axis_t;

/** A collective on buffers of 32-bit integers; sums are of integers. */
typedef struct xm_collective_call {
    xm_collective_t kind;
    const void *in;
    void *out;
    /** Elements: of the operand of an all-reduce; of what a device gives to an all-gather, gets
     * from a reduce-scatter, or sends to each device in an all-to-all. */
    size_t part;
} xm_collective_call_t;

typedef struct xm_collective_library xm_collective_library_t;

typedef struct xm_collective_ops {
    /** Collective: makes the groups of an axis. Communicates with the job's allgather itself, and
     * all ranks get the same fault status. */
    xm_status_t (*enter)(xm_collective_library_t *library, const xm_collective_axis_t *axis);
    /** Collective after success: the groups go. */
    void (*leave)(xm_collective_library_t *library);
    /** Memory that the library's collectives work on. */
    xm_status_t (*allocate)(xm_collective_library_t *library, size_t bytes, void **address);
    void (*release)(xm_collective_library_t *library, void *address);
    /** Copies between such memory and the host's. */
    xm_status_t (*copy)(xm_collective_library_t *library, void *to, const void *from, size_t bytes);
    /** Collective in the group: runs the call @p times times, one after the other, and returns when
     * the last has ended here. After a failure nothing of it is under way any more. */
    xm_status_t (*run)(xm_collective_library_t *library, const xm_collective_call_t *call,
                       int times);
    void (*destroy)(xm_collective_library_t *library);
} xm_collective_ops_t;

/** Implementations embed it as their first member. */
struct xm_collective_library {
    const xm_collective_ops_t *ops;
    char name[64]; /**< what is measured, e.g. "NCCL 2.28.7" */
};

/** What an implementation in a module of its own calls: such a module links none of our libraries,
 * which would be another copy beside the program's. */
typedef struct xm_collective_host {
    /** xm_error_set() */
    xm_status_t (*error)(xm_status_t status, const char *format, ...) XM_PRINTF(2, 3);
    /** xm_collective_name() */
    const char *(*name)(xm_collective_t kind);
    /** xm_collective_agree() */
    xm_status_t (*agree)(const xm_collective_job_t *job, xm_status_t status);
} xm_collective_host_t;

/** These functions of this program. */
extern const xm_collective_host_t xm_collective_host;

/**
 * Tells all ranks how a step ended here. XM_OK when it succeeded on every rank; otherwise the
 * status of one that failed, with its sentence (and its rank, where that is another one): of the
 * lowest that did not just wait too long. Collective.
 */
XM_API xm_status_t xm_collective_agree(const xm_collective_job_t *job, xm_status_t status);

/**
 * Opens the library that @p choice names: "nccl", "mpi", or "auto" for the first of these that
 * works on all ranks. "none", and "auto" where none works, give NULL and XM_OK; @p note then says
 * why ("" for "none"). The job must outlive the library. Collective, same result on all ranks.
 */
xm_status_t xm_collective_open(const char *choice, const xm_collective_job_t *job,
                               xm_collective_library_t **library, char *note, size_t note_size);

/** XM_OK when @p choice is one that xm_collective_open() knows, else a sentence. */
XM_API xm_status_t xm_collective_check_choice(const char *choice);

/** NULL is accepted. */
static inline void xm_collective_library_destroy(xm_collective_library_t *library)
{
    if (library != NULL) {
        library->ops->destroy(library);
    }
}
