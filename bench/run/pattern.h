/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file pattern.h
 * The data that is moved: every element's bytes follow from its place in the tensor.
 *
 * The element with row-major index g of the whole tensor holds the first bytes of a 64-bit hash of
 * (g, salt); elements of 16 bytes hold two hashes. Elements have 1, 2, 4, 8 or 16 bytes. The salt
 * changes with every run, so data of an earlier run cannot pass for data of this one. Destinations
 * are poisoned with the complement of what they should get, so a byte that nobody wrote is always
 * wrong.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "bench/cases.h"
#include "resharding/layout.h"

/** Fills @p buffer (a tile, row-major) with the elements of @p box of a tensor of @p shape. */
void rb_pattern_fill(void *buffer, const xm_box_t *box, const int64_t *shape, int64_t element_size,
                     uint64_t salt);

/** Fills it with the complement. */
void rb_pattern_poison(void *buffer, const xm_box_t *box, const int64_t *shape,
                       int64_t element_size, uint64_t salt);

/** Number of bytes that differ from what rb_pattern_fill() writes. */
uint64_t rb_pattern_check(const void *buffer, const xm_box_t *box, const int64_t *shape,
                          int64_t element_size, uint64_t salt);

/**
 * Gives so many of the elements, as a share of all, the bytes of another salt; the others stay. Of
 * rows and blocks that many to a whole one; of elements by chance, which their number evens out.
 * Which ones follows from their places and @p salt, so sources and destinations agree on it.
 * With @p poison they get the complement of that; without, the same where they had those bytes
 * already, so that each of them changes.
 */
void rb_pattern_change(void *buffer, const xm_box_t *box, const int64_t *shape,
                       int64_t element_size, uint64_t salt, rb_changes_t pattern, double share,
                       bool poison);

/** The salt of tensor @p tensor of a batch whose salt is @p salt: that itself for tensor 0. */
uint64_t rb_pattern_tensor_salt(uint64_t salt, int tensor);

/** The salt of run @p run of case @p index under a seed. */
uint64_t rb_pattern_salt(int seed, int index, int run);
