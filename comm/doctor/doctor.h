/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file doctor.h
 * Looks at a machine before a job does: whether limits, NICs, GPUs, clocks and the kernel's
 * settings are what fast transfers need, and what to do where they are not.
 *
 * Each finding is of one subject and has a severity:
 *  - ok: nothing to do;
 *  - absent ("not here"): the machine has no such thing, so there is nothing to be said;
 *  - warn: it works, but slower or less surely than this machine could;
 *  - fail: a job will not start, or not use what the machine has.
 * Findings that warn or fail have an advice: one sentence of what to do. docs/observability.md has
 * the table of subjects with their limits.
 *
 * What the machine says is read from files below /proc and /sys, under a root of the caller's, so
 * that descriptions of other machines can be examined as well; what no file tells (system calls,
 * libraries) are ::xm_doctor_facts_t.
 *
 * Threads: no shared state; findings are immutable.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/base.h"
#include "comm/topology.h"

typedef enum xm_severity {
    XM_SEVERITY_OK,
    XM_SEVERITY_ABSENT,
    XM_SEVERITY_WARN,
    XM_SEVERITY_FAIL,
    XM_SEVERITY_COUNT
} xm_severity_t;

/** "ok", "not here", "warn", "fail". */
const char *xm_severity_name(xm_severity_t severity);

enum { XM_FINDING_SUBJECT = 48, XM_FINDING_TEXT = 256 };

typedef struct xm_finding {
    xm_severity_t severity;
    char subject[XM_FINDING_SUBJECT]; /**< "locked memory", "port mlx5_0:1" */
    char text[XM_FINDING_TEXT];       /**< what was found */
    char advice[XM_FINDING_TEXT];     /**< what to do; "" unless it warns or fails */
} xm_finding_t;

typedef struct xm_findings xm_findings_t;

enum { XM_DOCTOR_PORTS = 32, XM_DOCTOR_NAME_SIZE = 64, XM_DOCTOR_TEXT_SIZE = 512 };

/** What no file tells. Zero means that nobody knows, unless another value is named. */
typedef struct xm_doctor_facts {
    double clock_resolution; /**< seconds, of CLOCK_MONOTONIC */
    bool clock_known;        /**< the kernel says whether the clock is synchronised: */
    bool clock_synchronised;
    double clock_error; /**< seconds: how wrong it may be, as the kernel estimates */
    bool has_shm;       /**< /dev/shm can be asked for its size: */
    uint64_t shm_size, shm_free;
    bool memfd; /**< memory without a name can be made */
    int ports;  /**< active RDMA ports with their MTU in bytes */
    struct {
        char name[XM_DOCTOR_NAME_SIZE]; /**< "mlx5_0:1" */
        int mtu, max_mtu;
    } port[XM_DOCTOR_PORTS];
    char ucx_version[32];
    char ucx_transports[XM_DOCTOR_TEXT_SIZE]; /**< that UCX offers, with blanks between */
    char ucx_failure[XM_DOCTOR_TEXT_SIZE];    /**< why UCX does not start; "" when it does */
    char settings[XM_DOCTOR_TEXT_SIZE]; /**< what is wrong with the XM_ variables; "": nothing */
} xm_doctor_facts_t;

/** Asks this machine. Takes a few hundredths of a second, for UCX and RDMA devices are opened. */
void xm_doctor_facts_read(xm_doctor_facts_t *facts);

typedef struct xm_doctor_params {
    const char *root; /**< before /proc and /sys; NULL or "": this machine */
    const xm_doctor_facts_t *facts;
    const xm_topology_t *topology; /**< NULL: NICs and GPUs are not looked at */
    bool verbs;                    /**< the transport is verbs, else UCX */
    bool spin;                     /**< waiting ranks poll */
    int local_ranks, ranks;        /**< of the job on this machine, and in all; at least 1 */
    int local_cores; /**< hardware threads that its local ranks together may run on; 0: those of
                        this process */
} xm_doctor_params_t;

#define XM_DOCTOR_PARAMS_INIT                                                                      \
    {                                                                                              \
        .local_ranks = 1, .ranks = 1                                                               \
    }

/** Examines the machine. Fails only for want of memory: what cannot be read is a finding. */
xm_status_t xm_doctor_examine(const xm_doctor_params_t *params, xm_findings_t **findings);

int xm_findings_count(const xm_findings_t *findings);
const xm_finding_t *xm_findings_get(const xm_findings_t *findings, int index);

/** NULL is accepted. */
void xm_findings_destroy(xm_findings_t *findings);
