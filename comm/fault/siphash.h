/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file siphash.h
 * SipHash-2-4: a keyed hash of short messages that cannot be forged without the key. Internal.
 *
 * Authenticates the datagrams of the heartbeat and the frames of a regrouping. Source: J.-P.
 * Aumasson, D. J. Bernstein, "SipHash: a fast short-input PRF", 2012, section 2.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { XM_SIPHASH_KEY_SIZE = 16 };

uint64_t xm_siphash(const uint8_t key[XM_SIPHASH_KEY_SIZE], const uint8_t *bytes, size_t length);
