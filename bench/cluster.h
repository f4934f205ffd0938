/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file cluster.h
 * The face of bench/cluster/: other rooms include this header and none of the folder.
 * emulated-cluster: hosts as network namespaces with shaped NICs.
 */
#pragma once

#include "bench/cluster/emulated_cluster.h"
#include "bench/cluster/nic_rate.h"
#include "bench/cluster/shape.h"
