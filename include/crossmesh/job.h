/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file job.h
 * How the ranks of a job find each other: through the environment, or through the caller.
 *
 * A job is a number of processes, its *ranks*, numbered from 0. Two things can bring them together:
 *
 *  - the environment (::xm_job_env_t): RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, which
 *    torchrun sets; the variables of mpirun and srun are understood as well, and PMIx where it is
 *    offered and MASTER_ADDR is not set. Rank 0 listens at the address, the others connect;
 *  - an out-of-band table (::xm_oob_t): the caller's own allgather, in pieces that do not block.
 *    This is what MPI programs, torch's store and other run-times pass.
 *
 * Either is given to xm_worker_create() (worker.h). docs/launching.md has all variables.
 *
 * @code
 *     // Tells the rank that the launcher gave this process, or -1.
 *     int rank_of_this_process(void)
 *     {
 *         xm_job_env_t env;
 *
 *         return xm_job_env_read(&env) == XM_OK ? env.rank : -1;
 *     }
 * @endcode
 *
 * Threads: plain values; reading the environment is safe as long as nobody calls setenv()
 * meanwhile. Source: the table has the shape of UCC's out-of-band collectives (ucc_oob_coll_t).
 */
#ifndef CROSSMESH_JOB_H
#define CROSSMESH_JOB_H

#include <stddef.h>

#include <crossmesh/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * The caller's out-of-band collectives. All ranks call allgather in the same order with the same
 * length; no two are under way at once. The functions may not call this library's functions on the
 * same worker. Fill every field; struct_size is sizeof(xm_oob_t).
 */
typedef struct xm_oob {
    size_t struct_size; /**< sizeof(xm_oob_t); docs/abi.md says what it is for */
    int rank;           /**< of this process, 0 … size − 1 */
    int size;           /**< number of ranks */
    void *context;      /**< passed to allgather_post(); may be NULL */
    /**
     * Starts gathering @p length bytes from every rank into @p receive (size * length, by rank).
     * @p send and @p receive stay untouched by the caller until allgather_test() gives XM_OK or an
     * error. Writes to @p request what the other two functions are given.
     */
    xm_status_t (*allgather_post)(void *context, const void *send, void *receive, size_t length,
                                  void **request);
    /** XM_OK when done, XM_IN_PROGRESS, or the failure that ended it. */
    xm_status_t (*allgather_test)(void *request);
    /** Frees a request that has ended. */
    void (*allgather_free)(void *request);
} xm_oob_t;

/** What the environment says about this process's place in the job. A caller may also fill it in
 * itself, all fields. */
typedef struct xm_job_env {
    int rank; /**< RANK, or OMPI_COMM_WORLD_RANK, PMI_RANK, SLURM_PROCID, PMIX_RANK; −1
                   when absent */
    int size; /**< WORLD_SIZE, or its counterparts; −1 when absent */
    char master_addr[256]; /**< MASTER_ADDR; "127.0.0.1" when a launcher says that all ranks are
                                local; the first host of SLURM_STEP_NODELIST, where srun starts
                                rank 0 */
    int master_port;       /**< MASTER_PORT, or one derived from the launcher's job id; −1 when
                                absent */
    bool pmix;             /**< MASTER_ADDR and RANK are not set, and PMIX_NAMESPACE and PMIX_RANK
                                are: the ranks meet through PMIx. It may then be PMIx alone that
                                knows the size (−1 here) */
} xm_job_env_t;

/**
 * Reads the variables strictly. Absent ones give −1; malformed ones, a rank without a size, or one
 * outside it are an error (XM_ERR_PARSE, XM_ERR_INVALID_ARGUMENT) whose sentence names the variable
 * and its value.
 */
XM_API xm_status_t xm_job_env_read(xm_job_env_t *env);

#ifdef __cplusplus
}
#endif

#endif
