/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file convert.h
 * The face of resharding/convert/: other rooms include this header and none of the folder. Narrower
 * types for elements on their way (<crossmesh/convert.h>), and the kernels that make them.
 */
#pragma once

#include "resharding/convert/arithmetic.h"
#include "resharding/convert/kernels.h"
