/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file simulated.h
 * Runs the selected cases on the simulated fabric: all ranks in this process, real bytes, a virtual
 * clock.
 */
#pragma once

#include "bench/cases.h"

/** *wrong is the number of wrong bytes. */
xm_status_t rb_simulated_run(const rb_options_t *options, const rb_selection_t *selection,
                             const rb_host_map_t *hosts, uint64_t *wrong);
