/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file fault.h
 * The face of comm/fault/: other rooms include this header and none of the folder. Who is alive:
 * the detector, probes of paths, and how the ranks that are left agree on a smaller group.
 */
#pragma once

#include "comm/fault/detector.h"
#include "comm/fault/path_probe.h"
#include "comm/fault/regroup.h"
