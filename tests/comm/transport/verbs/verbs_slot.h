/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file verbs_slot.h
 * What the tests of the verbs transport share: the RDMA devices of the machine, and a rank's slot
 * on them. Without a device they are skipped, with status 77.
 */
#pragma once

#include "tests/comm/job/local_job.h"
#include "tests/comm/transport/conformance.h"
#include "xm_test.h"

enum { VERBS_JOB_LIMIT_S = 60, VERBS_WAIT_LIMIT_S = 30 };

/*
 * Which ports the ranks have: all the same one; the even ones one, the odd ones another, so that
 * what they say crosses the wire; two each, in opposite order; or two unlike ones, of which the
 * even ones use one. For faults also three connections each.
 */
typedef enum {
    ONE_PORT,
    ACROSS,
    TWO_RAILS,
    UNLIKE_RAILS,
    PLACEMENTS,
    THREE_RAILS = PLACEMENTS
} placement_t;
extern const char *const placement_names[];

/* Names of the first two devices; twice the same where there is only one. */
extern char verbs_devices[2][32];

/* Opens the transport of a rank on the ports of its placement. */
void verbs_sit(const xm_job_env_t *env, int listen_fd, placement_t placement, size_t longest_write,
               conformance_slot_t *slot);
void verbs_leave(conformance_slot_t *slot);

/* A barrier of the bootstrap that makes progress meanwhile. */
void verbs_barrier(conformance_slot_t *slot);

/* Sum of a counter of the devices' drivers; 0 where there is none. */
long verbs_counter(const char *name);

/* A case of tests that one can ask for by name (CK_RUN_CASE). */
TCase *verbs_add_case(Suite *suite, const char *name);

/* Makes the suite with a device, runs it, and fails when nothing went over the device. */
int verbs_run(void (*fill)(Suite *suite), const char *name);
