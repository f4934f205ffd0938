/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/base/arena.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base/random.h"
#include "xm_test.h"

enum { PIECES = 500 };

/* Pieces of random sizes, each filled with its number: none overlaps another, those that should be
 * zeroed are, and an arena that was reset hands the same memory out again without an allocation. */
START_TEST(pieces_are_apart_and_zeroed)
{
    xm_arena_t arena = {0};
    xm_random_t random = {3};
    unsigned char *piece[PIECES];
    size_t size[PIECES];

    for (int round = 0; round < 3; ++round) {
        for (int i = 0; i < PIECES; ++i) {
            size[i] = (size_t)xm_random_below(&random, i % 10 == 0 ? 5000 : 50);
            piece[i] =
                i % 2 == 0 ? xm_arena_get(&arena, size[i], 1) : xm_arena_take(&arena, size[i]);
            ck_assert_ptr_nonnull(piece[i]);
            ck_assert_uint_eq((uintptr_t)piece[i] % 16, 0);
            for (size_t k = 0; i % 2 == 0 && k < size[i]; ++k) {
                ck_assert_uint_eq(piece[i][k], 0);
            }
            memset(piece[i], i % 251 + 1, size[i]);
        }
        for (int i = 0; i < PIECES; ++i) {
            for (size_t k = 0; k < size[i]; ++k) {
                ck_assert_uint_eq(piece[i][k], (unsigned)(i % 251 + 1));
            }
        }
        xm_arena_reset(&arena);
    }
    ck_assert(!arena.failed);
    xm_arena_clear(&arena);
    ck_assert_ptr_null(arena.last);
}
END_TEST

START_TEST(too_much_fails_once_for_all)
{
    xm_arena_t arena = {0};

    ck_assert_ptr_null(xm_arena_get(&arena, SIZE_MAX / 2, 3));
    ck_assert(arena.failed);
    ck_assert_ptr_nonnull(xm_arena_get(&arena, 1, 1));
    ck_assert(arena.failed);
    xm_arena_clear(&arena);
    ck_assert(!arena.failed);
}
END_TEST

START_TEST(growing_array_keeps_its_items)
{
    int *items = NULL;
    size_t room = 0, moves = 0;

    for (size_t i = 0; i < 10000; ++i) {
        size_t before = room;

        ck_assert(xm_array_reserve(&items, &room, i + 1, sizeof(*items)));
        ck_assert_uint_gt(room, i);
        moves += room != before;
        items[i] = (int)i;
    }
    for (size_t i = 0; i < 10000; ++i) {
        ck_assert_int_eq(items[i], (int)i);
    }
    ck_assert_uint_lt(moves, 20);
    ck_assert(!xm_array_reserve(&items, &room, SIZE_MAX / 2, sizeof(*items)));
    ck_assert_int_eq(items[9999], 9999);
    free(items);
}
END_TEST

/* Extremes, whose differences overflow, and structures that begin with the number. */
START_TEST(numbers_are_sorted_the_smallest_first)
{
    int ints[] = {3, INT32_MIN, INT32_MAX, -1, 3};
    struct {
        int64_t number;
        char letter;
    } items[] = {{INT64_MAX, 'd'}, {INT64_MIN, 'a'}, {7, 'c'}, {-7, 'b'}};
    double doubles[] = {0.5, -1e300, 1e300, 0.0};

    qsort(ints, 5, sizeof(ints[0]), xm_order_ints);
    qsort(items, 4, sizeof(items[0]), xm_order_int64s);
    qsort(doubles, 4, sizeof(doubles[0]), xm_order_doubles);
    for (int i = 1; i < 5; ++i) {
        ck_assert_int_le(ints[i - 1], ints[i]);
    }
    for (int i = 0; i < 4; ++i) {
        ck_assert_int_eq(items[i].letter, 'a' + i);
        ck_assert(i == 0 || doubles[i - 1] < doubles[i]);
    }
    ck_assert_int_eq(xm_order(INT64_MIN, INT64_MAX), -1);
    ck_assert_int_eq(xm_order(5, 5), 0);
}
END_TEST

static int by_two(const void *a, const void *b)
{
    const double *left = a, *right = b;

    XM_ORDER_BY(right[0], left[0]);
    return xm_order((int64_t)left[1], (int64_t)right[1]);
}

/* The first key falls, the second rises. */
START_TEST(keys_are_compared_one_after_the_other)
{
    double pairs[][2] = {{0.5, 2}, {1.5, 1}, {0.5, 1}, {1.5, 0}};

    qsort(pairs, 4, sizeof(pairs[0]), by_two);
    for (int i = 0; i < 4; ++i) {
        ck_assert(pairs[i][0] == (i < 2 ? 1.5 : 0.5));
        ck_assert(pairs[i][1] == (i < 2 ? i : i - 1));
    }
}
END_TEST

/* Of every number up to the end, and of an order in which places are equal. */
START_TEST(bisection_finds_the_first_place)
{
    const int sorted[] = {1, 3, 3, 3, 8};

    for (int value = 0; value < 10; ++value) {
        int low = 0, expected = 0;

        while (expected < 5 && sorted[expected] < value) {
            ++expected;
        }
        XM_BISECT(int, i, low, 5, sorted[i] < value);
        ck_assert_int_eq(low, expected);
        low = 4;
        XM_BISECT(int, i, low, 2, sorted[i] < value); /* there are none */
        ck_assert_int_eq(low, 4);
    }
}
END_TEST

/* Hashes repeat, also that of the last slot, so that a search goes on at the first. */
START_TEST(index_finds_all_numbers_of_a_hash)
{
    enum { HASHES = 7, NUMBERS = 1000 };
    const uint64_t base = UINT64_MAX - 3;
    xm_index_t index = {0};
    int found = 0;
    int64_t n;

    for (size_t step = 0; (n = xm_index_next(&index, 5, &step)) >= 0;) {
        ck_abort_msg("nothing was entered");
    }
    for (int i = 0; i < NUMBERS; ++i) {
        ck_assert(xm_index_enter(&index, base + (uint64_t)(i % HASHES), i));
    }
    for (int h = 0; h < HASHES; ++h) {
        bool seen[NUMBERS] = {false};

        for (size_t step = 0; (n = xm_index_next(&index, base + (uint64_t)h, &step)) >= 0;) {
            ck_assert_int_eq(n % HASHES, h);
            ck_assert(!seen[n]);
            seen[n] = true;
            ++found;
        }
    }
    ck_assert_int_eq(found, NUMBERS);
    for (size_t step = 0; (n = xm_index_next(&index, base - 1, &step)) >= 0;) {
        ck_abort_msg("nothing has this hash");
    }
    xm_index_clear(&index);
    ck_assert_uint_eq(index.size, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("arena");
    TCase *tcase = tcase_create("all");

    tcase_add_test(tcase, pieces_are_apart_and_zeroed);
    tcase_add_test(tcase, too_much_fails_once_for_all);
    tcase_add_test(tcase, growing_array_keeps_its_items);
    tcase_add_test(tcase, numbers_are_sorted_the_smallest_first);
    tcase_add_test(tcase, keys_are_compared_one_after_the_other);
    tcase_add_test(tcase, bisection_finds_the_first_place);
    tcase_add_test(tcase, index_finds_all_numbers_of_a_hash);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
