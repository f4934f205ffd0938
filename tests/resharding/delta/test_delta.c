/* SPDX-License-Identifier: Apache-2.0 */
#include "resharding/delta.h"

#include <math.h>

#include "tests/resharding/plan/random_case.h"
#include "xm_test.h"

enum { MOST = 7 * 7 * 7 * 7 * 16 };

/* A box in the middle of two tiles: that of a sender and that of a receiver. */
typedef struct {
    int64_t size, volume;
    xm_box_t box, tile[2];
    xm_view_t view[2];
    int64_t elements[2];
} pair_t;

static pair_t random_pair(random_t *random)
{
    static const int64_t sizes[] = {1, 2, 3, 4, 8, 16};
    pair_t pair = {.size = sizes[random_int(random, 0, 5)]};

    pair.box.dims = random_int(random, 1, 4);
    for (int d = 0; d < pair.box.dims; ++d) {
        pair.box.lo[d] = random_int(random, 0, 5);
        pair.box.hi[d] = pair.box.lo[d] + random_int(random, 1, 5);
    }
    pair.volume = xm_box_volume(&pair.box);
    for (int side = 0; side < 2; ++side) {
        pair.tile[side] = pair.box;
        for (int d = 0; d < pair.box.dims; ++d) {
            pair.tile[side].lo[d] -= random_int(random, 0, 1);
            pair.tile[side].hi[d] += random_int(random, 0, 1);
        }
        pair.elements[side] = xm_box_volume(&pair.tile[side]);
        xm_view_init(&pair.view[side], &pair.tile[side], &pair.box, pair.size);
    }
    return pair;
}

/* Where the e-th element of the box lies in a tile, from the definition. */
static int64_t element_of(const pair_t *pair, int side, int64_t e)
{
    int64_t element = 0, stride = 1;

    for (int d = pair->box.dims - 1; d >= 0; --d) {
        int64_t extent = pair->box.hi[d] - pair->box.lo[d];

        element += (pair->box.lo[d] - pair->tile[side].lo[d] + e % extent) * stride;
        e /= extent;
        stride *= pair->tile[side].hi[d] - pair->tile[side].lo[d];
    }
    return element;
}

/* Changes elements of a tile in pieces; density per cent, pieces of up to `longest`. */
static void change(random_t *random, unsigned char *tile, int64_t elements, int64_t size,
                   int density, int longest)
{
    for (int64_t e = 0; e < elements; ++e) {
        if (random_int(random, 0, 99) < density) {
            for (int64_t end = e + random_int(random, 1, longest); e < elements && e < end; ++e) {
                tile[e * size + random_int(random, 0, (int)size - 1)] ^=
                    (unsigned char)random_int(random, 1, 255);
            }
        }
    }
}

static void fill(random_t *random, unsigned char *bytes, size_t length)
{
    for (size_t b = 0; b < length; ++b) {
        bytes[b] = (unsigned char)xm_random_next(random);
    }
}

START_TEST(changes_are_what_differs)
{
    random_t random = {3};
    static unsigned char before[MOST], now[MOST], shadow[MOST];
    static uint64_t changed[MOST / 64 + 1], was[MOST / 64 + 1];

    for (int i = 0; i < 300; ++i) {
        static const int64_t sizes[] = {1, 2, 3, 4, 8, 16};
        int64_t size = sizes[i % 6], elements = random_int(&random, 1, 1000), differ = 0;
        static const int densities[] = {0, 1, 10, 100};

        fill(&random, before, (size_t)(elements * size));
        memcpy(now, before, sizeof(now));
        memcpy(shadow, before, sizeof(shadow));
        change(&random, now, elements, size, densities[random_int(&random, 0, 3)], 5);
        fill(&random, (unsigned char *)was, sizeof(was));
        memcpy(changed, was, sizeof(was));
        differ = xm_changes_find(now, shadow, elements, size, changed);
        ck_assert_mem_eq(shadow, now, (size_t)(elements * size));
        for (int64_t e = 0; e < (int64_t)xm_changes_words(elements) * 64; ++e) {
            bool differs =
                e < elements && memcmp(now + e * size, before + e * size, (size_t)size) != 0;

            ck_assert_int_eq(changed[e / 64] >> (e % 64) & 1,
                             differs || (was[e / 64] >> (e % 64) & 1) != 0);
            differ -= differs;
        }
        ck_assert_int_eq(differ, 0);
    }
}
END_TEST

/* Through an encoding every element of the range gets what the sender's has, and nothing else is
 * written. */
START_TEST(encodings_bring_what_has_changed)
{
    random_t random = {5};
    static unsigned char before[MOST], now[MOST], receiver[MOST], expected[MOST];
    static uint64_t changed[MOST / 64 + 1], scratch[MOST / 64 + 2];
    static char bytes[MOST + 64];
    int kinds[5] = {0};

    for (int i = 0; i < 6000; ++i) {
        static const int densities[] = {0, 1, 5, 20, 60, 100};
        const pair_t pair = random_pair(&random);
        int64_t first = random_int(&random, 0, (int)pair.volume - 1);
        int64_t count = random_int(&random, 1, (int)(pair.volume - first));
        size_t limit = xm_encoding_limit(count, pair.size), length;
        int64_t picked, runs;
        bool all = random_int(&random, 0, 9) == 0;

        fill(&random, before, (size_t)(pair.elements[0] * pair.size));
        memcpy(now, before, sizeof(now));
        change(&random, now, pair.elements[0], pair.size, densities[random_int(&random, 0, 5)],
               random_int(&random, 0, 1) == 0 ? 1 : 12);
        fill(&random, receiver, sizeof(receiver));
        memcpy(expected, receiver, sizeof(receiver));
        for (int64_t e = first; e < first + count; ++e) {
            int64_t from = element_of(&pair, 0, e) * pair.size;
            int64_t to = element_of(&pair, 1, e) * pair.size;

            memcpy(expected + to, now + from, (size_t)pair.size);
            if (!all) {
                memcpy(receiver + to, before + from, (size_t)pair.size);
            }
        }
        memset(changed, 0, sizeof(changed));
        (void)xm_changes_find(now, before, pair.elements[0], pair.size, changed);
        memset(bytes, 0x5a, sizeof(bytes));
        ck_assert_uint_le(xm_encoding_scratch(count), sizeof(scratch));
        length = xm_encoding_write(&pair.view[0], now, all ? NULL : changed, first, count, scratch,
                                   bytes);
        ck_assert_uint_le(length, 12 + (size_t)(count * pair.size));
        picked = runs = 0;
        for (int64_t e = first, before_it = -1; e < first + count; ++e) {
            int64_t at = element_of(&pair, 0, e);

            if (all || (changed[at / 64] >> (at % 64) & 1) != 0) {
                ++picked;
                runs += before_it != e - 1 || e == first;
                before_it = e;
            }
        }
        ck_assert_uint_eq(xm_encoding_bytes(count, picked, runs, pair.size), length);
        for (size_t b = limit; b < limit + 32; ++b) {
            ck_assert_int_eq(bytes[b], 0x5a);
        }
        ++kinds[(int)bytes[0]];
        ck_assert_int_ge(xm_encoding_changed(bytes, length, count, pair.size), 0);
        ck_assert(xm_encoding_apply(&pair.view[1], receiver, first, count, bytes, length));
        ck_assert_mem_eq(receiver, expected, sizeof(receiver));
    }
    for (int k = 0; k < 5; ++k) {
        ck_assert_int_gt(kinds[k], 10);
    }
}
END_TEST

/* A range that is cut out of the encodings of a row of ranges says what one of the range itself
 * would. */
START_TEST(cuts_are_encodings)
{
    enum { LENGTH = 600 };
    random_t random = {6};
    static uint32_t tile[LENGTH], one[LENGTH], other[LENGTH];
    static uint64_t changed[LENGTH / 64 + 1], scratch[LENGTH / 64 + 2];
    static char bytes[8][LENGTH * 5 + 64], cut[LENGTH * 5 + 64], direct[LENGTH * 5 + 64];
    const xm_box_t box = {.dims = 1, .lo = {0}, .hi = {LENGTH}};
    xm_view_t view;

    xm_view_init(&view, &box, &box, 4);
    for (int i = 0; i < 3000; ++i) {
        xm_encoded_range_t ranges[8];
        int chunk = random_int(&random, 80, LENGTH), first = random_int(&random, 0, LENGTH - 1);
        int count = random_int(&random, 1, LENGTH - first), parts = 0;
        size_t length;

        fill(&random, (unsigned char *)tile, sizeof(tile));
        fill(&random, (unsigned char *)one, sizeof(one));
        memcpy(other, one, sizeof(one));
        memset(changed, 0, sizeof(changed));
        for (int e = 0; e < LENGTH; ++e) {
            static const int densities[] = {0, 2, 30, 100};

            changed[e / 64] |= (uint64_t)(random_int(&random, 0, 99) < densities[(i + e / 200) % 4])
                               << (e % 64);
        }
        for (int at = first / chunk * chunk; at < first + count; at += chunk, ++parts) {
            int part = chunk < LENGTH - at ? chunk : LENGTH - at;

            ranges[parts] = (xm_encoded_range_t){
                bytes[parts],
                xm_encoding_write(&view, tile, changed, at, part, scratch, bytes[parts]), at, part};
        }
        length = xm_encoding_cut(ranges, first, count, 4, scratch, cut);
        ck_assert_uint_gt(length, 0);
        ck_assert_uint_le(length + 8, xm_encoding_limit(count, 4));
        ck_assert(xm_encoding_apply(&view, one, first, count, cut, length));
        length = xm_encoding_write(&view, tile, changed, first, count, scratch, direct);
        ck_assert(xm_encoding_apply(&view, other, first, count, direct, length));
        /* Where an encoding holds everything it also has what has not changed. */
        for (int e = 0; e < LENGTH; ++e) {
            ck_assert(one[e] == other[e] || (one[e] == tile[e] && e >= first && e < first + count));
            ck_assert((changed[e / 64] >> (e % 64) & 1) == 0 || e < first || e >= first + count ||
                      one[e] == tile[e]);
        }
    }
}
END_TEST

/* Bytes that are no encoding write nothing outside of the range. */
START_TEST(wrong_bytes_stay_in_the_range)
{
    random_t random = {7};
    static unsigned char now[MOST], receiver[MOST], before[MOST];
    static uint64_t changed[MOST / 64 + 1], scratch[MOST / 64 + 2];
    int refused = 0;

    for (int i = 0; i < 6000; ++i) {
        const pair_t pair = random_pair(&random);
        int64_t first = random_int(&random, 0, (int)pair.volume - 1);
        int64_t count = random_int(&random, 1, (int)(pair.volume - first));
        /* Of its own length, so that a sanitizer sees what lies beyond. */
        char *bytes = malloc(xm_encoding_limit(count, pair.size));
        size_t length;

        fill(&random, (unsigned char *)changed, sizeof(changed));
        for (size_t w = 0; i % 2 == 0 && w < xm_changes_words(MOST); ++w) {
            changed[w] &= xm_random_next(&random) & xm_random_next(&random);
        }
        length = xm_encoding_write(&pair.view[0], now, changed, first, count, scratch, bytes);
        for (int flips = random_int(&random, 1, 4); flips > 0; --flips) {
            bytes[random_int(&random, 0, (int)length - 1)] ^= (char)random_int(&random, 1, 255);
        }
        fill(&random, receiver, sizeof(receiver));
        memcpy(before, receiver, sizeof(receiver));
        refused += !xm_encoding_apply(&pair.view[1], receiver, first, count, bytes, length);
        for (int64_t e = first; e < first + count; ++e) {
            int64_t at = element_of(&pair, 1, e) * pair.size;

            memcpy(receiver + at, before + at, (size_t)pair.size);
        }
        ck_assert_mem_eq(receiver, before, sizeof(receiver));
        free(bytes);
    }
    ck_assert_int_gt(refused, 1000);
}
END_TEST

/* What it takes beside the values: at most a tenth of values and entropy together for elements of
 * two bytes at random places, and next to nothing where they lie together. */
START_TEST(sizes_come_close_to_the_entropy)
{
    enum { COUNT = 1 << 18 };
    static uint16_t tile[COUNT];
    static uint64_t changed[COUNT / 64], scratch[COUNT / 64 + 1];
    static char bytes[COUNT * 2 + 64];
    static const double densities[] = {0.0002, 0.002, 0.01, 0.03, 0.1, 0.5};
    const xm_box_t box = {.dims = 1, .lo = {0}, .hi = {COUNT}};
    random_t random = {9};
    xm_view_t view;

    xm_view_init(&view, &box, &box, 2);
    for (int d = 0; d < 6; ++d) {
        double p = densities[d], k = 0, share, entropy;
        size_t length;

        memset(changed, 0, sizeof(changed));
        for (int e = 0; e < COUNT; ++e) {
            if ((double)(xm_random_next(&random) >> 11) / 9007199254740992.0 < p) {
                changed[e / 64] |= UINT64_C(1) << (e % 64);
                ++k;
            }
        }
        share = k / COUNT;
        entropy = -COUNT * (share * log2(share) + (1 - share) * log2(1 - share)) / 8;
        length = xm_encoding_write(&view, tile, changed, 0, COUNT, scratch, bytes);
        ck_assert_double_le((double)length, 1.10 * (2 * k + entropy));
        /* The same number of elements in one row of every hundred. */
        memset(changed, 0, sizeof(changed));
        for (int e = 0; e < COUNT; ++e) {
            changed[e / 64] |= (uint64_t)(e / 1024 % 100 == 7) << (e % 64);
        }
        length = xm_encoding_write(&view, tile, changed, 0, COUNT, scratch, bytes);
        ck_assert_uint_le(length, 3 * 2048 + 32);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("delta");
    TCase *tcase = tcase_create("core");

    tcase_add_test(tcase, changes_are_what_differs);
    tcase_add_test(tcase, encodings_bring_what_has_changed);
    tcase_add_test(tcase, cuts_are_encodings);
    tcase_add_test(tcase, wrong_bytes_stay_in_the_range);
    tcase_add_test(tcase, sizes_come_close_to_the_entropy);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
