/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file message.h
 * Messages between two ranks (crossmesh/message.h), and which tags they have (transport.h).
 */
#pragma once

#include <crossmesh/message.h>

/** The channel of all messages: no executor of the same worker may have it. */
enum { XM_MESSAGE_CHANNEL = 0 };
