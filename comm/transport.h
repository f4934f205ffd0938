/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file transport.h
 * The face of comm/transport/: other rooms include this header and none of the folder. What every
 * transport offers: tagged messages between ranks, one table of operations, counters, and how a
 * message is striped over NICs.
 */
#pragma once

#include "comm/transport/blocks.h"
#include "comm/transport/counters.h"
#include "comm/transport/counters_private.h"
#include "comm/transport/proven.h"
#include "comm/transport/stripe.h"
#include "comm/transport/transport.h"
