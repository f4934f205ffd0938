/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of memory: none overlaps another, and what was given back is what is taken next. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "xm_test.h"

#include "comm/base/random.h"
#include "comm/transport.h"

enum { BLOCKS = 400, STEPS = 20000, LONGEST = 70000 };

typedef struct {
    uint8_t *bytes;
    size_t length;
    uint8_t mark;
} block_t;

static void check(const block_t *block)
{
    size_t wrong = 0;

    for (size_t i = 0; i < block->length; ++i) {
        wrong += block->bytes[i] != block->mark;
    }
    ck_assert_uint_eq(wrong, 0);
}

static size_t length_of(uint64_t chance)
{
    return 1 + (size_t)(chance % (chance >> 40 & 1 ? LONGEST : 300));
}

START_TEST(blocks_do_not_overlap)
{
    static block_t held[BLOCKS];
    xm_blocks_t blocks = {.chunks = NULL};

    memset(held, 0, sizeof(held));
    for (int step = 0; step < STEPS; ++step) {
        uint64_t chance = xm_hash_spread((uint64_t)step + 1);
        block_t *block = &held[chance >> 20 & 0xffff ? (chance >> 20) % BLOCKS : 0];

        if (block->bytes != NULL) {
            check(block);
            xm_blocks_give(&blocks, block->bytes);
            block->bytes = NULL;
            continue;
        }
        *block = (block_t){.length = length_of(chance), .mark = (uint8_t)step};
        block->bytes = xm_blocks_take(&blocks, block->length);
        ck_assert_ptr_nonnull(block->bytes);
        ck_assert_uint_eq((uintptr_t)block->bytes % 16, 0);
        memset(block->bytes, block->mark, block->length);
    }
    for (int i = 0; i < BLOCKS; ++i) {
        if (held[i].bytes != NULL) {
            check(&held[i]);
        }
    }
    xm_blocks_clear(&blocks); /* also what is held */
}
END_TEST

START_TEST(what_was_given_back_is_taken_again)
{
    xm_blocks_t blocks = {.chunks = NULL};
    void *first = xm_blocks_take(&blocks, 100), *other = xm_blocks_take(&blocks, 200), *again;

    xm_blocks_give(&blocks, first);
    xm_blocks_give(&blocks, NULL);
    again = xm_blocks_take(&blocks, 65); /* of the same size, rounded up */
    ck_assert_ptr_eq(again, first);
    ck_assert_ptr_ne(again, other);
    ck_assert_ptr_null(xm_blocks_take(&blocks, SIZE_MAX));
    xm_blocks_clear(&blocks);
    ck_assert_ptr_null(blocks.chunks);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("blocks");
    TCase *tcase = tcase_create("blocks");

    tcase_add_test(tcase, blocks_do_not_overlap);
    tcase_add_test(tcase, what_was_given_back_is_taken_again);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
