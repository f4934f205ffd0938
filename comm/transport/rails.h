/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file rails.h
 * The face of comm/transport/rails/: other rooms include this header and none of the folder. Peers
 * that several rails reach, and messages that survive the loss of one, whatever the rails are.
 */
#pragma once

#include "comm/transport/rails/frame.h"
#include "comm/transport/rails/rails.h"
