/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/base/random.h"

#include <stdbool.h>

#include "xm_test.h"

/* Of Vigna's splitmix64.c. */
START_TEST(numbers_are_the_published_ones)
{
    static const uint64_t expected[] = {
        UINT64_C(6457827717110365317), UINT64_C(3203168211198807973), UINT64_C(9817491932198370423),
        UINT64_C(4593380528125082431), UINT64_C(16408922859458223821)};
    xm_random_t random = {1234567};

    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); ++i) {
        ck_assert_uint_eq(xm_random_next(&random), expected[i]);
    }
}
END_TEST

START_TEST(seed_zero_is_a_seed)
{
    xm_random_t random = {0};

    ck_assert_uint_eq(xm_random_next(&random), UINT64_C(0xe220a8397b1dcdaf));
    ck_assert_uint_eq(xm_random_next(&random), UINT64_C(0x6e789e6aa1b965f4));
    ck_assert_uint_eq(xm_random_of(0), UINT64_C(0xe220a8397b1dcdaf));
}
END_TEST

START_TEST(below_is_within_its_limit_and_even)
{
    enum { LIMIT = 10, DRAWS = 100000 };
    int drawn[LIMIT] = {0};
    xm_random_t random = {1};

    for (int i = 0; i < DRAWS; ++i) {
        uint64_t number = xm_random_below(&random, LIMIT);

        ck_assert_uint_lt(number, LIMIT);
        ++drawn[number];
    }
    for (int i = 0; i < LIMIT; ++i) {
        ck_assert_int_gt(drawn[i], DRAWS / LIMIT * 95 / 100);
        ck_assert_int_lt(drawn[i], DRAWS / LIMIT * 105 / 100);
    }
    ck_assert_uint_eq(xm_random_below(&random, 1), 0);
}
END_TEST

START_TEST(unit_is_from_zero_to_less_than_one)
{
    ck_assert_double_eq(xm_random_unit(0), 0.0);
    ck_assert_double_eq(xm_random_unit(UINT64_C(1) << 63), 0.5);
    ck_assert_double_lt(xm_random_unit(UINT64_MAX), 1.0);
    ck_assert_double_gt(xm_random_unit(UINT64_MAX), 1.0 - 1e-15);
}
END_TEST

/* As many numbers as slots: of a random function's slots 37 % stay empty, and so of ours at most
 * about as many, whichever bits are taken. */
START_TEST(hashes_of_small_numbers_are_spread)
{
    enum { BITS = 12, SLOTS = 1 << BITS };
    static bool high[SLOTS], low[SLOTS], pairs[SLOTS];
    int count[3] = {0};

    for (int i = 0; i < SLOTS; ++i) {
        high[xm_hash_spread((uint64_t)i) >> (64 - BITS)] = true;
        low[xm_hash_mix(0, (uint64_t)i << 32) & (SLOTS - 1)] = true;
        pairs[xm_hash_pair(i / 64, i % 64) & (SLOTS - 1)] = true;
    }
    for (int i = 0; i < SLOTS; ++i) {
        count[0] += high[i];
        count[1] += low[i];
        count[2] += pairs[i];
    }
    for (int i = 0; i < 3; ++i) {
        ck_assert_int_gt(count[i], SLOTS * 6 / 10);
    }
}
END_TEST

START_TEST(hashes_tell_orders_and_ends_apart)
{
    static const int list[] = {1, 2, 3}, other[] = {2, 1, 3}, zeros[] = {0, 0};

    ck_assert_uint_ne(xm_hash_pair(1, 2), xm_hash_pair(2, 1));
    ck_assert_uint_ne(xm_hash_list(0, list, 3), xm_hash_list(0, other, 3));
    ck_assert_uint_ne(xm_hash_list(0, list, 3), xm_hash_list(0, list, 2));
    ck_assert_uint_ne(xm_hash_list(0, zeros, 2), xm_hash_list(0, zeros, 1));
    ck_assert_uint_ne(xm_hash_list(xm_hash_list(0, list, 1), list + 1, 2),
                      xm_hash_list(xm_hash_list(0, list, 2), list + 2, 1));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("random");
    TCase *tcase = tcase_create("all");

    tcase_add_test(tcase, numbers_are_the_published_ones);
    tcase_add_test(tcase, seed_zero_is_a_seed);
    tcase_add_test(tcase, below_is_within_its_limit_and_even);
    tcase_add_test(tcase, unit_is_from_zero_to_less_than_one);
    tcase_add_test(tcase, hashes_of_small_numbers_are_spread);
    tcase_add_test(tcase, hashes_tell_orders_and_ends_apart);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
