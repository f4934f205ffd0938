/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file bootstrap_private.h
 * What the kinds of bootstrap (TCP, a caller's table) share. Internal.
 */
#pragma once

#include "comm/job/bootstrap.h"
#include "comm/job/bootstrap_wire.h"

/**
 * Who decides what the end of a connection means, and knows other ways to the ranks
 * (fault/detector.h). Without a guard a connection that ends is a death; with one it is a question
 * to the guard, which in the end gives another connection or a fault. Ranks are the bootstrap's.
 */
typedef struct xm_bootstrap_guard {
    int fd; /**< readable when renewed() or failed() has something new */
    /** The connection to a rank has ended, or was never made. */
    void (*lost)(void *arg, int rank);
    /** Something has come from the rank. */
    void (*heard)(void *arg, int rank);
    /** The next connection that was made in place of another; false: none. */
    bool (*renewed)(void *arg, int *rank, int *fd);
    /** A fault that nobody has told the bootstrap; false: none. */
    bool (*failed)(void *arg, xm_bootstrap_fault_t *fault);
    /** The bootstrap has a fault. @p all: everybody is to hear of it. */
    void (*tell)(void *arg, const xm_bootstrap_fault_t *fault, bool all);
    void *arg;
} xm_bootstrap_guard_t;

typedef struct xm_bootstrap_ops {
    xm_status_t (*post)(xm_bootstrap_t *bootstrap, const void *send, void *receive, size_t length);
    /** NULL, or starts an allgather of blocks of differing lengths; test() tells its end. */
    xm_status_t (*post_blobs)(xm_bootstrap_t *bootstrap, const void *send, size_t length);
    /** After that end: all blocks in a row (the caller's to free), and where each begins. */
    xm_status_t (*take_blobs)(xm_bootstrap_t *bootstrap, void **blobs, size_t *offsets);
    xm_status_t (*test)(xm_bootstrap_t *bootstrap);
    xm_status_t (*abandon)(xm_bootstrap_t *bootstrap, double waited);
    xm_status_t (*poll)(xm_bootstrap_t *bootstrap);
    int (*fd)(const xm_bootstrap_t *bootstrap);
    bool connected; /**< over TCP: bootstrap_tcp.h's functions may be used */
    void (*abort)(xm_bootstrap_t *bootstrap, const char *sentence);
    void (*mark_failed)(xm_bootstrap_t *bootstrap, const xm_bootstrap_fault_t *fault);
    /** NULL, or sets who decides what the end of a connection means. */
    xm_status_t (*set_guard)(xm_bootstrap_t *bootstrap, const xm_bootstrap_guard_t *guard);
    void (*destroy)(xm_bootstrap_t *bootstrap);
} xm_bootstrap_ops_t;

/** Base object; the kinds embed it as their first member. */
struct xm_bootstrap {
    const xm_bootstrap_ops_t *ops;
    int rank;
    int size;
    bool posted;     /**< an allgather is in flight */
    int64_t silence; /**< ns that a rank may say nothing; 0: any, see xm_bootstrap_attend() */
    xm_bootstrap_fault_t fault; /**< the sticky fault status; status XM_OK while there is none */
};

/* How often a rank says that it lives in the longest silence that is allowed. */
enum { XM_BOOTSTRAP_SIGNS = 8 };

/** The fault status as a status with its sentence, XM_OK when there is none. */
xm_status_t xm_bootstrap_fault_status(const xm_bootstrap_t *bootstrap);

/** Makes a fault that was learnt elsewhere the fault status, unless there is one; over TCP rank 0
 * passes it on. */
void xm_bootstrap_mark_failed(xm_bootstrap_t *bootstrap, const xm_bootstrap_fault_t *fault);

/** From now on a connection that ends is the guard's business. No effect over a caller's table. */
xm_status_t xm_bootstrap_set_guard(xm_bootstrap_t *bootstrap, const xm_bootstrap_guard_t *guard);

/**
 * A relay whose ranks meet through PMIx, the interface that mpirun (Open MPI) and srun (--mpi=pmix)
 * offer to the processes they start. Its library (libpmix.so.2) is opened at run time, so one build
 * runs with and without it, and used for two allgathers, which tell where rank 0 listens and a
 * random secret. The connection to the launcher stays until the process exits, shared with an MPI
 * that the process may use before or after. @p env is compared with what PMIx says.
 * XM_ERR_UNSUPPORTED when this build or machine has no PMIx.
 */
xm_status_t xm_bootstrap_create_pmix(const xm_job_env_t *env, double timeout,
                                     xm_bootstrap_t **bootstrap);

/** Adds a rank to a text that lists the first eight by number; @p count has all of them. */
void xm_bootstrap_list_rank(char *text, size_t size, int rank, int *count);

/** The name this rank's host goes by in sentences: XM_HOST, else the host name. */
void xm_bootstrap_own_host(char *host, size_t size);
