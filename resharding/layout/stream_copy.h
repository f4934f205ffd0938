/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file stream_copy.h
 * Copies what is too long for any cache. Not installed.
 *
 * Ordinary stores first read what they overwrite, and push everything else out of the caches. On
 * x86-64 these go past them, and the next page of the source is fetched meanwhile; elsewhere this
 * is memcpy(). One core of an EPYC (Zen 3) copies 64 MiB in 7.1 ms this way, in 8.1 ms without
 * fetching ahead, in 12 ms by memcpy(), and in 27 to 30 ms with the lines of four pages in turn
 * where source and target differ by whole pages, as tensors mostly do.
 */
#pragma once

#include <stddef.h>

/** Copies @p bytes that do not overlap. Other processors see them when they see any later store. */
void xm_stream_copy(void *to, const void *from, size_t bytes);
