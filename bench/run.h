/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file run.h
 * The face of bench/run/: other rooms include this header and none of the folder. Runs a case on
 * real or simulated ranks: buffers, patterns, rates, records.
 */
#pragma once

#include "bench/run/cluster.h"
#include "bench/run/collective.h"
#include "bench/run/emulation.h"
#include "bench/run/job_case.h"
#include "bench/run/job_info.h"
#include "bench/run/pattern.h"
#include "bench/run/processors.h"
#include "bench/run/rates.h"
#include "bench/run/records.h"
#include "bench/run/report_json.h"
#include "bench/run/result.h"
#include "bench/run/tile_buffers.h"
#include "bench/run/update_model.h"
