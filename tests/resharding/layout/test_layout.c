/* SPDX-License-Identifier: Apache-2.0 */
#include "resharding/layout/layout.h"

#include <pthread.h>

#include "tests/resharding/plan/random_case.h"
#include "xm_test.h"

START_TEST(the_order_of_axes_decides_who_holds_what)
{
    xm_layout_t *s01 = layout_from_text("2x4", "S01", "8", XM_PARTITION_EVEN);
    xm_layout_t *s10 = layout_from_text("2x4", "S10", "8", XM_PARTITION_EVEN);
    xm_box_t box;

    /* Position 1 is coordinate (0, 1): part 1 of S01, part 1 · 2 + 0 = 2 of S10. */
    xm_layout_tile_box(s01, xm_layout_tile_at(s01, 1), &box);
    ck_assert_int_eq(box.lo[0], 1);
    xm_layout_tile_box(s10, xm_layout_tile_at(s10, 1), &box);
    ck_assert_int_eq(box.lo[0], 2);
    xm_layout_destroy(s01);
    xm_layout_destroy(s10);
}
END_TEST

START_TEST(replicas_are_listed_in_mesh_order)
{
    xm_layout_t *layout = layout_from_text("2x3", "RS0", "5x4", XM_PARTITION_EVEN);
    int count;
    const int *ranks = xm_layout_replicas(layout, 1, &count);

    ck_assert_int_eq(xm_layout_tiles(layout), 2);
    ck_assert_int_eq(count, 3);
    ck_assert_int_eq(ranks[0], 3);
    ck_assert_int_eq(ranks[2], 5);
    ck_assert_uint_eq(xm_layout_buffer_bytes(layout, 3, 4), 5 * 2 * 4);
    ck_assert_uint_eq(xm_layout_buffer_bytes(layout, 6, 4), 0);
    xm_layout_destroy(layout);
}
END_TEST

START_TEST(chunk_follows_torch)
{
    /* torch.chunk(range(5), 4): 2, 2, 1, and a fourth rank with nothing. */
    xm_layout_t *layout = layout_from_text("4", "S0", "5", XM_PARTITION_CHUNK);
    const int64_t *cuts = xm_layout_cuts(layout, 0);
    const int64_t expected[] = {0, 2, 4, 5, 5};

    for (int i = 0; i < 5; ++i) {
        ck_assert_int_eq(cuts[i], expected[i]);
    }
    xm_layout_destroy(layout);
    /* Two axes, one after the other: 7 → 4 + 3 → (2, 2) + (2, 1). */
    layout = layout_from_text("2x2", "S01", "7", XM_PARTITION_CHUNK);
    cuts = xm_layout_cuts(layout, 0);
    ck_assert_int_eq(cuts[1], 2);
    ck_assert_int_eq(cuts[2], 4);
    ck_assert_int_eq(cuts[3], 6);
    xm_layout_destroy(layout);
}
END_TEST

START_TEST(tiles_are_a_partition_of_the_tensor)
{
    random_t random = {77};

    for (int i = 0; i < xm_test_rounds(500); ++i) {
        random_case_t c;
        int64_t volume = 0, total = 1;
        xm_box_t a, b, common;

        random_case_create(&random, &c);
        for (int t = 0; t < xm_layout_tiles(c.src); ++t) {
            xm_layout_tile_box(c.src, t, &a);
            volume += xm_box_volume(&a);
            for (int u = 0; u < t; ++u) {
                xm_layout_tile_box(c.src, u, &b);
                ck_assert(xm_box_volume(&a) == 0 || xm_box_volume(&b) == 0 || a.dims == 0 ||
                          !xm_box_intersect(&a, &b, &common));
            }
        }
        for (int d = 0; d < xm_layout_dims(c.src); ++d) {
            total *= xm_layout_shape(c.src)[d];
        }
        ck_assert_int_eq(volume, total);
        random_case_destroy(&c);
    }
}
END_TEST

START_TEST(balanced_gives_the_first_parts_one_more)
{
    /* 10 → 4, 3, 3 → (2, 2), (2, 1), (2, 1): axis by axis, unlike 6 parts at once. */
    static const int64_t flat[] = {0, 3, 6, 8, 10}, nested[] = {0, 2, 4, 6, 7, 9, 10};
    xm_layout_t *layout = layout_from_text("4", "S0", "10", XM_PARTITION_BALANCED);

    ck_assert_mem_eq(xm_layout_cuts(layout, 0), flat, sizeof(flat));
    xm_layout_destroy(layout);
    layout = layout_from_text("3x2", "S01", "10", XM_PARTITION_BALANCED);
    ck_assert_mem_eq(xm_layout_cuts(layout, 0), nested, sizeof(nested));
    xm_layout_destroy(layout);
}
END_TEST

/* A mesh of up to 8 axes on ranks with gaps, in any order. */
static xm_mesh_t *scattered_mesh(random_t *random)
{
    int axes = random_int(random, 0, XM_MAX_AXES), sizes[XM_MAX_AXES], size = 1, ranks[512];
    xm_mesh_t *mesh;

    for (int a = 0; a < axes; ++a) {
        sizes[a] = random_int(random, 1, size > 128 ? 1 : 4);
        size *= sizes[a];
    }
    for (int p = 0; p < size; ++p) {
        int other = random_int(random, 0, p);

        ranks[p] = ranks[other];
        ranks[other] = 7 + 3 * p;
    }
    ck_assert_xm_ok(xm_mesh_create(axes, sizes, ranks, &mesh));
    return mesh;
}

static void scattered_spec(random_t *random, const xm_mesh_t *mesh, xm_spec_t *spec)
{
    int order[XM_MAX_AXES];

    memset(spec, 0, sizeof(*spec));
    spec->dims = random_int(random, 0, 3);
    for (int a = 0; a < xm_mesh_axes(mesh); ++a) {
        int other = random_int(random, 0, a);

        order[a] = order[other];
        order[other] = a;
    }
    for (int a = 0; a < xm_mesh_axes(mesh) && spec->dims > 0; ++a) {
        int d = random_int(random, -1, spec->dims - 1);

        if (d >= 0) {
            spec->axes[d][spec->axis_count[d]++] = (uint8_t)order[a];
        }
    }
}

/* Size of piece i when n elements are dealt to p pieces, found by dealing them out one by one. */
static int64_t dealt(xm_partition_t partition, int64_t n, int p, int i)
{
    int64_t size = 0;

    for (int64_t e = 0; e < n; ++e) {
        int64_t owner = partition == XM_PARTITION_BALANCED ? e % p : e / ((n + p - 1) / p);

        size += owner == i ? 1 : 0;
    }
    return size;
}

/* The range of dimension d at a position, from the definition. */
static void expected_range(const xm_layout_t *layout, int position, int d, int64_t *lo, int64_t *hi)
{
    const xm_spec_t *spec = xm_layout_spec(layout);
    const xm_mesh_t *mesh = xm_layout_mesh(layout);
    int part = 0;

    *lo = 0;
    *hi = xm_layout_shape(layout)[d];
    for (int i = 0; i < spec->axis_count[d]; ++i) {
        int pieces = xm_mesh_axis_size(mesh, spec->axes[d][i]);
        int mine = xm_mesh_coordinate(mesh, position, spec->axes[d][i]);
        int64_t n = *hi - *lo;

        part = part * pieces + mine;
        if (xm_layout_partition(layout) != XM_PARTITION_EXPLICIT) {
            for (int before = 0; before < mine; ++before) {
                *lo += dealt(xm_layout_partition(layout), n, pieces, before);
            }
            *hi = *lo + dealt(xm_layout_partition(layout), n, pieces, mine);
        }
    }
    if (xm_layout_partition(layout) == XM_PARTITION_EXPLICIT) {
        *lo = xm_layout_cuts(layout, d)[part];
        *hi = xm_layout_cuts(layout, d)[part + 1];
    }
}

static void check_against_definition(const xm_layout_t *layout)
{
    const xm_mesh_t *mesh = xm_layout_mesh(layout);
    int listed = 0;

    for (int p = 0; p < xm_mesh_size(mesh); ++p) {
        int tile = xm_layout_tile_of_rank(layout, xm_mesh_rank(mesh, p));
        xm_box_t box;

        ck_assert_int_eq(tile, xm_layout_tile_at(layout, p));
        xm_layout_tile_box(layout, tile, &box);
        ck_assert_int_eq(box.dims, xm_layout_dims(layout));
        for (int d = 0; d < box.dims; ++d) {
            int64_t lo, hi;

            expected_range(layout, p, d, &lo, &hi);
            ck_assert_int_eq(box.hi[d] - box.lo[d], hi - lo);
            ck_assert(lo == hi || box.lo[d] == lo);
        }
    }
    for (int t = 0; t < xm_layout_tiles(layout); ++t) {
        int count, last = -1;
        const int *ranks = xm_layout_replicas(layout, t, &count);

        for (int i = 0; i < count; ++i) {
            int position = xm_mesh_position(mesh, ranks[i]);

            ck_assert_int_gt(position, last);
            ck_assert_int_eq(xm_layout_tile_at(layout, position), t);
            last = position;
        }
        listed += count;
    }
    ck_assert_int_eq(listed, xm_mesh_size(mesh));
}

/* The same tensor cut at the places of a balanced layout, some of them moved down. */
static xm_layout_t *moved_cuts(random_t *random, const xm_layout_t *balanced)
{
    int64_t points[3][513];
    const int64_t *cuts[3];
    xm_layout_t *layout;

    for (int d = 0; d < xm_layout_dims(balanced); ++d) {
        int parts = xm_layout_parts(balanced, d);

        memcpy(points[d], xm_layout_cuts(balanced, d), ((size_t)parts + 1) * sizeof(int64_t));
        for (int i = 1; i < parts; ++i) {
            if (random_int(random, 0, 2) == 0) {
                points[d][i] = points[d][i - 1];
            }
        }
        cuts[d] = parts > 1 || random_int(random, 0, 1) == 0 ? points[d] : NULL;
    }
    ck_assert_xm_ok(xm_layout_create_explicit(xm_layout_mesh(balanced), xm_layout_spec(balanced),
                                              xm_layout_shape(balanced), cuts, &layout));
    return layout;
}

START_TEST(every_partition_follows_its_definition)
{
    random_t random = {2024};

    for (int i = 0; i < xm_test_rounds(300); ++i) {
        xm_mesh_t *mesh = scattered_mesh(&random);
        int64_t shape[3], even[3];
        xm_layout_t *layout, *moved;
        xm_spec_t spec;

        scattered_spec(&random, mesh, &spec);
        for (int d = 0; d < spec.dims; ++d) {
            shape[d] = random_int(&random, 0, 30);
            even[d] = random_int(&random, 0, 3) * xm_spec_parts(&spec, mesh, d);
        }
        ck_assert_xm_ok(xm_layout_create(mesh, &spec, XM_PARTITION_EVEN, even, &layout));
        check_against_definition(layout);
        xm_layout_destroy(layout);
        ck_assert_xm_ok(xm_layout_create(mesh, &spec, XM_PARTITION_CHUNK, shape, &layout));
        check_against_definition(layout);
        xm_layout_destroy(layout);
        ck_assert_xm_ok(xm_layout_create(mesh, &spec, XM_PARTITION_BALANCED, shape, &layout));
        check_against_definition(layout);
        moved = moved_cuts(&random, layout);
        check_against_definition(moved);
        xm_layout_destroy(moved);
        xm_layout_destroy(layout);
        xm_mesh_destroy(mesh);
    }
}
END_TEST

START_TEST(fewer_elements_than_devices)
{
    static const int64_t ones[] = {0, 1, 2, 3, 3, 3}, none[] = {0, 0, 0, 0, 0, 0};

    for (int p = XM_PARTITION_CHUNK; p <= XM_PARTITION_BALANCED; ++p) {
        xm_layout_t *layout = layout_from_text("5", "S0", "3", (xm_partition_t)p);

        ck_assert_mem_eq(xm_layout_cuts(layout, 0), ones, sizeof(ones));
        ck_assert_uint_eq(xm_layout_buffer_bytes(layout, 2, 16), 16);
        ck_assert_uint_eq(xm_layout_buffer_bytes(layout, 3, 16), 0);
        xm_layout_destroy(layout);
    }
    for (int p = XM_PARTITION_EVEN; p <= XM_PARTITION_BALANCED; ++p) {
        xm_layout_t *layout = layout_from_text("5", "S0R", "0x7", (xm_partition_t)p);

        ck_assert_mem_eq(xm_layout_cuts(layout, 0), none, sizeof(none));
        ck_assert_uint_eq(xm_layout_buffer_bytes(layout, 4, 4), 0);
        xm_layout_destroy(layout);
    }
}
END_TEST

START_TEST(scalars_are_held_by_all)
{
    xm_layout_t *layouts[XM_PARTITION_COUNT];
    xm_mesh_t *mesh;
    xm_spec_t spec;

    ck_assert_xm_ok(xm_mesh_parse("2x2", NULL, 0, &mesh));
    ck_assert_xm_ok(xm_spec_parse("", &spec));
    for (int p = 0; p < XM_PARTITION_EXPLICIT; ++p) {
        layouts[p] = layout_from_text("2x2", "", "scalar", (xm_partition_t)p);
    }
    ck_assert_xm_ok(
        xm_layout_create_explicit(mesh, &spec, NULL, NULL, &layouts[XM_PARTITION_EXPLICIT]));
    for (int p = 0; p < XM_PARTITION_COUNT; ++p) {
        int count;

        ck_assert_int_eq(xm_layout_tiles(layouts[p]), 1);
        (void)xm_layout_replicas(layouts[p], 0, &count);
        ck_assert_int_eq(count, 4);
        ck_assert_uint_eq(xm_layout_buffer_bytes(layouts[p], 2, 8), 8);
        xm_layout_destroy(layouts[p]);
    }
    xm_mesh_destroy(mesh);
}
END_TEST

START_TEST(tensors_beyond_4_GiB)
{
    static const int64_t n = (INT64_C(1) << 34) + 2; /* = 3 · 5,726,623,062 */
    static const int64_t cuts[] = {0, 5, INT64_C(1) << 33, (INT64_C(1) << 34) + 2};
    const int64_t *all[] = {cuts, NULL}, shape[] = {n, 4};
    xm_layout_t *layout = layout_from_text("3", "S0R", "17179869186x4", XM_PARTITION_EVEN);
    xm_layout_t *explicit_layout;

    ck_assert_int_eq(xm_layout_cuts(layout, 0)[1], n / 3);
    ck_assert_uint_eq(xm_layout_buffer_bytes(layout, 2, 16), (uint64_t)n / 3 * 64);
    ck_assert_xm_ok(xm_layout_create_explicit(xm_layout_mesh(layout), xm_layout_spec(layout), shape,
                                              all, &explicit_layout));
    ck_assert_uint_eq(xm_layout_buffer_bytes(explicit_layout, 1, 2), ((UINT64_C(1) << 33) - 5) * 8);
    xm_layout_destroy(explicit_layout);
    xm_layout_destroy(layout);
    layout = layout_from_text("3", "S0R", "17179869188x4", XM_PARTITION_CHUNK);
    ck_assert_int_eq(xm_layout_cuts(layout, 0)[2], 2 * (n / 3 + 1));
    ck_assert_uint_eq(xm_layout_buffer_bytes(layout, 2, 1), (uint64_t)n / 3 * 4);
    xm_layout_destroy(layout);
    layout = layout_from_text("3", "S0R", "17179869187x4", XM_PARTITION_BALANCED);
    ck_assert_int_eq(xm_layout_cuts(layout, 0)[2], 2 * (n / 3) + 1);
    ck_assert_uint_eq(xm_layout_buffer_bytes(layout, 0, 8), ((uint64_t)n / 3 + 1) * 32);
    xm_layout_destroy(layout);
}
END_TEST

START_TEST(partitions_have_names)
{
    xm_partition_t partition = XM_PARTITION_COUNT;

    for (int p = 0; p < XM_PARTITION_EXPLICIT; ++p) {
        ck_assert_xm_ok(xm_partition_parse(xm_partition_name((xm_partition_t)p), &partition));
        ck_assert_int_eq((int)partition, p);
    }
    ck_assert_xm_fails(xm_partition_parse("explicit", &partition), XM_ERR_INVALID_ARGUMENT,
                       "needs the offsets of its cuts");
    ck_assert_xm_fails(xm_partition_parse("balancd", &partition), XM_ERR_INVALID_ARGUMENT,
                       "did you mean balanced?");
    ck_assert_int_eq((int)partition, XM_PARTITION_EXPLICIT - 1);
}
END_TEST

static void *clone_and_destroy(void *argument)
{
    const xm_layout_t *layout = argument;

    for (int i = 0; i < 2000; ++i) {
        xm_layout_t *clone;
        xm_mesh_t *mesh;

        if (xm_layout_clone(layout, &clone) < 0 ||
            xm_mesh_clone(xm_layout_mesh(layout), &mesh) < 0) {
            return argument;
        }
        xm_layout_destroy(clone);
        xm_mesh_destroy(mesh);
    }
    return NULL;
}

START_TEST(layouts_are_shared_between_threads)
{
    xm_layout_t *layout = layout_from_text("2x2", "S01", "8", XM_PARTITION_EVEN), *clone;
    pthread_t threads[4];

    for (int i = 0; i < 4; ++i) {
        ck_assert_int_eq(pthread_create(&threads[i], NULL, clone_and_destroy, layout), 0);
    }
    for (int i = 0; i < 4; ++i) {
        void *failed;

        ck_assert_int_eq(pthread_join(threads[i], &failed), 0);
        ck_assert_ptr_null(failed);
    }
    /* A clone outlives what it was made from. */
    ck_assert_xm_ok(xm_layout_clone(layout, &clone));
    xm_layout_destroy(layout);
    ck_assert_int_eq(xm_layout_tile_of_rank(clone, 3), 3);
    xm_layout_destroy(clone);
}
END_TEST

START_TEST(bad_layouts_are_named)
{
    xm_mesh_t *mesh;
    xm_layout_t *layout;
    xm_spec_t spec;
    int64_t shape[] = {6, 7}, huge[] = {INT64_C(1) << 40, INT64_C(1) << 40};
    xm_partition_t partition;
    int dims;

    ck_assert_xm_ok(xm_mesh_parse("2x2", NULL, 0, &mesh));
    ck_assert_xm_ok(xm_spec_parse("S0S1", &spec));
    ck_assert_xm_fails(xm_layout_create(mesh, &spec, XM_PARTITION_EVEN, shape, &layout),
                       XM_ERR_INVALID_ARGUMENT,
                       "dimension 1 has 7 elements, which 2 parts do not divide");
    ck_assert_xm_fails(xm_layout_create(mesh, &spec, XM_PARTITION_EVEN, huge, &layout),
                       XM_ERR_INVALID_ARGUMENT, "more than 2^62 elements (up to dimension 1)");
    ck_assert_xm_fails(xm_partition_parse("chunked", &partition), XM_ERR_INVALID_ARGUMENT,
                       "did you mean chunk?");
    ck_assert_xm_fails(xm_shape_parse("4x-1", &dims, shape), XM_ERR_INVALID_ARGUMENT,
                       "dimension 1");
    ck_assert_xm_fails(xm_shape_parse("4x", &dims, shape), XM_ERR_PARSE, "dimension 1");
    xm_mesh_destroy(mesh);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("layout");
    TCase *tcase = tcase_create("all");

    tcase_add_test(tcase, the_order_of_axes_decides_who_holds_what);
    tcase_add_test(tcase, replicas_are_listed_in_mesh_order);
    tcase_add_test(tcase, chunk_follows_torch);
    tcase_add_test(tcase, tiles_are_a_partition_of_the_tensor);
    tcase_add_test(tcase, balanced_gives_the_first_parts_one_more);
    tcase_add_test(tcase, every_partition_follows_its_definition);
    tcase_add_test(tcase, fewer_elements_than_devices);
    tcase_add_test(tcase, scalars_are_held_by_all);
    tcase_add_test(tcase, tensors_beyond_4_GiB);
    tcase_add_test(tcase, partitions_have_names);
    tcase_add_test(tcase, layouts_are_shared_between_threads);
    tcase_add_test(tcase, bad_layouts_are_named);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
