/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file dry_run.h
 * Plans, bounds and simulates the selected cases without starting a rank.
 */
#pragma once

#include "bench/cases.h"

xm_status_t rb_dry_run(const rb_options_t *options, const rb_selection_t *selection,
                       const rb_host_map_t *hosts);
