/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file pipe.h
 * The face of plugins/nccl/pipe/: other rooms include this header and none of the folder.
 * Connections as NCCL wants them: one sender, one receiver, messages in order over a transport.
 */
#pragma once

#include "plugins/nccl/pipe/device.h"
#include "plugins/nccl/pipe/pipe.h"
