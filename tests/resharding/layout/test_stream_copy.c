/* SPDX-License-Identifier: Apache-2.0 */
#include "resharding/layout/stream_copy.h"

#include <stdint.h>

#include "resharding/layout/view.h"
#include "xm_test.h"

enum { ROOM = 5 * 16384, MARGIN = 128 };

static unsigned char source[ROOM + MARGIN], target[ROOM + 2 * MARGIN];
static const unsigned char zeros[sizeof(target)];

static unsigned char pattern(size_t i)
{
    return (unsigned char)(1 + i * 7 + (i >> 8) * 13);
}

/* Exactly the bytes asked for are written, whatever the ends' places in a line. */
static void check_copy(size_t to, size_t from, size_t bytes)
{
    memset(target, 0, sizeof(target));
    xm_stream_copy(target + to, source + from, bytes);
    ck_assert_msg(memcmp(target + to, source + from, bytes) == 0, "%zu bytes from %zu to %zu",
                  bytes, from, to);
    memset(target + to, 0, bytes);
    ck_assert_msg(memcmp(target, zeros, sizeof(target)) == 0,
                  "%zu bytes from %zu to %zu: others changed", bytes, from, to);
}

START_TEST(any_length_and_any_alignment)
{
    static const size_t lengths[] = {0,    1,    63,    64,    65,    127,   128,           129,
                                     4095, 4096, 16383, 16384, 16385, 16448, 3 * 16384 + 77};

    for (size_t i = 0; i < sizeof(source); ++i) {
        source[i] = pattern(i);
    }
    for (size_t l = 0; l < sizeof(lengths) / sizeof(lengths[0]); ++l) {
        for (size_t to = 0; to < 70; to += l < 8 ? 1 : 23) {
            check_copy(to, 0, lengths[l]);
            check_copy(to, 1 + to % 60, lengths[l]);
        }
    }
}
END_TEST

/* Rows of 5000 bytes out of a tile of longer ones, into one of others, from the middle of a row. */
START_TEST(rows_of_a_box)
{
    const xm_box_t box = {.dims = 2, .lo = {2, 10}, .hi = {7, 5010}};
    const xm_box_t from = {.dims = 2, .lo = {1, 0}, .hi = {8, 6000}};
    const xm_box_t to = {.dims = 2, .lo = {2, 7}, .hi = {7, 5107}};
    xm_view_t from_view, to_view;

    for (size_t i = 0; i < sizeof(source); ++i) {
        source[i] = pattern(i);
    }
    memset(target, 0, sizeof(target));
    xm_view_init(&from_view, &from, &box, 1);
    xm_view_init(&to_view, &to, &box, 1);
    xm_view_stream(&from_view, source, &to_view, target, 777, 20000);
    for (int64_t row = 2; row < 7; ++row) {
        for (int64_t column = 7; column < 5107; ++column) {
            int64_t element = (row - 2) * 5000 + column - 10;
            bool copied = column >= 10 && column < 5010 && element >= 777 && element < 20777;
            unsigned char expected = copied ? source[(row - 1) * 6000 + column] : 0;

            ck_assert_int_eq(target[(row - 2) * 5100 + column - 7], expected);
        }
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("stream_copy");
    TCase *tcase = tcase_create("stream_copy");

    tcase_add_test(tcase, any_length_and_any_alignment);
    tcase_add_test(tcase, rows_of_a_box);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
