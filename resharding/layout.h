/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file layout.h
 * The face of resharding/layout/: other rooms include this header and none of the folder. Where the
 * elements of a tensor lie: device meshes, sharding specs, partitions, tiles, and the unit tasks
 * between two layouts.
 */
#pragma once

#include "resharding/layout/box.h"
#include "resharding/layout/layout.h"
#include "resharding/layout/mesh.h"
#include "resharding/layout/spec.h"
#include "resharding/layout/unit_task.h"
#include "resharding/layout/view.h"
