/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/run/pattern.h"

#include <string.h>

#include "xm_test.h"

static const int64_t shape[] = {5, 6, 7};

/* The bytes of an element depend on its place in the tensor only, not on the tile it is part of. */
START_TEST(tiles_agree_with_the_whole)
{
    static const int64_t sizes[] = {1, 2, 4, 8, 16};
    const xm_box_t whole = {.dims = 3, .hi = {5, 6, 7}};
    const xm_box_t tile = {.dims = 3, .lo = {1, 2, 3}, .hi = {4, 5, 7}};

    for (int s = 0; s < 5; ++s) {
        unsigned char all[5 * 6 * 7 * 16], part[3 * 3 * 4 * 16], *at = part;
        size_t size = (size_t)sizes[s];

        rb_pattern_fill(all, &whole, shape, sizes[s], 17);
        rb_pattern_fill(part, &tile, shape, sizes[s], 17);
        for (size_t i = 1; i < 4; ++i) {
            for (size_t j = 2; j < 5; ++j) {
                for (size_t k = 3; k < 7; ++k, at += size) {
                    ck_assert_mem_eq(at, all + ((i * 6 + j) * 7 + k) * size, size);
                }
            }
        }
        ck_assert_uint_eq(rb_pattern_check(part, &tile, shape, sizes[s], 17), 0);
    }
}
END_TEST

START_TEST(every_wrong_byte_is_counted)
{
    const xm_box_t box = {.dims = 3, .lo = {0, 1, 0}, .hi = {5, 4, 7}};
    unsigned char data[5 * 3 * 7 * 4];

    rb_pattern_fill(data, &box, shape, 4, 3);
    for (size_t i = 0; i < sizeof(data); ++i) {
        data[i] ^= 1;
        ck_assert_uint_eq(rb_pattern_check(data, &box, shape, 4, 3), 1);
        data[i] ^= 1;
    }
    data[0] ^= 0xff;
    data[sizeof(data) - 1] ^= 0xff;
    ck_assert_uint_eq(rb_pattern_check(data, &box, shape, 4, 3), 2);
}
END_TEST

/* Poison differs from the data in every byte, so nothing that was not written counts as right. */
START_TEST(poison_is_wrong_everywhere)
{
    static const int64_t sizes[] = {1, 2, 4, 8, 16};
    const xm_box_t box = {.dims = 3, .hi = {5, 6, 7}};
    unsigned char data[5 * 6 * 7 * 16];

    for (int s = 0; s < 5; ++s) {
        rb_pattern_poison(data, &box, shape, sizes[s], 99);
        ck_assert_uint_eq(rb_pattern_check(data, &box, shape, sizes[s], 99),
                          (uint64_t)(5 * 6 * 7 * sizes[s]));
    }
}
END_TEST

/* Data of another run or seed is recognised as wrong (but for chance: one byte in 256). */
START_TEST(salts_tell_runs_apart)
{
    const xm_box_t box = {.dims = 3, .hi = {5, 6, 7}};
    uint64_t salts[] = {rb_pattern_salt(1, 0, 0), rb_pattern_salt(1, 0, 1),
                        rb_pattern_salt(1, 1, 0), rb_pattern_salt(2, 0, 0)};
    unsigned char data[5 * 6 * 7 * 8];

    for (int a = 0; a < 4; ++a) {
        rb_pattern_fill(data, &box, shape, 8, salts[a]);
        for (int b = 0; b < 4; ++b) {
            uint64_t wrong = rb_pattern_check(data, &box, shape, 8, salts[b]);

            ck_assert(a == b ? wrong == 0 : wrong > sizeof(data) * 9 / 10);
        }
    }
}
END_TEST

enum { TALL = 640, WIDE = 512, HALF = 200 };

/* Rows and blocks that change are as many as the share says, whole, and the same in a tile. */
START_TEST(so_many_rows_and_blocks_change)
{
    static const struct {
        rb_changes_t pattern;
        int64_t changed;
    } cases[] = {{RB_CHANGES_ROWS, 64 * WIDE}, {RB_CHANGES_BLOCKS, 2 * 128 * 128}};
    const int64_t sides[] = {TALL, WIDE};
    const xm_box_t whole = {.dims = 2, .hi = {TALL, WIDE}};
    const xm_box_t part = {.dims = 2, .lo = {HALF, 0}, .hi = {TALL, WIDE}};
    static unsigned char before[TALL * WIDE], after[TALL * WIDE], tile[TALL * WIDE];

    for (int c = 0; c < 2; ++c) {
        for (uint64_t salt = 1; salt < 9; ++salt) {
            int64_t changed = 0;

            rb_pattern_fill(before, &whole, sides, 1, 7);
            memcpy(after, before, sizeof(after));
            memcpy(tile, before + HALF * WIDE, (TALL - HALF) * WIDE);
            rb_pattern_change(after, &whole, sides, 1, salt, cases[c].pattern, 0.1, false);
            rb_pattern_change(tile, &part, sides, 1, salt, cases[c].pattern, 0.1, false);
            for (size_t i = 0; i < sizeof(after); ++i) {
                changed += before[i] != after[i];
            }
            ck_assert_int_eq(changed, cases[c].changed);
            ck_assert_mem_eq(tile, after + HALF * WIDE, (TALL - HALF) * WIDE);
        }
    }
}
END_TEST

START_TEST(scalars_and_empty_tiles)
{
    const xm_box_t scalar = {.dims = 0};
    const xm_box_t empty = {.dims = 3, .lo = {0, 6, 0}, .hi = {5, 6, 7}};
    unsigned char data[8] = {0};

    rb_pattern_fill(data, &scalar, NULL, 8, 5);
    ck_assert_uint_eq(rb_pattern_check(data, &scalar, NULL, 8, 5), 0);
    ck_assert_uint_gt(rb_pattern_check(data, &scalar, NULL, 8, 6), 0);
    rb_pattern_fill(data, &empty, shape, 4, 5);
    ck_assert_uint_eq(rb_pattern_check(data, &scalar, NULL, 8, 5), 0);
    ck_assert_uint_eq(rb_pattern_check(NULL, &empty, shape, 4, 5), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pattern");
    TCase *tests = tcase_create("pattern");

    tcase_add_test(tests, tiles_agree_with_the_whole);
    tcase_add_test(tests, every_wrong_byte_is_counted);
    tcase_add_test(tests, poison_is_wrong_everywhere);
    tcase_add_test(tests, salts_tell_runs_apart);
    tcase_add_test(tests, so_many_rows_and_blocks_change);
    tcase_add_test(tests, scalars_and_empty_tiles);
    suite_add_tcase(suite, tests);
    return xm_test_run(suite);
}
