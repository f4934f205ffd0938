/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file ucx.h
 * The face of comm/transport/ucx/: other rooms include this header and none of the folder. The
 * default transport, on UCX: one worker per NIC, and messages that survive the loss of a TCP rail.
 */
#pragma once

#include "comm/transport/ucx/rail.h"
#include "comm/transport/ucx/transport_ucx_private.h"
#include "comm/transport/ucx/ucx.h"
