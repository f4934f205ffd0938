/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file collective.h
 * The face of resharding/collective/: other rooms include this header and none of the folder.
 * Collectives as programs: lists of transfers that are built, checked, bounded, simulated and run.
 */
#pragma once

#include "resharding/collective/build.h"
#include "resharding/collective/element.h"
#include "resharding/collective/interconnect.h"
#include "resharding/collective/mapping.h"
#include "resharding/collective/program.h"
#include "resharding/collective/queues.h"
#include "resharding/collective/run.h"
#include "resharding/collective/simulate.h"
