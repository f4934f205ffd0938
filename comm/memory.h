/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file memory.h
 * The face of comm/memory/: other rooms include this header and none of the folder. Memory that
 * bytes are moved in: of the host, shared between the ranks of a host, of CUDA devices; copies of
 * strided boxes.
 */
#pragma once

#ifndef __CUDA__
#include "comm/memory/cuda_private.h"
#include "comm/memory/memory.h"
#include "comm/memory/shared_memory.h"
#include "comm/memory/strided.h"
#endif
#include "comm/memory/cuda_kernel.h" /* what kernels of other rooms are written in, too */
