/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file cli_support.h
 * The face of cli_support/: other rooms include this header and none of the folder. What the
 * commands share: options by popt, sweeps of sizes, tables, progress on a terminal.
 */
#pragma once

#include "cli_support/json.h"
#include "cli_support/options.h"
#include "cli_support/progress.h"
#include "cli_support/sweep.h"
#include "cli_support/table.h"
