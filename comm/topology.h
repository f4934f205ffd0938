/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file topology.h
 * The face of comm/topology/: other rooms include this header and none of the folder. What a host
 * is made of (hwloc, sysfs) and which NICs each of its ranks uses.
 */
#pragma once

#include "comm/topology/host_identity.h"
#include "comm/topology/nic_choice.h"
#include "comm/topology/nic_network.h"
#include "comm/topology/nic_watch.h"
#include "comm/topology/nics.h"
#include "comm/topology/topology.h"
