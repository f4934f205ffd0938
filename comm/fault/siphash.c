/* SPDX-License-Identifier: Apache-2.0 */
/* SipHash-2-4 (Aumasson and Bernstein, 2012), a short keyed hash for the datagrams of
 * heartbeats. It is fast on a few dozen bytes and needs no library; 64 bits are enough against
 * forgeries that must be tried over the network. Longer proofs, of the job's secret, use
 * HMAC-SHA256 (job_secret.c). */
#include "comm/fault/siphash.h"

#include "comm/base.h"

static uint64_t rotate(uint64_t value, int bits)
{
    return value << bits | value >> (64 - bits);
}

/* One round of the paper, `count` times. */
static void rounds(uint64_t v[4], int count)
{
    for (int i = 0; i < count; ++i) {
        v[0] += v[1];
        v[1] = rotate(v[1], 13) ^ v[0];
        v[0] = rotate(v[0], 32);
        v[2] += v[3];
        v[3] = rotate(v[3], 16) ^ v[2];
        v[0] += v[3];
        v[3] = rotate(v[3], 21) ^ v[0];
        v[2] += v[1];
        v[1] = rotate(v[1], 17) ^ v[2];
        v[2] = rotate(v[2], 32);
    }
}

/* Eight bytes at a time, then the rest with the length in the last byte. */
uint64_t xm_siphash(const uint8_t key[XM_SIPHASH_KEY_SIZE], const uint8_t *bytes, size_t length)
{
    uint64_t k0 = xm_get_le(key, 8), k1 = xm_get_le(key + 8, 8), last = (uint64_t)length << 56;
    uint64_t v[4] = {k0 ^ UINT64_C(0x736f6d6570736575), k1 ^ UINT64_C(0x646f72616e646f6d),
                     k0 ^ UINT64_C(0x6c7967656e657261), k1 ^ UINT64_C(0x7465646279746573)};
    size_t at = 0;

    for (; at + 8 <= length; at += 8) {
        uint64_t word = xm_get_le(bytes + at, 8);

        v[3] ^= word;
        rounds(v, 2);
        v[0] ^= word;
    }
    for (size_t i = at; i < length; ++i) {
        last |= (uint64_t)bytes[i] << (8 * (i - at));
    }
    v[3] ^= last;
    rounds(v, 2);
    v[0] ^= last;
    v[2] ^= 0xff;
    rounds(v, 4);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}
