/* SPDX-License-Identifier: Apache-2.0 */
#include "resharding/layout/view.h"

#include "tests/resharding/plan/random_case.h"
#include "xm_test.h"

static void random_box(random_t *random, xm_box_t *tile, xm_box_t *box)
{
    tile->dims = box->dims = random_int(random, 0, 4);
    for (int d = 0; d < tile->dims; ++d) {
        int64_t lo = random_int(random, 0, 5), extent = random_int(random, 1, 6);
        bool whole = random_int(random, 0, 1) == 1;

        tile->lo[d] = lo;
        tile->hi[d] = lo + extent;
        box->lo[d] = whole ? lo : lo + random_int(random, 0, (int)extent - 1);
        box->hi[d] =
            whole ? lo + extent : random_int(random, (int)box->lo[d] + 1, (int)(lo + extent));
    }
}

/* Byte offset of the e-th element of the box in the tile's buffer, straight from the definition. */
static int64_t reference_offset(const xm_box_t *tile, const xm_box_t *box, int64_t e, int64_t size)
{
    int64_t offset = 0, stride = size;

    for (int d = box->dims - 1; d >= 0; --d) {
        int64_t extent = box->hi[d] - box->lo[d];

        offset += (box->lo[d] - tile->lo[d] + e % extent) * stride;
        e /= extent;
        stride *= tile->hi[d] - tile->lo[d];
    }
    return offset;
}

START_TEST(ranges_pack_and_unpack_as_defined)
{
    random_t random = {11};
    static unsigned char buffer[1296 * 16], packed[1296 * 16], target[1296 * 16];
    static const unsigned char zeros[sizeof(target)];

    for (int i = 0; i < 4000; ++i) {
        static const int64_t sizes[] = {1, 2, 3, 4, 8, 16};
        int64_t size = sizes[random_int(&random, 0, 5)], volume, first, count, offset;
        xm_box_t tile, box;
        xm_view_t view;

        random_box(&random, &tile, &box);
        xm_view_init(&view, &tile, &box, size);
        volume = xm_box_volume(&box);
        first = random_int(&random, 0, (int)volume - 1);
        count = random_int(&random, 1, (int)(volume - first));
        for (size_t b = 0; b < sizeof(buffer); ++b) {
            buffer[b] = (unsigned char)xm_random_next(&random);
        }
        xm_view_pack(&view, buffer, first, count, packed);
        memset(target, 0, sizeof(target));
        if (i % 2 == 0) {
            xm_view_unpack(&view, target, first, count, packed);
        } else { /* the same as whoever executes copies gets it */
            xm_strided_copy_t copy;

            memset(packed, 0, sizeof(packed));
            xm_view_pack_copy(&view, (uintptr_t)buffer, first, count, (uintptr_t)packed, &copy);
            xm_strided_run(&copy);
            xm_view_unpack_copy(&view, (uintptr_t)target, first, count, (uintptr_t)packed, &copy);
            xm_strided_run(&copy);
        }
        for (int64_t e = 0; e < count; ++e) {
            int64_t at = reference_offset(&tile, &box, first + e, size);

            ck_assert_mem_eq(packed + e * size, buffer + at, (size_t)size);
            ck_assert_mem_eq(target + at, buffer + at, (size_t)size);
            memset(target + at, 0, (size_t)size);
        }
        ck_assert_mem_eq(target, zeros, sizeof(target)); /* nothing outside the range was written */
        if (xm_view_contiguous(&view, first, count, &offset)) {
            ck_assert_int_eq(offset, reference_offset(&tile, &box, first, size));
            ck_assert_int_eq(reference_offset(&tile, &box, first + count - 1, size) - offset,
                             (count - 1) * size);
        } else {
            ck_assert(!xm_view_is_flat(&view));
            ck_assert_int_ne(reference_offset(&tile, &box, first + count - 1, size) -
                                 reference_offset(&tile, &box, first, size),
                             (count - 1) * size);
        }
    }
}
END_TEST

/* The promise that no chunk needs packing is kept, and made where chunks divide the runs. */
START_TEST(chunks_in_one_piece)
{
    random_t random = {17};
    int promised = 0;

    for (int i = 0; i < 4000; ++i) {
        int64_t volume, first, chunk, end, offset, run;
        xm_box_t tile, box;
        xm_view_t view;

        random_box(&random, &tile, &box);
        xm_view_init(&view, &tile, &box, 4);
        volume = xm_box_volume(&box);
        run = view.extent[view.dims - 1];
        chunk = random_int(&random, 1, (int)run);
        first = random_int(&random, 0, (int)((volume - 1) / chunk)) * chunk;
        end = random_int(&random, (int)first + 1, (int)volume);
        if (run % chunk == 0) {
            ck_assert(xm_view_chunks_contiguous(&view, first, chunk));
        }
        if (!xm_view_chunks_contiguous(&view, first, chunk)) {
            ck_assert(!xm_view_is_flat(&view));
            continue;
        }
        ++promised;
        for (int64_t at = first; at < end; at += chunk) {
            ck_assert(xm_view_contiguous(&view, at, chunk < end - at ? chunk : end - at, &offset));
        }
    }
    ck_assert_int_gt(promised, 1000);
}
END_TEST

START_TEST(copies_between_tiles)
{
    random_t random = {13};
    static unsigned char from[4096 * 4], to[4096 * 4];

    for (int i = 0; i < 2000; ++i) {
        xm_box_t tile, box, other;
        xm_view_t source, destination;
        int64_t volume;

        random_box(&random, &tile, &box);
        other = box; /* another tile around the same box */
        for (int d = 0; d < other.dims; ++d) {
            other.lo[d] -= random_int(&random, 0, 2);
            other.hi[d] += random_int(&random, 0, 2);
        }
        volume = xm_box_volume(&box);
        if (xm_box_volume(&other) > 4096) {
            continue;
        }
        xm_view_init(&source, &tile, &box, 4);
        xm_view_init(&destination, &other, &box, 4);
        for (size_t b = 0; b < sizeof(from); ++b) {
            from[b] = (unsigned char)xm_random_next(&random);
        }
        for (int way = 0; way < 2; ++way) {
            xm_strided_copy_t copy;

            memset(to, 0, sizeof(to));
            if (way == 0) {
                xm_view_copy(&source, from, &destination, to, 0, volume);
            } else { /* the same as whoever executes copies gets it */
                xm_view_tile_copy(&source, (uintptr_t)from, &destination, (uintptr_t)to, 0, volume,
                                  &copy);
                xm_strided_run(&copy);
            }
            for (int64_t e = 0; e < volume; ++e) {
                ck_assert_mem_eq(to + reference_offset(&other, &box, e, 4),
                                 from + reference_offset(&tile, &box, e, 4), 4);
            }
        }
    }
}
END_TEST

START_TEST(whole_rows_are_merged)
{
    xm_box_t tile = {3, {0, 0, 0}, {8, 4, 16}}, box = {3, {2, 0, 0}, {5, 4, 16}};
    xm_view_t view;
    int64_t offset;

    xm_view_init(&view, &tile, &box, 4);
    ck_assert(xm_view_is_flat(&view));
    ck_assert(xm_view_contiguous(&view, 0, 3 * 4 * 16, &offset));
    ck_assert_int_eq(offset, 2 * 4 * 16 * 4);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("view");
    TCase *tcase = tcase_create("all");

    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, ranges_pack_and_unpack_as_defined);
    tcase_add_test(tcase, chunks_in_one_piece);
    tcase_add_test(tcase, copies_between_tiles);
    tcase_add_test(tcase, whole_rows_are_merged);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
