/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file cases.h
 * The face of bench/cases/: other rooms include this header and none of the folder. Which
 * resharding is asked for: suites, options, placements, and the plan made of them.
 */
#pragma once

#include "bench/cases/case.h"
#include "bench/cases/host_map.h"
#include "bench/cases/options.h"
#include "bench/cases/placement.h"
#include "bench/cases/prepared.h"
#include "bench/cases/published.h"
#include "bench/cases/select.h"
