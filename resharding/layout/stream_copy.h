/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file stream_copy.h
 * Copies what is too long for any cache. Not installed.
 *
 * Ordinary stores first read what they overwrite, and push everything else out of the caches. On
 * x86-64 these go past them, on four pages at a time so that loads and stores of several pages are
 * under way at once; elsewhere this is memcpy(). One core of a 2.6 GHz Xeon copies pieces of 1 MiB
 * out of 512 MiB at 10.6 GB/s this way, at 7.9 with such stores on one page after the other, and at
 * 6.5 by memcpy(), which takes a long copy in pieces for short ones.
 */
#pragma once

#include <stddef.h>

/** Copies @p bytes that do not overlap. Other processors see them when they see any later store. */
void xm_stream_copy(void *to, const void *from, size_t bytes);
