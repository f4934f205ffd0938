/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes that are moved: each element's content is a hash of its index in the tensor
 * and of the run's salt. So every element is different, an element in a wrong place is
 * found, and neither side needs a copy of the tensor to check against. Filling and
 * checking run at memory speed, since for terabytes of test data they would otherwise
 * dominate.
 */
#include "bench/run/pattern.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "comm/base.h"

enum { BLOCK = 128, WORDS = 2, LARGEST = WORDS * (int)sizeof(uint64_t) };

/*
 * Writes a row of elements whose indices rise by one. It is called with constant sizes
 * only, so that the copies become single instructions. `flip` makes the complement, which
 * poisons.
 */
static inline void write_row(unsigned char *out, int64_t count, size_t size, uint64_t index,
                             uint64_t salt, uint64_t flip)
{
    for (int64_t i = 0; i < count; ++i, out += size) {
        uint64_t words[WORDS] = {xm_random_of((index + (uint64_t)i) ^ salt)};

        words[1] = size > sizeof(words[0]) ? xm_random_of(words[0]) ^ flip : 0;
        words[0] ^= flip;
        memcpy(out, words, size);
    }
}

/* Compares whole elements first, and counts bytes only where one differs. */
static inline uint64_t check_row(const unsigned char *in, int64_t count, size_t size,
                                 uint64_t index, uint64_t salt)
{
    uint64_t wrong = 0;

    for (int64_t i = 0; i < count; ++i, in += size) {
        uint64_t words[WORDS] = {xm_random_of((index + (uint64_t)i) ^ salt)};
        const unsigned char *expected = (const unsigned char *)words;

        words[1] = size > sizeof(words[0]) ? xm_random_of(words[0]) : 0;
        if (memcmp(in, words, size) == 0) {
            continue;
        }
        for (size_t b = 0; b < size; ++b) {
            wrong += in[b] != expected[b];
        }
    }
    return wrong;
}

/* What a pass over a buffer does: writes the pattern or its complement, or counts wrong bytes. */
typedef enum { FILL, POISON, CHECK } pass_t;

static inline uint64_t pass_sized(unsigned char *at, int64_t count, size_t size, uint64_t index,
                                  uint64_t salt, pass_t pass)
{
    if (pass == CHECK) {
        return check_row(at, count, size, index, salt);
    }
    write_row(at, count, size, index, salt, pass == POISON ? UINT64_MAX : 0);
    return 0;
}

/* The switch makes the element size a constant for each call. */
static uint64_t pass_row(unsigned char *at, int64_t count, int64_t element_size, uint64_t index,
                         uint64_t salt, pass_t pass)
{
    switch (element_size) {
    case 1:
        return pass_sized(at, count, 1, index, salt, pass);
    case 2:
        return pass_sized(at, count, 2, index, salt, pass);
    case 4:
        return pass_sized(at, count, 4, index, salt, pass);
    case 8:
        return pass_sized(at, count, 8, index, salt, pass);
    default:
        return pass_sized(at, count, LARGEST, index, salt, pass);
    }
}

/* A walk over the rows of a box: runs of elements whose index in the tensor rises by one. */
typedef struct {
    const xm_box_t *box;
    const int64_t *shape;
    int64_t at[XM_MAX_DIMS];
    int64_t length; /* elements of a row */
} rows_t;

/* Starts the walk; false when the box is empty, and then there may be no buffer either. */
static bool rows_start(rows_t *rows, const xm_box_t *box, const int64_t *shape)
{
    *rows = (rows_t){.box = box, .shape = shape, .length = 1};
    memcpy(rows->at, box->lo, sizeof(rows->at));
    if (box->dims > 0) {
        rows->length = box->hi[box->dims - 1] - box->lo[box->dims - 1];
    }
    return xm_box_volume(box) > 0;
}

/* Row-major over the whole tensor, which makes the index independent of any layout. */
static uint64_t rows_index(const rows_t *rows)
{
    uint64_t index = 0;

    for (int d = 0; d < rows->box->dims; ++d) {
        index = index * (uint64_t)rows->shape[d] + (uint64_t)rows->at[d];
    }
    return index;
}

/* Goes to the next row as an odometer; false after the last. */
static bool rows_next(rows_t *rows)
{
    for (int d = rows->box->dims - 2; d >= 0; --d) {
        if (++rows->at[d] < rows->box->hi[d]) {
            return true;
        }
        rows->at[d] = rows->box->lo[d];
    }
    return false;
}

static uint64_t pass_over(unsigned char *at, const xm_box_t *box, const int64_t *shape,
                          int64_t element_size, uint64_t salt, pass_t pass)
{
    uint64_t wrong = 0;
    rows_t rows;

    if (!rows_start(&rows, box, shape)) {
        return 0;
    }
    do {
        wrong += pass_row(at, rows.length, element_size, rows_index(&rows), salt, pass);
        at += rows.length * element_size;
    } while (rows_next(&rows));
    return wrong;
}

void rb_pattern_fill(void *buffer, const xm_box_t *box, const int64_t *shape, int64_t element_size,
                     uint64_t salt)
{
    (void)pass_over(buffer, box, shape, element_size, salt, FILL);
}

void rb_pattern_poison(void *buffer, const xm_box_t *box, const int64_t *shape,
                       int64_t element_size, uint64_t salt)
{
    (void)pass_over(buffer, box, shape, element_size, salt, POISON);
}

uint64_t rb_pattern_check(const void *buffer, const xm_box_t *box, const int64_t *shape,
                          int64_t element_size, uint64_t salt)
{
    /* Checking does not write. */
    return pass_over((unsigned char *)(uintptr_t)buffer, box, shape, element_size, salt, CHECK);
}

static uint64_t picked_in(int64_t row, int64_t column)
{
    return xm_random_of((uint64_t)row) ^ (uint64_t)column;
}

/* What an element is picked by: its place, that of its row, or that of its block. */
static uint64_t picked_by(const rows_t *rows, uint64_t index, int64_t column, rb_changes_t pattern)
{
    const int last = rows->box->dims - 1;

    if (pattern == RB_CHANGES_UNIFORM || last < 0) {
        return index;
    }
    if (pattern == RB_CHANGES_ROWS) {
        return index / (uint64_t)rows->shape[last];
    }
    return picked_in((int64_t)(index / (uint64_t)rows->shape[last] / BLOCK), column / BLOCK);
}

/* Rows or blocks are few, so chance alone would change a tenth more or less than the share: below
 * this number are as many of theirs as the share says. */
static uint64_t threshold(const xm_box_t *box, const int64_t *shape, uint64_t other,
                          rb_changes_t pattern, double share)
{
    const int last = box->dims - 1;
    const int64_t wide = last >= 0 ? shape[last] : 1;
    int64_t rows = 1, columns = 1, wanted;
    uint64_t low = 0, high = UINT64_C(1) << 63;

    if (pattern == RB_CHANGES_UNIFORM || last < 0) {
        return (uint64_t)(fmin(share, 1.0) * 0x1p63);
    }
    for (int d = 0; d < last; ++d) {
        rows *= shape[d];
    }
    if (pattern == RB_CHANGES_BLOCKS) {
        rows = (rows + BLOCK - 1) / BLOCK;
        columns = (wide + BLOCK - 1) / BLOCK;
    }
    wanted = llrint(fmin(share, 1.0) * (double)(rows * columns));
    wanted = wanted > 0 ? wanted : 1;
    while (high - low > 1) {
        const uint64_t middle = low + (high - low) / 2;
        int64_t found = 0;

        for (int64_t u = 0; u < rows * columns; ++u) {
            uint64_t by =
                pattern == RB_CHANGES_ROWS ? (uint64_t)u : picked_in(u / columns, u % columns);

            found += xm_random_of(by ^ other) >> 1 < middle;
        }
        *(found < wanted ? &low : &high) = middle;
    }
    return high;
}

void rb_pattern_change(void *buffer, const xm_box_t *box, const int64_t *shape,
                       int64_t element_size, uint64_t salt, rb_changes_t pattern, double share,
                       bool poison)
{
    const uint64_t other = xm_random_of(~salt),
                   below = threshold(box, shape, other, pattern, share);
    unsigned char *out = buffer;
    rows_t rows;

    if (!rows_start(&rows, box, shape)) {
        return;
    }
    do {
        uint64_t index = rows_index(&rows);
        int64_t column = box->dims > 0 ? box->lo[box->dims - 1] : 0;

        for (int64_t i = 0; i < rows.length; ++i, out += element_size) {
            uint64_t by = picked_by(&rows, index + (uint64_t)i, column + i, pattern);

            if (xm_random_of(by ^ other) >> 1 < below) {
                unsigned char before[LARGEST];

                memcpy(before, out, (size_t)element_size);
                (void)pass_row(out, 1, element_size, index + (uint64_t)i, salt,
                               poison ? POISON : FILL);
                if (!poison && memcmp(before, out, (size_t)element_size) == 0) {
                    (void)pass_row(out, 1, element_size, index + (uint64_t)i, salt, POISON);
                }
            }
        }
    } while (rows_next(&rows));
}

/* Tensor 0 keeps the batch's salt, so a single tensor has the same data with and without
 * a batch. */
uint64_t rb_pattern_tensor_salt(uint64_t salt, int tensor)
{
    return tensor == 0 ? salt : xm_random_of(salt ^ xm_random_of((uint64_t)tensor));
}

uint64_t rb_pattern_salt(int seed, int index, int run)
{
    return xm_random_of(xm_random_of(xm_random_of((uint64_t)(int64_t)seed) ^ (uint64_t)index) ^
                        (uint64_t)run);
}
