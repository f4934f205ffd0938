/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file worker.h
 * The face of comm/worker/: other rooms include this header and none of the folder. A rank's share
 * in a job: the transport it chose, its group, its deadlines, control messages and metrics.
 */
#pragma once

#include "comm/worker/guest.h"
#include "comm/worker/message.h"
#include "comm/worker/rails.h"
#include "comm/worker/rate.h"
#include "comm/worker/worker.h"
