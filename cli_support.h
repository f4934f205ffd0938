/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file cli_support.h
 * The face of cli_support/: other rooms include this header and none of the folder. What the
 * commands share: options by popt, progress on a terminal.
 */
#ifndef XM_CLI_SUPPORT_H
#define XM_CLI_SUPPORT_H

#include "cli_support/options.h"
#include "cli_support/progress.h"

#endif
