/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file message.h
 * Messages between two ranks (crossmesh/message.h), and which tags they have (transport.h).
 */
#pragma once

#include <stdbool.h>

#include <crossmesh/message.h>

/** The channel of all messages, and those of their hashes and answers where they prove themselves:
 * no executor of the same worker may have them. */
enum { XM_MESSAGE_CHANNEL = 0, XM_MESSAGE_HASH_CHANNEL = 253, XM_MESSAGE_ANSWER_CHANNEL = 254 };

/** Messages prove themselves: XM_VERIFY=chunk. */
bool xm_message_proves(void);
