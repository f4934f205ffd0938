/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file probe.h
 * The face of comm/probe/: other rooms include this header and none of the folder. Measures a
 * cluster and writes its profile: links, NICs, FLOP rates, collectives of MPI and NCCL. A library
 * of its own; no runtime links it.
 */
#pragma once

#include "comm/probe/collective_library.h"
#include "comm/probe/collective_measure.h"
#include "comm/probe/collective_mpi.h"
#include "comm/probe/compute.h"
#include "comm/probe/probe.h"
