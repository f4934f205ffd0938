/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file profile.h
 * The face of comm/profile/: other rooms include this header and none of the folder. Cluster
 * profiles: curves of links, collectives and operators, read, written, interpolated and compared.
 */
#pragma once

#include "comm/profile/cluster_profile.h"
#include "comm/profile/collective_curve.h"
#include "comm/profile/collective_import.h"
#include "comm/profile/curve_fit.h"
#include "comm/profile/device.h"
#include "comm/profile/profile_compare.h"
