/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file report.h
 * The face of bench/report/: other rooms include this header and none of the folder. Results as
 * tables, JSON, timelines and traces.
 */
#pragma once

#include "bench/report/report.h"
#include "bench/report/table.h"
