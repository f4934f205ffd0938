/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file delta.h
 * The face of resharding/delta/: other rooms include this header and none of the folder. What has
 * changed in a tile, and how a range of a box says so in as few bytes as it can.
 */
#pragma once

#include "resharding/delta/changes.h"
#include "resharding/delta/encoding.h"
#include "resharding/delta/mirror.h"
