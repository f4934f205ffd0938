/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file simulate.h
 * The time that a program takes on an interconnect: ports and links serve one move at a time, and
 * whenever one is free the first move of the list that can begin there does. A latency occupies
 * nothing. What ranks run has queues instead: queues.h.
 */
#pragma once

#include "resharding/collective/interconnect.h"

/** @p bytes are those of the whole program: of all-to-all, all blocks of all devices. */
xm_status_t xm_program_simulate(const xm_program_t *program, const xm_interconnect_t *interconnect,
                                int64_t bytes, double *seconds);
