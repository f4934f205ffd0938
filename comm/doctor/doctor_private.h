/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file doctor_private.h
 * What the checks of the doctor share. Internal.
 *
 * | file | subjects |
 * |---|---|
 * | doctor.c | the list of findings, reading files |
 * | comm/doctor/examine.c | all checks of a rank |
 * | comm/doctor/process.c | limits, shared memory, cores, settings, UCX |
 * | comm/doctor/network.c | RDMA ports, MTUs, TCP |
 * | comm/doctor/device.c | GPUs and their NICs |
 * | comm/doctor/clock.c | clocks |
 * | comm/doctor/facts.c | what no file tells |
 * | comm/doctor/compare.c | what differs between ranks |
 * | comm/doctor/job.c | all ranks of a job |
 */
#pragma once

#include "comm/doctor/doctor.h"

typedef struct xm_doctor {
    const xm_doctor_params_t *params;
    const xm_doctor_facts_t *facts;
    xm_findings_t *findings;
    bool rdma;        /* there are RDMA devices */
    bool rdma_active; /* one of their ports can be used */
    bool no_memory;
} xm_doctor_t;

/** Adds a finding. @p advice is left out unless the severity warns or fails. */
void xm_doctor_note(xm_doctor_t *doctor, xm_severity_t severity, const char *subject,
                    const char *advice, const char *format, ...) XM_PRINTF(5, 6);

/** Adds one to a list that is put together elsewhere. False: no memory. */
bool xm_findings_add(xm_findings_t *findings, const xm_finding_t *finding);
xm_status_t xm_findings_create(xm_findings_t **findings);

/** Reads a file below the root without its last newline; false: there is none, or it cannot be
 * read. What does not fit is cut. */
bool xm_doctor_read(const xm_doctor_t *doctor, char *text, size_t size, const char *format, ...)
    XM_PRINTF(4, 5);

/** The same for a decimal number at its beginning. */
bool xm_doctor_read_number(const xm_doctor_t *doctor, int64_t *number, const char *format, ...)
    XM_PRINTF(3, 4);

/** Calls @p visit with each entry of a folder below the root, in the order of their names; returns
 * how many there are. */
int xm_doctor_list(xm_doctor_t *doctor, const char *path,
                   void (*visit)(xm_doctor_t *doctor, const char *name, void *arg), void *arg);

/** Marks the numbers of a list such as "0-3,8" of the kernel, below @p size, in @p marks. False: it
 * is none, or has others. */
bool xm_doctor_mark_list(const char *text, bool *marks, int size);

/** Most hardware threads that are looked at. */
enum { XM_DOCTOR_CORES = 8192 };

/** The list of hardware threads that this process may run on; false: the kernel does not tell. */
bool xm_doctor_read_cores(const xm_doctor_t *doctor, char *list, size_t size);

/** The different MTUs of the NICs that are up below a root (NULL: this machine), ascending: "1500",
 * "1500 9000"; "" without NICs. */
void xm_doctor_format_mtus(const char *root, char *text, size_t size);

void xm_doctor_check_process(xm_doctor_t *doctor);
void xm_doctor_check_network(xm_doctor_t *doctor);
void xm_doctor_check_devices(xm_doctor_t *doctor);
void xm_doctor_check_clocks(xm_doctor_t *doctor);
