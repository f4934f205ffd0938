/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file execute.h
 * The face of resharding/execute/: other rooms include this header and none of the folder. Runs a
 * plan on a transport: lanes, pack buffers, pacing of NICs, copies inside a host; through one table
 * of carriers.
 */
#pragma once

#include "resharding/execute/checksum.h"
#include "resharding/execute/execute.h"
