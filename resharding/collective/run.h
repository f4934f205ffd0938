/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file run.h
 * Runs a program with the ranks of a job: rank r is device r, and there are no switches.
 */
#pragma once

#include "comm/worker.h"
#include "resharding/collective/element.h"
#include "resharding/collective/program.h"

/**
 * Collective: every rank gives the same program and number of elements, which are those of the
 * whole program. @p data has room for all of them, contributions or what a rank has at first in
 * their places; results come there. Sums into one place are made in the order in which
 * contributions arrive. One at a time on a worker; everything of one has to have ended on all ranks
 * before the next begins (xm_worker_barrier()).
 */
xm_status_t xm_program_run(const xm_program_t *program, const xm_dependencies_t *dependencies,
                           xm_worker_t *worker, const xm_element_t *element, void *data,
                           int64_t elements);
